"""What numbers a net gives: frame coefficients by level, or nodal values, which are one level.

B samples, N nodal values, Nhat frame coefficients.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fem_frames import tables
from fem_frames.arrays import FrameArrays
from fem_frames.operators import Prolongation


def level_sizes(arrays: FrameArrays, nodal: bool) -> dict[str, tuple[int, ...]]:
    """Of each field, how many numbers a net gives for every level."""
    return {f.name: f.level_sizes[-1:] if nodal else f.level_sizes for f in arrays.fields}


def first_level(arrays: FrameArrays, nodal: bool) -> int:
    return arrays.finest_level if nodal else arrays.first_level


def prolongations(
    arrays: FrameArrays, nodal: bool, dtype: torch.dtype, device: torch.device
) -> dict[str, list[Prolongation]]:
    """Of each field, P_j between the levels."""
    indices = range(1, 1 if nodal else len(arrays.levels))
    return {
        f.name: [Prolongation(tables.prolongation_rows(arrays, f, index), dtype, device) for index in indices]
        for f in arrays.fields
    }


def frame_coefficients(arrays: FrameArrays, nodal: Tensor) -> Tensor:
    """(B, Nhat) frame coefficients of nodal values (B, N): those of the finest level, divided by the hats' scale."""
    pieces, start = [], 0
    for f in arrays.fields:
        size = f.level_sizes[-1]
        own = nodal[:, start : start + size] / torch.as_tensor(np.array(f.scale[-1])).to(nodal)
        pieces += [nodal.new_zeros(len(nodal), sum(f.level_sizes[:-1])), own]
        start += size
    return torch.cat(pieces, dim=1)
