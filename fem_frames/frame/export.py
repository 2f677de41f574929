"""`export_frame` maps a mesh hierarchy and a problem to FrameArrays.

K cells, d dimension, j a level.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fem_frames.fenicsx import door
from fem_frames.frame.arrays import FrameArrays, FrameField, FrameLevel
from fem_frames.frame.boundary import LiftShape
from fem_frames.frame.coarse_space import size_limit
from fem_frames.frame.curvature import check_elements
from fem_frames.frame.discretisation import Discretisation
from fem_frames.frame.elements import Element
from fem_frames.frame.equation_checks import check_equation
from fem_frames.frame.families import FieldLevel, FrameFamily
from fem_frames.frame.witnesses import neumann_witnesses
from fem_frames.mesh.hierarchy import MeshHierarchy
from fem_frames.problem.definition import Problem, check_coarse
from fem_frames.problem.parameters import whole_number


def export_frame(
    hierarchy: MeshHierarchy,
    problem: Problem,
    formulation: str = "energy",
    first_level: int | None = None,
    coarse: str | None = None,
) -> FrameArrays:
    """The multilevel frame of a formulation's fields, from `first_level` to the finest level.

    The elements of the fields determine the functions: hats, normalised in H1, for P1; facet functions, normalised in
    H(div), and curls for RT0. `first_level` defaults to the problem's; levels without a free dof are left out. `coarse`
    chooses the coarse level below the first mesh, by default as the problem does: "auto" adds one where the functions
    on the first mesh are ill conditioned, "none" never, "dense" an orthonormal basis, "algebraic" by aggregation.
    See "Multilevel frames" in the paper. See docs/problems.md.
    """
    hierarchy.check_problem(problem)
    data = Discretisation.from_hierarchy(hierarchy, problem, formulation)
    if problem.equation is not None:
        check_equation(hierarchy, problem, data)
    if problem.curved:
        check_elements([f.element for f in data.fields])
    first = _first_level(data, problem.first_level if first_level is None else first_level)
    rule_points, rule_weights = door.barycentric_quadrature(hierarchy.dimension, problem.quadrature_degree)
    choice, length = check_coarse(problem.coarse if coarse is None else coarse), hierarchy.length(problem)
    first_choice = "none" if problem.normalisation == "energy" else choice
    levels, meshes = [], hierarchy.meshes[first:]
    for j, mesh in enumerate(meshes, start=first):
        ends = hierarchy.levels[j].ends if j > first else np.zeros((0, 2), np.int64)
        levels.append(FrameLevel(mesh.cells.copy(), ends.copy(), mesh.hats[0]))
    fields: list[FrameField] = []
    families: list[FrameFamily] = []
    for f in data.fields:
        of_levels = [FieldLevel(mesh, fixed, length) for mesh, fixed in zip(meshes, f.fixed[first:], strict=True)]
        shapes = tuple(LiftShape(shape.condition, shape.values[first:]) for shape in f.shapes)
        free = tuple(level.free for level in of_levels)
        fields.append(FrameField(f.name, f.element, free, f.lift[first:], shapes))
        for family in _with_coarse(f.element, f.element.families(f.name, of_levels), of_levels[0], first_choice):
            taken = family.name in {other.name for other in families}
            families.append(replace(family, name=f"{family.name} of {f.name}") if taken else family)
    # Nodal families come first, in the order of the fields: nets and files rely on this order.
    families.sort(key=lambda family: family.name != family.field)
    made = FrameArrays(
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
        length=length,
        boundary=None if data.boundary is None else data.boundary.from_level(first),
        groups=data.groups,
        record={
            "problem": problem.name,
            "options": dict(problem.options),
            "refinement": problem.refinement,
            "quadrature_degree": problem.quadrature_degree,
            "neumann": neumann_witnesses(hierarchy, problem),
            **({"normalisation": problem.normalisation} if problem.normalisation != "H1" else {}),
            **({"region_names": dict(hierarchy.region_names)} if hierarchy.region_names else {}),
            **({"facet_names": dict(hierarchy.facet_names)} if hierarchy.facet_names else {}),
            **({"equation": problem.density().record()} if problem.equation is not None else {}),
            **({"curved": sorted(map(str, problem.curved))} if problem.curved else {}),
            **door.versions(),
        },
    )
    if problem.equation is not None:
        from fem_frames.formulations.held_motions import check_motions

        check_motions(made, problem)
    if problem.normalisation == "energy":
        from fem_frames.formulations.normalisation import in_nominal_energy

        return in_nominal_energy(made, problem, choice)
    return made


def _with_coarse(element: Element, families: list[FrameFamily], level: FieldLevel, choice: str) -> list[FrameFamily]:
    """The families of a field, the first with a coarse level where one is wanted and the element has one."""
    norm = element.norm_matrix(level)
    if norm is None:
        return families
    limit = size_limit(choice, [family.functions[0] for family in families], norm, level.free)
    if limit is None:
        return families
    return [families[0].with_coarse(element.coarse_functions(level, limit, norm)), *families[1:]]


def _first_level(data: Discretisation, wanted: int) -> int:
    """The coarsest level from `wanted` on that has a free nodal value."""
    first, finest = whole_number(wanted, "first_level", least=0), len(data.fields[0].fixed) - 1
    if first > finest:
        raise ValueError(f"first_level is {first}; the hierarchy has the levels 0 to {finest}")
    free = [j for j in range(first, finest + 1) if any((~f.fixed[j]).any() for f in data.fields)]
    if not free:
        raise ValueError("no point of the finest mesh is free; use more levels")
    return free[0]
