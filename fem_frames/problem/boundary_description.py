"""Boundary conditions as plain data, for problems that are saved with their surrogate.

Numbers and `Parameter`s travel. Data that do not depend on y are in the frame already, in its lift or its load; what a
frame does not have, functions of y and functions of x in Robin conditions, does not travel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fem_frames.problem.boundary import BoundaryValue, Condition, Parameter

KINDS = ("dirichlet", "neumann", "robin")
IN_FRAME = "frame"


def describe_conditions(conditions: Sequence[Condition]) -> list[dict[str, Any]] | None:
    """The conditions as plain data; empty if none is evaluated for each y, None if one cannot be described."""
    if not any(condition.kind == "robin" or condition.depends_on_y for condition in conditions):
        return []
    found = []
    for condition in conditions:
        values = [_describe(value, condition.kind == "robin") for value in condition.values]
        if None in values:
            return None
        of_field = {"field": condition.field} if condition.field else {}
        found.append({"kind": condition.kind, "values": values, **of_field})
    return found


def _describe(value: BoundaryValue, robin: bool) -> Any:
    # Types are compared exactly: a user's subclass may evaluate something else.
    if type(value.given) is Parameter:
        return {"index": value.given.index, "scale": float(value.given.scale), "offset": float(value.given.offset)}
    if not callable(value.given):
        return float(value.given)
    return None if robin or value.depends_on_y else IN_FRAME


def read_conditions(
    given: Any, dirichlet: Callable[..., Any], neumann: Callable[..., Any]
) -> dict[str, Mapping[int, Any]]:
    """The arguments dirichlet, neumann and robin of a Problem, whose groups are numbered.

    The two functions stand for data that are in the frame. Raises a ValueError if the description is damaged.
    """
    if not isinstance(given, list) or not given:
        raise ValueError("the boundary is not described by a list of conditions")
    found: dict[str, dict[int, Any]] = {kind: {} for kind in KINDS}
    in_frame, order = {"dirichlet": dirichlet, "neumann": neumann}, []
    for number, condition in enumerate(given):
        kind = condition.get("kind") if isinstance(condition, Mapping) else None
        if kind not in KINDS or set(condition) != {"kind", "values"} or not isinstance(condition["values"], list):
            raise ValueError(f"boundary condition {number} is not described by its kind and values")
        values = [_read(value, in_frame.get(kind), number) for value in condition["values"]]
        if len(values) != 1 + (kind == "robin"):
            raise ValueError(f"boundary condition {number} has {len(values)} values")
        found[kind][number] = tuple(values) if kind == "robin" else values[0]
        order.append(KINDS.index(kind))
    if order != sorted(order):
        raise ValueError("the boundary conditions are not in the order dirichlet, neumann, robin")
    return found  # type: ignore[return-value]


def read_equation_conditions(given: Any, in_frame: Callable[..., Any]) -> tuple[Condition, ...]:
    """The conditions of the fields of an equation, in their order; raises a ValueError if they are damaged."""
    if not isinstance(given, list) or not given:
        raise ValueError("the boundary is not described by a list of conditions")
    found = []
    for number, condition in enumerate(given):
        keys = {"kind", "values", "field"}
        if not isinstance(condition, Mapping) or set(condition) != keys or condition["kind"] not in KINDS[:2]:
            raise ValueError(f"boundary condition {number} is not described by its kind, values and field")
        if not isinstance(condition["values"], list) or len(condition["values"]) != 1:
            raise ValueError(f"boundary condition {number} has not one value")
        value = _read(condition["values"][0], in_frame, number)
        where, name = (number,), condition["field"]
        text = f"{condition['kind']} {number}"
        if not isinstance(name, str) or not name:
            raise ValueError(f"boundary condition {number} belongs to no field")
        found.append(Condition(condition["kind"], where, BoundaryValue(value, text), field=name))
    return tuple(found)


def _read(value: Any, in_frame: Callable[..., Any] | None, number: int) -> Any:
    if isinstance(value, str) and value == IN_FRAME and in_frame is not None:
        return in_frame
    if isinstance(value, Mapping) and set(value) == {"index", "scale", "offset"} and type(value["index"]) is int:
        scale, offset = value["scale"], value["offset"]
        if all(type(part) is float and math.isfinite(part) for part in (scale, offset)):
            return Parameter(value["index"], scale, offset)
    if type(value) is float and math.isfinite(value):
        return value
    raise ValueError(f"boundary condition {number} has the value {value!r:.40}; a number or a parameter is expected")
