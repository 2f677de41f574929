"""Solutions that are differentiable in y: the backward pass is one adjoint solve, by implicit differentiation.

r(w, y) = DᵀC_yD w - load_y vanishes at the solution, so gᵀ ∂w/∂y = -λᵀ ∂r/∂y with DᵀC_yD λ = g. The matrix is symmetric
and its kernel does not depend on y: the frame is redundant, but in the same way for every y.

B samples, Nhat frame coefficients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fem_frames.formulations.formulation import Formulation
from fem_frames.operators.linear import LinearOperator, dot
from fem_frames.solvers.conjugate_gradients import PATIENCE, ConvergenceError, conjugate_gradients, solve


@torch.no_grad()
def solve_linear(
    formulation: Formulation, y: Tensor, b: Tensor, tol: float = 1e-10, max_iterations: int = 1000
) -> Tensor:
    """(B, Nhat) λ with DᵀC_yD λ = b up to the relative residual tol, for y (B, p) and b (B, Nhat).

    Functionals of u lie in the range of DᵀC_yD. Another b is projected onto the range first, by one more solve.
    See docs/surrogates.md.
    """
    if not isinstance(tol, float | int) or not 0 < tol < 1:
        raise ValueError(f"tol is {tol}; give a relative residual between 0 and 1")
    y = formulation.check_parameters(y)
    if b.ndim != 2 or len(b) != len(y):
        raise ValueError(f"b has shape {tuple(b.shape)} for {len(y)} samples y: pass one right-hand side per sample")
    M = formulation.stable(y)
    x, off = _iterate(M, b, tol, max_iterations)
    if bool((off > tol).any()):
        projected, _ = _iterate(M, M(b), tol, max_iterations)
        inside = torch.where((off > tol)[:, None], projected, b)
        x, off = _iterate(M, inside, tol, max_iterations)
        # What is outside the range has now been removed up to tol times the condition number, not more exactly.
        if bool((off > 1e3 * tol).any()):
            sample = int((off > 1e3 * tol).nonzero()[0, 0])
            raise ConvergenceError(
                f"the linear system of sample {sample} stays at a relative residual of {float(off[sample]):.1e}, "
                f"tol is {tol:.1e}; try a larger tol, more max_iterations, or float64",
                x,
            )
    return x


def _iterate(M: LinearOperator, b: Tensor, tol: float, max_iterations: int) -> tuple[Tensor, Tensor]:
    """Conjugate gradients, started again once from the true residual, and (B,) the true relative residual."""
    size = dot(b, b).sqrt()
    x, r = torch.zeros_like(b), b
    off = torch.where(size > 0, 1.0, 0.0)
    for _ in range(2):
        wanted = (0.5 * tol / off.clamp_min(tol)).clamp_min(1e-15)
        x = x + conjugate_gradients(M, r, wanted, max_iterations, 10 * PATIENCE).x
        r = b - M(x)
        off = torch.where(size > 0, dot(r, r).sqrt() / size, 0.0)
        if bool((off <= tol).all()):
            break
    return x, off


class _Solve(torch.autograd.Function):
    """y to the frame coefficients of the solution."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, formulation: Formulation, tol: float) -> Tensor:
        w = solve(formulation, y.detach(), tol, refine=None).w
        ctx.formulation, ctx.tol = formulation, tol
        ctx.save_for_backward(y, w)
        return w

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        y, w = ctx.saved_tensors
        dual = solve_linear(ctx.formulation, y.detach(), gradient.contiguous(), ctx.tol)
        with torch.enable_grad():
            free = y.detach().requires_grad_()
            residual = ctx.formulation.residual(w.detach(), free)
            if not residual.requires_grad:
                return torch.zeros_like(y), None, None
            found = torch.autograd.grad(residual, free, -dual, allow_unused=True)[0]
        return torch.zeros_like(y) if found is None else found, None, None


def differentiable_solve(formulation: Formulation, y: Tensor, tol: float = 1e-10) -> Tensor:
    """(B, Nhat) frame coefficients of the discrete solutions, like `solve`, with gradients in y (B, p).

    One solve forward, one adjoint solve backward, whatever the number of parameters. Gradients in y of outputs come by
    autograd: `OutputMap(formulation, outputs).values(differentiable_solve(formulation, y), y)`. The coefficient, the
    source and boundary data must be differentiable in y; a coefficient that jumps where y moves has no such gradient.
    See docs/surrogates.md.
    """
    if formulation.frame.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"gradients need float32 or float64, the frame is in {formulation.frame.dtype}: convert it")
    made: Tensor = _Solve.apply(formulation.check_parameters(y), formulation, tol)
    return made
