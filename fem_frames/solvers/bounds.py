"""Bounds for the error of a given u (and σ) in a named norm, computed without a reference solution.

(E) and other quadratic densities, energy norm, against the discrete solution: the square of the error is rᵀ M⁺ r with
M = DᵀC_yD and the residual r, hence at most |r|² / λ. Here λ = c min C_y, with c the lower frame bound and min C_y the
least eigenvalue of C_y over all cells, which for (E) is the minimum of a_y. One more product with M gives a sharper
bound, by Gauss-Radau quadrature with the node λ (G. Golub and G. Meurant, Matrices, moments and quadrature, 1994): with
μ = rᵀMr / |r|² and s = |Mr - μr|² / |r|², the square is at most |r|² (μ - λ + s/λ) / (μ² - μλ + s).
With Robin conditions C_y is singular on cells, but C_y ≥ α_y C_{y0} for a nominal y0, the middle of the parameters, and
the least of all a_y / a_{y0} and k_y / k_{y0}: then λ = c0 α_y with the least positive eigenvalue c0 of DᵀC_{y0}D.
Quadratic densities of users have both bounds, and get the smaller one.

Nonlinear energies of users, energy norm, against the discrete solution: let C be the second derivative of a quadratic
energy with E'' ≥ α_y DᵀCD for all w, M = DᵀCD, and e the error of w. The slope of E vanishes at the solution, so
α_y ‖e‖²_M ≤ ⟨E'(w), e⟩ ≤ ‖r‖_{M⁺} ‖e‖_M with the residual r = E'(w), and ‖e‖_M is at most ‖r‖_{M⁺} / α_y. Here C is
the same for every y, and ‖r‖_{M⁺} has the bounds above, with the least positive eigenvalue c0 of M.

(LS), norm of the functional, against the exact solution: √loss is the error itself.

(LS), energy norm, against the exact solution: Prager and Synge, for a flux that is not exactly in equilibrium.
Testing −div(a ∇u) = f with the error e = u - u_h gives ∫ a |∇e|² = ∫ (f + div σ_h) e + ∫ (σ_h - a ∇u_h) · ∇e. With the
means f̄ of f over the cells, C from Friedrichs' inequality ‖e‖ ≤ C ‖∇e‖, and Poincaré's on every cell T,

    ‖a^{1/2} ∇e‖ ≤ (Σ_T (‖a^{-1/2} σ_h - a^{1/2} ∇u_h‖_T + diam(T)/π ‖f - f̄‖_T / √min_T a)²)^{1/2}
                  + C ‖f̄ + div σ_h‖ / √min a.

All bounds are exact up to the problem's quadrature of a_y and f_y, minima of a_y included, and for discrete boundary
data: Dirichlet values interpolated in P1 and, for (LS), Neumann data by their means over facets. They are evaluated in
float64 whatever the precision of the formulation, and rounded up to it.

B samples, K finest cells, d dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fem_frames.formulations.formulation import ErrorNorm, Formulation
from fem_frames.frame.arrays import FrameArrays
from fem_frames.operators.cells import Congruent
from fem_frames.operators.linear import dot
from fem_frames.solvers.friedrichs import friedrichs_constant

_LOWER_FRAME_BOUNDS: WeakKeyDictionary[FrameArrays, float] = WeakKeyDictionary()
_NOMINAL_BOUNDS: WeakKeyDictionary[Formulation, float] = WeakKeyDictionary()
_EXACT: WeakKeyDictionary[Formulation, Formulation] = WeakKeyDictionary()
_TOLERANCE = 1e-3
FUNCTIONAL = "functional"  # the norm in which the loss itself measures errors


@dataclass(frozen=True, eq=False)
class ErrorBound:
    """Bounds for the errors of a batch. See docs/surrogates.md."""

    value: Tensor  # (B,)
    relative: Tensor
    """(B,) bounds for the error divided by the norm of the solution against which it is measured.

    The norm of the solution is at least the norm of the given function minus `value`; in the norm of the functional it
    is ‖f_y‖. The bound is infinite if this norm may be zero.
    """
    norm: ErrorNorm


def error_bound(formulation: Formulation, w: Tensor, y: Tensor, norm: str | None = None) -> Tensor:
    """(B,) bounds for the error of w (B, Nhat).

    (E): norm="energy", against the discrete solution. (LS): norm="functional", the default, or "energy", both against
    the exact solution. `formulation.norms` lists them, `certify` gives the bound together with its norm.
    See docs/formulations.md.
    """
    chosen = formulation.error_norm(norm)
    exact, w64, y64 = _in_float64(formulation, w, y)
    return _rounded_up(_bound(exact, w64, y64, chosen), formulation)


def certify(formulation: Formulation, w: Tensor, y: Tensor, norm: str | None = None) -> ErrorBound:
    """The bounds of `error_bound`, absolute and relative, with their norm. See docs/formulations.md."""
    chosen = formulation.error_norm(norm)
    exact, w64, y64 = _in_float64(formulation, w, y)
    value = _bound(exact, w64, y64, chosen)
    functional = chosen.name == FUNCTIONAL
    size = exact.solution_norm(y64) if functional else exact.energy_norm(exact.states(w64, y64), y64) - value
    relative = torch.where(size > 0, value / size, torch.inf)
    return ErrorBound(_rounded_up(value, formulation), _rounded_up(relative, formulation), chosen)


def norm_of(formulation: Formulation, w: Tensor, y: Tensor, norm: str | None = None) -> Tensor:
    """(B,) the norm of F w without the lift: for differences w of coefficients, it measures known errors."""
    if formulation.error_norm(norm).name == FUNCTIONAL:
        return formulation.stable(y).quadratic(w).clamp_min(0).sqrt()
    return formulation.energy_norm(formulation.frame.D(w), y)


def _in_float64(formulation: Formulation, w: Tensor, y: Tensor) -> tuple[Formulation, Tensor, Tensor]:
    """The formulation, w and y in float64; the formulation is converted once."""
    if formulation.frame.dtype == torch.float64:
        return formulation, w, y
    formulation.check_coefficients(w, y)
    if formulation not in _EXACT:
        place = "cpu" if formulation.frame.device.type == "mps" else None  # mps has no float64
        _EXACT[formulation] = formulation.to(torch.float64, place)
    exact = _EXACT[formulation]
    return exact, w.to(exact.frame.device, torch.float64), y.to(exact.frame.device, torch.float64)


def _rounded_up(values: Tensor, formulation: Formulation) -> Tensor:
    """The values in the wide precision of the formulation, never rounded down."""
    if values.dtype == formulation.wide:
        return values
    return (values * (1 + 2 * torch.finfo(formulation.wide).eps)).to(formulation.frame.device, formulation.wide)


def _bound(formulation: Formulation, w: Tensor, y: Tensor, norm: ErrorNorm) -> Tensor:
    return _BOUNDS[norm.name, norm.against](formulation, w, y)


# ---- one function per bound


def _from_residual(formulation: Formulation, w: Tensor, y: Tensor) -> Tensor:
    """(B,) the energy norm of the error: at most the dual norm of the residual, divided by α."""
    load, least = formulation.load(y), formulation.monotonicity(y)
    # Near the solution the residual is rounding, which M need not see.
    norm = dual_norm_bound(formulation, formulation.residual(w, y), y, 1e-20 * dot(load, load))
    # A residual that is not a number, as where a derivative does not exist, bounds nothing.
    return torch.where((least > 0) & ~norm.isnan(), norm / least, torch.inf)


def dual_norm_bound(formulation: Formulation, r: Tensor, y: Tensor, rounding: Tensor | float = 0.0) -> Tensor:
    """(B,) √(rᵀ M⁺ r) for r (B, Nhat) in the range of M, bounded by one step of Gauss-Radau quadrature.

    M = DᵀCD with C of the energy norm, which is C_y for quadratic energies.

    Where |r|² is at most `rounding` the bound is |r|² / λ.
    """
    least = _lower_bound(formulation, y)
    square = dot(r, r)
    plain = torch.where(
        least > 0, square / least, torch.inf
    )  # M ≥ `least` on the complement of its kernel, which contains r
    image = Congruent(formulation.frame.D, formulation.norm_blocks(y))(r)
    mean = torch.where(square > 0, dot(r, image) / square, 0.0)
    rest = image - mean[:, None] * r
    spread = torch.where(square > 0, dot(rest, rest) / square, 0.0)
    below = mean * (mean - least) + spread
    sharp = square * (mean - least + spread / least) / below
    seen = (mean > least) & (below > 0) & (square > rounding)
    # The sharp bound may be the norm itself, up to the rounding of these sums.
    return torch.where(seen, torch.minimum((1 + 1e-9) * sharp, plain), plain).sqrt()


def _lower_bound(formulation: Formulation, y: Tensor) -> Tensor:
    """(B,) lower bounds for the positive eigenvalues of M: the larger one of two, if there are two."""
    from fem_frames.solvers.spectra import frame_bounds, nominal_bound  # spectra imports this module

    y0 = torch.as_tensor(formulation.problem.parameters.nominal).to(y)
    relative, least = formulation.relative_coercivity(y, y0), formulation.coercivity(y)  # (B,)
    found = torch.zeros_like(least)
    if relative is not None:
        if formulation not in _NOMINAL_BOUNDS:
            _NOMINAL_BOUNDS[formulation] = (1 - _TOLERANCE) * nominal_bound(formulation, y0, _TOLERANCE)
        found = _NOMINAL_BOUNDS[formulation] * relative
        if not (least > 0).any():
            return found
    arrays = formulation.frame.arrays
    if arrays not in _LOWER_FRAME_BOUNDS:
        exact = formulation if formulation.frame.dtype == torch.float64 else formulation.to(torch.float64, "cpu")
        _LOWER_FRAME_BOUNDS[arrays] = (1 - _TOLERANCE) * frame_bounds(exact, _TOLERANCE)[0]
    return torch.maximum(found, _LOWER_FRAME_BOUNDS[arrays] * least)


def _from_loss(formulation: Formulation, w: Tensor, y: Tensor) -> Tensor:
    """(B,) √loss for (LS): the exact u and σ have no residual, so the loss is ‖div τ‖² + ‖τ/a - ∇e‖²."""
    return formulation.loss(w, y).sqrt()


def _from_flux(formulation: Any, w: Tensor, y: Tensor) -> Tensor:
    """(B,) the bound of Prager and Synge for (LS)."""
    gaps, imbalance = formulation.flux_gaps(w, y)
    a = formulation.coefficient(y)  # (K, Q or 1, B)
    gaps = gaps + formulation.poincare_constants * (formulation.oscillations(y) / a.amin(1)).sqrt()
    constant = friedrichs_constant(formulation.frame.arrays)
    return gaps.square().sum(0).sqrt() + constant * imbalance / a.amin((0, 1)).sqrt()


_BOUNDS: dict[tuple[str, str], Callable[[Any, Tensor, Tensor], Tensor]] = {
    ("energy", "discrete solution"): _from_residual,
    (FUNCTIONAL, "exact solution"): _from_loss,
    ("energy", "exact solution"): _from_flux,
}
