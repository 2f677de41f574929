"""`fem-frames iterations`: conjugate gradients for the nodal system, HᵀA_yH and DᵀC_yD on every level."""

from __future__ import annotations

import argparse
from typing import Any

from fem_frames.commands.shared import (
    declare,
    declare_device,
    declare_dtypes,
    declare_problem,
    declare_samples,
    frame_of,
    samples_of,
    show_rows,
)

COLUMNS = {
    "level": "d",
    "dtype": "s",
    "nodal_iterations": "d",
    "nodal_residual": ".1e",
    "bpx_iterations": "d",
    "bpx_residual": ".1e",
    "stable_iterations": "d",
    "stable_residual": ".1e",
}


def add(subparsers: Any) -> None:
    parser = declare(
        subparsers,
        "iterations",
        run,
        "Iterations of conjugate gradients for A_y, HᵀA_yH and DᵀC_yD on every level, and the residual at the end. "
        "The maximum over the samples; - where 5000 iterations do not reach the tolerance.",
    )
    declare_problem(parser, or_frame=True)
    declare_samples(parser, 4, "random samples of y; 0: the middle of the parameters; default: %(default)s")
    parser.add_argument("--tol", type=float, default=1e-6, help="relative residual to reach; default: %(default)s")
    declare_dtypes(parser, "float64", "float32")
    declare_device(parser)


def run(parsed: argparse.Namespace) -> None:
    from fem_frames.operators.frame import check_device
    from fem_frames.studies.iterations import iteration_rows

    if not 0 < parsed.tol < 1:
        raise ValueError(f"--tol is {parsed.tol}; give a relative residual between 0 and 1")
    check_device(parsed.device)
    arrays, problem = frame_of(parsed)
    y = samples_of(parsed, problem)
    rows = iteration_rows(arrays, problem, y, parsed.tol, parsed.dtypes, device=parsed.device)
    record = {"problem": problem.name, "formulation": arrays.formulation, "samples": len(y), "tol": parsed.tol}
    show_rows(rows, COLUMNS, parsed.json, **record)
