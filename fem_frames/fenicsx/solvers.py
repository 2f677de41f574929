"""PETSc's linear solvers with defaults for (E), (LS) and equations, each with its own options.

(E) uses conjugate gradients with algebraic multigrid. (LS) uses LU, or conjugate gradients with one preconditioner for
u and one for the flux. On triangles H(div) is H(curl) turned by a right angle, so hypre's AMS applies; like the frame,
it takes the curls of hats into account. Equations use LU; energies of nodal fields may use conjugate gradients.

K cells of this rank, d dimension.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fem_frames.fenicsx.door import MPI
from fem_frames.fenicsx.petsc import PETSc
from fem_frames.formulations.registry import formulation_class
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.messages import option
from fem_frames.problem.definition import Problem
from fem_frames.problem.densities import ENERGY, Density

_solver_numbers = itertools.count()
POINTS, FACETS = "u", "sigma"  # names of the two blocks in PETSc's options
_BLOCKS = {
    "pc_type": "fieldsplit",
    "pc_fieldsplit_type": "additive",
    f"fieldsplit_{POINTS}_ksp_type": "preonly",
    f"fieldsplit_{POINTS}_pc_type": "hypre",
    f"fieldsplit_{FACETS}_ksp_type": "preonly",
    f"fieldsplit_{FACETS}_pc_type": "hypre",
    f"fieldsplit_{FACETS}_pc_hypre_type": "ams",
}
SOLVERS: dict[str, dict[str, Any]] = {
    "cg": {"ksp_type": "cg", "ksp_rtol": 1e-12, "ksp_max_it": 1000},
    "lu": {"ksp_type": "preonly", "pc_type": "lu", "pc_factor_mat_solver_type": "mumps"},
}


def choose_solver(
    formulation: str, solver: str | None, dimension: int | None = None, problem: Problem | None = None
) -> str:
    """The given solver, or the formulation's default; raises a ValueError if the formulation does not support it.

    Where the problem has an equation of its own, this one decides.
    """
    kind = formulation_class(formulation)
    if problem is not None and problem.equation is not None:
        return _solver_of_equation(problem.density(), solver)
    if solver is None:
        return kind.reference_solvers(dimension or 1)[0]
    if solver not in SOLVERS:
        raise ValueError(f"solver is {solver!r}; choose from {', '.join(SOLVERS)}")
    if dimension is not None and solver not in kind.reference_solvers(dimension):
        other = kind.reference_solvers(dimension)[0]
        raise ValueError(
            f"{formulation} has no multigrid in dimension {dimension}; use {option('solver', other)}, "
            "or `fem_frames.solve`, which needs none"
        )
    return solver


def _solver_of_equation(density: Density, solver: str | None) -> str:
    nodal = density.kind == ENERGY and not any(part.element == "RT0" for part in density.parts)
    offered = ["lu", "cg"] if nodal else ["lu"]
    if solver is not None and solver not in SOLVERS:
        raise ValueError(f"solver is {solver!r}; choose from {', '.join(SOLVERS)}")
    if solver is not None and solver not in offered:
        why = "a field in RT0" if density.kind == ENERGY else "a weak form, which need not be symmetric"
        raise ValueError(
            f"the equation has {why}, for which there is no multigrid with conjugate gradients; use "
            + option("solver", "lu")
        )
    if solver is not None:
        return solver
    # LU suits all coefficients, but in 3D it needs far more memory than multigrid.
    return "cg" if nodal and density.is_linear and density.dimension == 3 else "lu"


@dataclass(frozen=True, eq=False)
class FluxBlock:
    """The dofs that this rank owns, as a preconditioner for (u, σ) needs them."""

    owned: tuple[Ints, Ints]  # local numbers of the dofs of u, and of σ
    differences: tuple[Ints, Ints, Floats]  # σ dofs (local), u dofs (global) and weights: fluxes of the curls of hats
    constants: Floats  # (σ dofs, d) the dofs of constant fields


class PetscSolver(ABC):
    """A solver of PETSc with defaults; PETSc's command line overrides them, and `given` overrides both.

    The options get a prefix of this solver alone: PETSc reads some of them late, and other solvers must not see them.
    """

    def __init__(self, comm: MPI.Comm, defaults: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        shared = {key: v for key, v in PETSc.Options().getAll().items() if not key.startswith("fem_frames_")}
        self._comm, self._settings = comm, {**defaults, **shared, **given}
        try:
            self._set_options()
        except PETSc.Error as error:
            self._forget_options()
            why = " ".join(str(error).split())
            raise ValueError(f"PETSc refuses the options {dict(given) or shared}: {why}") from error

    @abstractmethod
    def _make(self, prefix: str) -> PETSc.KSP:
        """Makes the solver with this prefix of options; returns its linear solver."""

    def _set_options(self) -> None:
        prefix = f"fem_frames_{next(_solver_numbers)}_"
        self._options = {prefix + key: value for key, value in self._settings.items()}
        for key, value in self._options.items():
            PETSc.Options()[key] = value
        self.ksp = self._make(prefix)

    def _forget_options(self) -> None:
        """Removes the options from PETSc's database, which would report unused ones at exit."""
        for key in self._options:
            PETSc.Options().delValue(key)
        self._options = {}


def multigrid_defaults(comm: MPI.Comm, solver: str, has_vectors: bool = False) -> dict[str, Any]:
    """The defaults of a solver for nodal fields; those of vector fields have a near null space, which hypre ignores."""
    defaults = dict(SOLVERS[solver])
    if solver == "cg":
        defaults["pc_type"] = "hypre" if _has_hypre(comm) and not has_vectors else "gamg"
    return defaults


class KrylovSolver(PetscSolver):
    """A KSP for one matrix after the other."""

    def __init__(
        self,
        comm: MPI.Comm,
        solver: str,
        given: Mapping[str, Any],
        block: FluxBlock | None = None,
        has_vectors: bool = False,
    ) -> None:
        defaults = multigrid_defaults(comm, solver, has_vectors)
        self._block = block if solver == "cg" else None
        self._curls: PETSc.Mat | None = None
        if self._block is not None:
            if not _has_hypre(comm):
                raise ValueError("this PETSc has no hypre, whose AMS the flux needs; use " + option("solver", "lu"))
            defaults |= _BLOCKS
        super().__init__(comm, defaults, given)

    def _make(self, prefix: str) -> PETSc.KSP:
        ksp = PETSc.KSP().create(self._comm)
        ksp.setOptionsPrefix(prefix)
        ksp.setFromOptions()
        return ksp

    def __call__(self, A: PETSc.Mat, b: PETSc.Vec, x: PETSc.Vec) -> None:
        """Solves A x = b; raises a RuntimeError if the solver does not converge."""
        if self._block is not None and not self._options:  # a second call: AMS keeps parts of its first matrix
            self.ksp.destroy()
            self._set_options()
        self.ksp.setOperators(A)
        if self._block is not None:
            self._set_up_blocks(A, self._block)
        self.ksp.solve(b, x)
        self._forget_options()  # the first solve has read all late options
        failure = krylov_failure(self.ksp)
        if failure:
            raise RuntimeError(failure)

    def _set_up_blocks(self, A: PETSc.Mat, block: FluxBlock) -> None:
        pc = self.ksp.getPC()
        if pc.getType() != "fieldsplit":  # an option has changed it
            return
        first = A.getOwnershipRange()[0]
        sets = [PETSc.IS().createGeneral((first + own).astype(PETSc.IntType), A.comm) for own in block.owned]
        pc.setFieldSplitIS((POINTS, sets[0]), (FACETS, sets[1]))
        self.ksp.setUp()
        flux = pc.getFieldSplitSubKSP()[1].getPC()
        if flux.getType() == "hypre" and flux.getHYPREType() == "ams":
            self._curls = self._curls or self._differences(A, block)
            flux.setHYPREDiscreteGradient(self._curls)
            vectors = []
            for values in block.constants.T:
                vector = PETSc.Vec().createMPI((len(values), PETSc.DETERMINE), comm=A.comm)
                vector.array[:] = values
                vectors.append(vector)
            flux.setHYPRESetEdgeConstantVectors(*vectors)

    @staticmethod
    def _differences(A: PETSc.Mat, block: FluxBlock) -> PETSc.Mat:
        """The matrix of the fluxes of the curls of hats: rows are σ dofs, columns u dofs, each numbered from zero."""
        number, comm = A.createVecRight(), A.comm.tompi4py()
        starts = [comm.exscan(len(own)) or 0 for own in block.owned]  # None on rank 0
        for own, start in zip(block.owned, starts, strict=True):
            number.array[own] = start + np.arange(len(own))
        rows, columns, weights = block.differences
        sizes = [(len(own), PETSc.DETERMINE) for own in block.owned]
        G = PETSc.Mat().createAIJ((sizes[1], sizes[0]), nnz=2, comm=A.comm)
        G.setUp()
        places = number.array[rows].astype(PETSc.IntType), _values_at(number, columns).astype(PETSc.IntType)
        for row, column, weight in zip(*places, weights, strict=True):
            G.setValue(row, column, weight)
        G.assemble()
        return G


def _values_at(vector: PETSc.Vec, places: Ints) -> Floats:
    """Entries of a distributed vector at global numbers, from any rank."""
    index = PETSc.IS().createGeneral(places.astype(PETSc.IntType), PETSc.COMM_SELF)
    found = PETSc.Vec().createSeq(len(places))
    scatter = PETSc.Scatter().create(vector, index, found, None)
    scatter.scatter(vector, found, mode=PETSc.ScatterMode.FORWARD)
    return np.asarray(found.array)


def _has_hypre(comm: MPI.Comm) -> bool:
    try:
        PETSc.PC().create(comm).setType("hypre")
    except PETSc.Error:
        return False
    return True


def krylov_failure(ksp: PETSc.KSP) -> str:
    """Why a KSP has not converged, and what to do; empty if it has."""
    reason = ksp.getConvergedReason()
    if reason >= 0:
        return ""
    name = reason_name(PETSc.KSP.ConvergedReason, reason)
    if ksp.getPC().getType() == "lu":
        return (
            f"PETSc's LU failed: {name}; the matrix is singular or badly scaled: is the coefficient or the domain "
            "extremely large or small?"
        )
    return (
        f"PETSc did not converge in {ksp.getIterationNumber()} iterations: {name}; try {option('solver', 'lu')}, more "
        "iterations (-ksp_max_it) or a larger tolerance (-ksp_rtol)"
    )


def reason_name(names: Any, reason: int) -> str:
    """DIVERGED_LINE_SEARCH and the like, from the numbers of PETSc."""
    return next(
        (name for name in dir(names) if name.startswith("DIVERGED") and getattr(names, name) == reason), str(reason)
    )
