"""`Problem.show`: what a problem consists of, before anything is solved: mesh, regions, boundary, parameters, warnings.

N points, K cells, F boundary facets, d dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fem_frames.mesh.coarse import MeshArrays
from fem_frames.mesh.geometry import Ints, signed_volumes
from fem_frames.mesh.hierarchy import MeshHierarchy
from fem_frames.mesh.quality import diameters, facet_measures, mean_ratios
from fem_frames.problem.boundary import BoundaryValue, Condition, Parameter
from fem_frames.problem.coefficients import Affine, ByRegion, ExpAffine
from fem_frames.problem.definition import Problem
from fem_frames.problem.parameters import Uniform, numbers

if TYPE_CHECKING:
    from fem_frames.studies.picture import Picture

POOR = 0.1
"""Cells with a smaller mean ratio are worth a warning."""
_CELLS = (("", ""), ("intervals", "interval"), ("triangles", "triangle"), ("tetrahedra", "tetrahedron"))
_FACETS = ("", "points", "edges", "triangles")
_MEASURES = ("", "length", "area", "volume")
_REGION_CELLS = (0, 128, 4000, 10_000)  # at least so many measure regions that are a function of x
_SHOWN_PARAMETERS = 16


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
            f"{self.name}: -div(a ∇u) = {self.source}",
            f"{m.points} points, {m.cells} {_CELLS[m.dimension][m.cells == 1]} in {box}, "
            f"{_MEASURES[m.dimension]} {m.measure:.4g}",
            f"cell diameters {m.smallest:.3g} to {m.largest:.3g} (ratio {m.largest / m.smallest:.3g}), "
            f"worst cell quality {m.quality:.2g} (1: equilateral)",
        ]
        if self.region_level:
            lines.append(f"regions are a function of x, measured after {self.region_level} refinements")
        return lines

    def tables(self) -> Iterator[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
        """Heading and rows of the tables of regions, boundary groups and parameters."""
        d = self.mesh.dimension
        yield (
            ("region", "tag", "cells", _MEASURES[d], "a"),
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
        more = len(rows) - _SHOWN_PARAMETERS
        if more > 1:
            rows = [*rows[:_SHOWN_PARAMETERS], (f"… {more} more", "", "")]
        yield ("parameter", "distribution", "role"), rows

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


def overview(problem: Problem) -> ProblemOverview:
    """What a problem consists of. Reads the mesh and solves nothing; mistakes in names and tags become warnings."""
    from fem_frames.fenicsx.refinement import coarse_mesh

    problem.check_levels(max(1, problem.first_level, problem.resolved_from))  # problems from files have no mesh
    coarse, warnings = coarse_mesh(problem.mesh), []
    level = _region_level(problem, coarse)
    hierarchy = MeshHierarchy.refine(coarse, level, problem.refinement)
    mesh = _mesh_summary(coarse)
    if mesh.quality < POOR:
        worst = coarse.points[coarse.cells[mean_ratios(coarse.points, coarse.cells).argmin()]].mean(axis=0)
        warnings.append(
            f"the cell at {numbers(worst)} has quality {mesh.quality:.2g}: flat cells make condition numbers large"
        )
    cell_regions = hierarchy.regions(problem)
    regions = _regions(problem, hierarchy, cell_regions, warnings)
    groups = _groups(problem, hierarchy, warnings)
    parameters = _parameters(problem, hierarchy, warnings)
    return ProblemOverview(
        problem.name,
        _value_words(problem.source, "f(x, y)"),
        mesh,
        regions,
        groups,
        parameters,
        tuple(warnings),
        level,
        hierarchy=hierarchy,
        cell_regions=cell_regions,
    )


def _region_level(problem: Problem, coarse: MeshArrays) -> int:
    if problem.regions is None:
        return 0
    level, d = problem.resolved_from, coarse.dimension
    while len(coarse.cells) * 2 ** (d * level) < _REGION_CELLS[d]:
        level += 1
    return level


def _mesh_summary(coarse: MeshArrays) -> MeshSummary:
    size = diameters(coarse.points, coarse.cells)
    return MeshSummary(
        coarse.dimension,
        len(coarse.points),
        len(coarse.cells),
        tuple(coarse.box[0].tolist()),
        tuple(coarse.box[1].tolist()),
        float(signed_volumes(coarse.points, coarse.cells).sum()),
        float(size.min()),
        float(size.max()),
        float(mean_ratios(coarse.points, coarse.cells).min()),
    )


# ---- regions --------------------------------------------------------------------------------------------


def _regions(problem: Problem, hierarchy: MeshHierarchy, tags: Ints, warnings: list[str]) -> tuple[RegionSummary, ...]:
    volume = np.abs(signed_volumes(hierarchy.points, hierarchy.finest.cells))
    name_of = {tag: name for name, tag in hierarchy.region_names.items()}
    words = _coefficient_words(problem, hierarchy.region_names, warnings)
    present, place, count = np.unique(tags, return_inverse=True, return_counts=True)
    measure = np.bincount(place.reshape(-1), weights=volume)
    rows = [
        RegionSummary(name_of.get(tag), tag, n, m, words.get(tag, words.get(None, "?")))
        for tag, n, m in zip(present.tolist(), count.tolist(), measure.tolist(), strict=True)
    ]
    missing = [row for row in rows if row.coefficient == "?"]
    if isinstance(problem.coefficient, ByRegion) and words:
        for row in missing:
            shown = repr(row.name) if row.name else f"with the tag {row.tag}"
            warnings.append(f"the coefficient has no value on the region {shown}: add it to ByRegion")
        for tag in sorted(tag for tag in words if tag is not None and tag not in present):
            shown = repr(name_of[tag]) if tag in name_of else f"with the tag {tag}"
            warnings.append(f"ByRegion has a value for the region {shown}, which has no cells")
    empty = [RegionSummary(name, tag, 0, 0.0, "-") for tag, name in name_of.items() if tag not in present]
    return (*rows, *empty)


def _coefficient_words(problem: Problem, names: Mapping[str, int], warnings: list[str]) -> dict[int | None, str]:
    """The coefficient in words by region tag, under None if it is the same for all; empty if names are unknown."""
    coefficient = problem.coefficient
    if isinstance(coefficient, ByRegion):
        try:
            coefficient = coefficient.with_tags(names)
        except ValueError as error:
            warnings.append(str(error))
            return {}
        found: dict[int | None, str] = {tag: f"y[{index}]" for tag, index in coefficient.parameter.items()}  # type: ignore[misc]
        return found | {tag: f"{value:g}" for tag, value in coefficient.fixed.items()}  # type: ignore[misc]
    if isinstance(coefficient, Affine):
        inside = "mean(x) + Σ y[k] modes[k](x)"
        return {None: f"exp({inside})" if isinstance(coefficient, ExpAffine) else inside}
    function = getattr(coefficient, "function", None)
    return {None: _value_words(function, "a(x, y)") if function else f"a {type(coefficient).__name__}"}


# ---- boundary -------------------------------------------------------------------------------------------


def _groups(problem: Problem, hierarchy: MeshHierarchy, warnings: list[str]) -> tuple[GroupSummary, ...]:
    facets, tags = hierarchy.levels[0].facets, hierarchy.coarse_facet_tags
    measure = facet_measures(hierarchy.points[facets])
    of_facet, known = np.full(len(facets), -1), False
    try:
        of_facet, known = hierarchy.condition_facets(problem), True
        hierarchy.fixed_points(problem)  # raises where u is not unique
    except ValueError as error:
        warnings.append(str(error))
    name_of = {tag: name for name, tag in hierarchy.facet_names.items()}
    rows = []
    for tag in [*sorted(set(tags.tolist()) - {-1}), -1]:
        own = tags == tag
        if not own.any():
            continue
        words = _conditions_words(problem.conditions, of_facet[own]) if known else "?"
        name, count = name_of.get(tag), int(own.sum())
        rows.append(GroupSummary(name, None if tag == -1 else tag, count, float(measure[own].sum()), words))
        if known and tag != -1 and (of_facet[own] == -1).all():
            shown = repr(name) if name else f"with the tag {tag}"
            say = f"neumann={{{name or tag!r}: 0}} says so"
            warnings.append(f"no condition names the boundary group {shown}: it is insulated; {say}")
    inner = np.unique(hierarchy.inner_facet_tags).tolist()
    listed = {row.tag for row in rows}
    for tag in inner:
        if tag in listed:
            shown = repr(name_of[tag]) if tag in name_of else f"with the tag {tag}"
            warnings.append(f"some facets of the group {shown} lie inside the domain: conditions cannot name it")
    for tag in sorted({*inner, *name_of} - listed):
        count = int((hierarchy.inner_facet_tags == tag).sum())
        words = "none: its facets lie inside the domain" if count else "none: the group is empty"
        rows.append(GroupSummary(name_of.get(tag), tag, count, 0.0, words))
    return tuple(rows)


def _conditions_words(conditions: Sequence[Condition], of_facet: Ints) -> str:
    """The conditions on some facets, in words, with the number of facets of each if there are several."""
    found, count = np.unique(of_facet, return_counts=True)
    words = ["insulated" if k == -1 else condition_words(conditions[k]) for k in found.tolist()]
    if len(words) == 1:
        return words[0]
    return "; ".join(f"{text} on {n} of {len(of_facet)}" for text, n in zip(words, count.tolist(), strict=True))


def condition_words(condition: Condition) -> str:
    """A boundary condition as a formula."""
    if condition.kind == "dirichlet":
        return f"u = {_words(condition.value, 'g')}"
    if condition.kind == "neumann":
        return f"a ∂u/∂n = {_words(condition.value, 'h')}"
    assert condition.outside is not None
    transfer = _words(condition.value, "k")
    factor = f"({transfer})" if " + " in transfer else transfer
    return f"a ∂u/∂n = {factor} ({_words(condition.outside, 'u_outside')} - u)"


def _words(value: BoundaryValue, letter: str) -> str:
    return _value_words(value.given, f"{letter}(x, y)" if value.depends_on_y else f"{letter}(x)")


def _value_words(given: Any, function: str) -> str:
    """A number or a parameter as text; for functions their name, or the given letter, with their arguments."""
    if isinstance(given, Parameter):
        scaled = f"y[{given.index}]" if given.scale == 1 else f"{given.scale:g} y[{given.index}]"
        return scaled if given.offset == 0 else f"{given.offset:g} + {scaled}"
    if not callable(given):
        return f"{given:g}"
    name = getattr(given, "__name__", "<lambda>")
    letter, _, arguments = function.partition("(")
    return f"{letter if name == '<lambda>' else name}({arguments}"


# ---- parameters -----------------------------------------------------------------------------------------


def _parameters(problem: Problem, hierarchy: MeshHierarchy, warnings: list[str]) -> tuple[ParameterSummary, ...]:
    box, roles = problem.parameters, _roles(problem, hierarchy)
    if isinstance(box, Uniform):
        texts = [f"uniform in [{low:g}, {high:g}]" for low, high in zip(box.lower, box.upper, strict=True)]
    else:
        texts = ["standard normal"] * box.dimension
    values = [v for c in problem.conditions for v in (c.value, c.outside) if v is not None]
    functions = [v for v in values if v.depends_on_y and not isinstance(v.given, Parameter)]
    if isinstance(problem.coefficient, ByRegion) and not callable(problem.source) and not functions:
        for k in (k for k in range(box.dimension) if k not in roles):
            warnings.append(f"nothing depends on the parameter y[{k}]: leave it out")
    return tuple(ParameterSummary(k, text, ", ".join(roles.get(k, []))) for k, text in enumerate(texts))


def _roles(problem: Problem, hierarchy: MeshHierarchy) -> dict[int, list[str]]:
    """Where each parameter is used, as far as it shows without calling functions."""
    roles: dict[int, list[str]] = {}
    name_of = {tag: name for name, tag in hierarchy.region_names.items()}
    if isinstance(problem.coefficient, ByRegion):
        for region, index in problem.coefficient.parameter.items():
            shown = region if isinstance(region, str) else name_of.get(region, f"region {region}")
            roles.setdefault(index, []).append(f"a on {shown}")
    for condition in problem.conditions:
        for value in (condition.value, condition.outside):
            if value is not None and isinstance(value.given, Parameter):
                roles.setdefault(value.given.index, []).append(value.name)
    return roles
