"""The discrete problem: fields with their free and given nodal values, regions, and the load of Neumann data.

`export_frame` makes the frame from it; `ReferenceSolver` makes the system for PETSc.

N points, K cells of the finest mesh, d dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fem_frames.formulations.registry import formulation_for
from fem_frames.frame.arrays import FrameArrays
from fem_frames.frame.boundary import POINT_RULE, BoundaryFacets, LiftShape, areas
from fem_frames.frame.elements import Element
from fem_frames.frame.facet_groups import FacetGroups
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.mesh.hierarchy import MeshHierarchy
from fem_frames.problem.boundary import BoundaryValue, Condition
from fem_frames.problem.definition import Problem


@dataclass(frozen=True, eq=False)
class DiscreteField:
    """The nodal values of one field on every level."""

    name: str
    element: Element
    fixed: tuple[npt.NDArray[np.bool_], ...]  # for each level, where nodal values are given
    lift: tuple[Floats, ...]  # for each level, nodal values that agree with the given ones
    shapes: tuple[LiftShape, ...] = ()  # of data that depend on y


@dataclass(frozen=True, eq=False)
class Discretisation:
    """The discrete problem on the finest mesh, its fields on all levels."""

    points: Floats  # (N, d)
    cells: Ints  # (K, d+1)
    regions: Ints  # (K,)
    fields: tuple[DiscreteField, ...]
    neumann_load: Floats  # (N,) integrals of Neumann data times hats; zero where these data are essential
    length: float = 1.0
    """L, the unit in which functionals measure lengths."""
    boundary: BoundaryFacets | None = None
    """Facets whose data enter the functional for each y; None if no boundary data are evaluated for each y."""
    groups: FacetGroups | None = None
    """All boundary facets with their tags; None for frames of earlier versions."""
    facet_names: Mapping[str, int] = field(default_factory=dict)
    region_names: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_hierarchy(cls, hierarchy: MeshHierarchy, problem: Problem, formulation: str) -> Discretisation:
        """The discrete problem on a mesh hierarchy."""
        kind, problem = formulation_for(formulation, problem), problem.with_tags(hierarchy.region_names)
        regions = hierarchy.regions(problem)
        problem.tabulate(hierarchy.centres()[:, None], regions)  # finds unknown region tags and wrong shapes now
        problem.try_boundary(hierarchy.points)
        fields = []
        for f in kind.fields:
            data = f.essential(hierarchy, problem)
            element = f.kind.for_mesh(hierarchy.dimension, hierarchy.meshes[-1].hats[1])
            fields.append(DiscreteField(f.name, element, data.fixed, data.lift, data.shapes))
        load = neumann_load(hierarchy, problem) if kind.neumann_is_load else np.zeros(len(hierarchy.points))
        mesh = hierarchy.points, hierarchy.finest.cells, regions
        boundary = boundary_facets(hierarchy, problem, kind.neumann_is_load)
        groups = FacetGroups.from_hierarchy(hierarchy, problem)
        names = dict(hierarchy.facet_names), dict(hierarchy.region_names)
        return cls(*mesh, tuple(fields), load, hierarchy.length(problem), boundary, groups, *names)

    @classmethod
    def from_frame(cls, arrays: FrameArrays) -> Discretisation:
        """The discrete problem of a frame; needs no DOLFINx and no refinement."""
        fields = []
        for f in arrays.fields:
            fixed = [np.ones(len(lift), bool) for lift in f.lift]
            for mask, free in zip(fixed, f.free, strict=True):
                mask[free] = False
            fields.append(DiscreteField(f.name, f.element, tuple(fixed), f.lift, f.shapes))
        mesh = arrays.points, arrays.levels[-1].cells, arrays.regions
        names = arrays.record.get("facet_names", {}), arrays.record.get("region_names", {})
        return cls(*mesh, tuple(fields), arrays.neumann_load, arrays.length, arrays.boundary, arrays.groups, *names)


def neumann_load(hierarchy: MeshHierarchy, problem: Problem) -> Floats:
    """(N,) integrals of h times the finest hats over the Neumann part, of data that do not depend on y."""
    load, part = np.zeros(len(hierarchy.points)), hierarchy.condition_facets(problem)[hierarchy.finest.facet_origin]
    for number, condition in enumerate(problem.conditions):
        if condition.kind == "neumann" and not condition.value.is_zero and not condition.depends_on_y:
            _add_load(load, hierarchy, hierarchy.finest.facets[part == number], condition.value, problem)
    return load


def _add_load(load: Floats, hierarchy: MeshHierarchy, facets: Ints, h: BoundaryValue, problem: Problem) -> None:
    from fem_frames.fenicsx import door

    d = hierarchy.dimension
    if d == 1:
        np.add.at(load, facets[:, 0], h.at(hierarchy.points[facets[:, 0]]))
        return
    hats, weights = door.barycentric_quadrature(d - 1, problem.quadrature_degree)  # (Q, d), (Q,)
    corners = hierarchy.points[facets]  # (F, d, d)
    x = np.einsum("qn,fnd->fqd", hats, corners)
    values = h.at(x.reshape(-1, d)).reshape(x.shape[:2])
    np.add.at(load, facets, np.einsum("f,q,fq,qn->fn", areas(corners), weights, values, hats))


def boundary_facets(hierarchy: MeshHierarchy, problem: Problem, neumann_is_load: bool) -> BoundaryFacets | None:
    """The facets of Robin conditions, and of Neumann data that are a load and depend on y; None if y enters nowhere."""
    from fem_frames.fenicsx import door

    def is_evaluated(condition: Condition) -> bool:
        return condition.kind == "robin" or (condition.kind == "neumann" and neumann_is_load and condition.depends_on_y)

    if not any(condition.kind == "robin" or condition.depends_on_y for condition in problem.conditions):
        return None
    d, part = hierarchy.dimension, hierarchy.condition_facets(problem)
    chosen = np.array([*(is_evaluated(condition) for condition in problem.conditions), False])
    facets, conditions = [], []
    for level in hierarchy.levels:
        of_facets = part[level.facet_origin]
        order = np.argsort(of_facets, kind="stable")
        order = order[chosen[of_facets[order]]]
        facets.append(level.facets[order].astype(np.int64))
        conditions.append(of_facets[order].astype(np.int64))
    rule = POINT_RULE if d == 1 else door.barycentric_quadrature(d - 1, problem.quadrature_degree)
    return BoundaryFacets(tuple(facets), tuple(conditions), *rule)
