"""Collects the cells of a comparison as JSON, and writes them as a page with figures.

Every number and every sentence about numbers on the page follows from the JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fem_frames.files import check_file, one_line, written_whole
from training.comparison.cases import Comparison
from training.comparison.cells import VERSION, Cell, cells_of, comparison_of
from training.comparison.tables import case_lines, overview_lines
from training.comparison.verdicts import TITLES, verdicts
from training.run.records import check_pages

REPORT, PAGE = "comparison.json", "comparison.md"
EXTRAS = ("pymor", "chaospy")
VERSIONS = ("fem-frames", "python", "torch", "numpy", "scipy", "dolfinx", "petsc", *EXTRAS)
OUTPUTS = "8 point values and the mean of the first field"


def collect(out: Path, pattern: str = "*") -> dict[str, Any]:
    """All measurements of the folder in the form of the JSON."""
    comparison, cells = comparison_of(out), cells_of(comparison_of(out), out, pattern)
    found = {cell.result: record for cell in cells if (record := cell.read()) is not None}
    if not found:
        raise ValueError(f"no cell of {out} has been measured yet: `fem-frames compare` does that")

    def record_of(chosen: Mapping[Path, Any]) -> dict[str, Any]:
        return _record(comparison, pattern, cells, chosen)

    check_pages(found, lambda chosen: page_text(record_of(chosen)), "fem-frames compare")
    return record_of(found)


def _record(
    comparison: Comparison, pattern: str, cells: Sequence[Cell], measured: Mapping[Path, Any]
) -> dict[str, Any]:
    """The JSON of cells with what was measured, by the files of their results."""
    cases: dict[str, dict[str, Any]] = {}
    circumstances: dict[str, dict[str, Any]] = {}
    for cell in cells:
        case = cases.setdefault(
            cell.case.name,
            {**asdict(cell.case), "mesh": cell.case.mesh, "rows": [], "missing": []},
        )
        found = measured.get(cell.result)
        if found is None:
            case["missing"].append(cell.method)
            continue
        case["facts"] = found["facts"]
        case["rows"] += [{**row, "cell": cell.name} for row in found["rows"]]
        case["seconds"] = case.get("seconds", 0.0) + found["seconds"]
        known = {key: found[key] for key in ("threads", "workers", "versions")}
        entry = circumstances.setdefault(json.dumps(known, sort_keys=True), {**known, "cells": 0})
        entry["cells"] += 1
    record: dict[str, Any] = {
        "version": VERSION,
        "comparison": comparison.name,
        "text": comparison.text,
        "cells": pattern,
        "effort": asdict(comparison.effort),
        "cases": [case for case in cases.values() if case["rows"]],
        "not_measured": [f"{case['name']}-{method}" for case in cases.values() for method in case["missing"]],
        "circumstances": list(circumstances.values()),
        "figures": {},
    }
    return record | {"verdicts": verdicts(record)}


def is_comparison_file(path: Path) -> bool:
    """Whether a file is the JSON of a comparison, of whatever version."""
    try:
        found = json.loads(check_file(path).read_text())
        return "comparison" in found and "cases" in found
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def read_comparison(path: Path) -> dict[str, Any]:
    """Reads the JSON of a comparison; a ValueError names the file."""
    try:
        record: dict[str, Any] = json.loads(check_file(path).read_text())
        if record["version"] != VERSION:
            raise ValueError(f"it is of version {record['version']}, this fem-frames writes {VERSION}")
        record = {**record, "verdicts": verdicts(record)}  # by the rules of this version
        page_text(record)
    except KeyError as error:
        raise ValueError(f"{path} cannot be read as a comparison: it has no {error.args[0]!r}") from error
    except Exception as error:  # wrong types in the file can raise anything
        raise ValueError(f"{path} cannot be read as a comparison: {one_line(error)}") from error
    return record


def write_comparison(record: Mapping[str, Any], folder: Path) -> None:
    """Writes JSON and page, after making both."""
    texts = {REPORT: json.dumps(record, indent=1, allow_nan=False) + "\n", PAGE: page_text(record)}
    for name, text in texts.items():
        with written_whole(folder / name) as file:
            file.write(text.encode())


def page_text(record: Mapping[str, Any]) -> str:
    """The page as Markdown."""
    return "\n".join(_page(record)) + "\n"


def _page(record: Mapping[str, Any]) -> Iterator[str]:
    name = record["comparison"]
    yield f"# What to use when: comparison {name}"
    yield ""
    chosen = "" if record["cells"] == "*" else f" --cells '{record['cells']}'"
    yield f"Written by `fem-frames report DIR{chosen}` from `fem-frames compare --preset {name} --out DIR`,"
    yield f"{record['text']}. All numbers are in [{REPORT}]({REPORT}); sentences with numbers follow from it by rules."
    yield ""
    for key, title in TITLES.items():
        if key in record["verdicts"]:
            yield f"- **{title}** {record['verdicts'][key]}"
    yield ""
    yield from overview_lines(record)
    yield ""
    yield "## How it was measured"
    yield ""
    yield from (f"- {line}" for line in (*protocol_lines(record["effort"]), *_circumstances(record)))
    for case in record["cases"]:
        yield ""
        yield f"## {case['name']}: {case['title']}"
        yield ""
        yield from case_lines(case, record["effort"])
        picture = f"{case['name']}.png"
        if picture in record["figures"]:
            yield ""
            yield f"![{record['figures'][picture]}]({picture})"


def protocol_lines(effort: Mapping[str, Any]) -> Iterator[str]:
    """What is measured, and how much is done for each method."""
    batches = " and ".join(map(str, effort["batches"]))
    most = max(batch for batch in effort["batches"] if batch <= 64)
    yield (
        f"Errors are means over {effort['samples']} samples that no method has seen, relative to the discrete "
        "solutions, "
        "in the norm of the energy's second derivative there, which is the energy norm of linear problems. Methods "
        "that "
        f"take one sample at a time answer {effort['petsc']} of them."
    )
    yield (
        f'{effort["fine_samples"]} samples are also solved on a finer mesh, and "finer mesh" is the error against '
        "these. "
        "The mesh's own error is that of the discrete solutions against them, its superclose error that against their "
        "interpolation: errors below that say nothing about how good a method is."
    )
    yield (
        f"Times are milliseconds per sample when {batches} are asked for at a time, the least of at least three runs "
        "and "
        f"of {effort['seconds']:g} s, with everything that depends on y, such as coefficients and set-up. Parts and "
        f"gradients are for {most} samples."
    )
    yield (
        f"Frame nets are trained for about {effort['training']:g} s on the energy or the least-squares functional. "
        "Nets "
        f"for POD modes have as much, of which snapshots, at most {effort['solves']} by batched solves, take a third "
        "at "
        f"most. Polynomial chaos has the same snapshots, and at most {effort['polynomials']} polynomials, by chaospy "
        f"{effort['polynomials'] // 8}. Modes are made of {effort['basis']} snapshots, or fewer on fine meshes. "
        "pyMOR's "
        f"greedy algorithm chooses at most {effort['greedy']} functions. Learned cycles are trained for "
        f"{effort['learn']} steps, without solutions."
    )
    yield (
        "Where coefficients are not affine in y, pyMOR's models have terms from empirical interpolation, whose error "
        'is part of theirs; bases whose reduction would take too long are left out. "assembled" are Galerkin solutions '
        "in the same bases without it."
    )
    yield (
        f"Outputs are {OUTPUTS}; their error is the root of the mean square over their standard deviation, the mean "
        "over outputs. The gradient is that of a misfit of outputs to data in y, against the discrete one."
    )
    yield (
        "The bound of `certify` is divided by the error in the bound's norm: least to largest of 8 samples; – where "
        "there "
        "is none, or where errors are those of rounding."
    )


def _circumstances(record: Mapping[str, Any]) -> Iterator[str]:
    """How fast the machine was in each case, versions, and what is missing."""
    for case in record["cases"]:
        speeds = [1e3 * row["D_ms"] for row in case["rows"]]
        yield (
            f"{case['name']}: {case['seconds']:.0f} s in all; D forward and backward took {min(speeds):.3g} to "
            f"{max(speeds):.3g} µs per sample in its cells, and times of different cells compare up to that."
        )
    found = record["circumstances"]
    for known in found:
        versions = known["versions"]
        text = ", ".join(f"{name} {versions[name]}" for name in VERSIONS if name in versions)
        beside = ", alone"
        if known["workers"] > 1:
            beside = f", {known['workers']} cells at a time, which disturb each other's times"
        count = f"{known['cells']} cells with {known['threads']} thread(s){beside}"
        yield f"{count}; multigrid {versions['multigrid']}; {text}"
    if record["not_measured"]:
        yield f"not measured: {', '.join(record['not_measured'])}"
    absent = [name for name in EXTRAS if any(known["versions"][name] == "absent" for known in found)]
    if absent:
        yield f'without {" and ".join(absent)} rows are missing: `pip install "fem-frames[compare]"`'
