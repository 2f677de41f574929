"""`fem-frames report`: tables and figures from the runs of an experiment."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from fem_frames.commands.shared import declare, declare_cells, progress_bar, show
from fem_frames.files import written_whole

INITIALISATION = "initialisation.png"


def add(subparsers: Any) -> None:
    parser = declare(
        subparsers,
        "report",
        run,
        "Collects what is there of an experiment into Markdown, JSON and figures, with the paper's values beside it. "
        "Runs that are missing or at work are shown as such.",
    )
    parser.add_argument(
        "experiment",
        type=Path,
        metavar="DIR",
        help="folder of `tables`; or a report.json, to be drawn anew; or a comparison.json of demo_comparison.py",
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default: DIR/report")
    parser.add_argument(
        "--fresh-seed", type=int, metavar="S", help="also evaluate all nets on 1000 new samples, drawn with this seed"
    )
    parser.add_argument(
        "--add",
        type=Path,
        action="append",
        default=[],
        metavar="REPORT.json",
        help="take cells that are not complete here from this report, made before or on another machine",
    )
    declare_cells(parser)
    parser.add_argument("--no-figures", action="store_true", help="Markdown and JSON only; needs no matplotlib")


def run(parsed: argparse.Namespace) -> None:
    from training.experiments.comparison import PICTURE, write_comparison
    from training.experiments.merge import fill_in
    from training.experiments.report import REPORT, collect, write_page

    from_runs = not parsed.experiment.is_file()
    if from_runs and not parsed.experiment.is_dir():
        raise ValueError(f"there is no folder {parsed.experiment}: give the one that was --out of `fem-frames tables`")
    if parsed.fresh_seed is not None and (parsed.fresh_seed < 0 or not from_runs):
        raise ValueError("--fresh-seed is not negative, and goes with the folder of an experiment")
    if (parsed.cells != "*" or parsed.add) and not from_runs:
        raise ValueError("--cells and --add are about runs: give the folder of an experiment")
    others = {path: _load(path) for path in parsed.add}  # before any work
    for path, other in others.items():
        if "preset" not in other:
            raise ValueError(f"--add {path}: that is a comparison, not the report of an experiment")
    fresh = None if parsed.fresh_seed is None else _evaluate(parsed.experiment, parsed.fresh_seed, parsed.cells)
    report = collect(parsed.experiment, fresh=fresh, cells=parsed.cells) if from_runs else _load(parsed.experiment)
    for path, other in others.items():
        report = fill_in(report, other, str(path))
    out = parsed.out or (parsed.experiment / "report" if from_runs else parsed.experiment.parent)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write to {out}: {error.strerror or error}") from error
    if "problems" in report:
        _copy(parsed.experiment.with_name(PICTURE), out / PICTURE)
        write_comparison(report, out)
        show({"out": str(out), "problems": [found["problem"] for found in report["problems"]]}, parsed.json)
        return
    if not parsed.no_figures:
        for path in [*parsed.add] if from_runs else [parsed.experiment]:
            _copy(path.with_name(INITIALISATION), out / INITIALISATION)  # what JSON does not have
        report["figures"] = _draw(report, parsed.experiment if from_runs else None, out)
    with written_whole(out / REPORT) as file:
        file.write((json.dumps(report, indent=1, allow_nan=False) + "\n").encode())
    write_page(report, out)
    cells = {row["cell"]: row["status"] for table in report["tables"] for row in table["rows"]}
    complete = sum(status in ("done", "diverged") for status in cells.values())
    show({"cells": len(cells), "complete": complete, "out": str(out), "figures": list(report["figures"])}, parsed.json)


def _load(path: Path) -> dict[str, Any]:
    from training.experiments.comparison import is_comparison

    try:
        report = json.loads(path.read_text())
        whole = {"preset", "text", "tables", "curves", "protocol", "figures", "circumstances"}
        known = whole <= set(report) or is_comparison(report)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read as a report: {error}") from error
    if not known:
        raise ValueError(f"{path} is no report of fem-frames: give a report.json, or the folder of an experiment")
    return dict(report)


def _copy(source: Path, target: Path) -> None:
    if source.is_file() and source.resolve() != target.resolve():
        with written_whole(target) as file:
            file.write(source.read_bytes())


def _evaluate(experiment: Path, seed: int, chosen: str) -> dict[str, Any]:
    from training.experiments.fresh import evaluate_fresh
    from training.experiments.protocol import PRESETS
    from training.experiments.runner import preset_of

    cells = PRESETS[preset_of(experiment)].cells(experiment, cells=chosen)
    with progress_bar("evaluated", wanted=True) as progress:
        return evaluate_fresh(cells, seed, progress)


def _draw(report: dict[str, Any], experiment: Path | None, out: Path) -> dict[str, str]:
    """The captions of all pictures in the folder, by file name."""
    from training.experiments.figures import SAMPLES, draw_figures, draw_initialisation

    captions = draw_figures(report, out)
    caption = "Nets with random weights, with and without frame"
    if experiment is not None and report["preset"] != "best":
        from training.experiments.initialisation import frame_of_cells, random_functions
        from training.experiments.protocol import PRESETS

        arrays = frame_of_cells(experiment)
        if arrays is not None:
            values = random_functions(arrays, PRESETS[report["preset"]].base, SAMPLES)
            draw_initialisation(values, arrays.points[:, 0], out / INITIALISATION)
    return captions | ({INITIALISATION: caption} if (out / INITIALISATION).exists() else {})
