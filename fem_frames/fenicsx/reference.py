"""Reference solutions by DOLFINx and PETSc, serial or over MPI, in the numbering of the exported frame.

B samples, N points of the finest mesh, K cells of this rank, Q quadrature points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fem_frames.fenicsx import door, petsc
from fem_frames.fenicsx.dofs import facet_dofs, global_node_dofs, node_dofs
from fem_frames.fenicsx.door import MPI, fem, ufl
from fem_frames.fenicsx.parallel import on_root, together, together_in_steps
from fem_frames.fenicsx.petsc import PETSc
from fem_frames.fenicsx.refinement import coarse_mesh
from fem_frames.fenicsx.solvers import FluxBlock, KrylovSolver, choose_solver
from fem_frames.frame.export import essential_data, neumann_load
from fem_frames.frame.solutions import ReferenceSolutions
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.mesh.hierarchy import MeshHierarchy
from fem_frames.mesh.simplices import facet_vectors, simplices
from fem_frames.problem.definition import Problem


def energy_forms(V: Any, w: Any, a: Any, f: Any, dx: Any) -> tuple[Any, Any, Any]:
    """(E): bilinear form, linear form, and the energy of w."""
    u, v = ufl.TrialFunction(V), ufl.TestFunction(V)
    bilinear = a * ufl.inner(ufl.grad(u), ufl.grad(v)) * dx
    return bilinear, f * v * dx, (0.5 * a * ufl.inner(ufl.grad(w), ufl.grad(w)) - f * w) * dx


def least_squares_forms(V: Any, w: Any, a: Any, f: Any, dx: Any) -> tuple[Any, Any, Any]:
    """(LS): bilinear form, linear form, and the squared residual of w = (u, σ).

    σ = a ∇u, so the residual of the equation is div σ + f; the paper prints -f.
    """
    return _flux_forms(V, w, f, dx, 1 / a, 1)


def weighted_least_squares_forms(V: Any, w: Any, a: Any, f: Any, dx: Any) -> tuple[Any, Any, Any]:
    """The same with the residual a^{-1/2} σ - a^{1/2} ∇u."""
    return _flux_forms(V, w, f, dx, 1 / ufl.sqrt(a), ufl.sqrt(a))


def _flux_forms(V: Any, w: Any, f: Any, dx: Any, of_flux: Any, of_gradient: Any) -> tuple[Any, Any, Any]:
    one = V.mesh.topology.dim == 1  # where σ is P1

    def div(s: Any) -> Any:
        return s.dx(0) if one else ufl.div(s)

    def residual(u: Any, s: Any) -> Any:
        return of_flux * s - of_gradient * (u.dx(0) if one else ufl.grad(u))

    (u, s), (v, t), (w_u, w_s) = ufl.TrialFunctions(V), ufl.TestFunctions(V), ufl.split(w)
    bilinear = (div(s) * div(t) + ufl.inner(residual(u, s), residual(v, t))) * dx
    functional = ((div(w_s) + f) ** 2 + ufl.inner(residual(w_u, w_s), residual(w_u, w_s))) * dx
    return bilinear, -f * div(t) * dx, functional


FORMS: dict[str, Callable[..., tuple[Any, Any, Any]]] = {
    "energy": energy_forms,
    "least-squares": least_squares_forms,
    "weighted-least-squares": weighted_least_squares_forms,
}


@dataclass(frozen=True, eq=False)
class _Discretisation:
    """What the ranks need to know of the finest mesh beside their part of it; from rank 0."""

    regions: Ints  # (cells of all ranks,)
    fields: tuple[_Field, ...]
    load: Floats  # (N,)


@dataclass(frozen=True, eq=False)
class _Field:
    """The nodal values of a field on the finest mesh."""

    name: str
    simplices: Ints  # (n, k+1) points of what carries each
    fixed: npt.NDArray[np.bool_]  # (n,) where they are given
    lift: Floats  # (n,) values that are right there

    @property
    def family(self) -> str:
        return "P" if self.simplices.shape[1] == 1 else "RT"


def _describe(hierarchy: MeshHierarchy | None, problem: Problem, formulation: str) -> _Discretisation:
    assert hierarchy is not None  # on rank 0
    regions = hierarchy.regions(problem)
    problem.tabulate(hierarchy.centres()[:, None], regions)  # what does not fit, unknown region tags too, is found here
    fields = tuple(
        _Field(f.name, simplices(hierarchy.finest.cells, f.degree)[0], f.fixed[-1], f.lift[-1])
        for f in essential_data(hierarchy, problem, formulation)
    )
    return _Discretisation(regions, fields, neumann_load(hierarchy, problem, formulation))


class ReferenceSolver:
    """y to the finite element solution on level `levels`, its mesh distributed over `comm`.

    By conjugate gradients with multigrid (`solver="cg"`, the default for (E); for (LS) on triangles only) or by LU
    (`"lu"`, the default for (LS)). PETSc's options come
    from its command line or from `petsc_options`, which wins: `{"ksp_rtol": 1e-8, "ksp_monitor": None}`.
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
        self._solver = choose_solver(formulation, solver)
        self.problem, self.formulation, self.comm = problem, formulation, comm
        self._prepare(problem.check_levels(levels))
        self._set_up_forms()
        block = self._flux_block() if self._solver == "cg" else None
        self._krylov = KrylovSolver(comm, self._solver, petsc_options or {}, block)
        self._matrix: PETSc.Mat | None = None

    def _prepare(self, levels: int) -> None:
        problem, comm = self.problem, self.comm
        coarse = coarse_mesh(problem.mesh)  # on all ranks: the mesh may be distributed
        self._solver = choose_solver(self.formulation, self._solver, coarse.dimension)
        hierarchy = together(
            comm, lambda: None if comm.rank else MeshHierarchy.refine(coarse, levels, problem.refinement)
        )
        self._data = on_root(comm, lambda: _describe(hierarchy, problem, self.formulation))
        points, cells = np.zeros((0, 1)), np.zeros((0, 2), np.int64)
        if hierarchy is not None:
            points, cells = hierarchy.points, hierarchy.finest.cells
        self.mesh = door.create(points, cells, comm)
        hats, _ = door.barycentric_quadrature(self.mesh.topology.dim, problem.quadrature_degree)
        corners = door.coordinates(self.mesh)[door.nodes(self.mesh)]
        self._points = np.einsum("qn,knd->kqd", hats, corners)  # (K, Q, d)
        regions = self._data.regions[door.input_cells(self.mesh)]
        self._tables = together(comm, lambda: problem.coefficient.tabulate(self._points, regions))

    def _set_up_forms(self) -> None:
        mesh, degree = self.mesh, self.problem.quadrature_degree
        at_points = door.quadrature_space(mesh, degree)
        self._point_dofs = door.dofs(at_points)
        self._a, self._f = fem.Function(at_points), fem.Function(at_points)
        fields = self._data.fields
        V = self.space = door.space(mesh, *(f.family for f in fields))
        self.solution = fem.Function(V)
        dx = ufl.Measure("dx", domain=mesh, metadata={"quadrature_degree": degree})
        bilinear, linear, functional = FORMS[self.formulation](V, self.solution, self._a, self._f, dx)
        parts = [V] if len(fields) == 1 else [V.sub(i) for i in range(len(fields))]
        self._bilinear, self._linear, self._functional = (door.compile_form(x) for x in (bilinear, linear, functional))
        self._dofs = [_nodal_dofs(f, part, V) for f, part in zip(fields, parts, strict=True)]

    def __call__(self, y: npt.ArrayLike) -> tuple[dict[str, Floats], float]:
        """Nodal values (N,) of every field and the loss, for one y (p,); on every rank. Collective."""
        checked = self.problem.check_parameters(y)
        if len(checked) != 1:
            raise ValueError(f"one y is expected, not {len(checked)}; solve_reference takes a batch")
        self._set_data(checked)
        self._solve()
        fields = {f.name: self._gather(f, dofs) for f, dofs in zip(self._data.fields, self._dofs, strict=True)}
        loss = door.integral(self._functional, self.comm)
        if self.formulation == "energy":
            loss -= float(self._data.load @ fields["u"])
        return fields, loss

    def _set_data(self, y: Floats) -> None:
        a, f = together(
            self.comm,
            lambda: (
                self.problem.coefficient_values(self._tables, y, self._points)[0],
                self.problem.source_values(y, self._points)[0],
            ),
        )
        self._a.x.array[self._point_dofs] = a
        self._f.x.array[self._point_dofs] = f

    def _solve(self) -> None:
        A = self._matrix = petsc.assemble_matrix(self._bilinear, into=self._matrix)
        b = petsc.assemble_vector(self._linear)
        x = A.createVecRight()
        first = self.space.dofmap.index_map.local_range[0]
        rows = []
        for f, (owned, place, factor) in zip(self._data.fields, self._dofs, strict=True):
            given = f.fixed[place]
            x.array[owned[given]] = (factor * f.lift[place])[given]
            rows.append(first + owned[given])
        owned, node, _ = self._dofs[0]
        b.array[owned] += self._data.load[node]
        A.zeroRowsColumns(np.concatenate(rows).astype(PETSc.IntType), 1.0, x, b)
        self._krylov(A, b, x)
        self.solution.x.array[: len(x.array_r)] = x.array_r
        self.solution.x.scatter_forward()
        for vector in (b, x):
            vector.destroy()

    def _flux_block(self) -> FluxBlock | None:
        if self.formulation == "energy":
            return None
        (nodes, _, _), (owned, place, factor) = self._dofs
        ends = self._data.fields[1].simplices[place]  # (n, 2)
        x = np.zeros((len(self._data.load), 2))
        x[door.input_nodes(self.mesh)] = door.coordinates(self.mesh)
        columns = global_node_dofs(self.space.sub(0), self.space, ends.ravel())
        weights = (factor[:, None] * np.array([-1.0, 1.0])).ravel()
        constants = factor[:, None] * facet_vectors(x, ends)
        return FluxBlock((nodes, owned), (np.repeat(owned, 2), columns, weights), constants)

    def _gather(self, field: _Field, dofs: tuple[Ints, Ints, Floats]) -> Floats:
        owned, place, factor = dofs
        values = np.zeros(len(field.lift))
        for part, places in self.comm.allgather((self.solution.x.array[owned] / factor, place)):
            values[places] = part
        return values


def _nodal_dofs(field: _Field, part: Any, whole: Any) -> tuple[Ints, Ints, Floats]:
    """Owned dofs, the nodal value each belongs to, and what this is multiplied by."""
    if field.family == "RT":
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

    `distribute="mesh"`: all ranks solve for one y after the other, for large meshes; `"samples"`: each rank solves
    for its share of the y on a mesh of its own, for many y.
    """
    checked = problem.check_parameters(y)
    options = {"solver": solver, "petsc_options": petsc_options}
    if distribute == "mesh":
        solve = ReferenceSolver(problem, levels, formulation, comm=comm, **options)  # type: ignore[arg-type]
        results = [solve(sample) for sample in checked]
    elif distribute == "samples":
        # Gathered before the ranks part: a distributed DOLFINx mesh takes all of them.
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
