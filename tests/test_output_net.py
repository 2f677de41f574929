"""OutputNet: its errors fall with work, are those of new samples, and its file is data that fits or is refused."""

import json

import numpy as np
import pytest
import torch
from frames import case
from processes import run_program
from test_imports import ABSENT

from fem_frames import (
    BoundaryFlux,
    Frame,
    MeshHierarchy,
    OutputMap,
    PointValues,
    RegionMean,
    export_frame,
    make_formulation,
    make_problem,
    solve_reference,
)
from training import OutputNet, OutputNetSettings, OutputSamples, ValidationErrors, output_samples, solve_outputs
from training.output_net import solve_for

pytestmark = pytest.mark.serial
SMALL = OutputNetSettings(samples=1000, validation=200, width=64, depth=2, steps=1500)
TINY = OutputNetSettings(samples=8, validation=4, width=4, depth=2, steps=2)


def on_problem(name, levels=3, **options):
    problem = make_problem(name, **options)
    arrays = export_frame(MeshHierarchy.from_problem(problem, levels), problem)
    return make_formulation(Frame.from_arrays(arrays, "float64"), problem)


@pytest.fixture(scope="module")
def board():
    return on_problem("checkerboard")


@pytest.fixture(scope="module")
def outputs():
    return [PointValues([[0.3, 0.4], [0.7, 0.6]]), RegionMean(), BoundaryFlux("all"), PointValues([[0.0, 0.5]])]


@pytest.fixture(scope="module")
def net(board, outputs):
    return OutputNet.train(board, outputs, SMALL)


def test_the_error_falls_with_samples_and_steps(board, outputs, net):
    few = OutputNet.train(board, outputs, OutputNetSettings(**{**vars(SMALL), "samples": 20}))
    short = OutputNet.train(board, outputs, OutputNetSettings(**{**vars(SMALL), "steps": 50}))
    good = net.validation.relative("mean")[:3]
    assert (good < 0.01).all(), net
    for worse in (few, short):
        assert (worse.validation.relative("mean")[:3] > 3 * good).all()
    assert (net.validation.relative("mean", "rms")[:3] < 0.003).all()
    assert (net.validation.max >= net.validation.mean).all()


def test_the_validation_error_is_that_of_new_samples_against_petsc(board, outputs, net):
    y = board.problem.parameters.sample(200, 99)
    reference = solve_reference(board.problem, y, 3)
    w = board.coordinates.coefficients(board.coordinates.free(reference.fields, board.frame.device, y))
    truth = OutputMap(board, outputs).values(w, torch.as_tensor(y))
    off = (net(y) - truth).abs()
    ratio = off.mean(0)[:3] / net.validation.mean[:3]
    assert ((ratio > 0.7) & (ratio < 1.4)).all(), ratio
    assert (off.amax(0)[:3] < 4 * net.validation.max[:3]).all()


def test_constant_outputs_are_exact_up_to_the_solves(board, net):
    """The flux through the whole boundary is ∫ f, and u is given on the boundary."""
    y = board.problem.parameters.sample(5, 3)
    np.testing.assert_allclose(net(y)[:, 3], -1.0, rtol=SMALL.tol)
    np.testing.assert_allclose(net(y)[:, 4], 0.0, atol=1e-12)
    assert (net.validation.deviation[3:] == 0).all()
    assert "%" in str(net.validation)


def test_normal_parameters_and_least_squares():
    problem, arrays = case("square, lognormal")
    made = make_formulation(Frame.from_arrays(arrays, "float32"), problem)
    found = OutputNet.train(made, RegionMean(), SMALL)
    assert found.validation.relative()[0] < 0.1
    assert found(100 * np.ones(problem.parameters.dimension)).shape == (1, 1), "every y is possible"
    problem, arrays = case("interval, LS")
    made = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    found = OutputNet.train(made, PointValues([0.3]), SMALL)
    assert found.validation.relative()[0] < 0.02


def test_gradients_agree_with_differences(net):
    y = torch.as_tensor(net.parameters.sample(3, 1)).requires_grad_()
    found = torch.autograd.functional.jacobian(lambda at: net(at)[:, 0].sum(), y)
    step = 1e-2  # the net computes in float32
    for k in range(y.shape[1]):
        shift = torch.zeros_like(y)
        shift[:, k] = step
        difference = (net(y + shift) - net(y - shift))[:, 0].detach() / (2 * step)
        torch.testing.assert_close(found[:, k], difference, rtol=0, atol=0.02 * float(found.abs().max()))
    assert not net(y.detach()).requires_grad


def test_the_same_seed_gives_the_same_net(board, outputs):
    first, again = (OutputNet.train(board, outputs, TINY) for _ in range(2))
    other = OutputNet.train(board, outputs, OutputNetSettings(**{**vars(TINY), "seed": 1}))
    y = board.problem.parameters.sample(4, 0)
    assert torch.equal(first(y), again(y))
    assert not torch.equal(first(y), other(y))


def test_samples_serve_several_nets_and_none_is_in_both_sets(board):
    training, validation = solve_for(board, RegionMean(), TINY)
    assert isinstance(training, OutputSamples)
    assert not set(training.y[:, 0].tolist()) & set(validation.y[:, 0].tolist())
    told = []
    nets = [
        OutputNet.fit(training, validation, OutputNetSettings(width=width, steps=2), lambda *now: told.append(now))
        for width in (2, 3)
    ]
    assert [made.record["solves"] for made in nets] == [12, 12]
    assert told[-1] == (2, 2)
    exact = solve_outputs(board, RegionMean(), 8, (0, 0, 5), 1e-12)
    np.testing.assert_allclose(training.values, exact.values, rtol=1e-5)
    with pytest.raises(ValueError, match="of other outputs or parameters"):
        OutputNet.fit(training, solve_outputs(board, BoundaryFlux("all"), 4))


def test_little_memory_changes_no_values(board, monkeypatch):
    whole = solve_outputs(board, RegionMean(), 5, tol=1e-10)
    monkeypatch.setattr(output_samples, "available", lambda: 1.0)
    told = []
    single = solve_outputs(board, RegionMean(), 5, tol=1e-10, progress=lambda *now: told.append(now))
    np.testing.assert_allclose(single.values, whole.values, rtol=1e-8)
    assert told == [(k, 5) for k in range(6)]


def test_bad_y_and_bad_options_are_refused(board, net):
    for y, message in (
        ([1.0, 1.0, 9.0, 1.0], "is outside the parameters"),
        ([1.0, 1.0], "has p = 4 parameters"),
        ([[1.0, np.nan, 1.0, 1.0]], "is not finite"),
        (np.ones((1, 4)) * 1j, "is complex"),
        (np.ones((0, 4)), "is empty"),
    ):
        for given in (y, torch.as_tensor(y)):
            with pytest.raises(ValueError, match=message):
                net(given)
    assert net([1.0] * 4).shape == (1, 5)
    assert torch.equal(net(torch.ones(4)), net(np.ones(4)))
    for options, message in (
        (dict(samples=1), "samples is 1; a whole number of at least 2"),
        (dict(width=0), "width is 0"),
        (dict(depth=2.5), "depth is 2.5"),
        (dict(rate=-1.0), "rate is -1.0; a number between 0 and 1"),
        (dict(tol=True), "tol is True"),
        (dict(seed=-1), "seed is -1"),
    ):
        with pytest.raises(ValueError, match=message):
            OutputNetSettings(**options)
    with pytest.raises(ValueError, match=r"would need .* of memory, .* use a smaller width"):
        OutputNet.train(board, RegionMean(), OutputNetSettings(width=10**7))
    with pytest.raises(ValueError, match="give a formulation or a surrogate"):
        OutputNet.train(3, RegionMean())
    with pytest.raises(ValueError, match="use mean or max, deviation or rms"):
        net.validation.relative("least")


# ---- files


def test_a_saved_net_is_the_same(tmp_path, net):
    net.save(tmp_path / "sensors.pt")
    again = OutputNet.load(tmp_path / "sensors.pt")
    y = net.parameters.sample(7, 2)
    assert torch.equal(again(y), net(y))
    assert (again.labels, again.record, again.parameters) == (net.labels, net.record, net.parameters)
    assert isinstance(again.validation, ValidationErrors)
    assert torch.equal(again.validation.mean, net.validation.mean)
    assert repr(again) == repr(net)
    assert "validation error: mean " in repr(net)
    assert [*tmp_path.iterdir()] == [tmp_path / "sensors.pt"]


def test_it_runs_without_dolfinx(tmp_path, net):
    net.save(tmp_path / "sensors.pt")
    program = """
from training import OutputNet
from fem_frames.commands import main
net = OutputNet.load("sensors.pt")
print(net([1.0, 1.0, 1.0, 1.0]).tolist())
main(["outputs", "sensors.pt", "--y", "1,1,1,1", "--json"])
assert not [name for name in sys.modules if name.startswith(("training.surrogate", "fem_frames.fenicsx.door"))]
"""
    done = run_program(ABSENT + program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    values, told = map(json.loads, done.stdout.splitlines())
    assert [row["value"] for row in told["rows"]] == values[0] == net([1.0] * 4)[0].tolist()


def test_a_write_that_fails_leaves_the_old_file(tmp_path, net, monkeypatch):
    path = tmp_path / "sensors.pt"
    net.save(path)
    before = path.read_bytes()

    def fail(content, file):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(KeyboardInterrupt):
        net.save(path)
    assert [*tmp_path.iterdir()] == [path]
    assert path.read_bytes() == before


HUGE = torch.zeros(1).expand(10**6, 10**6)
CHANGES = {
    "kind": (lambda c: c.update(format="surrogate"), "is no output net"),
    "version": (lambda c: c.update(version=9), "has version 9 of the format output net"),
    "weights": (
        lambda c: c["weights"].update({"0.weight": torch.zeros(3, 3)}),
        "no net from 4 parameters to 5 outputs",
    ),
    "missing": (lambda c: c["weights"].pop("4.bias"), "no net from 4 parameters"),
    "renamed": (lambda c: c["weights"].update({"9.bias": c["weights"].pop("4.bias")}), "no net from 4 parameters"),
    "infinite": (lambda c: c["weights"]["0.bias"].fill_(torch.inf), "weights are not finite"),
    "huge": (lambda c: c["weights"].update({"0.weight": HUGE}), "weights are not finite numbers"),
    "texts": (lambda c: c.update(weights="many"), "weights are not finite"),
    "labels": (lambda c: c.update(labels=["one"]), "4 parameters to 1 outputs"),
    "unlabelled": (lambda c: c.update(labels=7), "labels are not texts"),
    "box": (lambda c: c["parameters"].update(upper=[0.0] * 4), "is empty"),
    "parameters": (lambda c: c.update(parameters={"normal": 10**12}), "no net from 1000000000000 parameters"),
    "number": (lambda c: c.update(parameters=3), "holds no net for outputs"),
    "scale": (lambda c: c.update(scale=torch.full((5,), torch.nan, dtype=torch.float64)), "not 5 finite numbers"),
    "centre": (lambda c: c.update(centre=torch.zeros(2)), "not 5 finite numbers"),
    "errors": (lambda c: c["validation"].update(mean=0.1), "not 5 finite numbers"),
    "count": (lambda c: c["validation"].update(samples="many"), "number of validation samples is 'many'"),
    "record": (lambda c: c.update(record=[1]), "record is no dictionary"),
    "empty": (lambda c: c.pop("centre"), "'centre'"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_files_that_do_not_fit_are_refused(tmp_path, net, name):
    change, message = CHANGES[name]
    net.save(tmp_path / "good.pt")
    content = torch.load(tmp_path / "good.pt", weights_only=True)
    change(content)
    torch.save(content, tmp_path / "bad.pt")
    with pytest.raises(ValueError, match=message):
        OutputNet.load(tmp_path / "bad.pt")


def test_files_cut_short_and_foreign_files_are_refused(tmp_path, net):
    net.save(tmp_path / "good.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "good.pt").read_bytes()[:-100])
    (tmp_path / "text.pt").write_text("no net")
    for name, message in {"cut": "cut short or damaged", "text": "cut short or damaged", "absent": "no file"}.items():
        with pytest.raises(ValueError, match=message):
            OutputNet.load(tmp_path / f"{name}.pt")
