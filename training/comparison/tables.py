"""Tables of a comparison as Markdown: one per case, and overviews of all cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from training.comparison.fronts import (
    FAMILIES,
    ONE_AT_A_TIME,
    Measure,
    Row,
    first_below,
    front,
    gradient,
    most_accurate,
    of_family,
    output,
    solution,
)
from training.experiments.markdown import markdown_row
from training.experiments.overview import duration

THINNED = ("PETSc", "multigrid")
"""Families with many rows, of which tables show those that no other row of the family beats."""


def percent(error: float | None) -> str:
    """An error with two digits."""
    if error is None:
        return "–"
    if error < 1e-5:
        return f"{error:.0e}"
    return f"{100 * error:.2g} %" if error < 0.995 else f"{100 * error:.0f} %"


def milliseconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.2g}"


def main_batch(record: Mapping[str, Any]) -> int:
    """The number of samples at a time that figures and overviews are for."""
    return max(batch for batch in record["effort"]["batches"] if batch <= 64)


# ---- one case


def case_lines(case: Mapping[str, Any], effort: Mapping[str, Any]) -> Iterator[str]:
    """The table of a case, and the errors of its mesh."""
    facts, batches = case["facts"], effort["batches"]
    batch = max(number for number in batches if number <= 64)
    halved = "once" if case["finer"] == 1 else f"{case['finer']} times"
    yield (
        f"{case['mesh']}: {facts['unknowns']} unknowns, {facts['parameters']} parameters; the finer mesh is halved "
        f"{halved}. Errors of the mesh itself: {percent(facts['error'])}, superclose "
        f"**{percent(facts['superclose'])}**, "
        f"of outputs {percent(facts['output'])}. Errors below the superclose error, and those of outputs below the "
        "mesh's, are bold."
    )
    yield ""
    headings = ["method", "solves", "offline", *(f"ms, B = {number}" for number in batches)]
    headings += ["coefficient / set-up / solve", "error", "over superclose", "finer mesh", "bound / error"]
    headings += ["outputs", "ms", "gradient", "ms"]
    yield markdown_row(headings)
    yield markdown_row(["---"] * len(headings))
    shown = shown_rows(case["rows"], batch)
    for row in shown:
        yield markdown_row(_entries(row, facts, batches, batch))
    left = len(case["rows"]) - len(shown)
    if left:
        yield ""
        yield (
            f"{left} more rows of {' and '.join(THINNED)} are in the JSON: another one of the same family is at least "
            "as fast and as accurate."
        )


def shown_rows(rows: Sequence[Row], batch: int) -> list[Row]:
    """The rows of a table in the order of families."""
    found: list[Row] = []
    for family in FAMILIES:
        mine = of_family(rows, family)
        found += front(mine, solution, batch) if family in THINNED else mine
        if family in THINNED:  # those that were measured for gradients
            found += [row for row in mine if row not in found and gradient(row, batch) is not None]
    return found


def _entries(row: Row, facts: Mapping[str, Any], batches: Sequence[int], batch: int) -> list[Any]:
    times, error = row.get("times") or {}, row.get("error")
    offline, bound = row["offline_s"], row.get("bound")
    known = [(times.get(str(number)) or {}).get("query") for number in batches]
    ours = output(row, batch)
    entries = [row["method"], row["solves"] or "–", duration(offline) if offline else "–"]
    entries += [_asked(row, value) for value in known]
    entries += [_parts(times.get(str(batch)) or {}), _bold(error, facts["superclose"])]
    entries += ["–" if error is None else f"{error / facts['superclose']:.2g}", percent(row.get("finer_error"))]
    entries += ["–" if bound is None else f"{bound['least']:.2g} to {bound['most']:.2g}"]
    entries += [_bold(None if ours is None else ours[1], facts["output"]), milliseconds(ours[0] if ours else None)]
    return [*entries, percent(row.get("gradient_error")), milliseconds(row.get("gradient_ms"))]


def _asked(row: Row, ms: float | None) -> str:
    return "the same" if ms is None and row["kind"] in ONE_AT_A_TIME else milliseconds(ms)


def _parts(times: Mapping[str, float]) -> str:
    if "solve" not in times:
        return "–"
    set_up = max(times["coefficient and set-up"] - times["coefficient"], 0.0)
    return " / ".join(milliseconds(value) for value in (times["coefficient"], set_up, times["solve"]))


def _bold(error: float | None, bound: float) -> str:
    return f"**{percent(error)}**" if error is not None and error <= bound else percent(error)


# ---- all cases


def overview_lines(record: Mapping[str, Any]) -> Iterator[str]:
    """What each family needs to be as good as the mesh, for solutions, outputs and gradients."""
    batch = main_batch(record)
    cases = record["cases"]

    def superclose(case: Mapping[str, Any]) -> float:
        return float(case["facts"]["superclose"])

    def of_outputs(case: Mapping[str, Any]) -> float:
        return float(case["facts"]["output"])

    yield "## Solutions"
    yield ""
    yield (
        f"Milliseconds per sample, {batch} at a time, of the fastest of each family whose error is below the "
        "superclose error of the mesh. In brackets, where none is: the least error, and its time."
    )
    yield ""
    yield from _overview(cases, solution, batch, superclose, ("superclose error", superclose))
    yield ""
    for number in (n for n in record["effort"]["batches"] if n != batch):
        yield f"The same, {number} at a time:"
        yield ""
        yield from _overview(cases, solution, number, superclose, ("superclose error", superclose))
        yield ""
    yield "## Outputs"
    yield ""
    yield f"The same for outputs, {batch} at a time, below the mesh's own error of them."
    yield ""
    yield from _overview(cases, output, batch, of_outputs, ("the mesh's error", of_outputs))
    yield ""
    yield "## Gradients"
    yield ""
    yield f"Error of the gradient of a misfit and milliseconds per sample, {batch} at a time, of the most accurate row."
    yield ""
    yield from _overview(cases, gradient, batch, lambda case: 0.0, None)


def _overview(
    cases: Sequence[Mapping[str, Any]],
    measure: Measure,
    batch: int,
    bound: Callable[[Mapping[str, Any]], float],
    first: tuple[str, Callable[[Mapping[str, Any]], float]] | None,
) -> Iterator[str]:
    yield markdown_row(["", *(case["name"] for case in cases)])
    yield markdown_row(["---"] * (len(cases) + 1))
    if first is not None:
        yield markdown_row([first[0], *(percent(first[1](case)) for case in cases)])
    for family in FAMILIES:
        mine = [of_family(case["rows"], family) for case in cases]
        entries = [
            _reached(rows, measure, batch, bound(case), plain=first is None)
            for rows, case in zip(mine, cases, strict=True)
        ]
        if any(entry != "–" for entry in entries):
            yield markdown_row([family, *entries])


def _reached(rows: Sequence[Row], measure: Measure, batch: int, bound: float, plain: bool) -> str:
    found = first_below(rows, measure, batch, bound)
    if found is not None and not plain:
        return milliseconds(found[1][0])
    best = most_accurate(rows, measure, batch)
    if best is None:
        return "–"
    text = f"{percent(best[1][1])}, {milliseconds(best[1][0])}"
    return text if plain else f"({text})"
