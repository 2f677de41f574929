"""Training, surrogates and rivals with boundary data that depend on y, and with Robin conditions."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_runs import run_command
from walls import CONDITIONS, ROBIN, cube, formulation_on, samples, varying

from fem_frames import ByRegion, Parameter, Problem, Uniform, make_problem, solve, solve_reference
from training import Configuration, Surrogate, train
from training.losses import make_loss
from training.metrics import evaluate
from training.references import reference_solutions
from training.rivals.reduced_bases import (
    AffineSystem,
    PodSpace,
    RivalAnswers,
    Snapshots,
    direct_solves,
    full_system,
    gradient_errors,
    reduced_basis,
)
from training.run.log import RunLog

pytestmark = pytest.mark.serial
HEAD = """
import numpy as np
from fem_frames import ByRegion, Grid, Parameter, Problem, Uniform
left = lambda x: np.isclose(x[:, 0], 0)
base = dict(mesh=Grid((1, 1)), coefficient=ByRegion({0: 0}), parameters=Uniform((0.5, -1.0, 0.5), (1.5, 1.0, 2.0)))
"""
TRAVELLING = {
    "dirichlet": "Problem(**base, dirichlet=left, dirichlet_value=Parameter(1, 0.5, 2.0))",
    "neumann": "Problem(**base, dirichlet=left, dirichlet_value=lambda x: 1 + x[:, 1], neumann={'rest': Parameter(1)})",
    "robin": "Problem(**base, dirichlet=left, dirichlet_value=1.0, robin={'rest': (Parameter(2), Parameter(1))})",
    "pure robin": "Problem(**base, dirichlet=None, robin={'rest': (3.0, Parameter(1))})",
}
STAYING = {
    "dirichlet": "Problem(**base, dirichlet=left, dirichlet_value=lambda x, y: y[..., 1] * x[..., 1])",
    "robin": "Problem(**base, dirichlet=left, robin={'rest': (lambda x: 1 + x[:, 0], 0.0)})",
}


class KilledError(BaseException):
    """Ends a run where it is."""


def trained(folder, text, **options):
    """The problem in `mine.py`, which is gone, and the folder of a short run."""
    file = folder / "mine.py"
    file.write_text(f"{HEAD}\nproblem = {text}\n")
    settings = {"levels": 3, "epochs": 40, "test_samples": 4, "rank": 4, **options}
    train(Configuration(problem=str(file), **settings), folder / "run", quiet=True)
    problem = make_problem(str(file))
    file.unlink()
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    return problem, folder / "run"


@pytest.mark.parametrize(
    ("name", "formulation"),
    [*((name, "energy") for name in TRAVELLING), ("dirichlet", "least-squares"), ("neumann", "least-squares")],
)
def test_surrogates_answer_and_bound_without_the_python_file(tmp_path, name, formulation):
    problem, run = trained(tmp_path, TRAVELLING[name], formulation=formulation)
    given, alone = Surrogate.load(run, problem), Surrogate.load(run)
    y = problem.parameters.sample(3, 1)
    for method in ("loss", "error_bound", "flux"):
        assert torch.equal(getattr(alone, method)(y), getattr(given, method)(y)), method
    assert torch.equal(alone(y)["u"], given(y)["u"])
    assert torch.equal(alone.at([[0.3, 0.4]], y)["u"], given.at([[0.3, 0.4]], y)["u"])
    reference = solve_reference(problem, y, 3, formulation)
    tol = 0.5 * float(given.error_bound(y, "energy").max())
    better = alone.improve(y, tol, norm="energy") if formulation == "energy" else alone.improve(y, 2.0)
    exact = given.formulation
    np.testing.assert_allclose(
        better.values["u"], exact.synthesise(better.w, torch.as_tensor(y))["u"], rtol=0, atol=1e-14
    )
    w = solve(alone.formulation, torch.as_tensor(y), 1e-12).w
    values = alone.formulation.synthesise(w, torch.as_tensor(y))["u"]
    np.testing.assert_allclose(values, reference.u, atol=1e-8)
    alone.save(tmp_path / "copy")  # and on from there
    again = Surrogate.load(tmp_path / "copy")
    assert torch.equal(again.loss(y), given.loss(y))
    assert torch.equal(again(y)["u"], given(y)["u"])


@pytest.mark.parametrize("name", STAYING)
def test_functions_of_y_need_the_problem_again(tmp_path, name):
    problem, run = trained(tmp_path, STAYING[name], epochs=3)
    alone, given = Surrogate.load(run), Surrogate.load(run, problem)
    y = problem.parameters.sample(2, 1)
    assert given(y)["u"].shape[0] == 2
    with pytest.raises(ValueError, match="need the problem"):
        alone.loss(y)
    if name == "dirichlet":  # the solution itself has data of y
        with pytest.raises(ValueError, match=r"boundary data depend on y, so solutions need the problem"):
            alone(y)
    else:
        assert torch.equal(alone(y)["u"], given(y)["u"])


def test_damaged_descriptions_are_refused(tmp_path):
    _, run = trained(tmp_path, TRAVELLING["robin"], epochs=3)
    content = torch.load(run / "surrogate.pt", weights_only=True)
    whole = content["problem"]["boundary"]
    for boundary, why in (
        ([], "list of conditions"),
        ([{"kind": "dirichlet"}], "not described by its kind and values"),
        ([{**whole[0], "kind": "periodic"}], "not described by its kind and values"),
        ([whole[0], {"kind": "robin", "values": [-1.0, 0.0]}], "a positive number is expected"),
        ([whole[0], {"kind": "robin", "values": ["frame", 0.0]}], "a number or a parameter is expected"),
        ([whole[0], {"kind": "robin", "values": [{"index": 9, "scale": 1.0, "offset": 0.0}, 0.0]}], "there are p = 3"),
        ([whole[1], whole[0]], "in the order"),
    ):
        content["problem"]["boundary"] = boundary
        torch.save(content, run / "surrogate.pt")
        with pytest.raises(ValueError, match=why):
            Surrogate.load(run)


def test_a_run_learns_data_of_y_and_is_resumed_to_the_same_bits(tmp_path, monkeypatch):
    text = "Problem(**base, dirichlet=left, dirichlet_value=Parameter(1), robin={'rest': (Parameter(2), Parameter(0))})"
    (tmp_path / "mine.py").write_text(f"{HEAD}\nproblem = {text}\n")
    c = Configuration(
        problem=str(tmp_path / "mine.py"), levels=3, epochs=300, checkpoint_every=50, test_samples=16, rate=3e-3
    )
    train(c, tmp_path / "whole", quiet=True)
    written = RunLog.step

    def last(log, step, *values, **others):
        written(log, step, *values, **others)
        if step == 120:
            raise KilledError

    monkeypatch.setattr(RunLog, "step", last)
    with pytest.raises(KilledError):
        train(c, tmp_path / "parts", quiet=True)
    monkeypatch.undo()
    train(None, tmp_path / "parts", resume=True, quiet=True, problem=make_problem(str(tmp_path / "mine.py")))
    one, other = (Surrogate.load(tmp_path / name).net.state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert json.loads((tmp_path / "whole" / "result.json").read_text())["test"]["mre"] < 0.1


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_runs_in_half_precision(tmp_path, precision):
    text = "Problem(**base, dirichlet=left, dirichlet_value=lambda x, y: y[..., 1] * x[..., 1], neumann={'rest': 1.0})"
    (tmp_path / "mine.py").write_text(f"{HEAD}\nproblem = {text}\n")
    c = Configuration(
        problem=str(tmp_path / "mine.py"),
        levels=3,
        epochs=200,
        precision=precision,
        mixed=True,
        test_samples=8,
        rate=3e-3,
    )
    train(c, tmp_path / "run", quiet=True)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["test"]["mre"] < 0.2


def test_queries_on_the_command_line(tmp_path):
    problem, run = trained(tmp_path, TRAVELLING["robin"], epochs=5)
    asked = json.loads(run_command("query", run, "--y=1,0.5,1", "--json", cwd=tmp_path).stdout)
    y = np.array([[1.0, 0.5, 1.0]])
    surrogate = Surrogate.load(run, problem)
    assert np.isclose(float(surrogate.error_bound(y)), _find(asked, "error_bound"))


def _find(record, key):
    """The first number with this key anywhere in a record."""
    if isinstance(record, dict):
        if key in record:
            value = record[key]
            return value[0] if isinstance(value, list) else value
        found = [_find(value, key) for value in record.values()]
    else:
        found = [_find(value, key) for value in record] if isinstance(record, list) else []
    return next((value for value in found if value is not None), None)


@pytest.mark.parametrize("name", [*CONDITIONS, *ROBIN])
def test_supervised_losses_vanish_at_the_solution(name):
    problem = varying(2, **{**CONDITIONS, **ROBIN}[name])
    made, y = formulation_on(problem, 2), samples(problem, 3)
    reference = reference_solutions(made, y.numpy())
    w = solve(made, y, 1e-12).w
    loss = make_loss("supervised", made, reference)
    assert float(loss(w, loss.batch(y.numpy(), range(3))).max()) < 1e-18
    nodal = make_loss("supervised-nodal", made, reference)
    assert float(nodal(made.frame.H(w), nodal.batch(y.numpy(), range(3))).max()) < 1e-18


@pytest.mark.parametrize(
    ("name", "formulation"),
    [
        ("one varies", "energy"),
        ("neumann", "energy"),
        ("one wall", "energy"),
        ("one varies", "least-squares"),
        ("neumann", "least-squares"),
    ],
)
def test_rivals_solve_for_data_of_y(name, formulation):
    problem = varying(2, **{**CONDITIONS, **ROBIN}[name])
    made = formulation_on(problem, 2, formulation)
    system = full_system(made)
    assert not isinstance(system, AffineSystem)
    y = problem.parameters.sample(4, 5)
    reference = reference_solutions(made, y)
    direct = direct_solves(system)
    answers = RivalAnswers(made, direct)
    np.testing.assert_allclose(answers(y)["u"], reference.u, atol=1e-9)
    assert evaluate(answers, reference).mre < 1e-8
    assert float(gradient_errors(made, answers.coefficients(torch.as_tensor(y)), reference).max()) < 1e-8
    snapshots = Snapshots.solve(direct, problem.parameters.sample(40, 0))
    reduced = RivalAnswers(made, reduced_basis(system, PodSpace.build(made, snapshots, 12)))
    assert evaluate(reduced, reference).mre < 1e-2


def test_affine_coefficients_with_data_of_y_have_no_affine_system():
    """a_y times data of y is not linear in y, so the terms would be wrong."""
    problem = Problem(cube(1), ByRegion({0: 0}), Uniform((0.5, 0.0), (1.5, 1.0)), dirichlet={"left": Parameter(1)})
    fixed = replace(problem, dirichlet={"left": 1.0})
    for name in ("energy", "least-squares"):
        assert formulation_on(problem, 2, name).affine_weights() is None
        assert formulation_on(fixed, 2, name).affine_weights() is not None


def test_another_function_of_y_is_found_out_by_the_fingerprint(tmp_path):
    problem, run = trained(tmp_path, STAYING["dirichlet"], epochs=3)
    other = replace(problem, dirichlet_value=lambda x, y: 2 * y[..., 1] * x[..., 1])
    with pytest.raises(ValueError, match="is not the one that the surrogate was trained for"):
        Surrogate.load(run, other).loss(problem.parameters.sample(1, 0))
    assert np.isfinite(float(Surrogate.load(run, problem).loss(problem.parameters.sample(1, 0))))
