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
from fem_frames.rows import accumulation_dtype
from nets import CoefficientNet
from training.distributed import World
from training.losses import Batch, Loss
from training.precision import Weights


class Objective:
    """θ to the mean loss of a batch, which `take` sets; calling it leaves gradients at `weights.parameters`."""

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

    @torch.enable_grad()
    def __call__(self) -> Tensor:
        """The mean loss, a number in the wide precision; nothing waits for the device."""
        assert self._batch is not None
        self.weights.push()
        for p in self._inner.values():
            p.grad = None
        # In half precision the mean is taken last: divided by B before, gradients of single samples would vanish.
        before = self.weights.scale if self._half else 1 / self._count
        with unchecked():
            loss = self.loss(self.net(self._batch.y), self._batch).sum()
            (loss * before).backward()
        self.weights.pull(1 / (before * self._count) if self._half else 1.0)
        return self._reduce(loss.detach() / self._count)

    def finite(self, loss: Tensor) -> bool:
        """Whether loss and gradient are finite: the one thing in a step that waits for the device."""
        return bool(torch.isfinite(torch.stack([*torch._foreach_norm(self._gradients()), loss]).sum()))

    def gradient(self) -> Tensor:
        """(P,) the gradient, in the wide precision."""
        return torch.cat([g.reshape(-1) for g in self._gradients()]).to(self._wide)

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
                back = torch.autograd.grad(w, inner, M(change), retain_graph=True)
            flat = torch.cat([g.reshape(-1) for g in back]).to(v.dtype)
            return self.world.add(flat * (size / count))

        return product

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self.weights.parameters if p.grad is not None]

    def _reduce(self, loss: Tensor) -> Tensor:
        """Sums loss and gradients over the processes, in one message."""
        if self.world.size == 1:
            return loss
        gradients = self._gradients()
        sizes = [g.numel() for g in gradients]
        if self._buffer is None:
            self._buffer = torch.empty(sum(sizes) + 1, dtype=self._wide, device=loss.device)
        *pieces, last = self._buffer.split([*sizes, 1])
        shaped = [piece.view(g.shape) for piece, g in zip(pieces, gradients, strict=True)]
        torch._foreach_copy_([*shaped, last], [*gradients, loss.view(1)])
        self.world.add(self._buffer)
        torch._foreach_copy_(gradients, shaped)
        return last[0].clone()
