"""`inspect_problem` maps a problem to its overview: it reads the mesh and solves nothing.

N points, K cells, F boundary facets, d dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fem_frames.frame.fields import joined_components
from fem_frames.mesh.coarse import MeshArrays
from fem_frames.mesh.geometry import Ints, signed_volumes
from fem_frames.mesh.hierarchy import MeshHierarchy
from fem_frames.mesh.quality import diameters, facet_measures, mean_ratios
from fem_frames.problem.boundary import ALL, REST, BoundaryValue, Condition, Parameter
from fem_frames.problem.coefficients import Affine, ByRegion, ExpAffine
from fem_frames.problem.definition import Problem
from fem_frames.problem.densities import CELLS, FACETS
from fem_frames.problem.parameters import Uniform, numbers
from fem_frames.studies.equation_inspection import (
    BUBBLES,
    equation_summary,
    equation_warnings,
    parameter_roles,
    terms_on,
)
from fem_frames.studies.overview import GroupSummary, MeshSummary, ParameterSummary, ProblemOverview, RegionSummary

POOR = 0.1
"""Cells with a smaller mean ratio are worth a warning."""
_REGION_CELLS = (0, 128, 4000, 10_000)  # at least so many measure regions that are a function of x


def inspect_problem(problem: Problem) -> ProblemOverview:
    """What a problem consists of. Reads the mesh and solves nothing; mistakes in names and tags become warnings."""
    from fem_frames.fenicsx.refinement import coarse_mesh

    problem.check_levels(max(1, problem.first_level, problem.resolved_from))  # problems from files have no mesh
    coarse, warnings = coarse_mesh(problem.mesh), []
    level = _region_level(problem, coarse)
    hierarchy = MeshHierarchy.refine(coarse, level, problem.refinement, problem.curved)
    mesh = _mesh_summary(coarse)
    if mesh.quality < POOR:
        worst = coarse.points[coarse.cells[mean_ratios(coarse.points, coarse.cells).argmin()]].mean(axis=0)
        warnings.append(
            f"the cell at {numbers(worst)} has quality {mesh.quality:.2g}: flat cells make condition numbers large"
        )
    _warn_of_gaps(coarse, warnings)
    cell_regions = hierarchy.regions(problem)
    regions = _regions(problem, hierarchy, cell_regions, warnings)
    groups = (_groups if problem.equation is None else _field_groups)(problem, hierarchy, warnings)
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
        None if problem.equation is None else equation_summary(problem),
        hierarchy=hierarchy,
        cell_regions=cell_regions,
    )


def _warn_of_gaps(coarse: MeshArrays, warnings: list[str]) -> None:
    """Warns of different points at the same place: parts of the domain that touch there are not connected."""
    from scipy.spatial import cKDTree

    size = float(np.ptp(coarse.points, axis=0).max())
    pairs = cKDTree(coarse.points).query_pairs(1e-10 * size, output_type="ndarray")
    if len(pairs):
        warnings.append(
            f"{len(pairs)} pairs of points coincide, such as at {numbers(coarse.points[pairs[0, 0]])}: the mesh has a "
            "slit there, on which u may jump; if the parts should be connected, fragment the geometry in gmsh, or "
            "remove duplicate nodes"
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
    words = {} if problem.equation is not None else _coefficient_words(problem, hierarchy.region_names, warnings)
    present, place, count = np.unique(tags, return_inverse=True, return_counts=True)
    measure = np.bincount(place.reshape(-1), weights=volume)

    def of_region(tag: int) -> str:
        if problem.equation is not None:
            return "; ".join(terms_on(problem, CELLS, tag, name_of.get(tag))) or "none"
        return words.get(tag, words.get(None, "?"))

    rows = [
        RegionSummary(name_of.get(tag), tag, n, m, of_region(tag))
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
    try:
        of_facet, known = hierarchy.condition_facets(problem), True
        hierarchy.fixed_points(problem)  # raises where u is not unique
    except ValueError as error:
        warnings.append(str(error))
        of_facet, known = _possible_conditions(problem, hierarchy, warnings)
    name_of = {tag: name for name, tag in hierarchy.facet_names.items()}
    rows = []
    for tag in [*sorted(set(tags.tolist()) - {-1}), -1]:
        own = tags == tag
        if not own.any():
            continue
        words = _conditions_words(problem.conditions, of_facet[own], "insulated" if known else "?")
        name, count = name_of.get(tag), int(own.sum())
        if {name, tag, ALL} & set(problem.curved):
            words += "; curved: refinement follows it"
        rows.append(GroupSummary(name, None if tag == -1 else tag, count, float(measure[own].sum()), words))
        if known and tag != -1 and (of_facet[own] == -1).all():
            shown = repr(name) if name else f"with the tag {tag}"
            say = f"neumann={{{name or tag!r}: 0}} says so"
            warnings.append(f"no condition names the boundary group {shown}: it is insulated; {say}")
    return (*rows, *_inner_groups(hierarchy, {row.tag for row in rows}, warnings))


def _field_groups(problem: Problem, hierarchy: MeshHierarchy, warnings: list[str]) -> tuple[GroupSummary, ...]:
    """The boundary groups of a problem with an equation: given values of its fields, and integrals over them."""
    facets, tags = hierarchy.levels[0].facets, hierarchy.coarse_facet_tags
    measure, given = facet_measures(hierarchy.points[facets]), _field_conditions(problem, hierarchy, warnings)
    warnings.extend(equation_warnings(problem, hierarchy, hierarchy.regions(problem), given))
    name_of = {tag: name for name, tag in hierarchy.facet_names.items()}
    rows = []
    for tag in [*sorted(set(tags.tolist()) - {-1}), -1]:
        own = tags == tag
        if not own.any():
            continue
        name, of_group = name_of.get(tag), {field: numbers[own] for field, numbers in given.items()}
        words = [*_values_words(problem, of_group)]
        terms = terms_on(problem, FACETS, tag, name)
        words += [f"∫ {'; '.join(terms)}"] if terms else []
        if {name, tag, ALL} & set(problem.curved):
            words.append("curved: refinement follows it")
        text = "; ".join(words) or "free"
        rows.append(GroupSummary(name, None if tag == -1 else tag, int(own.sum()), float(measure[own].sum()), text))
    return (*rows, *_inner_groups(hierarchy, {row.tag for row in rows}, warnings))


def _field_conditions(problem: Problem, hierarchy: MeshHierarchy, warnings: list[str]) -> dict[str, Ints]:
    """For each field with values of its own, (F,) the number of its condition in `problem.conditions`, or -1."""
    found: dict[str, Ints] = {}
    for part in problem.density().parts:
        if part.element == BUBBLES:
            continue
        own, first = problem.of_field(part.name)
        try:
            numbers = hierarchy.condition_facets(own)
        except ValueError as error:
            warnings += [] if str(error) in warnings else [str(error)]
            numbers, _ = _possible_conditions(own, hierarchy, warnings)
        found[part.name] = np.where(numbers >= 0, numbers + first, -1)
    return found


def _values_words(problem: Problem, of_group: Mapping[str, Ints]) -> Iterator[str]:
    """The given values of the fields on some facets; components with the same values are one."""
    words: dict[str, str] = {}
    for name, own in of_group.items():
        found, count = np.unique(own[own >= 0], return_counts=True)
        for number, n in zip(found.tolist(), count.tolist(), strict=True):
            condition = problem.conditions[number]
            if condition.where == (REST,):  # where a flux is free
                continue
            part = "" if n == len(own) else f" on {n} of {len(own)}"
            words[name] = f"{words[name]}; " if name in words else ""
            words[name] += f"· = {_words(condition.value, 'g')}{part}"
    assert problem.equation is not None
    fluxes = {unknown.name for unknown in problem.equation.fields if unknown.element == "RT0"}
    alone: dict[str, tuple[str, ...]] = {name: (name,) for name in of_group}
    for name, parts in joined_components(alone, lambda own: tuple(part for (part,) in own)).items():
        same = len({words.get(part) for part in parts}) == 1
        for shown, part in [(name, parts[0])] if same else [(part, part) for part in parts]:
            if part in words:
                yield words[part].replace("·", f"{shown}·n" if shown in fluxes else shown)


def _inner_groups(hierarchy: MeshHierarchy, listed: set[int | None], warnings: list[str]) -> list[GroupSummary]:
    """The groups of facets without any on the boundary; warns of those inside the domain."""
    name_of, rows = {tag: name for name, tag in hierarchy.facet_names.items()}, []
    inner = np.unique(hierarchy.inner_facet_tags).tolist()
    for tag in inner:
        if tag in listed:
            shown = repr(name_of[tag]) if tag in name_of else f"with the tag {tag}"
            warnings.append(f"some facets of the group {shown} lie inside the domain: conditions cannot name it")
    for tag in sorted({*inner, *name_of} - listed):
        count = int((hierarchy.inner_facet_tags == tag).sum())
        words = "none: its facets lie inside the domain" if count else "none: the group is empty"
        rows.append(GroupSummary(name_of.get(tag), tag, count, 0.0, words))
    return rows


def _possible_conditions(problem: Problem, hierarchy: MeshHierarchy, warnings: list[str]) -> tuple[Ints, bool]:
    """(F,) number of the condition of each facet, as far as there is one, and whether all conditions are possible.

    Adds the mistakes in further conditions to the warnings.
    """
    found, all_possible = np.full(len(hierarchy.levels[0].facets), -1), True
    for number, condition in enumerate(problem.conditions):
        if condition.where == (REST,):
            continue
        try:
            found[hierarchy.facets_of(condition)] = number
        except ValueError as error:
            all_possible = False
            if str(error) not in warnings:
                warnings.append(str(error))
    rest = [number for number, condition in enumerate(problem.conditions) if condition.where == (REST,)]
    if all_possible and rest:
        found[found < 0] = rest[-1]
    return found, all_possible


def _conditions_words(conditions: Sequence[Condition], of_facet: Ints, without: str) -> str:
    """The conditions on some facets, in words, with the number of facets of each if there are several."""
    found, count = np.unique(of_facet, return_counts=True)
    words = [without if k == -1 else condition_words(conditions[k]) for k in found.tolist()]
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
    is_known = isinstance(problem.coefficient, ByRegion) or problem.equation is not None
    if is_known and not callable(problem.source) and not functions:
        for k in (k for k in range(box.dimension) if k not in roles):
            warnings.append(f"nothing depends on the parameter y[{k}]: leave it out")
    return tuple(ParameterSummary(k, text, ", ".join(roles.get(k, []))) for k, text in enumerate(texts))


def _roles(problem: Problem, hierarchy: MeshHierarchy) -> dict[int, list[str]]:
    """Where each parameter is used, as far as it shows without calling functions."""
    roles = {} if problem.equation is None else parameter_roles(problem)
    name_of = {tag: name for name, tag in hierarchy.region_names.items()}
    if isinstance(problem.coefficient, ByRegion):
        for region, index in problem.coefficient.parameter.items():
            shown = region if isinstance(region, str) else name_of.get(region, f"region {region}")
            roles.setdefault(index, []).append(f"a on {shown}")
    for condition in problem.conditions:
        for value in (condition.value, condition.outside):
            if value is not None and isinstance(value.given, Parameter):
                name = f"{value.name} of {condition.field}" if condition.field else value.name
                roles.setdefault(value.given.index, []).append(name)
    return roles
