"""Weak forms in the frame's dual norm: loss, gradient, matrices, condition numbers and rounding."""

import numpy as np
import pytest
import torch
from oracles import Assembly
from ufl import Measure, SpatialCoordinate, TestFunction, TrialFunction, dot, grad, inner
from weak_forms import ALL, LINEAR, advection, coefficients, formulation, helmholtz, made, outflow, samples, weak, wind

from fem_frames import condition_numbers, make_problem, solve
from fem_frames.formulations.dual_norm import DualNorm
from fem_frames.studies.rounding import rounding_rows

pytestmark = pytest.mark.serial


# ---- loss and gradient


@pytest.mark.parametrize("name", ALL)
def test_gradient_is_that_of_autograd_and_of_differences(name):
    form = made(name)
    assert isinstance(form, DualNorm)
    y, w, direction = samples(form), coefficients(form), coefficients(form, seed=1)
    point = w.clone().requires_grad_()
    loss = form.loss(point, y)
    (gradient,) = torch.autograd.grad(loss.sum(), point)
    found, residual = form.loss_and_residual(w, y)
    torch.testing.assert_close(found, loss.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(2 * form.factor * residual, gradient, rtol=1e-10, atol=1e-10)
    step = 1e-5
    slope = (form.loss(w + step * direction, y) - form.loss(w - step * direction, y)) / (2 * step)
    torch.testing.assert_close((gradient * direction).sum(1), slope, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_curvature_is_the_square_of_the_derivative_of_the_residual(name):
    form = made(name)
    y, w, direction = samples(form), coefficients(form), coefficients(form, seed=1)
    step = 1e-5
    change = (form.dual_residual(w + step * direction, y) - form.dual_residual(w - step * direction, y)) / (2 * step)
    for matrix in (form.gauss_newton(w, y), form.curvature(w, y)):
        torch.testing.assert_close((matrix(direction) * direction).sum(1), (change**2).sum(1), rtol=1e-6, atol=0)
        other = coefficients(form, seed=2)
        torch.testing.assert_close((matrix(direction) * other).sum(1), (matrix(other) * direction).sum(1))


@pytest.mark.parametrize("name", LINEAR)
def test_linear_weak_forms_have_quadratic_losses(name):
    form = made(name)
    y, w = samples(form), coefficients(form)
    assert form.is_quadratic
    stable = form.stable(y)
    torch.testing.assert_close(stable(w), form.bpx(y)(w), rtol=1e-10, atol=1e-9)
    torch.testing.assert_close(form.residual(w, y), stable(w) - form.load(y), rtol=1e-10, atol=1e-9)
    torch.testing.assert_close(form.nodal_loss(form.frame.H(w), y), form.loss(w, y), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(form.loss(torch.zeros_like(w), y), form.constant(y))


@pytest.mark.parametrize("name", ["square", "system", "heat", "outflow"])
def test_entries_of_blocks_are_those_of_dense_blocks(name):
    form = made(name)
    y, z = samples(form), torch.randn(3, form.frame.D.shape[0], dtype=torch.float64)
    blocks, C = form.weak_blocks(y)[0], form.C(y)
    cells = z.unflatten(1, (len(blocks), -1))
    torch.testing.assert_close(C(z), torch.einsum("kmnb,bkn->bkm", blocks, cells).flatten(1))
    torch.testing.assert_close(C.T(z), torch.einsum("kmnb,bkm->bkn", blocks, cells).flatten(1))
    assert len(C.entries) < blocks.shape[1] ** 2 or name in ("square", "outflow")


# ---- DOLFINx


@pytest.mark.parametrize("d", [1, 2, 3])
def test_loss_is_the_norm_of_dolfinx_residual_on_the_frame(d):
    """|Hᵀ(M v - f)|² with M and f assembled by DOLFINx, boundary terms and given values included."""
    problem = outflow(d)
    form = formulation(problem, {1: 4, 2: 3, 3: 1}[d])
    arrays, y = form.frame.arrays, samples(form)
    assembly = Assembly(arrays)
    u, v = TrialFunction(assembly.V), TestFunction(assembly.V)
    x, dx, ds = SpatialCoordinate(assembly.mesh), Measure("dx", assembly.mesh), Measure("ds", assembly.mesh)
    w = coefficients(form)
    values = form.synthesise(w, y)["u"].numpy()
    H, free = form.frame.H.to_dense().numpy(), arrays.fields[0].free[-1]
    for sample in range(len(y)):
        a, b = (float(value) for value in y[sample])
        M = assembly.matrix((a * inner(grad(u), grad(v)) + 3 * dot(wind(d), grad(u)) * v) * dx + 2 * u * v * ds)
        f = assembly.vector(x[0] * v * dx + b * v * ds)
        residual = H.T @ (M @ values[sample] - f)[free]
        np.testing.assert_allclose(form.dual_residual(w, y)[sample], residual, atol=1e-12)
        np.testing.assert_allclose(form.loss(w, y)[sample], residual @ residual, rtol=1e-12)
        np.testing.assert_allclose(form.dual_norm(w, y)[sample], np.linalg.norm(residual), rtol=1e-12)


# ---- condition numbers and half precision


@pytest.mark.parametrize(
    ("problem", "levels", "expected"),
    [(advection, 4, 7.0), (lambda: advection(0.01), 4, 13.8), (lambda: helmholtz(30.0), 4, 13.7)],
    ids=["diffusion 1", "diffusion 0.01", "Helmholtz"],
)
def test_condition_numbers_are_squares_of_those_of_the_weak_form(problem, levels, expected):
    form = formulation(problem(), levels)
    y = torch.ones(2, dtype=torch.float64)
    found = condition_numbers(form, y).cond_bpx
    assert found**0.5 == pytest.approx(expected, rel=0.02)
    D = form.frame.D.to_dense()
    values = torch.linalg.svdvals(D.T @ torch.stack([form.C(y)(column[None])[0] for column in D.T], dim=1))
    assert float(values[0] / values[form.frame.arrays.nodal_size - 1]) == pytest.approx(found**0.5, rel=0.01)


def test_heat_is_well_conditioned_in_the_norm_of_one_step():
    y = torch.ones(4, dtype=torch.float64)
    found = [condition_numbers(formulation(make_problem("heat", duration=1.0), J), y).cond_bpx ** 0.5 for J in (2, 3)]
    assert found == pytest.approx([3.39, 5.44], rel=0.02)


def test_frame_functions_have_energy_one_in_the_symmetric_part():
    form = made("heat")
    assert form.problem.normalisation == "energy"
    y0 = torch.as_tensor(form.problem.parameters.nominal)
    D, C = form.frame.D.to_dense(), form.C(y0).to_dense()[0]
    np.testing.assert_allclose(torch.diagonal(D.T @ C @ D), 1.0, rtol=1e-10)


@pytest.mark.parametrize("size", [1e-2, 1.0, 1e3])
@pytest.mark.parametrize(("dtype", "limit"), [("float16", 2e-3), ("bfloat16", 2e-2), ("float32", 1e-6)])
def test_rounding_of_the_gradient_near_the_solution(dtype, limit, size):
    problem = weak(
        lambda u, v, y, x, dx, ds: (y[0] * inner(grad(u), grad(v)) + dot(wind(2), grad(u)) * v - size * y[1] * v) * dx
    )
    exact = formulation(problem, 4)
    low, y = exact.to(dtype), samples(exact)
    w = solve(exact, y).w.to(low.frame.dtype)
    off = low.residual(w, y.to(low.wide)).double() - exact.residual(w.double(), y)
    first = exact.load(y)
    assert (off.norm(dim=1) < limit * first.norm(dim=1)).all()


def test_rounding_study_knows_weak_forms():
    form = made("square")
    rows = list(rounding_rows(form.frame.arrays, form.problem, form.problem.parameters.sample(2, 0), ("float64",)))
    assert all(row["residual_error"] < 1e-13 and row["gradient_error"] < 1e-13 for row in rows)
    # At the rounded solution, where the loss in extended precision is that of float64.
    assert all(
        row["loss"] == pytest.approx(row["loss_true"], rel=1e-3, abs=1e-28) for row in rows if row["route"] != "bpx"
    )
