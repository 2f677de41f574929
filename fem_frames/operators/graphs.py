"""Matrices of scalar fields as weighted graphs in torch: A = Gᵀ diag(c) G, with other weights c for every sample.

B samples, n unknowns, E rows of G.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fem_frames.frame.graphs import Graph
from fem_frames.frame.sparse import SparseMatrix
from fem_frames.operators.linear import RowOperator
from fem_frames.operators.products import SparseProduct, accumulation_dtype


class GraphProducts:
    """Products with G and its transpose, and the diagonals of A, for weights c (E, B)."""

    def __init__(self, graph: Graph, signed: bool, dtype: torch.dtype, device: torch.device) -> None:
        G = graph.incidence
        self.size, self.dtype, self.device = graph.size, dtype, device
        self.edges = len(graph.edges)
        self.differences = SparseProduct(G, dtype, device)  # v to G v
        self.divergence = SparseProduct(G.transposed(), dtype, device)  # z to Gᵀ z
        absolute = SparseMatrix(G.starts, G.columns, abs(G.weights), G.shape)
        wide = accumulation_dtype(dtype)
        self._sums = SparseProduct(absolute.transposed(), wide, device)
        self._edge_sums = SparseProduct(absolute.part(0, self.edges).transposed(), wide, device) if signed else None

    def diagonal(self, c: Tensor) -> Tensor:
        """(n, B) numbers D with A ≤ 2 D: the diagonal of A, but half the sum of a row's sizes where that is larger."""
        wide = c.to(accumulation_dtype(self.dtype))
        found = self._sums(wide)
        if self._edge_sums is None:
            return found
        return torch.maximum(found, 0.5 * (found + self._edge_sums(wide[: self.edges].abs())))


class GraphMatrix(RowOperator):
    """A = Gᵀ diag(c) G for weights c (E, B), one matrix per sample; symmetric."""

    def __init__(self, products: GraphProducts, weights: Tensor) -> None:
        self.products, self.weights = products, weights
        self.shape = (products.size,) * 2
        self.dtype, self.device, self.batch = products.dtype, products.device, weights.shape[1]

    def rows(self, x: Tensor) -> Tensor:
        """(n, B) to (n, B)."""
        flow = self.products.differences(x)
        return self.products.divergence(flow.mul_(self.weights))

    def rows_transposed(self, z: Tensor) -> Tensor:
        return self.rows(z)
