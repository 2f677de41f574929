"""One net for all coefficients."""

from __future__ import annotations

from torch import Tensor

from nets.blocks import Dense, chain, chain_size, residual_blocks
from nets.coefficient_net import CoefficientNet, Prolongations, Sizes, refuse_start_level


class FullResNet(CoefficientNet):
    """One net for all coefficients: a dense layer into R^Nhat, then blocks. See docs/training.md."""

    def build(self, parameters: int, prolongations: Prolongations | None, start_level: int | None) -> None:
        refuse_start_level(start_level)
        width = sum(map(sum, self.level_sizes.values()))
        self.layers = chain(Dense(parameters, width), residual_blocks(width, self.rank, self.blocks))

    @classmethod
    def count(cls, parameters: int, level_sizes: Sizes, rank: int, blocks: int, start: int = 0) -> int:
        return chain_size(parameters, sum(map(sum, level_sizes.values())), rank, blocks)

    def coefficients(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found
