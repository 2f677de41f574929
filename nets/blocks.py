"""The layers of the nets: a dense first layer and residual blocks of low rank.

Inside a net the batch is the last axis, z (n, B): products with tall matrices are then twice as fast, and the frame's
operators take the result without a copy. In half precision products are summed in float32 and rounded once, as on
tensor cores.

B samples, n width, r rank, p parameters, G nets of one shape.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

HALF = (torch.float16, torch.bfloat16)


def affine(A: Tensor, x: Tensor, offset: Tensor) -> Tensor:
    """offset + A x for x (n, B) and offset (m, B) or (m, 1), or for G of each."""
    product = torch.addmm if A.ndim == 2 else torch.baddbmm
    if A.dtype in HALF and A.device.type == "cpu":
        # A CPU without half-precision arithmetic multiplies ten times slower in half precision than in float32.
        return product(offset.float(), A.float(), x.float()).to(A.dtype)
    return product(offset, A, x)


class Dense(nn.Module):
    """x ↦ s(W x + b), R^p -> R^n, for one net or for G nets at once."""

    def __init__(self, inputs: int, width: int, *nets: int) -> None:
        super().__init__()
        self.W, self.b = _matrix(*nets, width, inputs), _bias(*nets, width)

    @staticmethod
    def count(inputs: int, width: int) -> int:
        """Number of its parameters."""
        return width * inputs + width

    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(affine(self.W, x, _column(self.b)))


class ResBlock(nn.Module):
    """z ↦ z + A s(W z + b) + c on R^n, with A and W of rank r, for one net or for G nets at once.

    The paper writes one bias, b, but its parameter counts include both.
    """

    def __init__(self, width: int, rank: int, *nets: int) -> None:
        super().__init__()
        rank = min(rank, width)
        self.W, self.b = _matrix(*nets, rank, width), _bias(*nets, rank)
        self.A, self.c = _matrix(*nets, width, rank), _bias(*nets, width)

    @staticmethod
    def count(width: int, rank: int) -> int:
        """Number of its parameters."""
        return 2 * min(rank, width) * width + min(rank, width) + width

    def forward(self, z: Tensor) -> Tensor:
        inner = functional.silu(affine(self.W, z, _column(self.b)))  # (·, r, B)
        return affine(self.A, inner, z + _column(self.c))


MATRICES = ("W", "A")
"""Names of parameters that are matrices, or G stacked matrices; the others are biases."""


def _matrix(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape))


def _bias(*shape: int) -> nn.Parameter:
    """(n,) for one net, or (G, n, 1) for G nets."""
    return nn.Parameter(torch.zeros(shape if len(shape) == 1 else (*shape, 1)))


def _column(bias: Tensor) -> Tensor:
    return bias if bias.ndim == 3 else bias[:, None]


def chain(*layers: nn.Module | list[nn.Module]) -> nn.Sequential:
    return nn.Sequential(*(m for layer in layers for m in (layer if isinstance(layer, list) else [layer])))


def residual_blocks(width: int, rank: int, count: int) -> list[nn.Module]:
    return [ResBlock(width, rank) for _ in range(count)]


def chain_size(parameters: int, width: int, rank: int, blocks: int) -> int:
    """Number of parameters of a dense layer and blocks."""
    return Dense.count(parameters, width) + blocks * ResBlock.count(width, rank)
