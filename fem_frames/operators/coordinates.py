"""One solution in three coordinates: free nodal values, fields, and frame coefficients.

B samples, N free nodal values of all fields, Nhat frame coefficients.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fem_frames.frame.arrays import FrameArrays
from fem_frames.mesh.geometry import Floats


class Coordinates:
    """Converts between free nodal values (B, N), the nodal values of each field, and frame coefficients (B, Nhat)."""

    def __init__(self, arrays: FrameArrays) -> None:
        self._arrays = arrays
        self._places: dict[tuple[torch.device, torch.dtype], list[tuple[str, Tensor, Tensor]]] = {}

    def fields(self, free: Tensor) -> dict[str, Tensor]:
        """All nodal values of each field, given ones included, from the free ones."""
        found, start = {}, 0
        for name, places, lift in self._like(free):
            part = free[..., start : start + len(places)]
            found[name] = lift.expand(*free.shape[:-1], -1).index_copy(-1, places, part + lift[places])
            start += len(places)
        return found

    def free(self, fields: Mapping[str, Floats], device: torch.device | str = "cpu") -> Tensor:
        """(B, N) the free nodal values of all fields minus the lift, in float64."""
        parts = []
        for f in self._arrays.fields:
            values = fields.get(f.name, np.empty((0, 0)))
            if values.shape[1] != len(f.lift[-1]):
                raise ValueError(
                    f"the reference solutions have {values.shape[1]} nodal values of {f.name}, "
                    f"but the frame has {len(f.lift[-1])}: solve them again for this problem and level"
                )
            parts.append((values - f.lift[-1])[:, f.free[-1]])
        return torch.as_tensor(np.concatenate(parts, axis=1)).to(device)

    def coefficients(self, free: Tensor) -> Tensor:
        """(B, Nhat) frame coefficients of free nodal values: only the finest nodal functions have nonzero ones."""
        pieces, start = [], 0
        for family in self._arrays.families:
            if family.name != family.field:  # such as curls
                pieces.append(free.new_zeros(len(free), sum(family.level_sizes)))
                continue
            scale = family.scale[-1]
            size = len(scale)
            own = free[:, start : start + size] / torch.as_tensor(np.array(scale)).to(free)
            pieces += [free.new_zeros(len(free), sum(family.level_sizes) - size), own]
            start += size
        return torch.cat(pieces, dim=1)

    def _like(self, free: Tensor) -> list[tuple[str, Tensor, Tensor]]:
        """The name, free places and lift of each field, copied once to the device and dtype of the values."""
        key = (free.device, free.dtype)
        if key not in self._places:
            self._places[key] = [
                (
                    f.name,
                    torch.as_tensor(np.array(f.free[-1]), device=free.device),
                    torch.as_tensor(np.array(f.lift[-1])).to(free),
                )
                for f in self._arrays.fields
            ]
        return self._places[key]
