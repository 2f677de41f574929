"""Derivatives of solutions in y by implicit differentiation: one adjoint or one tangent solve.

r(w, y) = DᵀC_yD w - load_y vanishes at the solution, so gᵀ ∂w/∂y = -λᵀ ∂r/∂y with DᵀC_yD λ = g, and the derivative dw
in a direction v solves DᵀC_yD dw = -∂r/∂y v; for nonlinear energies the matrix is the second derivative at the
solution. The matrix is symmetric and its kernel does not depend on y: the frame is
redundant, but in the same way for every y.

For weak forms with the residual ρ on the frame and its derivative J, r = Jᵀρ. At the solution ρ = 0, so that
∂r/∂w = JᵀJ and ∂r/∂y = Jᵀ ∂ρ/∂y. With JᵀJ λ = g, μ = Jλ solves the adjoint equation Jᵀμ = g of the weak form itself,
and gᵀ ∂w/∂y = -μᵀ ∂ρ/∂y.

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
        dual = solve_linear(ctx.formulation, y.detach(), gradient.contiguous(), ctx.tol, at=w).w.to(gradient)
        with torch.enable_grad():
            free = y.detach().requires_grad_()
            product = ctx.formulation.residual_product(w.detach(), -dual, free)
            if not product.requires_grad:
                return torch.zeros_like(y), None, None, None
            found = torch.autograd.grad(product.sum(), free, allow_unused=True)[0]
        return torch.zeros_like(y) if found is None else found, None, None, None


def differentiable_solve(formulation: Formulation, y: Tensor, tol: float = 1e-10, w: Tensor | None = None) -> Tensor:
    """(B, Nhat) frame coefficients of the discrete solutions, like `solve`, with gradients in y (B, p).

    One solve forward, one adjoint solve backward, whatever the number of parameters. Gradients in y of outputs come by
    autograd: `OutputMap(formulation, outputs).values(differentiable_solve(formulation, y), y)`. The coefficient, the
    source and boundary data must be differentiable in y; a coefficient that jumps where y moves has no such gradient.
    `w` (B, Nhat) are coefficients that are known to be near the solution, such as a solver's answers; then there is no
    forward solve, and w gets the gradient of the solution. See docs/surrogates.md.
    """
    _check_precision(formulation)
    y = formulation.check_parameters(y)
    if w is not None:
        formulation.check_coefficients(w, y)
        w = (w if w.ndim == 2 else w[None]).expand(len(y), -1)
    made: Tensor = _Solve.apply(y, formulation, tol, w)
    return made


@torch.no_grad()
def tangent_solve(
    formulation: Formulation, y: Tensor, v: Tensor, tol: float = 1e-10, w: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(B, Nhat) twice: frame coefficients of the discrete solutions, and their derivatives in directions v (B, p) of y.

    One solve, and one more for the derivatives. The derivative of outputs q(w, y) is then
    `torch.func.jvp(outputs.values, (w, y), (dw, v))[1]`, with the `OutputMap` outputs. `w` and what must be
    differentiable are as in `differentiable_solve`. See docs/queries.md.
    """
    _check_precision(formulation)
    y = formulation.check_parameters(y).contiguous()  # forward mode refuses tensors that are expanded
    v = v if v.ndim == 2 else v[None]
    if v.shape != y.shape or not v.is_floating_point() or not bool(torch.isfinite(v).all()):
        raise ValueError(
            f"directions v are {v.dtype} values of shape {tuple(v.shape)}; finite ones of shape {tuple(y.shape)}, one "
            "direction per sample of y, are expected"
        )
    if w is None:
        w = solve(formulation, y, tol, refine=None).w
    change = torch.func.jvp(lambda at: formulation.residual(w, at), (y,), (v.to(y).contiguous(),))[1]
    return w, -solve_linear(formulation, y, change, tol, at=w).w.to(w)


def _check_precision(formulation: Formulation) -> None:
    if formulation.frame.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"derivatives need float32 or float64, the frame is in {formulation.frame.dtype}: convert it")
