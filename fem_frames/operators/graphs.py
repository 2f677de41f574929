"""Matrices as weighted graphs in torch: A = Gᵀ diag(c) G, with other weights c for every sample.

B samples, n unknowns, P points with at most c unknowns each, E rows of G.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fem_frames.frame.graphs import Graph
from fem_frames.frame.sparse import SparseMatrix
from fem_frames.operators.checking import is_recorded
from fem_frames.operators.linear import RowOperator
from fem_frames.operators.products import SparseProduct, accumulation_dtype


class GraphProducts:
    """Products with G and its transpose, and the blocks of A that the smoother inverts, for weights c (E, B)."""

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
        at = graph.at_points
        slot, point = np.divmod(np.argsort(at.ravel(), kind="stable")[: graph.size], at.shape[1])  # of each unknown
        self._at = torch.as_tensor(at).to(device)
        self._within = torch.as_tensor(_edges_within(graph, at.shape, slot, point)).to(device)
        self.partners: list[Tensor] = []
        """c - 1 times (n,): the other unknowns at the point of each unknown."""
        self._entries: list[Tensor] = []
        for shift in range(len(at)):
            other = (slot + shift) % len(at)
            self._entries.append(torch.as_tensor((slot * len(at) + other) * at.shape[1] + point).to(device))
            # An empty place has zeros in the inverse: any partner will do, such as the unknown itself.
            partner = np.where(at[other, point] < graph.size, at[other, point], np.arange(graph.size))
            self.partners.append(torch.as_tensor(partner).to(device))
        del self.partners[0]  # the unknowns themselves

    def diagonal(self, c: Tensor) -> Tensor:
        """(n, B) the diagonal of A, but half the sum of a row's sizes where that is larger.

        With it, the diagonal D of A satisfies A ≤ 2 D, and so do the blocks D of A between unknowns at the same point.
        """
        wide = c.to(accumulation_dtype(self.dtype))
        found = self._sums(wide)
        if self._edge_sums is None:
            return found
        return torch.maximum(found, 0.5 * (found + self._edge_sums(wide[: self.edges].abs())))

    def inverse_blocks(self, c: Tensor, diagonal: Tensor) -> list[Tensor]:
        """c times (n, B): the diagonal of D⁻¹, then its entries in the columns of each partner.

        D has the blocks of A between unknowns at the same point, with the given diagonal (n, B).
        """
        if not self.partners:
            return [diagonal.reciprocal()]
        own = torch.cat([diagonal, torch.ones_like(diagonal[:1])])  # empty places: blocks stay invertible
        between = torch.cat([c, torch.zeros_like(c[:1])]).neg()
        size = range(len(self._at))
        blocks = [[own[self._at[i]] if i == j else between[self._within[i, j]] for j in size] for i in size]
        inverse = torch.cat([entry for row in inverted(blocks) for entry in row])  # (c c P, B)
        return [inverse[places] for places in self._entries]


class GraphMatrix(RowOperator):
    """A = Gᵀ diag(c) G for weights c (E, B), one matrix per sample; symmetric. Products have no gradient in c."""

    def __init__(self, products: GraphProducts, weights: Tensor) -> None:
        self.products, self.weights = products, weights
        self._is_differentiated = is_recorded(weights) and not torch.compiler.is_compiling()
        self.shape = (products.size,) * 2
        self.dtype, self.device, self.batch = products.dtype, products.device, weights.shape[1]

    def rows(self, x: Tensor) -> Tensor:
        """(n, B) to (n, B)."""
        if self._is_differentiated:
            raise ValueError(
                "multigrid has no gradient in y: use fem_frames.differentiable_solve(formulation, y), which takes one "
                "adjoint solve, or pass y.detach()"
            )
        flow = self.products.differences(x)
        return self.products.divergence(flow.mul_(self.weights))

    def rows_transposed(self, z: Tensor) -> Tensor:
        return self.rows(z)


def _edges_within(graph: Graph, shape: tuple[int, ...], slot: np.ndarray, point: np.ndarray) -> np.ndarray:
    """(c, c, P) the row of G that joins two unknowns at a point, E where there is none; `shape` is (c, P)."""
    found = np.full((shape[0], *shape), len(graph.edges) + len(graph.grounds))
    first, second = graph.edges.T
    rows = np.flatnonzero(point[first] == point[second])
    i, j, where = slot[first[rows]], slot[second[rows]], point[first[rows]]
    found[i, j, where] = found[j, i, where] = rows
    return found


def inverted(blocks: list[list[Tensor]]) -> list[list[Tensor]]:
    """The inverses of positive definite matrices, which are given by entries, by Gauss and Jordan's elimination."""
    size = range(len(blocks))
    for k in size:
        pivot = blocks[k][k].reciprocal()
        row = [pivot if j == k else blocks[k][j] * pivot for j in size]
        blocks = [
            row if i == k else [-blocks[i][k] * pivot if j == k else blocks[i][j] - blocks[i][k] * row[j] for j in size]
            for i in size
        ]
    return blocks
