"""Rows of a comparison by what they cost and how far they are off: fronts, families, the first below an error.

A row is what one method was measured to do, as `comparison.json` has it; a point is its time and its error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Point = tuple[float, float]
Measure = Callable[[Row, int], Point | None]

NETS = ("frame net, the paper's", "frame net, best recipe")
FAMILIES = (
    *(
        "PETSc",
        "direct solves",
        "multigrid",
        "frame solve",
        "learned cycles",
        *NETS,
        "POD and a net",
        "polynomial chaos",
    ),
    *("reduced basis by pyMOR", "reduced basis, batched", "a net for the outputs"),
)
"""The kinds of methods, in the order of tables."""
ONE_AT_A_TIME = ("PETSc", "direct solves", "reduced basis by pyMOR")
"""Families whose time per sample does not depend on how many are asked for."""


def solution(row: Row, batch: int) -> Point | None:
    """Milliseconds per sample and error of the solution; of methods that take one sample at a time those of one."""
    times = row.get("times")
    if not times or row.get("error") is None:
        return None
    known = times.get(str(batch)) or (times["1"] if row["kind"] in ONE_AT_A_TIME else None)
    return None if known is None else (known["query"], row["error"])


def output(row: Row, batch: int) -> Point | None:
    """The same for the outputs."""
    ms = (row.get("output_ms") or {}).get(str(batch))
    return None if ms is None or row.get("output_error") is None else (ms, row["output_error"])


def gradient(row: Row, batch: int) -> Point | None:
    """The same for gradients of a misfit in y, which were measured with one batch."""
    ms, error = row.get("gradient_ms"), row.get("gradient_error")
    return None if ms is None or error is None else (ms, error)


def front(rows: Sequence[Row], measure: Measure, batch: int) -> list[Row]:
    """The rows that no other one beats in both time and error, from fast to accurate."""
    found: list[Row] = []
    best = float("inf")
    for row, point in sorted(points(rows, measure, batch), key=lambda pair: pair[1]):
        if point[1] < best:
            found.append(row)
            best = point[1]
    return found


def points(rows: Sequence[Row], measure: Measure, batch: int) -> list[tuple[Row, Point]]:
    """Rows that were measured, with their points."""
    known = ((row, measure(row, batch)) for row in rows)
    return [(row, point) for row, point in known if point is not None]


def of_family(rows: Sequence[Row], family: str) -> list[Row]:
    return [row for row in rows if row["kind"] == family]


def first_below(rows: Sequence[Row], measure: Measure, batch: int, error: float) -> tuple[Row, Point] | None:
    """The fastest row with at most this error."""
    good = [pair for pair in points(rows, measure, batch) if pair[1][1] <= error]
    return min(good, key=lambda pair: pair[1], default=None)


def most_accurate(rows: Sequence[Row], measure: Measure, batch: int) -> tuple[Row, Point] | None:
    return min(points(rows, measure, batch), key=lambda pair: pair[1][1], default=None)


def error_within(rows: Sequence[Row], measure: Measure, batch: int, ms: float) -> tuple[Row, Point] | None:
    """The most accurate row that takes at most so long."""
    fast = [pair for pair in points(rows, measure, batch) if pair[1][0] <= ms]
    return min(fast, key=lambda pair: pair[1][1], default=None)
