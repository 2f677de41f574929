"""What the equation of a problem consists of, read from its programs: fields, integrals, parameters, mistakes.

F boundary facets of the coarse mesh.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fem_frames.frame.equation_checks import free_parts, unknown_groups
from fem_frames.frame.fields import joined_components, vector_name
from fem_frames.mesh.geometry import Ints
from fem_frames.mesh.hierarchy import MeshHierarchy
from fem_frames.problem.definition import Problem
from fem_frames.problem.densities import CELLS, ENERGY, Density, Integral, Part
from fem_frames.studies.overview import EquationSummary, FieldSummary, IntegralSummary

BUBBLES = "edge bubbles"
STATES = {"P1": "gradient", "P1 with values": "value, gradient", "RT0": "value, divergence"}


def equation_summary(problem: Problem) -> EquationSummary:
    """The equation of a problem in words and numbers."""
    assert problem.equation is not None
    density = problem.density()
    elements = {part.name: part.element for part in density.reduced.parts}
    fields = []
    for unknown in problem.equation.fields:
        states = list(dict.fromkeys(STATES.get(elements[name], elements[name]) for name in unknown.names()))
        count = problem.dimension if unknown.element == "RT0" else unknown.components or 1
        fields.append(FieldSummary(unknown.name, unknown.element, count, "; ".join(states)))
    if density_kind(density) == "diffusion":
        kind = "minimises ½ ∫ a |∇u|² and loads, which is diffusion"
    else:
        what = "solves a weak form" if density.kind != ENERGY else "minimises an energy"
        kind = f"{what}: the equation is {density_kind(density)}"
    integrals = tuple(_integral(density, number) for number in range(len(density.integrals)))
    return EquationSummary(kind, tuple(fields), integrals)


def density_kind(density: Density) -> str:
    """diffusion, linear or nonlinear."""
    return "diffusion" if density.diffusion is not None else "linear" if density.is_linear else "nonlinear"


def _integral(density: Density, number: int) -> IntegralSummary:
    integral = density.integrals[number]
    used = integral.program.inputs()
    programs = [program for row in density.hessians[number] for program in row]
    degree = "nonlinear"
    if density.kind != ENERGY:
        constant = all(program.result == 0.0 for program in programs)
        if not any(letters & {"s", "v"} for program in programs for letters in program.letters()):
            degree = "load" if constant else "linear"
    elif all(program.result == 0.0 for program in programs):
        degree = "linear" if any(letter == "s" for letter, _ in used) else "constant"
    elif not any("s" in letters for program in programs for letters in program.letters()):
        degree = "quadratic"
    return IntegralSummary(
        measure(integral),
        ", ".join(_functions(density.parts, used)),
        degree,
        tuple(sorted(i for letter, i in used if letter == "y")),
        len(integral.program.operations),
    )


def measure(integral: Integral) -> str:
    """dx('steel') or ds."""
    name = "dx" if integral.kind == CELLS else "ds"
    return f"{name}({', '.join(map(repr, integral.groups))})" if integral.groups else name


def _functions(parts: Sequence[Part], used: set[tuple[str, int]]) -> Iterator[str]:
    """The functions that a program sees: ∇u, u, div σ, x, n; components of a vector are one if all are there."""
    found: dict[str, dict[str, None]] = {}
    for sign, letter in (("", "s"), ("test of ", "v")):
        for part in parts:
            name = part.name.removesuffix(" bubbles")
            for i in part.entries:
                if (letter, i) in used:
                    found.setdefault(sign + _derivative(part, i - part.start), {})[name] = None
    counts: dict[str, int] = {}
    for part in parts:
        if part.element != BUBBLES:
            base = vector_name(part.name) or part.name
            counts[base] = counts.get(base, 0) + 1
    for derivative, names in found.items():
        joined = joined_components({name: name for name in names}, lambda group: group[0])
        for base in joined:
            own = [name for name in names if (vector_name(name) or name) == base]
            for name in [base] if len(own) == counts.get(base) else own:
                yield derivative.replace("·", name)
    yield from (word for letter, word in (("x", "x"), ("n", "normal"), ("h", "size of cells")) if _has(used, letter))


def _derivative(part: Part, entry: int) -> str:
    """Which function an entry of the state belongs to; · stands for the field."""
    if part.element == "RT0":
        return "div ·" if entry == part.size - 1 else "·"
    return "·" if entry == 0 else "∇·"


def _has(used: set[tuple[str, int]], letter: str) -> bool:
    return any(own == letter for own, _ in used)


# ---- where integrals and conditions hold


def terms_on(problem: Problem, kind: str, tag: int | None, name: str | None) -> list[str]:
    """What is integrated over the group with this tag and name, in words."""
    density, found = problem.density(), []
    for number, integral in enumerate(density.integrals):
        if integral.kind == kind and (not integral.groups or {tag, name} & set(integral.groups)):
            summary = _integral(density, number)
            found.append(summary.words)
    return found


def parameter_roles(problem: Problem) -> dict[int, list[str]]:
    """Which integrals each parameter enters."""
    roles: dict[int, list[str]] = {}
    for integral in problem.density().integrals:
        for letter, i in sorted(integral.program.inputs()):
            if letter == "y" and measure(integral) not in roles.setdefault(i, []):
                roles[i].append(measure(integral))
    return roles


def equation_warnings(
    problem: Problem, hierarchy: MeshHierarchy, regions: Ints, given: dict[str, Ints]
) -> Iterator[str]:
    """Mistakes in groups, regions without integrals, and fields that nothing fixes."""
    density = problem.density()
    yield from map(str, unknown_groups(hierarchy, problem, regions))
    of_cells = [integral.groups for integral in density.integrals if integral.kind == CELLS]
    if all(of_cells):
        named = {tag for groups in of_cells for tag in groups}
        name_of = {tag: name for name, tag in hierarchy.region_names.items()}
        for tag in np.unique(regions).tolist():
            if not {tag, name_of.get(tag)} & named:
                shown = repr(name_of[tag]) if tag in name_of else f"with the tag {tag}"
                yield f"no integral of the equation covers the region {shown}: nothing determines the fields there"
    fixed = {name: bool((numbers >= 0).any()) for name, numbers in given.items()}
    yield from map(str, free_parts(problem, fixed))
