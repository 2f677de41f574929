"""The sections of the page: tables of what the cells measured, and sentences that follow from the numbers by rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from training.experiments.markdown import markdown_row
from training.scaling.queries import SHOWN

Records = Sequence[Mapping[str, Any]]
ROUNDING = 1e-5  # smaller errors are those of float32 on meshes that a cycle solves exactly
EXCESSES = (1e-2, 3e-3, 1e-3, 3e-4)  # squares of errors in the energy norm
SAME = 1.3  # a change by less than this factor counts as none
LEARNED, NET, POD = "learned (2, 2)", "frame net", "POD and a net"
QUERIES = (*SHOWN, LEARNED, NET, POD)
SHORT = {name: name.replace("multigrid ", "") for name in SHOWN} | {LEARNED: "learned", NET: NET, POD: POD}
DIMENSIONS = {"disks": "2D, a disk of conductivity 10 that moves (`disks`)", "cube": "3D, eight blocks (`cube`)"}


def of_study(records: Records, study: str, **settings: Any) -> list[Mapping[str, Any]]:
    """The records of a study with these settings."""
    wanted = settings.items()
    found = (record for record in records if record["study"] == study)
    return [record for record in found if all(record["settings"].get(key) == value for key, value in wanted)]


def merged(records: Records, key: str) -> dict[Any, dict[str, Any]]:
    """By the value of a setting: the facts, and the rows of all cells by method."""
    found: dict[Any, dict[str, Any]] = {}
    for record in records:
        own = found.setdefault(record["settings"][key], {"facts": record["facts"], "rows": {}})
        own["rows"] |= {row["method"]: row for row in record["rows"]}
    return dict(sorted(found.items()))


def series(table: Mapping[Any, Mapping[str, Any]], method: str, key: str) -> list[tuple[Any, float]]:
    """(setting, number) for all settings where the method was measured."""
    return [(at, own["rows"][method][key]) for at, own in table.items() if method in own["rows"]]


def table_lines(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    yield markdown_row(headings)
    yield markdown_row(["---"] * len(headings))
    yield from (markdown_row(row) for row in rows)


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2g} %"


def digits(value: float | None, count: int = 3) -> str:
    return "–" if value is None else f"{float(f'{value:.{count}g}'):g}"


def change(first: float, last: float, unit: str = "", form: Callable[[float], str] | None = None) -> str:
    """What became of a number, in words."""
    form = form or (lambda value: digits(value, 2))
    ends = f"({form(first)} to {form(last)}{unit and ' '}{unit})"
    if last <= SAME * first and first <= SAME * last:
        return f"hardly changes {ends}"
    verb, ratio = ("grows", last / first) if last > first else ("falls", first / last)
    return f"{verb} by a factor of {digits(ratio, 2)} {ends}"


# ---- queries


def levels(records: Records) -> Iterator[str]:
    yield (
        "(2, 2) is full multigrid with two smoothing steps before and after each correction, + 1 and + 2 are steps of "
        "conjugate gradients after it; learned cycles are (2, 2) with learned weights. "
        "Errors are in the energy norm, against the discrete solution and relative to it. “Mesh” is the distance "
        "of the discrete solution from that of the next finer mesh, a little less than its own error, and "
        "“superclose” that of its interpolation from it: an error below that says nothing about the equation. "
        "Times are milliseconds per query when 64 are asked for at a time, coefficient, load and set-up included. "
        "Learned cycles are trained on the energy, the net by the best recipe for the same number of steps on every "
        "mesh, both without solutions."
    )
    for problem, title in DIMENSIONS.items():
        table = merged(of_study(records, "levels", problem=problem), "levels")
        if not table:
            continue
        yield from ("", f"**{title}**", "")
        yield from _query_lines("J", table)
        yield ""
        yield from _mesh_words(table)


def parameters(records: Records) -> Iterator[str]:
    table = merged(of_study(records, "parameters"), "terms")
    if not table:
        return
    yield (
        "log a_y is a sum of p waves (`waves`). All p have the same effort: as many steps of the net and of "
        "learned cycles, as many snapshots for POD and a net."
    )
    yield ""
    yield from _query_lines("p", table)
    yield ""
    for method in (SHOWN[1], LEARNED, NET, POD):
        errors, times = series(table, method, "error"), series(table, method, "ms")
        if len(errors) > 1:
            (p, first), (q, last) = errors[0], errors[-1]
            yield (
                f"- {_named(method)}: from p = {p} to {q} the error {change(first, last, form=percent)}, the time per "
                f"query {change(times[0][1], times[-1][1], 'ms')}."
            )


def _query_lines(key: str, table: Mapping[Any, Mapping[str, Any]]) -> Iterator[str]:
    shown = [name for name in QUERIES if any(name in own["rows"] for own in table.values())]
    errors, times = [f"{SHORT[name]}: error" for name in shown], [f"{SHORT[name]}: ms" for name in shown]
    rows = []
    for at, own in table.items():
        facts = own["facts"]
        found = [own["rows"].get(name, {}) for name in shown]
        start = [at, facts["unknowns"], percent(facts["error"]), percent(facts["superclose"])]
        rows.append([*start, *(percent(r.get("error")) for r in found), *(digits(r.get("ms")) for r in found)])
    yield from table_lines([key, "unknowns", "mesh", "superclose", *errors, *times], rows)


def _named(method: str) -> str:
    names = {LEARNED: "Learned cycles", NET: "The frame net", POD: POD}
    return names.get(method, f"Full multigrid {SHORT[method]}".replace("+ 1", "and a step of conjugate gradients"))


def _mesh_words(table: Mapping[Any, Mapping[str, Any]]) -> Iterator[str]:
    unknowns = {at: own["facts"]["unknowns"] for at, own in table.items()}
    superclose = {at: own["facts"]["superclose"] for at, own in table.items()}
    for method in (SHOWN[1], LEARNED, NET):
        errors = [(at, error) for at, error in series(table, method, "error") if error > ROUNDING]
        times = [(at, ms) for at, ms in series(table, method, "ms") if at in dict(errors)]
        if len(errors) < 2:
            continue
        (first, before), (last, after) = errors[0], errors[-1]
        ns = [1e6 * ms / unknowns[at] for at, ms in times]
        yield (
            f"- {_named(method)}: from J = {first} to {last} the error {change(before, after, form=percent)}, "
            f"the time per query and unknown {change(ns[0], ns[-1], 'ns')}."
        )
        below = [at for at, error in errors if error < superclose[at]]
        if below:
            yield f"  The error is below the superclose one at J = {', '.join(map(str, below))}."
        else:
            yield "  The error is above the superclose one on every mesh."
    exact = [str(at) for at, error in series(table, SHOWN[0], "error") if error <= ROUNDING]
    if exact:
        yield f"- At J = {', '.join(exact)} a cycle is exact up to rounding: words on cycles begin with the next mesh."
    trained = series(table, LEARNED, "offline_s")
    if len(trained) > 1:
        (first, short), (last, long) = trained[0], trained[-1]
        steps = series(table, LEARNED, "steps")
        yield (
            f"- Learned cycles were trained in {digits(short, 2)} s at J = {first} ({steps[0][1]} steps), "
            f"{digits(long, 2)} s at J = {last} ({steps[-1][1]} steps)."
        )


# ---- contrast


PROBLEMS = {
    "disks": "The conductivity of a disk that moves (`disks`)",
    "blocks": "log a_y uniform on each of 4 × 4 squares, a_y between 1 and the contrast",
}


def contrast(records: Records) -> Iterator[str]:
    yield (
        "Iterations are those of `solve` in float64 to a relative residual of 1e-8, the mean and the most of "
        "eight samples: of conjugate gradients with multigrid, and of those in the frame. The bound of `certify` "
        f"over the true error is that of the answers of {SHOWN[-1]}."
    )
    for problem, title in PROBLEMS.items():
        table = merged(of_study(records, "contrast", problem=problem), "contrast")
        if not table:
            continue
        yield from ("", f"**{title}**", "")
        names = [*SHOWN, LEARNED]
        rows = []
        for at, own in table.items():
            counts = own["facts"]["iterations"]
            told = [_iterations(counts["multigrid"]), _iterations(counts["frame"])]
            errors = [percent(own["rows"].get(name, {}).get("error")) for name in names]
            rows.append([f"{at:g}", *told, *errors, _bound(own["facts"]["bound"])])
        headings = ["contrast", "multigrid: iterations", "frame: iterations", *(f"{SHORT[n]}: error" for n in names)]
        yield from table_lines([*headings, "bound / error, least to most"], rows)
        yield ""
        yield from _contrast_words(table)


def _iterations(found: Mapping[str, float] | None) -> str:
    return "not reached" if found is None else f"{digits(found['mean'])} ({found['most']:g})"


def _bound(found: Mapping[str, float] | None) -> str:
    return "none" if found is None else f"{digits(found['least'])} to {digits(found['most'])}"


def _contrast_words(table: Mapping[Any, Mapping[str, Any]]) -> Iterator[str]:
    lowest, highest = min(table), max(table)
    between = f"From contrast {lowest:g} to {highest:g}"
    for solver, name in (("multigrid", "conjugate gradients with multigrid"), ("frame", "those in the frame")):
        counts = [table[at]["facts"]["iterations"][solver] for at in (lowest, highest)]
        if None in counts:
            yield f"- {between} the iterations of {name} are not always enough."
        else:
            yield f"- {between} the number of iterations of {name} {change(*(c['mean'] for c in counts))}."
    low, high = (table[at]["rows"][SHOWN[-1]]["error"] for at in (lowest, highest))
    yield f"- The error of full multigrid {SHORT[SHOWN[-1]]} {change(low, high, form=percent)}."
    gains = {at: own["rows"][SHOWN[0]]["error"] / own["rows"][LEARNED]["error"] for at, own in table.items()}
    best, worst = max(gains, key=lambda at: gains[at]), min(gains, key=lambda at: gains[at])
    yield (
        f"- Learned weights divide the error of the same cycle by {digits(gains[best], 2)} at contrast {best:g}, where "
        f"they gain most, and by {digits(gains[worst], 2)} at {worst:g}, where they gain least."
    )
    known = {at: own["facts"]["bound"] for at, own in table.items() if own["facts"]["bound"] is not None}
    below = [f"{at:g}" for at, bound in known.items() if bound["least"] < 1 - 1e-6]
    told = f"fell below the error at contrast {', '.join(below)}" if below else "was never below the error"
    most = digits(known[max(known)]["most"], 2)
    yield f"- The bound {told} in eight samples; at contrast {max(known):g} it is up to {most} times as large."


# ---- training


def training(records: Records) -> Iterator[str]:
    found = sorted(of_study(records, "training"), key=lambda record: record["settings"]["levels"])
    if not found:
        return
    tests = len(found[0]["curve"]) - 1
    yield (
        "The full net with the stable loss and the best recipe (SOAP, level decay 1), on `checkerboard` with four "
        f"parameters, {found[0]['steps']} steps of 64 samples in all, tested {tests} times. The excess is that of the "
        "loss over its floor, relative to it: the mean square of the error in the energy norm. Seconds are those of "
        "the steps alone, without tests; steps are counted to the first test that finds the excess."
    )
    yield ""
    rows = []
    for record in found:
        facts, reached = record["facts"], [first_step(record, limit) for limit in EXCESSES]
        start = [record["settings"]["levels"], facts["unknowns"], facts["weights"]]
        steps = ["–" if step is None else str(step) for step in reached]
        seconds = ["–" if step is None else digits(step * record["step_ms"] / 1000) for step in reached]
        rows.append([*start, *steps, *seconds, digits(record["step_ms"]), f"{facts['excess']:.1e}"])
    names = [*(f"steps to {x:g}" for x in EXCESSES), *(f"seconds to {x:g}" for x in EXCESSES)]
    yield from table_lines(["J", "unknowns", "weights", *names, "ms per step", "excess at the end"], rows)
    yield ""
    for limit in EXCESSES:
        steps_of = {record["settings"]["levels"]: first_step(record, limit) for record in found}
        there = [(J, step) for J, step in steps_of.items() if step is not None]
        if len(there) < 2:
            continue
        (coarse, before), (fine, after) = there[0], there[-1]
        yield f"- The number of steps to an excess of {limit:g} {change(before, after)} from J = {coarse} to {fine}."
        missed = [str(J) for J, step in steps_of.items() if step is None]
        if missed:
            yield f"  It was not reached at J = {', '.join(missed)}."
    each = [1e3 * record["step_ms"] / record["facts"]["unknowns"] for record in found]
    first, last = (found[end]["settings"]["levels"] for end in (0, -1))
    yield f"- The time of a step per unknown {change(each[0], each[-1], 'µs')} from J = {first} to {last}."


def first_step(record: Mapping[str, Any], limit: float) -> int | None:
    """The step of the first test with an excess of at most the limit."""
    return next((step for step, excess in record["curve"] if excess <= limit), None)
