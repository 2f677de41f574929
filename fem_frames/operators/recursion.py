"""P_j, H and D: sparse products, and the recursion over levels.

B samples, n columns, r rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fem_frames.frame.sparse import SparseMatrix
from fem_frames.operators.linear import RowOperator
from fem_frames.operators.products import SparseProduct


class SparseOperator(RowOperator):
    """The map of one sparse matrix, such as P_j."""

    def __init__(self, rows: SparseMatrix, dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.dtype, self.device = rows.shape, dtype, device
        self._product = SparseProduct(rows, dtype, device)
        self._transposed = SparseProduct(rows.transposed(), dtype, device)

    def rows(self, x: Tensor) -> Tensor:
        return self._product(x)

    def rows_transposed(self, z: Tensor) -> Tensor:
        return self._transposed(z)


class Prolongation(SparseOperator):
    """P_j : nodal values of one field on level j-1 to level j."""


class LevelRecursion(RowOperator):
    """Maps w to the finest state by state_j = M_j [state_{j-1}; w_j], from coarse to fine, at a cost of O(N).

    `sizes` has the number of coefficients of every family (outer) and level (inner), in the order of w. The coarsest
    levels, where a product costs less than its call, are joined to one product.
    """

    SMALL = 2**12  # entries of the dense matrix up to which coarse levels are joined: sums have to stay short

    def __init__(
        self, tables: Sequence[SparseMatrix], sizes: Sequence[Sequence[int]], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shape = (tables[-1].shape[0], sum(map(sum, sizes)))
        self.dtype, self.device = dtype, device
        self.hint = "was the net built with frame.level_sizes?"
        joined, tables = _join_coarse(tables, sizes, self.SMALL)
        sizes = [[sum(own[:joined]), *own[joined:]] for own in sizes]
        self._sizes = [size for own in sizes for size in own]
        self._level_sizes = [[own[j] for own in sizes] for j in range(len(tables))]
        self._tables = [SparseProduct(table, dtype, device) for table in tables]
        # M_jᵀ in two parts: rows of similar length share the work of threads evenly.
        self._to_parents: list[SparseProduct] = []
        self._to_coefficients: list[SparseProduct] = []
        for j, table in enumerate(tables):
            before, transposed = tables[j - 1].shape[0] if j else 0, table.transposed()
            self._to_parents.append(SparseProduct(transposed.part(0, before), dtype, device))
            self._to_coefficients.append(SparseProduct(transposed.part(before, table.shape[1]), dtype, device))

    def rows(self, w: Tensor) -> Tensor:
        pieces, count = w.split(self._sizes), len(self._tables)
        state = w[:0]
        for j, table in enumerate(self._tables):
            state = table(torch.cat([state, *pieces[j::count]]))
        return state

    def rows_transposed(self, state: Tensor) -> Tensor:
        count = len(self._tables)
        pieces: list[Tensor] = [state] * len(self._sizes)
        for j in reversed(range(count)):
            pieces[j::count] = self._to_coefficients[j](state).split(self._level_sizes[j])
            if j:
                state = self._to_parents[j](state)
        return torch.cat(pieces)


def _join_coarse(
    tables: Sequence[SparseMatrix], sizes: Sequence[Sequence[int]], limit: int
) -> tuple[int, list[SparseMatrix]]:
    """The number of coarsest levels joined, and the tables with these levels as one, columns by field, then level."""
    joined, first = 1, tables[0]
    while joined < len(tables) and tables[joined].shape[0] * sum(sum(own[: joined + 1]) for own in sizes) <= limit:
        first = tables[joined].after(first)
        joined += 1
    # `after` orders columns by level, then field; w is ordered by field, then level.
    blocks = [[(j, k) for k in range(len(sizes))] for j in range(joined)]
    by_level = [block for own in blocks for block in own]
    by_field = sorted(by_level, key=lambda block: (block[1], block[0]))
    start, place = 0, {}
    for j, k in by_field:
        place[j, k] = start
        start += sizes[k][j]
    moved = [np.arange(sizes[k][j]) + place[j, k] for j, k in by_level]
    return joined, [first.with_columns(np.concatenate(moved)), *tables[joined:]]


class FrameSynthesis(LevelRecursion):
    """H : R^Nhat -> R^N, frame coefficients to nodal values on the finest level.

    v_j = P_j v_{j-1} + S_j w_j, where S_j normalises the hats. See "Multilevel frames" in the paper.
    """


class FrameDifferential(LevelRecursion):
    """D : R^Nhat -> R^(K m), frame coefficients to the state of every finest cell, scaled by |T|^{1/2}.

    In the paper every finest cell gathers from all levels, at a cost of O(J N); here cells pass their state on to their
    children, which costs O(N) and keeps all sums short. See "Stable representations" in the paper.
    """
