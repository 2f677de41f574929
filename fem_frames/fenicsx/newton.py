"""Solvers for the equations of users: one linear step, or Newton's method by PETSc's SNES."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from fem_frames.fenicsx.door import MPI
from fem_frames.fenicsx.petsc import PETSc
from fem_frames.fenicsx.solvers import KrylovSolver, PetscSolver, krylov_failure, multigrid_defaults, reason_name
from fem_frames.problem.evaluation import NotFiniteError

NEWTON: dict[str, Any] = {
    "snes_type": "newtonls",
    "snes_linesearch_type": "bt",
    # Rounding may keep the residual from its tolerance, so the size of the last step decides as well: the error after
    # it is about its square.
    "snes_rtol": 1e-14,
    "snes_stol": 1e-8,
    "snes_atol": 1e-50,
    "snes_max_it": 50,
}
INNER_TOLERANCE = 1e-8
"""Of conjugate gradients in a step of Newton's method."""
LEFT_OVER = 1e-3
"""The part of the residual that a linear solver leaves only if the matrix is singular."""
ROUNDING = 1e-13


class DiscreteEquation(Protocol):
    """What a solver sees of an equation. Vectors have the dofs of the ranks, with the given values in their places."""

    def residual(self, x: PETSc.Vec, into: PETSc.Vec) -> None:
        """The residual at x, zero where values are given."""

    def jacobian(self, x: PETSc.Vec) -> PETSc.Mat:
        """Its derivative at x, the identity where values are given; always the same matrix with other entries."""


class LinearStep(KrylovSolver):
    """Solves a linear equation: one step of Newton's method, with a KSP."""

    def find(self, equation: DiscreteEquation, x: PETSc.Vec) -> None:
        """Improves x to the solution; raises a RuntimeError if it fails."""
        A = equation.jacobian(x)
        b, step = A.createVecLeft(), A.createVecRight()
        equation.residual(x, b)
        size = _checked_norm(b)
        least = ROUNDING * A.norm() * x.norm()  # x may be the solution already
        self(A, b, step)
        x.axpy(-1.0, step)
        equation.residual(x, b)
        rest = b.norm()
        for vector in (b, step):
            vector.destroy()
        if not rest <= LEFT_OVER * size + least:
            raise RuntimeError(
                f"PETSc's {self.ksp.getPC().getType()} reduces the residual {size:.1e} to {rest:.1e} only: the matrix "
                "is singular or badly scaled; has the equation exactly one solution? Values on a part of the boundary "
                "make most equations unique"
            )


class NewtonSolver(PetscSolver):
    """Solves a nonlinear equation by SNES: Newton's method with a line search."""

    def __init__(self, comm: MPI.Comm, solver: str, given: Mapping[str, Any], has_vectors: bool = False) -> None:
        defaults = multigrid_defaults(comm, solver, has_vectors) | NEWTON
        if solver == "cg":
            defaults["ksp_rtol"] = INNER_TOLERANCE
        super().__init__(comm, defaults, given)

    def _make(self, prefix: str) -> PETSc.KSP:
        self.snes = PETSc.SNES().create(self._comm)
        self.snes.setOptionsPrefix(prefix)
        self.snes.setFromOptions()
        return self.snes.getKSP()

    def find(self, equation: DiscreteEquation, x: PETSc.Vec) -> None:
        """Improves x to a solution; raises a RuntimeError if it fails."""
        A = equation.jacobian(x)
        b = A.createVecLeft()
        equation.residual(x, b)
        _checked_norm(b)

        def set_jacobian(snes: PETSc.SNES, at: PETSc.Vec, J: PETSc.Mat, P: PETSc.Mat) -> None:
            equation.jacobian(at)

        self.snes.setFunction(lambda snes, at, into: equation.residual(at, into), b)
        self.snes.setJacobian(set_jacobian, A)
        self.snes.solve(None, x)
        self._forget_options()  # the first solve has read all late options
        b.destroy()
        self._check()

    def _check(self) -> None:
        snes = self.snes
        reason = snes.getConvergedReason()
        if reason > 0:
            return
        name = reason_name(PETSc.SNES.ConvergedReason, reason)
        head = f"PETSc's Newton method did not converge: {name} after {snes.getIterationNumber()} steps"
        inner = krylov_failure(snes.getKSP())
        if inner:
            raise RuntimeError(f"{head}: {inner}")
        raise RuntimeError(
            f"{head}, with the residual {snes.getFunctionNorm():.1e}; has the equation a solution? Otherwise try more "
            "steps (-snes_max_it), another line search (-snes_linesearch_type l2 or cp), or smaller parameters"
        )


def _checked_norm(b: PETSc.Vec) -> float:
    """The norm of a residual, if it is finite."""
    size = float(b.norm())
    if not np.isfinite(size):
        raise NotFiniteError(
            "the residual of the equation is not finite for u = 0 inside and the given boundary values: change the "
            "equation, or the parameters; powers of |∇u|² need a derivative at zero, as those of 1e-6 + |∇u|² have"
        )
    return size
