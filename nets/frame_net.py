"""The protocol of a net: it maps y to frame coefficients, with inputs mapped to [-1, 1] and levels scaled.

Training, surrogates and exported programs use nothing else of a net. The nets of this package and users' modules
define `coefficients`, the map in between.

B samples, p parameters, Nhat coefficients ordered by family, then by level; n_j of a family on level j.
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
    """Maps y (B, p) to frame coefficients (B, Nhat).

    `box` maps y to [-1, 1]^p first. `level_decay` s scales the coefficients of level j by 2^(-s j): coefficients of
    smooth solutions decay with the level, but the steps of Adam do not. The paper's text, hats normalised in H1, is
    s = 0; the 2^-j that it prints for its example in 1D is s = 1/2. `depths` are other numbers than first_level,
    first_level + 1, … for this purpose, such as `FrameArrays.level_depths`.
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
        depths: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.level_sizes = {name: tuple(sizes) for name, sizes in level_sizes.items()}
        lower, upper = ([-1.0] * parameters, [1.0] * parameters) if box is None else box
        low, high = (torch.as_tensor(ends, dtype=torch.float64) for ends in (lower, upper))
        if len(low) != parameters or len(high) != parameters or not (low < high).all():
            raise ValueError(f"the box from {list(lower)} to {list(upper)} does not fit {parameters} parameters")
        # These are not buffers, which would be rounded with the net: y is mapped before it is rounded.
        self._centre, self._half_width = (low + high) / 2, (high - low) / 2
        self._on_device: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}
        self.level_decay, self.first_level = level_decay, first_level
        count = max(map(len, self.level_sizes.values()))
        depths = [first_level + j for j in range(count)] if depths is None else depths
        decay = [
            torch.full((size,), 2.0 ** (-level_decay * depth))
            for sizes in self.level_sizes.values()
            for size, depth in zip(sizes, depths, strict=False)
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
        """(B, p) y mapped to [-1, 1], then rounded to the net's precision."""
        dtype = self.decay.dtype
        wide = y.float() if y.dtype in HALF or (y.dtype != torch.float64 and dtype != torch.float64) else y.double()
        centre, half_width = self._box_like(wide)
        return ((wide - centre) / half_width).to(dtype)

    def _box_like(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Centre and half width of the box on the device and in the dtype of y, copied once."""
        place = (y.device, y.dtype)
        if torch.compiler.is_compiling():
            return self._centre.to(y), self._half_width.to(y)
        if place not in self._on_device:
            self._on_device[place] = (self._centre.to(y), self._half_width.to(y))
        return self._on_device[place]

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())
