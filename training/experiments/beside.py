"""The paper's values beside those of both scalings of the hats: tables, counts and a picture.

The ratio of a value is ours over the paper's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fem_frames.studies.plots import new_figure, save
from fem_frames.studies.solution_plots import COLORS
from training.experiments.markdown import markdown_row, short

PICTURE = "beside.png"
FACTOR = 3.0
"""Values agree if they differ by at most this factor."""
QUANTITIES = ("loss", "mre")
WORDS = {"loss": "loss", "mre": "MRE"}


def beside(report: Mapping[str, Any], other: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What a report needs of another one, called `name`, with the other scaling: the values of all its cells."""
    if report["scaling"] is None or other["scaling"] is None:
        raise ValueError(f"--beside {name}: only the paper's tables have scalings")
    if other["scaling"] == report["scaling"]:
        raise ValueError(f"--beside {name} has {other['scaling']} hats too: give a report with the other scaling")
    if other["preset"] != report["preset"]:
        raise ValueError(f"--beside {name} is of the preset {other['preset']}, this experiment of {report['preset']}")
    rows = (row for table in other["tables"] for row in table["rows"])
    keys = (*QUANTITIES, "status", "epochs", "steps_per_epoch")
    return {"scaling": other["scaling"], "cells": {row["cell"]: {key: row[key] for key in keys} for row in rows}}


def beside_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The section of the page: a table for each of the paper's, and how many values agree."""
    scalings = [report["scaling"], report["beside"]["scaling"]]
    yield "## The paper, and both scalings"
    yield ""
    yield (
        f"Each value with its ratio to the paper's, bold where they differ by at most a factor of {FACTOR:g}; – where "
        "a run has no value. Steps per epoch of SGD and Adam may differ between the scalings; the protocols say so."
    )
    for table in report["tables"]:
        yield ""
        yield f"### Table {table['name']}"
        yield ""
        pairs = [f"{WORDS[q]}, {s}" for q in QUANTITIES for s in ("paper", *scalings)]
        headings = [*table["columns"], *pairs]
        yield markdown_row(headings)
        yield markdown_row(["---"] * len(headings))
        for row in (row for row in table["rows"] if row["paper"]):
            entries = []
            for quantity in QUANTITIES:
                printed = row["paper"][quantity]
                entries += [short(printed), *(_entry(value, printed) for value in _values(report, row, quantity))]
            yield markdown_row([*row["labels"], *entries])
    yield ""
    for quantity in QUANTITIES:
        told = []
        for number, scaling in enumerate(scalings):
            ratios = [found[number] for found in _ratios(report, quantity).values()]
            known = [ratio for ratio in ratios if ratio is not None]
            told.append(f"{scaling} {sum(map(agrees, known))} of {len(known)}")
        yield f"- {WORDS[quantity]} within a factor of {FACTOR:g} of the paper's: {', '.join(told)} cells with values"
    missing = sum(values[0] is None for values in _ratios(report, "loss").values())
    if missing:
        yield f"- {missing} cells with {scalings[0]} hats have no value: not run, not finished or not finite"


def agrees(ratio: float) -> bool:
    """Whether a ratio counts as agreement."""
    return 1 / FACTOR <= ratio <= FACTOR


def _values(report: Mapping[str, Any], row: Mapping[str, Any], quantity: str) -> tuple[float | None, float | None]:
    """The value of this report and that of the other one."""
    return row[quantity], report["beside"]["cells"].get(row["cell"], {}).get(quantity)


def _entry(value: float | None, printed: float) -> str:
    if value is None:
        return "–"
    text = f"{short(value)}, {value / printed:.2g}"
    return f"**{text}**" if agrees(value / printed) else text


def _ratios(report: Mapping[str, Any], quantity: str) -> dict[str, tuple[float | None, float | None]]:
    """The ratios of both scalings to the paper by cell; a cell counts once, though two tables may have it."""
    found = {}
    for row in (row for table in report["tables"] for row in table["rows"] if row["paper"]):
        printed = row["paper"][quantity]
        first, second = (None if v is None else v / printed for v in _values(report, row, quantity))
        found[row["cell"]] = first, second
    return found


def draw_beside(report: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Draws the ratios of all cells; the caption by file name."""
    scalings: Sequence[str] = [report["scaling"], report["beside"]["scaling"]]
    ratios = {quantity: _ratios(report, quantity) for quantity in QUANTITIES}
    cells = list(ratios["loss"])
    figure = new_figure(11.0, 1.6 + 0.24 * len(cells))
    for axes, quantity in zip(figure.subplots(1, len(QUANTITIES), sharey=True), QUANTITIES, strict=True):
        axes.axvspan(1 / FACTOR, FACTOR, color="gainsboro", zorder=0)
        axes.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
        for number, (scaling, marker) in enumerate(zip(scalings, "os", strict=True)):
            known = [(found[number], place) for place, found in enumerate(ratios[quantity].values())]
            shown = [(ratio, place) for ratio, place in known if ratio is not None]
            x, y = zip(*shown, strict=True) if shown else ((), ())
            axes.plot(x, y, marker, color=COLORS[number], label=scaling, markersize=6 - 2 * number, linestyle="none")
        axes.set_xscale("log")
        axes.set(title=WORDS[quantity], xlabel="ours over the paper's")
        axes.set_yticks(range(len(cells)), cells, fontsize=7)
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylim(len(cells) - 0.5, -0.5)
    figure.axes[0].legend(fontsize=8)
    save(figure, folder / PICTURE)
    caption = f"Loss and MRE over the paper's, for both scalings of the hats; grey: within a factor of {FACTOR:g}"
    return {PICTURE: caption}
