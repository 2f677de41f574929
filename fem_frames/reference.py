"""Reference solutions by DOLFINx and PETSc, serial or over MPI, in the numbering of the exported frame.

B samples, N points of the finest mesh, K cells of this rank, Q quadrature points.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import ufl
from dolfinx import fem
from mpi4py import MPI
from petsc4py import PETSc

from fem_frames import dolfinx_door as door
from fem_frames.export import essential_data, neumann_load
from fem_frames.hierarchy import MeshHierarchy, coarse_mesh
from fem_frames.mesh import Floats, Ints
from fem_frames.parallel import on_root, together, together_in_steps
from fem_frames.problem import Problem
from fem_frames.solutions import ReferenceSolutions

_solver_numbers = itertools.count()
SOLVERS: dict[str, dict[str, Any]] = {
    "cg": {"ksp_type": "cg", "ksp_rtol": 1e-12, "ksp_max_it": 1000},
    "lu": {"ksp_type": "preonly", "pc_type": "lu", "pc_factor_mat_solver_type": "mumps"},
}


def choose_solver(formulation: str, solver: str | None) -> str:
    """The solver asked for, or the default of the formulation; a ValueError if they do not fit."""
    if formulation not in FORMS:
        raise ValueError(f"formulation is {formulation!r}; choose from {', '.join(FORMS)}")
    solver = solver or ("lu" if formulation == "least-squares" else "cg")
    if solver not in SOLVERS:
        raise ValueError(f"solver is {solver!r}; choose from {', '.join(SOLVERS)}")
    if formulation == "least-squares" and solver == "cg":
        raise ValueError("least squares has no algebraic multigrid here; use solver='lu'")
    return solver


def energy_forms(V: Any, w: Any, a: Any, f: Any, dx: Any) -> tuple[Any, Any, Any]:
    """(E): bilinear form, linear form, and the energy of w."""
    u, v = ufl.TrialFunction(V), ufl.TestFunction(V)
    bilinear = a * ufl.inner(ufl.grad(u), ufl.grad(v)) * dx
    return bilinear, f * v * dx, (0.5 * a * ufl.inner(ufl.grad(w), ufl.grad(w)) - f * w) * dx


def least_squares_forms(V: Any, w: Any, a: Any, f: Any, dx: Any) -> tuple[Any, Any, Any]:
    """(LS) in 1D: bilinear form, linear form, and the squared residual of w = (u, σ).

    σ = a u', so the residual of the equation is σ' + f; the paper prints -f.
    """
    (u, s), (v, t) = ufl.TrialFunctions(V), ufl.TestFunctions(V)
    bilinear = (s.dx(0) * t.dx(0) + (s / a - u.dx(0)) * (t / a - v.dx(0))) * dx
    w_u, w_s = ufl.split(w)
    return bilinear, -f * t.dx(0) * dx, ((w_s.dx(0) + f) ** 2 + (w_s / a - w_u.dx(0)) ** 2) * dx


FORMS: dict[str, tuple[tuple[str, ...], Callable[..., tuple[Any, Any, Any]]]] = {
    "energy": (("P",), energy_forms),
    "least-squares": (("P", "P"), least_squares_forms),
}


@dataclass(frozen=True, eq=False)
class _Discretisation:
    """What the ranks need to know of the finest mesh beside their part of it; from rank 0."""

    regions: Ints  # (cells of all ranks,)
    fixed: tuple[tuple[str, npt.NDArray[np.bool_], Floats], ...]  # of each field: name, (N,) where given, (N,) values
    load: Floats  # (N,)


def _describe(hierarchy: MeshHierarchy | None, problem: Problem, formulation: str) -> _Discretisation:
    assert hierarchy is not None  # on rank 0
    regions = hierarchy.regions(problem)
    problem.tabulate(hierarchy.centres()[:, None], regions)  # what does not fit, unknown region tags too, is found here
    fixed = tuple((f.name, f.fixed[-1], f.lift) for f in essential_data(hierarchy, problem, formulation))
    return _Discretisation(regions, fixed, neumann_load(hierarchy, problem, formulation))


class ReferenceSolver:
    """y to the finite element solution on level `levels`, its mesh distributed over `comm`.

    (E) by conjugate gradients with algebraic multigrid (`solver="cg"`) or by LU, (LS) by LU. PETSc's options come
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
        solver = choose_solver(formulation, solver)
        self.problem, self.formulation, self.comm = problem, formulation, comm
        self._prepare(problem.check_levels(levels))
        self._set_up_forms()
        self._ksp, self._options = _krylov_solver(comm, solver, petsc_options or {})
        self._matrix: PETSc.Mat | None = None

    def _prepare(self, levels: int) -> None:
        problem, comm = self.problem, self.comm
        coarse = coarse_mesh(problem.mesh)  # on all ranks: the mesh may be distributed
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
        families, forms = FORMS[self.formulation]
        V = self.space = door.space(mesh, *families)
        self.solution = fem.Function(V)
        dx = ufl.Measure("dx", domain=mesh, metadata={"quadrature_degree": degree})
        bilinear, linear, functional = forms(V, self.solution, self._a, self._f, dx)
        parts = [V] if len(families) == 1 else [V.sub(i) for i in range(len(families))]
        self._bilinear, self._linear, self._functional = (door.compile_form(x) for x in (bilinear, linear, functional))
        self._fields = [
            (name, fixed, lift, *door.node_dofs(part, V))
            for (name, fixed, lift), part in zip(self._data.fixed, parts, strict=True)
        ]

    def __call__(self, y: npt.ArrayLike) -> tuple[dict[str, Floats], float]:
        """Nodal values (N,) of every field and the loss, for one y (p,); on every rank. Collective."""
        checked = self.problem.check_parameters(y)
        if len(checked) != 1:
            raise ValueError(f"one y is expected, not {len(checked)}; solve_reference takes a batch")
        self._set_data(checked)
        self._solve()
        fields = {name: self._gather(owned, node) for name, _, _, owned, node in self._fields}
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
        A = self._matrix = door.assemble_matrix(self._bilinear, into=self._matrix)
        b = door.assemble_vector(self._linear)
        x = A.createVecRight()
        first = self.space.dofmap.index_map.local_range[0]
        rows = []
        for _, fixed, lift, owned, node in self._fields:
            given = fixed[node]
            x.array[owned[given]] = lift[node[given]]
            rows.append(first + owned[given])
        _, _, _, owned, node = self._fields[0]
        b.array[owned] += self._data.load[node]
        A.zeroRowsColumns(np.concatenate(rows).astype(PETSc.IntType), 1.0, x, b)
        self._ksp.setOperators(A)
        self._ksp.solve(b, x)
        _forget(self._options)  # after the first solve all that is read late is read
        self._options = ()
        reason = self._ksp.getConvergedReason()
        if reason < 0:
            raise RuntimeError(
                f"PETSc did not converge in {self._ksp.getIterationNumber()} iterations: {_reason_name(reason)}; "
                "try solver='lu' (--solver lu), more iterations (-ksp_max_it) or a larger tolerance (-ksp_rtol)"
            )
        self.solution.x.array[: len(x.array_r)] = x.array_r
        self.solution.x.scatter_forward()
        for vector in (b, x):
            vector.destroy()

    def _gather(self, owned: Ints, node: Ints) -> Floats:
        values = np.zeros(len(self._data.load))
        for part, place in self.comm.allgather((self.solution.x.array[owned], node)):
            values[place] = part
        return values


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
    }
    return ReferenceSolutions.stack(checked, results, record)


def _krylov_solver(comm: MPI.Comm, solver: str, given: Mapping[str, Any]) -> tuple[PETSc.KSP, tuple[str, ...]]:
    """A KSP with our defaults, PETSc's command line over them, and `given` over both; and the names of its options.

    They get a prefix of this solver alone: PETSc reads some of them late, and no other solver shall read them.
    """
    defaults = dict(SOLVERS[solver])
    if solver == "cg":
        defaults["pc_type"] = "hypre" if _has_hypre(comm) else "gamg"
    database = PETSc.Options()
    prefix = f"fem_frames_{next(_solver_numbers)}_"
    shared = {key: value for key, value in database.getAll().items() if not key.startswith("fem_frames_")}
    options = {prefix + key: value for key, value in {**defaults, **shared, **given}.items()}
    for key, value in options.items():
        database[key] = value
    ksp = PETSc.KSP().create(comm)
    ksp.setOptionsPrefix(prefix)
    try:
        ksp.setFromOptions()
    except PETSc.Error as error:
        _forget(options)
        why = " ".join(str(error).split())
        raise ValueError(f"PETSc refuses the options {dict(given) or shared}: {why}") from error
    return ksp, tuple(options)


def _forget(options: Iterable[str]) -> None:
    """Takes options out of PETSc's database, which at the end would report those that nobody asked for."""
    for key in options:
        PETSc.Options().delValue(key)


def _has_hypre(comm: MPI.Comm) -> bool:
    try:
        PETSc.PC().create(comm).setType("hypre")
    except PETSc.Error:
        return False
    return True


def _reason_name(reason: int) -> str:
    names = PETSc.KSP.ConvergedReason
    return next(
        (name for name in dir(names) if name.startswith("DIVERGED") and getattr(names, name) == reason), str(reason)
    )
