"""Sparse matrices by rows, in NumPy: the building block of P_j, H and D. Needs no torch.

R rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fem_frames.mesh.geometry import Floats, Ints


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """A sparse matrix in NumPy and float64: row r has the entries starts[r], …, starts[r + 1] - 1."""

    starts: Ints  # (R + 1,)
    columns: Ints  # (entries,)
    weights: Floats  # (entries,)
    shape: tuple[int, int]

    @classmethod
    def from_entries(
        cls, rows: npt.ArrayLike, columns: npt.ArrayLike, weights: npt.ArrayLike, shape: tuple[int, int]
    ) -> SparseMatrix:
        """The matrix with these entries, which broadcast, in any order, each given once; zeros are dropped."""
        row, column, weight = (np.ravel(a) for a in np.broadcast_arrays(rows, columns, weights))
        keep = weight != 0
        row, column, weight = row[keep], column[keep], weight[keep]
        order = np.lexsort((column, row))
        starts = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=shape[0]))])
        return cls(starts.astype(np.int64), column[order].astype(np.int64), weight[order].astype(np.float64), shape)

    @classmethod
    def from_scipy(cls, matrix: Any) -> SparseMatrix:
        """The same matrix from SciPy; zeros are dropped."""
        coo = matrix.tocoo()
        coo.sum_duplicates()
        return cls.from_entries(coo.row, coo.col, coo.data, coo.shape)

    @classmethod
    def stacked(cls, first: SparseMatrix, second: SparseMatrix) -> SparseMatrix:
        """The rows of `first`, then the rows of `second`."""
        starts = np.concatenate([first.starts, first.starts[-1] + second.starts[1:]])
        columns, weights = (np.concatenate([getattr(x, k) for x in (first, second)]) for k in ("columns", "weights"))
        return cls(starts, columns, weights, (first.shape[0] + second.shape[0], first.shape[1]))

    def to_scipy(self) -> Any:
        """The same matrix as a csr_array of SciPy."""
        from scipy import sparse

        return sparse.csr_array((self.weights, self.columns, self.starts), shape=self.shape)

    def transposed(self) -> SparseMatrix:
        rows = np.repeat(np.arange(self.shape[0]), np.diff(self.starts))
        return SparseMatrix.from_entries(self.columns, rows, self.weights, self.shape[::-1])

    def after(self, before: SparseMatrix) -> SparseMatrix:
        """The map [w'; w] to self [before w'; w], computed by dense matrices: only for small ones."""
        dense = [np.zeros(rows.shape) for rows in (self, before)]
        for matrix, rows in zip(dense, (self, before), strict=True):
            matrix[np.repeat(np.arange(rows.shape[0]), np.diff(rows.starts)), rows.columns] = rows.weights
        state = before.shape[0]
        joined = np.concatenate([dense[0][:, :state] @ dense[1], dense[0][:, state:]], axis=1)
        row, column = np.nonzero(joined)
        return SparseMatrix.from_entries(row, column, joined[row, column], joined.shape)

    def with_columns(self, places: Ints) -> SparseMatrix:
        """The same rows with column c moved to places[c]."""
        rows = np.repeat(np.arange(self.shape[0]), np.diff(self.starts))
        return SparseMatrix.from_entries(rows, places[self.columns], self.weights, self.shape)

    def part(self, first: int, last: int) -> SparseMatrix:
        """The rows first, …, last - 1."""
        entries = slice(self.starts[first], self.starts[last])
        starts = self.starts[first : last + 1] - self.starts[first]
        return SparseMatrix(starts, self.columns[entries], self.weights[entries], (last - first, self.shape[1]))
