"""Operators that act cell by cell, for C_y and A_y, and products BᵀMB.

B samples, K finest cells, Q quadrature points in a cell, m numbers in a cell's state.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fem_frames.operators.checking import is_watched
from fem_frames.operators.linear import LinearOperator, batch_last, dot
from fem_frames.operators.products import accumulation_dtype


class CellScalars(LinearOperator):
    """Multiplies the m entries of every cell by one number: C_y of (E)."""

    def __init__(self, values: Tensor, size: int) -> None:
        """`values` (K, B), batch last."""
        self.values, self.size = values, size
        self.shape = (values.shape[0] * size,) * 2
        self.dtype, self.device, self.batch = values.dtype, values.device, values.shape[1]

    def __call__(self, x: Tensor) -> Tensor:
        self.check(x, self.shape[1])
        return flat_first(self.values[:, None] * cells_last(x, self.size), x)

    def T(self, z: Tensor) -> Tensor:
        return self(z)


class CellBlocks(LinearOperator):
    """Multiplies the entries of every cell by a small matrix, such as the local stiffness matrices of A_y."""

    def __init__(self, blocks: Tensor) -> None:
        """`blocks` (K, r, n, B), batch last."""
        K, rows, columns, _ = blocks.shape
        self.blocks = blocks
        self.shape = (K * rows, K * columns)
        self.dtype, self.device, self.batch = blocks.dtype, blocks.device, blocks.shape[3]

    def __call__(self, x: Tensor) -> Tensor:
        self.check(x, self.shape[1])
        product = self.blocks * cells_last(x, self.blocks.shape[2])[:, None]  # (K, r, n, B)
        return flat_first(product.sum(2), x)

    def T(self, z: Tensor) -> Tensor:
        self.check(z, self.shape[0])
        return flat_first((self.blocks * cells_last(z, self.blocks.shape[1])[:, :, None]).sum(1), z)


class CellEntries(LinearOperator):
    """The same for square blocks with many zeros: only entries that are not always zero are stored.

    Sums over rows and columns are accumulated in float32 if x is in half precision.
    """

    def __init__(self, entries: Mapping[tuple[int, int], Tensor], cells: int, size: int, batch: int) -> None:
        """`entries` (K, B) or (K, 1) by row and column of the blocks, which have `size` rows."""
        like = next(iter(entries.values()))
        self.entries, self.size = entries, size
        self.shape = (cells * size,) * 2
        self.dtype, self.device, self.batch = like.dtype, like.device, batch

    def __call__(self, x: Tensor) -> Tensor:
        self.check(x, self.shape[1])
        return self._rows(x, [(a, b, values) for (a, b), values in self.entries.items()])

    def T(self, z: Tensor) -> Tensor:
        self.check(z, self.shape[0])
        return self._rows(z, [(b, a, values) for (a, b), values in self.entries.items()])

    def _rows(self, x: Tensor, entries: list[tuple[int, int, Tensor]]) -> Tensor:
        wide = accumulation_dtype(x.dtype)
        s = cells_last(x, self.size).to(wide)  # (K, m, B)
        rows: dict[int, Tensor] = {}
        for a, b, values in entries:
            known = rows.get(a)
            values = values.to(wide)
            rows[a] = values * s[:, b] if known is None else torch.addcmul(known, values, s[:, b])
        like = next(iter(rows.values()))
        found = torch.stack([rows.get(a, torch.zeros_like(like)) for a in range(self.size)], dim=1)
        return flat_first(found.to(x.dtype), x)


class Transposed(LinearOperator):
    """Bᵀ as an operator."""

    def __init__(self, B: LinearOperator) -> None:
        self.B, self.shape = B, (B.shape[1], B.shape[0])
        self.dtype, self.device, self.batch, self.hint = B.dtype, B.device, B.batch, B.hint

    def __call__(self, x: Tensor) -> Tensor:
        return self.B.T(x)

    def T(self, z: Tensor) -> Tensor:
        return self.B(z)


class Congruent(LinearOperator):
    """BᵀMB, or BᵀB without M: HᵀA_yH and DᵀC_yD are two ways to write the same matrix. See docs/formulations.md."""

    def __init__(self, B: LinearOperator, M: LinearOperator | None = None) -> None:
        if M is not None and M.shape != (B.shape[0],) * 2:
            raise ValueError(
                f"M has shape {M.shape}, which does not fit B of shape {B.shape}; C_y goes with D, A_y with H, "
                "both of one frame"
            )
        if M is not None and (M.dtype, M.device) != (B.dtype, B.device):
            raise ValueError(f"B is in {B.dtype} on {B.device}, M in {M.dtype} on {M.device}: make both from one frame")
        self.B, self.M = B, M
        self.shape = (B.shape[1],) * 2
        self.dtype, self.device, self.hint = B.dtype, B.device, B.hint
        self.batch = B.batch if M is None else M.batch if B.batch is None else B.batch

    def __call__(self, x: Tensor) -> Tensor:
        self.check(x, self.shape[1])
        inner = self.B(x)
        return self.B.T(inner if self.M is None else self.M(inner))

    def T(self, z: Tensor) -> Tensor:
        self.check(z, self.shape[0])
        inner = self.B(z)
        return self.B.T(inner if self.M is None else self.M.T(inner))

    def quadratic(self, x: Tensor) -> Tensor:
        """(B,) ⟨M B x, B x⟩, summed in float32 if x is in half precision."""
        inner = self.B(x)
        if self.M is None:
            return dot(inner, inner)
        if isinstance(self.M, Congruent):
            return self.M.quadratic(inner)
        return dot(self.M(inner), inner)


class PointSum:
    """Sums values (K, Q, B) at the quadrature points of cells to (K, B), with one weight per point."""

    def __init__(self, weights: Tensor) -> None:
        """`weights` (Q,)."""
        self._weights, self._numbers = weights[:, None], weights.tolist()

    def __call__(self, values: Tensor) -> Tensor:
        if len(self._numbers) > 4 or is_watched(values):  # the gradient of a slice has the size of `values`
            return (self._weights * values).sum(1)
        total = self._numbers[0] * values[:, 0]  # temporaries have the size of a slice
        for q, weight in enumerate(self._numbers[1:], 1):
            total += weight * values[:, q]
        return total


def cells_last(x: Tensor, size: int) -> Tensor:
    """(B, K size) or (K size,) to (K, size, B)."""
    return batch_last(x if x.ndim > 1 else x[None]).unflatten(0, (-1, size))


def flat_first(cells: Tensor, like: Tensor) -> Tensor:
    """(K, size, B) to (B, K size), or (K size,) if `like` has no batch."""
    flat = cells.flatten(0, 1).T
    return flat[0] if like.ndim == 1 and flat.shape[0] == 1 else flat
