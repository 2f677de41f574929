"""The linear system of a formulation with coefficient and source, from its forms in UFL.

K cells of this rank, Q quadrature points, N points of the finest mesh.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fem_frames.fenicsx import door, petsc
from fem_frames.fenicsx.boundary import BoundaryValues
from fem_frames.fenicsx.dofs import global_node_dofs
from fem_frames.fenicsx.door import fem, ufl
from fem_frames.fenicsx.field_space import FieldSpace
from fem_frames.fenicsx.parallel import together
from fem_frames.fenicsx.petsc import PETSc
from fem_frames.fenicsx.solvers import FluxBlock, KrylovSolver
from fem_frames.formulations.registry import formulation_for
from fem_frames.frame.elements import P1, RT0
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.mesh.simplices import facet_vectors
from fem_frames.problem.definition import Problem

Boundary = Callable[[Floats], BoundaryValues]


class FormulationSystem:
    """Maps y to the solution of a formulation of −div(a_y ∇u) = f_y in a space."""

    def __init__(
        self,
        space: FieldSpace,
        problem: Problem,
        formulation: str,
        regions: Ints,
        boundary: Boundary,
        length: float,
        solver: str,
        petsc_options: Mapping[str, Any],
    ) -> None:
        self._space, self._problem, self._boundary = space, problem, boundary
        mesh, comm, degree = space.mesh, space.comm, problem.quadrature_degree
        hats, _ = door.barycentric_quadrature(mesh.topology.dim, degree)
        corners = door.coordinates(mesh)[door.nodes(mesh)]
        at = np.einsum("qn,knd->kqd", hats, corners)  # (K, Q, d)
        self._points, self._tables = at, together(comm, lambda: problem.tabulate(at, regions))
        at_points = door.quadrature_space(mesh, degree)
        self._point_dofs = door.dofs(at_points)
        self._a, self._f = fem.Function(at_points), fem.Function(at_points)
        dx = ufl.Measure("dx", domain=mesh, metadata={"quadrature_degree": degree})
        self._y = door.constant(mesh, np.zeros(problem.parameters.dimension))
        forms = formulation_for(formulation, problem).forms
        scaled = {"length": length} if "length" in inspect.signature(forms).parameters else {}
        made = forms(space.V, space.solution, self._a, self._f, self._y, dx, **scaled)
        self._bilinear, self._linear, self._functional = (door.compile_form(form) for form in made)
        has_robin = any(condition.kind == "robin" for condition in problem.conditions)
        self._node_dofs = space.global_nodes() if has_robin else np.zeros(0, np.int64)
        self.solver = KrylovSolver(comm, solver, petsc_options, self._flux_block() if solver == "cg" else None)
        self._matrix: PETSc.Mat | None = None

    def solve(self, y: Floats) -> None:
        """Solves for one y (1, p) into the solution of the space. Collective."""
        space = self._space
        a, f, self._given = together(
            space.comm,
            lambda: (
                self._problem.coefficient_values(self._tables, y, self._points)[0],
                self._problem.source_values(y, self._points)[0],
                self._boundary(y),
            ),
        )
        self._y.value[:] = y[0]
        self._a.x.array[self._point_dofs] = a
        self._f.x.array[self._point_dofs] = f
        A = self._matrix = petsc.assemble_matrix(self._bilinear, into=self._matrix)
        b = petsc.assemble_vector(self._linear)
        x = A.createVecRight()
        given = space.place(self._given.lifts, x.array)
        owned, node, _ = space.dofs[0]
        b.array[owned] += self._given.load[node]
        self._given.add_to(A, self._node_dofs, space.comm)
        A.zeroRowsColumns((space.first + given).astype(PETSc.IntType), 1.0, x, b)
        self.solver(A, b, x)
        space.set_solution(x.array_r)
        for vector in (b, x):
            vector.destroy()

    def loss(self, fields: Mapping[str, Floats]) -> float:
        """The loss of the solution, whose nodal values (n,) are `fields`. Collective."""
        # The load of Neumann and Robin data acts on the first field.
        return door.integral(self._functional, self._space.comm) + self._given.energy(next(iter(fields.values())))

    def _flux_block(self) -> FluxBlock | None:
        """The data for AMS if the fields are in P1 and RT0; None otherwise."""
        space = self._space
        if [type(f.element) for f in space.fields] != [P1, RT0]:
            return None
        (nodes, _, _), (owned, place, factor) = space.dofs
        ends = space.fields[1].simplices[place]  # (n, 2)
        columns = global_node_dofs(space.V.sub(0), space.V, ends.ravel())
        weights = (factor[:, None] * np.array([-1.0, 1.0])).ravel()
        constants = factor[:, None] * facet_vectors(space.node_points(), ends)
        return FluxBlock((nodes, owned), (np.repeat(owned, 2), columns, weights), constants)
