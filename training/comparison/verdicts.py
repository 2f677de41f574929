"""Sentences that follow from the measurements of a comparison: what to use when.

Each is made by rules from the rows, so that the words cannot contradict the tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from training.comparison.fronts import (
    FAMILIES,
    NETS,
    Measure,
    error_within,
    first_below,
    front,
    gradient,
    most_accurate,
    of_family,
    output,
    points,
    solution,
)
from training.comparison.tables import main_batch, milliseconds, percent

Case = Mapping[str, Any]
GRADIENT_ERROR, GRADIENT_WORDS = 0.01, "with an error below 1 %"
TITLES = {
    "summary": "In short.",
    "many": "Whole solutions, many at a time.",
    "one": "Whole solutions, one at a time.",
    "nets": "Frame nets, the paper's and the best recipe.",
    "pod_net": "A net for POD modes.",
    "chaos": "Polynomial chaos.",
    "bases": "Reduced bases.",
    "outputs": "A few outputs.",
    "gradients": "Gradients in y.",
    "bounds": "Bounds.",
    "paper": "The paper's problem.",
}
WORDS = {"reduced basis by pyMOR": "pyMOR's reduced bases", "reduced basis, batched": "batched reduced bases"}
"""Families whose names are no words in a list."""
PURPOSE = "for reproducing the paper and for studying precision"


def verdicts(record: Mapping[str, Any]) -> dict[str, str]:
    """The sentences, by the keys of `TITLES`; those without measurements are left out."""
    cases, batch = record["cases"], main_batch(record)
    found = {
        "summary": _summary(cases, batch),
        "many": _fastest(cases, solution, batch, _superclose, f"of {batch} at a time"),
        "one": _fastest(cases, solution, 1, _superclose, "of one at a time"),
        "nets": _nets(cases, batch),
        "pod_net": _learned_from_solutions(cases, batch, "POD and a net"),
        "chaos": _learned_from_solutions(cases, batch, "polynomial chaos"),
        "bases": _bases(cases, batch),
        "outputs": _outputs(cases, batch),
        "gradients": _fastest(cases, gradient, batch, lambda case: GRADIENT_ERROR, GRADIENT_WORDS),
        "bounds": _bounds(cases),
        "paper": _paper(cases, batch),
    }
    return {key: text for key, text in found.items() if text}


def _superclose(case: Case) -> float:
    return float(case["facts"]["superclose"])


def _of_outputs(case: Case) -> float:
    return float(case["facts"]["output"])


# ---- who is first


def _fastest(cases: Sequence[Case], measure: Measure, batch: int, bound: Callable[[Case], float], what: str) -> str:
    """Which families answer first with at most the error, in how many cases, and by what factor before PETSc."""
    winners: dict[str, list[tuple[str, float]]] = {}
    without, ratios = [], []
    for case in cases:
        if not points(case["rows"], measure, batch):
            continue
        found = first_below(case["rows"], measure, batch, bound(case))
        if found is None:
            without.append(case["name"])
            continue
        winners.setdefault(found[0]["kind"], []).append((case["name"], found[1][0]))
        petsc = first_below(of_family(case["rows"], "PETSc"), measure, batch, bound(case))
        if petsc is not None:
            ratios.append(petsc[1][0] / found[1][0])
    if not winners:
        return ""
    ordered = sorted(winners.items(), key=lambda pair: _order(pair[0], len(pair[1])))
    parts = [
        f"{_words(family)} in {_count(mine)} ({', '.join(f'{name} {milliseconds(ms)} ms' for name, ms in mine)})"
        for family, mine in ordered
    ]
    below = " with an error below the mesh's superclose error" if bound is _superclose else ""
    text = f"Fastest {what}{below}: {'; '.join(parts)}."
    if without:
        text += f" No method is that accurate for {_names(without)}."
    if ratios and [family for family, _ in ordered] != ["PETSc"]:
        text += f" PETSc's fastest solver takes {_range(ratios)} times as long as the fastest."
    return text


# ---- methods that learn


def _summary(cases: Sequence[Case], batch: int) -> str:
    """Who answers first with the accuracy of the mesh, and what frame nets are for."""
    solutions, outputs = _winners(cases, solution, batch, _superclose), _winners(cases, output, batch, _of_outputs)
    if not solutions:
        return ""
    text = f"Below the mesh's own (superclose) error, {batch} solutions at a time are fastest by {solutions}."
    text += f" A few outputs below the mesh's error are fastest by {outputs}." if outputs else ""
    return f"{text} {_purpose(cases, batch)}".strip()


def _winners(cases: Sequence[Case], measure: Measure, batch: int, bound: Callable[[Case], float]) -> str:
    """Each family with the cases in which it is the first; empty if none is."""
    first: dict[str, list[str]] = {}
    without = []
    for case in cases:
        found = first_below(case["rows"], measure, batch, bound(case))
        if found is not None:
            first.setdefault(found[0]["kind"], []).append(case["name"])
        elif points(case["rows"], measure, batch):
            without.append(case["name"])
    ordered = sorted(first.items(), key=lambda pair: _order(pair[0], len(pair[1])))
    parts = [f"{_words(family)} ({_names(names)})" for family, names in ordered]
    if not parts:
        return ""
    return ", ".join([*parts, *([f"no method ({_names(without)})"] if without else [])])


def _nets(cases: Sequence[Case], batch: int) -> str:
    """What frame nets reach, whether they stand on the front, and what that makes them good for."""
    reached = {net: _reached(cases, batch, net) for net in NETS}
    parts = [f"of {_short(net)} {_range(found.values())}" for net, found in reached.items() if found]
    if not parts:
        return ""
    text = f"Errors in units of the mesh's superclose error: {' and '.join(parts)} times."
    return f"{text}{_better_in_their_time(cases, batch, NETS)} {_purpose(cases, batch)}"


def _purpose(cases: Sequence[Case], batch: int) -> str:
    """What frame nets are for: that depends on whether they stand on the front of solutions, or are first elsewhere."""
    seen = [case["name"] for case in cases if _reached([case], batch, *NETS)]
    ahead = [case["name"] for case in cases if _ahead(case, batch, *NETS)]
    if not seen:
        return ""
    first = _first_elsewhere(cases, batch)
    text = f"No frame net is on the Pareto front of error and time of solutions in any of {_problems(len(seen))}"
    if ahead:
        text = f"Frame nets are on the Pareto front of error and time of solutions {_where(ahead, len(seen))}"
    if first:
        text += f"{', and' if ahead else ', but'} one is the fastest way to {first}"
    if len(ahead) == len(seen):
        return f"{text}."
    return (
        f"{text}; otherwise the paper's nets are {PURPOSE}."
        if ahead or first
        else f"{text}: the paper's nets are {PURPOSE}."
    )


def _first_elsewhere(cases: Sequence[Case], batch: int) -> str:
    """For which other questions, in which cases, a frame net is the first that is accurate enough; empty if none."""
    questions: list[tuple[str, Measure, Callable[[Case], float]]] = [
        ("outputs below the mesh's own error", output, _of_outputs),
        (f"gradients in y {GRADIENT_WORDS}", gradient, lambda case: GRADIENT_ERROR),
    ]
    parts = []
    for words, measure, bound in questions:
        found = ((case["name"], first_below(case["rows"], measure, batch, bound(case))) for case in cases)
        names = [name for name, pair in found if pair is not None and pair[0]["kind"] in NETS]
        if names:
            parts.append(f"{words} in {_problems(len(names))} ({_names(names)})")
    return " and ".join(parts)


def _learned_from_solutions(cases: Sequence[Case], batch: int, family: str) -> str:
    found = _reached(cases, batch, family)
    if not found:
        return ""
    good = [name for name, ratio in found.items() if ratio <= 1]
    ahead = [case["name"] for case in cases if _ahead(case, batch, family)]
    text = (
        f"Errors of {_range(found.values())} times the mesh's superclose error, below it {_where(good, len(found))}, "
    )
    text += f"on the Pareto front of error and time {_where(ahead, len(found))}."
    return text + _better_in_their_time(cases, batch, (family,))


def _bases(cases: Sequence[Case], batch: int) -> str:
    """Galerkin's reduced bases, pyMOR's own and batched."""
    families = ("reduced basis by pyMOR", "reduced basis, batched")
    found = _reached(cases, batch, *families)
    if not found:
        return ""
    good = [name for name, ratio in found.items() if ratio <= 1]
    text = f"The largest are off by {_range(found.values())} times the mesh's superclose error, below it "
    text += f"{_where(good, len(found))}."
    times = []
    for case in cases:
        rows = [first_below(of_family(case["rows"], family), solution, batch, _superclose(case)) for family in families]
        others = [row for row in case["rows"] if row["kind"] not in families]
        first = first_below(others, solution, batch, _superclose(case))
        mine = [row[1][0] for row in rows if row is not None]
        if mine and first is not None:
            times.append(min(mine) / first[1][0])
    if times:
        text += f" There the fastest takes {_range(times)} times as long as the fastest other method."
    ahead = [case["name"] for case in cases if _ahead(case, batch, *families)]
    return f"{text} On the Pareto front of error and time {_where(ahead, len(found))}."


def _reached(cases: Sequence[Case], batch: int, *families: str) -> dict[str, float]:
    """The least error over the superclose error, by case."""
    found = {}
    for case in cases:
        best = most_accurate([row for row in case["rows"] if row["kind"] in families], solution, batch)
        if best is not None:
            found[case["name"]] = best[1][1] / _superclose(case)
    return found


def _ahead(case: Case, batch: int, *families: str) -> bool:
    return any(row["kind"] in families for row in front(case["rows"], solution, batch))


def _better_in_their_time(cases: Sequence[Case], batch: int, families: Sequence[str]) -> str:
    """How much less error others have in at most the time of the most accurate of the families."""
    ratios: list[float] = []
    names: Counter[str] = Counter()
    for case in cases:
        mine = most_accurate([row for row in case["rows"] if row["kind"] in families], solution, batch)
        others = [row for row in case["rows"] if row["kind"] not in families]
        if mine is None:
            continue
        other = error_within(others, solution, batch, mine[1][0])
        if other is not None and other[1][1] < mine[1][1]:
            ratios.append(mine[1][1] / other[1][1])
            names[other[0]["kind"]] += 1
    if not ratios:
        return ""
    leader = _words(names.most_common(1)[0][0])
    times = _range(ratios)
    return f" In at most their time others, most often {leader}, have {times} times less error in {_count(ratios)}."


# ---- outputs, bounds


def _outputs(cases: Sequence[Case], batch: int) -> str:
    text = _fastest(cases, output, batch, _of_outputs, f"of {batch} at a time with an error below the mesh's own")
    found, ahead = {}, []
    for case in cases:
        best = most_accurate(of_family(case["rows"], "a net for the outputs"), output, batch)
        if best is None:
            continue
        found[case["name"]] = best[1]
        if any(row["kind"] == "a net for the outputs" for row in front(case["rows"], output, batch)):
            ahead.append(case["name"])
    if not found:
        return text
    good = [name for name, point in found.items() if point[1] <= _of_outputs(_case(cases, name))]
    text += f" A net for the outputs takes {_range(ms for ms, _ in found.values())} ms, with an error of "
    text += f"{_range(100 * error for _, error in found.values())} % of their standard deviation, below the mesh's own "
    text += f"{_where(good, len(found))}, and is on the Pareto front {_where(ahead, len(found))}."
    return text.strip()


def _bounds(cases: Sequence[Case]) -> str:
    rows = [row for case in cases for row in case["rows"] if row.get("bound")]
    if not rows:
        return ""
    least, most = min(row["bound"]["least"] for row in rows), max(row["bound"]["most"] for row in rows)
    return f"{least:.2g} to {most:.2g} times the error, over all methods and cases that have them."


# ---- the paper's problem


def _paper(cases: Sequence[Case], batch: int) -> str:
    """Whether a frame net gains anything over reduced bases there."""
    case = next((case for case in cases if case["name"] == "paper"), None)
    if case is None:
        return ""
    net = most_accurate([row for row in case["rows"] if row["kind"] in NETS], solution, batch)
    bases = [row for row in case["rows"] if row["kind"] == "reduced basis, batched"]
    basis = None if net is None else first_below(bases, solution, batch, net[1][1])
    if net is None or basis is None:
        return ""
    text = f"The best frame net is off by {percent(net[1][1])} in {milliseconds(net[1][0])} ms, a reduced basis from "
    text += f"{basis[0]['solves']} solves ({basis[0]['method']}) by {percent(basis[1][1])} in "
    text += f"{milliseconds(basis[1][0])} ms, the mesh itself by {percent(case['facts']['error'])}."
    return f"{text} So a net gains nothing there." if basis[1][0] < net[1][0] else text


# ---- words


def _order(family: str, count: int) -> tuple[int, int]:
    """Families that are first most often come first."""
    return -count, FAMILIES.index(family)


def _case(cases: Sequence[Case], name: str) -> Case:
    return next(case for case in cases if case["name"] == name)


def _range(values: Iterable[float]) -> str:
    low, high = (f"{value(found):.2g}" for found in [list(values)] for value in (min, max))
    low, high = _plain(low), _plain(high)
    return low if low == high else f"{low} to {high}"


def _plain(text: str) -> str:
    """1.2e+03 as 1200."""
    return f"{float(text):.0f}" if "e+" in text else text


def _count(found: Any) -> str:
    return f"{len(found)} case{'s' * (len(found) != 1)}"


def _words(family: str) -> str:
    return WORDS.get(family, family)


def _problems(count: int) -> str:
    return f"{count} problem{'s' * (count != 1)}"


def _where(names: Sequence[str], total: int) -> str:
    if not names:
        return "in no case"
    return f"in {len(names)} of {total} cases ({', '.join(names)})"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names)


def _short(net: str) -> str:
    return {NETS[0]: "the paper's", NETS[1]: "the best recipe"}[net]
