"""The layers of the nets: a dense first layer and residual blocks of low rank.

Inside a net the batch is last, z (n, B): products with tall matrices are then twice as fast, and the frame's operators
take the result as it is. In half precision products are summed in float32 and rounded once, as tensor cores do.

B samples, n width, r rank, p parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

HALF = (torch.float16, torch.bfloat16)


def affine(A: Tensor, x: Tensor, offset: Tensor) -> Tensor:
    """offset + A x for x (n, B) and offset (m, B) or (m, 1)."""
    if A.dtype in HALF and A.device.type == "cpu":
        # A CPU without half arithmetic multiplies ten times slower in half than in float32.
        return torch.addmm(offset.float(), A.float(), x.float()).to(A.dtype)
    return torch.addmm(offset, A, x)


class Dense(nn.Module):
    """x ↦ s(W x + b), R^p -> R^n."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.W, self.b = _matrix(width, inputs), _zeros(width)

    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(affine(self.W, x, self.b[:, None]))


class ResBlock(nn.Module):
    """z ↦ z + A s(W z + b) + c on R^n, with A and W of rank r.

    The paper prints one bias, b; its parameter counts are those of two.
    """

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        rank = min(rank, width)
        self.W, self.b = _matrix(rank, width), _zeros(rank)
        self.A, self.c = _matrix(width, rank), _zeros(width)

    def forward(self, z: Tensor) -> Tensor:
        inner = functional.silu(affine(self.W, z, self.b[:, None]))  # (r, B)
        return affine(self.A, inner, z + self.c[:, None])


def _matrix(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(rows, columns))


def _zeros(size: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(size))
