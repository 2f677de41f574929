"""The net multigrid: trained, resumed, saved, improved, exported, asked for outputs like other nets; its fallback."""

import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from curved_meshes import plate_problem
from frames import mixed
from test_torchrun import ENVIRONMENT, free_port, torchrun
from walls import CONDITIONS, ROBIN, varying

from fem_frames import (
    OutputMap,
    PointValues,
    Pointwise,
    RegionMean,
    make_problem,
    solve,
    solve_reference,
)
from fem_frames.commands import main
from nets.multigrid import DEPTHS, MultigridNet
from training import Configuration, Surrogate, train

pytestmark = pytest.mark.serial
SETTINGS = dict(problem="disks", levels=4, net="multigrid", epochs=200, batch=16, test_samples=16)


def energy_error(surrogate, y):
    exact, samples = surrogate.formulation, torch.as_tensor(y)
    truth = exact.frame.H(solve(exact, samples, 1e-12).w)
    off = exact.frame.H(surrogate.coefficients(y)) - truth
    A = exact.A(samples)
    return ((off * A(off)).sum(1).sqrt() / (truth * A(truth)).sum(1).sqrt()).numpy()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("multigrid") / "run"
    train(Configuration(**SETTINGS), folder, quiet=True)
    return folder


def test_training_reduces_the_error_of_a_chebyshev_cycle(trained, tmp_path):
    y = make_problem("disks").parameters.sample(32, 7)
    train(Configuration(**{**SETTINGS, "epochs": 0}), tmp_path / "first", quiet=True)
    first, last = (Surrogate.load(folder) for folder in (tmp_path / "first", trained))
    assert first.net.parameter_count() == MultigridNet.count((2, 2)) == 2 * DEPTHS * 6
    assert energy_error(last, y).mean() < 0.5 * energy_error(first, y).mean()


def test_answers_bounds_and_improvement(trained):
    surrogate = Surrogate.load(trained)
    y = surrogate.problem.parameters.sample(8, 11)
    reference = solve_reference(surrogate.problem, y, 4)
    size = np.abs(reference.fields["u"]).max()
    np.testing.assert_allclose(surrogate(y)["u"], reference.fields["u"], rtol=0, atol=2e-2 * size)
    exact, samples = surrogate.formulation, torch.as_tensor(y)
    off = surrogate.coefficients(y) - solve(exact, samples, 1e-12).w
    assert (surrogate.error_bound(y) >= exact.energy_norm(exact.frame.D(off), samples)).all()
    better = surrogate.improve(y, 1e-9)
    np.testing.assert_allclose(better.values["u"], reference.fields["u"], rtol=0, atol=1e-7 * size)
    assert int(better.iterations.max()) <= 12


def test_a_run_that_is_resumed_ends_as_one_that_is_not(trained, tmp_path):
    half = Configuration(**{**SETTINGS, "epochs": 60, "checkpoint_every": 30})
    whole = train(half, tmp_path / "whole", quiet=True)
    for name in ("result.json", "surrogate.pt", "checkpoints/best.pt", "checkpoints/step-000000060.pt"):
        (tmp_path / "whole" / name).unlink(missing_ok=True)
    again = train(None, tmp_path / "whole", resume=True, quiet=True)
    assert again["test"] == whole["test"]


@pytest.mark.parametrize(
    "settings", [dict(precision="float16", mixed=True), dict(precision="float64"), dict(loss="nodal")]
)
def test_precisions_and_losses(settings, tmp_path):
    train(Configuration(**{**SETTINGS, **settings}), tmp_path / "run", quiet=True)
    surrogate = Surrogate.load(tmp_path / "run")
    assert energy_error(surrogate, surrogate.problem.parameters.sample(8, 3)).mean() < 2e-2


def test_it_loads_and_answers_without_dolfinx(trained):
    code = f"""
import sys
for name in ("dolfinx", "petsc4py", "mpi4py", "scipy"):
    sys.modules[name] = None
from training import Surrogate
surrogate = Surrogate.load({str(trained)!r})
y = surrogate.problem.parameters.sample(2, 0)
print(surrogate(y)["u"].shape, float(surrogate.improve(y, 1e-6).error_bound.max()) <= 1e-6)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split()[-1] == "True", done.stderr


def test_two_processes_take_the_steps_of_one(tmp_path, trained):
    arguments = ["train", "--problem", "disks", "--levels", "4", "--net", "multigrid", "--epochs", "200"]
    arguments += ["--batch", "16", "--test-samples", "16", "--out", str(tmp_path / "two")]
    command = [*torchrun(2, free_port()), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    one, two = (json.loads((folder / "result.json").read_text()) for folder in (trained, tmp_path / "two"))
    assert two["test"]["loss"] == pytest.approx(one["test"]["loss"], rel=1e-6)


def test_bad_weights_fall_back_to_the_chebyshev_cycle(trained):
    surrogate = Surrogate.load(trained)
    y = surrogate.problem.parameters.sample(6, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        surrogate(y)
    with torch.no_grad():
        surrogate.net.weights.mul_(1.7)
    with pytest.warns(UserWarning, match=r"6 of 6 answers come from the Chebyshev cycle"):
        values = surrogate(y)
    assert torch.isfinite(values["u"]).all()
    with pytest.warns(UserWarning, match="Chebyshev cycle"):
        found = energy_error(surrogate, y)
    with torch.no_grad():
        surrogate.net.initialise()
    np.testing.assert_allclose(found, energy_error(surrogate, y), rtol=1e-3)


def test_outputs_and_their_gradients(trained):
    surrogate = Surrogate.load(trained)
    outputs = [PointValues([[0.4, 0.6], [0.7, 0.3]]), RegionMean()]
    y = surrogate.problem.parameters.sample(20, 5)
    exact, samples = surrogate.formulation, torch.as_tensor(y)
    truth = OutputMap(exact, outputs).values(solve(exact, samples, 1e-12).w, samples)
    for adjoint in (False, True):
        found = surrogate.output(y, outputs, adjoint)
        assert (found.error_bound >= (found.values - truth).abs()).all()
    better = surrogate.to("float64")
    leaf = torch.tensor(y[:2], requires_grad=True)
    (gradient,) = torch.autograd.grad(better.differentiable_output(leaf, outputs).sum(), leaf)
    step = 1e-5
    for k in range(leaf.shape[1]):
        moved = [samples[:2].clone() for _ in range(2)]
        moved[0][:, k] -= step
        moved[1][:, k] += step
        low, high = (OutputMap(exact, outputs).values(solve(exact, at, 1e-13).w, at).sum(1) for at in moved)
        # The gradient is that of the solution, taken at the net's answer, which is off by its own error.
        torch.testing.assert_close(
            gradient[:, k], (high - low) / (2 * step), rtol=0, atol=2e-2 * float(gradient.abs().max())
        )
    with pytest.raises(ValueError, match=r"no gradient in y: use fem_frames.differentiable_solve"):
        surrogate.net(leaf)


def test_a_mesh_of_one_level_is_solved_exactly(tmp_path):
    """No weight has an effect then."""
    train(Configuration(**SETTINGS | dict(problem="cube", levels=2, epochs=2)), tmp_path / "run", quiet=True)
    surrogate = Surrogate.load(tmp_path / "run")
    assert energy_error(surrogate, surrogate.problem.parameters.sample(4, 3)).max() < 1e-5


# ---- programs for other software


PROGRAM = """
import sys
import torch
program = torch.export.load("net.pt2").module()
torch.save([program(y) for y in torch.load("asked.pt")], "answers.pt")
assert not {"fem_frames", "nets", "training", "dolfinx"} & set(sys.modules)
"""
SIZES = (1, 3, 64)


def samples_of(surrogate):
    """Batches of several sizes, in the precision that the program takes."""
    dtype = torch.float64 if surrogate.description.precision == "float64" else torch.float32
    return [torch.as_tensor(surrogate.problem.parameters.sample(size, size)).to(dtype) for size in SIZES]


def check_answers(surrogate, answers):
    half = surrogate.description.precision == "float16"
    for y, found in zip(samples_of(surrogate), answers, strict=True):
        with torch.no_grad():
            expected = surrogate.net(y)
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        off = (found.detach().double() - expected.double()).abs().max() / expected.abs().max()
        assert float(off) < (1e-3 if half else 1e-5)


def check_program(surrogate, file):
    surrogate.export(file)
    program = torch.export.load(file).module()
    check_answers(surrogate, [program(y) for y in samples_of(surrogate)])


def test_its_program_gives_the_same_numbers_where_there_is_torch_only(trained, tmp_path):
    surrogate = Surrogate.load(trained)
    surrogate.export(tmp_path / "net.pt2")
    torch.save(samples_of(surrogate), tmp_path / "asked.pt")
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=tmp_path, env=bare)
    assert done.returncode == 0, done.stderr
    check_answers(surrogate, torch.load(tmp_path / "answers.pt"))
    check_answers(Surrogate.load(trained), [surrogate.net(y) for y in samples_of(surrogate)])  # it is as it was


@pytest.mark.parametrize("name", ["box", "terms", "logarithm", "source", "data", "robin", "cube", "interval", "curved"])
def test_programs_of_every_kind_of_problem(name, tmp_path):
    """Coefficients of every kind, functions of users, sources and boundary data that depend on y, Robin conditions."""
    named = {"box": ("checkerboard", 4), "terms": ("waves", 3), "logarithm": ("lognormal", 3), "source": ("spot", 3)}
    made, levels = {
        **{key: (make_problem(problem), levels) for key, (problem, levels) in named.items()},
        "data": (varying(2, **CONDITIONS["neumann"]), 3),
        "robin": (varying(2, **ROBIN["one wall"]), 3),
        "cube": (mixed(3), 2),
        "interval": (mixed(1), 6),
        "curved": (plate_problem(), 2),
    }[name]
    settings = Configuration(levels=levels, net="multigrid", epochs=3, batch=4, test_samples=0)
    train(settings, tmp_path / "run", problem=made, quiet=True)
    check_program(Surrogate.load(tmp_path / "run", made), tmp_path / "net.pt2")


@pytest.mark.parametrize(
    "settings", [dict(precision="float64"), dict(precision="float16", mixed=True), dict(loss="nodal")]
)
def test_programs_of_every_precision_and_loss(settings, tmp_path):
    train(Configuration(**{**SETTINGS, "epochs": 3, **settings}), tmp_path / "run", quiet=True)
    check_program(Surrogate.load(tmp_path / "run"), tmp_path / "net.pt2")


def test_programs_have_no_fallback(trained, tmp_path):
    surrogate = Surrogate.load(trained)
    with torch.no_grad():
        surrogate.net.weights.mul_(1.7)
    surrogate.export(tmp_path / "net.pt2")
    y = torch.as_tensor(surrogate.problem.parameters.sample(6, 2)).float()
    with torch.no_grad(), pytest.warns(UserWarning, match="Chebyshev cycle"):
        judged = surrogate.net(y)
    learned = torch.export.load(tmp_path / "net.pt2").module()(y)
    assert learned.abs().max() > 2 * judged.abs().max()


def test_functions_that_cannot_be_traced(tmp_path):
    def branching(x, y):
        return 1 + x[..., 0] * (y[..., 0] if float(y.sum()) > 0 else 2.0)

    made = replace(mixed(2), coefficient=Pointwise(branching))
    train(
        Configuration(levels=2, net="multigrid", epochs=0, test_samples=0), tmp_path / "run", problem=made, quiet=True
    )
    with pytest.raises(
        ValueError, match=r"torch.export cannot trace the net: .*functions of yours must consist of torch"
    ):
        Surrogate.load(tmp_path / "run", made).export(tmp_path / "net.pt2")
    assert not (tmp_path / "net.pt2").exists()


def test_the_command_writes_a_program(trained, tmp_path, capsys):
    main(["export-net", str(trained), "--out", str(tmp_path / "net.pt2"), "--json"])
    assert json.loads(capsys.readouterr().out)["parameters"] == MultigridNet.count((2, 2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(pre=0, post=0), "a cycle without smoothing does not converge"),
        (dict(level_decay=1.0), "no coefficients that could decay"),
        (dict(optimizer="ngd"), "ngd does not know the net multigrid"),
        (dict(formulation="least-squares", levels=2), "multigrid is for fields with values at points"),
    ],
)
def test_settings_that_make_no_sense(settings, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        train(Configuration(**{**SETTINGS, **settings}), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists() or not (tmp_path / "run" / "surrogate.pt").exists()


def test_evaluate_tells_the_energy_error(trained, capsys):
    main(["evaluate", str(trained), "--samples", "16", "--seed", "5", "--json"])
    found = json.loads(capsys.readouterr().out)
    y = make_problem("disks").parameters.sample(16, 5)
    assert found["energy_error"] == pytest.approx(energy_error(Surrogate.load(trained), y).mean(), rel=1e-5)
    assert found["energy_error"] <= found["relative_bound_mean"]


def test_commands_show_outputs_and_quadrature(trained, capsys):
    main(["outputs", str(trained), "--json"])
    assert json.loads(capsys.readouterr().out)["rows"][0]["kind"] == "region"
    main(
        ["outputs", str(trained), "--samples", "2", "--point", "0.5,0.5", "--mean", "all", "--through", "all", "--json"]
    )
    found = json.loads(capsys.readouterr().out)
    assert len(found["rows"]) == 6
    assert all(row["error_bound"] > 0 for row in found["rows"])
    flux = [row["value"] for row in found["rows"][2::3]]
    np.testing.assert_allclose(flux, -1.0, rtol=1e-2)  # ∫ f = 1 leaves through the boundary
    main(["quadrature", "--problem", "disks", "--levels", "4", "--samples", "4", "--degrees", "1", "2", "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["points"] for row in rows] == [1, 3]
    assert rows[1]["max"] < 0.1 * rows[0]["mean"] < 0.01
