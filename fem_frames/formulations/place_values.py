"""Functions of x and y in equations: values at quadrature points, coefficients of diffusion, and loads on nodal values.

B samples, C cells or facets of an integral, K finest cells, Q quadrature points, L local nodal values.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fem_frames.formulations.places import AsData, Places, PointInputs
from fem_frames.frame.arrays import FrameArrays
from fem_frames.frame.sparse import SparseMatrix
from fem_frames.operators.checking import is_watched
from fem_frames.operators.recursion import SparseOperator
from fem_frames.problem.compiled_functions import CompiledFunction, compiled_program
from fem_frames.problem.densities import Integral
from fem_frames.problem.program_values import evaluated
from fem_frames.problem.programs import ProgramBuilder


class PlaceValues:
    """Maps y (B, p) to the values of an integral's program at its points; the program has no states."""

    def __init__(self, arrays: FrameArrays, integral: Integral, as_data: AsData) -> None:
        self.places, self._program = Places(arrays, integral), integral.program
        self._inputs, self._as_data = PointInputs(self.places, as_data), as_data
        letters = {letter for letter, _ in integral.program.inputs()}
        self.depends_on_y, self.depends_on_place = "y" in letters, bool(letters - {"y"})
        self.varies_in_cells = "x" in letters
        self._fixed: Tensor | None = None

    def __call__(self, y: Tensor) -> Tensor:
        """(C or 1, Q or 1, B or 1) in the precision of y."""
        if not self.depends_on_y:
            if self._fixed is None:
                self._fixed = self._in_torch(y)
            return self._fixed
        if self.depends_on_place and not is_watched(y) and self._compiled is not None:
            return self._compiled(y).reshape(*self.places.weights.shape, len(y))
        return self._in_torch(y)

    def _in_torch(self, y: Tensor) -> Tensor:
        (found,) = evaluated(self._program, lambda given: self._inputs(given, y), y)
        values = torch.as_tensor(found, dtype=y.dtype, device=y.device)
        return values.reshape((1,) * (3 - values.ndim) + tuple(values.shape))

    @cached_property
    def _compiled(self) -> CompiledFunction | None:
        """The program in compiled code: what it takes from its points are the components of x there."""
        shape, program = self.places.weights.shape, self._program
        columns = [given for given in sorted(program.inputs()) if given[0] != "y"]
        builder = ProgramBuilder()
        renamed = builder.copied(program, lambda given: given if given[0] == "y" else ("x", columns.index(given)))
        none = self._as_data(np.zeros((1, 1)))
        values = [self._inputs(given, none)[..., 0].expand(shape) for given in columns]
        return compiled_program(builder.program(*renamed), torch.stack(values, dim=-1))


class CellwiseValues:
    """Maps y (B, p) to values at the quadrature points of all cells: the sum of programs over groups of cells."""

    def __init__(self, arrays: FrameArrays, integrals: Sequence[Integral], as_data: AsData) -> None:
        self._parts = [PlaceValues(arrays, integral, as_data) for integral in integrals]
        self._cells, self._as_data = len(arrays.volumes), as_data
        self._points = len(arrays.rule_weights) if any(part.varies_in_cells for part in self._parts) else 1

    def __call__(self, y: Tensor) -> Tensor:
        """(K, Q, B), or (K, 1, B) if the values are constant on cells."""
        K, Q, B = self._cells, self._points, len(y)
        found = [part(y) for part in self._parts]
        if len(found) == 1 and self._parts[0].places.cells is None:
            return found[0].expand(K, Q, B)
        rows = torch.cat([values.expand(len(values), Q, B) for values in found])
        return self._gather(rows.flatten(1).T).T.unflatten(1, (Q, B))

    @cached_property
    def _gather(self) -> SparseOperator:
        """Sums rows of values to cells: parts that do not depend on the place have one row, others one per cell."""
        rows, columns, start = [], [], 0
        for part in self._parts:
            cells = np.arange(self._cells) if part.places.cells is None else part.places.cells
            rows.append(cells)
            columns.append(start + (np.arange(len(cells)) if part.depends_on_place else np.zeros(len(cells), np.int64)))
            start += len(cells) if part.depends_on_place else 1
        ones = self._as_data(np.ones(1))
        entries = np.concatenate(rows), np.concatenate(columns)
        matrix = SparseMatrix.from_entries(*entries, np.ones(len(entries[0])), (self._cells, start))
        return SparseOperator(matrix, ones.dtype, ones.device)


class LoadIntegral:
    """Minus ∫ f v over cells or facets, for programs f of x and y, on the nodal values of one field in P1."""

    def __init__(self, arrays: FrameArrays, integral: Integral, as_data: AsData) -> None:
        self.values = PlaceValues(arrays, integral, as_data)
        self.depends_on_y = self.values.depends_on_y
        places = self.values.places
        hats = -places.weights[..., None] * places.hats()  # (C, Q, L)
        C, Q, L = hats.shape
        cells = arrays.levels[-1].cells
        corners = cells if places.cells is None else cells[places.cells]  # (C, L)
        self._hats: Tensor | None = None
        if Q == 1:
            entries = np.broadcast_to(np.arange(C)[:, None], (C, L)), hats[:, 0]
        else:  # several points are added up within their cell first
            self._hats = as_data(hats)
            entries = np.arange(C * L).reshape(C, L), np.ones((C, L))
        sizes = len(arrays.points), C if Q == 1 else C * L
        ones = as_data(np.ones(1))
        self._to_points = SparseOperator(SparseMatrix.from_entries(corners, *entries, sizes), ones.dtype, ones.device)
        self._shape = C, Q

    def __call__(self, y: Tensor) -> Tensor:
        """(B or 1, points) minus the integrals of f times the hats."""
        f = self.values(y)
        f = f.expand(*self._shape, f.shape[2])
        local = f if self._hats is None else torch.einsum("cql,cqb->clb", self._hats, f)
        return self._to_points(local.flatten(0, 1).T)
