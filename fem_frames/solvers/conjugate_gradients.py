"""Conjugate gradients for batches of y.

DᵀC_yD is well conditioned on every mesh, so conjugate gradients need a number of iterations that does not grow with J.
It is singular because a frame is redundant, but the load lies in its range, and so do all iterates.

B samples, n unknowns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fem_frames.operators.linear import LinearOperator, dot

PATIENCE = 50  # iterations without a smaller residual; a well-conditioned matrix needs fewer


class ConvergenceError(RuntimeError):
    """An iteration did not reach its tolerance; `reached` holds the best result so far."""

    def __init__(self, message: str, reached: Any = None) -> None:
        super().__init__(message)
        self.reached = reached


@dataclass(frozen=True, eq=False)
class Iterates:
    """The result of conjugate gradients."""

    x: Tensor  # (B, n)
    iterations: Tensor  # (B,) until each sample's own residual was small enough
    residual: Tensor  # (B,) ‖b - M x‖ / ‖b‖ from the recurrence, which does not see rounding errors
    negative: Tensor  # (B,) whether a direction without positive curvature ended the iteration


def conjugate_gradients(
    M: LinearOperator,
    b: Tensor,
    tol: float | Tensor,
    max_iterations: int = 1000,
    patience: int | None = None,
    until: Callable[[Tensor], Tensor] | None = None,
) -> Iterates:
    """Solves M x = b for b (B, n), each sample until its relative residual is below tol.

    A sample also stops after `patience` iterations without a smaller residual, a sign of rounding if M is well
    conditioned. The result is the iterate with the smallest residual. `until` maps iterates x (B, n) to (B,), which is
    true where x is already good enough. See docs/formulations.md.
    """
    M.check(b, M.shape[1])
    if b.ndim != 2 or not torch.isfinite(b).all():
        raise ValueError(f"b has shape {tuple(b.shape)}: finite right-hand sides (B, n) are expected")
    if not (torch.as_tensor(tol) > 0).all():
        raise ValueError(f"tol is {tol}; a positive relative residual is expected")
    dtype = b.dtype
    # Scaled to norm one, because squares of very small or large numbers leave the range of float32.
    largest = b.abs().amax(1, keepdim=True)
    scaled = torch.where(largest > 0, b / largest, 0.0)
    size = dot(scaled, scaled).sqrt()[:, None]
    r = torch.where(size > 0, scaled / size, 0.0).to(dtype)
    x = best = torch.zeros_like(r)
    p, square = r, dot(r, r)  # (B,) in the wide precision
    goal = torch.as_tensor(tol, dtype=square.dtype, device=b.device) ** 2
    least, idle = square, torch.zeros(len(b), dtype=torch.int64, device=b.device)
    active, iterations = square > goal, torch.zeros_like(idle)
    negative = torch.zeros_like(active)
    if until is not None:
        active = active & ~until(torch.zeros_like(b))
    for _ in range(max_iterations):
        if not active.any():
            break
        product = M(p)
        curvature = dot(p, product)
        negative |= active & (curvature <= 0)
        active = active & (curvature > 0) & torch.isfinite(curvature)  # otherwise rounding dominates
        step = torch.where(active, square / curvature, 0.0)[:, None]
        x = (x + step * p).to(dtype)
        r = (r - step * torch.where(active[:, None], product, 0.0)).to(dtype)
        new = dot(r, r)
        p = (r + torch.where(active, new / square, 0.0)[:, None] * p).to(dtype)
        square = torch.where(active, new, square)
        iterations += active
        better = active & (square < least)
        best, least = torch.where(better[:, None], x, best), torch.where(better, square, least)
        idle = torch.where(better, 0, idle + 1)
        active = active & (square > goal) & torch.isfinite(square)
        active = active if patience is None else active & (idle < patience)
        if until is not None:
            good = until((x * (size * largest)).to(dtype))
            best = torch.where((good & active)[:, None], x, best)
            active = active & ~good
    return Iterates((best * (size * largest)).to(dtype), iterations, least.sqrt(), negative)
