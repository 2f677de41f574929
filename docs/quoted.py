"""Writes what pages quote from measurements: tables, numbers and sentences that follow from JSON files.

    python docs/quoted.py [--check]

A page has them between <!-- quoted: NAME --> and <!-- end of NAME -->; the functions of QUOTES make them. With --check
nothing is written, and pages that differ are named; tests/test_docs.py does that too.
"""

import json
import re
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/queries.md", "docs/results/README.md")
MARKED = re.compile(r"<!-- quoted: ([\w-]+) -->(.*?)<!-- end of \1 -->", re.DOTALL)
RESULTS = ROOT / "docs" / "results"
COMPARISONS = ("comparison", "comparison-quick")  # the first one that is there is quoted
PROBLEMS = {
    "`disks`": "disks",
    "`disks`, `count=4`": "disks4",
    "`waves`": "waves",
    "`spot`": "spot",
    "`disks`, J = 8": "disks8",
    "`cube`, J = 4": "cube4",
    "`cube`, J = 5": "cube5",
    "plate": "plate",
}
RATIOS = {
    "multigrid / D": "multigrid / D",
    "coefficient, load, set-up / solve": "coefficient, load, set-up / solve",
    "frame / multigrid": "frame / multigrid",
    "PETSc's fastest / multigrid": "PETSc / multigrid",
    "output and gradient / output": "output and gradient / output",
    "Chebyshev / learned (2, 1)": "Chebyshev / learned (2, 1)",
    "the same, solve alone": "Chebyshev / learned (2, 1), solve alone",
}
RIVALS = {
    "Galerkin reduced basis": "Galerkin",
    "polynomial chaos": "polynomial chaos",
    "POD and a net": "POD and net",
    "frame net": "surrogate",
}


def queries(name: str) -> dict[str, Any]:
    """A file of `fem-frames bench --queries --json`."""
    return dict(json.loads((RESULTS / "queries" / f"{name}.json").read_text()))


def comparison() -> tuple[str, dict[str, Any]]:
    """The folder of the comparison that is quoted, and its JSON."""
    name = next(name for name in COMPARISONS if (RESULTS / name / "comparison.json").exists())
    return name, json.loads((RESULTS / name / "comparison.json").read_text())


def table(lines: Sequence[Sequence[Any]]) -> str:
    """Markdown with a line of its own for each row; the first one is the heading."""
    rows = ["| " + " | ".join(map(str, line)) + " |" for line in lines]
    return "\n".join(["", rows[0], "|" + "---|" * len(lines[0]), *rows[1:], ""])


def fastest(rows: Sequence[Mapping[str, Any]], kind: str, error: float = 1e-3) -> float:
    """Milliseconds of the fastest row of a kind with at most this error."""
    return min(row["ms"] for row in rows if row["kind"] == kind and row["error"] is not None and row["error"] <= error)


# ---- what is quoted


def headline() -> str:
    rows = queries("disks")["rows"]
    own, petsc = fastest(rows, "multigrid"), fastest(rows, "PETSc")
    return (
        f"{own:.3f} ms per solution to an error of 1e-3 on one core, where PETSc's fastest solver takes {petsc:.1f} ms"
    )


def queries_disks() -> str:
    rows = queries("disks")["rows"]
    shown = [row for row in rows if row["kind"] != "multigrid" or "(2, 2)" in row["method"]]

    def digits(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    lines = [
        (
            row["method"],
            f"{row['ms']:.4f}",
            digits(row["solve_ms"], ".4f"),
            digits(row["error"], ".1e"),
            f"{row['over_D']:.1f}",
        )
        for row in shown
    ]
    return table([("method", "ms", "solve alone", "error", "over D"), *lines])


def queries_problems() -> str:
    files = [queries(name) for name in PROBLEMS.values()]

    def two(value: float | None) -> str:
        return "" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.2g}"

    lines: list[Sequence[Any]] = [("", *PROBLEMS)]
    lines.append(("unknowns", *(file["rows"][0]["unknowns"] for file in files)))
    lines.append(("multigrid, ms", *(two(fastest(file["rows"], "multigrid")) for file in files)))
    lines += [(title, *(two(file["ratios"].get(key)) for file in files)) for title, key in RATIOS.items()]
    return table(lines)


def queries_elastic() -> str:
    found = queries("elastic")
    rows = found["rows"]
    return (
        f"{fastest(rows, 'multigrid'):.2g} ms per solution with {rows[0]['unknowns']} unknowns to an error of 1e-3, "
        f"PETSc's fastest solver {fastest(rows, 'PETSc'):.2g} ms; C_y, load and set-up take "
        f"{found['ratios']['coefficient, load, set-up / solve']:.2g} times as long as the solve"
    )


def queries_growth() -> str:
    first, second = ([f"{row['ns']:.1f}" for row in queries(name)["rows"]] for name in ("growth", "growth_2"))
    levels = [str(row["levels"]) for row in queries("growth")["rows"]]
    return f"{series(first)} ns for J = {series(levels)}, and {series(second)} in a second run"


def queries_rivals() -> str:
    names = {"`disks`, `count=4`": "disks4", "`waves`": "waves", "`spot`": "spot"}
    lines: list[Sequence[str]] = [("", *names)]

    def entry(rows: Sequence[Mapping[str, Any]], start: str) -> str:
        row = next(row for row in rows if row["method"].startswith(start))
        percent = 100 * row["error"]
        return f"{percent:.1f} %, {row['ms']:.3f}" if percent >= 1 else f"{percent:.2f} %, {row['ms']:.3f}"

    for title, start in RIVALS.items():
        lines.append((title, *(entry(queries(f"rivals_{name}")["rows"], start) for name in names.values())))
    for start in ("learned (1, 1)", "learned (2, 2)"):
        lines.append((start, *(entry(queries(name)["rows"], start) for name in names.values())))
    return table(lines)


def summary() -> str:
    return str(comparison()[1]["verdicts"]["summary"])


def link() -> str:
    name, record = comparison()
    return f"[a comparison of {len(record['cases'])} problems](docs/results/{name}/comparison.md)"


def what_to_use() -> str:
    """The sentences of the comparison as a list."""
    sys.path.insert(0, str(ROOT))
    from training.comparison.verdicts import TITLES

    name, record = comparison()
    lines = [f"- **{title}** {record['verdicts'][key]}" for key, title in TITLES.items() if key in record["verdicts"]]
    return "\n".join(["", f"From [{name}/comparison.md]({name}/comparison.md):", "", *lines, ""])


def experiment(name: str) -> dict[str, dict[str, Any]]:
    """The cells of a report of `fem-frames report`, by name."""
    report = json.loads((RESULTS / name / "report.json").read_text())
    return {row["cell"]: row for table in report["tables"] for row in table["rows"]}


def hats_paper() -> str:
    """Losses of Adam over the paper's with both scalings."""
    printed, normalised = experiment("cpu-printed"), experiment("cpu")
    names = [f"full-adam-stable-{precision}" for precision in ("float32", "float64", "float16")]

    def ratios(cells: Mapping[str, Any]) -> str:
        return series([f"{cells[name]['loss'] / cells[name]['paper']['loss']:.2g}" for name in names])

    return (
        f"the losses of Adam through DᵀC_yD end at {ratios(printed)} times the paper's in float32, float64 and "
        f"float16, with normalised hats at {ratios(normalised)} times"
    )


def hats_steps() -> str:
    """Losses over the paper's by the number of steps per epoch."""
    cells = [row for name, row in experiment("hats").items() if name.startswith("steps-") and row["loss"] is not None]

    def ratios(optimizer: str) -> dict[str, float]:
        return {r["labels"][1]: r["loss"] / r["paper"]["loss"] for r in cells if r["optimizer"] == optimizer}

    sgd, adam = ratios("sgd"), ratios("adam")
    both = [steps for steps in sgd if steps in adam]
    best = min(both, key=lambda steps: max(max(r[steps], 1 / r[steps]) for r in (sgd, adam)))
    words = (series([f"{found[steps]:.2g}" for steps in both]) for found in (sgd, adam))
    return (
        f"With {series(both)} steps per epoch SGD ends at {next(words)} times the paper's loss, Adam at {next(words)} "
        f"times: the larger of both factors is least with {best}"
    )


def hats_decay() -> str:
    """Where the losses are least, and what the condition number is there."""
    cells = experiment("hats")
    conditions = json.loads((RESULTS / "hats" / "report.json").read_text())["conditions"]
    told = []
    for optimizer, title in (("adam", "Adam"), ("soap", "SOAP")):
        losses = {n.split("-")[-1]: r["loss"] for n, r in cells.items() if n.startswith(f"decay-{optimizer}-")}
        best = min(losses, key=lambda s: losses[s])
        gain = losses["0"] / losses[best]
        told.append(f"that of {title} is least at s = {best}, {losses[best]:.1e}, {gain:.0f} times less than at s = 0")
    grown = ", ".join(f"{conditions[s]:.2g} for s = {s}" for s in ("0", "0.5", "1", "2"))
    return f"{'; '.join(told)}. The condition number of HᵀA_yH is {grown}"


def series(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


QUOTES: dict[str, Callable[[], str]] = {
    "headline": headline,
    "queries-disks": queries_disks,
    "queries-problems": queries_problems,
    "queries-elastic": queries_elastic,
    "queries-growth": queries_growth,
    "queries-rivals": queries_rivals,
    "hats-paper": hats_paper,
    "hats-steps": hats_steps,
    "hats-decay": hats_decay,
    "summary": summary,
    "link": link,
    "what-to-use": what_to_use,
}


def renewed(text: str) -> str:
    """The page with all that it quotes made again; sentences with the same words keep their line breaks."""

    def quote(found: re.Match[str]) -> str:
        name, old = found.groups()
        new = QUOTES[name]()
        if "\n" not in new and old.split() == new.split():
            new = old
        return f"<!-- quoted: {name} -->{new}<!-- end of {name} -->"

    return MARKED.sub(quote, text)


def outdated() -> list[str]:
    """The pages that quote what their files no longer say."""
    return [page for page in PAGES if renewed((ROOT / page).read_text()) != (ROOT / page).read_text()]


if __name__ == "__main__":
    parser = ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is to be written")
    check = parser.parse_args().check
    pages = outdated()
    for page in () if check else pages:
        (ROOT / page).write_text(renewed((ROOT / page).read_text()))
    print("\n".join(pages) or "all pages quote what their files say")
    sys.exit(check and bool(pages))
