"""Reference solutions by DOLFINx and PETSc, serial or over MPI, in the numbering of the exported frame.

B samples, N points of the finest mesh, K cells of this rank, Q quadrature points.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fem_frames.fenicsx import door, petsc
from fem_frames.fenicsx.boundary import BoundaryData
from fem_frames.fenicsx.door import MPI
from fem_frames.fenicsx.equation_system import EquationSystem, Integrals, MeshGroups, check_form
from fem_frames.fenicsx.field_space import FieldSpace, NodalField
from fem_frames.fenicsx.formulation_system import FormulationSystem
from fem_frames.fenicsx.parallel import on_root, together, together_in_steps
from fem_frames.fenicsx.refinement import coarse_mesh, refine
from fem_frames.fenicsx.solvers import choose_solver
from fem_frames.frame.arrays import FrameArrays
from fem_frames.frame.discretisation import Discretisation
from fem_frames.frame.equation_checks import check_equation
from fem_frames.frame.export import export_frame
from fem_frames.frame.motions import motions_left_free
from fem_frames.frame.solutions import ReferenceSolutions
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.mesh.simplices import simplices
from fem_frames.problem.definition import Problem
from fem_frames.problem.densities import ENERGY


@dataclass(frozen=True, eq=False)
class _Shared:
    """The data of the discrete problem that rank 0 sends to all ranks, beside their parts of the mesh."""

    regions: Ints  # (cells of all ranks,)
    fields: tuple[NodalField, ...]
    points: int  # N
    boundary: BoundaryData
    length: float
    groups: MeshGroups | None
    """None for problems without an equation of their own."""

    @classmethod
    def of(cls, data: Discretisation | None, problem: Problem) -> _Shared:
        assert data is not None  # on rank 0
        fields = tuple(
            NodalField(f.name, f.element, simplices(data.cells, f.element.degree)[0], f.fixed[-1]) for f in data.fields
        )
        groups = None if problem.equation is None else MeshGroups.of(data)
        return cls(data.regions, fields, len(data.points), BoundaryData(data), data.length, groups)


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
        check_form(problem)
        choose_solver(formulation, solver, problem=problem)
        levels = problem.check_levels(levels)
        coarse = coarse_mesh(problem.mesh)  # on all ranks: the mesh may be distributed
        problem = problem.with_tags(coarse.region_names)
        solver = choose_solver(formulation, solver, coarse.dimension, problem)

        def discretise() -> Discretisation | None:
            if comm.rank:
                return None
            hierarchy = refine(coarse, levels, problem.refinement, problem.curved)
            data = Discretisation.from_hierarchy(hierarchy, problem, formulation)
            if problem.equation is not None:
                check_equation(hierarchy, problem, data)
                is_energy = problem.density().kind == ENERGY
                if is_energy and len(motions_left_free(data.points, data.fields, data.length)):
                    export_frame(hierarchy, problem, formulation, levels, "none")  # tests what the energy sees of them
            return data

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
        check_form(problem)
        solver = choose_solver(arrays.formulation, solver, arrays.dimension, problem)
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
        shared = on_root(comm, lambda: _Shared.of(data, problem))
        points, cells = np.zeros((0, 1)), np.zeros((0, 2), np.int64)
        if data is not None:
            points, cells = data.points, data.cells
        mesh = self.mesh = door.create(points, cells, comm)
        space = self._space = FieldSpace(mesh, shared.fields, shared.points, comm)
        boundary = together(comm, lambda: shared.boundary.of(problem))
        self._system: FormulationSystem | EquationSystem
        if shared.groups is None:
            regions = shared.regions[door.input_cells(mesh)]
            given = regions, boundary, shared.length, solver, petsc_options
            self._system = FormulationSystem(space, problem, formulation, *given)
        else:
            integrals = Integrals(mesh, shared.groups, problem.quadrature_degree)
            self._system = EquationSystem(space, problem, integrals, boundary, solver, petsc_options)

    @property
    def solution(self) -> Any:
        """The DOLFINx function that `solve` writes to."""
        return self._space.solution

    def __call__(self, y: npt.ArrayLike) -> tuple[dict[str, Floats], float]:
        """Nodal values (N,) of every field and the loss for one y (p,), on every rank. Collective."""
        self.solve(y)
        fields = self.gathered()
        return fields, self._system.loss(fields)

    def solve(self, y: npt.ArrayLike) -> None:
        """Solves for one y (p,) into `solution`, without gathering it. Collective."""
        checked = self.problem.check_parameters(y)
        if len(checked) != 1:
            raise ValueError(f"one y is expected, not {len(checked)}; solve_reference takes a batch")
        self._system.solve(checked)

    def gathered(self) -> dict[str, Floats]:
        """Nodal values (N,) of every field of `solution`, on every rank. Collective."""
        return self._space.gathered()


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
