"""Outputs whose derivative vanishes at the solution have a zero dual solution: their gradient in y is ∂q/∂y alone."""

from functools import cache

import pytest
import torch
from ufl import div, grad, inner, sym, tr
from weak_forms import formulation, made, samples

from fem_frames import (
    Equation,
    Field,
    Functional,
    Grid,
    OutputMap,
    PointValues,
    Problem,
    RegionMean,
    Uniform,
    differentiable_solve,
    solve,
    solve_linear,
    tangent_solve,
)
from fem_frames.solvers.conjugate_gradients import ConvergenceError

pytestmark = pytest.mark.serial


def square(v):
    return inner(v, v)


def diffusion(u, y, x, dx, ds):
    return ((1 + y[0] * x[0]) * square(grad(u)) / 2 - (1 + y[1] * x[1]) * u) * dx


def stiff(u, y, x, dx, ds):
    """In units with large numbers: steel in pascals."""
    e = sym(grad(u))
    return (1e11 * (y[0] * tr(e) ** 2 / 2 + y[1] * square(e)) - 1e6 * y[1] ** 2 * u[1]) * dx


def thickening(u, y, x, dx, ds):
    return (y[0] * (1 + square(grad(u))) ** 1.5 / 3 + y[1] * u**4 / 4 - 10 * u) * dx


def fluxes(s, u, y, x, dx, ds):
    return ((div(s) + y[1]) ** 2 + square(s - y[0] * grad(u))) / 2 * dx


CASES = {
    "diffusion": (diffusion, (Field("u"),), 4),
    "elasticity": (stiff, (Field("u", components=2),), 3),
    "nonlinear": (thickening, (Field("u"),), 3),
    "quadratic elements": (diffusion, (Field("u", "P2"),), 2),
    "fluxes": (fluxes, (Field("s", "RT0"), Field("u")), 2),
}


@cache
def of(name):
    energy, fields, levels = CASES[name]
    box = Uniform((0.5, 0.5), (1.5, 1.5))
    problem = Problem(Grid((1, 1)), Equation(*fields, energy=energy), box, quadrature_degree=4)
    form = formulation(problem, levels)
    return form, OutputMap(form, [Functional(energy, "energy")])


def dual_size(form, y, w, gradient):
    return float((solve_linear(form, y, gradient, 1e-10, at=w).w.norm(dim=1) / w.norm(dim=1)).max())


@pytest.mark.parametrize("tol", [1e-9, 1e-13])
@pytest.mark.parametrize("name", CASES)
def test_the_gradient_of_the_least_energy_is_its_partial_derivative(name, tol):
    form, outputs = of(name)
    y = samples(form, 3)
    free = y.clone().requires_grad_()
    w = differentiable_solve(form, free, tol)
    (found,) = torch.autograd.grad(outputs.values(w, free).sum(), free)
    free = y.clone().requires_grad_()
    (alone,) = torch.autograd.grad(outputs.values(w.detach(), free).sum(), free)
    torch.testing.assert_close(found, alone, rtol=0, atol=10 * tol * float(alone.abs().max()) + 1e-12)
    step = 1e-4
    for k in range(2):
        shift = torch.zeros_like(y)
        shift[:, k] = step
        low, high = (outputs.values(solve(form, at, 1e-13).w, at)[:, 0] for at in (y - shift, y + shift))
        expected = (high - low) / (2 * step)
        torch.testing.assert_close(found[:, k], expected, rtol=1e-6, atol=1e-7 * float(found.abs().max()))
    at = w.detach().requires_grad_()
    (noise,) = torch.autograd.grad(outputs.values(at, y).sum(), at)
    assert dual_size(form, y, w.detach(), noise) < 10 * tol


def test_the_loss_of_a_weak_form_vanishes_with_its_derivative():
    form = made("burgers")
    y = samples(form)
    free = y.clone().requires_grad_()
    loss = form.loss(differentiable_solve(form, free, 1e-12), free)
    assert float(torch.autograd.grad(loss.sum(), free)[0].abs().max()) < 1e-11 * float(form.constant(y).max())


@pytest.mark.parametrize("name", CASES)
def test_a_zero_derivative_gives_a_zero_dual_solution_to_its_sample_alone(name):
    form, _ = of(name)
    outputs, y = OutputMap(form, [RegionMean()]), samples(form, 3)

    def gradient(weights):
        free = y.clone().requires_grad_()
        values = outputs.values(differentiable_solve(form, free, 1e-11), free)[:, 0]
        return torch.autograd.grad((weights * values).sum(), free)[0]

    whole = gradient(torch.ones(3, dtype=torch.float64))
    part = gradient(torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64))
    assert not part[1].any()
    assert not gradient(torch.zeros(3, dtype=torch.float64)).any()
    torch.testing.assert_close(part[[0, 2]], whole[[0, 2]], rtol=1e-8, atol=1e-9 * float(whole.abs().max()))


@pytest.mark.parametrize("name", ["diffusion", "nonlinear", "quadratic elements"])
def test_misfits_have_gradients_where_the_data_are_met_and_elsewhere(name):
    """Of ½ |q(u(y)) - q(u(y*))|²: zero at y*, the adjoint's elsewhere, however small the misfit is."""
    form, _ = of(name)
    outputs, y = OutputMap(form, [PointValues([[0.3, 0.4], [0.7, 0.6]]), RegionMean()]), samples(form, 2)
    data = outputs.values(solve(form, y, 1e-13).w, y)

    def misfit(at, size=1.0):
        return size * ((outputs.values(differentiable_solve(form, at, 1e-12), at) - data) ** 2).sum() / 2

    free = y.clone().requires_grad_()
    (there,) = torch.autograd.grad(misfit(free), free)
    other = (y + 0.1).requires_grad_()
    (away,) = torch.autograd.grad(misfit(other), other)
    assert float(there.abs().max()) < 1e-8 * float(away.abs().max())
    (small,) = torch.autograd.grad(misfit(other, 1e-30), other)  # small is not noise
    torch.testing.assert_close(small * 1e30, away, rtol=1e-8, atol=0)


def test_parameters_that_do_not_change_the_solution_have_zero_tangents():
    """A factor of the whole energy: ∂r/∂y is the residual itself, which is nothing but rounding errors."""

    def energy(u, y, x, dx, ds):
        return y[0] * ((1 + y[1] * x[0]) * square(grad(u)) / 2 - (1 + x[1]) * u) * dx

    problem = Problem(Grid((1, 1)), Equation(Field("u"), energy=energy), Uniform((0.5, 0.5), (1.5, 1.5)))
    form = formulation(problem, 4)
    y = samples(form, 2)
    for tol in (1e-9, 1e-13):
        w, dw = tangent_solve(form, y, torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double(), tol)
        assert float(dw[0].norm() / w[0].norm()) < 10 * tol
        assert float(dw[1].norm() / w[1].norm()) > 0.1


@pytest.mark.parametrize("name", ["diffusion", "elasticity"])
def test_gradients_of_the_least_energy_in_float32(name):
    form, outputs = of(name)
    low, y = form.to("float32"), samples(form, 2)
    free, narrow = y.clone().requires_grad_(), y.float().requires_grad_()
    (exact,) = torch.autograd.grad(outputs.values(differentiable_solve(form, free, 1e-12), free).sum(), free)
    values = outputs.on(low).values(differentiable_solve(low, narrow, 1e-5), narrow)
    (found,) = torch.autograd.grad(values.sum(), narrow)
    torch.testing.assert_close(found.double(), exact, rtol=1e-3, atol=1e-4 * float(exact.abs().max()))


@pytest.mark.parametrize("name", ["diffusion", "nonlinear", "quadratic elements"])
def test_functions_of_coefficients_that_are_none_of_u_are_told(name):
    """The frame is redundant: the sum of its coefficients is no functional of u."""
    form, _ = of(name)
    free = samples(form, 2).requires_grad_()
    with pytest.raises(ConvergenceError, match=r"The right-hand side is no functional of u: an output must depend"):
        torch.autograd.grad(differentiable_solve(form, free, 1e-10).sum(), free)
