"""`fem-frames report`: makes tables and figures from the runs of an experiment."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fem_frames.commands.shared import declare, declare_cells, progress_bar, show
from fem_frames.files import check_writable, is_there, refuse_links, written_whole

INITIALISATION = "initialisation.png"


def add(subparsers: Any) -> None:
    parser = declare(
        subparsers,
        "report",
        run,
        "Collects the runs of an experiment into Markdown, JSON and figures, beside the paper's values, or the cells "
        "of a comparison. Runs that are missing or still at work are marked.",
    )
    parser.add_argument(
        "experiment",
        type=Path,
        metavar="DIR",
        help="folder of `tables`, `compare` or `scale`; or a report.json or comparison.json, to be drawn again",
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
        help="take incomplete cells from this report, made earlier or on another machine",
    )
    parser.add_argument(
        "--beside",
        type=Path,
        metavar="REPORT.json",
        help="a report with the other scaling of the hats: compare the paper, this and that cell by cell",
    )
    declare_cells(parser)
    parser.add_argument("--no-figures", action="store_true", help="Markdown and JSON only; needs no matplotlib")


def run(parsed: argparse.Namespace) -> None:
    from training.scaling.cells import is_scale_folder

    if is_scale_folder(parsed.experiment):
        _report_scaling(parsed)
        return
    from training.experiments.earlier_reports import read_report
    from training.experiments.report import PAGE, REPORT, write_report

    from_runs = not (is_there(parsed.experiment) and parsed.experiment.is_file())
    if from_runs and not parsed.experiment.is_dir():
        raise ValueError(
            f"there is no folder {parsed.experiment}: give the one that was --out of `fem-frames tables` or `compare`"
        )
    if _is_comparison(parsed.experiment):
        _report_comparison(parsed, from_runs)
        return
    if parsed.fresh_seed is not None and (parsed.fresh_seed < 0 or not from_runs):
        raise ValueError("--fresh-seed is not negative, and goes with the folder of an experiment")
    if (parsed.cells != "*" or parsed.add or parsed.beside) and not from_runs:
        raise ValueError("--cells, --add and --beside are about runs: give the folder of an experiment")
    if from_runs:
        refuse_links(parsed.experiment, deep=False)
        refuse_links(parsed.experiment / "report")
    report = _collect(parsed) if from_runs else read_report(parsed.experiment)
    out = parsed.out or (parsed.experiment / "report" if from_runs else parsed.experiment.parent)
    _make(out)
    for name in (REPORT, PAGE):
        check_writable(out / name)
    if not parsed.no_figures:
        for path in parsed.add if from_runs else [parsed.experiment]:
            _copy(path.with_name(INITIALISATION), out / INITIALISATION)  # this picture is not in the JSON
        report["figures"] = _draw(report, parsed.experiment if from_runs else None, out)
    write_report(report, out)
    cells = {row["cell"]: row["status"] for table in report["tables"] for row in table["rows"]}
    complete = sum(status in ("done", "diverged") for status in cells.values())
    added = {"added": len(report["added"])} if parsed.add else {}
    told = {"cells": len(cells), "complete": complete, **added, "out": str(out), "figures": list(report["figures"])}
    show(told, parsed.json)


def _collect(parsed: argparse.Namespace) -> dict[str, Any]:
    """The report of a folder, with the additions of `--add` and `--fresh-seed`."""
    from training.experiments.beside import beside
    from training.experiments.conditions import conditions_of
    from training.experiments.earlier_reports import fill_in, read_report
    from training.experiments.report import collect

    others = {path: read_report(path) for path in parsed.add}
    compared = None if parsed.beside is None else read_report(parsed.beside)

    def filled(fresh: dict[str, Any] | None) -> dict[str, Any]:
        report = collect(parsed.experiment, fresh=fresh, cells=parsed.cells)
        for path, other in others.items():
            report = fill_in(report, other, str(path))
        if compared is not None:
            report["beside"] = beside(report, compared, str(parsed.beside))
        return report

    report = filled(None)
    if parsed.fresh_seed is not None:
        cells = _cells(parsed)
        filled({cell.name: {"seed": parsed.fresh_seed} for cell in cells})  # finds misfits before the work
        report = filled(_evaluate(cells, parsed.fresh_seed))
    return report | {"conditions": conditions_of(report, parsed.experiment)}


def _is_comparison(path: Path) -> bool:
    """Whether a folder is one of `fem-frames compare`, or a file its JSON."""
    from training.comparison.cells import is_comparison_folder
    from training.comparison.report import is_comparison_file

    return is_comparison_folder(path) if path.is_dir() else is_comparison_file(path)


def _report_comparison(parsed: argparse.Namespace, from_cells: bool) -> None:
    from training.comparison.figures import draw_figures
    from training.comparison.report import PAGE, REPORT, collect, read_comparison, write_comparison

    if parsed.fresh_seed is not None or parsed.add or parsed.beside:
        raise ValueError("--fresh-seed, --add and --beside are about experiments of `tables`, this is a comparison")
    if parsed.cells != "*" and not from_cells:
        raise ValueError("--cells is about cells: give the folder of a comparison")
    record = collect(parsed.experiment, parsed.cells) if from_cells else read_comparison(parsed.experiment)
    out = parsed.out or (parsed.experiment / "report" if from_cells else parsed.experiment.parent)
    _make(out)
    for name in (REPORT, PAGE):
        check_writable(out / name)
    if not parsed.no_figures:
        record["figures"] = draw_figures(record, out)
    write_comparison(record, out)
    rows = sum(len(case["rows"]) for case in record["cases"])
    told = {"cases": len(record["cases"]), "rows": rows, "not measured": len(record["not_measured"]), "out": str(out)}
    show({**told, "figures": list(record["figures"])}, parsed.json)


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write to {out}: {error.strerror or error}") from error


def _copy(source: Path, target: Path) -> None:
    if source.is_file() and source.resolve() != target.resolve():
        with written_whole(target) as file:
            file.write(source.read_bytes())


def _cells(parsed: argparse.Namespace) -> list[Any]:
    from training.experiments.runner import preset_of

    return preset_of(parsed.experiment).cells(parsed.experiment, cells=parsed.cells)


def _evaluate(cells: list[Any], seed: int) -> dict[str, Any]:
    from training.experiments.new_samples import evaluate_new_samples

    with progress_bar("evaluated", wanted=True) as progress:
        return evaluate_new_samples(cells, seed, progress)


def _draw(report: dict[str, Any], experiment: Path | None, out: Path) -> dict[str, str]:
    """Draws all pictures into the folder; their captions by file name."""
    from training.experiments.beside import draw_beside
    from training.experiments.figures import SAMPLES, draw_figures, draw_initialisation

    captions = draw_figures(report, out)
    if report.get("beside"):
        captions |= draw_beside(report, out)
    caption = "Nets with random weights, with and without frame"
    if experiment is not None and report["scaling"] is not None:
        from training.experiments.initialisation import frame_of_cells, random_functions
        from training.experiments.runner import preset_of

        arrays = frame_of_cells(experiment)
        if arrays is not None:
            configuration = preset_of(experiment).configuration("adam", "stable", "float64")
            values = random_functions(arrays, configuration, SAMPLES)
            draw_initialisation(values, arrays.points[:, 0], out / INITIALISATION)
    return captions | ({INITIALISATION: caption} if (out / INITIALISATION).exists() else {})


def _report_scaling(parsed: argparse.Namespace) -> None:
    from training.scaling.report import write_study

    if parsed.fresh_seed is not None or parsed.add or parsed.beside:
        raise ValueError("--fresh-seed, --add and --beside are for folders of `tables`: this is one of `scale`")
    out = parsed.out or parsed.experiment / "report"
    show({**write_study(parsed.experiment, out, parsed.cells, not parsed.no_figures), "out": str(out)}, parsed.json)
