"""Linear operators in torch: the contract of all operators, with transposes for autograd.

Every operator has `op(x)`, `op.T(z)`, `op.shape`, `op.to_dense()`. The batch is first in every call, x (B, n) or (n,),
and last in memory: results are views of (n, B), and inputs of that layout are not copied, so a chain of operators never
moves data to transpose it. Transposes are explicit, also in the backward pass: torch's own backward of indexing
saturates in half precision.

B samples, n columns, r rows, K finest cells, m numbers in a cell's state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from fem_frames.operators.products import accumulation_dtype


class LinearOperator(ABC):
    """A linear map R^n -> R^r, for batches of vectors. See docs/formulations.md."""

    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    batch: int | None = None
    """Number of different maps, one per sample of a batch of y; None if one map serves all."""
    hint: str = ""
    """The most likely cause of a wrong length, for the error message."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """(B, n) or (n,) to (B, r) or (r,)."""

    @abstractmethod
    def T(self, z: Tensor) -> Tensor:
        """(B, r) or (r,) to (B, n) or (n,), by the transposed map."""

    def to_dense(self) -> Tensor:
        """(r, n), or (batch, r, n) if there is one map per sample."""
        unit = torch.eye(self.shape[1], dtype=self.dtype, device=self.device)
        if self.batch is None:
            return self(unit).T.contiguous()
        return torch.stack([self(column.expand(self.batch, -1)) for column in unit], dim=-1)

    def check(self, x: Tensor, size: int) -> None:
        """Raises a ValueError unless x is (…, size) in this operator's dtype and on its device."""
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
        if self.batch is not None and (x.shape[0] if x.ndim > 1 else 1) != self.batch and self.batch != 1:
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
    """The same with support for torch.func; torch.compile refuses functions that define `jvp`."""

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
    """A map with an explicit transpose: gradients and tangents use `multiply` only."""

    @abstractmethod
    def multiply(self, x: Tensor, transposed: bool) -> Tensor:
        """(…, n) to (…, r), or (…, r) to (…, n) by the transpose; records no gradients."""

    def __call__(self, x: Tensor) -> Tensor:
        self.check(x, self.shape[1])
        return _apply(x, self, False)

    def T(self, z: Tensor) -> Tensor:
        self.check(z, self.shape[0])
        return _apply(z, self, True)


class RowOperator(ExplicitOperator):
    """A map given by its action on (n, B) and the action of its transpose on (r, B)."""

    @abstractmethod
    def rows(self, x: Tensor) -> Tensor:
        """(n, B) to (r, B)."""

    @abstractmethod
    def rows_transposed(self, z: Tensor) -> Tensor:
        """(r, B) to (n, B)."""

    def multiply(self, x: Tensor, transposed: bool) -> Tensor:
        last = batch_last(x.flatten(0, -2) if x.ndim > 1 else x[None])  # reshape(-1, 0) would fail
        made = self.rows_transposed(last) if transposed else self.rows(last)
        return made.T.reshape(*x.shape[:-1], made.shape[0])


def dot(x: Tensor, z: Tensor) -> Tensor:
    """(B,) inner products of (B, n), summed in float32 for half precision."""
    wide = accumulation_dtype(x.dtype)
    return (x.to(wide) * z.to(wide)).sum(-1)


def batch_last(x: Tensor) -> Tensor:
    """(B, n) to (n, B), contiguous; makes no copy if the memory is batch-last already."""
    return x.T.contiguous()
