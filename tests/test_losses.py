"""The losses against the functional itself, their curvatures against second derivatives."""

import numpy as np
import oracles
import pytest
import torch
from frames import case, samples

from fem_frames import Frame, make_formulation, solve
from fem_frames.frame.solutions import ReferenceSolutions
from training.losses import LOSSES, make_loss
from training.net_outputs import level_sizes
from training.references import check_reference, reference_solutions

pytestmark = pytest.mark.serial
KINDS = (
    "interval, LS",
    "interval, LS, mixed",
    "interval, mixed",
    "square",
    "square, mixed",
    "square, inclusion",
    "cube",
)


def answer_size(loss):
    """How many numbers a net gives."""
    return sum(map(sum, level_sizes(loss.formulation.frame.arrays, loss.nodal).values()))


def exact_formulation(kind):
    problem, arrays = case(kind)
    return make_formulation(Frame.from_arrays(arrays, torch.float64), problem)


def reference_of(exact, y):
    w = solve(exact, y, 1e-12).w
    fields = {name: v.numpy() for name, v in exact.synthesise(w).items()}
    return ReferenceSolutions(y.numpy(), fields, exact.loss(w, y).numpy())


@pytest.mark.parametrize("kind", KINDS)
def test_three_losses_are_one_functional(kind):
    """In float64 stable, bpx and nodal give the same numbers for the same function."""
    exact = exact_formulation(kind)
    y = samples(exact.problem, 3)
    torch.manual_seed(0)
    w = torch.randn(3, exact.frame.frame_size, dtype=torch.float64)
    stable, bpx, nodal = (make_loss(name, exact) for name in ("stable", "bpx", "nodal"))
    batch = stable.batch(y.numpy())
    torch.testing.assert_close(stable(w, batch), bpx(w, batch), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(stable(w, batch), nodal(exact.frame.H(w), batch), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", [*KINDS, "square, lognormal", "interval, LS, level 0"])
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_gradients_that_are_written_out_are_those_of_autograd(kind, name, dtype):
    exact = exact_formulation(kind)
    y = samples(exact.problem, 3)
    loss = make_loss(name, exact.to(dtype), reference_of(exact, y))
    batch = loss.batch(y.numpy(), [0, 1, 2])
    torch.manual_seed(0)
    w = (0.1 * torch.randn(3, answer_size(loss), dtype=torch.float64)).to(loss.formulation.frame.dtype)
    w.requires_grad_()
    value = loss(w, batch)
    (gradient,) = torch.autograd.grad(value.sum(), w)
    found, found_gradient = loss.with_gradient(w, batch)
    eps = torch.finfo(w.dtype).eps
    torch.testing.assert_close(found, value.detach(), rtol=30 * eps, atol=1e-6 if dtype == "float16" else 1e-13)
    assert found_gradient.dtype == w.dtype
    assert float((found_gradient - gradient).double().norm()) <= 30 * eps * float(gradient.double().norm())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LOSSES)
def test_curvature_is_the_second_derivative(kind, name):
    exact = exact_formulation(kind)
    y = samples(exact.problem, 4)
    loss = make_loss(name, exact, reference_of(exact, y))
    batch = loss.batch(y[1:3].numpy(), [1, 2])
    size = answer_size(loss)
    torch.manual_seed(0)
    w = torch.randn(2, size, dtype=torch.float64, requires_grad=True)
    v = torch.randn(2, size, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(loss(w, batch).sum(), w)
    (shifted,) = torch.autograd.grad(loss(w + v, batch).sum(), w)
    torch.testing.assert_close(loss.curvature(batch, w)(v), shifted - gradient, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_supervised_losses_vanish_at_the_reference_alone(kind):
    exact = exact_formulation(kind)
    y = samples(exact.problem, 2)
    reference = reference_of(exact, y)
    nodal = exact.coordinates.free(reference.fields, exact.frame.device)
    w = solve(exact, y, 1e-12).w
    for name, answer in (("supervised", w), ("supervised-nodal", nodal)):
        loss = make_loss(name, exact, reference)
        batch = loss.batch(y.numpy(), [0, 1])
        assert float(loss(answer, batch).max()) < 1e-16 * float(loss(0 * answer, batch).min())
        swapped = loss.batch(y.numpy(), [1, 0])
        assert float(loss(answer, swapped).min()) > 1e-8 * float(loss(0 * answer, batch).min())


def test_the_supervised_loss_is_the_norm_of_the_error():
    """(E): the squared L2 norm of ∇(u - u_ref), here by DOLFINx's stiffness matrix for a = 1."""
    exact = exact_formulation("square")
    y = samples(exact.problem, 2)
    loss = make_loss("supervised", exact, reference_of(exact, y))
    torch.manual_seed(0)
    w = torch.randn(2, exact.frame.frame_size, dtype=torch.float64)
    off = exact.frame.H(w) - exact.coordinates.free(reference_of(exact, y).fields, exact.frame.device)
    arrays = exact.frame.arrays
    free = arrays.fields[0].free[-1]
    A = oracles.stiffness(arrays.points, arrays.levels[-1].cells, np.ones(len(arrays.volumes)))[free][:, free]
    want = torch.as_tensor([v @ (A @ v) for v in off.numpy()])
    torch.testing.assert_close(loss(w, loss.batch(y.numpy(), [0, 1])), want)


@pytest.mark.parametrize("kind", ["interval, LS, mixed", "square, mixed"])
def test_nodal_values_have_frame_coefficients(kind):
    exact = exact_formulation(kind)
    nodal = torch.randn(3, exact.frame.arrays.nodal_size, dtype=torch.float64)
    torch.testing.assert_close(exact.frame.H(exact.coordinates.coefficients(nodal)), nodal)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_in_low_precision_are_sums_in_float32(name, dtype):
    exact = exact_formulation("interval, LS")
    y = samples(exact.problem, 2)
    reference = reference_of(exact, y)
    low, high = make_loss(name, exact.to(dtype), reference), make_loss(name, exact, reference)
    torch.manual_seed(0)
    w = (0.1 * torch.randn(2, answer_size(low))).to(low.formulation.frame.dtype)
    found = low(w, low.batch(y.numpy(), [0, 1]))
    assert found.dtype == torch.float32
    want = high(w.double(), high.batch(y.numpy(), [0, 1]))
    torch.testing.assert_close(found.double(), want, rtol=0.05 if dtype == "bfloat16" else 0.01, atol=0)


def test_references_without_petsc_agree_with_petsc(monkeypatch):
    exact = exact_formulation("square, mixed")
    y = exact.problem.parameters.sample(3, 5)
    by_petsc = reference_solutions(exact, y, references="petsc")
    monkeypatch.setattr("training.references.has_petsc", lambda: False)
    by_frame = reference_solutions(exact, y)
    assert (by_petsc.record["reference"], by_frame.record["reference"]) == ("PETSc", "multigrid")
    np.testing.assert_allclose(by_frame.u, by_petsc.u, atol=1e-9)
    np.testing.assert_allclose(by_frame.loss, by_petsc.loss, rtol=1e-9)


def test_references_of_another_problem_are_refused():
    exact = exact_formulation("square")
    y = samples(exact.problem, 1)
    good = reference_of(exact, y)
    check_reference(exact, good)
    rolled = ReferenceSolutions(good.y, {"u": np.roll(good.u, 1, axis=1)}, good.loss)
    with pytest.raises(ValueError, match="reference solutions do not fit the frame"):
        check_reference(exact, rolled)
    short = ReferenceSolutions(good.y, {"u": good.u[:, 1:]}, good.loss)
    with pytest.raises(ValueError, match="solve them again"):
        check_reference(exact, short)


@pytest.mark.parametrize("kind", ["interval, LS", "square"])
def test_residuals_can_be_differentiated_in_y_and_w(kind):
    exact = exact_formulation(kind)
    y, w = samples(exact.problem, 2), torch.randn(2, exact.frame.frame_size, dtype=torch.float64)
    for leaf in (y.requires_grad_(), w.requires_grad_()):
        (gradient,) = torch.autograd.grad(exact.residual(w, y).square().sum(), leaf, retain_graph=True)
        assert gradient.abs().sum() > 0


def test_every_sample_of_a_reference_is_looked_at():
    exact = exact_formulation("interval, LS")
    good = reference_of(exact, samples(exact.problem, 3))
    check_reference(exact, good)
    swapped = {name: v[[0, 2, 1]] for name, v in good.fields.items()}
    for bad in (
        ReferenceSolutions(good.y, swapped, good.loss),
        ReferenceSolutions(good.y, good.fields, 1.1 * good.loss),
    ):
        with pytest.raises(ValueError, match="reference solutions do not fit the frame"):
            check_reference(exact, bad)


def test_losses_say_what_they_need():
    exact = exact_formulation("square")
    with pytest.raises(ValueError, match="loss is 'energy'; choose from stable, bpx, nodal"):
        make_loss("energy", exact)
    with pytest.raises(ValueError, match="the loss supervised needs reference solutions"):
        make_loss("supervised", exact)
