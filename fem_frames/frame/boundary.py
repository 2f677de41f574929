"""Boundary data that are evaluated for each y: shapes that carry them into the lift, and integrals over facets.

The lift is a fixed function plus, for each condition whose essential data depend on y, a shape times these data: nodal
values of the shape, times the values of the data at points, or their means over facets for fluxes.
The same code serves NumPy for reference solutions and torch for training.

B samples, n simplices that carry nodal values, F boundary facets, Q points of a facet's rule, d dimension, j a level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.problem.boundary import BoundaryValue
from fem_frames.problem.coefficients import Array, namespace
from fem_frames.problem.definition import Problem

Convert = Callable[[npt.NDArray], Array]
Rule = tuple[Floats, Floats]
"""Barycentric points (Q, k+1) on a simplex, and weights (Q,)."""


@dataclass(frozen=True, eq=False)
class LiftShape:
    """Nodal values that are multiplied by the data of one boundary condition: 1 where it holds, 0 on others."""

    condition: int
    """Its place in `Problem.conditions`."""
    values: tuple[Floats, ...]  # for each level, (simplices that carry nodal values,)


@dataclass(frozen=True, eq=False)
class BoundaryFacets:
    """The boundary facets whose data enter the functional for each y, and the quadrature rule on facets."""

    facets: tuple[Ints, ...]  # for each level (F_j, d) points
    conditions: tuple[Ints, ...]  # for each level (F_j,) places in `Problem.conditions`, ascending
    rule_points: Floats  # (Q, d) barycentric
    rule_weights: Floats  # (Q,), sum 1

    def coarsened(self, count: int) -> BoundaryFacets:
        """The facets of the first `count` levels."""
        return BoundaryFacets(self.facets[:count], self.conditions[:count], self.rule_points, self.rule_weights)

    def from_level(self, first: int) -> BoundaryFacets:
        """The facets from level `first` on."""
        return BoundaryFacets(self.facets[first:], self.conditions[first:], self.rule_points, self.rule_weights)

    def flat(self) -> dict[str, npt.NDArray]:
        """All arrays by their names in a file."""
        flat: dict[str, npt.NDArray] = {}
        for name in ("facets", "conditions"):
            flat |= {f"boundary.{name}{j}": table for j, table in enumerate(getattr(self, name))}
        return flat | {f"boundary.{name}": getattr(self, name) for name in ("rule_points", "rule_weights")}

    @classmethod
    def from_flat(cls, flat: Mapping[str, npt.NDArray], count: int) -> BoundaryFacets | None:
        """The facets in a file with `count` levels; None if it has none."""
        if "boundary.rule_points" not in flat:
            return None
        tables = ([flat[f"boundary.{name}{j}"] for j in range(count)] for name in ("facets", "conditions"))
        facets, conditions = (tuple(found) for found in tables)
        return cls(facets, conditions, flat["boundary.rule_points"], flat["boundary.rule_weights"])


def shapes_from_flat(flat: Mapping[str, npt.NDArray], field: str, conditions: Any, count: int) -> tuple[LiftShape, ...]:
    """The shapes of a field in a file with `count` levels."""
    return tuple(
        LiftShape(condition, tuple(flat[f"field.{field}.shape{condition}.values{j}"] for j in range(count)))
        for condition in conditions
    )


def areas(corners: Floats) -> Floats:
    """(F,) lengths or areas of facets with the corners (F, d, d); 1 for points."""
    if corners.shape[2] == 1:
        return np.ones(len(corners))
    edges = corners[:, 1:] - corners[:, :1]
    if corners.shape[2] == 2:
        return np.asarray(np.linalg.norm(edges[:, 0], axis=-1))
    return np.asarray(np.linalg.norm(np.cross(edges[:, 0], edges[:, 1]), axis=-1) / 2)


def unchanged(array: npt.NDArray) -> Array:
    """The array itself: boundary data in NumPy."""
    return array


class Given:
    """Maps y (B, p) to values (B, n, Q) or (B, n, 1) of a boundary value at points (n, Q, d).

    Values that do not depend on y are computed once, as (1, n, Q).
    """

    def __init__(self, value: BoundaryValue, points: Floats, convert: Convert) -> None:
        self.value, self._points = value, convert(points)
        self._fixed: Array | None = None
        if not value.depends_on_y:
            self._fixed = convert(value.at(points.reshape(-1, points.shape[-1])).reshape(1, *points.shape[:2]).copy())

    def __call__(self, y: Array, check: bool = True) -> Array:
        if self._fixed is not None:
            return self._fixed
        values = self.value.evaluate(self._points, y)
        if check:
            self.value.check(values, y)
        return values


class FieldLift:
    """Maps y (B, p) to the nodal values (B, n) of a field's lift on one mesh; (1, n) if they do not depend on y."""

    def __init__(
        self,
        lift: Floats,  # (n,)
        shapes: Sequence[tuple[int, Floats]],  # conditions and nodal values (n,)
        corners: Floats,  # (n, k+1, d) of the simplices that carry nodal values
        rule: Rule,  # `Element.data_rule`
        problem: Problem,
        convert: Convert = unchanged,
    ) -> None:
        self._lift, self._weights = convert(lift[None]), convert(rule[1])
        self._of_constants = float(np.round(rule[1].sum()))  # without the rounding of the weights
        at = np.einsum("qn,fnd->fqd", rule[0], corners) if shapes else corners
        self._parts = [(convert(values), Given(_data(problem, number), at, convert)) for number, values in shapes]

    def __call__(self, y: Array, check: bool = True) -> Array:
        found = self._lift
        for shape, given in self._parts:
            values = given(y, check)
            constant = values.shape[2] == 1
            nodal = self._of_constants * values[..., 0] if constant else (values * self._weights).sum(-1)
            found = found + shape * nodal
        return found


def _data(problem: Problem, number: int) -> BoundaryValue:
    if not 0 <= number < len(problem.conditions):
        raise ValueError(
            f"the frame has data of boundary condition {number}, the problem has {len(problem.conditions)}"
        )
    return problem.conditions[number].value


POINT_RULE = (np.ones((1, 1)), np.ones(1))
"""The rule on a point."""


class FacetIntegrals:
    """Maps y to integrals over boundary facets: of Neumann data, k u_outside and k, times hats."""

    def __init__(
        self,
        points: Floats,  # (N, d)
        facets: Ints,  # (F, d)
        conditions: Ints,  # (F,) ascending, so Robin conditions come last
        rule: Rule,
        problem: Problem,
        convert: Convert = unchanged,
    ) -> None:
        self.facets, self.problem = facets, problem
        corners = points[facets]
        self.points = np.einsum("qn,fnd->fqd", rule[0], corners)  # (F, Q, d)
        self.weights = areas(corners)[:, None] * rule[1]  # (F, Q)
        self.hats = rule[0]  # (Q, d)
        self._weights, self._hats = convert(self.weights), convert(self.hats)
        self._parts: list[tuple[int, Given, Given | None]] = []  # facets, h or k, u_outside
        self.robin = slice(len(facets), len(facets))
        for number in np.unique(conditions):
            own = conditions == number
            given = Given(_data(problem, int(number)), self.points[own], convert)
            around = problem.conditions[number].outside
            outside = None if around is None else Given(around, self.points[own], convert)
            if outside is not None:
                self.robin = slice(min(self.robin.start, int(np.flatnonzero(own)[0])), len(facets))
            self._parts.append((int(own.sum()), given, outside))

    @property
    def has_robin(self) -> bool:
        return self.robin.start < len(self.facets)

    def transfer(self, y: Array, check: bool = True) -> Array:
        """(B, F of Robin conditions, Q) k at the quadrature points; `check` raises unless it is positive and finite."""
        found = []
        for count, given, outside in self._parts:
            if outside is not None:
                k = given(y, False)
                if check:
                    given.value.check_positive(k, y)
                found.append(_whole(k, y, count, len(self.hats)))
        return namespace(y).concatenate(found, 1)

    def loads(self, y: Array, check: bool = True) -> Array:
        """(B, F, d) integrals of h or k u_outside times the hats of each facet."""
        values = []
        for count, given, outside in self._parts:
            part = given(y, check) if outside is None else given(y, False) * outside(y, check)
            values.append(_whole(part, y, count, len(self.hats)))
        return namespace(y).einsum("fq,qn,bfq->bfn", self._weights, self._hats, namespace(y).concatenate(values, 1))

    def masses(self, y: Array, check: bool = True) -> Array:
        """(B, F of Robin conditions, d, d) integrals of k times two hats."""
        own = self._weights[self.robin]
        return namespace(y).einsum("fq,qn,qm,bfq->bfnm", own, self._hats, self._hats, self.transfer(y, check))


def _whole(values: Array, y: Array, count: int, rule: int) -> Array:
    """Values (1 or B, F, 1 or Q) as (B, F, Q)."""
    shape = (y.shape[0], count, rule)
    return np.broadcast_to(values, shape) if isinstance(values, np.ndarray) else values.expand(*shape)
