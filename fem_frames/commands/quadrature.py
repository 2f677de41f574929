"""`fem-frames quadrature`: how much the solution depends on the degree of quadrature, and what the points cost."""

from __future__ import annotations

import argparse
from typing import Any

from fem_frames.commands.shared import declare, declare_problem, declare_samples, problem_of, samples_of, show_rows

COLUMNS = {"degree": "d", "points": "d", "mean": ".2e", "max": ".2e", "ms": ".4f"}


def add(subparsers: Any) -> None:
    parser = declare(
        subparsers,
        "quadrature",
        run,
        "Solves the energy formulation with quadrature of several degrees and prints the change of u against degree 6, "
        "in the energy norm and relative to u; also the time per sample of evaluating a_y and f_y in milliseconds. "
        "With `quadrature_degree=1` a problem has one point per cell.",
    )
    declare_problem(parser)
    declare_samples(parser, 16, "random samples of y; default: %(default)s")
    parser.add_argument("--degrees", nargs="+", type=int, default=[1, 2, 4], help="default: 1 2 4")


def run(parsed: argparse.Namespace) -> None:
    if parsed.samples < 1 or any(not 1 <= degree <= 6 for degree in parsed.degrees):
        raise ValueError(f"--samples {parsed.samples} --degrees {parsed.degrees}: give a sample, and degrees 1 to 6")
    if parsed.levels is None:
        raise ValueError("--levels is missing: how often is the mesh to be refined?")
    if parsed.formulation not in (None, "energy"):
        raise ValueError(f"--formulation is {parsed.formulation}; the study is for energy: leave it out")
    problem = problem_of(parsed)
    from fem_frames.studies.quadrature import quadrature_rows

    y = samples_of(parsed, problem)
    rows = quadrature_rows(problem, parsed.levels, y, parsed.degrees)
    show_rows(rows, COLUMNS, parsed.json, problem=problem.name, levels=parsed.levels, samples=len(y))
