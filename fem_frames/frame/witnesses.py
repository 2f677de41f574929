"""Values of Neumann data at a few points, kept with a frame: they show whether a problem has the same data.

The frame itself holds integrals of these data, from which they cannot be read back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fem_frames.frame.arrays import FrameArrays
from fem_frames.mesh.hierarchy import MeshHierarchy
from fem_frames.problem.boundary import REST
from fem_frames.problem.definition import Problem
from fem_frames.problem.description import RecordedProblem

COUNT = 8  # points of each condition


def neumann_witnesses(hierarchy: MeshHierarchy, problem: Problem) -> list[dict[str, Any]]:
    """For each Neumann condition that does not depend on y, points of its part of the boundary and the data there."""
    found: list[dict[str, Any]] = []
    for name in dict.fromkeys(condition.field for condition in problem.conditions):
        own, first = problem.of_field(name) if name else (problem, 0)
        found += _witnesses(hierarchy, own, first)
    return found


def _witnesses(hierarchy: MeshHierarchy, problem: Problem, first: int) -> Iterator[dict[str, Any]]:
    """Those of a problem whose conditions have the numbers from `first` on."""
    part = hierarchy.condition_facets(problem)
    for number, condition in enumerate(problem.conditions):
        own = np.flatnonzero(part == number)
        if condition.kind != "neumann" or condition.value.depends_on_y or not len(own):
            continue
        chosen = own[np.unique(np.linspace(0, len(own) - 1, COUNT).astype(int))]
        points = hierarchy.points[hierarchy.levels[0].facets[chosen]].mean(axis=1)
        values = condition.value.at(points)
        yield {"condition": first + number, "points": points.tolist(), "values": values.tolist()}


def differing_neumann(arrays: FrameArrays, problem: Problem) -> str | None:
    """The first Neumann condition whose data differ from those of the frame, in words; None if none does."""
    recorded = arrays.record.get("neumann")
    if recorded is None or isinstance(problem, RecordedProblem):  # an earlier version, or the frame's own problem
        return None
    known = {witness["condition"] for witness in recorded}
    for number, condition in enumerate(problem.conditions):
        fixed = condition.kind == "neumann" and not condition.value.depends_on_y and not condition.value.is_zero
        if fixed and number not in known and condition.where != (REST,):  # there may be no rest
            return f"the frame does not have {condition.text}"
    for witness in recorded:
        number, points = witness["condition"], np.asarray(witness["points"], np.float64)
        if not 0 <= number < len(problem.conditions) or problem.conditions[number].kind != "neumann":
            return "its Neumann conditions are others"
        condition = problem.conditions[number]
        if condition.value.depends_on_y or not np.allclose(condition.value.at(points), witness["values"], rtol=1e-9):
            return f"{condition.text} differs"
    return None
