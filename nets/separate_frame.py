"""One net per field and level, prolonged from a coarse level; see "Network structures" in the paper."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fem_frames.operators.recursion import Prolongation
from nets.blocks import Dense, ResBlock, chain, chain_size, residual_blocks
from nets.coefficient_net import CoefficientNet, Prolongations, Sizes


class SeparateFrameNets(CoefficientNet):
    """One net per field and level that starts on a coarse level; blocks follow each prolongation.

    No blocks come before the first prolongation, unlike in the paper's figure but as its parameter count implies.
    All nets that pass a level have blocks of the same shape there and are evaluated together.

    The paper's nets start on the coarsest level, so y passes through its free points, perhaps a single one. With
    `start_level` s the net of level j starts on level min(j, s) instead; with s = J no net is prolonged. Levels on
    which a field has no free points are skipped. See docs/training.md.
    """

    prolonged = True
    default_blocks = 4

    def build(self, parameters: int, prolongations: Prolongations | None, start_level: int | None) -> None:
        self.nets = nn.ModuleList()  # one `LevelNets` per field
        for field, sizes in self.level_sizes.items():
            steps = [] if prolongations is None else list(prolongations.get(field, []))
            if len(steps) != len(sizes) - 1:
                raise ValueError(
                    f"{type(self).__name__} needs the {len(sizes) - 1} prolongations of {field}, not {len(steps)}: "
                    "pass those of frame.P"
                )
            first = next(j for j, size in enumerate(sizes) if size)  # coarse levels may have no free point
            start = 0 if start_level is None else start_level - self.first_level
            if not 0 <= start < len(sizes):
                finest = self.first_level + len(sizes) - 1
                levels = f"{self.first_level} to {finest}"
                raise ValueError(f"start_level is {start_level}, but levels are {levels}: choose one of these")
            start = max(start - first, 0)
            self.nets.append(LevelNets(parameters, sizes[first:], steps[first:], self.rank, self.blocks, start))

    @classmethod
    def count(cls, parameters: int, level_sizes: Sizes, rank: int, blocks: int, start: int = 0) -> int:
        total = 0
        for sizes in level_sizes.values():
            first = next(j for j, size in enumerate(sizes) if size)
            own, begin = sizes[first:], max(start - first, 0)
            total += sum(chain_size(parameters, size, rank, blocks) for size in own[:begin])
            nets = len(own) - begin
            total += nets * chain_size(parameters, own[begin], rank, 0)
            on_the_way = [1, *range(nets - 1, 0, -1)]
            total += sum(n * blocks * ResBlock.count(s, rank) for n, s in zip(on_the_way, own[begin:], strict=True))
        return total

    def coefficients(self, x: Tensor) -> Tensor:
        return torch.cat([net(x) for net in self.nets])


class LevelNets(nn.Module):
    """The nets of one field, x (p, B) to the coefficients of all its levels; nets are prolonged from level `start`.

    Up to `start`, net j is a dense layer into level j followed by blocks. Beyond, it is a dense layer into level
    `start`, then a prolongation and blocks for each level up to j. Nets that pass through one level form a batch.
    """

    def __init__(
        self,
        parameters: int,
        sizes: Sequence[int],
        prolongations: Sequence[Prolongation],
        rank: int,
        blocks: int,
        start: int = 0,
    ) -> None:
        super().__init__()
        self._prolongations = tuple(prolongations[start:])
        self.coarse = nn.ModuleList(
            chain(Dense(parameters, size), residual_blocks(size, rank, blocks)) for size in sizes[:start]
        )
        self.first = Dense(parameters, sizes[start], len(sizes) - start)
        self.levels = nn.ModuleList(
            chain([ResBlock(size, rank, len(sizes) - start - j if j else 1) for _ in range(blocks)])
            for j, size in enumerate(sizes[start:])
        )

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x.expand(len(self.levels), *x.shape))  # (G, n_start, B)
        found = [*(net(x) for net in self.coarse), self.levels[0](z[:1])[0]]
        for P, blocks in zip(self._prolongations, list(self.levels)[1:], strict=True):
            z = blocks(_prolonged(P, z[1:]))  # (G - 1, n_j, B): the first net has reached its level
            found.append(z[0])
        return torch.cat(found)


def _prolonged(P: Prolongation, z: Tensor) -> Tensor:
    """P z for each of G nets, (G, n, B) to (G, m, B)."""
    nets, size, count = z.shape
    columns = z.transpose(0, 1).reshape(size, nets * count)
    return P(columns.T).T.view(-1, nets, count).transpose(0, 1)
