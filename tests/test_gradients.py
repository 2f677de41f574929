"""Gradients of outputs in y by one adjoint solve, against central differences."""

import pytest
import torch
from frames import case
from walls import CONDITIONS, ROBIN, formulation_on, samples, varying

from fem_frames import BoundaryFlux, Frame, OutputMap, PointValues, RegionMean, differentiable_solve, make_formulation
from fem_frames.solvers import differentiable

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
