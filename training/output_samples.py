"""Outputs of discrete solutions for random y, by batched solves: the data that an `OutputNet` is fitted to.

B samples, p parameters, s outputs, K finest cells.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fem_frames.formulations.formulation import Formulation
from fem_frames.memory import available, check_memory
from fem_frames.output_records import record_outputs
from fem_frames.outputs import OutputMap
from fem_frames.problem.parameters import Gaussian, Uniform, whole_number
from fem_frames.solvers.solution import solve

if TYPE_CHECKING:
    from training.outputs import Outputs
    from training.surrogate import Surrogate

CHUNK = 64  # samples solved at a time: more are no faster
VECTORS = 100  # float64 per finest cell and sample in a solve, at most: 20 for disks, more for least squares
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class OutputSamples:
    """Random y and outputs of their discrete solutions. See docs/surrogates.md."""

    y: Tensor  # (B, p) float64
    values: Tensor  # (B, s) float64
    labels: tuple[str, ...]
    parameters: Uniform | Gaussian
    problem: str
    tol: float
    """Relative residual of the solves."""
    seconds: float
    """Time of the solves."""
    outputs: list[dict[str, Any]] | None = None
    """The records of the outputs; None if a file cannot hold them."""

    def scaling(self) -> tuple[Tensor, Tensor]:
        """(s,) means and (s,) standard deviations; zero for an output that varies by no more than the solves err."""
        centre, deviation, rms = self.values.mean(0), self.values.std(0), self.values.square().mean(0).sqrt()
        return centre, torch.where(deviation > self.tol * rms, deviation, 0.0)


def solve_outputs(
    model: Formulation | Surrogate,
    outputs: Outputs,
    count: int,
    seed: int | tuple[int, ...] = 0,
    tol: float = 1e-6,
    progress: Progress | None = None,
) -> OutputSamples:
    """Draws `count` random y, solves for them in float32 with residuals in float64, and evaluates the outputs.

    `tol` is the relative residual of the solutions. A surrogate gives its formulation; its net is not used.
    See docs/surrogates.md.
    """
    formulation = formulation_of(model)
    count, begin = whole_number(count, "the number of samples"), time.perf_counter()
    exact, solver = (_in(formulation, dtype) for dtype in (torch.float64, torch.float32))
    made = OutputMap(exact, outputs)
    parameters, device = exact.problem.parameters, exact.frame.device
    check_memory(f"{count} samples of {len(made)} outputs", 16.0 * count * len(made), "use fewer samples")
    y = torch.as_tensor(parameters.sample(count, seed))
    chunk, found = _chunk(exact), []
    for start in range(0, count, chunk):
        if progress is not None:
            progress(start, count)
        part = y[start : start + chunk].to(device)
        w = solve(solver, part.to(solver.frame.dtype), tol).w
        found.append(made.values(w, part).detach().cpu())
    if progress is not None:
        progress(count, count)
    seconds = time.perf_counter() - begin
    return OutputSamples(
        y, torch.cat(found), made.labels, parameters, exact.problem.name, tol, seconds, _recorded(made)
    )


def _recorded(outputs: OutputMap) -> list[dict[str, Any]] | None:
    try:
        return record_outputs(outputs)
    except ValueError:  # a function of the user, or an output of the user's own class
        return None


def formulation_of(model: Formulation | Surrogate) -> Formulation:
    """The formulation itself, or that of a surrogate."""
    found = model if isinstance(model, Formulation) else getattr(model, "formulation", None)
    if not isinstance(found, Formulation):
        raise ValueError(f"outputs are wanted of a {type(model).__name__}; give a formulation or a surrogate")
    return found


def _in(formulation: Formulation, dtype: torch.dtype) -> Formulation:
    return formulation if formulation.frame.dtype == dtype else formulation.to(dtype)


def _chunk(formulation: Formulation) -> int:
    """How many samples are solved at a time: they take a quarter of the free memory at most."""
    each = 8.0 * VECTORS * len(formulation.frame.arrays.volumes)
    return int(max(1.0, min(CHUNK, available() / 4 / each)))
