"""Conjugate gradients for batches of y, and frame coefficients of solutions to full accuracy in any precision.

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

from fem_frames.formulations.formulation import Formulation
from fem_frames.operators.frame import check_dtype
from fem_frames.operators.linear import LinearOperator, dot
from fem_frames.problem.definition import whole_number

# REACHABLE: the relative residual that one run of conjugate gradients reliably reaches; refinement does the rest.
PATIENCE = 50  # iterations without a smaller residual; a well-conditioned matrix needs fewer
ROUNDINGS = 4  # errors of sums, in units of the last place of the sizes that are summed
CANCELLATION = 100  # a load that is smaller than its parts by this factor has rounding errors that matter
REACHABLE = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-1}


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


@dataclass(frozen=True, eq=False)
class Solution:
    """Frame coefficients of the discrete solutions."""

    w: Tensor  # (B, Nhat)
    iterations: Tensor  # (B,) of conjugate gradients, summed over all refinements
    residual: Tensor  # (B,) ‖load - DᵀC_yD w‖ / ‖load‖, recomputed from w
    refinements: int


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
    if until is not None:
        active = active & ~until(torch.zeros_like(b))
    for _ in range(max_iterations):
        if not active.any():
            break
        product = M(p)
        curvature = dot(p, product)
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
    return Iterates((best * (size * largest)).to(dtype), iterations, least.sqrt())


def solve(
    formulation: Formulation,
    y: Tensor,
    tol: float = 1e-10,
    *,
    refine: torch.dtype | str | None = torch.float64,
    max_iterations: int = 1000,
) -> Solution:
    """Frame coefficients of the discrete solutions for y (B, p), by conjugate gradients on DᵀC_yD.

    The iteration runs in the formulation's precision. Residuals and sums of corrections use `refine`, float64 or
    float32, so that even float16 reaches the tolerance; None keeps the formulation's own precision.
    See docs/formulations.md.
    """
    y = formulation.check_parameters(y)
    max_iterations = whole_number(max_iterations, "max_iterations")
    wide = _check_accuracy(formulation.frame.dtype, tol, refine)
    exact = formulation if wide == formulation.frame.dtype else formulation.to(wide)
    y_exact, low = y.to(wide), formulation.stable(y)
    exact.check_density(y_exact)
    load = exact.load(y_exact)
    size, rounding = dot(load, load).sqrt(), _rounding(exact, y_exact, load)  # (B,)
    w, iterations = torch.zeros_like(load), torch.zeros(len(y), dtype=torch.int64, device=y.device)
    residual, relative, refinements = load, _relative(load, size, rounding), 0
    while (relative > tol).any():
        # Scaled to norm one, because the residual itself is too small for half precision.
        b = torch.where((relative > tol)[:, None], residual, 0.0)
        norm = dot(b, b).sqrt().clamp_min(torch.finfo(wide).tiny)[:, None].to(wide)
        inner = (0.5 * tol / relative.clamp_min(tol)).clamp_min(REACHABLE[formulation.frame.dtype])
        # float64 rounds little, but residuals on flat cells or large domains may rise for long before they fall.
        patience = 10 * PATIENCE if formulation.frame.dtype == torch.float64 else PATIENCE
        found = conjugate_gradients(low, (b / norm).to(formulation.frame.dtype), inner, max_iterations, patience)
        iterations += found.iterations
        refinements += 1
        trial = w + norm * found.x.to(wide)
        trial_residual = -exact.residual(trial, y_exact)
        trial_relative = _relative(trial_residual, size, rounding)
        better = trial_relative < relative
        stuck = (relative > tol) & ~(trial_relative < 0.5 * relative) & ~(trial_relative <= tol)
        w, residual = (torch.where(better[:, None], new, old) for new, old in ((trial, w), (trial_residual, residual)))
        relative = torch.where(better, trial_relative, relative)
        if stuck.any():
            sample = int(stuck.nonzero()[0, 0])
            advice = "try refine='float64'" if wide != torch.float64 else "try a larger tol, or a wider dtype"
            if formulation.frame.dtype == torch.float64:
                advice = "try a larger tol, more max_iterations, or a domain of size about one without flat cells"
            raise ConvergenceError(
                f"sample {sample} stays at a relative residual of {float(relative[sample]):.1e} after "
                f"{int(iterations[sample])} iterations, tol is {tol:.1e}; {advice}",
                Solution(w, iterations, relative, refinements),
            )
    return Solution(w, iterations, relative, refinements)


def _check_accuracy(dtype: torch.dtype, tol: float, refine: torch.dtype | str | None) -> torch.dtype:
    """The dtype of the refinement, or a ValueError for a bad tolerance or a narrower dtype."""
    if not isinstance(tol, float | int) or not 0 < tol < 1:
        raise ValueError(f"tol is {tol}; give a relative residual between 0 and 1")
    wide = dtype if refine is None else check_dtype(refine)
    if torch.finfo(wide).eps > torch.finfo(dtype).eps:
        raise ValueError(f"refining {dtype} in {wide} would lose digits: use refine='float64' or None")
    return wide


def _relative(r: Tensor, size: Tensor, rounding: Tensor) -> Tensor:
    """(B,) ‖r‖ / size, and zero where r is nothing but rounding errors."""
    norm = dot(r, r).sqrt()
    return torch.where((size > 0) & (norm > rounding), norm / size, 0.0)


def _rounding(formulation: Formulation, y: Tensor, load: Tensor) -> Tensor:
    """(B,) the size of rounding errors in a load whose parts cancel; zero for other loads.

    Where the lift is nearly the solution, as for -Δu = 0 between two given values, the residual of w = 0 is already as
    small as rounding allows, and no relative residual can be reached.
    """
    states, functional = formulation.state_load(y), formulation.frame_functional(y)
    parts = dot(states, states).sqrt() + dot(functional, functional).sqrt()
    cancels = parts > CANCELLATION * dot(load, load).sqrt()
    return torch.where(cancels, ROUNDINGS * torch.finfo(formulation.frame.dtype).eps * parts, 0.0)
