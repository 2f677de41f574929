"""Solutions of weak forms: by Gauss-Newton where they are not linear, and a test of those found by normal equations.

A step d solves JᵀJ d = -Jᵀr by conjugate gradients, with the residual r on the frame and its derivative J. It is
halved until the loss |r|² falls enough. Where r cannot be made small the equation has no solution nearby, and that is
an error: a minimum of |r| that is not zero solves nothing.

B samples, Nhat frame coefficients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fem_frames.formulations.formulation import Formulation
from fem_frames.operators.checking import unchecked
from fem_frames.operators.linear import dot
from fem_frames.problem.parameters import numbers
from fem_frames.solvers.conjugate_gradients import ConvergenceError, conjugate_gradients
from fem_frames.solvers.newton import check_slope
from fem_frames.solvers.solution import Solution

MOST_STEPS = 60
HALVINGS = 20
DESCENT = 1e-4  # the part of the decrease that the slope promises and a step has to keep
INEXACT = 0.1  # relative residual of the first inner solves
IDLE = 8  # steps that reduce the residual by less than a tenth, a sign of a minimum that is no solution


def gauss_newton(formulation: Formulation, y: Tensor, tol: float, max_iterations: int) -> Solution:
    """Solutions for y (B, p), until the dual norm of the residual is below tol times that at w = 0.

    `max_iterations` limits the conjugate gradients of one step. Raises a ConvergenceError where the residual stalls.
    """
    w = torch.zeros(len(y), formulation.frame.frame_size, dtype=formulation.frame.dtype, device=y.device)
    loss, slope = formulation.loss_and_residual(w, y)
    check_slope(slope, y, "the weak form", "u = 0")
    first = loss.sqrt()
    iterations = torch.zeros(len(y), dtype=torch.int64, device=y.device)
    idle, relative, steps = torch.zeros_like(iterations), _relative(loss, first), 0
    while (relative > tol).any():
        active = relative > tol
        M = formulation.curvature(w, y)
        b = torch.where(active[:, None], -slope, 0.0)
        found = conjugate_gradients(M, b, relative.clamp(tol, INEXACT), max_iterations)
        iterations, steps = iterations + found.iterations, steps + 1
        w, loss = _damped(formulation, w, y, loss, found.x, 2 * dot(slope, found.x))
        loss, slope = formulation.loss_and_residual(w, y)
        before, relative = relative, _relative(loss, first)
        idle = torch.where(relative < 0.9 * before, 0, idle + 1)
        stuck = (relative > tol) & ((idle >= IDLE) | (relative == before) | (steps >= MOST_STEPS))
        if stuck.any():
            sample = int(stuck.nonzero()[0, 0])
            raise ConvergenceError(
                f"Gauss-Newton stays at a residual of {float(relative[sample]):.1e} of that at w = 0, in the dual "
                f"norm, after {steps} steps for y = {numbers(y[sample].tolist())}; tol is {tol:.1e}: the equation may "
                "have no solution there or none near zero, or tol is below rounding",
                Solution(w, iterations, relative, steps, "frame"),
            )
    return Solution(w, iterations, relative, steps, "frame")


def _damped(
    formulation: Formulation, w: Tensor, y: Tensor, loss: Tensor, d: Tensor, slope: Tensor
) -> tuple[Tensor, Tensor]:
    """w + t d with the largest t = 1, 1/2, … that reduces the loss enough, for each sample, and the loss there."""
    t, waiting = torch.ones_like(loss), slope < 0
    best, least = w, loss
    for _ in range(HALVINGS):
        if not waiting.any():
            break
        trial = w + t[:, None] * d
        with unchecked():  # far from the solution the residual may not be finite
            there = formulation.loss(trial, y)
        good = waiting & (there <= loss + DESCENT * t * slope)
        best, least = torch.where(good[:, None], trial, best), torch.where(good, there, least)
        waiting, t = waiting & ~good, 0.5 * t
    return best, least


def check_residual(formulation: Formulation, found: Solution, y: Tensor, tol: float) -> None:
    """Raises a ConvergenceError if the solution of the normal equations BᵀB w = Bᵀf leaves a residual f - B w."""
    relative = _relative(formulation.loss(found.w, y), formulation.constant(y).sqrt())
    wrong = relative > tol**0.5
    if wrong.any():
        sample = int(wrong.nonzero()[0, 0])
        raise ConvergenceError(
            f"the least residual in the dual norm is {float(relative[sample]):.1e} of that at w = 0 for "
            f"y = {numbers(y[sample].tolist())}: the equation has no solution there, or is too near to one without; "
            "change the equation or the parameters",
            found,
        )


def _relative(loss: Tensor, first: Tensor) -> Tensor:
    """(B,) the dual norm of the residual relative to the first one."""
    return torch.where(first > 0, loss.sqrt() / first, 0.0)
