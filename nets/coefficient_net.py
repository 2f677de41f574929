"""The interface of a net: y to frame coefficients, with inputs mapped to [-1, 1] and levels scaled.

A net knows only the level sizes of the frame and, if it needs them, the prolongations between levels.
The nodal basis has one level.

B samples, p parameters, Nhat coefficients ordered by field, then by level; n_j of a field on level j.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from fem_frames.operators.recursion import Prolongation
from nets.blocks import HALF, MATRICES

Sizes = Mapping[str, Sequence[int]]
Prolongations = Mapping[str, Sequence[Prolongation]]


class CoefficientNet(nn.Module, ABC):
    """y (B, p) to frame coefficients (B, Nhat).

    `box` maps y to [-1, 1]^p first. `level_decay` s scales the coefficients of level j by 2^(-s j), because those of
    smooth solutions decay with the level while the steps of Adam do not; the paper has s = 0. `prolongations` and
    `start_level` are for nets that use prolongations.
    """

    prolonged: ClassVar[bool] = False
    """Whether it takes prolongations and a start level."""
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
        check_net(parameters, self.level_sizes, self.rank, self.blocks, start_level)
        lower, upper = ([-1.0] * parameters, [1.0] * parameters) if box is None else box
        low, high = (torch.as_tensor(ends, dtype=torch.float64) for ends in (lower, upper))
        if len(low) != parameters or len(high) != parameters or not (low < high).all():
            raise ValueError(f"the box from {list(lower)} to {list(upper)} does not bound {parameters} parameters")
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
        """Creates the layers."""

    @abstractmethod
    def coefficients(self, x: Tensor) -> Tensor:
        """(p, B) to (Nhat, B)."""

    @classmethod
    @abstractmethod
    def count(cls, parameters: int, level_sizes: Sizes, rank: int, blocks: int, start: int = 0) -> int:
        """Number of the net's parameters, computed without building it; `start` counts from the first level."""

    def forward(self, y: Tensor) -> Tensor:
        if y.ndim != 2 or y.shape[1] != len(self._centre):
            raise ValueError(f"y has shape {tuple(y.shape)}, but the net takes (B, {len(self._centre)})")
        coefficients = self.coefficients(self.map_inputs(y).T)
        return (coefficients * self.decay if self.level_decay else coefficients).T

    def map_inputs(self, y: Tensor) -> Tensor:
        """(B, p) inputs of the layers: y mapped to [-1, 1], then rounded to the net's precision."""
        dtype = self.decay.dtype
        wide = y.float() if y.dtype in HALF or (y.dtype != torch.float64 and dtype != torch.float64) else y.double()
        centre, half_width = self._box_like(wide)
        return ((wide - centre) / half_width).to(dtype)

    def _box_like(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Centre and half width of the box on y's device, copied there once."""
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
