"""Sums over quadrature points in compiled code: one pass over the cells, one sample per vector lane.

For each cell the code reads the states, evaluates the program of a density, and adds what comes out to the entries of
the cell, without temporaries in memory. Integrals over everything are added up in float64.

B samples, C cells or facets of an integral, K finest cells, Q quadrature points, m numbers in a cell's state.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fem_frames.compiling import Source, compiled, in_threads
from fem_frames.formulations.state_sums import PointTensors, StateSum
from fem_frames.formulations.sum_code import CELL, POINT, SumCode, Table
from fem_frames.mesh.geometry import Floats
from fem_frames.problem.compiled_values import FLAGS, LIBRARIES, pieces, real_name
from fem_frames.problem.program_values import evaluated
from fem_frames.problem.programs import Program, ProgramBuilder


def compiled_sum(wanted: StateSum, data: PointTensors) -> CompiledSum | None:
    """A sum in compiled code; None where nothing compiles it."""
    real = real_name(data.weights)
    if real is None:
        return None
    code = SumCode(wanted, data.shifts.terms, real)
    library = compiled(Source("integral", code.text(), FLAGS, LIBRARIES))
    return None if library is None else CompiledSum(library, code, wanted.program, data)


class CompiledSum:
    """Adds a sum to entries of cells, like `TorchSum`."""

    def __init__(self, library: ctypes.CDLL, code: SumCode, program: Program, data: PointTensors) -> None:
        self._prepare, self._add, self._code = library.prepare, library.add, code
        C, self._points = data.places.weights.shape
        cells = np.arange(C) if data.places.cells is None else data.places.cells
        self._cells = torch.as_tensor(cells)
        # Facets of one cell belong to one thread: its share starts where the cell changes.
        self._starts = np.append(np.flatnonzero(np.diff(cells, prepend=-1)), C)
        self._tables = [_tables(code.tables[kind], kind, program, data) for kind in (CELL, POINT)]
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._prepare.argtypes = [pointer, pointer, number]
        self._add.argtypes = [*[pointer] * (7 + len(code.letters)), *[number] * 6]
        self._add.restype = self._prepare.restype = None

    def __call__(self, y: Tensor, states: Mapping[str, Tensor], out: Tensor | None = None) -> Tensor | None:
        """Adds to `out` (K, entries, B); returns (B,) the integral of the first result if that is wanted."""
        B, rows = len(y), y.T.contiguous()  # (p, B)
        kept = y.new_empty(self._code.kept_per_sample, B)
        self._prepare(rows.data_ptr(), kept.data_ptr(), B)
        given = [states[letter].expand(-1, -1, B).contiguous() for letter in self._code.letters]  # (K, m, B)
        target = y.new_empty(0, 0, B) if out is None else out if out.is_contiguous() else out.contiguous()
        shares = self._shares(max(1, target.shape[1]) * B)
        totals = torch.zeros(len(shares), B, dtype=torch.float64)
        pointers = [x.data_ptr() for x in (self._cells, *self._tables, rows, kept, *given, target)]
        sizes = self._points, given[0].shape[1] if given else 0, target.shape[1], B
        in_threads(len(shares), lambda k: self._add(*pointers, totals[k].data_ptr(), *shares[k], *sizes))
        if out is not None and target is not out:
            out.copy_(target)
        return totals.sum(0).to(y.dtype) if self._code.has_value else None

    def _shares(self, numbers: int) -> list[tuple[int, int]]:
        """Ranges of cells or facets for threads; each cell has so many numbers."""
        cuts = [first // numbers for first, _ in pieces(len(self._cells) * numbers)]
        own = [int(self._starts[np.searchsorted(self._starts, cut)]) for cut in cuts]
        return list(zip(own, [*own[1:], len(self._cells)], strict=True))


def _tables(tables: list[Table], kind: int, program: Program, data: PointTensors) -> Tensor:
    """(C, tables) or (C, Q, tables) the numbers of tables, rounded once."""
    C, Q = data.places.weights.shape
    # Values of the program are those that torch computes, so that comparisons fall out alike.
    wanted, none = ProgramBuilder(program).program(*(table.value for table in tables)), data.weights[:0, 0]
    values = evaluated(wanted, lambda given: data.inputs(given, none), none)
    made = np.empty((C, 1 if kind == CELL else Q, len(tables)))
    for k, (table, value) in enumerate(zip(tables, values, strict=True)):
        found: Floats = torch.as_tensor(value, dtype=torch.float64).numpy()
        found = found[..., 0] if found.ndim else found.reshape(1, 1)  # (C or 1, Q or 1)
        for factor in table.factors:
            found = found * (data.shifts.factor(factor) / data.shifts.roots)
        if table.is_weighted:
            found = found * data.places.weights
        made[:, :, k] = found.sum(axis=1, keepdims=True) if table.is_summed else found
    return torch.as_tensor(made).to(data.weights).contiguous()
