"""`fem-frames rounding`: errors of residual, gradient and loss near the solution, by route and precision."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fem_frames.commands.shared import (
    declare,
    declare_dtypes,
    declare_force,
    declare_problem,
    declare_samples,
    frame_of,
    samples_of,
    show_rows,
)

COLUMNS = {
    "level": "d",
    "dtype": "s",
    "route": "s",
    "residual_error": ".1e",
    "gradient_error": ".1e",
    "loss": ".3e",
    "loss_true": ".3e",
}


def add(subparsers: Any) -> None:
    parser = declare(
        subparsers,
        "rounding",
        run,
        "Errors of residual and gradient near the solution, relative to the load, and the loss with its true value, "
        "as J grows. For HᵀA_yH and for DᵀC_yD with D sparse, gathered or recursive.",
    )
    declare_problem(parser, or_frame=True)
    declare_samples(parser, 4, "random samples of y, of which the worst counts; default: %(default)s")
    declare_dtypes(parser, "float16", "float32", "float64")
    parser.add_argument(
        "--sums",
        choices=("working", "float32"),
        default="working",
        help="precision in which the routes sparse and gather sum: their own, as a plain implementation would, or "
        "float32; default: %(default)s",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot the errors over the levels (.png, .pdf, .svg)")
    declare_force(parser)


def run(parsed: argparse.Namespace) -> None:
    from fem_frames.studies.plots import check_plot, plot_rounding
    from fem_frames.studies.rounding import rounding_rows

    check_plot(parsed.plot, parsed.force)
    arrays, problem = frame_of(parsed)
    y = samples_of(parsed, problem)
    rows = rounding_rows(arrays, problem, y, parsed.dtypes, working_sums=parsed.sums == "working")
    record = {"problem": problem.name, "formulation": arrays.formulation, "samples": len(y), "sums": parsed.sums}
    found = show_rows(rows, COLUMNS, parsed.json, **record)
    if parsed.plot is not None:
        plot_rounding(found, parsed.plot, f"{problem.name}, {arrays.formulation}")
