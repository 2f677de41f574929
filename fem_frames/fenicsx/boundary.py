"""Boundary data of reference solutions for one y: given values, loads and Robin matrices, from data that ranks share.

Every rank evaluates the data on the whole boundary, which is small; rank 0 adds the Robin matrix.

N points of the finest mesh, n nodal values of a field, F facets, d dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fem_frames.fenicsx.door import MPI
from fem_frames.fenicsx.petsc import PETSc
from fem_frames.frame.boundary import POINT_RULE, FacetIntegrals, FieldLift
from fem_frames.frame.discretisation import Discretisation
from fem_frames.frame.elements import Element
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.mesh.simplices import simplices
from fem_frames.problem.definition import Problem


@dataclass(frozen=True, eq=False)
class BoundaryValues:
    """Boundary data for one y."""

    lifts: tuple[Floats, ...]  # for each field (n,)
    load: Floats  # (N,)
    nodes: Ints  # (F, d) of Robin facets
    masses: Floats  # (F, d, d) integrals of k times two hats

    def energy(self, u: Floats) -> float:
        """½ ∫ k u² - load · u, which the loss has beside its integrals over cells."""
        trace = u[self.nodes]  # (F, d)
        return float(0.5 * np.einsum("fn,fnm,fm->", trace, self.masses, trace) - self.load @ u)

    def add_to(self, A: PETSc.Mat, dofs: Ints, comm: MPI.Comm) -> None:
        """Adds the Robin matrix to A; `dofs` (N,) are the global dofs of u at points. Collective."""
        if not len(self.nodes):
            return
        if comm.rank == 0:
            for rows, mass in zip(dofs[self.nodes].astype(PETSc.IntType), self.masses, strict=True):
                A.setValues(rows, rows, mass, addv=PETSc.InsertMode.ADD_VALUES)
        A.assemble()


class BoundaryData:
    """Maps y to the boundary data of a discrete problem; rank 0 makes it and sends what ranks need."""

    def __init__(self, data: Discretisation) -> None:
        """The arrays of the discrete problem, which travel to all ranks."""
        self._lifts = tuple(f.lift[-1] for f in data.fields)
        self._load = data.neumann_load
        self._boundary = data.boundary
        self._points = np.zeros((0, 0)) if data.boundary is None else data.points
        self._shapes: list[tuple[list[tuple[int, Floats]], Ints, Element]] = []
        for f in data.fields if data.boundary is not None else ():
            places = simplices(data.cells, f.element.degree)[0] if f.shapes else np.zeros((0, 1), np.int64)
            self._shapes.append(([(shape.condition, shape.values[-1]) for shape in f.shapes], places, f.element))

    def of(self, problem: Problem) -> Any:
        """The map y (1, p) to `BoundaryValues`."""
        boundary, d = self._boundary, self._points.shape[1]
        fixed = BoundaryValues(self._lifts, self._load, np.zeros((0, d), np.int64), np.zeros((0, d, d)))
        if boundary is None:
            return lambda y: fixed
        rule = (boundary.rule_points, boundary.rule_weights)
        lifts = [
            FieldLift(lift, shapes, self._points[places], element.data_rule(rule) if shapes else POINT_RULE, problem)
            for lift, (shapes, places, element) in zip(self._lifts, self._shapes, strict=True)
        ]
        facets = FacetIntegrals(self._points, boundary.facets[-1], boundary.conditions[-1], rule, problem)

        def evaluate(y: Floats) -> BoundaryValues:
            load, nodes, masses = self._load, fixed.nodes, fixed.masses
            if len(facets.facets):
                load = load.copy()
                np.add.at(load, facets.facets, facets.loads(y)[0])
            if facets.has_robin:
                nodes, masses = facets.facets[facets.robin], facets.masses(y)[0]
            return BoundaryValues(tuple(lift(y)[0] for lift in lifts), load, nodes, masses)

        return evaluate
