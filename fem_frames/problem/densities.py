"""Densities on the states of cells: what is left of an equation once UFL has become programs.

An energy is Σ ∫ ψ(s, x, y) over groups of cells and facets, where s is the state at a point: values and derivatives of
all fields. A weak form is Σ ∫ ρ(s, v, x, y), linear in the state v of the test functions. Densities are data: files
hold them, and no code of the user is needed to evaluate them.

d dimension, p parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fem_frames.problem.differentiation import gradient, hessian
from fem_frames.problem.program_values import evaluated
from fem_frames.problem.programs import NoProgramError, Program, ProgramBuilder, Value

Group = str | int
CELLS, FACETS = "cells", "facets"
ENERGY, RESIDUAL = "energy", "residual"
SIZES = 3
"""Inputs with the letter h: the diameter of a cell, its volume, and the radius of its circumscribed ball."""


@dataclass(frozen=True)
class Part:
    """One scalar or flux field, with its place in the state."""

    name: str
    element: str
    """The name of its element: "P1", "P1 with values", "RT0" or "edge bubbles"."""
    start: int
    size: int

    @property
    def entries(self) -> range:
        return range(self.start, self.start + self.size)


@dataclass(frozen=True)
class Integral:
    """∫ of a program's only result over groups of cells or boundary facets; without groups over all of them."""

    kind: str
    groups: tuple[Group, ...]
    program: Program

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind, "groups": list(self.groups), "program": self.program.record()}


@dataclass(frozen=True)
class Load:
    """∫ of a program's result, which depends on x and y alone, times the value of a field."""

    field: str
    integral: Integral


@dataclass(frozen=True, eq=False)
class Density:
    """The integrals of an energy or of a weak form, and the fields whose states they see."""

    kind: str
    """energy or residual."""
    dimension: int
    parameters: int
    parts: tuple[Part, ...]
    integrals: tuple[Integral, ...]
    loads: tuple[Load, ...] = ()
    """Loads on values that the states do not have."""
    monotonicity: Program | None = None
    """α(y) with ψ'' ≥ α times that of the nominal density, as the user claims; None if nothing is claimed."""

    @property
    def state_size(self) -> int:
        return sum(part.size for part in self.parts)

    @property
    def states(self) -> list[tuple[str, int]]:
        """The inputs that are entries of the state."""
        return [("s", i) for i in range(self.state_size)]

    @property
    def tests(self) -> list[tuple[str, int]]:
        """The inputs that are entries of the state of the test functions."""
        return [("v", i) for i in range(self.state_size)]

    @cached_property
    def hessians(self) -> tuple[tuple[tuple[Program, ...], ...], ...]:
        """For each integral ∂²ψ/∂s∂s, or ∂²ρ/∂v∂s for a weak form."""
        found = []
        for integral in self.integrals:
            if self.kind == ENERGY:
                rows = hessian(integral.program, self.states)
            else:
                first = gradient(integral.program, self.tests)
                rows = [
                    [Program(g.operations, (value,)) for value in g.results]
                    for g in (gradient(Program(first.operations, (r,)), self.states) for r in first.results)
                ]
            found.append(tuple(tuple(row) for row in rows))
        return tuple(found)

    @cached_property
    def is_linear(self) -> bool:
        """Whether the equation is linear: an energy of degree two, or a weak form of degree one in the fields."""
        return not self._broken & {*self.states, *self.tests} and not any(
            {"s", "v"} & set().union(*program.letters()) for rows in self.hessians for row in rows for program in row
        )

    @cached_property
    def _broken(self) -> set[tuple[str, int]]:
        """The inputs in which an integrand may have kinks or jumps."""
        return set().union(*(integral.program.broken() for integral in self.integrals))

    @cached_property
    def is_affine(self) -> bool:
        """Whether an energy is affine in the states: then its integrals are functionals that have a vector."""
        return not self._broken & set(self.states) and not any(
            program.result != 0.0 for rows in self.hessians for row in rows for program in row
        )

    def is_linear_in_tests(self) -> bool:
        """Whether a weak form is linear in its test functions."""
        if self._broken & set(self.tests):
            return False
        for integral in self.integrals:
            slopes = gradient(integral.program, self.tests)
            if any("v" in letters for letters in slopes.letters()):
                return False
            builder = ProgramBuilder()
            (rest,) = builder.copied(integral.program, lambda value: 0.0 if value[0] == "v" else value)
            if rest != 0.0:
                return False
        return True

    @cached_property
    def reduced(self) -> Density:
        """The same energy on smaller states: values that only loads see are left out of them.

        A gradient alone is what (E) needs; D takes half of the time, and half precision loses nothing.
        """
        if self.kind != ENERGY:
            return self
        out = {part.start for part in self.parts if part.element == "P1 with values" and self._is_load(part.start)}
        if not out:
            return self
        kept = [i for i in range(self.state_size) if i not in out]
        places = {i: place for place, i in enumerate(kept)}

        def renamed(value: tuple[str, int]) -> Value:
            if value[0] != "s":
                return value
            return ("s", places[value[1]]) if value[1] in places else 0.0

        integrals, loads = [], list(self.loads)
        for integral in self.integrals:
            builder = ProgramBuilder()
            (rest,) = builder.copied(integral.program, renamed)
            if rest != 0.0:
                integrals.append(replace(integral, program=builder.program(rest)))
            for part in self.parts:
                if part.start in out:
                    slope = gradient(integral.program, [("s", part.start)])
                    if slope.result != 0.0:
                        loads.append(Load(part.name, replace(integral, program=slope)))
        parts, start = [], 0
        for part in self.parts:
            small = part.start in out
            size = part.size - small
            parts.append(Part(part.name, "P1" if small else part.element, start, size))
            start += size
        return replace(self, parts=tuple(parts), integrals=tuple(integrals), loads=tuple(loads))

    def _is_load(self, entry: int) -> bool:
        """Whether the entry of the state enters linearly, with a factor of x and y alone."""
        return ("s", entry) not in self._broken and all(
            program.result == 0.0 for rows in self.hessians for program in (*rows[entry], *(row[entry] for row in rows))
        )

    @cached_property
    def diffusion(self) -> tuple[Integral, ...] | None:
        """The integrals of a, if the energy is ½ ∫ a |∇u|² over cells, plus loads; None otherwise."""
        small = self.reduced
        if self.kind != ENERGY or [part.element for part in small.parts] != ["P1"] or not small.is_linear:
            return None
        if not small.integrals:  # loads alone have no minimum
            return None
        found = []
        for integral, rows in zip(small.integrals, small.hessians, strict=True):
            first = rows[0][0]
            same = all(
                program == first if i == j else program.result == 0.0
                for i, row in enumerate(rows)
                for j, program in enumerate(row)
            )
            slopes = gradient(integral.program, small.states)
            builder = ProgramBuilder()
            at_zero = builder.copied(slopes, lambda value: 0.0 if value[0] == "s" else value)
            if integral.kind != CELLS or not same or any(value != 0.0 for value in at_zero):
                return None
            found.append(replace(integral, program=first))
        return tuple(found)

    def agrees(self, other: Density) -> bool:
        """Whether both have the same fields and integrals, by values: releases of UFL order operations differently."""
        if (self.kind, self.dimension, self.parameters, self.parts) != (
            other.kind,
            other.dimension,
            other.parameters,
            other.parts,
        ):
            return False
        mine, theirs = ({(i.kind, i.groups): i.program for i in density.integrals} for density in (self, other))
        claims = (self.monotonicity, other.monotonicity)
        if set(mine) != set(theirs) or (claims[0] is None) != (claims[1] is None):
            return False
        pairs = [(program, theirs[place]) for place, program in mine.items()]
        pairs += [(claims[0], claims[1])] if claims[0] is not None and claims[1] is not None else []
        return all(_same_values(one, two) for one, two in pairs)

    def groups(self, kind: str) -> set[Group]:
        """All groups that integrals and loads of one kind name."""
        found = [*self.integrals, *(load.integral for load in self.loads)]
        return {group for integral in found if integral.kind == kind for group in integral.groups}

    def record(self) -> dict[str, Any]:
        """The density as lists, numbers and texts; loads are in it as long as states have values."""
        return {
            "kind": self.kind,
            "dimension": self.dimension,
            "parameters": self.parameters,
            "parts": [[part.name, part.element, part.size] for part in self.parts],
            "integrals": [integral.record() for integral in self.integrals],
            "monotonicity": None if self.monotonicity is None else self.monotonicity.record(),
        }

    @classmethod
    def from_record(cls, record: Any) -> Density:
        """The density of a record, before it is reduced; raises a ValueError if the record is damaged."""
        keys = {"kind", "dimension", "parameters", "parts", "integrals", "monotonicity"}
        if not isinstance(record, Mapping) or set(record) != keys or record["kind"] not in (ENERGY, RESIDUAL):
            raise ValueError("the equation is not described by kind, dimension, parameters, parts and integrals")
        d, p = record["dimension"], record["parameters"]
        if d not in (1, 2, 3) or type(p) is not int or p < 1:
            raise ValueError(f"the equation has the dimension {d!r:.20} and {p!r:.20} parameters")
        parts = tuple(_read_parts(record["parts"]))
        m = sum(part.size for part in parts)
        sizes = {"x": d, "y": p, "h": SIZES, "s": m, "v": m if record["kind"] == RESIDUAL else 0}
        integrals = tuple(_read_integral(given, sizes) for given in _listed(record["integrals"]))
        claimed = record["monotonicity"]
        monotonicity = None if claimed is None else Program.from_record(claimed, {"y": p})
        return cls(record["kind"], d, p, parts, integrals, monotonicity=monotonicity)


def _read_parts(given: Any) -> Iterator[Part]:
    start = 0
    for entry in _listed(given):
        name, element, size = entry if isinstance(entry, list) and len(entry) == 3 else (None, None, None)
        if not isinstance(name, str) or not isinstance(element, str) or type(size) is not int or not 0 < size < 100:
            raise ValueError(f"the equation has the field {str(entry)[:40]}, which is none")
        yield Part(name, element, start, size)
        start += size


def _read_integral(given: Any, sizes: Mapping[str, int]) -> Integral:
    keys = {"kind", "groups", "program"}
    if not isinstance(given, Mapping) or set(given) != keys or given["kind"] not in (CELLS, FACETS):
        raise ValueError("an integral of the equation is not described by kind, groups and program")
    groups = tuple(_listed(given["groups"]))
    if not all(isinstance(group, str) or type(group) is int for group in groups):
        raise ValueError("the groups of an integral of the equation are neither names nor tags")
    own = dict(sizes) | ({"n": sizes["x"]} if given["kind"] == FACETS else {})
    program = Program.from_record(given["program"], own)
    if len(program.results) != 1:
        raise ValueError("an integral of the equation needs a program with one result")
    return Integral(given["kind"], groups, program)


def _listed(given: Any) -> Sequence[Any]:
    if not isinstance(given, list):
        raise ValueError(f"the equation has {str(given)[:40]} where a list is expected")
    return given


def _same_values(one: Program, two: Program) -> bool:
    """Whether two programs have the same values for some inputs, up to rounding."""
    generator = np.random.default_rng(0)
    inputs = {given: generator.uniform(0.1, 0.9, 7) for given in sorted(one.inputs() | two.inputs())}
    like = np.zeros(7)
    with np.errstate(all="ignore"):
        found = [
            [np.broadcast_to(np.asarray(r, np.float64), 7) for r in evaluated(p, inputs.__getitem__, like)]
            for p in (one, two)
        ]
    return all(np.allclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True) for a, b in zip(*found, strict=True))


def check_determined(density: Density) -> None:
    """Raises a NoProgramError if an equation leaves out a field, or a weak form is not linear in its test functions."""
    if density.kind == RESIDUAL and not density.is_linear_in_tests():
        raise NoProgramError(
            "it is not linear in the test functions: every term needs one of them, or one of its derivatives, as factor"
        )
    of_cells = [
        (integral, rows)
        for integral, rows in zip(density.integrals, density.hessians, strict=True)
        if integral.kind == CELLS
    ]
    for part in density.parts:
        if part.element != "edge bubbles":
            _check_part(density, part, of_cells)


def _check_part(density: Density, part: Part, of_cells: Sequence[tuple[Integral, Any]]) -> None:
    """Raises a NoProgramError unless the equation determines a field inside the domain."""
    matrices = [rows for _, rows in of_cells]
    tested = any(program.result != 0.0 for rows in matrices for i in part.entries for program in rows[i])
    seen = any(row[i].result != 0.0 for rows in matrices for row in rows for i in part.entries)
    if tested and seen:
        return
    if density.kind == RESIDUAL:
        lack = "the test function of " if seen else ""
        raise NoProgramError(f"no term over dx has {lack}{part.name}, which is then not determined inside the domain")
    used = any(value in integral.program.inputs() for integral, _ in of_cells for value in _states(part))
    how = f"it is linear in {part.name} inside the domain" if used else f"no term over dx has {part.name}"
    raise NoProgramError(f"{how}, so it has no minimum: add a term such as inner(grad(u), grad(u)) / 2 * dx")


def _states(part: Part) -> list[Value]:
    return [("s", i) for i in part.entries]
