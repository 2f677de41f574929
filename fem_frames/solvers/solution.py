"""Discrete solutions for batches of y, to full accuracy in any precision.

A solver maps residuals to corrections in the formulation's precision; refinement repeats it with residuals in float64.
Multigrid serves fields with values at points, conjugate gradients in frame coordinates everything else.

B samples, N free nodal values of all fields, Nhat frame coefficients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fem_frames.formulations.formulation import Formulation
from fem_frames.operators.analysis import FrameAnalysis
from fem_frames.operators.frame import check_dtype
from fem_frames.operators.linear import batch_last, dot
from fem_frames.problem.definition import whole_number
from fem_frames.solvers.conjugate_gradients import PATIENCE, ConvergenceError, Iterates, conjugate_gradients
from fem_frames.solvers.cycle_plans import Chebyshev, Cycle
from fem_frames.solvers.multigrid import Multigrid, trusts_multigrid
from fem_frames.solvers.sample_multigrid import HALF, ConjugateDirections

# REACHABLE: the relative residual that one run of a solver reliably reaches; refinement does the rest.
ROUNDINGS = 4  # errors of sums, in units of the last place of the sizes that are summed
NOISE = 1e4  # units of the last place that rounding errors in functionals of u stay below
CANCELLATION = 100  # a load that is smaller than its parts by this factor has rounding errors that matter
REACHABLE = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-1}
Test = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Solution:
    """Frame coefficients of the discrete solutions. See docs/queries.md."""

    w: Tensor  # (B, Nhat)
    iterations: Tensor  # (B,) of the solver, summed over all refinements
    residual: Tensor  # (B,) ‖load - DᵀC_yD w‖ / ‖load‖, recomputed from w
    refinements: int
    solver: str
    """multigrid or frame."""


class Solver(Protocol):
    """Solves DᵀC_yD w = b for the samples that it was made for."""

    def __call__(self, b: Tensor, tol: Tensor, max_iterations: int, until: Test | None = None) -> Iterates:
        """Iterates w (B, Nhat) in the precision of b (B, Nhat), until ‖b - DᵀC_yD w‖ is below tol (B,) times ‖b‖.

        `until` maps iterates to (B,), which is true where they are good enough already.
        """


class FrameSolver:
    """Conjugate gradients on DᵀC_yD, which is well conditioned for moderate contrast of the coefficient."""

    def __init__(self, formulation: Formulation, y: Tensor, w: Tensor | None = None) -> None:
        self._M = formulation.stable(y) if w is None else formulation.curvature(w, y)
        self._dtype = formulation.frame.dtype

    def __call__(self, b: Tensor, tol: Tensor, max_iterations: int, until: Test | None = None) -> Iterates:
        # Scaled to norm one, because a residual may be too small for half precision.
        norm = dot(b, b).sqrt().clamp_min(torch.finfo(b.dtype).tiny)[:, None].to(b.dtype)
        # float64 rounds little, but residuals on flat cells or large domains may rise for long before they fall.
        patience = 10 * PATIENCE if self._dtype == torch.float64 else PATIENCE
        good = None if until is None else lambda x: until(norm * x.to(b.dtype))
        found = conjugate_gradients(self._M, (b / norm).to(self._dtype), tol, max_iterations, patience, good)
        return Iterates(norm * found.x.to(b.dtype), found.iterations, found.residual, found.negative)


class MultigridSolver:
    """Full multigrid, then conjugate gradients on A_y preconditioned by a symmetric cycle.

    Its iterations hardly depend on the mesh, and little on the contrast of the coefficient. The first one is full
    multigrid.
    """

    def __init__(
        self,
        formulation: Formulation,
        y: Tensor,
        cycle: Cycle = Cycle(),  # noqa: B008 (frozen)
        w: Tensor | None = None,
    ) -> None:
        if cycle.pre != cycle.post:
            raise ValueError(
                f"pre = {cycle.pre} and post = {cycle.post} differ: conjugate gradients need equal numbers"
            )
        self._parts = _parts(formulation)
        self._at, self._plan = self._parts.multigrid.at(y, w), Chebyshev(cycle)

    def __call__(self, b: Tensor, tol: Tensor, max_iterations: int, until: Test | None = None) -> Iterates:
        parts, at, wide = self._parts, self._at, b.dtype
        nodal = parts.coordinates.on_nodes(b)  # (B, N)
        factor = torch.ones_like(nodal[:, :1])
        if at.dtype in HALF:  # so that neither residuals nor solutions leave the range of half precision
            factor = nodal.shape[1] ** (-1 / parts.dimension) / nodal.abs().amax(1, keepdim=True).clamp_min(1e-300)
            assert at.scale is not None
            factor = factor * at.scale[:, None].to(wide)
        rhs = batch_last(at.scaled(nodal * factor))  # (N, B)
        size = parts.size(rhs)
        tol = tol.to(size)
        state = ConjugateDirections(at, self._plan, rhs, at.full_cycle(rhs, self._plan))
        best, least = state.x, parts.size(state.r) / size.clamp_min(torch.finfo(size.dtype).tiny)
        active = size > 0
        least = torch.where(active, least, 0.0)
        if until is not None:
            active = active & ~until(torch.zeros_like(b))
        iterations = active.to(torch.int64)
        best = torch.where(active, best, 0.0)

        def coefficients(v: Tensor) -> Tensor:
            """(B, Nhat) frame coefficients of v (N, B)."""
            return parts.analysis(wide)(v.T.to(wide) / factor)

        idle, negative = torch.zeros_like(iterations), torch.zeros_like(active)
        active = active & (least > tol)
        if until is not None:
            active = active & ~until(coefficients(best))
        for _ in range(max_iterations - 1):
            if not active.any():
                break
            before, active = active, state.step(active)
            negative |= before & ~active
            iterations += active
            relative = parts.size(state.r) / size
            better = active & (relative < least)
            best, least = torch.where(better, state.x, best), torch.where(better, relative, least)
            idle = torch.where(better, 0, idle + 1)
            active = active & (relative > tol) & torch.isfinite(relative) & (idle < PATIENCE)
            if until is not None:
                good = until(coefficients(state.x))
                best = torch.where(good & active, state.x, best)
                active = active & ~good
        return Iterates(coefficients(best), iterations, least, negative)


SOLVERS: dict[str, Callable[..., Solver]] = {"multigrid": MultigridSolver, "frame": FrameSolver}


class _Parts:
    """What all samples of a formulation share in a `MultigridSolver`."""

    def __init__(self, formulation: Formulation) -> None:
        self.multigrid = Multigrid(formulation)
        frame = self.multigrid.formulation.frame
        self.dimension = frame.arrays.dimension
        self._arrays, self._device, self._H = frame.arrays, frame.device, frame.H
        self.coordinates = formulation.coordinates
        self._analyses: dict[torch.dtype, FrameAnalysis] = {}

    def size(self, r: Tensor) -> Tensor:
        """(B,) ‖Hᵀr‖ for nodal residuals r (N, B): their norm on the frame."""
        on_frame = self._H.T(r.T)
        return dot(on_frame, on_frame).sqrt()

    def analysis(self, dtype: torch.dtype) -> FrameAnalysis:
        if dtype not in self._analyses:
            self._analyses[dtype] = FrameAnalysis(self._arrays, dtype, self._device)
        return self._analyses[dtype]


def _parts(formulation: Formulation) -> _Parts:
    if "multigrid" not in formulation.derived:
        formulation.derived["multigrid"] = _Parts(formulation)
    found: _Parts = formulation.derived["multigrid"]
    return found


def make_solver(
    formulation: Formulation, y: Tensor, name: str | None = None, w: Tensor | None = None
) -> tuple[str, Solver]:
    """The solver with this name, by default multigrid where there is one; its name first.

    It solves with the second derivative at w (B, Nhat), by default at zero; that of quadratic losses is the same.
    """
    if name is None:
        name = "multigrid" if trusts_multigrid(formulation) else "frame"
    if name not in SOLVERS:
        raise ValueError(f"solver is {name!r}; choose from {', '.join(SOLVERS)}, or None for the faster one")
    return name, SOLVERS[name](formulation, y, w=w)


def solve(
    formulation: Formulation,
    y: Tensor,
    tol: float = 1e-10,
    *,
    refine: torch.dtype | str | None = torch.float64,
    max_iterations: int = 1000,
    solver: str | None = None,
) -> Solution:
    """Frame coefficients of the discrete solutions for y (B, p), until ‖load - DᵀC_yD w‖ is below tol times ‖load‖.

    `solver` is "multigrid" or "frame"; None takes multigrid where the formulation has one. It runs in the formulation's
    precision, with at most `max_iterations` per refinement. Residuals and sums of corrections use `refine`, float64 or
    float32, so that even float16 reaches the tolerance; None keeps the formulation's own precision.
    Nonlinear energies are minimised by Newton's method, until the residual is below tol times that of w = 0. Nonlinear
    weak forms are solved by Gauss-Newton, until the dual norm of the residual is below tol times that at w = 0.
    See docs/formulations.md.
    """
    from fem_frames.solvers.gauss_newton import check_residual, gauss_newton  # it makes solutions too
    from fem_frames.solvers.newton import newton

    if not formulation.is_quadratic and formulation.is_assembled:
        return newton(formulation, y, tol, refine=refine, max_iterations=max_iterations, solver=solver)
    y = formulation.check_parameters(y)
    wide = check_accuracy(formulation.frame.dtype, tol, refine)
    exact = in_precision(formulation, wide)
    y_exact = y.to(wide)
    exact.check_density(y_exact)
    if not exact.is_quadratic:
        if solver not in (None, "frame"):
            make_solver(formulation, y, solver)  # raises
        return gauss_newton(exact, y_exact, tol, whole_number(max_iterations, "max_iterations"))
    load = exact.load(y_exact)
    rounding = rounding_of_load(exact, y_exact, load)  # (B,)
    found = _refined(formulation, y, load, rounding, lambda w: -exact.residual(w, y_exact), tol, max_iterations, solver)
    if not exact.is_assembled:
        check_residual(exact, found, y_exact, tol)
    return found


def solve_linear(
    formulation: Formulation,
    y: Tensor,
    b: Tensor,
    tol: float = 1e-10,
    max_iterations: int = 1000,
    *,
    at: Tensor | None = None,
) -> Solution:
    """Solves DᵀC_yD w = b for functionals b (B, Nhat) of u on the frame, as adjoint solves need it, in float64.

    For nonlinear energies the matrix is the second derivative at the coefficients `at` (B, Nhat), for nonlinear weak
    forms JᵀJ with the derivative J of the residual there. The relative residual falls below tol, or to the size of
    the rounding errors in b: where b is nothing else, as the derivative of the energy at its minimum, w is zero. A
    vector b that belongs to no functional of u is not in the range of the matrix and raises a ConvergenceError.
    See docs/queries.md.
    """
    y, wide = formulation.check_parameters(y), check_accuracy(formulation.frame.dtype, tol, torch.float64)
    exact = in_precision(formulation, wide)
    if at is None and not formulation.is_quadratic:
        raise ValueError("the equation is nonlinear: give the coefficients at= where its derivative is taken")
    M = exact.stable(y.to(wide)) if at is None else exact.curvature(at.to(wide), y.to(wide))
    given, b = b.dtype, b.to(wide)
    M.check(b, M.shape[1])
    if not torch.isfinite(b).all():
        raise ValueError("b has entries that are not finite: give a functional of u on the frame")
    size, rest = dot(b, b).sqrt(), rest_of_functional(exact, b)
    reached = torch.where(size > 0, 2 * rest / size, 0.0)
    known = rest <= NOISE * torch.finfo(given).eps * size
    if not known.all():  # these sizes are seldom needed
        known = rest <= NOISE * torch.finfo(given).eps * (size + size_of_parts(exact, y.to(wide)))
    tols = torch.where(known, reached, 0.0).clamp_min(tol)
    try:
        return _refined(formulation, y, b, torch.zeros_like(size), lambda w: b - M(w), tols, max_iterations, None, at)
    except ConvergenceError as error:
        if bool(known.all()):
            raise
        raise ConvergenceError(
            f"{error}. The right-hand side is no functional of u: an output must depend on the coefficients w through "
            "u alone, as those of an OutputMap do, and not be stationary at the solution with a derivative that is "
            "nothing but rounding errors of much larger terms",
            error.reached,
        ) from None


def _refined(
    formulation: Formulation,
    y: Tensor,
    load: Tensor,
    rounding: Tensor,
    residual_of: Test,
    tol: float | Tensor,
    max_iterations: int,
    solver: str | None,
    at: Tensor | None = None,
) -> Solution:
    """Corrections by the solver until the residual is below tol, (B,) or one number, in the precision of the load."""
    max_iterations = whole_number(max_iterations, "max_iterations")
    name, correct = make_solver(formulation, y, solver, None if at is None else at.to(formulation.frame.dtype))
    size, dtype = dot(load, load).sqrt(), formulation.frame.dtype
    w, iterations = torch.zeros_like(load), torch.zeros(len(y), dtype=torch.int64, device=y.device)
    residual, relative, refinements = load, relative_size(load, size, rounding), 0
    tol = torch.as_tensor(tol).to(relative).expand(len(load))
    while (relative > tol).any():
        b = torch.where((relative > tol)[:, None], residual, 0.0)
        found = correct(b, (0.5 * tol / relative.maximum(tol)).clamp_min(REACHABLE[dtype]), max_iterations)
        iterations += found.iterations
        refinements += 1
        trial = w + found.x
        trial_residual = residual_of(trial)
        trial_relative = relative_size(trial_residual, size, rounding)
        better = trial_relative < relative
        stuck = (relative > tol) & ~(trial_relative < 0.5 * relative) & ~(trial_relative <= tol)
        w, residual = (torch.where(better[:, None], new, old) for new, old in ((trial, w), (trial_residual, residual)))
        relative = torch.where(better, trial_relative, relative)
        if stuck.any():
            sample = int(stuck.nonzero()[0, 0])
            advice = "try refine='float64'" if load.dtype != torch.float64 else "try a larger tol, or a wider dtype"
            if dtype == torch.float64:
                advice = "try a larger tol, more max_iterations, or a domain of size about one without flat cells"
            raise ConvergenceError(
                f"sample {sample} stays at a relative residual of {float(relative[sample]):.1e} after "
                f"{int(iterations[sample])} iterations, tol is {float(tol[sample]):.1e}; {advice}",
                Solution(w, iterations, relative, refinements, name),
            )
    return Solution(w, iterations, relative, refinements, name)


def in_precision(formulation: Formulation, dtype: torch.dtype) -> Formulation:
    """The formulation in another precision, converted once."""
    if dtype == formulation.frame.dtype:
        return formulation
    key = f"in {dtype}"
    if key not in formulation.derived:
        formulation.derived[key] = formulation.to(dtype)
    found: Formulation = formulation.derived[key]
    return found


def check_accuracy(dtype: torch.dtype, tol: float, refine: torch.dtype | str | None) -> torch.dtype:
    """The dtype of the refinement, or a ValueError for a bad tolerance or a narrower dtype."""
    if not isinstance(tol, float | int) or not 0 < tol < 1:
        raise ValueError(f"tol is {tol}; give a relative residual between 0 and 1")
    wide = dtype if refine is None else check_dtype(refine)
    if torch.finfo(wide).eps > torch.finfo(dtype).eps:
        raise ValueError(f"refining {dtype} in {wide} would lose digits: use refine='float64' or None")
    return wide


def relative_size(r: Tensor, size: Tensor, rounding: Tensor) -> Tensor:
    """(B,) ‖r‖ / size, and zero where r is nothing but rounding errors."""
    norm = dot(r, r).sqrt()
    return torch.where((size > 0) & (norm > rounding), norm / size, 0.0)


def rounding_of_load(formulation: Formulation, y: Tensor, load: Tensor) -> Tensor:
    """(B,) the size of rounding errors in a load whose parts cancel; zero for other loads.

    Where the lift is nearly the solution, as for -Δu = 0 between two given values, the residual of w = 0 is already as
    small as rounding allows, and no relative residual can be reached.
    """
    parts = size_of_parts(formulation, y)
    cancels = parts > CANCELLATION * dot(load, load).sqrt()
    return torch.where(cancels, ROUNDINGS * torch.finfo(formulation.frame.dtype).eps * parts, 0.0)


def size_of_parts(formulation: Formulation, y: Tensor) -> Tensor:
    """(B,) the size of the parts that a load consists of: from the lift, on states, and the functional on the frame."""
    if not formulation.is_quadratic and not formulation.is_assembled:  # a weak form: its residual at w = 0
        return formulation.constant(y).sqrt()
    states, functional = formulation.state_load(y), formulation.frame_functional(y)
    return dot(states, states).sqrt() + dot(functional, functional).sqrt()


def rest_of_functional(formulation: Formulation, b: Tensor) -> Tensor:
    """(B,) how far b (B, Nhat) is from the functional of u with the same values on the nodal basis.

    A b that belongs to a functional of u has nothing but rounding errors here.
    """
    rest = b - formulation.frame.H.T(formulation.coordinates.on_nodes(b))
    return dot(rest, rest).sqrt()
