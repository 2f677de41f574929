"""Time and error of many queries by several methods, compared within one run.

All errors are in the energy norm, against the discrete solution and relative to it. Times are medians per sample.

B samples, N free nodal values.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fem_frames.formulations.formulation import Formulation
from fem_frames.formulations.registry import make_formulation
from fem_frames.frame.arrays import FrameArrays
from fem_frames.operators.frame import Frame
from fem_frames.problem.definition import Problem
from fem_frames.solvers.conjugate_gradients import conjugate_gradients
from fem_frames.solvers.multigrid import Multigrid
from fem_frames.solvers.solution import solve
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
Row = dict[str, Any]


def query_rows(
    arrays: FrameArrays, problem: Problem, batch: int = 64, seconds: float = 1.0, petsc: int = 4, learn: int = 400
) -> Iterator[Row]:
    """One row per method and accuracy: `ms` per sample, `error`, and `over_D`, the ratio to D forward and backward.

    `petsc` samples are solved by PETSc, and learned cycles are trained for `learn` steps; 0 leaves them out.
    """
    found = _Queries(arrays, problem, batch, seconds)
    yield from found.parts()
    yield from found.multigrid()
    for steps in ((1, 1), (2, 1), (2, 2)) if learn else ():
        yield found.learned(steps, learn)
    yield found.frame()
    if petsc and has_petsc():
        yield from found.petsc(petsc)


class _Queries:
    """One batch of samples, its exact solutions, and the methods that answer it."""

    def __init__(self, arrays: FrameArrays, problem: Problem, batch: int, seconds: float) -> None:
        self.problem, self.arrays, self.seconds = problem, arrays, seconds
        self.formulation = make_formulation(Frame.from_arrays(arrays, torch.float32), problem)
        self.exact = self.formulation.to(torch.float64)
        samples = torch.as_tensor(problem.parameters.sample(batch, 12_345))
        self.y, self.samples = samples.float(), samples
        self.truth = self.exact.frame.H(solve(self.exact, samples, 1e-11).w)  # (B, N)
        self._A: Any = self.exact.A(samples)
        self._sizes = self._norm(self.truth)
        frame = self.formulation.frame
        w = torch.randn(frame.frame_size, batch).T.requires_grad_()
        z = torch.randn(frame.D.shape[0], batch).T
        self.D_ms = self._time(lambda: torch.autograd.grad(frame.D(w), w, z))

    def _norm(self, v: Tensor) -> Tensor:
        return (v * self._A(v)).sum(1).clamp_min(0).sqrt()

    def error(self, v: Tensor) -> float:
        """The mean relative error of nodal values (B, N)."""
        return float((self._norm(v.double() - self.truth) / self._sizes).mean())

    def _time(self, run: Callable[[], object]) -> float:
        """Milliseconds per sample, the median of several runs."""
        times: list[float] = []
        run()
        until = time.perf_counter() + self.seconds
        while len(times) < 5 or time.perf_counter() < until:
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return 1e3 * statistics.median(times) / len(self.y)

    def _row(self, method: str, ms: float, error: float | None = None, **more: Any) -> Row:
        return {
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
        yield self._row("D forward and backward", self.D_ms)
        F, multigrid = self.formulation, Multigrid(self.formulation)
        yield self._row("coefficient and load", self._time(lambda: (_data(F, self.y), F.nodal_load(self.y))))
        yield self._row("coefficient, load, set-up", self._time(lambda: (multigrid.at(self.y), F.nodal_load(self.y))))

    def multigrid(self) -> Iterator[Row]:
        """Full multigrid with Chebyshev cycles and steps of conjugate gradients: the solve alone, and all of it."""
        multigrid = Multigrid(self.formulation)
        at, b = multigrid.at(self.y), self.formulation.nodal_load(self.y)
        for steps in range(5):
            solved = at.refined(b, at.full(b), steps)

            def run(steps: int = steps) -> Tensor:
                return at.refined(b, at.full(b), steps)

            ms = self._time(lambda steps=steps: multigrid.answer(self.y, steps))  # type: ignore[misc]
            name = "multigrid" if steps == 0 else f"multigrid, {steps} step{'s' * (steps > 1)}"
            yield self._row(name, ms, self.error(solved), solve_ms=self._time(run))

    def learned(self, steps: tuple[int, int], count: int) -> Row:
        """The net multigrid after a short training on the energy."""
        begin = time.perf_counter()
        net = self._trained(steps, count)
        trained = time.perf_counter() - begin
        with torch.no_grad():
            error = self.error(net.nodal_values(self.y))
            ms = self._time(lambda: net.nodal_values(self.y))
        return self._row(f"learned {steps}", ms, error, trained_s=trained)

    @torch.enable_grad()
    def _trained(self, steps: tuple[int, int], count: int) -> MultigridNet:
        c = Configuration(
            problem=self.problem.name,
            levels=self.arrays.finest_level,
            net="multigrid",
            pre=steps[0],
            post=steps[1],
            epochs=count,
            batch=32,
        ).resolved()
        frame = self.formulation.frame
        net = describe_net(c, self.problem).build(self.arrays, frame.device, frame=frame, problem=self.problem)
        assert isinstance(net, MultigridNet)
        loss, weights = make_loss(c.loss, self.formulation), Weights(net)
        stepper, objective = make_stepper(c.optimizer, weights, c.dtype_settings, c.rate), Objective(net, loss, weights)
        samples = FreshSamples(self.problem.parameters, c.batch, 1, c.sample_seed)
        for step in range(count):
            stepper.set_rate(cosine_rate(step, c.period, c.rate, c.minimum_rate))
            objective.take(loss.batch(samples.batch(step)[0]), c.batch)
            stepper(objective)
        weights.push()
        return net.eval()

    def frame(self) -> Row:
        """Conjugate gradients in frame coordinates, with as many iterations as the error needs."""
        F, count, error = self.formulation, 0, 1.0
        while error > ERROR and count < 400:
            count += 4
            error = self.error(F.frame.H(self._frame_iterates(count)))
        return self._row(f"frame, {count} iterations", self._time(lambda: self._frame_iterates(count)), error)

    def _frame_iterates(self, count: int) -> Tensor:
        F = self.formulation
        return conjugate_gradients(F.stable(self.y), F.load(self.y), 1e-12, count).x

    def petsc(self, count: int) -> Iterator[Row]:
        """PETSc's solvers one sample at a time, assembly included, each with the largest tolerance that suffices."""
        from fem_frames.fenicsx.reference import ReferenceSolver

        for name, options in (("lu", {}), ("cg", {"pc_type": "hypre"}), ("cg", {"pc_type": "icc"})):
            for tol in (1e-2, 1e-3, 1e-4, 1e-5) if name == "cg" else (1e-3,):
                given = {**options, "ksp_rtol": tol} if name == "cg" else None
                solver = ReferenceSolver.on_frame(self.arrays, self.problem, solver=name, petsc_options=given)
                solver(self.samples[0].numpy())
                times, fields = [], []
                for y in self.samples[:count].numpy():
                    start = time.perf_counter()
                    solver.solve(y)
                    times.append(1e3 * (time.perf_counter() - start))
                    fields.append(solver.gathered()["u"])
                u = torch.as_tensor(np.array(fields))[:, torch.tensor(self.arrays.fields[0].free[-1])]
                lift = torch.tensor(self.arrays.fields[0].lift[-1][self.arrays.fields[0].free[-1]])
                truth = self.truth[:count]
                A = self.exact.A(self.samples[:count])
                off = u - lift - truth
                error = float(((off * A(off)).sum(1).clamp_min(0).sqrt() / self._sizes[:count]).mean())
                if error <= ERROR or name == "lu" or tol == 1e-5:
                    label = f"PETSc {name}" + (f" {options['pc_type']}, rtol {tol:g}" if options else "")
                    yield self._row(label, statistics.median(times), error)
                    break


def _data(formulation: Formulation, y: Tensor) -> Tensor:
    """The data of the matrices: one number per cell, or local matrices."""
    return formulation.cell_diffusion(y) if formulation.is_diffusion else formulation.local_matrices(y)
