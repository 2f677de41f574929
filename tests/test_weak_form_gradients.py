"""Derivatives in y of solutions of nonlinear weak forms, by one adjoint or one tangent solve with the Jacobian."""

from functools import cache

import numpy as np
import pytest
import torch
from ufl import div, dot, exp, grad, inner
from weak_forms import burgers, formulation, samples, weak, wind

from fem_frames import (
    Field,
    Functional,
    OutputMap,
    Parameter,
    PointValues,
    RegionMean,
    differentiable_solve,
    solve,
    tangent_solve,
)
from fem_frames.solvers import differentiable

pytestmark = pytest.mark.serial

WEIGHTS = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


def reaction():
    def residual(u, v, y, x, dx, ds):
        carried = (1 + y[1] * x[0]) * dot(wind(2), grad(u))
        return (y[0] * inner(grad(u), grad(v)) + carried * v + 4 * y[1] * u**3 * v - 10 * v) * dx

    return weak(residual)


def two_fields():
    """Coupled in both directions, with different terms."""

    def residual(u, p, v, q, y, x, dx, ds):
        first = y[0] * inner(grad(u), grad(v)) + 3 * u * p * v - 8 * v
        return (first + (1 + p**2) * inner(grad(p), grad(q)) + (2 * u + u.dx(0) - y[1]) * q) * dx

    return weak(residual, fields=(Field("u"), Field("p")))


def components():
    """A vector, of which one component is given as y[1] on the boundary."""

    def residual(u, v, y, x, dx, ds):
        leading = (1 + u[1] ** 2) * inner(grad(u), grad(v))
        return (leading + 5 * y[0] * u[1] * v[0] - u[0] * u[0].dx(1) * v[1] - 5 * y[1] * v[0]) * dx

    return weak(residual, fields=(Field("u", components=2, dirichlet={"all": (0.0, Parameter(1))}),))


def given():
    """Essential data that are a function of x and y, and a nonlinear boundary term."""

    def residual(u, v, y, x, dx, ds):
        form = ((1 + u**2) * y[0] * inner(grad(u), grad(v)) + 3 * u * dot(wind(2), grad(u)) * v - x[0] * v) * dx
        return form + (2 * u**3 - y[1]) * v * ds

    left = {"dirichlet": lambda x: np.isclose(x[:, 0], 0)}
    return weak(residual, **left, dirichlet_value=lambda x, y: x[..., 1] * y[..., 1] + y[..., 0] ** 2)


def flux():
    def residual(s, u, t, v, y, x, dx, ds):
        law = inner(s - (y[0] + u**2) * grad(u), t) + div(s) * div(t)
        return (law + y[1] * inner(grad(u), grad(v)) + u * dot(wind(2), grad(u)) * v - v) * dx

    return weak(residual, fields=(Field("s", "RT0"), Field("u")))


def quadratic():
    def residual(u, v, y, x, dx, ds):
        return (y[0] * inner(grad(u), grad(v)) + dot(wind(2), grad(u)) * v + y[1] * exp(u) * v - 4 * v) * dx

    return weak(residual, fields=(Field("u", "P2"),), quadrature_degree=4)


def cube():
    def residual(u, v, y, x, dx, ds):
        return (y[0] * inner(grad(u), grad(v)) + u * dot(wind(3), grad(u)) * v + y[1] * u**3 * v - 9 * v) * dx

    return weak(residual, d=3)


def of_scalar(u, y, x, dx, ds):
    return (y[0] * u**2 + x[0] * inner(grad(u), grad(u))) * dx


CASES = {
    "burgers": (burgers, 3, of_scalar),
    "reaction": (reaction, 3, of_scalar),
    "two fields": (two_fields, 2, lambda u, p, y, x, dx, ds: y[1] * u * p * dx),
    "components": (components, 2, lambda u, y, x, dx, ds: y[1] * u[0] * u[1] * dx),
    "given": (given, 3, of_scalar),
    "flux": (flux, 2, lambda s, u, y, x, dx, ds: (inner(s, s) * y[0] + u**2) * dx),
    "quadratic elements": (quadratic, 2, of_scalar),
    "cube": (cube, 2, of_scalar),
}


@cache
def made(name):
    problem, levels, functional = CASES[name]
    form = formulation(problem(), levels)
    field = "u[0]" if name == "components" else "u"
    point = PointValues([[0.3] * form.frame.arrays.dimension], field)
    return form, OutputMap(form, [point, RegionMean(field=field), Functional(functional)])


@pytest.mark.parametrize("name", CASES)
def test_gradients_agree_with_central_differences_at_the_cost_of_one_adjoint_solve(name, monkeypatch):
    form, outputs = made(name)
    y, solves = samples(form, 2), []
    for function in ("solve", "solve_linear"):
        real = getattr(differentiable, function)
        monkeypatch.setattr(
            differentiable, function, lambda *a, real=real, f=function, **k: (solves.append(f), real(*a, **k))[1]
        )
    free = y.clone().requires_grad_()
    (found,) = torch.autograd.grad(
        (outputs.values(differentiable_solve(form, free, 1e-12), free) @ WEIGHTS).sum(), free
    )
    assert solves == ["solve", "solve_linear"]
    step = 1e-4
    for k in range(y.shape[1]):
        shift = torch.zeros_like(y)
        shift[:, k] = step
        high, low = (outputs.values(solve(form, at, 1e-13).w, at) @ WEIGHTS for at in (y + shift, y - shift))
        expected = (high - low) / (2 * step)
        torch.testing.assert_close(found[:, k], expected, rtol=1e-6, atol=1e-7 * float(found.abs().max()))


@pytest.mark.parametrize("name", CASES)
def test_tangents_agree_with_gradients(name):
    form, outputs = made(name)
    y = samples(form, 3)
    v = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    w, dw = tangent_solve(form, y, v, 1e-12)
    found = torch.func.jvp(outputs.values, (w, y), (dw, v))[1] @ WEIGHTS
    free = y.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(
        (outputs.values(differentiable_solve(form, free, 1e-12), free) @ WEIGHTS).sum(), free
    )
    torch.testing.assert_close(found, (gradient * v).sum(1), rtol=1e-9, atol=1e-9 * float(gradient.abs().max()))


@pytest.mark.parametrize("name", ["reaction", "two fields", "given"])
def test_gradients_are_those_of_the_transposed_jacobian(name):
    """dq/dy = ∂q/∂y - λᵀ ∂r/∂y with Bᵀλ = ∂q/∂w and the dense, non-symmetric Jacobian B of the residual r at w."""
    problem, _, functional = CASES[name]
    form = formulation(problem(), 2)
    outputs = OutputMap(form, [Functional(functional)])
    y = samples(form, 1)
    w = solve(form, y, 1e-13).w
    B = torch.autograd.functional.jacobian(lambda at: form.dual_residual(at, y)[0], w)[:, 0]
    assert (B - B.T).norm() > 0.01 * B.norm()
    at, free = w.clone().requires_grad_(), y.clone().requires_grad_()
    of_w, of_y = torch.autograd.grad(outputs.values(at, free).sum(), (at, free))
    dual = torch.linalg.pinv(B.T, rtol=1e-11) @ of_w[0]
    of_residual = torch.autograd.functional.jacobian(lambda at: form.dual_residual(w, at)[0], y)[:, 0]  # (Nhat, p)
    expected = of_y[0] - dual @ of_residual
    (found,) = torch.autograd.grad(outputs.values(differentiable_solve(form, free, 1e-13), free).sum(), free)
    torch.testing.assert_close(found[0], expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))


def test_gradients_in_float32_are_as_accurate_as_it_allows():
    form, outputs = made("reaction")
    y = samples(form, 2)
    gradients = []
    for own, tol in ((form, 1e-12), (form.to("float32"), 1e-5)):
        free = y.to(own.frame.dtype).requires_grad_()
        values = outputs.on(own).values(differentiable_solve(own, free, tol), free)
        gradients.append(torch.autograd.grad((values @ WEIGHTS.to(values)).sum(), free)[0])
    torch.testing.assert_close(gradients[1].double(), gradients[0], rtol=1e-3, atol=0)
