"""Outputs of a run on an equation of the user, on the command line: components of vectors, and functionals in UFL."""

import json

import numpy as np
import pytest
from small_runs import call_command

from fem_frames import BoundaryFlux, Functional, PointValues, RegionMean, make_problem
from training import Configuration, Surrogate, train
from training.service.model import Forward
from training.service.requests import GRADIENT, JACOBIAN, Question, Settings

pytestmark = pytest.mark.serial
PLATE = """
import numpy as np
from ufl import grad, inner, sym, tr
from fem_frames import Equation, Field, Grid, Problem, Uniform

def energy(u, y, x, dx, ds):
    e = sym(grad(u))
    return (y[0] * tr(e) ** 2 / 2 + y[1] * inner(e, e)) * dx + 0.1 * y[2] * u[1] * dx

def deflection(u, y, x, dx, ds):
    return u[1] * ds

def stress(u, y, x, dx, ds):
    return y[1] ** 2 * inner(sym(grad(u)), sym(grad(u))) * dx

def left(x):
    return np.isclose(x[:, 0], 0)

equation = Equation(Field("u", components=2), energy=energy)
problem = Problem(Grid((1, 1)), equation, Uniform((0.5,) * 3, (1.5,) * 3), dirichlet=left)
"""
LABELS = ["u[0](0.5, 0.5)", "u[1](0.5, 0.5)", "mean u[0]", "mean u[1]", "flux of u[0] all", "flux of u[1] all"]


@pytest.fixture(scope="module")
def plate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plate")
    (folder / "plate.py").write_text(PLATE)
    settings = Configuration(problem=str(folder / "plate.py"), levels=2, epochs=3, test_samples=0)
    train(settings, folder / "run", quiet=True)
    return folder


def named(folder):
    functionals = [part for name in ("deflection", "stress") for part in ("--functional", f"{folder}/plate.py:{name}")]
    return ["--point", "0.5,0.5", "--mean", "all", "--through", "all", *functionals]


@pytest.mark.parametrize("command", ["outputs", "evaluate", "query"])
def test_components_and_functionals_have_rows(plate, command):
    asked = {"outputs": ["--samples", 2], "evaluate": ["--samples", 2], "query": ["--y", "1,1,1"]}[command]
    found = json.loads(call_command(command, plate / "run", *asked, *named(plate), "--json").stdout)
    rows = found["rows"] if "rows" in found else found["outputs"]
    bounds = [row["bound_max"] if command == "evaluate" else row["error_bound"] for row in rows]
    assert [row["output"] for row in rows[:8]] == [*LABELS, "deflection", "stress"]
    assert [bound is None for bound in bounds[:8]] == 7 * [False] + [True]
    assert "no bound for stress: not affine in the solution" in json.dumps(found)
    text = call_command(command, plate / "run", *asked, *named(plate)).stdout
    assert "flux of u[1] all" in text


def test_rows_are_what_python_gives(plate):
    found = json.loads(call_command("outputs", plate / "run", "--y", "1,1,1", *named(plate), "--json").stdout)
    space = make_problem(str(plate / "plate.py")).equation.function.__globals__
    functionals = [Functional(space[name], name) for name in ("deflection", "stress")]
    outputs = [PointValues([[0.5, 0.5]]), RegionMean(), BoundaryFlux("all"), *functionals]
    expected = Surrogate.load(plate / "run").output([1.0, 1.0, 1.0], outputs)
    np.testing.assert_allclose([row["value"] for row in found["rows"]], expected.values[0], rtol=1e-12)


def test_gradients_and_tangents_of_functionals_agree(plate):
    import torch

    surrogate = Surrogate.load(plate / "run")
    space = make_problem(str(plate / "plate.py")).equation.function.__globals__
    outputs = [Functional(space[name], name) for name in ("deflection", "stress")]
    y = torch.as_tensor(surrogate.problem.parameters.sample(2, 1)).requires_grad_()
    v = torch.ones_like(y)
    tangent = surrogate.output_tangent(y.detach(), v, outputs)
    for k in range(2):
        (gradient,) = torch.autograd.grad(surrogate.differentiable_output(y, outputs)[:, k].sum(), y)
        torch.testing.assert_close(gradient.sum(1), tangent[:, k], rtol=1e-5, atol=1e-6)


def test_the_service_refuses_bounds_of_what_has_none(plate):
    space = make_problem(str(plate / "plate.py")).equation.function.__globals__
    model = Forward(Surrogate.load(plate / "run"), [Functional(space["stress"], "stress")])
    assert model.sizes(Settings()) == (1,)
    with pytest.raises(ValueError, match="the output stress is not affine in the solution and has no bound"):
        model.sizes(Settings(bound=True))
    y, v = [1.0, 1.0, 1.0], [1.0, 0.5, -1.0]  # derivatives of discrete solutions need no bound
    assert model.sizes(Settings(tol=1e-8), GRADIENT)[0] == 1
    (gradient,) = model.answers([Question(GRADIENT, Settings(tol=1e-8), y, 0, [1.0])])
    (tangent,) = model.answers([Question(JACOBIAN, Settings(tol=1e-8), y, 0, v)])
    assert tangent == pytest.approx([sum(g * d for g, d in zip(gradient, v, strict=True))], rel=1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("plate", "FILE.py:NAME is expected"),
        ("plate.py:nothing", "does not define 'nothing'"),
        ("plate.py:problem", "the functional problem is a Problem; give a function"),
        ("none.py:stress", "to take a functional from"),
    ],
)
def test_what_is_no_functional_is_refused(plate, given, message):
    found = call_command("outputs", plate / "run", "--y", "1,1,1", "--functional", plate / given, expect=2)
    assert message in found.stderr
