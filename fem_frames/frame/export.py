"""`export_frame` maps a mesh hierarchy and a problem to FrameArrays.

K cells, d dimension, j a level.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fem_frames.fenicsx import door
from fem_frames.frame.arrays import FrameArrays, FrameField, FrameLevel
from fem_frames.frame.curvature import check_elements
from fem_frames.frame.discretisation import Discretisation
from fem_frames.frame.families import FieldLevel, FrameFamily
from fem_frames.mesh.hierarchy import MeshHierarchy
from fem_frames.problem.definition import Problem
from fem_frames.problem.parameters import whole_number


def export_frame(
    hierarchy: MeshHierarchy,
    problem: Problem,
    formulation: str = "energy",
    first_level: int | None = None,
) -> FrameArrays:
    """The multilevel frame of a formulation's fields, from `first_level` to the finest level.

    The elements of the fields determine the functions: hats, normalised in H1, for P1; facet functions, normalised in
    H(div), and curls for RT0. `first_level` defaults to the problem's; levels without a free dof are left out.
    See "Multilevel frames" in the paper. See docs/problems.md.
    """
    hierarchy.check_problem(problem)
    data = Discretisation.from_hierarchy(hierarchy, problem, formulation)
    if problem.curved:
        check_elements([f.element for f in data.fields])
    first = _first_level(data, problem.first_level if first_level is None else first_level)
    rule_points, rule_weights = door.barycentric_quadrature(hierarchy.dimension, problem.quadrature_degree)
    levels, meshes = [], hierarchy.meshes[first:]
    for j, mesh in enumerate(meshes, start=first):
        ends = hierarchy.levels[j].ends if j > first else np.zeros((0, 2), np.int64)
        levels.append(FrameLevel(mesh.cells.copy(), ends.copy(), mesh.hats[0]))
    fields: list[FrameField] = []
    families: list[FrameFamily] = []
    for f in data.fields:
        of_levels = [FieldLevel(mesh, fixed) for mesh, fixed in zip(meshes, f.fixed[first:], strict=True)]
        fields.append(FrameField(f.name, f.element, tuple(level.free for level in of_levels), f.lift[first:]))
        for family in f.element.families(f.name, of_levels):
            taken = family.name in {other.name for other in families}
            families.append(replace(family, name=f"{family.name} of {f.name}") if taken else family)
    # Nodal families come first, in the order of the fields: nets and files rely on this order.
    families.sort(key=lambda family: family.name != family.field)
    return FrameArrays(
        formulation=formulation,
        first_level=first,
        points=data.points.copy(),
        levels=tuple(levels),
        fields=tuple(fields),
        families=tuple(families),
        volumes=meshes[-1].hats[1],
        centres=hierarchy.centres(),
        regions=data.regions,
        rule_points=rule_points,
        rule_weights=rule_weights,
        neumann_load=data.neumann_load,
        record={
            "problem": problem.name,
            "options": dict(problem.options),
            "refinement": problem.refinement,
            "quadrature_degree": problem.quadrature_degree,
            **({"curved": sorted(map(str, problem.curved))} if problem.curved else {}),
            **door.versions(),
        },
    )


def _first_level(data: Discretisation, wanted: int) -> int:
    """The coarsest level from `wanted` on that has a free nodal value."""
    first, finest = whole_number(wanted, "first_level", least=0), len(data.fields[0].fixed) - 1
    if first > finest:
        raise ValueError(f"first_level is {first}; the hierarchy has the levels 0 to {finest}")
    free = [j for j in range(first, finest + 1) if any((~f.fixed[j]).any() for f in data.fields)]
    if not free:
        raise ValueError("no point of the finest mesh is free; use more levels")
    return free[0]
