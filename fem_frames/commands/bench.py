"""`fem-frames bench`: time and memory of D by every route, with ratios within one run."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from typing import Any

from fem_frames.commands.shared import declare, declare_dtypes, declare_problem, frame_from_file, frame_of, show_rows
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
    parser.add_argument("--learn", type=int, default=400, metavar="STEPS", help="with --queries: default: %(default)s")
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
        show_rows(_query_rows(parsed), QUERY_COLUMNS, parsed.json, **record)
        return
    found = _training_rows(parsed) if parsed.training else _rows(parsed, routes)
    rows = show_rows(found, TRAINING_COLUMNS if parsed.training else COLUMNS, parsed.json, **record)
    if not parsed.json and not parsed.training:
        _growth(rows)


def _query_rows(parsed: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from training.query_benchmark import query_rows

    if parsed.training or parsed.routes is not None or parsed.dims is not None or parsed.device != "cpu":
        raise ValueError("--queries goes without --training, --routes, --dims and --device: leave them out")
    if parsed.learn < 0:
        raise ValueError(f"--learn is {parsed.learn}; give the number of training steps, 0 for no learned cycles")
    if parsed.frame is None and parsed.problem is None:
        parsed.problem, parsed.levels = "disks", 6
    arrays, problem = frame_of(parsed)
    for row in query_rows(arrays, problem, parsed.batch, parsed.seconds, learn=parsed.learn):
        yield {"problem": problem.name, "solve_ms": None, "trained_s": None, **row}


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
