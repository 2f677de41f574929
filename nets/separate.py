"""One net per field and level."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nets.blocks import Dense, chain, chain_size, residual_blocks
from nets.coefficient_net import CoefficientNet, Prolongations, Sizes, refuse_start_level


class SeparateResNets(CoefficientNet):
    """One net per field and level. See docs/training.md."""

    def build(self, parameters: int, prolongations: Prolongations | None, start_level: int | None) -> None:
        refuse_start_level(start_level)
        self.nets = nn.ModuleList(
            chain(Dense(parameters, size), residual_blocks(size, self.rank, self.blocks))
            for sizes in self.level_sizes.values()
            for size in sizes
            if size
        )

    @classmethod
    def count(cls, parameters: int, level_sizes: Sizes, rank: int, blocks: int, start: int = 0) -> int:
        return sum(chain_size(parameters, size, rank, blocks) for own in level_sizes.values() for size in own if size)

    def coefficients(self, x: Tensor) -> Tensor:
        return torch.cat([net(x) for net in self.nets])
