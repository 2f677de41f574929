"""From a mesh hierarchy and a problem to FrameArrays.

N points, K cells, d dimension, j a level.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fem_frames.fenicsx import door
from fem_frames.formulations.registry import formulation_class
from fem_frames.frame.arrays import FrameArrays, FrameFamily, FrameField, FrameLevel
from fem_frames.frame.raviart_thomas import FluxLevel, flux_levels, flux_lift
from fem_frames.frame.sparse import SparseMatrix
from fem_frames.mesh.geometry import Floats, Ints, signed_volumes
from fem_frames.mesh.hierarchy import MeshHierarchy
from fem_frames.problem.definition import Problem, whole_number


@dataclass(frozen=True, eq=False)
class EssentialData:
    """Of one field, on every level: where its nodal values are given, and nodal values that are right there."""

    name: str
    degree: int  # dimension of the simplices that carry the nodal values
    fixed: tuple[npt.NDArray[np.bool_], ...]  # for each level, of all these simplices
    lift: tuple[Floats, ...]  # the same


def export_frame(
    hierarchy: MeshHierarchy,
    problem: Problem,
    formulation: str = "energy",
    first_level: int | None = None,
) -> FrameArrays:
    """The multilevel frame of P1 hats, normalised in H1, levels `first_level` to the finest.

    For least squares also one of the flux in RT0: facet functions, normalised in H(div), and curls (`flux.py`).
    `first_level` is by default the problem's; levels without any free dof are left out.
    See "Multilevel frames" in the paper.
    """
    hierarchy.check_problem(problem)
    data = essential_data(hierarchy, problem, formulation)
    first = problem.first_level if first_level is None else whole_number(first_level, "first_level", least=0)
    finest = len(hierarchy.levels) - 1
    if first > finest:
        raise ValueError(f"first_level is {first}; the hierarchy has the levels 0 to {finest}")
    first = next((j for j in range(first, finest + 1) if any((~f.fixed[j]).any() for f in data)), -1)
    if first < 0:
        raise ValueError("no point of the finest mesh is free; use more levels")
    regions = hierarchy.regions(problem)
    rule_points, rule_weights = door.barycentric_quadrature(hierarchy.dimension, problem.quadrature_degree)
    centres = hierarchy.centres()
    problem.tabulate(centres[:, None], regions)  # what does not fit, unknown region tags too, is found here

    levels, hats = [], []
    for j in range(first, finest + 1):
        points, level = hierarchy.level_points(j), hierarchy.levels[j]
        gradients, volumes = p1_gradients(points, level.cells)
        ends = level.ends if j > first else np.zeros((0, 2), np.int64)
        levels.append(FrameLevel(level.cells.copy(), ends.copy(), gradients))
        free, norms = np.flatnonzero(~data[0].fixed[j]), hat_norms(level.cells, gradients, volumes, len(points))
        hats.append(SparseMatrix.from_entries(np.arange(len(free)), free, 1 / norms[free], (len(free), len(points))))
    fields = [
        FrameField(f.name, f.degree, tuple(np.flatnonzero(~fixed) for fixed in f.fixed[first:]), f.lift[first:])
        for f in data
    ]
    families = [FrameFamily("u", "u", 0, fields[0].free, tuple(hats))]
    if len(data) > 1:
        families += _flux_families(flux_levels(hierarchy, problem)[first:], fields[1])
    return FrameArrays(
        formulation=formulation,
        first_level=first,
        points=hierarchy.points.copy(),
        levels=tuple(levels),
        fields=tuple(fields),
        families=tuple(families),
        volumes=volumes,
        centres=centres,
        regions=regions,
        rule_points=rule_points,
        rule_weights=rule_weights,
        neumann_load=neumann_load(hierarchy, problem, formulation),
        record={
            "problem": problem.name,
            "options": dict(problem.options),
            "refinement": problem.refinement,
            "quadrature_degree": problem.quadrature_degree,
            **door.versions(),
        },
    )


def essential_data(hierarchy: MeshHierarchy, problem: Problem, formulation: str) -> tuple[EssentialData, ...]:
    """The fields of a formulation and their essential boundary data: u, and for (LS) the flux σ = a ∇u."""
    formulation_class(formulation)
    fixed = hierarchy.fixed_points(problem)
    lift = np.zeros(len(hierarchy.points))
    if problem.dirichlet_value != 0.0:
        # Interpolated everywhere, not only on the boundary: a smooth lift loses no digits in half precision.
        lift = problem.boundary_values("dirichlet_value", hierarchy.points).copy()
    u = EssentialData("u", 0, fixed, tuple(lift[: len(mask)].copy() for mask in fixed))
    if formulation == "energy":
        return (u,)
    levels = flux_levels(hierarchy, problem)
    sigma = EssentialData(
        "sigma", hierarchy.dimension - 1, tuple(x.fixed for x in levels), flux_lift(hierarchy, problem, levels)
    )
    return u, sigma


def _flux_families(levels: list[FluxLevel], sigma: FrameField) -> Iterator[FrameFamily]:
    """Facet functions, and on triangles and tetrahedra curls, on the first level with harmonic fields."""
    d = sigma.degree + 1
    yield FrameFamily("sigma", "sigma", d - 1, sigma.free, tuple(level.facet_functions() for level in levels))
    if d > 1:
        free, functions = zip(*(level.curls() for level in levels), strict=True)
        coarsest = SparseMatrix.stacked(functions[0], levels[0].harmonic_fields())
        yield FrameFamily("curl", "sigma", d - 2, free, (coarsest, *functions[1:]))


def neumann_load(hierarchy: MeshHierarchy, problem: Problem, formulation: str) -> Floats:
    """(N,) integrals of h times the finest hats over the Neumann part; zero where these data are essential."""
    load = np.zeros(len(hierarchy.points))
    if formulation != "energy" or problem.neumann_value == 0.0:
        return load
    facets = hierarchy.finest.facets[~hierarchy.dirichlet_facets(problem)[hierarchy.finest.facet_origin]]
    d = hierarchy.dimension
    if d == 1:
        np.add.at(load, facets[:, 0], problem.boundary_values("neumann_value", hierarchy.points[facets[:, 0]]))
        return load
    hats, weights = door.barycentric_quadrature(d - 1, problem.quadrature_degree)  # (Q, d), (Q,)
    corners = hierarchy.points[facets]  # (F, d, d)
    x = np.einsum("qn,fnd->fqd", hats, corners)
    h = problem.boundary_values("neumann_value", x.reshape(-1, d)).reshape(x.shape[:2])
    np.add.at(load, facets, np.einsum("f,q,fq,qn->fn", _areas(corners), weights, h, hats))
    return load


def p1_gradients(points: Floats, cells: Ints) -> tuple[Floats, Floats]:
    """(K, d+1, d) gradients of the hats on each cell, and the volumes (K,)."""
    corners = points[cells]
    edges = corners[:, 1:] - corners[:, :1]  # (K, d, d), rows
    inner = np.swapaxes(np.linalg.inv(edges), 1, 2)  # rows: gradients of the hats 1, …, d
    gradients = np.concatenate([-inner.sum(axis=1, keepdims=True), inner], axis=1)
    return gradients, np.abs(signed_volumes(points, cells))


def hat_norms(cells: Ints, gradients: Floats, volumes: Floats, point_count: int) -> Floats:
    """(N,) full H1 norms of the nodal hats."""
    d = cells.shape[1] - 1
    # float64: these norms underflow in half precision
    square = volumes[:, None] * (2 / ((d + 1) * (d + 2)) + (gradients**2).sum(axis=-1))  # (K, d+1)
    return np.sqrt(np.bincount(cells.ravel(), weights=square.ravel(), minlength=point_count))


def _areas(corners: Floats) -> Floats:
    """(F,) lengths or areas of facets with the corners (F, d, d)."""
    if corners.shape[1] == 2:
        return np.asarray(np.linalg.norm(corners[:, 1] - corners[:, 0], axis=-1))
    return np.asarray(
        np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=-1) / 2
    )
