"""A strong Wolfe line search whose evaluations wait for the device once each.

P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fem_frames.operators.products import accumulation_dtype

SUFFICIENT, CURVATURE = 1e-4, 0.9
"""Constants of the strong Wolfe conditions."""


@dataclass(frozen=True)
class Trial:
    """A point of a line search, x + t d."""

    t: float
    loss: float
    slope: float
    """⟨∇, d⟩ at this point."""
    gradient: Tensor  # (P,)
    largest: float
    """Largest absolute entry of the gradient."""


class Line:
    """Maps t to the trial at x + t d, with one evaluation and one wait for the device."""

    def __init__(self, closure: Callable[[], Tensor], vector: Tensor, start: Trial, d: Tensor) -> None:
        self._closure, self._vector, self._x, self._d = closure, vector, vector.detach().clone(), d
        self.start, self.evaluations, self.longest = start, 0, math.nan
        """The slope at the start and the largest entry of d are read with the first evaluation."""

    def __call__(self, t: float) -> Trial:
        self.move(t)
        loss, gradient = self._closure(), self._vector.grad.clone()  # type: ignore[union-attr]
        wanted = [loss, _dot(gradient, self._d), gradient.abs().max()]
        if not self.evaluations:
            wanted += [_dot(self.start.gradient, self._d), self._d.abs().max()]
        value, slope, largest, *more = read(*wanted)
        if more:
            self.start, self.longest = replace(self.start, slope=more[0]), more[1]
        self.evaluations += 1
        if not math.isfinite(slope) or math.isnan(value):
            value, slope = math.inf, 0.0  # an infinite loss makes the search turn back
        return Trial(t, value, slope, gradient, largest)

    def move(self, t: float) -> None:
        wide = accumulation_dtype(self._x.dtype)
        self._vector.copy_(torch.add(self._x.to(wide), self._d.to(wide), alpha=t) if t else self._x)


def strong_wolfe(line: Line, trial: Trial, tolerance: float, limit: int) -> Trial:
    """A trial that satisfies the strong Wolfe conditions, or the lowest one after `limit` further trials.

    Steps grow until they bracket such a point. Then the bracket shrinks, even where cubic interpolation gets stuck at
    its ends; the search ends when the bracket is shorter than the tolerance.
    """
    start, before, count = line.start, line.start, 0

    def descends(point: Trial) -> bool:
        return point.loss <= start.loss + SUFFICIENT * point.t * start.slope

    def is_flat(point: Trial) -> bool:
        return abs(point.slope) <= -CURVATURE * start.slope

    while count < limit:
        if not descends(trial) or (count > 1 and trial.loss >= before.loss):
            break
        if is_flat(trial):
            return trial
        if trial.slope >= 0:
            break
        t = _interpolated(before, trial, trial.t + 0.01 * (trial.t - before.t), 10 * trial.t)
        before, trial, count = trial, line(t), count + 1
    else:
        return start if start.loss <= trial.loss else trial

    bracket, stuck = [before, trial], False
    low = 0 if before.loss <= trial.loss else 1
    while count < limit:
        first, last = sorted(end.t for end in bracket)
        if (last - first) * line.longest < tolerance:
            break
        t, margin = _interpolated(bracket[0], bracket[1], first, last), 0.1 * (last - first)
        near = min(last - t, t - first) < margin
        if near and (stuck or t >= last or t <= first):
            t, near = (last - margin if last - t < t - first else first + margin), False
        stuck = near
        trial, count = line(t), count + 1
        if not descends(trial) or trial.loss >= bracket[low].loss:
            bracket[1 - low] = trial
            low = 0 if bracket[0].loss <= bracket[1].loss else 1
            continue
        if not is_flat(trial) and trial.slope * (bracket[1 - low].t - bracket[low].t) >= 0:
            bracket[1 - low] = bracket[low]
        bracket[low] = trial
        if is_flat(trial):
            break
    return bracket[low]


def _interpolated(a: Trial, b: Trial, lowest: float, highest: float) -> float:
    """The minimum of the cubic polynomial through two trials, clipped to the limits; without one, their middle."""
    a, b = (a, b) if a.t <= b.t else (b, a)
    middle = (lowest + highest) / 2
    if a.t == b.t or not math.isfinite(a.loss - b.loss):
        return middle
    slope = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
    square = slope * slope - a.slope * b.slope
    if not 0 <= square < math.inf:
        return middle
    root = math.sqrt(square)
    below = b.slope - a.slope + 2 * root
    if below == 0:
        return middle
    return min(max(b.t - (b.t - a.t) * ((b.slope + root - slope) / below), lowest), highest)


def read(*values: Tensor) -> list[float]:
    """The values as numbers, with one wait for the device."""
    wide = accumulation_dtype(values[0].dtype)
    found: list[float] = torch.stack([value.to(wide) for value in values]).tolist()
    return found


def _dot(a: Tensor, b: Tensor) -> Tensor:
    wide = accumulation_dtype(a.dtype)
    return torch.dot(a.to(wide), b.to(wide))
