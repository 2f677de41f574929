"""Extreme eigenvalues by the Lanczos method, without dense matrices: condition numbers and frame bounds.

All matrices here have the size N of the nodal basis, where none is singular: the nonzero spectrum of HᵀSH is that of
H Hᵀ S, which is self-adjoint in the inner product of S.

B samples, N nodal values, k Lanczos steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fem_frames.formulations.formulation import Formulation
from fem_frames.frame.elements import RT0
from fem_frames.frame.level_matrices import flux_field, state_size, state_slices
from fem_frames.operators.cells import CellBlocks, Congruent
from fem_frames.operators.linear import LinearOperator
from fem_frames.solvers.bounds import error_bound as error_bound  # kept for earlier imports
from fem_frames.solvers.conjugate_gradients import ConvergenceError, conjugate_gradients

Map = Callable[[Tensor], Tensor]
ZERO = 1e-12
"""Eigenvalues that are smaller than this, relative to the largest one, count as zero."""


@dataclass(frozen=True)
class Conditioning:
    """Condition numbers for one y."""

    cond_A: float
    """of A_y"""
    cond_bpx: float
    """of HᵀA_yH = DᵀC_yD on the orthogonal complement of its kernel"""
    cond_D: float
    """of D on the orthogonal complement of ker F, states in units of the domain's length"""
    cond_C: float
    """of C_y on the range of D"""
    cond_flux: float | None
    """of the frame of σ in H(div); None for formulations without flux"""


def extreme_eigenvalues(
    P: Map,
    S: Map,
    size: int,
    device: torch.device,
    *,
    ends: tuple[int, ...] = (0, -1),
    tol: float = 1e-3,
    max_steps: int = 1000,
) -> tuple[float, ...]:
    """Smallest (0) and largest (-1) eigenvalues of P S for symmetric positive definite P and S of the given size.

    Lanczos in float64 in the inner product of S, with full reorthogonalisation, until the relative residuals of the
    wanted Ritz values are below tol: an eigenvalue is then at least that near, and usually much nearer.
    """
    v = torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
    basis, images = v.new_empty(2, 16, size)  # (k, N) the basis, and S times the basis
    diagonal: list[float] = []
    off: list[float] = []
    for step in range(min(max_steps, size)):
        image = S(v[None])[0]
        norm = float(torch.dot(v, image).clamp_min(0).sqrt())
        if step and norm <= 1e-10 * max(diagonal):  # the space is invariant, so it contains all eigenvalues
            break
        if step % 5 == 4:
            values, residuals = _ritz_values(diagonal, off, norm, ends)
            zero = ZERO * max(diagonal)
            if all(r <= tol * value or value + r <= zero for value, r in zip(values, residuals, strict=True)):
                return values
        off += [norm] if step else []
        if step == len(basis):
            basis, images = (torch.cat([a, torch.empty_like(a)]) for a in (basis, images))
        basis[step], images[step] = v / norm, image / norm
        v = P(images[step][None])[0]
        diagonal.append(float(torch.dot(v, images[step])))
        for _ in range(2):  # one pass of reorthogonalisation is not enough
            v = v - (images[: step + 1] @ v) @ basis[: step + 1]
    else:
        if size > max_steps:
            raise ConvergenceError(f"Lanczos has not converged in {max_steps} steps: raise max_steps or tol")
    return _ritz_values(diagonal, off, 0.0, ends)[0]


def _ritz_values(
    diagonal: list[float], off: list[float], beta: float, ends: tuple[int, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Ritz values and the norms of their residuals; beta is the next off-diagonal entry."""
    sides = torch.tensor(off, dtype=torch.float64)
    T = torch.diag(torch.tensor(diagonal, dtype=torch.float64)) + torch.diag(sides, 1) + torch.diag(sides, -1)
    values, vectors = torch.linalg.eigh(T)
    return tuple(float(values[end]) for end in ends), tuple(beta * abs(float(vectors[-1, end])) for end in ends)


def condition_numbers(formulation: Formulation, y: Tensor, tol: float = 1e-3) -> Conditioning:
    """Condition numbers for one y (p,) by Lanczos; the formulation must be in float64. See docs/formulations.md."""
    y = formulation.check_parameters(y)
    if len(y) != 1:
        raise ValueError(f"one y is expected, not {len(y)}: a condition number belongs to one matrix")
    _check_precision(formulation)
    frame, A, units = formulation.frame, formulation.A(y), _units(formulation)
    gram = Congruent(formulation.nodal_differential, units)
    N, device = frame.arrays.nodal_size, frame.device
    inverse_A = _inverse(formulation, formulation.stable(y))
    inverse_gram = _inverse(formulation, Congruent(frame.D, units))
    HHT = _preconditioner(formulation)
    (largest,) = extreme_eigenvalues(A, _identity, N, device, ends=(-1,), tol=tol)
    (of_inverse,) = extreme_eigenvalues(inverse_A, _identity, N, device, ends=(-1,), tol=tol)
    bpx = extreme_eigenvalues(HHT, A, N, device, tol=tol)
    D = extreme_eigenvalues(HHT, gram, N, device, tol=tol)
    C = extreme_eigenvalues(inverse_gram, A, N, device, tol=tol)
    cond_flux = None
    if flux_field(frame.arrays) is not None:
        flux = flux_bounds(formulation, tol)
        cond_flux = flux[1] / flux[0]
    return Conditioning(largest * of_inverse, bpx[1] / bpx[0], (D[1] / D[0]) ** 0.5, C[1] / C[0], cond_flux)


def frame_condition(formulation: Formulation, y: Tensor, tol: float = 1e-3) -> float:
    """The condition number of HᵀA_yH = DᵀC_yD on the complement of its kernel, for one y (p,), by Lanczos in float64.

    Unlike `condition_numbers` it needs no inverse, so it is fast on large meshes. See docs/meshes.md.
    """
    _check_precision(formulation)
    y, arrays = formulation.check_parameters(y), formulation.frame.arrays
    matrix = formulation.A(y)
    lower, upper = extreme_eigenvalues(
        _preconditioner(formulation), matrix, arrays.nodal_size, formulation.frame.device, tol=tol
    )
    return upper / lower


def flux_bounds(formulation: Formulation, tol: float = 1e-3) -> tuple[float, float]:
    """(c, C) with c ‖v‖² ≤ ‖F v‖² ≤ C ‖v‖² for v orthogonal to ker F, where F synthesises σ alone in H(div).

    See docs/formulations.md.
    """
    _check_precision(formulation)
    arrays, device = formulation.frame.arrays, formulation.frame.device
    field = flux_field(arrays)
    if field is None:
        raise ValueError(f"the formulation {formulation.name} has no flux; use least squares")
    before = sum(len(f.free[-1]) for f in arrays.fields[: arrays.fields.index(field)])
    weights = np.zeros((len(arrays.volumes), state_size(arrays)))
    mesh = arrays.points, arrays.levels[-1].cells
    weights[:, state_slices(arrays)[field.name]] = RT0(arrays.dimension).norm_weights(*mesh, arrays.length)
    scale = torch.as_tensor(weights.ravel(), device=device)
    D, H = formulation.nodal_differential, formulation.frame.H
    size = len(field.free[-1])
    after = arrays.nodal_size - before - size

    def on_flux(operator: Map) -> Map:
        return lambda v: operator(torch.nn.functional.pad(v, (before, after)))[:, before : before + size]

    preconditioner, gram = on_flux(lambda v: H(H.T(v))), on_flux(lambda v: D.T(scale * D(v)))
    lower, upper = extreme_eigenvalues(preconditioner, gram, size, device, tol=tol)
    return lower, upper


def frame_bounds(formulation: Formulation, tol: float = 1e-3) -> tuple[float, float]:
    """(c, C) with c ‖v‖² ≤ ‖D v‖² ≤ C ‖v‖² for v orthogonal to ker F: the frame constants in the norm of 𝒟.

    See docs/formulations.md.
    """
    _check_precision(formulation)
    N, device = formulation.frame.arrays.nodal_size, formulation.frame.device
    lower, upper = extreme_eigenvalues(_preconditioner(formulation), _gram(formulation), N, device, tol=tol)
    return lower, upper


def nominal_bound(formulation: Formulation, y: Tensor, tol: float = 1e-3) -> float:
    """The least eigenvalue of DᵀCD on the complement of ker F, where C belongs to the energy norm for one y (1, p).

    It has the relative accuracy tol, and is zero if C does not control all functions.
    """
    _check_precision(formulation)
    N, device = formulation.frame.arrays.nodal_size, formulation.frame.device
    matrix = Congruent(formulation.nodal_differential, formulation.norm_blocks(y))
    # In the inner product of HHᵀ: that of the matrix would not see its kernel.
    least, largest = extreme_eigenvalues(matrix, _preconditioner(formulation), N, device, tol=tol)
    return least if least > ZERO * largest else 0.0


def _check_precision(formulation: Formulation) -> None:
    if formulation.frame.dtype != torch.float64:
        raise ValueError(
            f"spectra are computed in float64, not {formulation.frame.dtype}: use formulation.to('float64')"
        )


def _identity(v: Tensor) -> Tensor:
    return v


def _units(formulation: Formulation) -> CellBlocks:
    """Squares of the factors that give all entries of states one unit: condition numbers of D and C_y need it."""
    arrays = formulation.frame.arrays
    factors = np.concatenate([f.element.state_units(arrays.length) for f in arrays.fields])  # (m,)
    block = torch.as_tensor(np.diag(factors**2), device=formulation.frame.device)[None, :, :, None]
    return CellBlocks(block.expand(len(arrays.volumes), -1, -1, -1).contiguous())


def _gram(formulation: Formulation) -> Congruent:
    """⟨𝒟u, 𝒟v⟩ in the nodal basis."""
    return Congruent(formulation.nodal_differential)


def _preconditioner(formulation: Formulation) -> Map:
    """H Hᵀ."""
    H = formulation.frame.H
    return lambda v: H(H.T(v))


def _inverse(formulation: Formulation, on_frame: LinearOperator) -> Map:
    """S^{-1} for the nodal matrix S with on_frame = HᵀSH, by conjugate gradients in frame coordinates."""
    H = formulation.frame.H

    def inverse(v: Tensor) -> Tensor:
        found = conjugate_gradients(on_frame, H.T(v), 1e-10, 5000, 500)
        if float(found.residual) > 1e-8:
            raise ConvergenceError(
                f"an inverse cannot be applied: conjugate gradients stay at a residual of {float(found.residual):.1e}; "
                "is the contrast of a_y too high for this frame?"
            )
        return H(found.x)

    return inverse
