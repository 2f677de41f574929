"""Time and error of many queries by several methods, compared within one run.

All errors are in the energy norm, against the discrete solution and relative to it. Times are per sample, the least of
several runs.

B samples, N free nodal values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fem_frames.formulations.formulation import Formulation
from fem_frames.formulations.registry import make_formulation
from fem_frames.frame.arrays import FrameArrays
from fem_frames.operators.frame import Frame
from fem_frames.outputs import OutputMap, RegionMean
from fem_frames.problem.definition import Problem
from fem_frames.solvers.conjugate_gradients import conjugate_gradients
from fem_frames.solvers.cycle_plans import Cycle
from fem_frames.solvers.differentiable import differentiable_solve
from fem_frames.solvers.multigrid import Multigrid, has_multigrid, matrix_data
from fem_frames.solvers.solution import solve
from fem_frames.studies.levels import cached_frame
from nets.multigrid import MultigridNet
from training.configuration import Configuration
from training.description import describe_net
from training.losses import make_loss
from training.objective import Objective
from training.optimizers.steppers import cosine_rate, make_stepper
from training.precision import Weights
from training.references import has_petsc
from training.samples import FreshSamples

ERROR = 1e-3  # at which methods are compared
GRADIENT_TOL = 1e-8
PETSC_TOLS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
PETSC_TOL_OF_EQUATIONS = 1e-6  # the largest one: the solver of equations in UFL takes larger residuals for a failure
CYCLES = ((1, 1), (2, 2), (3, 3))
MOST_STEPS = 4
Row = dict[str, Any]


def query_rows(queries: Queries, petsc: int = 4, learn: int = 400) -> Iterator[Row]:
    """One row per method and accuracy: `ms` per sample, `error`, and `over_D`, the ratio to D forward and backward.

    `petsc` samples are solved by PETSc, and learned cycles are trained for `learn` steps; 0 leaves them out.
    """
    yield from queries.parts()
    yield from queries.multigrid()
    for steps in ((1, 1), (2, 1), (2, 2)) if learn else ():
        yield queries.learned(steps, learn)
    yield from queries.gradients()
    yield queries.frame()
    if petsc and has_petsc():
        yield from queries.petsc(petsc)


def growth_rows(problem: Problem, levels: Sequence[int], batch: int = 64, seconds: float = 1.0) -> Iterator[Row]:
    """The same multigrid on finer and finer meshes: `ns` per sample and unknown, and `solve_ns` of the solve alone."""
    for J in levels:
        found = Queries(cached_frame(problem, J, "energy"), problem, batch, seconds)
        (row,) = found.multigrid(((2, 2),), (2,))
        each = 1e6 / row["unknowns"]
        yield row | {"ns": each * row["ms"], "solve_ns": each * row["solve_ms"]}


def ratios(rows: Sequence[Row]) -> dict[str, float | None]:
    """What the methods of one table cost relative to each other, at an error of at most ERROR; None if not measured."""
    by_kind: dict[str, list[Row]] = {}
    for row in rows:
        by_kind.setdefault(row["kind"], []).append(row)

    def fastest(kind: str, error: float = ERROR, key: str = "ms") -> float | None:
        good = [row[key] for row in by_kind.get(kind, ()) if row["error"] is not None and row["error"] <= error]
        return min(good, default=None)

    def ratio(one: float | None, other: float | None) -> float | None:
        return None if one is None or other is None else one / other

    D = by_kind["D"][0]["ms"]
    data = by_kind["data"][-1]["ms"]
    found = {
        "multigrid / D": ratio(fastest("multigrid"), D),
        "solve / D": ratio(fastest("multigrid", key="solve_ms"), D),
        "coefficient, load, set-up / solve": ratio(data, fastest("multigrid", key="solve_ms")),
        "frame / multigrid": ratio(fastest("frame"), fastest("multigrid")),
        "PETSc / multigrid": ratio(fastest("PETSc"), fastest("multigrid")),
    }
    if "gradient" in by_kind:
        found["output and gradient / output"] = by_kind["gradient"][0]["ms"] / by_kind["output"][0]["ms"]
    for row in by_kind.get("learned", ()):
        for name, key in (("", "ms"), (", solve alone", "solve_ms")):
            other = fastest("multigrid", row["error"], key)
            found[f"Chebyshev / {row['method']}{name}"] = ratio(other, row[key])
    return found


class Queries:
    """One batch of samples, its exact solutions, and the methods that answer it."""

    def __init__(self, arrays: FrameArrays, problem: Problem, batch: int, seconds: float) -> None:
        self.problem, self.arrays, self.seconds = problem, arrays, seconds
        self.formulation = make_formulation(Frame.from_arrays(arrays, torch.float32), problem)
        if not (has_multigrid(self.formulation) and self.formulation.is_quadratic):
            raise ValueError(
                f"queries of {problem.name} cannot be compared: that takes an energy that is quadratic in u, with all "
                "fields in P1; `fem-frames evaluate` times the surrogate of any problem"
            )
        self.exact = self.formulation.to(torch.float64)
        samples = torch.as_tensor(problem.parameters.sample(batch, 12_345))
        self.y, self.samples = samples.float(), samples
        self.truth = self.exact.frame.H(solve(self.exact, samples, 1e-11).w)  # (B, N)
        self._A: Any = self.exact.A(samples)
        self._sizes = self._norm(self.truth)

    @cached_property
    def D_ms(self) -> float:
        """Milliseconds per sample of D forward and backward."""
        frame, B = self.formulation.frame, len(self.y)
        w = torch.randn(frame.frame_size, B).T.requires_grad_()
        z = torch.randn(frame.D.shape[0], B).T
        return self.time(lambda: torch.autograd.grad(frame.D(w), w, z))

    def _norm(self, v: Tensor) -> Tensor:
        return (v * self._A(v)).sum(1).clamp_min(0).sqrt()

    def error(self, v: Tensor) -> float:
        """The mean relative error of nodal values (B, N)."""
        return float((self._norm(v.double() - self.truth) / self._sizes).mean())

    def time(self, run: Callable[[], object]) -> float:
        """Milliseconds per sample, the least of several runs: others may use the machine too."""
        times: list[float] = []
        run()
        until = time.perf_counter() + self.seconds
        while len(times) < 5 or time.perf_counter() < until:
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return 1e3 * min(times) / len(self.y)

    def row(self, kind: str, method: str, ms: float, error: float | None = None, **more: Any) -> Row:
        return {
            "kind": kind,
            "method": method,
            "levels": self.arrays.finest_level,
            "unknowns": self.arrays.nodal_size,
            "ms": ms,
            "error": error,
            "over_D": ms / self.D_ms,
            **more,
        }

    def parts(self) -> Iterator[Row]:
        """D, the coefficient with the load, and the set-up of multigrid."""
        yield self.row("D", "D forward and backward", self.D_ms)
        F, multigrid = self.formulation, Multigrid(self.formulation)
        yield self.row(
            "data", "coefficient and load", self.time(lambda: (matrix_data(F, self.y), F.nodal_load(self.y)))
        )
        set_up = self.time(lambda: (multigrid.at(self.y), F.nodal_load(self.y)))
        yield self.row("data", "coefficient, load, set-up", set_up)

    def multigrid(
        self, cycles: Sequence[tuple[int, int]] = CYCLES, all_steps: Sequence[int] = range(MOST_STEPS + 1)
    ) -> Iterator[Row]:
        """Full multigrid with Chebyshev cycles and steps of conjugate gradients: the solve alone, and all of it."""
        multigrid = Multigrid(self.formulation)
        at, b = multigrid.at(self.y), self.formulation.nodal_load(self.y)
        for smoothing, steps in product(cycles, all_steps):
            cycle = Cycle(*smoothing)
            solve_ms = self.time(partial(at.answer, b, steps, cycle))
            ms = self.time(partial(multigrid.answer, self.y, steps, cycle))
            name = f"multigrid {smoothing}" + (f", {steps} step{'s' * (steps > 1)}" if steps else "")
            yield self.row("multigrid", name, ms, self.error(at.answer(b, steps, cycle)), solve_ms=solve_ms)

    def learned(self, steps: tuple[int, int], count: int) -> Row:
        """The net multigrid after a short training on the energy."""
        begin = time.perf_counter()
        net = trained_multigrid(self.formulation, steps, count)
        trained = time.perf_counter() - begin
        with torch.no_grad():
            error = self.error(net.nodal_values(self.y))
            ms = self.time(lambda: net.nodal_values(self.y))
            solve_ms = self.time(net.solved(self.y))
        return self.row("learned", f"learned {steps}", ms, error, solve_ms=solve_ms, trained_s=trained)

    def gradients(self) -> Iterator[Row]:
        """The mean of u from solutions to a tolerance in float64, without and with its gradient in y."""
        outputs, y = OutputMap(self.exact, RegionMean()), self.samples

        def alone() -> Tensor:
            return outputs.values(solve(self.exact, y, GRADIENT_TOL, refine=None).w, y)

        @torch.enable_grad()
        def differentiated() -> Tensor:
            free = y.clone().requires_grad_()
            values = outputs.values(differentiable_solve(self.exact, free, GRADIENT_TOL), free)
            return torch.autograd.grad(values.sum(), free)[0]

        yield self.row("output", f"output, solved to {GRADIENT_TOL:g}", self.time(alone))
        yield self.row("gradient", "output and gradient", self.time(differentiated))

    def frame(self) -> Row:
        """Conjugate gradients in frame coordinates, with as many iterations as the error needs."""
        F, count, error = self.formulation, 0, 1.0
        while error > ERROR and count < 400:
            count += 4
            error = self.error(F.frame.H(self._frame_iterates(count)))
        return self.row("frame", f"frame, {count} iterations", self.time(lambda: self._frame_iterates(count)), error)

    def _frame_iterates(self, count: int) -> Tensor:
        F = self.formulation
        return conjugate_gradients(F.stable(self.y), F.load(self.y), 1e-12, count).x

    def petsc(self, count: int) -> Iterator[Row]:
        """PETSc's solvers one sample at a time, assembly included, each with the largest tolerance that suffices."""
        from fem_frames.fenicsx.reference import ReferenceSolver

        own = self.problem.equation is not None
        tols = [tol for tol in PETSC_TOLS if tol <= PETSC_TOL_OF_EQUATIONS] if own else PETSC_TOLS
        for name, options in (("lu", {}), ("cg", {"pc_type": "hypre"}), ("cg", {"pc_type": "icc"})):
            for tol in tols if name == "cg" else (1e-3,):
                given = {**options, "ksp_rtol": tol} if name == "cg" else None
                solver = ReferenceSolver.on_frame(self.arrays, self.problem, solver=name, petsc_options=given)
                solver(self.samples[0].numpy())
                times: list[float] = []
                found: list[dict[str, Any]] = []
                for y in self.samples[:count].numpy():
                    start = time.perf_counter()
                    solver.solve(y)
                    times.append(1e3 * (time.perf_counter() - start))
                    found.append(solver.gathered())
                y = self.samples[:count]
                fields = {name: np.array([own[name] for own in found]) for name in found[0]}
                u = self.exact.coordinates.free(fields, self.exact.frame.device, y.numpy())
                A, off = self.exact.A(y), u - self.truth[:count]
                error = float(((off * A(off)).sum(1).clamp_min(0).sqrt() / self._sizes[:count]).mean())
                if error <= ERROR or name == "lu" or tol == PETSC_TOLS[-1]:
                    label = f"PETSc {name}" + (f" {options['pc_type']}, rtol {tol:g}" if options else "")
                    yield self.row("PETSc", label, min(times), error)
                    break


@torch.enable_grad()
def trained_multigrid(formulation: Formulation, steps: tuple[int, int], count: int) -> MultigridNet:
    """The net multigrid with smoothing steps before and after corrections, after `count` steps of training."""
    frame, problem = formulation.frame, formulation.problem
    c = Configuration(
        problem=problem.name,
        levels=frame.arrays.finest_level,
        net="multigrid",
        pre=steps[0],
        post=steps[1],
        epochs=count,
        batch=32,
    ).resolved()
    net = describe_net(c, problem).build(frame.arrays, frame.device, frame=frame, problem=problem)
    assert isinstance(net, MultigridNet)
    loss, weights = make_loss(c.loss, formulation), Weights(net)
    stepper, objective = make_stepper(c.optimizer, weights, c.dtype_settings, c.rate), Objective(net, loss, weights)
    samples = FreshSamples(problem.parameters, c.batch, 1, c.sample_seed)
    for step in range(count):
        stepper.set_rate(cosine_rate(step, c.period, c.rate, c.minimum_rate))
        objective.take(loss.batch(samples.batch(step)[0]), c.batch)
        stepper(objective)
    weights.push()
    return net.eval()
