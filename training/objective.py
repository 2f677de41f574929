"""The objective of one step: mean loss over a batch, its gradient, Gauss-Newton products, summed over all processes.

All optimizers see the objective alone, so that precision and the number of processes are decided here and nowhere else.

B samples of all processes together, P parameters of the net, n numbers that it gives.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call, jvp

from fem_frames.operators import unchecked
from fem_frames.products import accumulation_dtype
from nets import CoefficientNet
from training.distributed import World
from training.losses import Batch, Loss
from training.precision import Weights


class Objective:
    """θ to the mean loss of a batch, which `take` sets; calling it leaves the gradient at `weights.vector`."""

    def __init__(self, net: CoefficientNet, loss: Loss, weights: Weights, world: World | None = None) -> None:
        self.net, self.loss, self.weights, self.world = net, loss, weights, world or World()
        self._inner = dict(net.named_parameters())
        self._wide = accumulation_dtype(next(iter(self._inner.values())).dtype)
        self._half = self._wide != next(iter(self._inner.values())).dtype
        self._batch: Batch | None = None
        self._count = 0
        self._buffer: Tensor | None = None

    def take(self, batch: Batch, count: int) -> None:
        """This process's share of a batch of `count` samples."""
        self._batch, self._count = batch, count

    def __call__(self) -> Tensor:
        """The mean loss, a number in the wide precision; outside half precision nothing waits for the device."""
        self.weights.push()
        if not self._half:
            return self._evaluate(1 / self._count)
        # In half precision the mean is taken last: divided by B before, gradients of single samples would vanish.
        loss = self._evaluate(self.weights.scale)
        if not self.weights.scales and not self.finite(loss):
            loss = self._evaluate(1 / self._count)  # unless their sum is too large
        return loss

    @torch.enable_grad()
    def _evaluate(self, before: float) -> Tensor:
        """With gradients of samples that are multiplied by `before` on the way back."""
        assert self._batch is not None
        for p in self._inner.values():
            p.grad = None
        with unchecked():
            w = self.net(self._batch.y)
            losses, gradient = self.loss.with_gradient(w, self._batch)
            w.backward(gradient if before == 1 else gradient.mul_(before))
        self.weights.pull(1 / (before * self._count) if self._half else 1.0)
        return self._reduce(losses.sum() / self._count)

    def finite(self, loss: Tensor) -> bool:
        """Whether loss and gradient are finite: the one thing in a step that waits for the device."""
        assert self.weights.vector.grad is not None
        return bool(torch.isfinite(self.weights.vector.grad.sum(dtype=self._wide) + loss))

    def gradient(self) -> Tensor:
        """(P,) the gradient, in the wide precision."""
        assert self.weights.vector.grad is not None
        return self.weights.vector.grad.to(self._wide, copy=True)

    def gauss_newton(self) -> Callable[[Tensor], Tensor]:
        """v ↦ 1/B Σ Jᵀ M_y J v for v (P,), J the derivative of the net, M_y the second one of the loss in w."""
        assert self._batch is not None
        y, count = self._batch.y, self._count
        self.weights.push()
        inner = list(self._inner.values())
        shapes = [p.shape for p in inner]
        with torch.enable_grad(), unchecked():
            w = self.net(y)
            M = self.loss.curvature(self._batch)

        def product(v: Tensor) -> Tensor:
            size = v.norm()  # in half precision J v is computed for v of norm one
            pieces = (v / torch.where(size > 0, size, 1.0)).split([s.numel() for s in shapes])
            tangents = {
                name: piece.view(shape).to(p.dtype)
                for (name, p), piece, shape in zip(self._inner.items(), pieces, shapes, strict=True)
            }
            primals = {name: p.detach() for name, p in self._inner.items()}
            with unchecked():
                change = jvp(lambda p: functional_call(self.net, p, (y,)), (primals,), (tangents,))[1]
                back = torch.autograd.grad(
                    w, inner, M(change), retain_graph=True, allow_unused=True, materialize_grads=True
                )
            flat = torch.cat([g.reshape(-1) for g in back]).to(v.dtype)
            return self.world.add(flat * (size / count))

        return product

    def _reduce(self, loss: Tensor) -> Tensor:
        """Sums loss and gradient over the processes, in one message."""
        if self.world.size == 1:
            return loss
        gradient = self.weights.vector.grad
        assert gradient is not None
        if self._buffer is None:
            self._buffer = torch.empty(len(gradient) + 1, dtype=self._wide, device=loss.device)
        self._buffer[:-1].copy_(gradient)
        self._buffer[-1] = loss
        self.world.add(self._buffer)
        gradient.copy_(self._buffer[:-1])
        return self._buffer[-1].clone()
