"""The base class of this package's nets, which know the sizes of the levels and, if needed, the prolongations.

The nodal basis has one level.

B samples, p parameters, Nhat coefficients ordered by family, then by level; n_j of a family on level j.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import nn

from fem_frames.operators.recursion import Prolongation
from nets.blocks import MATRICES
from nets.frame_net import Box, FrameNet, Sizes

Prolongations = Mapping[str, Sequence[Prolongation]]


class CoefficientNet(FrameNet):
    """Maps y (B, p) to frame coefficients (B, Nhat) by layers whose random weights follow from a seed.

    `prolongations` and `start_level` are for nets with prolongations; the other options are those of `FrameNet`.
    See docs/training.md.
    """

    prolonged: ClassVar[bool] = False
    """Whether the net takes prolongations and a start level."""
    default_blocks: ClassVar[int] = 8

    def __init__(
        self,
        parameters: int,
        level_sizes: Sizes,
        *,
        rank: int = 8,
        blocks: int | None = None,
        box: Box | None = None,
        level_decay: float = 0.0,
        first_level: int = 0,
        depths: Sequence[float] | None = None,
        prolongations: Prolongations | None = None,
        start_level: int | None = None,
    ) -> None:
        blocks = self.default_blocks if blocks is None else blocks
        check_net(parameters, {name: tuple(sizes) for name, sizes in level_sizes.items()}, rank, blocks, start_level)
        super().__init__(
            parameters, level_sizes, box=box, level_decay=level_decay, first_level=first_level, depths=depths
        )
        self.rank, self.blocks = rank, blocks
        self.build(parameters, prolongations, start_level)

    @abstractmethod
    def build(self, parameters: int, prolongations: Prolongations | None, start_level: int | None) -> None:
        """Creates the layers."""

    @classmethod
    @abstractmethod
    def count(cls, parameters: int, level_sizes: Sizes, rank: int, blocks: int, start: int = 0) -> int:
        """The number of the net's parameters, computed without building it; `start` counts from the first level."""

    def initialise(self, seed: int) -> None:
        """Draws matrices from Xavier's normal distribution, the same in every precision; biases are zero."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.rpartition(".")[2] not in MATRICES:
                    parameter.zero_()
                    continue
                for matrix in parameter.view(-1, *parameter.shape[-2:]):
                    values = torch.empty(matrix.shape, dtype=torch.float64)
                    matrix.copy_(nn.init.xavier_normal_(values, generator=generator))


def refuse_start_level(start_level: int | None) -> None:
    if start_level is not None:
        raise ValueError("start_level is for nets with prolongations, like separate-frame; leave it out with this one")


def check_net(
    parameters: int, level_sizes: dict[str, tuple[int, ...]], rank: int, blocks: int, start_level: int | None
) -> None:
    numbers = [("parameters", parameters, 1), ("rank", rank, 1), ("blocks", blocks, 0)]
    for name, value, least in numbers if start_level is None else [*numbers, ("start_level", start_level, 0)]:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} is {value!r}; a whole number of at least {least} is expected")
    if not level_sizes or not all(sum(sizes) > 0 for sizes in level_sizes.values()):
        raise ValueError(f"the sizes of the levels are {level_sizes}: every field needs coefficients")
