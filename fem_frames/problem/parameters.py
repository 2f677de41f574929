"""Distributions of the parameters y, and how messages print numbers.

B samples, p parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fem_frames.memory import check_memory
from fem_frames.mesh.geometry import Floats, as_tuple


@dataclass(frozen=True)
class Uniform:
    """Independent parameters, uniform in a box. See docs/problems.md."""

    lower: tuple[float, ...]
    upper: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "lower", as_tuple(self.lower))
        object.__setattr__(self, "upper", as_tuple(self.upper))
        if len(self.lower) != len(self.upper) or not self.lower:
            raise ValueError(f"a box needs as many lower as upper bounds, not {len(self.lower)} and {len(self.upper)}")
        if not all(low < high for low, high in zip(self.lower, self.upper, strict=True)):
            raise ValueError(f"the box from {self.lower} to {self.upper} is empty: lower must be below upper")
        if not np.isfinite([*self.lower, *self.upper]).all():
            raise ValueError(f"the box from {self.lower} to {self.upper} is not bounded")

    @property
    def dimension(self) -> int:
        return len(self.lower)

    @property
    def nominal(self) -> Floats:
        """(1, p) the centre of the box."""
        return np.mean([self.lower, self.upper], axis=0)[None]

    def sample(self, count: int, seed: int | Sequence[int]) -> Floats:
        """(count, p) random parameters; the first rows do not depend on count."""
        _check_count(count, self.dimension)
        return np.random.default_rng(seed).uniform(self.lower, self.upper, (count, self.dimension))

    def quantile(self, points: Floats) -> Floats:
        """(B, p) points of the unit cube to parameters: maps the uniform distribution to this one."""
        low, high = np.array(self.lower), np.array(self.upper)
        return np.asarray(low + points * (high - low))

    def outside(self, y: Floats) -> npt.NDArray[np.bool_]:
        """(B,) where y lies outside the box by more than rounding."""
        slack = 1e-6 * (np.asarray(self.upper) - self.lower)
        return np.asarray(((y < self.lower - slack) | (y > self.upper + slack)).any(axis=1))

    def __str__(self) -> str:
        if len(set(self.lower)) == len(set(self.upper)) == 1:
            return f"[{self.lower[0]:g}, {self.upper[0]:g}]^{self.dimension}"
        return " × ".join(f"[{low:g}, {high:g}]" for low, high in zip(self.lower, self.upper, strict=True))


@dataclass(frozen=True)
class Gaussian:
    """Independent standard normal parameters. See docs/problems.md."""

    dimension: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "dimension", whole_number(self.dimension, "the number of normal parameters"))

    @property
    def nominal(self) -> Floats:
        """(1, p) zero, the mean."""
        return np.zeros((1, self.dimension))

    def sample(self, count: int, seed: int | Sequence[int]) -> Floats:
        """(count, p) random parameters; the first rows do not depend on count."""
        _check_count(count, self.dimension)
        return np.random.default_rng(seed).standard_normal((count, self.dimension))

    def quantile(self, points: Floats) -> Floats:
        """(B, p) points of the unit cube to parameters: maps the uniform distribution to this one."""
        from scipy.special import ndtri

        return np.asarray(ndtri(np.clip(points, 1e-12, 1 - 1e-12)))

    def outside(self, y: Floats) -> npt.NDArray[np.bool_]:
        """(B,) False throughout: every y is possible."""
        return np.zeros(len(y), bool)

    def __str__(self) -> str:
        return f"N(0, I) in R^{self.dimension}"


def _check_count(count: int, dimension: int) -> None:
    check_memory(f"{count} samples of {dimension} parameters", 8.0 * count * dimension, "use fewer samples")


def check_samples(y: npt.ArrayLike, parameters: Uniform | Gaussian, name: str) -> Floats:
    """y as (B, p) in float64, or a ValueError that says what is wrong with it; `name` is what has the parameters."""
    if np.iscomplexobj(y):
        raise ValueError("y is complex; real numbers are expected")
    try:
        checked = np.asarray(y, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"y must be an array of numbers: {error}") from error
    if checked.ndim == 1:
        checked = checked[None]
    p = parameters.dimension
    if checked.ndim != 2 or checked.shape[1] != p:
        raise ValueError(f"y has shape {np.shape(y)}, but {name} has p = {p} parameters: pass (B, {p}) or ({p},)")
    if len(checked) == 0:
        raise ValueError("y is empty: pass at least one sample")
    if not np.isfinite(checked).all():
        raise ValueError(f"y of sample {int(np.argwhere(~np.isfinite(checked))[0, 0])} is not finite")
    outside = np.flatnonzero(parameters.outside(checked))
    if len(outside):
        first = numbers(checked[outside[0]])
        raise ValueError(f"y of sample {outside[0]} = {first} is outside the parameters {parameters} of {name}")
    return checked


def numbers(values: npt.ArrayLike) -> str:
    """A point or a parameter vector as text for messages."""
    return "(" + ", ".join(f"{value:.6g}" for value in np.ravel(values)) + ")"


def whole_number(value: Any, name: str, least: int | None = 1) -> int:
    """The value as int, or a ValueError that names it."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise ValueError(f"{name} is {value!r}; a whole number{bound} is expected")
    return int(value)
