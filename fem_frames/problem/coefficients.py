"""Coefficients a_y; the same code serves NumPy for reference solutions and torch for training.

B samples, K cells, Q points in a cell, d dimension, p parameters.
"""

from __future__ import annotations

import numbers as numbers_of
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fem_frames.mesh.checks import known_names
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.problem.compiled_values import exponentials
from fem_frames.problem.parameters import whole_number

Array = Any  # a NumPy array or a torch tensor


def namespace(array: Array) -> ModuleType:
    """The module, NumPy or torch, whose functions take this array: `namespace(y).exp(y)`. See docs/problems.md."""
    if isinstance(array, np.ndarray):
        return np
    import torch

    return torch


# ---- coefficients ---------------------------------------------------------------------------------------


class Coefficient(Protocol):
    """a_y in two steps: `tabulate` computes tables of x once, `evaluate` combines them with y for every batch."""

    def tabulate(self, points: Floats, regions: Ints) -> tuple[npt.NDArray, ...]:
        """Tables with first axis K from the points (K, Q, d) and the regions (K,) of the cells."""

    def evaluate(self, tables: tuple[Array, ...], y: Array) -> Array:
        """(B, K, Q) values, or (B, K, 1) if constant on cells, for y (B, p); NumPy or torch like y."""


@dataclass(frozen=True)
class ByRegion:
    """Piecewise constant as in the paper: a parameter or a fixed number on every region. See docs/problems.md."""

    parameter: Mapping[int | str, int]
    """Maps region tags, or the names that the mesh has for them, to the index of the parameter that is a_y there."""
    fixed: Mapping[int | str, float] = field(default_factory=dict)
    """Maps region tags or names to values that do not depend on y."""

    def __post_init__(self) -> None:
        both = [region for region in self.parameter if region in self.fixed]
        if both:
            raise ValueError(f"region {both[0]} has both a parameter and a fixed value; give it one of them")
        for region in (*self.parameter, *self.fixed):
            if not isinstance(region, str):
                whole_number(region, "the tag of a region in ByRegion", least=None)
        for region, index in self.parameter.items():
            whole_number(index, f"the parameter of region {region}", least=0)
        for region, value in self.fixed.items():
            if not isinstance(value, numbers_of.Real) or not 0 < value < np.inf:
                raise ValueError(f"the value of a_y on region {region!r} is {value!r}; a positive number is expected")

    @property
    def names(self) -> tuple[str, ...]:
        """The regions that are given by name."""
        return tuple(region for region in (*self.parameter, *self.fixed) if isinstance(region, str))

    def with_tags(self, names: Mapping[str, int]) -> ByRegion:
        """The same coefficient with the tags of a mesh in place of names, for the names {"steel": 1} of its regions."""
        if not self.names:
            return self
        for name in self.names:
            if name not in names:
                has = f"the mesh has {known_names(name, names)}" if names else "the mesh has no names of regions"
                remedy = "" if names else ": give tags, or name the physical groups of cells in gmsh"
                raise ValueError(f"no region is called {name!r} as in ByRegion; {has}{remedy}")
        seen: dict[int, int | str] = {}
        for region in (*self.parameter, *self.fixed):
            tag = names[region] if isinstance(region, str) else region
            if tag in seen:
                raise ValueError(f"{seen[tag]!r} and {region!r} in ByRegion are the same region, with the tag {tag}")
            seen[tag] = region
        tag_of = {region: tag for tag, region in seen.items()}
        return replace(
            self,
            parameter={tag_of[region]: index for region, index in self.parameter.items()},
            fixed={tag_of[region]: value for region, value in self.fixed.items()},
        )

    @classmethod
    def each(cls, count: int) -> ByRegion:
        """Parameter k on region k, for k = 0, …, count - 1."""
        return cls({k: k for k in range(count)})

    def tabulate(self, points: Floats, regions: Ints) -> tuple[npt.NDArray, ...]:
        if self.names:
            raise ValueError(
                f"the region {self.names[0]!r} has a name whose tag only the mesh knows: use problem.with_tags, with "
                "the names of its regions"
            )
        known = np.array(sorted({*self.parameter, *self.fixed}))
        unknown = np.setdiff1d(regions, known)
        if len(unknown):
            raise ValueError(
                f"cells carry the region tags {unknown.tolist()}, which the coefficient does not know; "
                f"it has values for {known.tolist()}: add them to ByRegion, or fix the tags of the mesh"
            )
        fixed = list(self.fixed)
        places = [fixed.index(tag) if tag in self.fixed else len(fixed) + self.parameter[tag] for tag in known.tolist()]
        return (np.array(places, np.int64)[np.searchsorted(known, regions)],)

    def evaluate(self, tables: tuple[Array, ...], y: Array) -> Array:
        one = namespace(y).ones_like(y[:, :1])
        fixed = [value * one for value in self.fixed.values()]
        values = namespace(y).concatenate([*fixed, y], 1) if fixed else y  # (B, fixed and parameters)
        return _rows(values.T, tables[0]).T[..., None]  # taking rows of the transpose keeps the batch last in memory


def _rows(values: Array, places: Array) -> Array:
    """The rows of a matrix at these places."""
    if isinstance(values, np.ndarray):
        return values[places]
    return values.contiguous().index_select(0, places)  # six times faster than indexing


@dataclass(frozen=True)
class Affine:
    """a_y(x) = mean(x) + Σ_k y_k modes_k(x). See docs/problems.md."""

    mean: float | Callable[[Floats], npt.ArrayLike]
    """A number, or a function of x (…, d) with values (…)."""
    modes: Callable[[Floats], npt.ArrayLike]
    """A function of x (…, d) with values (…, p)."""

    def tabulate(self, points: Floats, regions: Ints) -> tuple[npt.NDArray, ...]:
        mean = np.asarray(self.mean(points) if callable(self.mean) else self.mean, np.float64)
        if mean.ndim not in (0, 2) or any(n not in (1, m) for n, m in zip(mean.shape, points.shape, strict=False)):
            raise ValueError(f"the mean has values of shape {mean.shape}, which do not fit {points.shape[:2]}")
        modes = np.asarray(self.modes(points), np.float64)
        if modes.ndim != 3 or modes.shape[:2] != points.shape[:2]:
            raise ValueError(f"modes have shape {modes.shape} at points of shape {points.shape}; (K, Q, p) is expected")
        return np.broadcast_to(mean, points.shape[:2]).copy(), modes

    def evaluate(self, tables: tuple[Array, ...], y: Array) -> Array:
        return self._sum(tables, y).swapaxes(1, 2).swapaxes(0, 1)  # batch last in memory

    def _sum(self, tables: tuple[Array, ...], y: Array) -> Array:
        """(K, Q, B) mean and weighted modes, in memory that no one else uses."""
        mean, modes = tables  # (K, Q), (K, Q, p)
        if modes.shape[-1] != y.shape[-1]:
            raise ValueError(f"there are {modes.shape[-1]} modes for p = {y.shape[-1]} parameters; give one for each")
        values = modes @ y.T  # (K, Q, B)
        values += mean[..., None]  # in place: autograd does not need the product
        return values


@dataclass(frozen=True)
class ExpAffine(Affine):
    """a_y(x) = exp(mean(x) + Σ_k y_k modes_k(x)), lognormal if y is normal. See docs/problems.md."""

    def evaluate(self, tables: tuple[Array, ...], y: Array) -> Array:
        values = self._sum(tables, y)
        values = np.exp(values, out=values) if isinstance(values, np.ndarray) else _exp(values)
        return values.swapaxes(1, 2).swapaxes(0, 1)


def _exp(values: Array) -> Array:
    """exp of a tensor in its own memory; in compiled code, which torch does not see, where torch does not watch."""
    from fem_frames.operators.checking import is_watched

    return values.exp_() if is_watched(values) else exponentials(values)


@dataclass(frozen=True, eq=False)
class Tabulated:
    """An `Affine` or `ExpAffine` coefficient given by its tables at certain points instead of functions.

    A surrogate's file holds these tables for the quadrature points of its frame.
    """

    formula: Affine
    """Evaluates the tables; its functions are never called."""
    points: Floats  # (K, Q, d)
    mean: Floats  # (K, Q)
    modes: Floats  # (K, Q, p)

    def tabulate(self, points: Floats, regions: Ints) -> tuple[npt.NDArray, ...]:
        if points.shape != self.points.shape or not np.allclose(points, self.points, rtol=1e-9):
            raise ValueError(
                "the coefficient is known only at the quadrature points of its surrogate's frame: give the problem "
                "itself to evaluate it elsewhere"
            )
        return self.mean, self.modes

    def evaluate(self, tables: tuple[Array, ...], y: Array) -> Array:
        return self.formula.evaluate(tables, y)


@dataclass(frozen=True)
class Pointwise:
    """Any a(x, y) that maps x (K, Q, d) and y (B, 1, 1, p) to (B, K, Q) by operations that NumPy and torch share.

    Take functions from `namespace(y)`: `namespace(y).exp(…)`. See docs/problems.md.
    """

    function: Callable[[Array, Array], Array]

    def tabulate(self, points: Floats, regions: Ints) -> tuple[npt.NDArray, ...]:
        return (points,)

    def evaluate(self, tables: tuple[Array, ...], y: Array) -> Array:
        return self.function(tables[0], y[:, None, None, :])


HOW = "functions of x and y write x[..., i] and y[..., k], and take exp and the like from fem_frames.namespace(y)"
