"""Problems that travel in their surrogate's file: losses and bounds without the Python file that defined them."""

import json
import shutil

import numpy as np
import pytest
import torch
from small_runs import run_command

from fem_frames import (
    Affine,
    ByRegion,
    ExpAffine,
    Gaussian,
    Grid,
    MeshHierarchy,
    Problem,
    Uniform,
    make_formulation,
    make_problem,
)
from fem_frames.problem.coefficients import Tabulated
from training import Configuration, Surrogate, train

pytestmark = pytest.mark.serial
HEAD = """
import numpy as np
from fem_frames import Affine, ByRegion, ExpAffine, Gaussian, Grid, Pointwise, Problem, Uniform
modes = lambda x: 0.4 * np.stack([np.cos(np.pi * x[..., 0]), x[..., 1] ** 2], axis=-1)
data = dict(
    dirichlet=lambda x: np.isclose(x[:, 0], 0),
    dirichlet_value=lambda x: 1 + x[:, 0] * x[:, 1],
    neumann={"rest": lambda x: 0.5 + x[:, 1]},
)
left = lambda x: np.where(x[:, 0] < 0.5, 7, 3)
"""
PROBLEMS = {
    "by region": "Problem(Grid((2, 2)), ByRegion({7: 1, 3: 0}), Uniform((0.5, 1.0), (1.5, 3.0)), 2.0, regions=left)",
    "by region, fixed": "Problem(Grid((2, 1)), ByRegion({7: 0}, {3: 2.5}), Uniform((1,), (2,)), regions=left, **data)",
    "affine": "Problem(Grid((1, 1)), Affine(lambda x: 2 + x[..., 1], modes), Uniform((-1, -1), (1, 1)), -3.0)",
    "affine, data": "Problem(Grid((1, 1)), Affine(2.0, modes), Uniform((-1, -1), (1, 1)), quadrature_degree=4, **data)",
    "lognormal": "Problem(Grid((1, 1)), ExpAffine(0.1, modes), Gaussian(2))",
}
FORMULATIONS = {"by region, fixed": "least-squares", "lognormal": "weighted-least-squares"}
POINTWISE = "Problem(Grid((1, 1)), Pointwise(lambda x, y: 1 + y[..., 0] * x[..., 0]), Uniform((0.0,), (1.0,)))"
SOURCE = "Problem(Grid((1, 1)), ByRegion({0: 0}), Uniform((0.5,), (1.0,)), lambda x, y: x[..., 0])"


def train_file(folder, text, formulation="energy"):
    """A run of the problem in `mine.py`, the problem, and the run's folder, where the file is gone."""
    file = folder / "mine.py"
    file.write_text(f"{HEAD}\nproblem = {text}\n")
    c = Configuration(problem=str(file), formulation=formulation, levels=2, epochs=3, test_samples=2)
    train(c, folder / "run", quiet=True)
    problem = make_problem(str(file))
    file.unlink()
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    return problem, folder / "run"


@pytest.mark.parametrize("name", PROBLEMS)
def test_losses_and_bounds_need_no_python_file(tmp_path, name):
    problem, run = train_file(tmp_path, PROBLEMS[name], FORMULATIONS.get(name, "energy"))
    given, alone = Surrogate.load(run, problem), Surrogate.load(run)
    y = problem.parameters.sample(3, 1)
    assert str(alone.problem.parameters) == str(problem.parameters)
    for method in ("loss", "error_bound", "flux"):
        assert torch.equal(getattr(alone, method)(y), getattr(given, method)(y)), method
    tol = 1.01 * float(given.error_bound(y).max())
    assert torch.equal(alone.improve(y, tol).w, given.improve(y, tol).w)
    alone.save(tmp_path / "copy")  # and on from there
    again = Surrogate.load(tmp_path / "copy").to("float64")
    assert torch.equal(again.formulation.loss(given.coefficients(y), torch.as_tensor(y)), given.loss(y))


def test_query_evaluate_and_plot_need_no_python_file(tmp_path):
    """In processes of their own."""
    _, run = train_file(tmp_path, PROBLEMS["affine, data"])
    asked = json.loads(run_command("query", run, "--y=0.5,-0.5", "--json", cwd=tmp_path).stdout)
    assert asked["error_bound"] > 0
    found = json.loads(run_command("evaluate", run, "--samples", 3, "--json", cwd=tmp_path).stdout)
    assert (found["reference"], found["checked_by_petsc"]) == ("multigrid", 0)  # no mesh for PETSc
    assert found["excess"] > 0
    run_command("query", run, "--y=0.5,-0.5", "--tol", 0.5 * asked["error_bound"], "--flux", cwd=tmp_path)
    run_command("plot", run, "--samples", 1, cwd=tmp_path)
    outside = run_command("query", run, "--y=0.5,-1.5", cwd=tmp_path, check=False)
    assert "is outside the parameters [-1, 1]^2" in outside.stderr


@pytest.mark.parametrize("text", [POINTWISE, SOURCE])
def test_functions_do_not_travel(tmp_path, text):
    _, run = train_file(tmp_path, text)
    assert "problem" not in torch.load(run / "surrogate.pt", weights_only=True)
    surrogate = Surrogate.load(run)
    assert surrogate([0.7])["u"].shape[0] == 1
    with pytest.raises(ValueError, match=r"need the problem .*mine.py', which is not built in: give it, as Surr"):
        surrogate.loss([0.7])
    done = run_command("query", run, "--y", "0.7", cwd=tmp_path, check=False)
    assert "not built in: give it, as --problem" in done.stderr


def test_a_coefficient_of_the_user_s_own_kind_does_not_travel(tmp_path):
    class Squared(ByRegion):
        def evaluate(self, tables, y):
            return super().evaluate(tables, y) ** 2

    problem = Problem(Grid((1, 1)), Squared({0: 0}), Uniform((0.5,), (1.0,)))
    c = Configuration(problem="mine", levels=2, epochs=2, test_samples=2)
    train(c, tmp_path / "run", problem=problem, quiet=True)
    assert "problem" not in torch.load(tmp_path / "run/surrogate.pt", weights_only=True)


def test_built_in_problems_are_made_by_name(tmp_path):
    train(Configuration(problem="lognormal", levels=2, epochs=2, test_samples=2), tmp_path / "run", quiet=True)
    assert "problem" not in torch.load(tmp_path / "run/surrogate.pt", weights_only=True)
    assert isinstance(Surrogate.load(tmp_path / "run").problem.coefficient, ExpAffine)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("travelling")
    found = {}
    for name in ("by region", "affine"):
        (folder / name).mkdir()
        found[name] = train_file(folder / name, PROBLEMS[name])
    return found


def test_a_travelled_problem_stays_with_its_frame(runs):
    problem = Surrogate.load(runs["affine"][1]).problem
    with pytest.raises(ValueError, match="the mesh of a problem that was read with its surrogate"):
        MeshHierarchy.from_problem(problem, 2)
    assert isinstance(problem.coefficient, Tabulated)
    with pytest.raises(ValueError, match="known only at the quadrature points of its surrogate's frame"):
        problem.tabulate(np.zeros((4, 3, 2)), np.zeros(4, np.int64))
    other = Surrogate.load(runs["by region"][1]).formulation.frame
    with pytest.raises(ValueError, match="serves only its frame"):
        make_formulation(other, problem)


def test_the_fingerprint_is_compared_with_a_travelled_problem(runs, tmp_path):
    content = torch.load(runs["by region"][1] / "surrogate.pt", weights_only=True)
    copy = shutil.copytree(runs["by region"][1], tmp_path / "run")
    content["problem"]["source"] = 5.0
    torch.save(content, copy / "surrogate.pt")
    with pytest.raises(ValueError, match="its coefficient, source or boundary data are others"):
        Surrogate.load(copy).error_bound([1.0, 2.0])


def changed(content, path, value):
    """A copy of nested dictionaries with one entry changed, or without it."""
    key, *rest = path
    copy = dict(content)
    if rest:
        copy[key] = changed(copy[key], rest, value)
    elif value is None:
        del copy[key]
    else:
        copy[key] = value
    return copy


DAMAGES = [
    ("by region", ["problem"], 7, "the problem is not described"),
    ("by region", ["problem", "source"], None, "the problem is not described by coefficient, source, parameters"),
    ("by region", ["problem", "source"], float("nan"), "the source is nan; a finite number"),
    ("by region", ["problem", "source"], "os.system", "the source is 'os.system'"),
    ("by region", ["problem", "coefficient"], [1], "of the kind None, which is unknown"),
    ("by region", ["problem", "coefficient", "kind"], "pointwise", "of the kind 'pointwise', which is unknown"),
    ("by region", ["problem", "coefficient", "parameter"], {"x": 0}, "a region tag is 'x'; a whole number"),
    ("by region", ["problem", "coefficient", "parameter"], {7: -1}, "whole number of at least 0"),
    ("by region", ["problem", "coefficient", "parameter"], {7: 9}, "uses parameter 9, but there are p = 2"),
    ("by region", ["problem", "coefficient", "fixed"], {7: 1.0}, "both a parameter and a fixed value"),
    ("by region", ["problem", "parameters"], {"kind": "normal", "dimension": 2}, "'normal', which is unknown"),
    ("by region", ["problem", "parameters", "lower"], 0.5, "does not consist of lists of numbers"),
    ("by region", ["problem", "parameters", "lower"], [9.0, 9.0], "is empty: lower must be below upper"),
    ("affine", ["problem", "coefficient", "mean"], torch.ones(3), "the table mean of the coefficient is not an array"),
    ("affine", ["problem", "coefficient", "modes"], 1.0, "the table modes of the coefficient is not an array"),
    ("affine", ["problem", "parameters"], {"kind": "gaussian", "dimension": 3}, "the table modes"),
]


@pytest.mark.parametrize(("name", "path", "value", "message"), DAMAGES)
def test_damaged_descriptions_are_refused(runs, tmp_path, name, path, value, message):
    copy = shutil.copytree(runs[name][1], tmp_path / "run")
    content = torch.load(copy / "surrogate.pt", weights_only=True)
    torch.save(changed(content, path, value), copy / "surrogate.pt")
    with pytest.raises(ValueError, match=f"surrogate.pt describes no problem of .*frame.npz: .*{message}"):
        Surrogate.load(copy)
    assert Surrogate.load(copy, runs[name][0]).problem is runs[name][0]  # which is then not read


def test_tables_that_are_not_finite_are_refused(runs, tmp_path):
    copy = shutil.copytree(runs["affine"][1], tmp_path / "run")
    content = torch.load(copy / "surrogate.pt", weights_only=True)
    content["problem"]["coefficient"]["modes"][0, 0, 0] = torch.inf
    torch.save(content, copy / "surrogate.pt")
    with pytest.raises(ValueError, match="the table modes of the coefficient has values that are not finite"):
        Surrogate.load(copy)


def test_files_without_a_description_load_as_before(runs, tmp_path):
    problem, run = runs["affine"]
    copy = shutil.copytree(run, tmp_path / "run")
    content = torch.load(copy / "surrogate.pt", weights_only=True)
    del content["problem"]
    torch.save(content, copy / "surrogate.pt")
    assert Surrogate.load(copy)([0.0, 0.5])["u"].shape[0] == 1
    with pytest.raises(ValueError, match="which is not built in"):
        Surrogate.load(copy).loss([0.0, 0.5])
    assert float(Surrogate.load(copy, problem).error_bound([0.0, 0.5])) > 0


def test_problems_made_in_python_travel_too(tmp_path):
    problem = Problem(Grid((1, 1)), Affine(1.0, lambda x: 0.1 * np.ones((*x.shape[:2], 3))), Gaussian(3))
    c = Configuration(problem="mine", levels=2, epochs=2, test_samples=2)
    train(c, tmp_path / "run", problem=problem, quiet=True)
    assert Surrogate.load(tmp_path / "run").loss(np.zeros(3)).shape == (1,)
