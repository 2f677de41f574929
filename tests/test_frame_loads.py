"""Loads in half precision: no part of the gradient pushes coefficients along the kernel of the frame."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from frames import case, samples

from fem_frames import (
    Equation,
    Field,
    Frame,
    MeshHierarchy,
    Pointwise,
    Problem,
    Uniform,
    export_frame,
    make_formulation,
    make_problem,
    solve,
)
from training.losses import make_loss

pytestmark = pytest.mark.serial
BUILT_IN = ("reaction", "anisotropic", "elastic", "carreau")  # equations in UFL
KINDS = (
    "interval",
    "interval, mixed",
    "square",
    "square, mixed",
    "square, raised",
    "square, lognormal",
    "square, P2",
    "square, P2, constant",
    "L-shape",
    "cube, mixed",
    *BUILT_IN,
)
HALF = ("float16", "bfloat16")
COUNT = 64


@cache
def exact_formulation(kind):
    if kind in BUILT_IN:
        problem = make_problem(kind)
        arrays = export_frame(MeshHierarchy.from_problem(problem, 3), problem, "energy")
    else:
        problem, arrays = case(kind)
    return make_formulation(Frame.from_arrays(arrays, "float64"), problem)


@cache
def solved(kind):
    """(exact, y, w) with the solutions w for y."""
    exact = exact_formulation(kind)
    y = samples(exact.problem, COUNT)
    return exact, y, solve(exact, y).w


def push(formulation, exact, y, w):
    """The mean gradient along the kernel of F, in rounding errors of ∂ψ/∂s: what steps over many y add up."""
    rank = exact.nodal_differential.shape[1]
    kernel = torch.linalg.svd(exact.frame.D.to_dense())[2][rank:]
    assert len(kernel) > 0
    assert float((exact.frame.D(w) - exact.frame.D(w - w @ kernel.T @ kernel)).norm()) < 1e-12
    dtype = formulation.frame.dtype
    gradient = formulation.residual(w.to(dtype), y.to(formulation.wide)).double() @ kernel.T
    return float(gradient.mean(0).norm() / exact.state_slope(w, y).norm(dim=1).mean()) / torch.finfo(dtype).eps


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_in_float16_does_not_push_along_the_kernel(kind):
    """At the solutions; with the load on the frame it does, and the loss falls there without bound."""
    exact, y, w = solved(kind)
    low = exact.to("float16")
    assert push(low, exact, y, w) < 0.01 < push(low.with_load_on_frame(), exact, y, w)


@pytest.mark.parametrize("kind", KINDS)
def test_nor_in_bfloat16(kind):
    exact, y, w = solved(kind)
    assert push(exact.to("bfloat16"), exact, y, w) < 0.01


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradient_are_those_of_the_functional(kind, dtype):
    """At random coefficients, with an autograd of the loss that agrees; a load that varies keeps its own part."""
    exact = exact_formulation(kind)
    low, y = exact.to(dtype), samples(exact.problem, 5, seed=3)
    torch.manual_seed(0)
    w = (0.1 * torch.randn(5, exact.frame.frame_size, dtype=torch.float64)).to(low.frame.dtype).requires_grad_()
    eps = torch.finfo(low.frame.dtype).eps
    loss, residual = low.loss_and_residual(w.detach(), y.to(low.wide))
    of_autograd = low.loss(w, y.to(low.wide))
    (gradient,) = torch.autograd.grad(of_autograd.sum(), w)
    want, slope = exact.loss_and_residual(w.detach().double(), y)
    size = exact.energy_norm(exact.states(w.detach().double(), y), y).square().mean()
    torch.testing.assert_close(loss, of_autograd.detach(), rtol=1e-5, atol=1e-5 * float(size))
    assert float((loss.double() - want).abs().max()) < 5 * eps * float(size)
    for found in (residual, gradient / (2 * low.factor)):
        assert float((found.double() - slope).norm()) < 5 * eps * float(slope.norm())


@pytest.mark.parametrize("kind", ["square", "anisotropic"])
def test_steps_in_float16_stay_where_they_are(kind):
    """Plain gradient steps over many y, kept in float32: coefficients do not grow along the kernel."""
    exact, y, w = solved(kind)
    kernel = torch.linalg.svd(exact.frame.D.to_dense())[2][exact.nodal_differential.shape[1] :]

    def drift(formulation, steps=400):
        master = w.mean(0)
        for step in range(steps):
            at = y[step % COUNT][None]
            master = master - 0.1 * formulation.residual(master.half()[None], at.float())[0].double()
        return float((kernel @ (master - w.mean(0))).norm() / w.norm(dim=1).mean())

    low = exact.to("float16")
    assert drift(low) < 2e-4 < 2e-3 < drift(low.with_load_on_frame())


@pytest.mark.parametrize("kind", ["square, mixed", "reaction"])
def test_only_half_precision_has_states_for_its_load(kind):
    exact = exact_formulation(kind)
    for dtype in ("float32", "float64"):
        made = exact.to(dtype)
        y = samples(made.problem, 2).to(made.frame.dtype)
        assert made.split_load(y).states is None
        torch.testing.assert_close(made.split_load(y).on_frame, made.frame_functional(y), rtol=0, atol=0)
    low = exact.to("float16")
    assert low.split_load(samples(low.problem, 2).float()).states is not None


def test_the_load_through_nodal_values_stays_as_it_was():
    """The loss bpx is the paper's, in every precision."""
    low = exact_formulation("square").to("float16")
    torch.manual_seed(0)
    y, w = samples(low.problem, 3).float(), torch.randn(3, low.frame.frame_size).half()
    old = low.with_load_on_frame()
    for name in ("bpx", "nodal"):
        losses = [make_loss(name, formulation) for formulation in (low, old)]
        at = low.frame.H(w) if name == "nodal" else w
        found = [loss.with_gradient(at, loss.batch(y.numpy())) for loss in losses]
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_problem_without_a_nominal_solution_keeps_its_load_on_the_frame():
    """An energy that falls without bound for the middle of the parameters, which training does not see."""

    def energy(u, y, x, dx, ds):
        from ufl import grad, inner

        return ((y[0] ** 2 - 0.1) * inner(grad(u), grad(u)) / 2 - u) * dx

    problem = Problem(
        make_problem("checkerboard").mesh,
        Equation(Field("u"), energy=energy),
        Uniform((-1.0,), (1.0,)),
        dirichlet="all",
    )
    arrays = export_frame(MeshHierarchy.from_problem(problem, 2), problem, "energy")
    low = make_formulation(Frame.from_arrays(arrays, "float16"), problem)
    y = torch.ones(2, 1)
    assert low.split_load(y).states is None
    w = solve(low, y).w
    assert float(low.residual(w.half(), y).norm()) < 0.01 * float(low.load(y).norm())


@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp"])
@pytest.mark.parametrize("kind", ["square", "reaction"])
def test_the_first_call_may_come_from_torch_func(kind, transform):
    exact = exact_formulation(kind)
    y, zero = samples(exact.problem, 3).float(), torch.zeros(3, exact.frame.frame_size, dtype=torch.float16)
    known, new = exact.to("float16"), exact.to("float16")
    want = known.loss_and_residual(zero, y)
    if transform == "grad":
        found = torch.func.grad(lambda w: new.loss(w, y).sum())(zero)
        torch.testing.assert_close(found / (2 * new.factor), want[1])
    elif transform == "vmap":
        torch.testing.assert_close(torch.func.vmap(lambda w, at: new.loss(w[None], at[None])[0])(zero, y), want[0])
    else:
        _, tangent = torch.func.jvp(lambda w: new.loss(w, y), (zero,), (zero + 1,))
        want_tangent = 2 * new.factor * want[1].float().sum(1)
        torch.testing.assert_close(
            tangent.float(), want_tangent, rtol=0.01, atol=0.01 * float(want_tangent.abs().max())
        )
    assert new.split_load(y).states is not None


def test_data_on_the_boundary_that_depend_on_y():
    """The part of the load that differs from the nominal one stays on the frame, and the lift has its own share."""
    problem = make_problem("checkerboard")
    problem = replace(
        problem,
        coefficient=Pointwise(lambda x, y: 1 + y[..., 0] * x[..., 0]),
        parameters=Uniform((0.0, 0.5), (1.0, 1.5)),
        regions=None,
        source=lambda x, y: y[..., 1] * (1 + x[..., 0]),
        dirichlet_value=lambda x, y: y[..., 1] * x[..., 0],
    )
    arrays = export_frame(MeshHierarchy.from_problem(problem, 3), problem, "energy")
    exact = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    low, y = exact.to("float16"), samples(problem, 6)
    assert low.lift_needs_y
    assert low.split_load(y.float()).states is not None
    w = solve(exact, y).w.half()
    loss, residual = low.loss_and_residual(w, y.float())
    eps = torch.finfo(torch.float16).eps
    size = exact.energy_norm(exact.states(w.double(), y), y)
    assert float((loss.double() - exact.loss(w.double(), y)).abs().max()) < eps * float(size.max()) ** 2
    assert float((residual.double() - exact.residual(w.double(), y)).norm(dim=1).max()) < 2 * eps * float(size.max())
