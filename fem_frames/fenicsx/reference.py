"""Reference solutions by DOLFINx and PETSc, serial or over MPI, in the numbering of the exported frame.

B samples, N points of the finest mesh, K cells of this rank, Q quadrature points.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fem_frames.fenicsx import door, petsc
from fem_frames.fenicsx.boundary import BoundaryData
from fem_frames.fenicsx.dofs import (
    bubbles_from_middles,
    edge_dofs,
    facet_dofs,
    global_node_dofs,
    middles_from_bubbles,
    node_dofs,
)
from fem_frames.fenicsx.door import MPI, fem, ufl
from fem_frames.fenicsx.parallel import on_root, together, together_in_steps
from fem_frames.fenicsx.petsc import PETSc
from fem_frames.fenicsx.refinement import coarse_mesh, refine
from fem_frames.fenicsx.solvers import FluxBlock, KrylovSolver, choose_solver
from fem_frames.formulations.registry import formulation_for
from fem_frames.frame.arrays import FrameArrays
from fem_frames.frame.discretisation import Discretisation
from fem_frames.frame.edge_bubbles import EdgeBubbles
from fem_frames.frame.elements import P1, RT0, Element
from fem_frames.frame.solutions import ReferenceSolutions
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.mesh.simplices import facet_vectors, simplices
from fem_frames.problem.definition import Problem


@dataclass(frozen=True, eq=False)
class _Field:
    """The nodal values of a field on the finest mesh."""

    name: str
    element: Element
    simplices: Ints  # (n, k+1) points of the simplices that carry them
    fixed: npt.NDArray[np.bool_]  # (n,) where nodal values are given


@dataclass(frozen=True, eq=False)
class _Shared:
    """The data of the discrete problem that rank 0 sends to all ranks, beside their parts of the mesh."""

    regions: Ints  # (cells of all ranks,)
    fields: tuple[_Field, ...]
    points: int  # N
    boundary: BoundaryData
    length: float

    @classmethod
    def of(cls, data: Discretisation | None) -> _Shared:
        assert data is not None  # on rank 0
        fields = tuple(
            _Field(f.name, f.element, simplices(data.cells, f.element.degree)[0], f.fixed[-1]) for f in data.fields
        )
        return cls(data.regions, fields, len(data.points), BoundaryData(data), data.length)


class ReferenceSolver:
    """Maps y to the finite element solution on level `levels`, with the mesh distributed over `comm`.

    `solver="cg"` means conjugate gradients with multigrid, `"lu"` LU; the formulation decides which of them it supports
    in a dimension, and the default. PETSc's options come from its command line or from `petsc_options`, which takes
    precedence: `{"ksp_rtol": 1e-8, "ksp_monitor": None}`. See docs/problems.md.
    """

    def __init__(
        self,
        problem: Problem,
        levels: int,
        formulation: str = "energy",
        *,
        solver: str | None = None,
        petsc_options: Mapping[str, Any] | None = None,
        comm: MPI.Comm = MPI.COMM_WORLD,
    ) -> None:
        choose_solver(formulation, solver)
        levels = problem.check_levels(levels)
        coarse = coarse_mesh(problem.mesh)  # on all ranks: the mesh may be distributed
        problem = problem.with_tags(coarse.region_names)
        solver = choose_solver(formulation, solver, coarse.dimension)

        def discretise() -> Discretisation | None:
            if comm.rank:
                return None
            hierarchy = refine(coarse, levels, problem.refinement, problem.curved)
            return Discretisation.from_hierarchy(hierarchy, problem, formulation)

        self._set_up(problem, formulation, together(comm, discretise), solver, petsc_options or {}, comm)

    @classmethod
    def on_frame(
        cls,
        arrays: FrameArrays,
        problem: Problem,
        *,
        solver: str | None = None,
        petsc_options: Mapping[str, Any] | None = None,
        comm: MPI.Comm = MPI.COMM_SELF,
    ) -> ReferenceSolver:
        """The solver on the finest mesh of a frame, without refining the mesh again."""
        made = cls.__new__(cls)
        solver = choose_solver(arrays.formulation, solver, arrays.dimension)
        data = Discretisation.from_frame(arrays)
        made._set_up(arrays.with_tags(problem), arrays.formulation, data, solver, petsc_options or {}, comm)
        return made

    def _set_up(
        self,
        problem: Problem,
        formulation: str,
        data: Discretisation | None,
        solver: str,
        petsc_options: Mapping[str, Any],
        comm: MPI.Comm,
    ) -> None:
        """Sets up mesh, forms and solver; only rank 0 needs `data`."""
        self.problem, self.formulation, self.comm = problem, formulation, comm
        self._data = on_root(comm, lambda: _Shared.of(data))
        self._set_up_mesh(data)
        self._set_up_forms()
        self._set_up_boundary()
        block = self._flux_block() if solver == "cg" else None
        self._krylov = KrylovSolver(comm, solver, petsc_options, block)
        self._matrix: PETSc.Mat | None = None

    def _set_up_mesh(self, data: Discretisation | None) -> None:
        problem, comm = self.problem, self.comm
        points, cells = np.zeros((0, 1)), np.zeros((0, 2), np.int64)
        if data is not None:
            points, cells = data.points, data.cells
        self.mesh = door.create(points, cells, comm)
        hats, _ = door.barycentric_quadrature(self.mesh.topology.dim, problem.quadrature_degree)
        corners = door.coordinates(self.mesh)[door.nodes(self.mesh)]
        at = np.einsum("qn,knd->kqd", hats, corners)  # (K, Q, d)
        regions = self._data.regions[door.input_cells(self.mesh)]
        self._points, self._tables = at, together(comm, lambda: problem.tabulate(at, regions))

    def _set_up_forms(self) -> None:
        mesh, degree = self.mesh, self.problem.quadrature_degree
        at_points = door.quadrature_space(mesh, degree)
        self._point_dofs = door.dofs(at_points)
        self._a, self._f = fem.Function(at_points), fem.Function(at_points)
        fields = self._data.fields
        families, place = _families(fields)
        V = self.space = door.space(mesh, *families)
        self.solution = fem.Function(V)
        dx = ufl.Measure("dx", domain=mesh, metadata={"quadrature_degree": degree})
        self._y = door.constant(mesh, np.zeros(self.problem.parameters.dimension))
        forms = formulation_for(self.formulation, self.problem).forms
        scaled = {"length": self._data.length} if "length" in inspect.signature(forms).parameters else {}
        made = forms(V, self.solution, self._a, self._f, self._y, dx, **scaled)
        parts = [V if len(families) == 1 else V.sub(i) for i in place]
        self._bilinear, self._linear, self._functional = (door.compile_form(form) for form in made)
        self._dofs = [_nodal_dofs(f, part, V) for f, part in zip(fields, parts, strict=True)]

    def _set_up_boundary(self) -> None:
        self._boundary = together(self.comm, lambda: self._data.boundary.of(self.problem))
        self._node_dofs = np.zeros(0, np.int64)  # (N,) global dofs of the first field, for Robin conditions
        if any(condition.kind == "robin" for condition in self.problem.conditions):
            self._node_dofs = np.zeros(self._data.points, np.int64)
            owned, node, _ = self._dofs[0]
            for part, nodes in self.comm.allgather((self.space.dofmap.index_map.local_range[0] + owned, node)):
                self._node_dofs[nodes] = part

    def __call__(self, y: npt.ArrayLike) -> tuple[dict[str, Floats], float]:
        """Nodal values (N,) of every field and the loss for one y (p,), on every rank. Collective."""
        self.solve(y)
        fields = self.gathered()
        # The load of Neumann and Robin data acts on the first field.
        return fields, door.integral(self._functional, self.comm) + self._given.energy(next(iter(fields.values())))

    def solve(self, y: npt.ArrayLike) -> None:
        """Solves for one y (p,) into `solution`, without gathering it. Collective."""
        checked = self.problem.check_parameters(y)
        if len(checked) != 1:
            raise ValueError(f"one y is expected, not {len(checked)}; solve_reference takes a batch")
        self._set_data(checked)
        self._solve()

    def gathered(self) -> dict[str, Floats]:
        """Nodal values (N,) of every field of `solution`, on every rank. Collective."""
        found = [self._gather(f, dofs) for f, dofs in zip(self._data.fields, self._dofs, strict=True)]
        for k, f in enumerate(self._data.fields):
            if isinstance(f.element, EdgeBubbles):
                found[k] = bubbles_from_middles(found[k - 1], found[k], f.simplices)
        return {f.name: values for f, values in zip(self._data.fields, found, strict=True)}

    def _set_data(self, y: Floats) -> None:
        a, f, self._given = together(
            self.comm,
            lambda: (
                self.problem.coefficient_values(self._tables, y, self._points)[0],
                self.problem.source_values(y, self._points)[0],
                self._boundary(y),
            ),
        )
        self._y.value[:] = y[0]
        self._a.x.array[self._point_dofs] = a
        self._f.x.array[self._point_dofs] = f

    def _solve(self) -> None:
        A = self._matrix = petsc.assemble_matrix(self._bilinear, into=self._matrix)
        b = petsc.assemble_vector(self._linear)
        x = A.createVecRight()
        first = self.space.dofmap.index_map.local_range[0]
        rows, lifts = [], list(self._given.lifts)
        for k, (f, (owned, place, factor)) in enumerate(zip(self._data.fields, self._dofs, strict=True)):
            given, lift = f.fixed[place], lifts[k]
            if isinstance(f.element, EdgeBubbles):
                lift = middles_from_bubbles(lifts[k - 1], lift, f.simplices)
            x.array[owned[given]] = (factor * lift[place])[given]
            rows.append(first + owned[given])
        owned, node, _ = self._dofs[0]
        b.array[owned] += self._given.load[node]
        self._given.add_to(A, self._node_dofs, self.comm)
        A.zeroRowsColumns(np.concatenate(rows).astype(PETSc.IntType), 1.0, x, b)
        self._krylov(A, b, x)
        self.solution.x.array[: len(x.array_r)] = x.array_r
        self.solution.x.scatter_forward()
        for vector in (b, x):
            vector.destroy()

    def _flux_block(self) -> FluxBlock | None:
        """The data for AMS if the fields are in P1 and RT0; None otherwise."""
        if [type(f.element) for f in self._data.fields] != [P1, RT0]:
            return None
        (nodes, _, _), (owned, place, factor) = self._dofs
        ends = self._data.fields[1].simplices[place]  # (n, 2)
        x = np.zeros((self._data.points, 2))
        x[door.input_nodes(self.mesh)] = door.coordinates(self.mesh)
        columns = global_node_dofs(self.space.sub(0), self.space, ends.ravel())
        weights = (factor[:, None] * np.array([-1.0, 1.0])).ravel()
        constants = factor[:, None] * facet_vectors(x, ends)
        return FluxBlock((nodes, owned), (np.repeat(owned, 2), columns, weights), constants)

    def _gather(self, field: _Field, dofs: tuple[Ints, Ints, Floats]) -> Floats:
        owned, place, factor = dofs
        values = np.zeros(len(field.fixed))
        for part, places in self.comm.allgather((self.solution.x.array[owned] / factor, place)):
            values[places] = part
        return values


def _families(fields: Sequence[_Field]) -> tuple[list[str | tuple[str, int]], list[int]]:
    """DOLFINx's elements, and for each field the number of its own: P1 and the edge bubbles after it are P2."""
    found: list[str | tuple[str, int]] = []
    place = []
    for k, f in enumerate(fields):
        if not isinstance(f.element, EdgeBubbles):
            found.append(f.element.dolfinx_family)
        elif k and isinstance(fields[k - 1].element, P1):
            found[-1] = (fields[k - 1].element.dolfinx_family, 2)
        else:
            raise ValueError(f"the field before {f.name} is not in P1: edge bubbles follow the P1 part of their field")
        place.append(len(found) - 1)
    return found, place


def _nodal_dofs(field: _Field, part: Any, whole: Any) -> tuple[Ints, Ints, Floats]:
    """Owned dofs, the nodal value of each, and factors: a dof is its nodal value times its factor.

    For edge bubbles the dofs are the values at midpoints.
    """
    if isinstance(field.element, EdgeBubbles):
        owned, edge = edge_dofs(part, whole, field.simplices)
        return owned, edge, np.ones(len(owned))
    if field.element.degree:
        return facet_dofs(part, whole, field.simplices)
    owned, node = node_dofs(part, whole)
    return owned, node, np.ones(len(owned))


def solve_reference(
    problem: Problem,
    y: npt.ArrayLike,
    levels: int,
    formulation: str = "energy",
    *,
    distribute: str = "mesh",
    solver: str | None = None,
    petsc_options: Mapping[str, Any] | None = None,
    comm: MPI.Comm = MPI.COMM_WORLD,
) -> ReferenceSolutions:
    """Finite element solutions for y (B, p) on level `levels`, the same on every rank. Collective.

    With `distribute="mesh"` all ranks solve together for one y after the other, for large meshes; with `"samples"` each
    rank solves for its share of the samples on its own mesh, for many y. See docs/problems.md.
    """
    checked = problem.check_parameters(y)
    options = {"solver": solver, "petsc_options": petsc_options}
    if distribute == "mesh":
        solve = ReferenceSolver(problem, levels, formulation, comm=comm, **options)  # type: ignore[arg-type]
        results = [solve(sample) for sample in checked]
    elif distribute == "samples":
        # The mesh is gathered before the ranks separate: reading a distributed DOLFINx mesh needs all of them.
        whole = replace(problem, mesh=coarse_mesh(problem.mesh))

        def share() -> Iterator[tuple[dict[str, Floats], float]]:
            solve = ReferenceSolver(whole, levels, formulation, comm=MPI.COMM_SELF, **options)  # type: ignore[arg-type]
            yield from (solve(sample) for sample in checked[comm.rank :: comm.size])

        shares = comm.allgather(together_in_steps(comm, share()))
        results = [shares[i % comm.size][i // comm.size] for i in range(len(checked))]
    else:
        raise ValueError(f"distribute is {distribute!r}; choose mesh or samples")
    record = {
        "problem": problem.name,
        "options": dict(problem.options),
        "formulation": formulation,
        "levels": int(levels),
        **door.versions(),
        "petsc": petsc.version(),
    }
    return ReferenceSolutions.stack(checked, results, record)
