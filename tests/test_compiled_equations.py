"""Equations of users in compiled code: the numbers of torch, and those of built-in formulations."""

from functools import cache

import numpy as np
import pytest
import torch
import ufl
from test_operators import DTYPES, check_contract
from torch.autograd import forward_ad

from fem_frames import Frame, Grid, MeshHierarchy, Problem, Uniform, export_frame, make_formulation
from fem_frames.formulations.second_derivatives import SecondDerivative
from fem_frames.frame.fields import Field
from fem_frames.operators.cells import CellBlocks
from fem_frames.problem.coefficients import Pointwise, namespace
from fem_frames.problem.equation import Equation
from fem_frames.problem.evaluation import NotFiniteError
from fem_frames.studies.equation_benchmark import CASES, equation_rows

pytestmark = pytest.mark.serial


def elastic(u, y, x, dx, ds):
    e = ufl.sym(ufl.grad(u))
    stored = y[0] * ufl.exp(x[0] * y[1]) * ufl.tr(e) ** 2 / 2 + y[1] * ufl.inner(e, e)
    spring = y[2] * ufl.inner(u, u) / 2 * ds
    return stored * dx + ufl.ln(y[2]) * x[1] * ufl.inner(u, u) * dx(1) + 0.1 * y[2] * u[1] * dx + spring


def diffusion(u, y, x, dx, ds):
    energy = ufl.inner(ufl.grad(u), ufl.grad(u)) / 2
    return y[0] * ufl.exp(x[0] * y[1]) * energy * dx - (1 + y[2] * x[1]) * u * dx


def problem(energy, components=None):
    return Problem(
        Grid((2, 1)),
        Equation(Field("u", components=components), energy=energy),
        Uniform((1.1,) * 3, (1.5,) * 3),
        dirichlet=lambda x: np.isclose(x[:, 0], 0),
        regions=lambda x: (x[:, 0] > 0.5).astype(int),
    )


@cache
def arrays():
    return export_frame(MeshHierarchy.from_problem(problem(elastic, 2), 2), problem(elastic, 2))


def formulation(dtype):
    return make_formulation(Frame.from_arrays(arrays(), dtype), problem(elastic, 2))


def samples(made, B):
    w = torch.randn(B, made.frame.frame_size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.as_tensor(made.problem.parameters.sample(B, 0))
    return w.to(made.frame.dtype), y.to(made.frame.dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_loss_and_residual_are_those_of_torch(dtype, monkeypatch):
    made = formulation(dtype)
    w, y = samples(made, 5)
    found = (*made.loss_and_residual(w, y), made.loss(w, y))
    monkeypatch.setenv("FEM_FRAMES_KERNELS", "torch")
    other = formulation(dtype)
    expected = (*other.loss_and_residual(w, y), other.loss(w, y))
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        assert (a - b).abs().max() <= 50 * torch.finfo(a.dtype).eps * b.abs().max()
    assert found[2].isfinite().all()


def test_the_residual_is_the_gradient_of_the_loss():
    made = formulation(torch.float64)
    w, y = samples(made, 5)
    leaf = w.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(made.loss(leaf, y).sum(), leaf)
    torch.testing.assert_close(made.residual(w, y), gradient)
    watched = y.clone().requires_grad_()
    (of_y,) = torch.autograd.grad(made.loss(w, watched).sum(), watched)
    step = 1e-6 * torch.eye(3, dtype=torch.float64)[0]
    slope = (made.loss(w, y + step) - made.loss(w, y - step)) / 2e-6
    torch.testing.assert_close(of_y[:, 0], slope, rtol=1e-6, atol=1e-6)


def test_tangents_and_maps_go_through_torch():
    made = formulation(torch.float64)
    w, y = samples(made, 3)
    loss, residual = made.loss_and_residual(w, y)
    expected = (residual * w).sum(1)
    torch.testing.assert_close(torch.func.jvp(lambda at: made.loss(at, y), (w,), (w,))[1], expected)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(made.loss(forward_ad.make_dual(w, w), y)).tangent
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.vmap(lambda at: made.loss(at, y))(w[None]), loss[None])
    for other in diffusions(torch.float64):  # coefficients and loads are compiled functions elsewhere
        at, _ = samples(other, 3)
        torch.testing.assert_close(torch.vmap(other.loss, (0, None))(at[None], y)[0], other.loss(at, y))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_second_derivatives_are_an_operator(dtype):
    made = formulation(dtype)
    _, y = samples(made, 2)
    operator = made.C(y)
    assert isinstance(operator, SecondDerivative)
    exact = CellBlocks(formulation(torch.float64).blocks(y.double()))
    check_contract(operator, exact.to_dense())
    x = torch.randn(4, 2, operator.shape[1]).to(dtype)
    torch.testing.assert_close(torch.vmap(operator)(x), torch.stack([operator(one) for one in x]))
    check_contract(made.C(y[:1]), exact.to_dense()[:1])
    assert isinstance(made.C(y.clone().requires_grad_()), CellBlocks)  # gradients in y go through blocks


def test_second_derivatives_that_are_not_finite_are_refused():
    made = formulation(torch.float64)
    _, y = samples(made, 3)
    y[1, 2] = -1.0
    for make in (made.C, made.local_matrices):
        with pytest.raises(NotFiniteError, match="second derivatives"):
            make(y)


def diffusions(dtype):
    """The same equation as a built-in formulation and in UFL."""
    built_in = Problem(
        Grid((2, 1)),
        Pointwise(lambda x, y: y[..., 0] * namespace(y).exp(x[..., 0] * y[..., 1])),
        Uniform((1.1,) * 3, (1.5,) * 3),
        source=lambda x, y: 1 + y[..., 2] * x[..., 1],
        dirichlet=lambda x: np.isclose(x[:, 0], 0),
    )
    made = []
    for given in (built_in, problem(diffusion)):
        frame = Frame.from_arrays(export_frame(MeshHierarchy.from_problem(built_in, 2), given), dtype)
        made.append(make_formulation(frame, given))
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_diffusion_in_ufl_is_the_built_in_formulation(dtype):
    made = diffusions(dtype)
    w, y = samples(made[0], 5)
    found, expected = ((f.loss(w, y), f.residual(w, y), f.coefficient(y), f.functional(y), f.C(y).values) for f in made)
    for a, b in zip(found, expected, strict=True):
        assert (a - b).abs().max() <= 50 * torch.finfo(dtype).eps * b.abs().max()


def test_benchmark_of_equations():
    rows = list(equation_rows(["float32"], levels=2, batch=3, seconds=0.0))
    assert [row["equation"] for row in rows] == list(CASES)
    assert rows[0]["over_E"] == 1.0
    assert all(row["ns"] > 0 for row in rows)
    assert [row["m"] for row in rows] == [2, 2, 2, 2, 5, 4, 3, 3]
