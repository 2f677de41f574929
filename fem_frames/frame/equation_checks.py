"""What export refuses of equations: groups that the mesh does not have, and fields that nothing fixes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fem_frames.frame.discretisation import Discretisation
from fem_frames.mesh.checks import group_tags
from fem_frames.mesh.geometry import Ints
from fem_frames.mesh.hierarchy import MeshHierarchy
from fem_frames.problem.definition import Problem
from fem_frames.problem.densities import CELLS, FACETS


def check_equation(hierarchy: MeshHierarchy, problem: Problem, data: Discretisation) -> None:
    """Raises a ValueError if the equation of a problem names unknown groups, or cannot have one solution."""
    for error in unknown_groups(hierarchy, problem, data.regions):
        raise error
    fixed = {field.name: bool(field.fixed[-1].any()) for field in data.fields}
    for error in free_parts(problem, fixed):
        raise error


def free_parts(problem: Problem, fixed: Mapping[str, bool]) -> Iterator[ValueError]:
    """An error for every field that is determined up to constants only; `fixed` tells which have boundary values."""
    for part in problem.density().reduced.parts:
        if part.element == "P1" and not fixed[part.name]:
            yield ValueError(
                f"nothing fixes {part.name}: the equation has only its derivatives, and its boundary values are given "
                f"nowhere; give dirichlet, or add a term with {part.name} itself"
            )


def unknown_groups(hierarchy: MeshHierarchy, problem: Problem, regions: Ints) -> Iterator[ValueError]:
    """An error for every group that the equation names and the mesh does not have."""
    places = (
        (CELLS, hierarchy.region_names, regions, "region"),
        (FACETS, hierarchy.facet_names, hierarchy.coarse_facet_tags, "boundary facet"),
    )
    for kind, names, tags, what in places:
        for group in sorted(problem.density().groups(kind), key=str):
            try:
                group_tags([group], names, tags, what)
            except ValueError as error:
                yield error
