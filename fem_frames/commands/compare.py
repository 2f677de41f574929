"""`fem-frames compare`: what answers queries best, on problems of several kinds."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from fem_frames.commands.shared import declare, declare_cells, progress, show, show_rows

PRESETS = ("quick", "full")


def add(subparsers: Any) -> None:
    parser = declare(
        subparsers,
        "compare",
        run,
        "Compares ways to answer queries, in time, error, outputs and gradients: PETSc, direct solves, batched "
        "multigrid, learned cycles, frame nets, POD with a net or polynomial chaos, reduced bases by pyMOR, a net for "
        "outputs. One process for each problem and method. It skips complete cells: the same command again finishes a "
        "comparison that was stopped. Presets: quick (four problems on coarse meshes, six minutes on two "
        "cores), full (eleven problems, hours). `fem-frames report DIR` writes the page.",
    )
    parser.add_argument("--preset", choices=PRESETS, required=True, help="size of the comparison")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the comparison")
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="cells at a time; more than one disturb each other's times; default: %(default)s",
    )
    declare_cells(parser)
    again = parser.add_mutually_exclusive_group()
    again.add_argument(
        "--again",
        action="store_true",
        help="measure complete cells again; nets and solutions that they have learned from are kept",
    )
    again.add_argument("--list", action="store_true", help="show the cells and their progress, run nothing")
    parser.add_argument("--here", action="store_true", help="run the cells in this process, with its messages")
    parser.add_argument("--quiet", action="store_true", help="print no progress")


def run(parsed: argparse.Namespace) -> None:
    from training.comparison.cases import COMPARISONS
    from training.comparison.cells import cells_of, claim, run_cell
    from training.run.jobs import run_jobs

    if not 1 <= parsed.workers <= 1024:
        raise ValueError(f"--workers is {parsed.workers}: at least one cell at a time is needed")
    comparison = COMPARISONS[parsed.preset]
    comparison.chosen(parsed.cells)  # wrong names are refused before a folder is made
    if not parsed.list or (parsed.out.is_dir() and any(parsed.out.iterdir())):
        comparison = claim(parsed.out, parsed.preset)
    cells = cells_of(comparison, parsed.out, parsed.cells)
    if parsed.list:
        _list(cells, parsed.json)
        return
    if not parsed.again:
        for cell in cells:
            cell.read()  # what does not fit is refused before the work
    begin = time.monotonic()
    failed: dict[str, str] = {}
    if parsed.here:
        for cell in cells:
            if parsed.again or cell.read() is None:
                run_cell(cell, parsed.workers)
    else:
        jobs = [cell.job(comparison.name, parsed.workers, parsed.again) for cell in cells]
        failed = run_jobs(jobs, parsed.workers, progress(parsed.quiet))
    record: dict[str, Any] = {
        "cells": len(cells),
        "done": sum(cell.read() is not None for cell in cells),
        "failed": list(failed),
        "seconds": round(time.monotonic() - begin, 1),
        "out": str(parsed.out),
    }
    show(record, parsed.json)
    if failed:
        name, reason = next(iter(failed.items()))
        raise RuntimeError(f"{len(failed)} cells failed, {name}: {reason}; the same command tries them again")
    if not parsed.json:
        print(f"fem-frames report {parsed.out} writes the page")


def _list(cells: Any, as_json: bool) -> None:
    found = ((cell, cell.read()) for cell in cells)
    rows = (
        {
            "status": "new" if record is None else "done",
            "methods": 0 if record is None else len(record["rows"]),
            "seconds": 0.0 if record is None else record["seconds"],
            "cell": cell.name,
        }
        for cell, record in found
    )
    show_rows(rows, {"status": "s", "methods": "d", "seconds": ".0f", "cell": "s"}, as_json)
