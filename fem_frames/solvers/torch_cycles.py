"""Multigrid cycles in torch operations: on every device, in every precision, and recorded by autograd where wanted.

B samples, n unknowns of a level, N of the finest one, E weights of a level.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fem_frames.frame.graphs import GraphHierarchy, GraphLevel
from fem_frames.operators.checking import is_plain
from fem_frames.operators.graphs import GraphMatrix, GraphProducts
from fem_frames.operators.products import SparseProduct, accumulation_dtype
from fem_frames.operators.recursion import Prolongation
from fem_frames.solvers.cycle_plans import Plan, Weights
from fem_frames.solvers.sample_multigrid import HALF, INDEFINITE, SampleMultigrid, dot


class TorchLevels:
    """The products of all levels that do not depend on y."""

    def __init__(self, tables: GraphHierarchy, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.wide = dtype, accumulation_dtype(dtype)
        self.levels = [
            TorchLevel(level, signed, dtype, device) for level, signed in zip(tables.levels, tables.signed, strict=True)
        ]

    def at(self, data: Tensor) -> TorchMultigrid:
        """The matrices for data (n, B) of the finest level."""
        found: list[Tensor] = []
        for level in reversed(self.levels):
            if level.of_data is not None:
                data = data if not found else data.unflatten(0, (level.of_data.shape[1], -1)).mean(1)
                found.append(level.of_data(data))
            else:
                assert level.of_finer is not None
                found.append(level.of_finer(found[-1]))
        return TorchMultigrid(self, found[::-1])


class TorchLevel:
    """The products of one level that do not depend on y."""

    def __init__(self, level: GraphLevel, signed: bool, dtype: torch.dtype, device: torch.device) -> None:
        wide = accumulation_dtype(dtype)
        self.products = GraphProducts(level.graph, signed, dtype, device)
        self.size = level.graph.size
        self.P = None if level.prolongation is None else Prolongation(level.prolongation, dtype, device)
        self.of_data = None if level.of_data is None else SparseProduct(level.of_data, wide, device)
        self.of_finer = None if level.of_finer is None else SparseProduct(level.of_finer, wide, device)
        rows, columns, signs = level.graph.places
        self._places = torch.as_tensor(rows * level.graph.size + columns).to(device)
        self._signs = torch.as_tensor(signs).to(device, wide)[:, None]
        self._edges = len(level.graph.edges)

    def dense(self, weights: Tensor) -> Tensor:
        """(B, n, n) the matrices with weights (E, B)."""
        edges = weights[: self._edges]
        values = torch.cat([edges, edges, edges, edges, weights[self._edges :]]) * self._signs
        flat = values.new_zeros(self.size**2, values.shape[1]).index_add_(0, self._places, values)
        return flat.T.unflatten(1, (self.size, self.size))


class TorchMultigrid(SampleMultigrid):
    """Cycles by torch operations; gradients flow through learned weights and through the right-hand side."""

    def __init__(self, levels: TorchLevels, weights: Sequence[Tensor]) -> None:
        """`weights` (E, B) of each level, in the wide precision."""
        self._levels, dtype = levels.levels, levels.dtype
        self.wide, self.dtype = levels.wide, dtype
        diagonals = [level.products.diagonal(c) for level, c in zip(self._levels, weights, strict=True)]
        if dtype in HALF:
            self.scale = diagonals[-1].amax(0)
            weights, diagonals = ([value / self.scale for value in values] for values in (weights, diagonals))
        matrices = [c.to(dtype) for c in weights]
        self.matrices = [GraphMatrix(level.products, c) for level, c in zip(self._levels, matrices, strict=True)]
        inverses = [
            level.products.inverse_blocks(c, D) for level, c, D in zip(self._levels, weights, diagonals, strict=True)
        ]
        self.inverse_diagonals = [entries[0].to(dtype) for entries in inverses]  # (n, B)
        self.inverse_couplings = [[entry.to(dtype) for entry in entries[1:]] for entries in inverses]
        """On each level (n, B) for each partner of an unknown (`GraphProducts.partners`)."""
        self._coarsest = _inverse(self._levels[0].dense(weights[0]))  # (n, n, B)

    @property
    def A(self) -> GraphMatrix:
        return self.matrices[-1]

    def full_cycle(self, b: Tensor, plan: Plan) -> Tensor:
        loads = [b]
        for j in range(len(self._levels) - 1, 0, -1):
            loads.append(self._restricted(j, loads[-1]))
        loads.reverse()
        v, last = self.coarsest(loads[0]), len(self._levels) - 1
        for j in range(1, last + 1):
            v = self._prolonged(j, v)
            start = plan.start(j, last)
            v = v if start is None else v * start
            v = self.cycle(j, v, loads[j], plan, j)
        return v

    def preconditioned(self, r: Tensor, plan: Plan) -> Tensor:
        top = len(self._levels) - 1
        return self.cycle(top, None, r, plan, top)

    def estimated_square(self, v: Tensor, b: Tensor) -> Tensor:
        r = self._residual(len(self._levels) - 1, v, b)
        square = torch.zeros(r.shape[1], dtype=self.wide, device=r.device)
        for j in range(len(self._levels) - 1, 0, -1):
            square += dot(r, self.smoother(j, r))
            r = self._restricted(j, r)
        return square + dot(r, self.coarsest(r))

    def cycle(self, j: int, v: Tensor | None, b: Tensor, plan: Plan, top: int) -> Tensor:
        """(n, B) one cycle on level j for A v = b, begun on level `top`; None is zero. It may overwrite v."""
        if j == 0:
            return self.coarsest(b)
        pre, post, correction = plan.weights(j, top, len(self._levels) - 1)
        v = self._smoothed(j, v, b, pre)
        r = b if v is None else self._residual(j, v, b)
        r, e = self._restricted(j, r), None
        for _ in range(plan.visits):
            e = self.cycle(j - 1, e, r, plan, top)
            if j == 1:
                break  # solved exactly
        assert e is not None
        e = self._prolonged(j, e)
        e = e if correction is None else e * correction
        v = e if v is None else v.add_(e) if _owned(v) else v + e
        made = self._smoothed(j, v, b, post)
        assert made is not None
        return made

    def coarsest(self, b: Tensor) -> Tensor:
        """(n, B) the solution on the coarsest level."""
        return (self._coarsest * b.to(self.wide)).sum(1).to(self.dtype)

    def smoother(self, j: int, r: Tensor) -> Tensor:
        """(n, B) D⁻¹ r on level j, with the blocks D of unknowns at the same point."""
        made = self.inverse_diagonals[j] * r
        for partner, entries in zip(self._levels[j].products.partners, self.inverse_couplings[j], strict=True):
            made = made + entries * r[partner]
        return made

    def _smoothed(self, j: int, v: Tensor | None, b: Tensor, weights: Weights) -> Tensor | None:
        for w in weights:
            if v is None:
                v = self.smoother(j, b) * w
                continue
            r = self._residual(j, v, b)
            if not (isinstance(w, float) and _owned(v)):
                v = v + self.smoother(j, r) * w
                continue
            v = v.addcmul_(r, self.inverse_diagonals[j], value=w)
            for partner, entries in zip(self._levels[j].products.partners, self.inverse_couplings[j], strict=True):
                v = v.addcmul_(r[partner], entries, value=w)
        return v

    def _residual(self, j: int, v: Tensor, b: Tensor) -> Tensor:
        if _owned(v) and not b.requires_grad:
            product = self.matrices[j].rows(v)
            return torch.sub(b, product, out=product)
        return b - self.matrices[j](v.T).T

    def _prolonged(self, j: int, v: Tensor) -> Tensor:
        P = self._levels[j].P
        assert P is not None
        return P.rows(v) if _owned(v) else P(v.T).T

    def _restricted(self, j: int, r: Tensor) -> Tensor:
        P = self._levels[j].P
        assert P is not None
        return P.rows_transposed(r) if _owned(r) else P.T(r.T).T


def _owned(v: Tensor) -> bool:
    """Whether nobody differentiates through v, so that it may be overwritten."""
    return not (torch.is_grad_enabled() and v.requires_grad)


def _inverse(matrices: Tensor) -> Tensor:
    """(n, n, B) the inverses of positive definite matrices (B, n, n)."""
    factor, failed = torch.linalg.cholesky_ex(matrices)
    if is_plain(matrices) and failed.any():
        raise ValueError(INDEFINITE)
    return torch.cholesky_inverse(factor).permute(1, 2, 0).contiguous()
