"""The measure of all methods of a case: samples, discrete solutions and those of a finer mesh, errors and times.

Errors of a solution are in the norm of the energy's second derivative at the discrete solution, relative to the size of
that solution: for a linear equation this is the energy norm. Times are per sample, the least of several runs.

B samples, p parameters, N free nodal values, s outputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fem_frames.files import written_whole
from fem_frames.formulations.formulation import Formulation
from fem_frames.formulations.registry import make_formulation
from fem_frames.operators.frame import Frame
from fem_frames.operators.linear import dot
from fem_frames.outputs import Output, OutputMap, PointValues, RegionMean
from fem_frames.solvers.bounds import certify, norm_of
from fem_frames.solvers.differentiable import differentiable_solve
from fem_frames.solvers.solution import solve
from fem_frames.studies.levels import cached_frame, embedded
from training.comparison.cases import Case, Effort
from training.run.records import kept_arrays

SEED = 12_345
TRUTH = 1e-11  # relative residual of the solutions against which errors are measured
ROUNDING = 1e-9  # relative errors below this are as small as those of these solutions
FEW = 8  # samples of gradients and bounds
FINER = "finer.npz"


class Yardstick:
    """Samples of a case with their discrete solutions."""

    def __init__(self, case: Case, effort: Effort, folder: Path | None = None) -> None:
        """Frames are kept in the folder, if there is one."""
        self.case, self.effort, self._folder = case, effort, folder
        self.problem = case.make()
        self.arrays = cached_frame(self.problem, case.levels, case.formulation, folder=folder)
        self.formulation = make_formulation(Frame.from_arrays(self.arrays, torch.float32), self.problem)
        self.exact = self.formulation.to(torch.float64)
        self.y = torch.as_tensor(self.problem.parameters.sample(effort.samples, SEED))
        self.truth = solve(self.exact, self.y, TRUTH).w  # (B, Nhat)

    # ---- errors

    def coefficients(self, nodal: Tensor) -> Tensor:
        """(B, Nhat) frame coefficients of free nodal values (B, N)."""
        return self.exact.coordinates.coefficients(nodal.double())

    def errors(self, nodal: Tensor) -> Tensor:
        """(B,) of free nodal values (B, N) for the first B samples, against the discrete solutions."""
        B = len(nodal)
        return _relative(self.exact, self.coefficients(nodal), self.truth[:B], self.y[:B])

    def finer_errors(self, nodal: Tensor) -> Tensor:
        """The same against solutions on the finer mesh, for as many samples as there are solutions."""
        fine, solutions = self._finer
        count = min(len(nodal), len(solutions))
        w = embedded(self.coefficients(nodal[:count]), self.arrays, fine.frame.arrays)
        return _relative(fine, w, solutions[:count], self.y[:count])

    def bounds(self, nodal: Tensor) -> dict[str, float] | None:
        """Bounds over true errors in the bounds' norm: least, mean and largest.

        None if there is no finite bound, and where errors are those of rounding.
        """
        w = self.coefficients(nodal[:FEW])
        y = self.y[: len(w)]
        bound = certify(self.exact, w, y)
        at, truth = self.exact, self.truth[: len(w)]
        if bound.norm.against != "discrete solution":  # the closest to the exact one is that of the finer mesh
            at, truth = self._finer[0], self._finer[1][: len(w)]
            w, y = embedded(w[: len(truth)], self.arrays, at.frame.arrays), y[: len(truth)]
        value = bound.value[: len(truth)]
        error, size = norm_of(at, w - truth, y), norm_of(at, truth, y)
        known = (value / error)[torch.isfinite(value) & (error > ROUNDING * size)]
        if not len(known):
            return None
        return {"least": float(known.min()), "mean": float(known.mean()), "most": float(known.max())}

    @cached_property
    def _finer(self) -> tuple[Formulation, Tensor]:
        """The formulation on the finer mesh, and (B', Nhat') its solutions for the first samples."""
        levels = self.case.levels + self.case.finer
        arrays = cached_frame(self.problem, levels, self.case.formulation, folder=self._folder)
        fine = make_formulation(Frame.from_arrays(arrays, torch.float64), self.problem)
        y = self.y[: self.effort.fine_samples]
        kept = None if self._folder is None else self._folder / FINER
        if kept is not None and kept.is_file():
            known, coefficients = kept_arrays(kept, "y", "w")
            if np.array_equal(known, y):
                return fine, torch.as_tensor(coefficients)
        w = solve(fine, y, 1e-9).w
        if kept is not None:
            with written_whole(kept) as file:
                np.savez(file, y=y.numpy(), w=w.numpy())
        return fine, w

    def mesh_errors(self) -> dict[str, float]:
        """The discrete solution against the finer mesh: `error`, `superclose` (against its interpolation), `output`."""
        fine, truth = self._finer
        y, ours = self.y[: len(truth)], self.truth[: len(truth)]
        w = embedded(ours, self.arrays, fine.frame.arrays)
        points = len(self.arrays.points)  # they come first among those of the finer mesh
        fields = {name: values[:, :points].numpy() for name, values in fine.synthesise(truth, y).items()}
        near = self.coefficients(self.exact.coordinates.free(fields, self.exact.frame.device, y.numpy()))
        superclose = _size(self.exact, near - ours, ours, y) / _size(self.exact, ours, ours, y)
        finer = OutputMap(fine, sensors(self.arrays.dimension)).values(truth, y)
        return {
            "error": float(_relative(fine, w, truth, y).mean()),
            "superclose": float(superclose.mean()),
            "output": self._output_error(self.output_truth[: len(truth)], finer),
        }

    # ---- outputs and gradients

    @cached_property
    def sensors(self) -> OutputMap:
        """Values at 8 points and the mean, of the first component."""
        return OutputMap(self.exact, sensors(self.arrays.dimension))

    @cached_property
    def output_truth(self) -> Tensor:
        """(B, s) outputs of the discrete solutions."""
        return self.sensors.values(self.truth, self.y)

    def output_error(self, found: Tensor) -> float:
        """The root of the mean square error of outputs (B, s) over their standard deviation, the mean over outputs."""
        return self._output_error(found.double(), self.output_truth)

    def _output_error(self, found: Tensor, truth: Tensor) -> float:
        off = (found - truth).square().mean(0).sqrt()
        return float((off / self.output_truth.std(0)).mean())

    @cached_property
    def targets(self) -> Tensor:
        """(B, s) data whose misfit is differentiated: the outputs for the next sample."""
        return self.output_truth.roll(-1, 0)

    @cached_property
    def gradient_truth(self) -> Tensor:
        """(FEW, p) gradients of the misfit Σ_s (q_s - d_s)² / (2 σ_s²) in y."""
        return self.misfit_gradient(
            lambda y: self.sensors.values(differentiable_solve(self.exact, y, TRUTH), y), self.y[:FEW]
        )

    def misfit_gradient(self, outputs: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
        """(B, p) by autograd, for the first B samples; `outputs` maps y (B, p) to (B, s)."""
        with torch.enable_grad():
            free = y.clone().requires_grad_()
            count = len(self.targets)
            targets = self.targets[torch.arange(len(y)) % count]
            misfit = ((outputs(free).double() - targets) / self.output_truth.std(0)).square().sum() / 2
            return torch.autograd.grad(misfit, free)[0]

    def gradient_error(self, outputs: Callable[[Tensor], Tensor]) -> float:
        """The mean relative error of the gradient of the misfit."""
        off = self.misfit_gradient(outputs, self.y[:FEW]) - self.gradient_truth
        return float((off.norm(dim=1) / self.gradient_truth.norm(dim=1)).mean())

    # ---- times

    def asked(self, batch: int) -> Tensor:
        """(batch, p) samples to be timed with."""
        return torch.as_tensor(self.problem.parameters.sample(batch, SEED))

    def time(self, run: Callable[[], object], batch: int) -> float:
        """Milliseconds per sample of a batch."""
        return least_time(run, self.effort.seconds) / batch

    @cached_property
    def D_ms(self) -> float:
        """Milliseconds per sample of D forward and backward for 64 samples, which tells how fast the machine is."""
        frame, B = self.formulation.frame, 64
        w = torch.randn(frame.frame_size, B).T.requires_grad_()
        z = torch.randn(frame.D.shape[0], B).T

        def both() -> Any:
            with torch.enable_grad():
                return torch.autograd.grad(frame.D(w), w, z)

        return self.time(both, B)


def sensors(dimension: int) -> list[Output]:
    """Eight points inside of the unit interval, square or cube, and the mean."""
    places = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=1).draw(8).double()
    return [PointValues((0.1 + 0.8 * places).numpy().tolist()), RegionMean()]


def least_time(run: Callable[[], object], seconds: float) -> float:
    """Milliseconds, the least of at least three runs: others may use the machine too."""
    times: list[float] = []
    run()
    until = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < until:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return 1e3 * min(times)


def _size(formulation: Formulation, w: Tensor, at: Tensor, y: Tensor) -> Tensor:
    """(B,) of w in the norm of the second derivative at `at`."""
    return dot(w, formulation.curvature(at, y)(w)).clamp_min(0).sqrt()


def _relative(formulation: Formulation, w: Tensor, truth: Tensor, y: Tensor) -> Tensor:
    return _size(formulation, w - truth, truth, y) / _size(formulation, truth, truth, y)
