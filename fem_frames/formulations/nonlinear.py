"""Nonlinear energies of users: their second derivatives at given states, and the norm in which errors have bounds.

B samples, K finest cells, m numbers in a cell's state, L local nodal values.
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from fem_frames.formulations.equations import StateEquation
from fem_frames.formulations.error_norms import ErrorNorm
from fem_frames.formulations.place_values import PlaceValues
from fem_frames.formulations.quadratic import KERNEL, least_ratios
from fem_frames.formulations.second_derivatives import SecondDerivative
from fem_frames.formulations.state_integrals import StateIntegral
from fem_frames.frame import level_matrices
from fem_frames.operators.cells import CellBlocks, Congruent, flat_first
from fem_frames.operators.checking import is_watched
from fem_frames.operators.linear import LinearOperator, dot
from fem_frames.problem.convexity import LowerBound, quadratic_lower_bound
from fem_frames.problem.densities import Density
from fem_frames.problem.program_values import evaluated

CLAIMED = ErrorNorm(
    "energy",
    "energy norm of the nominal y at u = 0, if the energy is as monotone as claimed",
    "√⟨ψ''(0) 𝒟e, 𝒟e⟩ for the nominal y",
    "discrete solution",
)
FOUND = ErrorNorm(
    "energy",
    "energy norm of the quadratic part below the energy for the nominal y",
    "√⟨C 𝒟e, 𝒟e⟩ with C ≤ ψ'' for the nominal y",
    "discrete solution",
)


class NonlinearEquation(StateEquation):
    """An energy of the user that is not quadratic in u. See docs/formulations.md.

    C_y, A_y and the load are those at w = 0, with which one of Newton's steps begins; `curvature` has the second
    derivatives elsewhere. Errors have bounds in a fixed norm, for any y: C is the second derivative of a quadratic
    energy below that of the nominal y, or what the user's monotonicity refers to.
    """

    is_quadratic = False
    no_bound = (
        "no bound: the energy is not known to be convex; give monotonicity=lambda y: …, numbers α(y) > 0: the second "
        "derivative of the energy must be at least α(y) times that for the nominal y at u = 0"
    )
    lower_bound: ClassVar[LowerBound | None] = None
    """A quadratic energy below this one, which `convexity` has found; None if the user claims monotonicity."""

    @classmethod
    def bounds_of(cls, density: Density) -> dict[str, object]:
        """The attributes of a class for this density that its error bounds need."""
        if density.monotonicity is not None:
            return {"norms": (CLAIMED,)}
        found = quadratic_lower_bound(density)
        return {"norms": () if found is None else (FOUND,), "lower_bound": found}

    # ---- second derivatives

    def _blocks(self, s: Tensor, y: Tensor) -> Tensor:
        """(K, m, m, B) second derivatives for states s (K, m, B)."""
        return _second_derivatives(self._integrals, self.check_parameters(y).to(self.wide), s)

    def _on_cells(self, blocks: Tensor) -> CellBlocks:
        return CellBlocks(self.rounded(blocks, "the second derivative of the energy"))

    def _local(self, blocks: Tensor) -> Tensor:
        """(K, L, L, B) local matrices of blocks (K, m, m, B)."""
        local = self._as_data(level_matrices.local_states(self.frame.arrays))  # (K, m, L)
        return torch.einsum("kml,kmnb,kni->klib", local, blocks, local)

    def _lifted(self, y: Tensor) -> Tensor:
        """(K, m, B) the states of the lift."""
        return self._wide_cells(self.lift(y).expand(self.check_parameters(y).shape[0], -1))

    def _nodal_cells(self, v: Tensor, y: Tensor) -> Tensor:
        """(K, m, B) the states of nodal values v (B, N)."""
        states = self.nodal_differential(v)
        return self._wide_cells(states + self.lift(y) if self.lifted else states)

    def _second(self, s: Tensor, y: Tensor) -> LinearOperator:
        """ψ'' at states s (K, m, B): products with it need no blocks, unless torch watches."""
        if is_watched(s) or is_watched(y):
            return self._on_cells(self._blocks(s, y))
        K, m, _ = s.shape
        wide = self.check_parameters(y).to(self.wide)
        return SecondDerivative(self._integrals, wide, (K, m), self.frame.dtype, s)

    def C(self, y: Tensor) -> LinearOperator:
        return self._second(self._lifted(y), y)

    def curvature_blocks(self, y: Tensor, w: Tensor | None = None) -> Tensor:
        return self._blocks(self._lifted(y) if w is None else self._cells(w, y), y)

    def local_matrices(self, y: Tensor) -> Tensor:
        return self._local(self.curvature_blocks(y))

    def curvature(self, w: Tensor, y: Tensor) -> Congruent:
        return Congruent(self.frame.D, self._second(self._cells(w, y), y))

    def nodal_curvature(self, v: Tensor, y: Tensor) -> Congruent:
        local = self._local(self._blocks(self._nodal_cells(v, y), y))
        return Congruent(self.localisation, self._on_cells(local))

    def local_curvature(self, w: Tensor, y: Tensor) -> Tensor:
        return self._local(self.curvature_blocks(y, w))

    @property
    def point_values(self) -> int:
        return max(len(integral.program.operations) for integral in self.density.integrals)

    # ---- loss

    def state_load(self, y: Tensor) -> Tensor:
        slope = self._slope(self._lifted(y), y)[1]
        return flat_first(self.rounded(-slope, "the load"), self.check_parameters(y))

    def constant(self, y: Tensor) -> Tensor:
        return self._energy(self._lifted(y), y) - self.lift_functional(y)

    def nodal_loss(self, v: Tensor, y: Tensor) -> Tensor:
        """(B,) the loss from the states of nodal values v = H w."""
        found = self._energy(self._nodal_cells(v, y), y) - dot(self.functional(y), v) - self.lift_functional(y)
        return self._tested(found, y, "the energy")

    # ---- error bounds

    @cached_property
    def _lower_integrals(self) -> list[StateIntegral]:
        assert self.lower_bound is not None
        density = self.lower_bound.density
        return [StateIntegral(self.frame.arrays, density, i, self._as_data) for i in range(len(density.integrals))]

    @cached_property
    def _conditions(self) -> list[PlaceValues]:
        assert self.lower_bound is not None
        return [PlaceValues(self.frame.arrays, given, self._as_data) for given in self.lower_bound.conditions]

    def _lower_blocks(self, y: Tensor) -> Tensor:
        """(K, m, m, B) second derivatives of the quadratic energy below, for y (B, p) in the wide precision."""
        return _second_derivatives(self._lower_integrals, y, self._no_states(len(y)))

    def _no_states(self, count: int) -> Tensor:
        K, m = len(self.frame.arrays.volumes), level_matrices.state_size(self.frame.arrays)
        return torch.zeros(K, m, count, dtype=self.wide, device=self.frame.device)

    @cached_property
    def _norm(self) -> Tensor:
        """(K, m, m, 1) C, in the wide precision."""
        y = torch.as_tensor(self.problem.parameters.nominal).to(self.frame.device, self.wide).reshape(1, -1)
        return self._blocks(self._no_states(1), y) if self.lower_bound is None else self._lower_blocks(y)

    def norm_blocks(self, y: Tensor) -> CellBlocks:
        return self._on_cells(self._norm)

    def energy_norm(self, states: Tensor, y: Tensor) -> Tensor:
        s = self._wide_cells(states)
        return torch.einsum("kmb,kmn,knb->b", s, self._norm[..., 0], s).clamp_min(0).sqrt()

    def monotonicity(self, y: Tensor) -> Tensor:
        y = self.check_parameters(y).to(self.wide)
        if not self.norms:
            raise ValueError(self.no_bound)
        found = self._claimed(y) if self.lower_bound is None else self._found(y)
        return torch.where(torch.isfinite(found), found, 0.0).clamp_min(0)

    def _claimed(self, y: Tensor) -> Tensor:
        assert self.density.monotonicity is not None
        (found,) = evaluated(self.density.monotonicity, lambda given: y[:, given[1]], y)
        return torch.as_tensor(found, dtype=self.wide, device=y.device).expand(len(y))

    def _found(self, y: Tensor) -> Tensor:
        """(B,) the least α over all cells with C_y ≥ α C; 0 where conditions fail."""
        of_y, of_norm = (blocks.permute(3, 0, 1, 2) for blocks in (self._lower_blocks(y), self._norm))  # (B, K, m, m)
        scale = of_y.abs().amax((1, 2, 3))
        found = least_ratios(of_y, of_norm).amin(1)
        valid = torch.linalg.eigvalsh(of_y).amin((1, 2)) >= -KERNEL * scale
        for condition in self._conditions:
            valid = valid & (condition(y) >= 0).all(0).all(0)
        return torch.where(valid, found, 0.0)

    def relative_coercivity(self, y: Tensor, nominal: Tensor) -> Tensor:
        """Ones: the norm of error bounds is the same for every y."""
        return torch.ones(self.check_parameters(y).shape[0], dtype=self.wide, device=self.frame.device)

    def coercivity(self, y: Tensor) -> Tensor:
        """Zeros: bounds use `relative_coercivity`, which needs no definite blocks."""
        return torch.zeros(self.check_parameters(y).shape[0], dtype=self.wide, device=self.frame.device)


def _second_derivatives(integrals: list[StateIntegral], y: Tensor, s: Tensor) -> Tensor:
    K, m, B = s.shape
    blocks = torch.zeros(K, m, m, B, dtype=s.dtype, device=s.device)
    for integral in integrals:
        integral.add_blocks(blocks, y, s)
    return blocks
