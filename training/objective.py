"""The objective of one step: mean loss over a batch, its gradient, Gauss-Newton products, summed over all processes.

Optimizers see only the objective, so precision, the number of processes and the splitting of batches into pieces are
decided here and nowhere else.

B samples of all processes together, P parameters of the net, n outputs of the net.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, jvp

from fem_frames.operators.checking import unchecked
from fem_frames.operators.products import accumulation_dtype
from nets.frame_net import FrameNet
from training.losses import Batch, Loss
from training.precision import Weights
from training.run.distributed import GradientMessage, World


class Objective:
    """Maps θ to the mean loss of the batch that `take` sets; a call leaves the gradient in `weights.vector.grad`.

    With `micro_batch`, this process's share of the batch is evaluated in pieces of at most that many samples, whose
    losses and gradients are added: only one piece is in memory, and the step is the same up to rounding.
    """

    def __init__(
        self,
        net: FrameNet,
        loss: Loss,
        weights: Weights,
        world: World | None = None,
        micro_batch: int | None = None,
    ) -> None:
        self.net, self.loss, self.weights, self.world = net, loss, weights, world or World()
        self.asked_to_stop = False
        """Whether this process was asked to stop; it tells the others with its next gradient."""
        self._inner = {name: p for name, p in net.named_parameters() if p.requires_grad}
        self._wide = accumulation_dtype(next(iter(self._inner.values())).dtype)
        self._half = self._wide != next(iter(self._inner.values())).dtype
        self._micro_batch = micro_batch
        self._batch: Batch | None = None
        self._pieces: list[Batch] = []
        self._count = 0
        self._message = GradientMessage(self.world)
        self._seen: tuple[Tensor, bool] | None = None
        self._seed: tuple[int, ...] | None = None

    def take(self, batch: Batch, count: int, seed: tuple[int, ...] | None = None) -> None:
        """Sets this process's share of a batch of `count` samples.

        With a `seed`, net and loss draw the same random numbers, for dropout say, in all evaluations of the batch.
        """
        self._batch, self._pieces, self._count = batch, batch.pieces(self._micro_batch), count
        self._seed = seed

    def _answers(self, piece: Batch) -> Tensor:
        """(B, n) the net's answers for a piece of the batch."""
        self._draw_as_before(piece)
        found: Tensor = self.net(piece.y)
        return found

    def _draw_as_before(self, piece: Batch) -> None:
        if self._seed is not None:
            number = next(i for i, known in enumerate(self._pieces) if known is piece)
            torch.manual_seed(int(np.random.SeedSequence((*self._seed, number)).generate_state(1)[0]))

    def __call__(self) -> Tensor:
        """The mean loss, a number in the wide precision; except in half precision nothing waits for the device.

        It is NaN if a_y is not positive and finite for a sample of the batch.
        """
        self.weights.push()
        if not self._half:
            return self._evaluate(1 / self._count)
        # Half precision divides by B last: gradients of single samples divided by B would underflow.
        loss = self._evaluate(self.weights.scale)
        if not self.weights.scales and not self.finite(loss):
            loss = self._evaluate(1 / self._count)  # their sum overflows
        return loss

    @torch.enable_grad()
    def _evaluate(self, before: float) -> Tensor:
        """The mean loss; gradients of samples are multiplied by `before` in the backward pass."""
        gradient = self.weights.vector.grad
        assert gradient is not None
        factor = 1 / (before * self._count) if self._half else 1.0
        loss, tests = self._backward(self._pieces[0], before)
        self.weights.pull(factor)
        if len(self._pieces) > 1:
            total = gradient.to(self._wide, copy=True)  # sums are in the wide precision, rounded once
            for piece in self._pieces[1:]:
                more, more_tests = self._backward(piece, before)
                self.weights.pull(factor)
                loss, tests = loss + more, tests + more_tests
                total.add_(gradient)
            gradient.copy_(total)
        loss = loss / self._count
        for test in tests:
            loss = torch.where(test, loss, torch.nan)  # the loss tells all processes
        return self._message.add(loss, gradient, self.asked_to_stop)

    def _backward(self, piece: Batch, before: float) -> tuple[Tensor, list[Tensor]]:
        """The sum of losses and the postponed tests of a_y; leaves gradients in the net's parameters."""
        for p in self._inner.values():
            p.grad = None
        with unchecked() as tests:
            w = self._answers(piece)
            losses, gradient = self.loss.with_gradient(w, piece)
            w.backward(gradient if before == 1 else gradient.mul_(before))
        return losses.sum(), tests

    def finite(self, loss: Tensor) -> bool:
        """Whether loss and gradient are finite; only this part of a step waits for the device."""
        if self._seen is None or self._seen[0] is not loss:
            assert self.weights.vector.grad is not None
            total = self.weights.vector.grad.sum(dtype=self._wide) + loss
            self._seen = (loss, math.isfinite(self._message.read(total)))
        return self._seen[1]

    @property
    def stopping(self) -> bool:
        """Whether any process was asked to stop before its last gradient; the same answer in all processes."""
        return self.asked_to_stop if self.world.size == 1 else self._message.stopping

    def gradient(self) -> Tensor:
        """(P,) the gradient, in the wide precision."""
        assert self.weights.vector.grad is not None
        return self.weights.vector.grad.to(self._wide, copy=True)

    def gauss_newton(self) -> Callable[[Tensor], Tensor]:
        """v ↦ 1/B Σ Jᵀ M_y J v for v (P,), with J the derivative of the net and M_y the curvature of the loss."""
        pieces, count = self._pieces, self._count
        self.weights.push()
        shapes = [p.shape for p in self._inner.values()]
        # One piece is linearised once; several are linearised in each product, so only one is in memory.
        kept = self._linearised(pieces[0]) if len(pieces) == 1 else None

        def product(v: Tensor) -> Tensor:
            size = v.norm()  # normalised: J v must not overflow in half precision
            parts = (v / torch.where(size > 0, size, 1.0)).split([s.numel() for s in shapes])
            tangents = {
                name: part.view(shape).to(p.dtype)
                for (name, p), part, shape in zip(self._inner.items(), parts, shapes, strict=True)
            }
            flat = (kept or self._linearised(pieces[0]))(tangents).to(v.dtype)
            for piece in pieces[1:]:
                flat = flat + self._linearised(piece)(tangents).to(v.dtype)
            return self.world.add(flat * (size / count))

        return product

    def _linearised(self, piece: Batch) -> Callable[[dict[str, Tensor]], Tensor]:
        """Maps tangents v of the parameters to Σ Jᵀ M_y J v (P,), summed over the samples of a piece."""
        inner = list(self._inner.values())
        with torch.enable_grad(), unchecked():
            w = self._answers(piece)
            M = self.loss.curvature(piece, w.detach())

        def product(tangents: dict[str, Tensor]) -> Tensor:
            primals = {name: p.detach() for name, p in self._inner.items()}
            self._draw_as_before(piece)
            with unchecked():
                change = jvp(lambda p: functional_call(self.net, p, (piece.y,)), (primals,), (tangents,))[1]
                back = torch.autograd.grad(
                    w, inner, M(change), retain_graph=True, allow_unused=True, materialize_grads=True
                )
            return torch.cat([g.reshape(-1) for g in back])

        return product
