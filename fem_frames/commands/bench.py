"""`fem-frames bench`: time and memory of D by every route, with ratios within one run."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fem_frames.commands.shared import (
    declare,
    declare_dtypes,
    declare_force,
    declare_problem,
    frame_from_file,
    frame_of,
    problem_of,
    show_rows,
)
from fem_frames.formulations.registry import formulation_class

COLUMNS = {
    "dim": "d",
    "form": "s",
    "levels": "d",
    "dtype": "s",
    "route": "s",
    "forward_ms": ".2f",
    "both_ms": ".2f",
    "peak_MB": ".1f",
    "over_copy": ".1f",
    "both_over_copy": ".1f",
    "gather_over": ".1f",
    "csr_over": ".1f",
    "peak_over_io": ".1f",
}
TRAINING_COLUMNS = {
    "levels": "d",
    "dtype": "s",
    "net": "s",
    "optimizer": "s",
    "step_ms": ".2f",
    "net_ms": ".2f",
    "ratio": ".2f",
    "over_first": ".2f",
}


QUERY_COLUMNS = {
    "problem": "s",
    "levels": "d",
    "unknowns": "d",
    "method": "s",
    "ms": ".4f",
    "solve_ms": ".4f",
    "error": ".1e",
    "over_D": ".2f",
    "trained_s": ".1f",
    "solves": "d",
    "offline_s": ".1f",
}
RIVAL_COLUMNS = ("solves", "offline_s")
GROWTH_COLUMNS = {
    "problem": "s",
    "levels": "d",
    "unknowns": "d",
    "method": "s",
    "error": ".1e",
    "ms": ".4f",
    "ns": ".2f",
    "solve_ns": ".2f",
    "over_first": ".2f",
}


EQUATION_COLUMNS = {
    "equation": "s",
    "dtype": "s",
    "cells": "d",
    "m": "d",
    "ms": ".2f",
    "ns": ".2f",
    "over_E": ".2f",
}


def add(subparsers: Any) -> None:
    parser = declare(
        subparsers,
        "bench",
        run,
        "Time and peak memory of D, forward and with its gradient, by every route. "
        "Without a problem: (E) in 1D with J = 10 and 14, 2D with J = 5 to 8, 3D with J = 3 to 5, and (LS) in 2D with "
        "J = 5 to 7.",
    )
    declare_problem(parser, or_frame=True)
    parser.add_argument(
        "--training",
        action="store_true",
        help="time a training step instead, compared with the net alone; default problem: the paper's, 1D, J = 10",
    )
    parser.add_argument(
        "--queries",
        action="store_true",
        help="time and error of many queries instead: multigrid, learned cycles, the frame, PETSc; default problem: "
        "disks, 2D, J = 6",
    )
    parser.add_argument(
        "--equations",
        action="store_true",
        help="time loss and residual of equations in UFL instead, per number of the state, compared with (E); "
        "2D, J = 6",
    )
    parser.add_argument(
        "--learn",
        type=int,
        default=400,
        metavar="STEPS",
        help="with --queries: training steps of learned cycles, 0 leaves them out; default: %(default)s",
    )
    parser.add_argument(
        "--rivals",
        type=int,
        default=0,
        metavar="SOLVES",
        help="with --queries: also a reduced basis, polynomial chaos, POD and a net, made of so many solutions; "
        "8000 take minutes",
    )
    parser.add_argument(
        "--run",
        dest="runs",
        type=Path,
        action="append",
        default=[],
        help="with --rivals: a surrogate of the same problem and level; may be repeated",
    )
    parser.add_argument(
        "--growth",
        type=int,
        nargs="+",
        metavar="J",
        help="with --queries: only the time per unknown of multigrid on these levels",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="with --queries: error over time (.png, .pdf, .svg)")
    declare_force(parser)
    parser.add_argument("--net", default="full", help="with --training: full, separate or separate-frame")
    parser.add_argument("--optimizer", default="adam", help="with --training: adam, sgd, soap, lbfgs or ngd")
    parser.add_argument("--batch", type=int, default=64, metavar="B", help="samples at a time; default: %(default)s")
    declare_dtypes(parser, "float32", "float16")
    parser.add_argument("--routes", nargs="+", metavar="ROUTE", help="default: all (copy recursive gather csr coo bpx)")
    parser.add_argument("--dims", nargs="+", type=int, choices=(1, 2, 3), help="of the standard cases; default: all")
    parser.add_argument("--seconds", type=float, default=1.0, help="time per measurement; default: %(default)s")
    parser.add_argument("--device", default="cpu", help="default: %(default)s")


def run(parsed: argparse.Namespace) -> None:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise torch's profiler reports its start and stop
    import torch

    from fem_frames.operators.frame import check_device
    from fem_frames.problem.catalogue import PROBLEMS as KNOWN
    from fem_frames.studies.benchmark import ROUTES, check_routes

    routes = list(dict.fromkeys(parsed.routes or ROUTES))
    check_routes(parsed.dtypes, routes, parsed.batch)
    check_device(parsed.device)
    if not 0 <= parsed.seconds < 3600:
        raise ValueError(f"--seconds is {parsed.seconds}; give 0 to 3600")
    if parsed.plot is not None and not parsed.queries:
        raise ValueError("--plot goes with --queries: leave it out")
    if not parsed.equations:
        _check_cases(parsed)
    if parsed.frame is not None and parsed.problem is None and parsed.routes is None and not parsed.training:
        # The frame of a user's problem is measured without that problem, so the route that needs it is omitted.
        routes = routes if frame_from_file(parsed).record.get("problem") in KNOWN else [r for r in routes if r != "bpx"]
    record = {
        "batch": parsed.batch,
        "device": parsed.device,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    if parsed.queries:
        _run_queries(parsed, record)
        return
    if parsed.equations:
        show_rows(_equation_rows(parsed), EQUATION_COLUMNS, parsed.json, **record)
        return
    found = _training_rows(parsed) if parsed.training else _rows(parsed, routes)
    rows = show_rows(found, TRAINING_COLUMNS if parsed.training else COLUMNS, parsed.json, **record)
    if not parsed.json and not parsed.training:
        _growth(rows)


def _run_queries(parsed: argparse.Namespace, record: dict[str, Any]) -> None:
    from fem_frames.studies.plots import check_plot
    from fem_frames.studies.query_plots import plot_queries
    from training.query_benchmark import ratios
    from training.rival_benchmark import error_ratios

    _check_queries(parsed)
    if parsed.growth is not None:
        show_rows(_growth_rows(parsed), GROWTH_COLUMNS, parsed.json, **record)
        return
    rows: list[dict[str, Any]] = []
    found: dict[str, Any] = {}

    def measured() -> Iterator[dict[str, Any]]:
        for row in _query_rows(parsed):
            rows.append(row)
            yield {name: row.get(name) for name in QUERY_COLUMNS} | row
        found.update(ratios(rows) | error_ratios(rows))

    check_plot(parsed.plot, parsed.force)
    columns = {name: form for name, form in QUERY_COLUMNS.items() if parsed.rivals or name not in RIVAL_COLUMNS}
    show_rows(measured(), columns, parsed.json, **record, **({"ratios": found} if parsed.json else {}))
    if parsed.plot is not None:
        plot_queries(
            rows, parsed.plot, f"{rows[0]['problem']}, {rows[0]['unknowns']} unknowns, {parsed.batch} at a time"
        )
    if not parsed.json:
        print("\nRatios at an error of at most 1e-3, or at the error of the learned cycle:")
        for name, value in found.items():
            print(f"  {name:60} {'-' if value is None else format(value, '.2f')}")


def _check_queries(parsed: argparse.Namespace) -> None:
    if parsed.training or parsed.routes is not None or parsed.dims is not None or parsed.device != "cpu":
        raise ValueError("--queries goes without --training, --routes, --dims and --device: leave them out")
    if parsed.learn < 0:
        raise ValueError(f"--learn is {parsed.learn}; give the number of training steps, 0 for no learned cycles")
    if parsed.rivals and parsed.rivals < 100:
        raise ValueError(f"--rivals is {parsed.rivals}; give at least 100 solves, or 0 for no rivals")
    if parsed.runs and not parsed.rivals:
        raise ValueError("--run goes with --rivals: give the number of solves for the others too")
    if parsed.growth is not None and any((parsed.frame, parsed.levels is not None, parsed.rivals, parsed.plot)):
        raise ValueError("--growth makes frames for its own levels: leave out --frame, --levels, --rivals and --plot")


def _equation_rows(parsed: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from fem_frames.studies.equation_benchmark import LEVELS, equation_rows

    names = (
        "training",
        "routes",
        "dims",
        "problem",
        "frame",
        "formulation",
        "refinement",
        "first_level",
        "coarse",
        "set",
    )
    if any(getattr(parsed, name) for name in names) or parsed.device != "cpu":
        raise ValueError("--equations goes with --dtypes, --levels, --batch and --seconds alone: leave out the others")
    levels = LEVELS if parsed.levels is None else parsed.levels
    yield from equation_rows(parsed.dtypes, levels, parsed.batch, parsed.seconds)


def _query_rows(parsed: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from training.query_benchmark import Queries, query_rows
    from training.rival_benchmark import rival_rows

    if parsed.frame is None and parsed.problem is None:
        parsed.problem, parsed.levels = "disks", 6
    arrays, problem = frame_of(parsed)
    queries = Queries(arrays, problem, parsed.batch, parsed.seconds)
    for row in query_rows(queries, learn=parsed.learn):
        yield {"problem": problem.name, **row}
    for row in rival_rows(queries, parsed.rivals, runs=parsed.runs) if parsed.rivals else ():
        yield {"problem": problem.name, **row}


def _growth_rows(parsed: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from fem_frames.problem.loading import make_problem
    from training.query_benchmark import growth_rows

    problem = problem_of(parsed) if parsed.problem is not None else make_problem("disks")
    first: float | None = None
    for row in growth_rows(problem, parsed.growth, parsed.batch, parsed.seconds):
        first = row["ns"] if first is None else first
        yield {"problem": problem.name, **row, "over_first": row["ns"] / first}


def _training_rows(parsed: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from training.benchmark import training_rows

    if parsed.routes is not None or parsed.dims is not None:
        raise ValueError("--routes and --dims are for the benchmark of D: leave them out with --training")
    if parsed.frame is None and parsed.problem is None:
        parsed.problem, parsed.levels, parsed.formulation = "quarters", 10, "least-squares"
    settings = {"net": parsed.net, "optimizer": parsed.optimizer}
    arrays, problem = frame_of(parsed)
    rows = training_rows(arrays, problem, parsed.dtypes, parsed.batch, parsed.seconds, parsed.device, **settings)
    for row in rows:
        yield row | {"step_ms": 1e3 * row["step_s"], "net_ms": 1e3 * row["net_s"]}


def _rows(parsed: argparse.Namespace, routes: list[str]) -> Iterator[dict[str, Any]]:
    from fem_frames.commands.shared import progress_bar
    from fem_frames.studies.benchmark import benchmark_rows

    cases = list(_cases(parsed, routes))
    with progress_bar("benchmarks", wanted=parsed.json) as progress:
        for number, case in enumerate(cases):
            progress(number, len(cases))
            arrays, problem = case()
            found = []
            measured = benchmark_rows(
                arrays, problem, parsed.dtypes, routes, parsed.batch, parsed.seconds, parsed.device
            )
            for row in measured:
                found.append(row)
                if len(found) % len(routes) == 0:  # all routes of one dtype
                    yield from (_with_ratios(r, found[-len(routes) :]) for r in found[-len(routes) :])
        progress(len(cases), len(cases))


def _check_cases(parsed: argparse.Namespace) -> None:
    if parsed.frame is not None or parsed.problem is not None:
        if parsed.dims is not None:
            raise ValueError("--dims chooses among the standard cases: leave it out with --problem or --frame")
        return
    for name in ("levels", "formulation", "refinement", "first_level", "coarse", "set"):
        if getattr(parsed, name):
            raise ValueError(f"--{name.replace('_', '-')} goes with --problem; the standard cases have their own")


def _cases(parsed: argparse.Namespace, routes: list[str]) -> Iterator[Any]:
    if parsed.frame is not None and parsed.problem is None and "bpx" not in routes:
        yield lambda: (frame_from_file(parsed), None)  # the other routes measure D, which needs no problem
        return
    if parsed.frame is not None or parsed.problem is not None:
        yield lambda: frame_of(parsed)
        return
    from fem_frames.frame.export import export_frame
    from fem_frames.mesh.hierarchy import MeshHierarchy
    from fem_frames.problem.loading import make_problem
    from fem_frames.studies.benchmark import PROBLEMS, SUITE

    def build(dim: int, formulation: str, levels: int) -> Any:
        problem = make_problem(PROBLEMS[dim])
        return export_frame(MeshHierarchy.from_problem(problem, levels), problem, formulation), problem

    for dim, formulation, all_levels in SUITE:
        for levels in all_levels if dim in (parsed.dims or (1, 2, 3)) else ():
            yield lambda dim=dim, formulation=formulation, levels=levels: build(dim, formulation, levels)


def _with_ratios(row: dict[str, Any], same: list[dict[str, Any]]) -> dict[str, Any]:
    """The row with its ratios to the routes copy, gather and csr of the same case; None for routes not run."""
    by_route = {r["route"]: r for r in same}

    def ratio(key: str, over: str, inverse: bool = False) -> float | None:
        if over not in by_route:
            return None
        value = float(row[key]) / float(by_route[over]["forward_s" if over == "copy" else key])
        return 1 / value if inverse else value

    return row | {
        "form": formulation_class(row["formulation"]).symbol,
        "forward_ms": 1e3 * row["forward_s"],
        "both_ms": 1e3 * row["forward_backward_s"],
        "peak_MB": row["peak_bytes"] / 1e6,
        "over_copy": ratio("forward_s", "copy"),
        "both_over_copy": ratio("forward_backward_s", "copy"),
        "gather_over": ratio("forward_backward_s", "gather", inverse=True),
        "csr_over": ratio("forward_backward_s", "csr", inverse=True),
        "peak_over_io": row["peak_bytes"] / row["input_output_bytes"],
    }


def _growth(rows: list[Mapping[str, Any]]) -> None:
    """Prints the time per cell on the finest level divided by that on the coarsest, for cases with several levels."""
    groups: dict[tuple[int, str, str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["dim"], row["form"], row["dtype"], row["route"]), []).append(row)
    groups = {key: group for key, group in groups.items() if len(group) > 1}
    if groups:
        print("\nGrowth of the time per cell, forward and backward, from the coarsest level to the finest:")
    for (dim, form, dtype, route), group in groups.items():
        first, last = ((r["forward_backward_s"] / r["cells"]) for r in (group[0], group[-1]))
        levels = f"J = {group[0]['levels']} to {group[-1]['levels']}"
        print(f"  {dim}D {form:4} {dtype:8} {route:10} {levels}: {last / first:.2f}")
