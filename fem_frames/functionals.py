"""Outputs that are functionals in UFL: integrals of functions of u, of its gradient, of x and y over groups.

They are compiled to densities as energies are, so a functional is evaluated, and travels in files, as programs.

B samples, K finest cells, L corners of a cell, m numbers in a cell's state, n nodal values of a field, N free ones of
all fields, Nhat frame coefficients, d dimension, p parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fem_frames.formulations.formulation import Formulation
from fem_frames.formulations.state_integrals import StateIntegral
from fem_frames.frame.level_matrices import state_slices
from fem_frames.operators.cells import cells_last, flat_first
from fem_frames.outputs import BoundOutput, Output
from fem_frames.problem.densities import Density
from fem_frames.problem.differentiation import gradient
from fem_frames.problem.equation import Equation, unknowns_of

ELEMENTS = {"P1", "P1 with values", "RT0", "edge bubbles"}
"""Elements whose states functionals know."""
HOW = "a function of the fields, y, x, dx and ds that returns a UFL form: lambda u, y, x, dx, ds: u * ds('right')"


@dataclass(frozen=True, eq=False)
class Functional(Output):
    """A functional of the solution in UFL: `Functional(lambda u, y, x, dx, ds: u[1] * ds("right"), "deflection")`.

    The function gets all fields first, as an equation's energy does; a problem of diffusion has one field u. A
    functional that is affine in u has error bounds like other outputs; another one has values and derivatives alone.
    See docs/surrogates.md.
    """

    function: Callable[..., Any] | None
    name: str = "functional"
    density: Density | None = None
    """The programs of a functional that was read from a file and has no function."""
    _forms: dict[tuple[tuple[str, str], ...], FunctionalForm] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"the name of a functional is {self.name!r}; a text is expected")
        if self.density is None and not callable(self.function):
            raise ValueError(f"the functional {self.name} is a {type(self.function).__name__}; give {HOW}")

    def bind(self, formulation: Formulation) -> BoundOutput:
        return FunctionalOutput(formulation, self.compiled(formulation), self.name)

    def compiled(self, formulation: Formulation) -> Density:
        """The programs for the fields of a formulation; compiled once, with UFL, unless they were read from a file."""
        arrays = formulation.frame.arrays
        known = tuple((f.name, f.element.name) for f in arrays.fields)
        other = next((name for name, element in known if element not in ELEMENTS), None)
        if other is not None:
            raise ValueError(
                f"the functional {self.name} needs fields in P1, P2 or RT0, and {other} has an element of its own: use "
                "a LinearFunctional"
            )
        if known not in self._forms:
            form = FunctionalForm(self.name, *unknowns_of(known), energy=self.function, density=self.density)
            self._forms[known] = form
        form, d = self._forms[known], arrays.dimension
        found = form.compiled(d, formulation.problem.parameters.dimension)
        own, wanted = (
            " and ".join(f"{part.name} in {part.element}" for part in parts) for parts in (found.parts, form.parts(d))
        )
        if own != wanted:
            raise ValueError(
                f"the functional {self.name} was compiled for {own}, but the frame has {wanted}: give its function"
            )
        return found


class FunctionalForm(Equation):
    """The form of a functional, which compiles like the energy of an equation for the same fields."""

    def __init__(self, name: str, *fields: Any, energy: Callable[..., Any] | None, density: Density | None) -> None:
        super().__init__(*fields, energy=None if density is not None else energy, density=density)
        object.__setattr__(self, "name", name)

    def check(self, density: Density) -> None:
        """Nothing: a functional need not see all fields, nor have a minimum."""

    @property
    def called(self) -> str:
        return "functional"

    @property
    def what(self) -> str:
        return f"the functional {vars(self)['name']}"


class FunctionalOutput(BoundOutput):
    """A functional on one formulation."""

    def __init__(self, formulation: Formulation, density: Density, name: str) -> None:
        self.labels, self.is_affine = [name], density.is_affine
        self._formulation, self._density = formulation, density
        self._states = ValueStates(formulation, density)
        try:
            numbers = range(len(density.integrals))
            arrays, as_data = formulation.frame.arrays, formulation._as_data
            self._integrals = [StateIntegral(arrays, density, number, as_data) for number in numbers]
        except ValueError as error:
            raise ValueError(f"the functional {name}: {error}") from error

    def values(self, w: Tensor, y: Tensor, fields: Callable[[], dict[str, Tensor]]) -> Tensor:
        s, wide = self._states(w, y, fields), y.to(self._formulation.wide)
        found = [integral.value(s, wide).expand(len(w)) for integral in self._integrals]
        return torch.stack(found).sum(0).to(w.dtype)[:, None]

    def functional(self, y: Tensor) -> Tensor:
        if not self.is_affine:
            raise ValueError(f"the functional {self.labels[0]} is not affine in the solution, so it has no vector")
        wide = self._formulation.check_parameters(y).to(self._formulation.wide)
        wide = wide if self._slope_needs_y else wide[:1]
        zero = self._states.zero(len(wide))
        slope = torch.zeros_like(zero)
        for integral in self._integrals:
            integral.add_slope(zero, wide, slope)
        return self._states.T(slope)[:, None]

    @cached_property
    def _slope_needs_y(self) -> bool:
        programs = (gradient(integral.program, self._density.states) for integral in self._density.integrals)
        return any("y" in letters for program in programs for letters in program.letters())


class ValueStates:
    """States with values on every cell, whatever the frame's states are, and the transpose of this map.

    Derivatives come from the frame's states. Those of P1 may lack the value, which is then the mean of nodal values.
    """

    def __init__(self, formulation: Formulation, density: Density) -> None:
        frame, arrays = formulation.frame, formulation.frame.arrays
        self._formulation, self._arrays, self._size = formulation, arrays, density.state_size
        used = {i for integral in density.integrals for letter, i in integral.program.inputs() if letter == "s"}
        slices = state_slices(arrays)
        self._parts = [(part, slices[part.name]) for part in density.parts]
        self._lacking = [
            part.name
            for part, own in self._parts
            if part.size == own.stop - own.start + 1 and part.start in used  # no value in the state, but it is needed
        ]
        device = frame.device
        self._cells = torch.as_tensor(np.array(arrays.levels[-1].cells), device=device)  # (K, L)
        self._share = formulation._as_data(np.sqrt(arrays.volumes) / (arrays.dimension + 1))  # (K,)

    def zero(self, samples: int) -> Tensor:
        """(K, m, B)"""
        K, made = len(self._share), self._formulation
        return torch.zeros(K, self._size, samples, dtype=made.wide, device=made.frame.device)

    def __call__(self, w: Tensor, y: Tensor, fields: Callable[[], dict[str, Tensor]]) -> Tensor:
        """(K, m, B) states of u = lift + F w, scaled, in the wide precision."""
        made, K = self._formulation, len(self._share)
        states = made.states(w, y)
        cells = cells_last(states, states.shape[1] // K).to(made.wide)
        parts = []
        for part, own in self._parts:
            if part.size > own.stop - own.start:
                parts.append(self._value(fields()[part.name]) if part.name in self._lacking else 0 * cells[:, :1])
            parts.append(cells[:, own])
        return torch.cat(parts, dim=1)

    def _value(self, nodal: Tensor) -> Tensor:
        """(K, 1, B) values at the centres from nodal values (B, n), scaled."""
        local = nodal.to(self._formulation.wide).T[self._cells]  # (K, L, B)
        return self._share[:, None, None] * local.sum(1, keepdim=True)

    def T(self, slope: Tensor) -> Tensor:
        """(B, Nhat) the derivative in w from that in states (K, m, B)."""
        frame, B = self._formulation.frame, slope.shape[2]
        parts, nodal = [], {}
        for part, own in self._parts:
            mine = slope[:, part.start : part.start + part.size]
            if part.size > own.stop - own.start:
                if part.name in self._lacking:
                    nodal[part.name] = self._on_points(mine[:, 0])
                mine = mine[:, 1:]
            parts.append(mine)
        back = flat_first(torch.cat(parts, dim=1).to(frame.dtype), slope.new_empty(B, 0))
        found = frame.D.T(back)
        if nodal:
            found = found + frame.H.T(self._on_free(nodal, B).to(frame.dtype))
        return found

    def _on_points(self, values: Tensor) -> Tensor:
        """(B, n) the transpose of `_value` on values (K, B)."""
        K, L = self._cells.shape
        each = (self._share[:, None] * values)[:, None].expand(K, L, -1).flatten(0, 1)
        return each.new_zeros(len(self._arrays.points), each.shape[1]).index_add_(0, self._cells.reshape(-1), each).T

    def _on_free(self, nodal: dict[str, Tensor], B: int) -> Tensor:
        """(B, N)"""
        parts = []
        for f in self._arrays.fields:
            free = torch.as_tensor(np.array(f.free[-1]), device=self._cells.device)
            parts.append(nodal[f.name][:, free] if f.name in nodal else self._share.new_zeros(B, len(free)))
        return torch.cat(parts, dim=1)
