"""Quadratic densities on states, given by blocks: the base class for formulations of users.

B samples, K finest cells, Q quadrature points in a cell, m numbers in a cell's state, L local dofs, d dimension.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fem_frames.formulations.formulation import ErrorNorm, Formulation
from fem_frames.frame import level_matrices
from fem_frames.mesh.simplices import moments
from fem_frames.operators.cells import CellBlocks, cells_last, flat_first
from fem_frames.operators.linear import dot


class QuadraticFormulation(Formulation):
    """Minimise Σ_T ½ sᵀ C_y s - ℓ_yᵀ s - ⟨h, u⟩ over the states s of cells, where h are Neumann data.

    A subclass names its fields and gives `blocks` (C_y) and `state_functional` (ℓ_y), both for states that are scaled
    by |T|^{1/2}: an integral over a cell is then a mean over it. Export, loss, solutions, error bounds and training
    follow; `forms` adds PETSc's reference solutions. demos/demo_own_equation.py is an example.
    See docs/formulations.md.
    """

    factor = 0.5
    norms = (ErrorNorm("energy", "energy norm", "√⟨C_y 𝒟e, 𝒟e⟩", "discrete solution"),)

    @abstractmethod
    def blocks(self, y: Tensor) -> Tensor:
        """(K, m, m, B) C_y in the wide precision, symmetric; error bounds need it positive definite on every cell."""

    @abstractmethod
    def state_functional(self, y: Tensor) -> Tensor:
        """(K, m, B) or (K, m, 1) ℓ_y in the wide precision."""

    @classmethod
    def reference_solvers(cls, dimension: int) -> tuple[str, ...]:
        return ("lu", "cg")

    # ---- helpers for densities

    @cached_property
    def moments(self) -> Tensor:
        """(K, d, d) means of (x - x_c)(x - x_c)ᵀ over cells: ∫ u² = |T| (u_c² + gᵀ moments g) for P1."""
        arrays = self.frame.arrays
        return self._as_data(moments(arrays.points, arrays.levels[-1].cells))

    @cached_property
    def volume_roots(self) -> Tensor:
        """(K,) |T|^{1/2}."""
        return self._as_data(np.sqrt(self.frame.arrays.volumes))

    def source_functional(self, y: Tensor) -> Tensor:
        """(K, 1 + d, B) or (K, 1 + d, 1) ℓ with ℓᵀ s = ∫_T f_y u, for states (u_c, g) of P1 with values."""
        f = self.source(y)  # (K, Q, B), (1, 1, 1) for a number
        arrays = self.frame.arrays
        f = f.expand(len(arrays.volumes), len(arrays.rule_weights), f.shape[2])
        slopes = torch.einsum("q,kqd,kqb->kdb", self._weights, self._offsets, f)
        return self.volume_roots[:, None, None] * torch.cat([self.mean(f)[:, None], slopes], dim=1)

    @cached_property
    def _offsets(self) -> Tensor:
        """(K, Q, d) x - x_c at the quadrature points."""
        arrays = self.frame.arrays
        return self._as_data(level_matrices.quadrature_points(arrays) - arrays.centres[:, None])

    # ---- consequences of blocks and state_functional

    def C(self, y: Tensor) -> CellBlocks:
        return CellBlocks(self.rounded(self._checked_blocks(y), "C_y"))

    def _checked_blocks(self, y: Tensor) -> Tensor:
        found, m = self.blocks(y), level_matrices.state_size(self.frame.arrays)
        expected = (len(self.frame.arrays.volumes), m, m, self.check_parameters(y).shape[0])
        if tuple(found.shape) != expected:
            raise ValueError(
                f"blocks of {self.name} have shape {tuple(found.shape)}; (K, m, m, B) = {expected} is expected"
            )
        return found

    def local_matrices(self, y: Tensor) -> Tensor:
        local = self._as_data(level_matrices.local_states(self.frame.arrays))  # (K, m, L)
        return torch.einsum("kml,kmnb,kni->klib", local, self._checked_blocks(y), local)

    def loss(self, w: Tensor, y: Tensor) -> Tensor:
        self.check_coefficients(w, y)
        s = cells_last(self.states(w), level_matrices.state_size(self.frame.arrays)).to(self.wide)
        return self._energy(s, y) - dot(self.frame_functional(y), w) - self.lift_functional(y)

    def _energy(self, s: Tensor, y: Tensor) -> Tensor:
        """(B,) Σ ½ sᵀ C_y s - ℓ_yᵀ s for states (K, m, B)."""
        product = _product(self._checked_blocks(y), s)
        return (s * (0.5 * product - self.state_functional(y))).sum((0, 1))

    def loss_and_residual(self, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self.check_coefficients(w, y)
        s = cells_last(self.states(w), level_matrices.state_size(self.frame.arrays)).to(self.wide)
        product, load = _product(self._checked_blocks(y), s), self.state_functional(y)
        on_frame = self.frame_functional(y)
        loss = (s * (0.5 * product - load)).sum((0, 1)) - dot(on_frame, w) - self.lift_functional(y)
        back = flat_first((product - load).to(self.frame.dtype), w)
        return loss, (self.frame.D.T(back) - on_frame).reshape(w.shape)

    def functional(self, y: Tensor) -> Tensor:
        """(1, N) the load of Neumann data on the first field."""
        arrays = self.frame.arrays
        load = np.zeros(arrays.nodal_size)
        free = arrays.fields[0].free[-1]
        load[: len(free)] = arrays.neumann_load[free]
        return self._as_data(load)[None]

    def lift_functional(self, y: Tensor) -> Tensor:
        arrays = self.frame.arrays
        value = float(arrays.neumann_load @ arrays.fields[0].lift[-1])
        return torch.full((1,), value, dtype=self.wide, device=self.frame.device)

    def state_load(self, y: Tensor) -> Tensor:
        y = self.check_parameters(y)
        lift = cells_last(self._lift.expand(len(y), -1), level_matrices.state_size(self.frame.arrays)).to(self.wide)
        load = self.state_functional(y) - _product(self._checked_blocks(y), lift)
        return flat_first(self.rounded(load, "the load"), y)

    def constant(self, y: Tensor) -> Tensor:
        y = self.check_parameters(y)
        lift = cells_last(self._lift.expand(len(y), -1), level_matrices.state_size(self.frame.arrays)).to(self.wide)
        return self._energy(lift, y) - self.lift_functional(y)

    def coercivity(self, y: Tensor) -> Tensor:
        least = torch.linalg.eigvalsh(self._checked_blocks(y).permute(3, 0, 1, 2))[..., 0].amin(1)
        return least.clamp_min(0)

    def energy_norm(self, states: Tensor, y: Tensor) -> Tensor:
        s = cells_last(states, level_matrices.state_size(self.frame.arrays)).to(self.wide)
        return (s * _product(self._checked_blocks(y), s)).sum((0, 1)).clamp_min(0).sqrt()


def _product(blocks: Tensor, s: Tensor) -> Tensor:
    """(K, m, B) blocks (K, m, m, B) times states (K, m, B), in one pass over memory, unlike einsum."""
    found = blocks[:, :, 0] * s[:, None, 0]
    for i in range(1, s.shape[1]):
        found = torch.addcmul(found, blocks[:, :, i], s[:, None, i])
    return found
