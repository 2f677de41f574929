"""Derivatives of outputs in y by one adjoint or one tangent solve, against central differences."""

import pytest
import torch
from frames import case
from walls import CONDITIONS, ROBIN, formulation_on, samples, varying

from fem_frames import (
    BoundaryFlux,
    Frame,
    OutputMap,
    PointValues,
    RegionMean,
    differentiable_solve,
    make_formulation,
    solve,
    tangent_solve,
)
from fem_frames.solvers import differentiable
from training import Configuration, Surrogate, train

pytestmark = pytest.mark.serial


def of_case(name):
    problem, arrays = case(name)
    return make_formulation(Frame.from_arrays(arrays, "float64"), problem)


CASES = {
    "checkerboard": lambda: of_case("square"),
    "lognormal": lambda: of_case("square, lognormal"),
    "source of y": lambda: of_case("square, mixed"),
    "least squares": lambda: of_case("interval, LS"),
    "robin": lambda: formulation_on(varying(2, **ROBIN["one wall"]), 2),
    "boundary data of y": lambda: formulation_on(varying(2, **CONDITIONS["neumann"]), 2),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_agree_with_central_differences_at_the_cost_of_one_solve(name, monkeypatch):
    made = CASES[name]()
    point = [[0.3] * made.frame.arrays.dimension]
    outputs = OutputMap(made, [PointValues(point), RegionMean(), BoundaryFlux("all")])
    y = samples(made.problem, 2)
    solves = []
    for function in ("solve", "solve_linear"):
        real = getattr(differentiable, function)
        monkeypatch.setattr(
            differentiable, function, lambda *a, real=real, f=function, **k: (solves.append(f), real(*a, **k))[1]
        )
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)

    def goal(at):
        return (outputs.values(differentiable_solve(made, at, 1e-12), at) @ weights).sum()

    free = y.clone().requires_grad_()
    (found,) = torch.autograd.grad(goal(free), free)
    assert solves == ["solve", "solve_linear"]
    step = 1e-4
    for k in range(y.shape[1]):
        shift = torch.zeros_like(y)
        shift[0, k] = step
        expected = (goal(y + shift) - goal(y - shift)) / (2 * step)
        assert abs(float(found[0, k] - expected)) < 1e-6 * max(1.0, float(found.abs().max()))


@pytest.mark.parametrize("name", CASES)
def test_tangents_agree_with_central_differences_and_with_the_adjoint(name):
    made = CASES[name]()
    outputs = OutputMap(made, [PointValues([[0.3] * made.frame.arrays.dimension]), RegionMean(), BoundaryFlux("all")])
    y = samples(made.problem, 3)
    v = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    w, dw = tangent_solve(made, y, v, 1e-12)
    found = torch.func.jvp(outputs.values, (w, y), (dw, v))[1]  # (3, s)
    step = 1e-4
    low, high = (outputs.values(solve(made, at, 1e-13).w, at) for at in (y - step * v, y + step * v))
    size = max(1.0, float(found.abs().max()))
    torch.testing.assert_close(found, (high - low) / (2 * step), rtol=0, atol=1e-6 * size)
    free = y.clone().requires_grad_()
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    goal = outputs.values(differentiable_solve(made, free, 1e-12), free) @ weights
    (gradient,) = torch.autograd.grad(goal.sum(), free)
    torch.testing.assert_close(found @ weights, (gradient * v).sum(1), rtol=0, atol=1e-9 * size)
    p = y.shape[1]
    columns = tangent_solve(made, y[:1].expand(p, -1), torch.eye(p, dtype=torch.float64), 1e-12)[1]
    torch.testing.assert_close(v[0] @ columns, dw[0], rtol=0, atol=1e-9 * float(dw.abs().max()))
    again = tangent_solve(made, y, v, 1e-12, w)[1]  # coefficients that are known save the solve, and change nothing
    torch.testing.assert_close(again, dw, rtol=0, atol=1e-9 * float(dw.abs().max()))


def test_directions_that_do_not_fit_are_refused():
    made = CASES["checkerboard"]()
    y = samples(made.problem, 2)
    for v in (y[:1], y[:, 1:], torch.full_like(y, torch.nan), torch.ones(y.shape, dtype=torch.int64)):
        with pytest.raises(ValueError, match="one direction per sample"):
            tangent_solve(made, y, v)


NETS = {
    "net": dict(precision="float64", epochs=5, rank=3),
    "nodal values": dict(precision="float64", epochs=5, rank=3, loss="nodal"),
    "multigrid": dict(net="multigrid", epochs=5, precision="float64"),
}


@pytest.mark.parametrize("name", NETS)
def test_tangents_of_surrogates_agree_with_differences_and_gradients(name, tmp_path):
    """Through a net the answers themselves are differentiated, for a solver the solution is."""
    train(
        Configuration(problem="spot", options={"blocks": 2}, levels=3, test_samples=0, **NETS[name]),
        tmp_path,
        quiet=True,
    )
    surrogate = Surrogate.load(tmp_path)
    outputs = OutputMap(surrogate.formulation, [PointValues([[0.4, 0.6]]), RegionMean(), BoundaryFlux("all")])
    y = torch.as_tensor(surrogate.problem.parameters.sample(3, 5)) * 0.9 + 0.05
    v = torch.randn(y.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = surrogate.output_tangent(y, v, outputs)
    free = y.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(surrogate.differentiable_output(free, outputs).sum(), free)
    torch.testing.assert_close(found.sum(1), (gradient * v).sum(1), rtol=1e-8, atol=1e-8)
    if name != "multigrid":
        step = 1e-5
        low, high = (surrogate.output(at, outputs).values for at in (y - step * v, y + step * v))
        torch.testing.assert_close(found, (high - low) / (2 * step), rtol=1e-6, atol=1e-6)
    every = surrogate.output_tangent(y[:1].expand(6, -1), torch.eye(6), outputs)  # the Jacobian matrix at once
    torch.testing.assert_close(v[0] @ every, found[0], rtol=1e-7, atol=1e-8)
    with pytest.raises(ValueError, match="directions v have shape"):
        surrogate.output_tangent(y, v[:, 1:], outputs)
