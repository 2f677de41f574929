"""The sizes of a net's outputs: frame coefficients by level, or nodal values as one level.

B samples, N nodal values, Nhat frame coefficients.
"""

from __future__ import annotations

import torch

from fem_frames.frame import level_matrices
from fem_frames.frame.arrays import FrameArrays
from fem_frames.operators.recursion import Prolongation


def level_sizes(arrays: FrameArrays, nodal: bool) -> dict[str, tuple[int, ...]]:
    """The number of outputs per level for each family of frame functions, or for each field of nodal values."""
    if nodal:
        return {f.name: (len(f.free[-1]),) for f in arrays.fields}
    return arrays.level_sizes


def first_level(arrays: FrameArrays, nodal: bool) -> int:
    return arrays.finest_level if nodal else arrays.lowest_level


def level_depths(arrays: FrameArrays, nodal: bool) -> tuple[float, ...]:
    """The depth of each level, by which its coefficients decay."""
    return (float(arrays.finest_level),) if nodal else arrays.level_depths


def prolongations(
    arrays: FrameArrays, nodal: bool, dtype: torch.dtype, device: torch.device
) -> dict[str, list[Prolongation]]:
    """P_j between the levels, for each family; the first starts from the coarse level if there is one."""
    if nodal:
        return {f.name: [] for f in arrays.fields}
    return {
        family.name: [
            Prolongation(level_matrices.prolongation_matrix(arrays, family, index), dtype, device)
            for index in range(0 if arrays.has_coarse else 1, len(arrays.levels))
        ]
        for family in arrays.families
    }
