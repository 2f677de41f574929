"""The errors of a surrogate against reference solutions, its bounds, and the time of a query.

B samples, p parameters, N points.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fem_frames.formulations.formulation import Formulation
from fem_frames.frame.level_matrices import values_of
from fem_frames.frame.solutions import ReferenceSolutions
from fem_frames.mesh.geometry import Floats
from fem_frames.outputs import OutputMap
from fem_frames.solvers.bounds import certify
from fem_frames.solvers.output_bounds import certify_outputs
from training.outputs import Outputs
from training.references import CHUNK

BOUND_NAMES = ("error_bound_mean", "error_bound_max", "relative_bound_mean", "relative_bound_max")
ROUNDING = 1e-14  # floors of losses below this part of the loss are rounding errors


class Answers(Protocol):
    """Anything that maps y to solutions: a surrogate or a rival."""

    @property
    def formulation(self) -> Formulation:
        """The formulation in float64."""

    def __call__(self, y: npt.ArrayLike, /) -> dict[str, Tensor]:
        """Values (B, N) of all fields at all points, for y (B, p)."""

    def coefficients(self, y: Tensor, /) -> Tensor:
        """(B, Nhat) in the frame, in float64."""


@dataclass(frozen=True)
class Metrics:
    """Means over the samples, as in "Metrics" of the paper."""

    mre: float
    """‖v - v_ref‖ / ‖v_ref‖ of the joint nodal vector of all fields."""
    mse: float
    """‖v - v_ref‖²."""
    loss: float
    """The functional at the synthesised solution, in float64."""
    floor: float
    """The functional at the reference solution: the smallest value that the discretisation allows."""
    ratio: float
    """loss / floor if the floor is positive and more than rounding; NaN for energies and weak forms."""
    excess: float
    """loss - floor; for the energy, half the squared error against the discrete solution in the energy norm."""
    samples: int

    def record(self) -> dict[str, Any]:
        """The metrics for JSON, which has no infinity."""
        return {name: value if math.isfinite(value) else None for name, value in asdict(self).items()}


def query_seconds(surrogate: Answers, y: Floats, batch: int = 64) -> float:
    """Time per query, in batches: the median over the batches of y, after a warm-up."""
    batches = [y[start : start + batch] for start in range(0, len(y), batch)]
    surrogate(batches[0])
    times = []
    for part in batches[:32]:
        start = time.perf_counter()
        values = surrogate(part)
        float(next(iter(values.values())).flatten()[0])  # waits for the device
        times.append((time.perf_counter() - start) / len(part))
    return statistics.median(times)


def _square(values: Floats) -> Floats:
    """(B,) sums of squares of (B, …)."""
    return np.asarray((values**2).reshape(len(values), -1).sum(axis=1))


def evaluate(surrogate: Answers, reference: ReferenceSolutions) -> Metrics:
    """The metrics over the samples of the reference."""
    exact = surrogate.formulation
    truth = values_of(exact.frame.arrays, reference.fields)
    relative, square, losses = [], [], []
    for start in range(0, len(reference.y), CHUNK):
        part = slice(start, start + CHUNK)
        y = torch.as_tensor(reference.y[part], device=exact.frame.device)
        w = surrogate.coefficients(y)
        values = values_of(exact.frame.arrays, {k: v.cpu().numpy() for k, v in exact.synthesise(w, y).items()})
        off = sum(_square(values[k] - v[part]) for k, v in truth.items())
        size = sum(_square(v[part]) for v in truth.values())
        square.append(off)
        with np.errstate(divide="ignore", invalid="ignore"):  # a solution that is zero: infinite, or 0 if it is met
            relative.append(np.where(off > 0, np.sqrt(off / size), 0.0))
        losses.append(exact.loss(w, y).cpu().numpy())
    loss, floor = float(np.concatenate(losses).mean()), float(reference.loss.mean())
    return Metrics(
        mre=float(np.concatenate(relative).mean()),
        mse=float(np.concatenate(square).mean()),
        loss=loss,
        floor=floor,
        ratio=loss / floor if floor > ROUNDING * loss and floor > 0 else math.nan,
        excess=loss - floor,
        samples=len(reference.y),
    )


def energy_error(surrogate: Answers, reference: ReferenceSolutions) -> float | None:
    """The mean error in the energy norm relative to the reference; None if the formulation has no such norm for it."""
    exact = surrogate.formulation
    if not any((norm.name, norm.against) == ("energy", "discrete solution") for norm in exact.norms):
        return None
    truth = exact.coordinates.coefficients(exact.coordinates.free(reference.fields, exact.frame.device, reference.y))
    found = []
    for start in range(0, len(truth), CHUNK):
        part = slice(start, start + CHUNK)
        y = torch.as_tensor(reference.y[part], device=exact.frame.device)
        off = exact.frame.D(surrogate.coefficients(y) - truth[part])
        size = exact.energy_norm(exact.states(truth[part], y), y)
        found.append(torch.where(size > 0, exact.energy_norm(off, y) / size, torch.nan))
    mean = float(torch.cat(found).mean())
    return mean if math.isfinite(mean) else None


def bound_record(surrogate: Answers, y: Floats, norm: str | None = None) -> dict[str, Any]:
    """Mean and maximum of the error bounds for y (B, p), absolute and relative, and their norm.

    Where there are no bounds and none are asked for, of the dual norm of the residual if there is one.
    """
    exact = surrogate.formulation
    if norm is None and not exact.norms:
        return _dual_norms(surrogate, y) or dict.fromkeys((*BOUND_NAMES, "norm", "against"))
    values, relative = [], []
    for start in range(0, len(y), CHUNK):
        part = torch.as_tensor(y[start : start + CHUNK], device=exact.frame.device)
        bound = certify(exact, surrogate.coefficients(part), part, norm)
        values.append(bound.value.cpu().numpy())
        relative.append(bound.relative.cpu().numpy())
    chosen = exact.error_norm(norm)
    joined = [np.concatenate(parts) for parts in (values, relative)]
    found = [float(value) for bounds in joined for value in (bounds.mean(), bounds.max())]
    record: dict[str, Any] = {n: v if math.isfinite(v) else None for n, v in zip(BOUND_NAMES, found, strict=True)}
    return record | {"norm": chosen.name, "against": chosen.against}


def _dual_norms(surrogate: Answers, y: Floats) -> dict[str, Any]:
    exact = surrogate.formulation
    found = []
    for start in range(0, len(y), CHUNK):
        part = torch.as_tensor(y[start : start + CHUNK], device=exact.frame.device)
        norms = exact.dual_norm(surrogate.coefficients(part), part)
        if norms is None:
            return {}
        found.append(norms.cpu().numpy())
    joined = np.concatenate(found)
    return {"dual_norm_mean": float(joined.mean()), "dual_norm_max": float(joined.max())}


@dataclass(frozen=True)
class OutputError:
    """The error of one output over the samples of a reference, and its bounds. See docs/surrogates.md."""

    output: str
    error_mean: float
    error_max: float
    bound_mean: float | None
    bound_max: float | None
    """None if the formulation has no bounds for outputs, or the output is not affine in the solution."""
    violations: int | None
    """Samples whose error exceeds its bound plus the bound for the error of the reference itself."""


def output_errors(
    surrogate: Answers, reference: ReferenceSolutions, outputs: Outputs, adjoint: bool = False
) -> tuple[list[OutputError], str]:
    """Errors of each output against the reference solutions, with bounds; and the meaning of the bounds, in words.

    `adjoint` corrects the outputs, as in `Surrogate.output`.
    """
    exact = surrogate.formulation
    made = OutputMap(exact, outputs)
    truth = exact.coordinates.coefficients(exact.coordinates.free(reference.fields, exact.frame.device, reference.y))
    errors, bounds, excess = [], [], []
    bounded, kind = (False,) * len(made), ""
    step = max(1, CHUNK // len(made))  # bounds take a vector in the frame for every sample and output
    for start in range(0, len(truth), step):
        part = slice(start, start + step)
        y = torch.as_tensor(reference.y[part], device=exact.frame.device)
        found = certify_outputs(exact, surrogate.coefficients(y), y, made, adjoint)
        right = certify_outputs(exact, truth[part], y, made)  # a reference has an error too, with a bound
        error = (found.values - right.values).abs()
        errors.append(error)
        bounds.append(found.error_bound)
        excess.append(error > found.error_bound + right.error_bound)
        bounded, kind = found.has_bound, found.kind
    error, bound, above = (torch.cat(parts).cpu() for parts in (errors, bounds, excess))
    rows = [
        OutputError(
            label,
            float(error[:, k].mean()),
            float(error[:, k].max()),
            float(bound[:, k].mean()) if bounded[k] else None,
            float(bound[:, k].max()) if bounded[k] else None,
            int(above[:, k].sum()) if bounded[k] else None,
        )
        for k, label in enumerate(made.labels)
    ]
    return rows, kind
