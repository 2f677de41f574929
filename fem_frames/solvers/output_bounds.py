"""Bounds for the errors of outputs, against the outputs of the discrete solution, without a reference solution.

With the error e of u in the energy norm and the dual solution z, DᵀC_yD z = ℓ_y,

    |q(u_h) - q(u)| = |⟨ℓ_y, e⟩| ≤ ‖ℓ_y‖_dual ‖e‖,   ‖ℓ_y‖_dual = ‖z‖,

and both factors have bounds from one product with DᵀC_yD and the lower bound λ of its positive eigenvalues
(`fem_frames.solvers.bounds`); for nonlinear energies the matrix is that of their fixed norm. With an approximate dual
solution z_h the output is corrected by the residual r of u:

    q(u_h) - (q(u) - ⟨r, z_h⟩) = -⟨r, z - z_h⟩,   at most ‖e‖ ‖z - z_h‖ in size.

Bounds are evaluated in float64 and enlarged by an estimate of the rounding errors of q and of the correction. Outputs
that are not affine in u have none.

B samples, s outputs, Nhat frame coefficients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fem_frames.formulations.formulation import Formulation
from fem_frames.outputs import Output, OutputMap
from fem_frames.solvers.bounds import dual_norm_bound, error_bound
from fem_frames.solvers.solution import solve_linear

ROUNDINGS = 64  # units of the last place of the sums in an output
PLAIN = "energy norm of the error times dual norm of the output, against the discrete solution"
ADJOINT = "energy norm of the error times that of the adjoint's error, against the discrete solution"
NONE = "no bound: the formulation {} has no bound in the energy norm against the discrete solution"
NONLINEAR = "no {} for {}: not affine in the solution"


@dataclass(frozen=True, eq=False)
class OutputValues:
    """Outputs of a batch with bounds for their errors. See docs/surrogates.md."""

    values: Tensor  # (B, s)
    error_bound: Tensor  # (B, s), infinite where there is no bound
    labels: tuple[str, ...]
    kind: str
    """The meaning of the bounds, in words."""
    has_bound: tuple[bool, ...]
    """For each output whether it has bounds: the formulation has them, and the output is affine in the solution."""

    @property
    def bounded(self) -> bool:
        """Whether there are outputs with bounds."""
        return any(self.has_bound)


def has_output_bounds(formulation: Formulation) -> bool:
    """Whether the formulation has a bound in the energy norm against the discrete solution, which outputs need."""
    return any((norm.name, norm.against) == ("energy", "discrete solution") for norm in formulation.norms)


@torch.no_grad()
def certify_outputs(
    formulation: Formulation,
    w: Tensor,
    y: Tensor,
    outputs: Output | Sequence[Output] | OutputMap,
    adjoint: bool = False,
    tol: float = 1e-6,
) -> OutputValues:
    """Outputs of w (B, Nhat), in float64, and bounds for their distance from the outputs of the discrete solution.

    `adjoint` solves the dual problem of every output up to the relative residual `tol`, corrects the outputs, and
    bounds what remains. See docs/surrogates.md.
    """
    if adjoint and not formulation.is_quadratic:
        raise ValueError(
            "adjoint solves do not correct outputs of nonlinear equations, whose derivative is another one at the "
            "solution: leave out adjoint, or improve the answer first"
        )
    if formulation.frame.dtype != torch.float64:
        raise ValueError(f"bounds of outputs need float64, the frame is in {formulation.frame.dtype}: convert it")
    made = outputs.on(formulation) if isinstance(outputs, OutputMap) else OutputMap(formulation, outputs)
    y = formulation.check_parameters(y)
    w = (w if w.ndim == 2 else w[None]).expand(len(y), -1)
    values, bounded = made.values(w, y), has_output_bounds(formulation)
    affine = torch.tensor(made.is_affine, device=values.device)
    bound, kind = torch.full_like(values, torch.inf), ADJOINT if adjoint else PLAIN
    if affine.any() and (bounded or adjoint):
        values[:, affine], bound[:, affine] = _certified(formulation, w, y, made, values[:, affine], adjoint, tol)
    if not bounded:
        kind = NONE.format(formulation.name if formulation.is_assembled else "of a weak form")
    elif not affine.all():
        names = [label for label, is_affine in zip(made.labels, made.is_affine, strict=True) if not is_affine]
        lacking = NONLINEAR.format("bound and no correction" if adjoint else "bound", ", ".join(names))
        kind = f"{kind}; {lacking}" if affine.any() else lacking
    has_bound = tuple(bounded and is_affine for is_affine in made.is_affine)
    return OutputValues(values, bound, made.labels, kind, has_bound)


def _certified(
    formulation: Formulation, w: Tensor, y: Tensor, made: OutputMap, values: Tensor, adjoint: bool, tol: float
) -> tuple[Tensor, Tensor]:
    """(B, s) twice: values of the affine outputs, corrected if `adjoint`, and their bounds; infinite without one."""
    B, s = values.shape
    dual = made.functional(y).expand(B, -1, -1).flatten(0, 1)  # (B s, Nhat)
    each = y.repeat_interleave(s, 0)
    size = values.abs() + (dual.unflatten(0, (B, s)) * w[:, None]).abs().sum(-1)
    rest = dual
    if adjoint:
        z, r = solve_linear(formulation, each, dual, tol).w, formulation.residual(w, y)
        terms = z.unflatten(0, (B, s)) * r[:, None]
        values, size = values - terms.sum(-1), size + terms.abs().sum(-1)
        rest = dual - formulation.stable(each)(z)
    if not has_output_bounds(formulation):
        return values, torch.full_like(values, torch.inf)
    rounding = 1e-20 * (dual * dual).sum(-1) if adjoint else 0.0
    norms = dual_norm_bound(formulation, rest, each, rounding).unflatten(0, (B, s))
    error = error_bound(formulation, w, y, "energy")[:, None]
    bound = torch.where(norms == 0, 0.0, norms * error) + ROUNDINGS * torch.finfo(torch.float64).eps * size
    return values, bound
