"""The page of a scaling study: every number and every sentence on it come from the cells."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

from fem_frames.files import refuse_links, written_whole
from training.experiments.overview import duration
from training.run.records import check_pages
from training.scaling import machine_sections, sections
from training.scaling.cells import preset_of, read_cell
from training.scaling.presets import PRESETS

REPORT, PAGE, COMMAND = "scaling.json", "scaling.md", "fem-frames scale"
OWN = 0.8  # of a cell's time: with less of a processor, other programs disturbed it
TITLES = {
    "levels": ("The mesh", sections.levels),
    "parameters": ("The number of parameters", sections.parameters),
    "contrast": ("The contrast of the coefficient", sections.contrast),
    "training": ("Training to a fixed excess", sections.training),
    "processes": ("Processes", machine_sections.processes),
    "work": ("Many devices: a model", machine_sections.model),
    "memory": ("Memory", machine_sections.memory),
}


def collect(out: Path, pattern: str = "*") -> dict[str, Any]:
    """All cells of a study, None for those that have not been run to their end."""
    preset = preset_of(out)
    cells = {cell.name: read_cell(cell, out) for cell in preset.chosen(pattern)}

    def report_of(chosen: Mapping[str, Any]) -> dict[str, Any]:
        return {"preset": preset.name, "pattern": pattern, "cells": chosen, "figures": {}}

    found = {out / f"{name}.json": record for name, record in cells.items() if record is not None}
    check_pages(found, lambda some: page_text(report_of({path.stem: own for path, own in some.items()})), COMMAND)
    return report_of(cells)


def write_study(study: Path, folder: Path, pattern: str = "*", figures: bool = True) -> dict[str, Any]:
    """Writes page, JSON and figures of a study's folder into another one; counts the cells and names the figures."""
    refuse_links(study, deep=False)
    report = collect(study, pattern)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write to {folder}: {error.strerror or error}") from error
    if figures:
        from training.scaling.figures import draw_figures

        report["figures"] = draw_figures(report, folder)
    texts = {REPORT: json.dumps(report, indent=1, allow_nan=False) + "\n", PAGE: page_text(report)}
    for name, text in texts.items():
        with written_whole(folder / name) as file:
            file.write(text.encode())
    complete = sum(record is not None for record in report["cells"].values())
    return {"cells": len(report["cells"]), "complete": complete, "figures": list(report["figures"])}


def page_text(report: Mapping[str, Any]) -> str:
    """The study as Markdown."""
    return "\n".join(line for whole in _page(report) for line in _wrapped(whole)) + "\n"


def _wrapped(line: str) -> list[str]:
    """Prose in lines of at most 120 letters; tables, headings and pictures as they are."""
    if len(line) <= 120 or line.startswith(("|", "#", "!")):
        return [line]
    indent = "  " if line.startswith("- ") else ""
    return wrap(line, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _page(report: Mapping[str, Any]) -> Iterator[str]:
    cells = report["cells"]
    records = [record for record in cells.values() if record is not None]
    chosen = "" if report["pattern"] == "*" else f" --cells '{report['pattern']}'"
    yield f"# What answers and training feel, preset {report['preset']}: {PRESETS[report['preset']].text}"
    yield ""
    yield (
        f"Written by `fem-frames report` from the cells of `fem-frames scale --preset {report['preset']}{chosen}`; "
        f"[{REPORT}]({REPORT}) has every number. Sentences follow from the numbers by fixed rules: what changes by "
        f"less than a factor of {sections.SAME:g} is said to hardly change. A time is the least of several runs. "
        "`fem-frames scale --again --cells PATTERN` measures cells again."
    )
    yield ""
    yield f"- {len(records)} of {len(cells)} cells complete, {duration(sum(r['seconds'] for r in records))} in all"
    for text in sorted({_circumstances(record) for record in records}):
        yield f"- {text}"
    timed = [record for record in records if record["study"] != "memory"]
    disturbed = sum(record.get("cpu_seconds", 0.0) < OWN * record["seconds"] for record in timed)
    if disturbed:
        yield (
            f"- {disturbed} of {len(timed)} cells with times had less than {100 * OWN:.0f} % of a processor, or do not "
            "say how much they had (`cpu_seconds`): their times may be too long"
        )
    missing = [name for name, record in cells.items() if record is None]
    if missing:
        yield f"- not run: {', '.join(f'`{name}`' for name in missing)}"
    for study, (title, lines) in TITLES.items():
        if not sections.of_study(records, study):
            continue
        yield from ("", f"## {title}", "")
        yield from lines(records)
        for name, caption in report["figures"].items():
            if name.startswith(f"{study}."):
                yield from ("", f"![{caption}]({name})")


def _circumstances(record: Mapping[str, Any]) -> str:
    machine = record["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    threads = record["threads"]
    where = f"{machine['cores']} cores ({machine['architecture']})"
    return f"run with {threads} thread{'s' * (threads > 1)} on a machine with {where}; {versions}"
