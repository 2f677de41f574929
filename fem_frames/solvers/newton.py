"""Newton's method for nonlinear energies, for all samples of a batch at once.

Each step solves with the second derivative at the present w by conjugate gradients, in the frame or preconditioned by
multigrid, in the formulation's precision and only as accurately as the step deserves; energies and residuals are in the
precision of the refinement. Steps are shortened for each sample until its energy falls. Samples that are done drop out.
Where the curvature is negative, steps grow instead, to find out whether the energy has a minimum there.

B samples, R those that are not done, Nhat frame coefficients.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fem_frames.formulations.formulation import Formulation
from fem_frames.operators.checking import unchecked
from fem_frames.operators.linear import dot
from fem_frames.problem.definition import whole_number
from fem_frames.problem.evaluation import NotFiniteError
from fem_frames.problem.parameters import numbers
from fem_frames.solvers.conjugate_gradients import ConvergenceError
from fem_frames.solvers.multigrid import trusts_multigrid
from fem_frames.solvers.sample_multigrid import INDEFINITE
from fem_frames.solvers.solution import (
    REACHABLE,
    Solution,
    check_accuracy,
    in_precision,
    make_solver,
    relative_size,
    rounding_of_load,
)

MOST_STEPS = 60
MOST_TRIALS = 30  # lengths of a step that are tried
DECREASE = 1e-4  # of the decrease that the slope promises
LOOSE = 0.1  # relative residual of the linear systems of the first steps
ROUNDINGS = 1000  # units of the last place of an energy that count as rounding
BOTTOMLESS = 1e12  # an energy that falls by this factor of its size has no minimum
NO_MINIMUM = "it may have no minimum"
Until = Callable[[Tensor, Tensor], Tensor]


def newton(
    formulation: Formulation,
    y: Tensor,
    tol: float,
    *,
    start: Tensor | None = None,
    refine: torch.dtype | str | None = torch.float64,
    max_iterations: int = 1000,
    solver: str | None = None,
    until: Until | None = None,
) -> Solution:
    """Minimises the loss for y (B, p), until the residual is below tol times that of w = 0.

    `start` (B, Nhat) is the first w, by default zero. `until` maps w (R, Nhat) and the places (R,) of its samples to
    (R,), which is true where w is good enough already. Other arguments are those of `solve`. A sample whose energy has
    no minimum raises a ConvergenceError.
    """
    y, dtype = formulation.check_parameters(y), formulation.frame.dtype
    wide = check_accuracy(dtype, tol, refine)
    exact = in_precision(formulation, wide)
    max_iterations = whole_number(max_iterations, "max_iterations")
    state = _State(exact, y.to(wide), start, tol)
    name = solver or ("multigrid" if trusts_multigrid(exact) else "frame")
    iterations = torch.zeros(len(y), dtype=torch.int64, device=y.device)
    steps = 0

    def reached() -> Solution:
        return Solution(state.w, iterations, state.relative, steps, name)

    while len(rows := state.open_rows(until)):
        if steps == MOST_STEPS:
            raise ConvergenceError(state.complaint(int(rows[0]), steps, dtype), reached())
        try:
            _, correct = make_solver(formulation, y[rows], name, state.w[rows].to(dtype))
        except ValueError as error:
            if str(error) != INDEFINITE:
                raise
            if solver is not None:
                raise ConvergenceError(
                    f"the energy has no positive curvature in step {steps + 1}: {NO_MINIMUM}; to find out, leave out "
                    f"solver={solver!r}",
                    reached(),
                ) from error
            name = "frame"  # which needs no positive definite matrix
            continue
        rest = state.relative[rows]
        goal = torch.maximum(rest.clamp_max(LOOSE), 0.5 * tol / rest).clamp(REACHABLE[dtype], LOOSE)
        found = correct(-state.residual[rows], goal, max_iterations)
        iterations[rows] += found.iterations
        steps += 1
        stuck = state.move(rows, found.x, found.negative)
        if stuck is not None:
            raise ConvergenceError(state.complaint(stuck, steps, dtype), reached())
    return reached()


def check_slope(residual: Tensor, y: Tensor, what: str, where: str) -> None:
    """Raises a NotFiniteError where a derivative does not exist at the first w, as that of |∇u| at 0."""
    wrong = ~torch.isfinite(residual).all(1)
    if wrong.any():
        sample = int(wrong.nonzero()[0, 0])
        raise NotFiniteError(
            f"the derivative of {what} is not finite at {where} for y = {numbers(y[sample].tolist())}: smooth it, such "
            "as (1e-6 + inner(grad(u), grad(u)))**p for a power p of |∇u|²"
        )


class _State:
    """Where all samples are: w, their losses and residuals, in the precision of the refinement."""

    def __init__(self, exact: Formulation, y: Tensor, start: Tensor | None, tol: float) -> None:
        self._exact, self._y, self._tol = exact, y, tol
        load = exact.load(y)
        self._rounding = rounding_of_load(exact, y, load)
        self.w = torch.zeros_like(load) if start is None else start.to(load).expand(len(y), -1).clone()
        self.loss, self.residual = exact.loss_and_residual(self.w, y)
        check_slope(self.residual, y, "the energy", "u" if start is not None else "u = 0")
        size = dot(load, load).sqrt()
        self._size = torch.where(size > 0, size, dot(self.residual, self.residual).sqrt())
        self._first = self.loss.clone()
        self.relative = relative_size(self.residual, self._size, self._rounding)
        self.negative = torch.zeros(len(y), dtype=torch.bool, device=y.device)
        """(B,) whether the last step met negative curvature."""

    def open_rows(self, until: Until | None) -> Tensor:
        """(R,) the samples that are not done."""
        rows = (self.relative > self._tol).nonzero()[:, 0]
        if until is None or not len(rows):
            return rows
        return rows[~until(self.w[rows], rows)]

    def move(self, rows: Tensor, d: Tensor, negative: Tensor) -> int | None:
        """Steps along d (R, Nhat), or along the negative residual if d does not descend; a sample that is stuck."""
        r = self.residual[rows]
        slope = dot(r, d)
        bad = ~(slope < 0)
        d = torch.where(bad[:, None], -r, d)
        slope = torch.where(bad, -dot(r, r), slope)
        self.negative[rows] = negative
        t, open_ = torch.ones_like(slope), torch.ones_like(bad)
        grows = bad | negative
        best = torch.zeros_like(bad)  # samples that have a step already, and look for a longer one
        for _ in range(MOST_TRIALS):
            at = open_.nonzero()[:, 0]
            if not len(at):
                break
            own = rows[at]
            w = self._starts(own, at, best, d, t)
            with unchecked():  # losses that are not finite shorten the step
                loss, residual = self._exact.loss_and_residual(w, self._y[own])
            good = self._is_better(own, at, loss, residual, t[at], slope[at], best[at])
            self._take(own[good], w[good], loss[good], residual[good])
            longer = good & grows[at]
            shorter = ~good & ~best[at]
            best[at] |= good
            t[at] = torch.where(longer, t[at] * 2, torch.where(shorter, t[at] / 2, t[at]))
            open_[at] = longer | shorter
            fallen = self._first[own] - torch.minimum(loss, self.loss[own]) > BOTTOMLESS * (1 + self._first[own].abs())
            if bool(fallen.any()):
                self.negative[own[fallen]] = True
                return int(own[fallen.nonzero()[0, 0]])
        if not bool(best.all()):
            return int(rows[(~best).nonzero()[0, 0]])
        return None

    def _starts(self, own: Tensor, at: Tensor, best: Tensor, d: Tensor, t: Tensor) -> Tensor:
        """(r, Nhat) w + t d; where a step t/2 was taken already, another t/2."""
        rest = torch.where(best[at], 0.5 * t[at], t[at])
        return self.w[own] + rest[:, None] * d[at]

    def _is_better(
        self, own: Tensor, at: Tensor, loss: Tensor, residual: Tensor, t: Tensor, slope: Tensor, longer: Tensor
    ) -> Tensor:
        """Whether the energy falls enough, or falls within rounding errors while the residual does."""
        rest = torch.where(longer, 0.5 * t, t)
        falls = loss <= self.loss[own] + DECREASE * rest * slope
        noise = ROUNDINGS * torch.finfo(loss.dtype).eps * (self.loss[own].abs() + self._first[own].abs())
        before = self.residual[own]
        smaller = dot(residual, residual) < dot(before, before)
        level = (loss <= self.loss[own] + noise) & smaller & ~longer
        promised = -DECREASE * rest * slope > noise  # smaller decreases than this are invisible
        return torch.isfinite(loss) & torch.isfinite(residual).all(1) & ((falls & (promised | smaller)) | level)

    def _take(self, rows: Tensor, w: Tensor, loss: Tensor, residual: Tensor) -> None:
        self.w[rows], self.loss[rows], self.residual[rows] = w, loss, residual
        self.relative[rows] = relative_size(residual, self._size[rows], self._rounding[rows])

    def complaint(self, sample: int, steps: int, dtype: torch.dtype) -> str:
        """Why there is no solution for a sample."""
        where = (
            f"sample {sample} stays at a relative residual of {float(self.relative[sample]):.1e} after {steps} steps"
        )
        if bool(self.negative[sample]):
            return (
                f"the energy has negative curvature: {NO_MINIMUM}; {where}, and its energy fell from "
                f"{float(self._first[sample]):.3g} to {float(self.loss[sample]):.3g}"
            )
        advice = "try a larger tol" + ("" if dtype == torch.float64 else ", or a wider dtype")
        return f"Newton's method: {where}, tol is {self._tol:.1e}; {advice}"
