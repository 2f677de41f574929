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
from fem_frames.solvers.solution import solve, solve_linear


class _Solve(torch.autograd.Function):
    """y to the frame coefficients of the solution."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, formulation: Formulation, tol: float, w: Tensor | None) -> Tensor:
        if w is None:
            w = solve(formulation, y.detach(), tol, refine=None).w
        ctx.formulation, ctx.tol = formulation, tol
        ctx.save_for_backward(y, w)
        return w

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        y, w = ctx.saved_tensors
        dual = solve_linear(ctx.formulation, y.detach(), gradient.contiguous(), ctx.tol).w.to(gradient)
        with torch.enable_grad():
            free = y.detach().requires_grad_()
            residual = ctx.formulation.residual(w.detach(), free)
            if not residual.requires_grad:
                return torch.zeros_like(y), None, None, None
            found = torch.autograd.grad(residual, free, -dual, allow_unused=True)[0]
        return torch.zeros_like(y) if found is None else found, None, None, None


def differentiable_solve(formulation: Formulation, y: Tensor, tol: float = 1e-10, w: Tensor | None = None) -> Tensor:
    """(B, Nhat) frame coefficients of the discrete solutions, like `solve`, with gradients in y (B, p).

    One solve forward, one adjoint solve backward, whatever the number of parameters. Gradients in y of outputs come by
    autograd: `OutputMap(formulation, outputs).values(differentiable_solve(formulation, y), y)`. The coefficient, the
    source and boundary data must be differentiable in y; a coefficient that jumps where y moves has no such gradient.
    `w` (B, Nhat) are coefficients that are known to be near the solution, such as a solver's answers; then there is no
    forward solve, and w gets the gradient of the solution. See docs/surrogates.md.
    """
    if formulation.frame.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"gradients need float32 or float64, the frame is in {formulation.frame.dtype}: convert it")
    made: Tensor = _Solve.apply(formulation.check_parameters(y), formulation, tol, w)
    return made
