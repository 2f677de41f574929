"""Linear operators in torch: the contract, P_j, H and D by recursion over levels, block diagonals, BᵀMB.

Every operator has `op(x)`, `op.T(z)`, `op.shape`, `op.to_dense()`. The batch is first in every call, x (B, n) or (n,),
and last in memory: results are views of (n, B), and inputs of that layout are taken as they are, so that a chain of
operators never moves data to transpose it. Transposes are explicit, also in the backward pass: torch's own backward of
indexing saturates in half precision.

B samples, n columns, r rows, K finest cells, m numbers in a cell's state.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fem_frames.products import RowsProduct, accumulation_dtype
from fem_frames.rows import Rows


class NotFiniteError(ValueError):
    """Values that are not finite, where only finite ones make sense."""


class LinearOperator(ABC):
    """A linear map R^n -> R^r, for batches of vectors."""

    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    batch: int | None = None
    """Number of different maps, one for each sample of a batch of y; None: one map for all."""
    hint: str = ""
    """What a wrong length most likely comes from, for the message."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """(B, n) or (n,) to (B, r) or (r,)."""

    @abstractmethod
    def T(self, z: Tensor) -> Tensor:
        """(B, r) or (r,) to (B, n) or (n,), by the transposed map."""

    def to_dense(self) -> Tensor:
        """(r, n), or (batch, r, n) where there is one map a sample."""
        unit = torch.eye(self.shape[1], dtype=self.dtype, device=self.device)
        if self.batch is None:
            return self(unit).T.contiguous()
        return torch.stack([self(column.expand(self.batch, -1)) for column in unit], dim=-1)

    def check(self, x: Tensor, size: int) -> None:
        """A ValueError unless x is (…, size) of this operator's dtype and device."""
        name = type(self).__name__
        if not isinstance(x, Tensor):
            raise ValueError(f"{name} takes torch tensors, not {type(x).__name__}; use torch.as_tensor")
        if x.ndim == 0 or x.shape[-1] != size:
            raise ValueError(
                f"{name} of shape {self.shape} takes vectors of length {size}, but x has shape {tuple(x.shape)}"
                + (f"; {self.hint}" if self.hint else "")
            )
        if x.dtype != self.dtype:
            raise ValueError(
                f"{name} is in {self.dtype}, but x in {x.dtype}: convert x with x.to({self.dtype}), "
                "or make the frame in the dtype of x"
            )
        if x.device != self.device:
            raise ValueError(f"{name} is on {self.device}, but x on {x.device}: move x with x.to({str(self.device)!r})")
        if self.batch is not None and x.ndim > 2:
            raise ValueError(f"{name} takes (B, {size}), but x has shape {tuple(x.shape)}: flatten the first axes")
        if self.batch is not None and self.batch != 1 and (x.shape[0] if x.ndim > 1 else 1) != self.batch:
            raise ValueError(
                f"{name} was made for {self.batch} samples y, but x has shape {tuple(x.shape)}: "
                "pass as many vectors as samples"
            )


class _Traced(torch.autograd.Function):
    """op(x) or op.T(x) for autograd: the adjoint of one is the other."""

    @staticmethod
    def forward(x: Tensor, operator: ExplicitOperator, transposed: bool) -> Tensor:
        return operator.multiply(x, transposed)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.operator, ctx.transposed = inputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return _apply(gradient, ctx.operator, not ctx.transposed), None, None


class _Application(_Traced):
    """The same for torch.func too; torch.compile does not take what defines `jvp`."""

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Any:
        return _apply(tangent, ctx.operator, ctx.transposed)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, operator: Any, transposed: bool) -> Any:
        assert in_dims[0] is not None
        return _apply(x.movedim(in_dims[0], 0), operator, transposed), 0


def _apply(x: Tensor, operator: ExplicitOperator, transposed: bool) -> Tensor:
    if torch.compiler.is_compiling():
        return _Traced.apply(x, operator, transposed)
    return _Application.apply(x, operator, transposed)


class ExplicitOperator(LinearOperator):
    """A map with its transpose written out: gradients and tangents go through `multiply` alone."""

    @abstractmethod
    def multiply(self, x: Tensor, transposed: bool) -> Tensor:
        """(…, n) to (…, r), or (…, r) to (…, n) by the transpose; without gradients."""

    def __call__(self, x: Tensor) -> Tensor:
        self.check(x, self.shape[1])
        return _apply(x, self, False)

    def T(self, z: Tensor) -> Tensor:
        self.check(z, self.shape[0])
        return _apply(z, self, True)


class RowOperator(ExplicitOperator):
    """A map given by what it does to (n, B), and its transpose to (r, B)."""

    @abstractmethod
    def rows(self, x: Tensor) -> Tensor:
        """(n, B) to (r, B)."""

    @abstractmethod
    def rows_transposed(self, z: Tensor) -> Tensor:
        """(r, B) to (n, B)."""

    def multiply(self, x: Tensor, transposed: bool) -> Tensor:
        last = batch_last(x.flatten(0, -2) if x.ndim > 1 else x[None])  # reshape(-1, 0) would not do
        made = self.rows_transposed(last) if transposed else self.rows(last)
        return made.T.reshape(*x.shape[:-1], made.shape[0])


class SparseRows(RowOperator):
    """The map of one table of rows, such as P_j."""

    def __init__(self, rows: Rows, dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.dtype, self.device = rows.shape, dtype, device
        self._product = RowsProduct(rows, dtype, device)
        self._transposed = RowsProduct(rows.transposed(), dtype, device)

    def rows(self, x: Tensor) -> Tensor:
        return self._product(x)

    def rows_transposed(self, z: Tensor) -> Tensor:
        return self._transposed(z)


class Prolongation(SparseRows):
    """P_j : nodal values of one field on level j-1 to level j."""


class LevelRecursion(RowOperator):
    """state_j = M_j [state_{j-1}; w_j] for j from coarse to fine, w to the last state, at a cost of O(N).

    `sizes` has the number of coefficients of every field (outer) and level (inner), in the order of w. The coarsest
    levels, where a product costs less than its call, are one product.
    """

    SMALL = 2**12  # entries of the dense matrix up to which coarse levels are joined: sums have to stay short

    def __init__(
        self, tables: Sequence[Rows], sizes: Sequence[Sequence[int]], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shape = (tables[-1].shape[0], sum(map(sum, sizes)))
        self.dtype, self.device = dtype, device
        self.hint = "was the net built with frame.level_sizes?"
        joined, tables = _join_coarse(tables, sizes, self.SMALL)
        sizes = [[sum(own[:joined]), *own[joined:]] for own in sizes]
        self._sizes = [size for own in sizes for size in own]
        self._level_sizes = [[own[j] for own in sizes] for j in range(len(tables))]
        self._tables = [RowsProduct(table, dtype, device) for table in tables]
        # M_jᵀ in two parts: rows of similar length share the work of threads evenly.
        self._to_parents: list[RowsProduct] = []
        self._to_coefficients: list[RowsProduct] = []
        for j, table in enumerate(tables):
            before, transposed = tables[j - 1].shape[0] if j else 0, table.transposed()
            self._to_parents.append(RowsProduct(transposed.part(0, before), dtype, device))
            self._to_coefficients.append(RowsProduct(transposed.part(before, table.shape[1]), dtype, device))

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


def _join_coarse(tables: Sequence[Rows], sizes: Sequence[Sequence[int]], limit: int) -> tuple[int, list[Rows]]:
    """How many of the coarsest levels become one, and the tables with one for these, columns by field, then level."""
    joined, first = 1, tables[0]
    while joined < len(tables) and tables[joined].shape[0] * sum(sum(own[: joined + 1]) for own in sizes) <= limit:
        first = tables[joined].after(first)
        joined += 1
    # `after` puts levels one after the other; w has field after field.
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

    v_j = P_j v_{j-1} + S_j w_j with S_j the normalisation of the hats. See "Multilevel frames" in the paper.
    """


class FrameDifferential(LevelRecursion):
    """D : R^Nhat -> R^(K m), frame coefficients to the state of every finest cell, scaled by |T|^{1/2}.

    The paper gathers from all levels for every finest cell, at a cost of O(J N); here cells pass their state on to
    their children, which costs O(N) and keeps all sums short. See "Stable representations" in the paper.
    """


class CellScalars(LinearOperator):
    """One number on every cell, times its m entries: C_y of (E)."""

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
    """A small matrix on every cell: the local stiffness matrices of A_y."""

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


class Congruent(LinearOperator):
    """BᵀMB, or BᵀB without M: HᵀA_yH and DᵀC_yD are two ways to write the same matrix."""

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
        """(B,) ⟨M B x, B x⟩, summed in float32 where x is in half precision."""
        inner = self.B(x)
        if self.M is None:
            return dot(inner, inner)
        if isinstance(self.M, Congruent):
            return self.M.quadratic(inner)
        return dot(self.M(inner), inner)


def dot(x: Tensor, z: Tensor) -> Tensor:
    """(B,) inner products of (B, n), in float32 where they are in half precision."""
    wide = accumulation_dtype(x.dtype)
    return (x.to(wide) * z.to(wide)).sum(-1)


def batch_last(x: Tensor) -> Tensor:
    """(B, n) to (n, B), contiguous; no copy where the memory is batch-last already."""
    return x.T.contiguous()


def cells_last(x: Tensor, size: int) -> Tensor:
    """(B, K size) or (K size,) to (K, size, B)."""
    return batch_last(x if x.ndim > 1 else x[None]).unflatten(0, (-1, size))


def flat_first(cells: Tensor, like: Tensor) -> Tensor:
    """(K, size, B) to (B, K size), or (K size,) if `like` has no batch."""
    flat = cells.flatten(0, 1).T
    return flat[0] if like.ndim == 1 and flat.shape[0] == 1 else flat


def is_plain(x: Tensor) -> bool:
    """Whether values may be looked at: not while torch traces, differentiates forward or maps over a batch."""
    return not _is_traced(x) and _UNSEEN.get() is None


def unseen(x: Tensor) -> list[Tensor] | None:
    """Inside `unchecked`, where to put tests of x that nobody waits for; None elsewhere, and while torch traces."""
    return None if _is_traced(x) else _UNSEEN.get()


def _is_traced(x: Tensor) -> bool:
    return torch.compiler.is_compiling() or bool(torch._C._functorch.is_functorch_wrapped_tensor(x))


def is_watched(x: Tensor) -> bool:
    """Whether torch traces, differentiates or maps over what is done to x."""
    return _is_traced(x) or (torch.is_grad_enabled() and x.requires_grad)


_UNSEEN: ContextVar[list[Tensor] | None] = ContextVar("unseen", default=None)


@contextlib.contextmanager
def unchecked() -> Iterator[list[Tensor]]:
    """No values are looked at inside: a training step need not wait for the device to learn that all are right.

    Gives a list that fills with tests of values, tensors that are true or false, to be looked at later.
    """
    tests: list[Tensor] = []
    token = _UNSEEN.set(tests)
    try:
        yield tests
    finally:
        _UNSEEN.reset(token)
