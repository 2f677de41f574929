"""Extreme eigenvalues by Lanczos, without dense matrices: condition numbers, frame bounds, certified errors.

All matrices here have the size N of the nodal basis, where nothing is singular: the nonzero spectrum of HᵀSH is that of
H Hᵀ S, which is self-adjoint in the inner product of S.

B samples, N nodal values, k Lanczos steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fem_frames.formulations import Formulation
from fem_frames.operators import Congruent, LinearOperator, dot
from fem_frames.solvers import ConvergenceError, conjugate_gradients

Map = Callable[[Tensor], Tensor]
_BOUNDS: WeakKeyDictionary[Formulation, ErrorBound] = WeakKeyDictionary()


@dataclass(frozen=True)
class Conditioning:
    """Condition numbers for one y."""

    cond_A: float
    """of A_y"""
    cond_bpx: float
    """of HᵀA_yH = DᵀC_yD on the orthogonal complement of its kernel"""
    cond_D: float
    """of D on the orthogonal complement of ker F"""
    cond_C: float
    """of C_y on the range of D"""


def extreme_eigenvalues(
    P: Map,
    S: Map,
    size: int,
    device: torch.device,
    *,
    ends: tuple[int, ...] = (0, -1),
    tol: float = 1e-4,
    max_steps: int = 500,
) -> tuple[float, ...]:
    """Smallest (0) and largest (-1) eigenvalue of P S, P and S symmetric positive definite of the given size.

    Lanczos in float64 and the inner product of S with full reorthogonalisation, until the wanted ends change by less
    than tol, relatively, in five steps.
    """
    v = torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
    basis, images = v.new_empty(2, 16, size)  # (k, N) the basis, and S times it
    diagonal: list[float] = []
    off: list[float] = []
    before: tuple[float, ...] = ()
    for step in range(min(max_steps, size)):
        image = S(v[None])[0]
        norm = float(torch.dot(v, image).clamp_min(0).sqrt())
        if step and norm <= 1e-10 * max(diagonal):  # the space is invariant: it has all eigenvalues
            return _ritz_values(diagonal, off, ends)
        off += [norm] if step else []
        if step == len(basis):
            basis, images = (torch.cat([a, torch.empty_like(a)]) for a in (basis, images))
        basis[step], images[step] = v / norm, image / norm
        v = P(images[step][None])[0]
        diagonal.append(float(torch.dot(v, images[step])))
        for _ in range(2):  # once is not enough
            v = v - (images[: step + 1] @ v) @ basis[: step + 1]
        if step % 5 == 4:
            values = _ritz_values(diagonal, off, ends)
            if before and all(abs(a - b) <= tol * abs(b) for a, b in zip(before, values, strict=True)):
                return values
            before = values
    if size <= max_steps:
        return _ritz_values(diagonal, off, ends)
    raise ConvergenceError(f"Lanczos has not converged in {max_steps} steps: raise max_steps or tol")


def _ritz_values(diagonal: list[float], off: list[float], ends: tuple[int, ...]) -> tuple[float, ...]:
    sides = torch.tensor(off, dtype=torch.float64)
    T = torch.diag(torch.tensor(diagonal, dtype=torch.float64)) + torch.diag(sides, 1) + torch.diag(sides, -1)
    values = torch.linalg.eigvalsh(T)
    return tuple(float(values[end]) for end in ends)


def condition_numbers(formulation: Formulation, y: Tensor, tol: float = 1e-4) -> Conditioning:
    """Condition numbers for one y (p,), all by Lanczos; the formulation must be in float64."""
    y = formulation.check_parameters(y)
    if len(y) != 1:
        raise ValueError(f"one y is expected, not {len(y)}: condition numbers are those of one matrix")
    _check_precision(formulation)
    frame, A, gram = formulation.frame, formulation.A(y), _gram(formulation)
    N, device = frame.arrays.nodal_size, frame.device
    inverse_A = _inverse(formulation, formulation.stable(y))
    inverse_gram = _inverse(formulation, Congruent(frame.D))
    HHT = _preconditioner(formulation)
    (largest,) = extreme_eigenvalues(A, _identity, N, device, ends=(-1,), tol=tol)
    (of_inverse,) = extreme_eigenvalues(inverse_A, _identity, N, device, ends=(-1,), tol=tol)
    bpx = extreme_eigenvalues(HHT, A, N, device, tol=tol)
    D = extreme_eigenvalues(HHT, gram, N, device, tol=tol)
    C = extreme_eigenvalues(inverse_gram, A, N, device, tol=tol)
    return Conditioning(largest * of_inverse, bpx[1] / bpx[0], (D[1] / D[0]) ** 0.5, C[1] / C[0])


def frame_bounds(formulation: Formulation, tol: float = 1e-6) -> tuple[float, float]:
    """(c, C) with c ‖v‖² ≤ ‖D v‖² ≤ C ‖v‖² for v orthogonal to ker F: the frame constants in the norm of 𝒟."""
    _check_precision(formulation)
    N, device = formulation.frame.arrays.nodal_size, formulation.frame.device
    lower, upper = extreme_eigenvalues(_preconditioner(formulation), _gram(formulation), N, device, tol=tol)
    return lower, upper


class ErrorBound:
    """Bounds for the error of frame coefficients in the energy norm ⟨𝒟e, 𝒟e⟩_y^{1/2}.

    (E): ‖residual‖₂ / √(c min a_y) bounds the error against the discrete solution, c the lower frame bound, which is
    estimated once. (LS): √loss is the error against the exact solution itself, discretisation included.
    """

    def __init__(self, formulation: Formulation) -> None:
        self.formulation = formulation
        self.lower = 1.0
        if formulation.name == "energy":
            exact = formulation if formulation.frame.dtype == torch.float64 else formulation.to(torch.float64)
            self.lower = 0.99 * frame_bounds(exact)[0]  # Lanczos comes to the smallest eigenvalue from above

    def __call__(self, w: Tensor, y: Tensor) -> Tensor:
        """(B,) for w (B, Nhat) and y (B, p)."""
        if self.formulation.name == "least-squares":
            return self.formulation.loss(w, y).sqrt()
        least = self.formulation.mean(self.formulation.coefficient(y)).amin(0)  # (B,)
        residual = self.formulation.residual(w, y)
        return dot(residual, residual).sqrt() / (self.lower * least).sqrt()


def error_bound(formulation: Formulation, w: Tensor, y: Tensor) -> Tensor:
    """(B,) bounds for the error in the energy norm, as `ErrorBound` explains.

    The frame bounds are estimated at the first call with a formulation.
    """
    if formulation not in _BOUNDS:
        _BOUNDS[formulation] = ErrorBound(formulation)
    return _BOUNDS[formulation](w, y)


def energy_norm(formulation: Formulation, w: Tensor, y: Tensor) -> Tensor:
    """(B,) ⟨𝒟Fw, 𝒟Fw⟩_y^{1/2}."""
    return formulation.stable(y).quadratic(w).clamp_min(0).sqrt()


def _check_precision(formulation: Formulation) -> None:
    if formulation.frame.dtype != torch.float64:
        raise ValueError(
            f"spectra are computed in float64, not {formulation.frame.dtype}: use formulation.to('float64')"
        )


def _identity(v: Tensor) -> Tensor:
    return v


def _gram(formulation: Formulation) -> Congruent:
    """⟨𝒟u, 𝒟v⟩ on the nodal basis."""
    return Congruent(formulation.nodal_differential)


def _preconditioner(formulation: Formulation) -> Map:
    """H Hᵀ."""
    H = formulation.frame.H
    return lambda v: H(H.T(v))


def _inverse(formulation: Formulation, on_frame: LinearOperator) -> Map:
    """S^{-1} of the nodal matrix S for which on_frame = HᵀSH, by conjugate gradients in frame coordinates."""
    H = formulation.frame.H
    return lambda v: H(conjugate_gradients(on_frame, H.T(v), 1e-11).x)
