"""The three architectures of "Network structures" in the paper: y to frame coefficients.

A net knows the sizes of the levels, and for `SeparateFrameNets` the prolongations between them, nothing else of the
frame. For the nodal basis there is one level.

B samples, p parameters, Nhat coefficients ordered by field, then by level; n_j of a field on level j.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fem_frames.operators import Prolongation
from nets.blocks import HALF, MATRICES, Dense, ResBlock

Sizes = Mapping[str, Sequence[int]]
Prolongations = Mapping[str, Sequence[Prolongation]]


class CoefficientNet(nn.Module, ABC):
    """y (B, p) to frame coefficients (B, Nhat).

    `box` maps y to [-1, 1]^p first; `level_decay` s scales the coefficients of level j by 2^(-s j), s = 0 being the
    paper: those of smooth solutions decay with the level, the steps of Adam and the like do not. `prolongations` and
    `start_level` are for nets that are prolonged.
    """

    name: ClassVar[str]
    decay: Tensor
    default_blocks: ClassVar[int] = 8

    def __init__(
        self,
        parameters: int,
        level_sizes: Sizes,
        *,
        rank: int = 8,
        blocks: int | None = None,
        box: tuple[Sequence[float], Sequence[float]] | None = None,
        level_decay: float = 0.0,
        first_level: int = 0,
        prolongations: Prolongations | None = None,
        start_level: int | None = None,
    ) -> None:
        super().__init__()
        self.level_sizes = {name: tuple(sizes) for name, sizes in level_sizes.items()}
        self.rank, self.blocks = rank, self.default_blocks if blocks is None else blocks
        _check(parameters, self.level_sizes, self.rank, self.blocks, start_level)
        lower, upper = ([-1.0] * parameters, [1.0] * parameters) if box is None else box
        low, high = (torch.as_tensor(ends, dtype=torch.float64) for ends in (lower, upper))
        if len(low) != parameters or len(high) != parameters or not (low < high).all():
            raise ValueError(f"the box from {list(lower)} to {list(upper)} is none of {parameters} parameters")
        # Not buffers, which would be rounded with the net: y is mapped before it is rounded to the net's precision.
        self._centre, self._half_width = (low + high) / 2, (high - low) / 2
        self._on_device: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}
        self.level_decay, self.first_level = level_decay, first_level
        decay = [
            torch.full((size,), 2.0 ** (-level_decay * (first_level + j)))
            for sizes in self.level_sizes.values()
            for j, size in enumerate(sizes)
        ]
        self.register_buffer("decay", torch.cat(decay)[:, None], persistent=False)  # (Nhat, 1)
        self.build(parameters, prolongations, start_level)

    @abstractmethod
    def build(self, parameters: int, prolongations: Prolongations | None, start_level: int | None) -> None:
        """Makes the layers."""

    @abstractmethod
    def coefficients(self, x: Tensor) -> Tensor:
        """(p, B) to (Nhat, B)."""

    @classmethod
    @abstractmethod
    def count(cls, parameters: int, level_sizes: Sizes, rank: int, blocks: int, start: int = 0) -> int:
        """Number of the net's own parameters, without making it; `start` counts from the first level."""

    def forward(self, y: Tensor) -> Tensor:
        if y.ndim != 2 or y.shape[1] != len(self._centre):
            raise ValueError(f"y has shape {tuple(y.shape)}, but the net takes (B, {len(self._centre)})")
        coefficients = self.coefficients(self.map_inputs(y).T)
        return (coefficients * self.decay if self.level_decay else coefficients).T

    def map_inputs(self, y: Tensor) -> Tensor:
        """(B, p) y as the layers take it: mapped to [-1, 1], then rounded to the net's precision."""
        dtype = self.decay.dtype
        wide = y.float() if y.dtype in HALF or (y.dtype != torch.float64 and dtype != torch.float64) else y.double()
        centre, half_width = self._box_like(wide)
        return ((wide - centre) / half_width).to(dtype)

    def _box_like(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Centre and half width of the box where y is, copied there once."""
        place = (y.device, y.dtype)
        if torch.compiler.is_compiling():
            return self._centre.to(y), self._half_width.to(y)
        if place not in self._on_device:
            self._on_device[place] = (self._centre.to(y), self._half_width.to(y))
        return self._on_device[place]

    def initialise(self, seed: int) -> None:
        """Xavier's normal distribution for matrices, zero for biases; the same numbers in every precision."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.rpartition(".")[2] not in MATRICES:
                    parameter.zero_()
                    continue
                for matrix in parameter.view(-1, *parameter.shape[-2:]):
                    values = torch.empty(matrix.shape, dtype=torch.float64)
                    matrix.copy_(nn.init.xavier_normal_(values, generator=generator))

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())


class FullResNet(CoefficientNet):
    """One net for all coefficients: a dense layer into R^Nhat, then blocks."""

    name = "full"

    def build(self, parameters: int, prolongations: Prolongations | None, start_level: int | None) -> None:
        _refuse(start_level, self.name)
        width = sum(map(sum, self.level_sizes.values()))
        self.layers = _chain(Dense(parameters, width), _blocks(width, self.rank, self.blocks))

    @classmethod
    def count(cls, parameters: int, level_sizes: Sizes, rank: int, blocks: int, start: int = 0) -> int:
        return chain_size(parameters, sum(map(sum, level_sizes.values())), rank, blocks)

    def coefficients(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found


class SeparateResNets(CoefficientNet):
    """A net for every field and level."""

    name = "separate"

    def build(self, parameters: int, prolongations: Prolongations | None, start_level: int | None) -> None:
        _refuse(start_level, self.name)
        self.nets = nn.ModuleList(
            _chain(Dense(parameters, size), _blocks(size, self.rank, self.blocks))
            for sizes in self.level_sizes.values()
            for size in sizes
            if size
        )

    @classmethod
    def count(cls, parameters: int, level_sizes: Sizes, rank: int, blocks: int, start: int = 0) -> int:
        return sum(chain_size(parameters, size, rank, blocks) for own in level_sizes.values() for size in own if size)

    def coefficients(self, x: Tensor) -> Tensor:
        return torch.cat([net(x) for net in self.nets])


class SeparateFrameNets(CoefficientNet):
    """A net for every field and level, that starts on a coarse level; blocks follow each prolongation.

    Before the first prolongation there are none, unlike in the paper's figure: its parameter count says so.
    All nets that pass a level have blocks of one shape there, and are evaluated together.

    The paper's nets start on the coarsest level, and see y through its free points, which may be a single one. With a
    `start_level` s the net of level j starts on level min(j, s) instead; with s = J none is prolonged. Levels on which
    a field has no free points do not count.
    """

    name = "separate-frame"
    default_blocks = 4

    def build(self, parameters: int, prolongations: Prolongations | None, start_level: int | None) -> None:
        self.nets = nn.ModuleList()  # one of `LevelNets` for each field
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
    """The nets of one field, x (p, B) to coefficients of all its levels; nets are prolonged from the level `start`.

    Up to `start`, net j is a dense layer into level j and blocks. Beyond, it is a dense layer into the level `start`,
    then for each level up to j a prolongation and blocks. Those that are still on the way at a level are one batch.
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
            _chain(Dense(parameters, size), _blocks(size, rank, blocks)) for size in sizes[:start]
        )
        self.first = Dense(parameters, sizes[start], len(sizes) - start)
        self.levels = nn.ModuleList(
            _chain([ResBlock(size, rank, len(sizes) - start - j if j else 1) for _ in range(blocks)])
            for j, size in enumerate(sizes[start:])
        )

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x.expand(len(self.levels), *x.shape))  # (G, n_start, B)
        found = [*(net(x) for net in self.coarse), self.levels[0](z[:1])[0]]
        for P, blocks in zip(self._prolongations, list(self.levels)[1:], strict=True):
            z = blocks(_prolonged(P, z[1:]))  # (G - 1, n_j, B): the first has arrived
            found.append(z[0])
        return torch.cat(found)


def _prolonged(P: Prolongation, z: Tensor) -> Tensor:
    """P z of each of G nets, (G, n, B) to (G, m, B)."""
    nets, size, count = z.shape
    columns = z.transpose(0, 1).reshape(size, nets * count)
    return P(columns.T).T.view(-1, nets, count).transpose(0, 1)


NETS: dict[str, type[CoefficientNet]] = {net.name: net for net in (FullResNet, SeparateResNets, SeparateFrameNets)}


def make_net(name: str, parameters: int, level_sizes: Sizes, *, seed: int = 0, **options: Any) -> CoefficientNet:
    """The net of this name with random weights; options as those of `CoefficientNet`."""
    if name not in NETS:
        raise ValueError(f"net is {name!r}; choose from {', '.join(NETS)}")
    net = NETS[name](parameters, level_sizes, **options)
    net.initialise(seed)
    return net


def _chain(*layers: nn.Module | list[nn.Module]) -> nn.Sequential:
    return nn.Sequential(*(m for layer in layers for m in (layer if isinstance(layer, list) else [layer])))


def _blocks(width: int, rank: int, count: int) -> list[nn.Module]:
    return [ResBlock(width, rank) for _ in range(count)]


def chain_size(parameters: int, width: int, rank: int, blocks: int) -> int:
    """Number of the parameters of a dense layer and blocks."""
    return Dense.count(parameters, width) + blocks * ResBlock.count(width, rank)


def _refuse(start_level: int | None, name: str) -> None:
    if start_level is not None:
        raise ValueError(f"start_level is for nets that are prolonged, as separate-frame is; leave it out with {name}")


def _check(
    parameters: int, level_sizes: dict[str, tuple[int, ...]], rank: int, blocks: int, start_level: int | None
) -> None:
    numbers = [("parameters", parameters, 1), ("rank", rank, 1), ("blocks", blocks, 0)]
    for name, value, least in numbers if start_level is None else [*numbers, ("start_level", start_level, 0)]:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} is {value!r}; a whole number of at least {least} is expected")
    if not level_sizes or not all(sum(sizes) > 0 for sizes in level_sizes.values()):
        raise ValueError(f"the sizes of the levels are {level_sizes}: every field needs coefficients")
