"""`Problem.show`: what a problem consists of, before anything is solved: mesh, regions, boundary, parameters, warnings.

N points, K cells, F boundary facets, d dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fem_frames.mesh.geometry import Ints
from fem_frames.mesh.hierarchy import MeshHierarchy

if TYPE_CHECKING:
    from fem_frames.studies.picture import Picture

_CELLS = (("", ""), ("intervals", "interval"), ("triangles", "triangle"), ("tetrahedra", "tetrahedron"))
_FACETS = ("", "points", "edges", "triangles")
_MEASURES = ("", "length", "area", "volume")
_SHOWN_ROWS = 16


@dataclass(frozen=True)
class MeshSummary:
    """The coarse mesh in numbers."""

    dimension: int
    points: int
    cells: int
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    measure: float
    """Length, area or volume of the domain."""
    smallest: float
    largest: float
    """Smallest and largest diameter of a cell."""
    quality: float
    """The smallest mean ratio of a cell: 1 for equilateral ones, 0 for flat ones."""


@dataclass(frozen=True)
class RegionSummary:
    """A region: its size, and the coefficient on it."""

    name: str | None
    tag: int
    cells: int
    measure: float
    coefficient: str


@dataclass(frozen=True)
class GroupSummary:
    """A group of boundary facets: its size, and the condition on it."""

    name: str | None
    tag: int | None
    """None: the facets that are in no group."""
    facets: int
    measure: float
    condition: str


@dataclass(frozen=True)
class ParameterSummary:
    """A parameter: its distribution, and its role where it is known."""

    index: int
    distribution: str
    role: str


@dataclass(frozen=True)
class FieldSummary:
    """A field of an equation."""

    name: str
    element: str
    components: int
    state: str
    """What the states of cells have of each component."""


@dataclass(frozen=True)
class IntegralSummary:
    """One integral of an equation: over which groups, of what."""

    measure: str
    """dx, dx('steel') or ds('inflow')."""
    functions: str
    """The fields, derivatives and data that it sees."""
    degree: str
    """quadratic, linear, constant or nonlinear in the fields; of weak forms linear, load or nonlinear."""
    parameters: tuple[int, ...]
    operations: int

    @property
    def words(self) -> str:
        """Functions and parameters."""
        with_y = f" with {', '.join(parameter_names(self.parameters))}" if self.parameters else ""
        return f"{self.functions or '1'}{with_y}"


def parameter_names(numbers: tuple[int, ...]) -> list[str]:
    """y[0], or y[0] … y[7] for more than three in a row."""
    if len(numbers) > 3 and numbers == tuple(range(numbers[0], numbers[-1] + 1)):
        return [f"y[{numbers[0]}] … y[{numbers[-1]}]"]
    return [f"y[{k}]" for k in numbers]


@dataclass(frozen=True)
class EquationSummary:
    """The equation of a problem."""

    kind: str
    fields: tuple[FieldSummary, ...]
    integrals: tuple[IntegralSummary, ...]


@dataclass(frozen=True, eq=False)
class ProblemOverview:
    """What a problem consists of; printing it shows tables, `plot` draws mesh, regions and boundary.

    See docs/meshes.md.
    """

    name: str
    source: str
    mesh: MeshSummary
    regions: tuple[RegionSummary, ...]
    groups: tuple[GroupSummary, ...]
    parameters: tuple[ParameterSummary, ...]
    warnings: tuple[str, ...]
    region_level: int = 0
    """The level whose cells are counted in regions: regions that are a function of x need fine cells."""
    equation: EquationSummary | None = None
    """Of a problem with an equation of its own; the regions then have integrals in place of a coefficient."""
    hierarchy: MeshHierarchy = field(repr=False, kw_only=True)
    cell_regions: Ints = field(repr=False, kw_only=True)  # (K,) on the finest level of the hierarchy

    def record(self) -> dict[str, Any]:
        """All of it in a form that JSON can hold."""
        names = ("mesh", "regions", "groups", "parameters")
        parts = {name: getattr(self, name) for name in names}
        plain = {k: asdict(v) if not isinstance(v, tuple) else [asdict(entry) for entry in v] for k, v in parts.items()}
        return {
            "name": self.name,
            "source": self.source,
            **plain,
            **({} if self.equation is None else {"equation": asdict(self.equation)}),
            "region_level": self.region_level,
            "warnings": list(self.warnings),
        }

    def plot(self, path: str | Path | None = None) -> Picture:
        """Draws the mesh with regions and boundary groups in colours; saves the picture if there is a path."""
        from fem_frames.studies.mesh_plots import plot_overview

        return plot_overview(self, None if path is None else Path(path))

    def head(self) -> list[str]:
        """The lines about equation and mesh."""
        m = self.mesh
        box = " × ".join(f"[{low:g}, {high:g}]" for low, high in zip(m.lower, m.upper, strict=True))
        lines = [
            f"{self.name}: -div(a ∇u) = {self.source}"
            if self.equation is None
            else f"{self.name} {self.equation.kind}",
            f"{m.points} points, {m.cells} {_CELLS[m.dimension][m.cells == 1]} in {box}, "
            f"{_MEASURES[m.dimension]} {m.measure:.4g}",
            f"cell diameters {m.smallest:.3g} to {m.largest:.3g} (ratio {m.largest / m.smallest:.3g}), "
            f"worst cell quality {m.quality:.2g} (1: equilateral)",
        ]
        if self.region_level:
            lines.append(f"regions are a function of x, measured after {self.region_level} refinements")
        return lines

    def tables(self) -> Iterator[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
        """Heading and rows of the tables of fields, integrals, regions, boundary groups and parameters."""
        d = self.mesh.dimension
        if self.equation is not None:
            yield from _equation_tables(self.equation)
        yield (
            ("region", "tag", "cells", _MEASURES[d], "a" if self.equation is None else "integrals"),
            [(r.name or "-", str(r.tag), str(r.cells), f"{r.measure:.4g}", r.coefficient) for r in self.regions],
        )
        groups = [
            (
                g.name or ("-" if g.tag is not None else "in no group"),
                "-" if g.tag is None else str(g.tag),
                str(g.facets),
                *([f"{g.measure:.4g}"] if d > 1 else []),
                g.condition,
            )
            for g in self.groups
        ]
        yield ("boundary", "tag", _FACETS[d], *([_MEASURES[d - 1]] if d > 1 else []), "condition"), groups
        rows: list[tuple[str, ...]] = [(f"y[{p.index}]", p.distribution, p.role) for p in self.parameters]
        yield ("parameter", "distribution", "role"), _shortened(rows)

    def __str__(self) -> str:
        lines = [*self.head()]
        for heading, rows in self.tables():
            widths = [max(len(row[i]) for row in (heading, *rows)) for i in range(len(heading))]
            lines.append("")
            for row in (heading, *rows):
                lines.append("  ".join(f"{cell:{w}}" for cell, w in zip(row, widths, strict=True)).rstrip())
        if self.warnings:
            lines += ["", *(f"warning: {text}" for text in self.warnings)]
        return "\n".join(lines)

    __repr__ = __str__


def _equation_tables(equation: EquationSummary) -> Iterator[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    fields: list[tuple[str, ...]] = [(f.name, f.element, str(f.components), f.state) for f in equation.fields]
    yield ("field", "element", "components", "state of a cell"), fields
    rows: list[tuple[str, ...]] = [
        (i.measure, i.functions or "1", i.degree, ", ".join(parameter_names(i.parameters)) or "-", str(i.operations))
        for i in equation.integrals
    ]
    yield ("integral", "of", "degree", "parameters", "operations"), _shortened(rows)


def _shortened(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The first rows, and how many more there are."""
    more = len(rows) - _SHOWN_ROWS
    return [*rows[:_SHOWN_ROWS], (f"… {more} more", *[""] * (len(rows[0]) - 1))] if more > 1 else rows
