"""`fem-frames plot`: draws loss curves of runs, and their solutions with the reference."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fem_frames.commands.shared import (
    declare,
    declare_force,
    declare_problem_file,
    declare_references,
    declare_samples,
    load_run,
    show,
)
from fem_frames.studies.plots import check_plot


def add(subparsers: Any) -> None:
    parser = declare(
        subparsers,
        "plot",
        run,
        "Draws the loss curves of one or several runs, and solutions for a few y with the reference, in one figure.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders written by `train`")
    declare_problem_file(parser)
    parser.add_argument("--out", type=Path, default=Path("runs.png"), metavar="FILE", help="default: %(default)s")
    declare_force(parser)
    declare_samples(parser, 3, "solutions drawn for each run, 0: none; default: %(default)s")
    declare_references(parser)


def run(parsed: argparse.Namespace) -> None:
    if not 0 <= parsed.samples <= 6 or parsed.seed < 0:
        raise ValueError(f"--samples {parsed.samples} --seed {parsed.seed}: draw 0 to 6 solutions, no negative seed")
    check_plot(parsed.out, parsed.force)
    from fem_frames.studies.solution_plots import RunCurve, SolutionPanel, plot_runs
    from training.run.log import LOG, read_log

    names = [folder.absolute().name for folder in parsed.runs]
    labels = {f: name if names.count(name) == 1 else str(f) for f, name in zip(parsed.runs, names, strict=True)}
    curves, panels = [], []
    for folder in parsed.runs:
        if not (folder / LOG).is_file():
            raise ValueError(f"{folder} holds no run: there is no {LOG} in it")
        records = read_log(folder / LOG)
        curves.append(RunCurve.from_records(labels[folder], records))
    with_solutions = [folder for folder in parsed.runs if parsed.samples]
    for folder in with_solutions:
        surrogate = load_run(argparse.Namespace(folder=folder, problem=parsed.problem, set=parsed.set))
        from fem_frames.frame.level_matrices import values_of
        from training.references import reference_solutions

        y = surrogate.problem.parameters.sample(parsed.samples, parsed.seed)
        reference = reference_solutions(surrogate.formulation, y, references=parsed.references)
        values = {name: v.double().cpu().numpy() for name, v in surrogate.fields(y).items()}
        both = [values_of(surrogate.arrays, fields) for fields in (values, reference.fields)]
        panels.append(SolutionPanel(labels[folder], surrogate.arrays, y, *both))
    plot_runs(curves, panels, parsed.out)
    last = {curve.label: curve.test_loss[-1] if curve.test_loss else None for curve in curves}
    show({"out": str(parsed.out), "runs": last} if parsed.json else {**last, "picture": str(parsed.out)}, parsed.json)
