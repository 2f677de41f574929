"""The page of `demos/demo_comparison.py`: Markdown from its comparison.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fem_frames.files import written_whole
from training.experiments.markdown import markdown_row, short
from training.experiments.overview import duration

PAGE, PICTURE = "comparison.md", "comparison.png"
COMMAND = "python demos/demo_comparison.py --run QUARTERS --run INCLUSION --out FOLDER"
HEADINGS = ("method", "solves", "offline", "1000 queries", "loss above the floor", "MRE", "error of ∇u")


def is_comparison(record: Mapping[str, Any]) -> bool:
    """Whether the record was written by the demo."""
    problems = record.get("problems")
    whole = {"problem", "formulation", "levels", "seed", "floor", "rows", "curves", "verdicts", "run", "versions"}
    return isinstance(problems, list) and all(whole <= set(p) for p in problems)


def write_comparison(record: Mapping[str, Any], folder: Path) -> None:
    with written_whole(folder / PAGE) as file:
        file.write(comparison_text(record, (folder / PICTURE).exists()).encode())


def comparison_text(record: Mapping[str, Any], drawn: bool = False) -> str:
    """The page as Markdown, with the picture if it has been drawn."""
    return "\n".join(_page(record, drawn)) + "\n"


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


def _page(record: Mapping[str, Any], drawn: bool) -> Iterator[str]:
    yield "# What a numerical analyst would do instead"
    yield ""
    yield f"Written by `fem-frames report comparison.json`, which `{COMMAND}` made."
    yield "All queries were timed in one process."
    for found in record["problems"]:
        yield ""
        yield f"## {found['problem']}: {found['formulation']}, J = {found['levels']}"
        yield ""
        floor = f", floor {found['floor']:.4e}" if found["floor"] > 0 else ""
        yield f"{found['test_samples']} test samples{floor}, seed {found['seed']}, {found['threads']} thread(s)."
        if found["run"]:
            run = found["run"]
            how = ", ".join(f"{name} {value}" for name, value in run["settings"].items())
            yield f"Frame net: {run['parameters']} parameters; {how}; trained with {run['threads']} thread(s)."
        yield ""
        yield markdown_row(HEADINGS)
        yield markdown_row(["---"] * len(HEADINGS))
        for row in found["rows"]:
            offline = "–" if row["offline_s"] is None else _time(row["offline_s"])
            errors = [short(row[key]) for key in ("excess", "mre", "h1_error")]
            yield markdown_row([row["method"], row["solves"], offline, _time(row["query_1000_s"]), *errors])
        projection = found["curves"].get("POD projection")
        if projection:
            yield ""
            yield "Best approximation by N POD modes, error of ∇u: " + ", ".join(
                f"{error:.3f} (N = {modes})" for modes, error in projection
            )
        for line in found["verdicts"]:
            yield ""
            yield line
    if drawn:
        yield ""
        yield f"![Error against the number of modes and against the time of 1000 queries]({PICTURE})"
    for versions in {str(p["versions"]): p["versions"] for p in record["problems"]}.values():
        yield ""
        yield ", ".join(f"{name} {version}" for name, version in versions.items())
