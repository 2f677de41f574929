"""The losses for training, all called as loss(w, batch) for the net's answers w (B, n).

Unsupervised losses come from the variational formulation: `stable` (DᵀC_yD), `bpx` (HᵀA_yH) and `nodal` (A_y, no
frame). Supervised losses compare with reference solutions, either by states through the frame or by nodal values.

B samples, n = Nhat frame coefficients, or N nodal values if the net returns those, K m states.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fem_frames.formulations.formulation import Formulation
from fem_frames.frame.solutions import ReferenceSolutions
from fem_frames.mesh.geometry import Floats
from fem_frames.operators.cells import Congruent
from fem_frames.operators.linear import dot
from fem_frames.problem.callbacks import calling
from fem_frames.problem.parameters import numbers
from nets.own import own_name
from training.registry import LOSSES
from training.settings import OWN

Map = Callable[[Tensor], Tensor]
OwnFunction = Callable[[Tensor, Tensor, Formulation], Tensor]


@dataclass(frozen=True, eq=False)
class Batch:
    """Parameters, and the targets of a supervised loss."""

    y: Tensor  # (B, p) in float32 or float64
    target: Tensor | None = None  # (B, ·)

    def pieces(self, size: int | None) -> list[Batch]:
        """The same samples in batches of at most this size."""
        if size is None or size >= len(self.y):
            return [self]
        targets = [None] * len(self.y) if self.target is None else self.target.split(size)
        return [Batch(y, target) for y, target in zip(self.y.split(size), targets, strict=False)]


class Loss(ABC):
    """A loss over one formulation, in its precision and on its device."""

    nodal: ClassVar[bool] = False
    """Whether nets return nodal values instead of frame coefficients."""
    supervised: ClassVar[bool] = False

    def __init__(self, formulation: Formulation) -> None:
        self.formulation = formulation

    def batch(self, y: Floats, rows: Sequence[int] | np.ndarray | None = None) -> Batch:
        """The batch for parameters y (B, p); `rows` are their places in the training set with the targets."""
        # y is not rounded to half precision: nets round it after mapping it to [-1, 1], a_y is evaluated in float32.
        wide = torch.as_tensor(y).to(self.formulation.wide)
        return Batch(wide.to(self.formulation.frame.device), self.target(rows))

    def target(self, rows: Sequence[int] | np.ndarray | None) -> Tensor | None:
        return None

    def check(self, batch: Batch) -> None:
        """Raises a ValueError if coefficient, source or target are wrong for a sample.

        Training steps skip these checks and only detect that something is wrong.
        """
        self.formulation.check_data(batch.y)
        if batch.target is not None and not torch.isfinite(batch.target).all():
            sample = int((~torch.isfinite(batch.target)).any(1).nonzero()[0, 0])
            raise ValueError(
                f"the reference solution for y = {numbers(batch.y[sample].tolist())} is not finite in "
                f"{batch.target.dtype}: solve the training set again, or use a wider precision"
            )

    @abstractmethod
    def __call__(self, w: Tensor, batch: Batch) -> Tensor:
        """(B,) losses, in float32 if w is in half precision."""

    def with_gradient(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """(B,) losses and (B, n) their gradients with respect to w, in the precision of w."""
        leaf = w.detach().requires_grad_()
        with torch.enable_grad():
            loss = self(leaf, batch)
            (gradient,) = torch.autograd.grad(loss.sum(), leaf)
        return loss.detach(), gradient

    @abstractmethod
    def curvature(self, batch: Batch, w: Tensor) -> Map:
        """The second derivative of the loss with respect to w at w (B, n), a map (B, n) to (B, n)."""


class StableLoss(Loss):
    """The functional, computed from the states Dw of cells: numerically stable in every precision."""

    def __call__(self, w: Tensor, batch: Batch) -> Tensor:
        return self.formulation.loss(w, batch.y)

    @torch.no_grad()
    def with_gradient(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        # The explicit gradient takes two thirds of the time of autograd.
        loss, residual = self.formulation.loss_and_residual(w.detach(), batch.y)
        factor = 2 * self.formulation.factor
        return loss, residual if factor == 1 else factor * residual

    def curvature(self, batch: Batch, w: Tensor) -> Map:
        return _scaled(2 * self.formulation.factor, self.formulation.curvature(w, batch.y))


class BpxLoss(Loss):
    """The same functional as a quadratic form in nodal values v = Hw: preconditioned, but not stable."""

    def __call__(self, w: Tensor, batch: Batch) -> Tensor:
        return self.formulation.nodal_loss(self.formulation.frame.H(w), batch.y)

    def curvature(self, batch: Batch, w: Tensor) -> Map:
        H = self.formulation.frame.H
        nodal = self.formulation.nodal_curvature(H(w), batch.y)
        return _scaled(2 * self.formulation.factor, Congruent(H, nodal))


class NodalLoss(Loss):
    """The quadratic form in the net's own nodal values: neither preconditioned nor stable."""

    nodal = True

    def __call__(self, w: Tensor, batch: Batch) -> Tensor:
        return self.formulation.nodal_loss(w, batch.y)

    def curvature(self, batch: Batch, w: Tensor) -> Map:
        return _scaled(2 * self.formulation.factor, self.formulation.nodal_curvature(w, batch.y))


class SupervisedLoss(Loss):
    """‖D w - states of u_ref‖²: regression in a norm equivalent to the norm of U, preconditioned and stable.

    For (E) it is ‖∇(u - u_ref)‖²; (LS) adds the flux at the cells' centres and its divergence.
    """

    supervised = True

    def __init__(self, formulation: Formulation, reference: ReferenceSolutions) -> None:
        super().__init__(formulation)
        frame = formulation.frame
        self._targets = self.targets(_exact(formulation), reference).to(frame.device, frame.dtype)

    def targets(self, exact: Formulation, reference: ReferenceSolutions) -> Tensor:
        """(samples, ·) the targets of the whole training set, in float64."""
        return exact.nodal_differential(exact.coordinates.free(reference.fields, exact.frame.device, reference.y))

    def target(self, rows: Sequence[int] | np.ndarray | None) -> Tensor | None:
        assert rows is not None, "a supervised loss needs a fixed set of samples"
        return self._targets[torch.as_tensor(rows)]

    def __call__(self, w: Tensor, batch: Batch) -> Tensor:
        assert batch.target is not None
        off = self.predicted(w) - batch.target
        return dot(off, off)

    def predicted(self, w: Tensor) -> Tensor:
        """(B, ·) the prediction that is compared with the target."""
        return self.formulation.frame.D(w)

    def curvature(self, batch: Batch, w: Tensor) -> Map:
        D = self.formulation.frame.D
        return lambda z: 2 * D.T(D(z))


class SupervisedNodalLoss(SupervisedLoss):
    """‖v - v_ref‖² for the net's own nodal values v, for comparison."""

    nodal = True

    def targets(self, exact: Formulation, reference: ReferenceSolutions) -> Tensor:
        return exact.coordinates.free(reference.fields, exact.frame.device, reference.y)

    def predicted(self, w: Tensor) -> Tensor:
        return w

    def curvature(self, batch: Batch, w: Tensor) -> Map:
        return lambda z: 2 * z


class FunctionLoss(Loss):
    """The loss of a user's function (w, y, formulation) ↦ (B,), differentiated by autograd."""

    def __init__(self, formulation: Formulation, function: OwnFunction) -> None:
        super().__init__(formulation)
        self._function = function

    def __call__(self, w: Tensor, batch: Batch) -> Tensor:
        name = f"your loss {own_name(self._function)}"
        with calling(name, self._function):
            found = self._function(w, batch.y, self.formulation)
        if not isinstance(found, Tensor) or found.shape != (len(w),):
            came = f"the shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
            raise ValueError(f"{name} gives {came}; a tensor of shape ({len(w)},) is expected, one loss per sample")
        if w.requires_grad and not found.requires_grad:
            raise ValueError(f"{name} does not depend on the coefficients w through autograd, so it cannot be trained")
        return found.to(self.formulation.wide)

    def curvature(self, batch: Batch, w: Tensor) -> Map:
        raise ValueError(NO_CURVATURE)


NO_CURVATURE = (
    "the optimizer ngd needs the second derivative of the loss, which a function does not have: use adam, soap or lbfgs"
)


def loss_kind(name: str) -> type[Loss]:
    """The class of the loss with this name; FunctionLoss for "own"."""
    return FunctionLoss if name == OWN else LOSSES.find(name)


def make_loss(name: str, formulation: Formulation, reference: ReferenceSolutions | None = None) -> Loss:
    """The loss with this name; supervised losses take reference solutions for the training set."""
    kind = LOSSES.find(name)
    if not issubclass(kind, SupervisedLoss):
        return kind(formulation)
    if reference is None:
        raise ValueError(f"the loss {name} needs reference solutions for a fixed set of samples")
    return kind(formulation, reference)


def _exact(formulation: Formulation) -> Formulation:
    return formulation if formulation.frame.dtype == torch.float64 else formulation.to(torch.float64, "cpu")


def _scaled(factor: float, operator: Map) -> Map:
    return operator if factor == 1 else lambda z: factor * operator(z)
