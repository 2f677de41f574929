"""Nodal values to frame coefficients: each level gets what the coarser ones leave over.

B samples, N free nodal values of all fields, n_j of one field on level j, Nhat frame coefficients.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fem_frames.frame import level_matrices
from fem_frames.frame.arrays import FrameArrays
from fem_frames.frame.elements import P1
from fem_frames.frame.families import FrameFamily
from fem_frames.operators.linear import RowOperator
from fem_frames.operators.recursion import Prolongation


class FrameAnalysis(RowOperator):
    """R^N -> R^Nhat, a right inverse of H for fields with values at points: the hierarchical decomposition.

    The values at the points of level j-1 are interpolated, and level j gets the difference at its new points. Smooth
    functions thus have small coefficients on fine levels. A coarse level below the first mesh gets none.
    H. Yserentant, On the multi-level splitting of finite element spaces, Numerische Mathematik 49 (1986) 379-412.
    """

    def __init__(self, arrays: FrameArrays, dtype: torch.dtype, device: torch.device) -> None:
        names = [field.name for field in arrays.fields if not isinstance(field.element, P1)]
        if names:
            raise ValueError(
                f"frame coefficients from nodal values need fields in P1, but {' and '.join(names)} is not: "
                "solve in the frame"
            )
        assert [field.name for field in arrays.fields] == [family.name for family in arrays.families]
        self.dtype, self.device = dtype, device
        self.shape = (arrays.frame_size, arrays.nodal_size)
        self._fields = [FieldAnalysis(arrays, family, dtype, device) for family in arrays.families]

    def rows(self, x: Tensor) -> Tensor:
        pieces = x.split([field.shape[1] for field in self._fields])
        return torch.cat([field.rows(piece) for field, piece in zip(self._fields, pieces, strict=True)])

    def rows_transposed(self, z: Tensor) -> Tensor:
        pieces = z.split([field.shape[0] for field in self._fields])
        return torch.cat([field.rows_transposed(piece) for field, piece in zip(self._fields, pieces, strict=True)])


class FieldAnalysis(RowOperator):
    """The same for one field."""

    def __init__(self, arrays: FrameArrays, family: FrameFamily, dtype: torch.dtype, device: torch.device) -> None:
        free = level_matrices.field_of(arrays, family).free
        self.dtype, self.device = dtype, device
        self.shape = (sum(family.level_sizes), len(free[-1]))
        self._coarse = family.coarse
        self._scales = [torch.as_tensor(np.array(scale)).to(device, dtype)[:, None] for scale in family.scale]
        self._kept: list[Tensor] = []  # the places of the coarser level's free points on each level
        self._new: list[Tensor] = []
        self._P: list[Prolongation] = []
        for index in range(1, len(arrays.levels)):
            kept = np.searchsorted(free[index], free[index - 1])
            self._kept.append(torch.as_tensor(kept).to(device))
            self._new.append(torch.as_tensor(np.setdiff1d(np.arange(len(free[index])), kept)).to(device))
            self._P.append(Prolongation(level_matrices.prolongation_matrix(arrays, family, index), dtype, device))

    def rows(self, x: Tensor) -> Tensor:
        pieces = []
        for kept, new, P, scale in zip(
            self._kept[::-1], self._new[::-1], self._P[::-1], self._scales[:0:-1], strict=True
        ):
            coarse = x[kept]
            surplus = torch.zeros_like(x)
            surplus[new] = (x - P.rows(coarse))[new] / scale[new]
            pieces.append(surplus)
            x = coarse
        return torch.cat([x.new_zeros(self._coarse, x.shape[1]), x / self._scales[0], *pieces[::-1]])

    def rows_transposed(self, z: Tensor) -> Tensor:
        sizes = [len(scale) for scale in self._scales]
        pieces = z[self._coarse :].split(sizes)
        x = pieces[0] / self._scales[0]
        for kept, new, P, scale, own in zip(self._kept, self._new, self._P, self._scales[1:], pieces[1:], strict=True):
            fine = torch.zeros_like(own)
            fine[new] = own[new] / scale[new]
            coarse = x - P.rows_transposed(fine)
            fine[kept] = coarse  # a point of both levels: surpluses there are zero
            x = fine
        return x
