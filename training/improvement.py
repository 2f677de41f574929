"""Improves answers until their error bounds are below a tolerance.

B samples, p parameters, Nhat frame coefficients, N points.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass

import torch
from torch import Tensor

from fem_frames.formulations.formulation import ErrorNorm, Formulation
from fem_frames.operators.checking import unchecked
from fem_frames.problem.definition import whole_number
from fem_frames.solvers.bounds import certify, error_bound
from fem_frames.solvers.conjugate_gradients import ConvergenceError
from fem_frames.solvers.newton import newton
from fem_frames.solvers.output_bounds import OutputValues, certify_outputs
from fem_frames.solvers.solution import make_solver
from training.outputs import Outputs

ROUNDING = 1e-13  # relative residuals below this are rounding errors


@dataclass(frozen=True, eq=False)
class Improved:
    """The result of `Surrogate.improve`."""

    w: Tensor  # (B, Nhat) frame coefficients
    values: dict[str, Tensor]  # of each field (B, N)
    error_bound: Tensor  # (B,)
    iterations: Tensor  # (B,)
    relative: Tensor  # (B,) the bound relative to the norm of the solution, as `ErrorBound.relative`
    norm: ErrorNorm
    """The norm of the bounds, and the solution against which the error is measured."""
    y: Tensor  # (B, p)
    formulation: Formulation
    """The formulation in float64."""

    def output(self, outputs: Outputs, adjoint: bool = False) -> OutputValues:
        """Outputs (B, s) of the improved solutions with bounds, as `Surrogate.output`."""
        return certify_outputs(self.formulation, self.w, self.y, outputs, adjoint)


def improved(
    exact: Formulation, start: Tensor, samples: Tensor, tol: float, max_iterations: int, norm: str | None
) -> Improved:
    """Corrects coefficients (B, Nhat) for samples (B, p) until the error bound is below tol."""
    if not isinstance(tol, numbers.Real) or not 0 < tol < float("inf"):
        raise ValueError(f"tol is {tol!r}; a positive bound for the error is expected")
    max_iterations = whole_number(max_iterations, "max_iterations")
    exact.error_norm(norm)  # raises a ValueError if there is no bound

    exact.error_norm(norm)  # raises if there is no bound
    correct = _corrected if exact.is_quadratic else _by_newton
    w, iterations, residual = correct(exact, start, samples, tol, max_iterations, norm)
    bound = certify(exact, w, samples, norm)
    result = Improved(
        w, exact.synthesise(w, samples), bound.value, iterations, bound.relative, bound.norm, samples, exact
    )
    if not (bound.value <= tol).all():
        sample = int((bound.value > tol).nonzero()[0, 0])
        if not bool(torch.isfinite(bound.value[sample])):
            what = f"C_y of {exact.name}" if exact.is_quadratic else "the quadratic energy below that of this y"
            advice = f"{what} is not positive definite on all cells, so there is no bound"
        elif int(iterations[sample]) == max_iterations:
            advice = "raise max_iterations, or try a larger tol"
        elif bound.norm.against == "exact solution" and float(residual[sample]) < 1e-6:
            advice = f"the mesh allows no smaller one: train with more levels than {exact.frame.arrays.finest_level}"
        else:
            advice = "rounding allows no smaller one: try a larger tol"
        raise ConvergenceError(
            f"the error bound of sample {sample} is {float(bound.value[sample]):.2e} ({bound.norm}) after "
            f"{int(iterations[sample])} iterations, above tol = {tol:g}; {advice}",
            result,
        )
    return result


def _corrected(
    exact: Formulation, start: Tensor, samples: Tensor, tol: float, max_iterations: int, norm: str | None
) -> tuple[Tensor, Tensor, Tensor]:
    """w, the iterations, and the relative residual of the correction, by one solver; stopped by the bound."""

    def good(correction: Tensor) -> Tensor:
        with unchecked():  # data are checked later: iterations wait for the device only to know when to stop
            return error_bound(exact, start + correction, samples, norm) <= tol

    residual = -exact.residual(start, samples)
    _, correct = make_solver(exact, samples)
    found = correct(residual, torch.full_like(residual[:, 0], ROUNDING), max_iterations, good)
    return start + found.x, found.iterations, found.residual


def _by_newton(
    exact: Formulation, start: Tensor, samples: Tensor, tol: float, max_iterations: int, norm: str | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The same by Newton's method, whose steps are stopped by the bound."""

    def good(w: Tensor, rows: Tensor) -> Tensor:
        with unchecked():
            return error_bound(exact, w, samples[rows], norm) <= tol

    try:
        found = newton(exact, samples, ROUNDING, start=start, max_iterations=max_iterations, until=good)
    except ConvergenceError as error:  # rounding may keep residuals above their goal, and bounds may be small enough
        found = error.reached
    return found.w, found.iterations, found.residual
