"""Sums over quadrature points of what a program makes of states: all that an integral of a density is asked for.

B samples, C cells or facets of an integral, K finest cells, Q quadrature points, m numbers in a cell's state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fem_frames.formulations.places import AsData, Factor, Places, PointInputs, Shifts
from fem_frames.problem.program_values import evaluated
from fem_frames.problem.programs import Program

STATES = "svz"
"""Letters of inputs that are states at points: of the fields, of test functions, and of a direction."""


@dataclass(frozen=True)
class Share:
    """∫ of a result times factors, which is added to entries of the cell."""

    result: int
    entries: tuple[int, ...]
    factors: tuple[Factor, ...]


@dataclass(frozen=True)
class StateSum:
    """Integrals over cells or facets of a program's results, where it sees the states at the points."""

    program: Program
    shares: tuple[Share, ...]
    has_value: bool
    """Whether the first result is also integrated over everything."""


class TorchSum:
    """A sum, operation by operation in torch: on any device, and recorded by autograd."""

    def __init__(self, wanted: StateSum, data: PointTensors) -> None:
        self._wanted, self._data = wanted, data

    def __call__(self, y: Tensor, states: Mapping[str, Tensor], out: Tensor | None = None) -> Tensor | None:
        """Adds to `out` (K, entries, B); returns (B,) the integral of the first result if that is wanted.

        `states` (K, m, B), scaled, by the letters of the program's inputs.
        """
        data, program = self._data, self._wanted.program
        own = {letter: data.own(s) for letter, s in states.items()}

        def read(given: tuple[str, int]) -> Tensor:
            letter, j = given
            return data.at_points(own[letter], j) if letter in STATES else data.inputs(given, y)

        found = [torch.as_tensor(r, dtype=y.dtype, device=y.device) for r in evaluated(program, read, y)]
        for share in self._wanted.shares:
            assert out is not None
            values = found[share.result]
            for factor in share.factors:
                values = data.factor(factor) * values
            values = data.integrals(values)
            for entry in share.entries:
                data.add(out[:, entry], values)
        return data.integrals(found[0]).sum(0).expand(y.shape[0]) if self._wanted.has_value else None


class PointTensors:
    """The points of an integral as tensors: weights, factors of states, and inputs of programs."""

    def __init__(self, places: Places, shifts: Shifts, as_data: AsData) -> None:
        self.places, self.shifts, self._as_data = places, shifts, as_data
        self.inputs = PointInputs(places, as_data)
        self._factors: dict[Factor, Tensor] = {}

    @cached_property
    def weights(self) -> Tensor:
        """(C, Q, 1)"""
        return self._as_data(self.places.weights)[..., None]

    @cached_property
    def _cells(self) -> Tensor | None:
        cells = self.places.cells
        return None if cells is None else torch.as_tensor(cells, device=self.weights.device)

    def factor(self, name: Factor) -> Tensor:
        """(C, Q or 1, 1) a factor, divided by |T|^{1/2}."""
        if name not in self._factors:
            self._factors[name] = self._as_data(self.shifts.factor(name) / self.shifts.roots)[..., None]
        return self._factors[name]

    def own(self, s: Tensor) -> Tensor:
        """(C, m, B) the states of this integral's cells."""
        return s if self._cells is None else s[self._cells]

    def at_points(self, s: Tensor, j: int) -> Tensor:
        """(C, Q or 1, B) entry j of the states at the quadrature points, from states (C, m, B), scaled."""
        total = None
        for i, name in self.shifts.terms[j]:
            part = self.factor(name) * s[:, i, None]
            total = part if total is None else total + part
        return torch.zeros_like(s[:, :1]) if total is None else total

    def integrals(self, values: Tensor) -> Tensor:
        """(C, B or 1) integrals over each cell or facet."""
        if values.ndim < 3:
            values = values.reshape((1,) * (3 - values.ndim) + tuple(values.shape))
        return (self.weights * values).sum(1)

    def add(self, rows: Tensor, values: Tensor) -> None:
        """Adds values (C, B or 1) of cells or facets to rows (K, B)."""
        if self._cells is None:
            rows += values
        else:
            rows.index_add_(0, self._cells, values.expand(len(self._cells), rows.shape[1]))
