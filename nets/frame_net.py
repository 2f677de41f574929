"""The protocol of a net: y to frame coefficients, inputs mapped to [-1, 1], levels scaled.

Training, surrogates and exported programs ask nothing else of a net. The nets of this package and modules of users
fill in `coefficients`, the map in between.

B samples, p parameters, Nhat coefficients ordered by field, then by level; n_j of a field on level j.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from nets.blocks import HALF

Sizes = Mapping[str, Sequence[int]]
Box = tuple[Sequence[float], Sequence[float]]


class FrameNet(nn.Module, ABC):
    """y (B, p) to frame coefficients (B, Nhat).

    `box` maps y to [-1, 1]^p first; `level_decay` s scales the coefficients of level j by 2^(-s j), s = 0 being the
    paper: those of smooth solutions decay with the level, the steps of Adam and the like do not.
    """

    decay: Tensor

    def __init__(
        self,
        parameters: int,
        level_sizes: Sizes,
        *,
        box: Box | None = None,
        level_decay: float = 0.0,
        first_level: int = 0,
    ) -> None:
        super().__init__()
        self.level_sizes = {name: tuple(sizes) for name, sizes in level_sizes.items()}
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

    @abstractmethod
    def coefficients(self, x: Tensor) -> Tensor:
        """(p, B) to (Nhat, B)."""

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

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())
