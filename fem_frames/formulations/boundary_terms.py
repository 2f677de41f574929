"""Boundary data that are evaluated for each y: states of the lift, loads on facets, and the energy of Robin conditions.

On a facet F of a cell T, u = pᵀ s / |T|^{1/2} with the state s = |T|^{1/2} (u(x_c), ∇u) and p = (1, x - x_c), so

    ∫_F k u² = sᵀ (1/|T| ∫_F k p pᵀ) s :

a Robin condition adds a block to C_y on the cells at its facets.

B samples, N points, K finest cells, F boundary facets, Q quadrature points, m numbers in a cell's state, d dimension.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fem_frames.frame.arrays import FrameArrays
from fem_frames.frame.boundary import FacetIntegrals
from fem_frames.frame.sparse import SparseMatrix
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.mesh.simplices import find
from fem_frames.operators.checking import is_plain, unseen
from fem_frames.operators.lift import NodalLift, StateLift, depends_on_y
from fem_frames.operators.recursion import SparseOperator
from fem_frames.problem.definition import Problem


class BoundaryTerms:
    """Maps y (B, p) to all terms of boundary data that are evaluated for each y, in one precision on one device."""

    def __init__(self, arrays: FrameArrays, problem: Problem, dtype: torch.dtype, device: torch.device) -> None:
        assert arrays.boundary is not None
        self._arrays, self._problem, self._dtype, self._device = arrays, problem, dtype, device
        self.lifts = depends_on_y(arrays)
        """Whether the lift depends on y."""
        self.loads = len(arrays.boundary.facets[-1]) > 0
        """Whether facets add to the load."""

    def _converted(self, array: Floats) -> Tensor:
        return torch.as_tensor(np.array(array)).to(self._device, self._dtype)

    # ---- the lift

    def lift_states(self, y: Tensor) -> Tensor:
        """(B, K m) states of the lift."""
        return self._state_lift(y)

    def lift_values(self, y: Tensor) -> Tensor:
        """(B or 1, N) nodal values of the lift of the first field."""
        return self._nodal_lift(y)[self._arrays.fields[0].name]

    def on_lift(self, y: Tensor, source: Tensor | None) -> Tensor:
        """(B or 1,) the load of Neumann and Robin data on the lift, and of a source (K, Q, B), whose axes may be 1."""
        if not self.lifts and not self._arrays.fields[0].lift[-1].any():
            return torch.zeros(1, dtype=self._dtype, device=self._device)
        lift, arrays = self.lift_values(y), self._arrays
        load = self._fixed_load[None]
        if self.loads:
            load = load + self.load(y)
        found = (load * lift).sum(-1)
        if source is not None:
            at = lift[:, self._cells] @ self._hats.T  # (B, K, Q)
            at = at * self._converted(arrays.volumes)[:, None] * self._converted(arrays.rule_weights)
            found = found + (at * source.permute(2, 0, 1)).sum((1, 2))
        return found.expand(y.shape[0])

    # ---- loads and blocks of facets

    def load(self, y: Tensor) -> Tensor:
        """(B, N) integrals of Neumann data and k u_outside times hats."""
        return self._to_facets.T(self._facets.loads(y, is_plain(y)).flatten(1))

    def nodal_load(self, y: Tensor) -> Tensor:
        """(B, free nodal values of all fields) the same load."""
        return self._free_to_facets.T(self._facets.loads(y, is_plain(y)).flatten(1))

    @property
    def has_robin(self) -> bool:
        return self.loads and self._facets.has_robin

    def transfer(self, y: Tensor) -> Tensor:
        """(B, F of Robin conditions, Q) k, checked to be positive and finite."""
        k = self._facets.transfer(y, is_plain(y))
        tests = unseen(k)
        if tests is not None:
            low, high = torch.aminmax(k.detach())
            tests.append((low > 0) & (high < torch.inf))
        return k

    @property
    def robin_nodes(self) -> Ints:
        """(F of Robin conditions, d) the points of their facets."""
        return self._facets.facets[self._facets.robin]

    def robin_masses(self, y: Tensor) -> Tensor:
        """(F of Robin conditions, d, d, B) integrals of k times two hats."""
        return self._facets.masses(y, is_plain(y)).permute(1, 2, 3, 0)

    def added_to(self, blocks: Tensor, y: Tensor) -> Tensor:
        """(K, m, m, B) blocks plus those of the Robin conditions; the states begin with value and gradient of u."""
        cells, table, basis = self._robin_cells
        own = torch.einsum("fqm,fqn,bfq->fmnb", basis, basis, self.transfer(y))
        own = torch.cat([own, torch.zeros_like(own[:1])])[table].sum(1)  # (cells, 1 + d, 1 + d, B)
        others = blocks.shape[1] - own.shape[1]
        return blocks.index_add(0, cells, torch.nn.functional.pad(own, (0, 0, 0, others, 0, others)))

    # ---- tables, made when first needed

    @cached_property
    def _state_lift(self) -> StateLift:
        return StateLift(self._arrays, self._problem, self._dtype, self._device)

    @cached_property
    def _nodal_lift(self) -> NodalLift:
        return NodalLift(self._arrays, self._problem, self._dtype, self._device)

    @cached_property
    def _facets(self) -> FacetIntegrals:
        boundary = self._arrays.boundary
        assert boundary is not None
        rule = (boundary.rule_points, boundary.rule_weights)
        facets, conditions = boundary.facets[-1], boundary.conditions[-1]
        return FacetIntegrals(self._arrays.points, facets, conditions, rule, self._problem, self._converted)

    @cached_property
    def _to_facets(self) -> SparseOperator:
        """Values at points to their copies (F, d) on the facets."""
        return self._copies(self._facets.facets.ravel(), len(self._arrays.points))

    @cached_property
    def _free_to_facets(self) -> SparseOperator:
        """Free nodal values of all fields to the copies (F, d) of the first field's on the facets; given ones are 0."""
        free = self._arrays.fields[0].free[-1]
        numbers = np.full(len(self._arrays.points), -1)
        numbers[free] = np.arange(len(free))
        return self._copies(numbers[self._facets.facets.ravel()], self._arrays.nodal_size)

    def _copies(self, places: Ints, size: int) -> SparseOperator:
        """Copies of values from these places, of zero where a place is -1."""
        kept = np.flatnonzero(places >= 0)
        table = SparseMatrix.from_entries(kept, places[kept], 1.0, (len(places), size))
        return SparseOperator(table, self._dtype, self._device)

    @cached_property
    def _robin_cells(self) -> tuple[Tensor, Tensor, Tensor]:
        """Cells with Robin facets (C,), these facets (C, most), padded by -1, and p at their points, weighted."""
        arrays, robin = self._arrays, self._facets.robin
        owner = facet_cells(arrays, self._facets.facets[robin])
        cells, count = np.unique(owner, return_counts=True)
        order = np.argsort(owner, kind="stable")
        place = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
        table = np.full((len(cells), count.max()), -1)
        table[np.repeat(np.arange(len(cells)), count), place] = order
        offsets = self._facets.points[robin] - arrays.centres[owner][:, None]  # (F, Q, d)
        basis = np.concatenate([np.ones((*offsets.shape[:2], 1)), offsets], axis=2)
        basis *= np.sqrt(self._facets.weights[robin] / arrays.volumes[owner][:, None])[..., None]
        index = (torch.as_tensor(a, device=self._device) for a in (cells, table))
        return (*index, self._converted(basis))  # type: ignore[return-value]

    @cached_property
    def _fixed_load(self) -> Tensor:
        return self._converted(self._arrays.neumann_load)

    @cached_property
    def _cells(self) -> Tensor:
        return torch.as_tensor(np.array(self._arrays.levels[-1].cells), device=self._device)

    @cached_property
    def _hats(self) -> Tensor:
        """(Q, d + 1)"""
        return self._converted(self._arrays.rule_points)


def facet_cells(arrays: FrameArrays, facets: Ints) -> Ints:
    """(F,) the finest cell that each boundary facet (F, d) belongs to."""
    table, of_cells = arrays.simplices(len(arrays.levels) - 1, arrays.dimension - 1)
    owner = np.zeros(len(table), np.int64)
    owner[of_cells] = np.arange(len(of_cells))[:, None]
    place = find(facets, table)
    if (place < 0).any():
        raise ValueError("a boundary facet of the frame belongs to none of its cells: the file is damaged")
    return np.asarray(owner[place])
