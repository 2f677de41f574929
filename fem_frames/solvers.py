"""Conjugate gradients for batches of y, and solutions in frame coordinates to full accuracy from any precision.

DᵀC_yD is well conditioned on every mesh, so plain conjugate gradients need a number of iterations that does not grow
with J; it is singular, as a frame is redundant, but the load is in its range and so are all iterates.

B samples, n unknowns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fem_frames.formulations import Formulation
from fem_frames.frame import check_dtype
from fem_frames.operators import LinearOperator, dot

# Relative residual that one run of conjugate gradients can be trusted with; refinement does the rest.
REACHABLE = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-1}


class ConvergenceError(RuntimeError):
    """An iteration did not reach its tolerance."""


@dataclass(frozen=True, eq=False)
class Iterates:
    """What conjugate gradients found."""

    x: Tensor  # (B, n)
    iterations: Tensor  # (B,) until each sample's own residual was small enough
    residual: Tensor  # (B,) ‖b - M x‖ / ‖b‖ as the recurrence has it; what rounding adds it does not see


@dataclass(frozen=True, eq=False)
class Solution:
    """Frame coefficients of the discrete solutions."""

    w: Tensor  # (B, Nhat)
    iterations: Tensor  # (B,) of conjugate gradients, in all refinements together
    residual: Tensor  # (B,) ‖load - DᵀC_yD w‖ / ‖load‖, evaluated afresh
    refinements: int


def conjugate_gradients(M: LinearOperator, b: Tensor, tol: float | Tensor, max_iterations: int = 1000) -> Iterates:
    """Solves M x = b for b (B, n), each sample until its relative residual is below tol, or it cannot fall further."""
    dtype = b.dtype
    x, r = torch.zeros_like(b), b
    p = r
    square = dot(r, r)  # (B,) in the wide precision
    start = square.clone()
    goal = start * torch.as_tensor(tol, dtype=start.dtype, device=b.device) ** 2
    active = square > goal
    iterations = torch.zeros(len(b), dtype=torch.int64, device=b.device)
    for _ in range(max_iterations):
        if not active.any():
            break
        product = M(p)
        curvature = dot(p, product)
        active = active & (curvature > 0) & torch.isfinite(curvature)  # otherwise rounding has won
        step = torch.where(active, square / curvature, 0.0)[:, None]
        x = (x + step * p).to(dtype)
        r = (r - step * torch.where(active[:, None], product, 0.0)).to(dtype)
        new = dot(r, r)
        p = (r + torch.where(active, new / square, 0.0)[:, None] * p).to(dtype)
        square = torch.where(active, new, square)
        iterations += active
        active = active & (square > goal)
    residual = torch.where(start > 0, square / start, 0.0).sqrt()
    return Iterates(x, iterations, residual)


def solve(
    formulation: Formulation,
    y: Tensor,
    tol: float = 1e-10,
    *,
    refine: torch.dtype | str | None = torch.float64,
    max_iterations: int = 1000,
) -> Solution:
    """Frame coefficients of the discrete solutions for y (B, p), by conjugate gradients on DᵀC_yD.

    They run in the formulation's precision. Residuals are evaluated and corrections summed in `refine`, float64 or
    float32, so that also float16 reaches the tolerance; None stays in the formulation's own precision.
    """
    y = formulation.check_parameters(y)
    if not 0 < tol < 1:
        raise ValueError(f"tol is {tol}; give a relative residual between 0 and 1")
    wide = formulation.frame.dtype if refine is None else check_dtype(refine)
    if torch.finfo(wide).eps > torch.finfo(formulation.frame.dtype).eps:
        raise ValueError(
            f"refining {formulation.frame.dtype} in {wide} would lose digits: use refine='float64' or None"
        )
    exact = formulation if wide == formulation.frame.dtype else formulation.to(wide)
    y_exact, low = y.to(wide), formulation.stable(y)
    load = exact.load(y_exact)
    size = dot(load, load).sqrt()  # (B,)
    w, iterations = torch.zeros_like(load), torch.zeros(len(y), dtype=torch.int64, device=y.device)
    relative, refinements = _relative(load, size), 0
    while (relative > tol).any():
        # Scaled to norm one: what is left is too small for half precision as it is.
        b = torch.where((relative > tol)[:, None], residual_of(exact, w, y_exact, load), 0.0)
        norm = dot(b, b).sqrt().clamp_min(torch.finfo(wide).tiny)[:, None].to(wide)
        inner = (0.5 * tol / relative.clamp_min(tol)).clamp_min(REACHABLE[formulation.frame.dtype])
        found = conjugate_gradients(low, (b / norm).to(formulation.frame.dtype), inner, max_iterations)
        # At the limits of precision b may leave the range of the singular matrix, and iterates then grow without bound.
        correction = torch.where(found.x.isfinite().all(1, keepdim=True), found.x, 0.0)
        w = w + norm * correction.to(wide)
        iterations += found.iterations
        before, relative = relative, _relative(residual_of(exact, w, y_exact, load), size)
        refinements += 1
        stuck = (relative > tol) & ~(relative < 0.5 * before)
        if stuck.any():
            sample = int(stuck.nonzero()[0, 0])
            raise ConvergenceError(
                f"sample {sample} stays at a relative residual of {float(relative[sample]):.1e} after "
                f"{int(iterations[sample])} iterations, tol is {tol:.1e}; "
                + ("try refine='float64'" if wide != torch.float64 else "try a larger tol or more iterations")
            )
    return Solution(w, iterations, relative, refinements)


def residual_of(formulation: Formulation, w: Tensor, y: Tensor, load: Tensor) -> Tensor:
    """(B, Nhat) load - DᵀC_yD w; at w = 0 the load itself, which needs no work."""
    return -formulation.residual(w, y) if (w != 0).any() else load


def _relative(r: Tensor, size: Tensor) -> Tensor:
    return torch.where(size > 0, dot(r, r).sqrt() / size, 0.0)
