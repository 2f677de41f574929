"""Boundary conditions by groups of facets: u = g, a_y ∂u/∂n = h, or a_y ∂u/∂n = k (u_outside - u).

Values are numbers, parameters, functions of x, or functions of x and y. Parts of the boundary that no condition names
are insulated: a_y ∂u/∂n = 0.

B samples, F facets, Q points in a facet, d dimension, p parameters.
"""

from __future__ import annotations

import inspect
import numbers as numbers_of
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fem_frames.mesh.geometry import Floats
from fem_frames.problem.callbacks import called, calling
from fem_frames.problem.coefficients import HOW, Array
from fem_frames.problem.evaluation import NotFiniteError, spread
from fem_frames.problem.parameters import numbers, whole_number

Kind = Literal["dirichlet", "neumann", "robin"]
REST = "rest"
"""The name for all of the boundary that no other condition names."""
ALL = "all"


@dataclass(frozen=True)
class Parameter:
    """The boundary value offset + scale y_k: `neumann={"inflow": Parameter(3)}`. See docs/problems.md."""

    index: int
    scale: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", whole_number(self.index, "the index of a Parameter", least=0))
        for name in ("scale", "offset"):
            if not isinstance(getattr(self, name), numbers_of.Real) or not np.isfinite(getattr(self, name)):
                raise ValueError(f"the {name} of a Parameter is {getattr(self, name)!r}; a number is expected")

    def __call__(self, x: Array, y: Array) -> Array:
        return self.offset + self.scale * y[..., self.index]


@dataclass(frozen=True, eq=False)
class BoundaryValue:
    """A number, a `Parameter`, a function of x (n, d), or a function of x (F, Q, d) and y (B, 1, 1, p)."""

    given: Any
    name: str
    """For messages: neumann['inflow']."""

    def __post_init__(self) -> None:
        if callable(self.given):
            return
        number = isinstance(self.given, numbers_of.Real) and not isinstance(self.given, bool)
        if not number or not np.isfinite(float(self.given)):
            raise ValueError(f"{self.name} is {self.given!r}; it must be a number, a Parameter or a function")

    @property
    def is_zero(self) -> bool:
        return not callable(self.given) and self.given == 0

    @property
    def depends_on_y(self) -> bool:
        """Whether the value is a `Parameter` or a function of two arguments."""
        return callable(self.given) and (isinstance(self.given, Parameter) or _arguments(self.given) >= 2)

    def at(self, points: Floats) -> Floats:
        """(n,) values at points (n, d), if they do not depend on y."""
        assert not self.depends_on_y
        how = "it is a number or a function of x (n, d), x[:, i], with n values, or of x and y"
        with calling(self.name, self.given, how):
            found = self.given(points) if callable(self.given) else self.given
        try:
            values = np.broadcast_to(np.asarray(found, np.float64), len(points))
        except (TypeError, ValueError) as error:
            shapes = f"values of shape {np.shape(found)} for x of shape {points.shape}"
            raise ValueError(f"{self.name} has {shapes}; {how}") from error
        if not np.isfinite(values).all():
            raise ValueError(f"{self.name} is not finite at x = {points[~np.isfinite(values)][0].tolist()}")
        return values

    def evaluate(self, points: Array, y: Array) -> Array:
        """(B, F, Q) values, or (B, F, 1), at points (F, Q, d) for y (B, p), in NumPy or torch; not checked."""
        shape = (y.shape[0], *points.shape[:2])
        if self.depends_on_y:
            return spread(
                called(self.name, self.given, HOW, self.given, points, y[:, None, None, :]), y, shape, self.name
            )
        if not callable(self.given):
            return spread(float(self.given), y, shape, self.name)
        at = points.reshape(-1, points.shape[-1])
        values = self.at(np.asarray(at.detach().cpu().double()) if hasattr(at, "detach") else at)
        return spread(values.reshape(points.shape[:2]), y, shape, self.name)

    def check(self, values: Array, y: Array) -> None:
        """Raises a NotFiniteError unless the values (B, F, ·) are finite."""
        finite = np.isfinite(values) if isinstance(values, np.ndarray) else values.isfinite()
        if not finite.all():
            sample = int(np.argwhere(~np.asarray(finite.tolist()))[0][0])
            raise NotFiniteError(
                f"{self.name} is not finite for y = {numbers(y[sample].tolist())}: fix the boundary data"
            )

    def check_positive(self, values: Array, y: Array) -> None:
        """Raises a ValueError unless the values (B or 1, F, ·) are positive and finite."""
        wrong = ~((values > 0) & (values < np.inf))  # NaN is wrong too
        if wrong.any():
            sample, *place = (int(i) for i in np.argwhere(np.asarray(wrong.tolist()))[0])
            raise ValueError(
                f"{self.name} must be positive and finite, but it is {float(values[sample, place[0], place[1]]):.3g} "
                f"for y = {numbers(y[sample].tolist())}: fix the boundary data, or the parameters"
            )

    def try_out(self, points: Floats, y: Floats) -> None:
        """Raises a ValueError if the values at points (F, Q, d) for y (B, p) have a wrong shape or are not finite."""
        if self.depends_on_y:
            self.check(self.evaluate(points, y), y)


@dataclass(frozen=True, eq=False)
class Condition:
    """One boundary condition: where it holds, and its values."""

    kind: Kind
    where: tuple[str | int, ...] | Callable[[Floats], Any]
    """Names or tags of groups, ("all",), ("rest",), or a function of x (n, d) that is true there."""
    value: BoundaryValue
    """g, h, or k of a Robin condition."""
    outside: BoundaryValue | None = None
    """u_outside of a Robin condition."""
    field: str = ""
    """The field of an equation that it belongs to; empty for problems of diffusion."""

    @property
    def values(self) -> tuple[BoundaryValue, ...]:
        """g, h, or k and u_outside."""
        return (self.value,) if self.outside is None else (self.value, self.outside)

    @property
    def depends_on_y(self) -> bool:
        """Whether one of its values depends on y."""
        return any(value.depends_on_y for value in self.values)

    @property
    def text(self) -> str:
        """For messages: dirichlet['inflow']."""
        text = f"{self.kind} where its function is true" if callable(self.where) else _text(self.kind, self.where)
        return f"{text} of {self.field}" if self.field else text


def make_conditions(dirichlet: Any, dirichlet_value: Any, neumann: Any, robin: Any) -> tuple[Condition, ...]:
    """The conditions that the fields of a Problem describe, Dirichlet ones first; raises a ValueError for bad input."""
    found = []
    if isinstance(dirichlet, Mapping):
        if callable(dirichlet_value) or dirichlet_value != 0:
            raise ValueError("dirichlet has values by group, so leave dirichlet_value out")
        found += _by_group("dirichlet", dirichlet)
    elif isinstance(dirichlet, str) and dirichlet != ALL:
        raise ValueError(
            f"dirichlet is {dirichlet!r}; give 'all', groups with their values, {{{dirichlet!r}: 0.0}}, facet tags, "
            "or a function of x"
        )
    elif callable(dirichlet) or isinstance(dirichlet, str):
        where = dirichlet if callable(dirichlet) else (ALL,)
        found.append(Condition("dirichlet", where, BoundaryValue(dirichlet_value, "dirichlet_value")))
    elif dirichlet is not None:
        tags = np.atleast_1d(np.asarray(list(dirichlet) if isinstance(dirichlet, set) else dirichlet))
        if not np.issubdtype(tags.dtype, np.integer):
            raise ValueError(
                f"dirichlet is {dirichlet!r}; give 'all', at least one facet tag, (1, 2), groups with their values, "
                "{'inflow': 0.0}, or a function of x"
            )
        value = BoundaryValue(dirichlet_value, "dirichlet_value")
        found.append(Condition("dirichlet", tuple(int(tag) for tag in tags), value))
    for kind, given in (("neumann", neumann), ("robin", robin)):
        if not isinstance(given, Mapping):
            raise ValueError(
                f"{kind} is {given!r}; give the groups with their values, {kind}={{'inflow': …}}, or "
                f"{kind}={{'rest': …}} for all of the boundary that no other condition names, holes included"
            )
        found += _by_group(kind, given)  # type: ignore[arg-type]
    _check_overlap(found)
    return tuple(found)


def _by_group(kind: Kind, given: Mapping[Any, Any]) -> list[Condition]:
    found = []
    for key, value in given.items():
        where = key if isinstance(key, tuple) else (key,)
        if not where or not all(isinstance(group, str | int) and not isinstance(group, bool) for group in where):
            raise ValueError(f"{kind} names the group {key!r}; a name or a tag is expected")
        text = _text(kind, where)
        if kind != "robin":
            found.append(Condition(kind, where, BoundaryValue(value, text)))
            continue
        if not isinstance(value, tuple | list) or len(value) != 2:
            raise ValueError(f"{text} is {value!r}; a pair (k, u_outside) is expected for a ∂u/∂n = k (u_outside - u)")
        transfer = BoundaryValue(value[0], f"k of {text}")
        if not callable(value[0]) and value[0] <= 0:
            raise ValueError(f"k of {text} is {value[0]!r}; a positive number is expected, or leave the group out")
        found.append(Condition(kind, where, transfer, BoundaryValue(value[1], f"u_outside of {text}")))
    return found


def _check_overlap(conditions: list[Condition]) -> None:
    """Raises a ValueError if two conditions name the same group, or if one of them takes all of the boundary."""
    seen: dict[str | int, Condition] = {}
    for condition in conditions:
        for group in () if callable(condition.where) else condition.where:
            if group in seen:
                raise ValueError(f"the group {group!r} has two conditions, {seen[group].kind} and {condition.kind}")
            seen[group] = condition
    if ALL in seen and len(conditions) > 1:
        other = next(c for c in conditions if c is not seen[ALL])
        raise ValueError(f"{other.text} is given, but u is given on all of the boundary: name the parts in dirichlet")


def _text(kind: str, where: tuple[str | int, ...]) -> str:
    return f"{kind}[{where[0]!r}]" if len(where) == 1 else f"{kind}[{where!r}]"


def _arguments(function: Callable[..., Any]) -> int:
    """How many arguments without a default a function takes; 1 if it does not tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters)
