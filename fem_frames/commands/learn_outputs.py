"""`fem-frames learn-outputs`: trains a plain net y -> outputs on solves, and tells its validation error."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from fem_frames.commands.output_options import declare_outputs, outputs_of
from fem_frames.commands.shared import declare, declare_force, declare_run, load_run, plain, progress_bar, show_rows

OPTIONS: dict[str, tuple[type, str]] = {
    "samples": (int, "random y that are solved for training; default: 10000"),
    "validation": (int, "other random y that are solved for the validation error; default: 1000"),
    "width": (int, "width of the hidden layers; default: 128"),
    "depth": (int, "number of hidden layers; default: 3"),
    "steps": (int, "steps of Adam; default: 10000"),
    "batch": (int, "samples per step; default: 256"),
    "rate": (float, "first rate of Adam; default: 0.01"),
    "tol": (float, "relative residual of the solves; default: 1e-6"),
    "seed": (int, "seed of samples, first weights and batches; default: 0"),
}
COLUMNS = {
    "output": ">22s",
    "mean_error": ".2e",
    "max_error": ".2e",
    "mean_of_deviation": ".2%",
    "max_of_deviation": ".2%",
    "mean_of_rms": ".2%",
}


def add(subparsers: Any) -> None:
    parser = declare(
        subparsers,
        "learn-outputs",
        run,
        "Trains a plain net from y to outputs, which answers in microseconds. The problem of the run is solved for "
        "random y by multigrid, or conjugate gradients in frame coordinates; the net of the run is not used. Shows the "
        "validation error of each output: mean and maximum over other random y, absolute, relative to the output's "
        "standard deviation and to its root mean square. This error was seen, it is not a bound. `outputs FILE` asks "
        "the net.",
    )
    declare_run(parser)
    declare_outputs(parser, adjoint=False)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the net goes, as sensors.pt")
    declare_force(parser)
    for name, (kind, text) in OPTIONS.items():
        metavar = "N" if kind is int else "X"
        parser.add_argument(f"--{name}", type=kind, default=argparse.SUPPRESS, metavar=metavar, help=text)


def run(parsed: argparse.Namespace) -> None:
    from fem_frames.files import check_new, check_writable

    check_new(parsed.out, parsed.force)
    check_writable(parsed.out)
    outputs = outputs_of(parsed)
    if not outputs:
        named = "--point, --mean, --through or --functional"
        raise ValueError(f"name the outputs by {named}; `fem-frames outputs RUN` lists the groups")
    from training.output_net import OutputNet, OutputNetSettings, solve_for

    assert set(OPTIONS) == {field.name for field in fields(OutputNetSettings)}
    settings = OutputNetSettings(**{name: value for name, value in vars(parsed).items() if name in OPTIONS})
    surrogate = load_run(parsed)
    with progress_bar("solves", wanted=True) as progress:
        training, validation = solve_for(surrogate, outputs, settings, progress)
    with progress_bar("steps", wanted=True) as progress:
        net = OutputNet.fit(training, validation, settings, progress)
    net.save(parsed.out)
    seen, record = net.validation, net.record
    rows = [
        {
            "output": label,
            "mean_error": float(seen.mean[k]),
            "max_error": float(seen.max[k]),
            "mean_of_deviation": float(seen.relative("mean")[k]),
            "max_of_deviation": float(seen.relative("max")[k]),
            "mean_of_rms": float(seen.relative("mean", "rms")[k]),
            "max_of_rms": float(seen.relative("max", "rms")[k]),
            "deviation": float(seen.deviation[k]),
            "rms": float(seen.rms[k]),
        }
        for k, label in enumerate(net.labels)
    ]
    told = {name: record[name] for name in ("solves", "solve_seconds", "fit_seconds")}
    told |= {"validation_samples": seen.samples, "out": str(parsed.out)}
    told |= {"errors": f"validation errors, seen for {seen.samples} random y that were not trained on; no bounds"}
    show_rows(map(plain, rows), COLUMNS, parsed.json, **told)
