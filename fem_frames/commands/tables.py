"""`fem-frames tables`: trains the cells of the paper's tables, and of experiments beyond them."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from fem_frames.commands.shared import declare, declare_cells, show, show_rows

PRESETS = ("quick", "cpu", "paper", "best", "scaling")
SCALINGS = ("printed", "normalised")


def add(subparsers: Any) -> None:
    parser = declare(
        subparsers,
        "tables",
        run,
        "Trains all cells of the paper's tables, one run each, several at once. It skips complete cells and continues "
        "unfinished ones: the same command again finishes an experiment that was stopped. Presets: quick (small J, a "
        "quarter of an hour), cpu (J = 10, hours), paper (6000 epochs for all, days), best (beyond the paper: the best "
        "recipe, its ablation, J = 4 to 12, and nets with prolongations that start later), scaling (what the scaling "
        "of the hats does, and the steps per epoch that fit the paper).",
    )
    parser.add_argument(
        "--table",
        default="all",
        help="1, 2, 3 or all; preset best: best, ablation, levels, start or all; preset scaling: steps, decay or all",
    )
    parser.add_argument("--preset", choices=PRESETS, required=True, help="size of the experiment")
    parser.add_argument(
        "--scaling",
        choices=SCALINGS,
        help="of the hats in the paper's tables: 2^-j as its example prints them, or normalised in H1 as its text "
        "says; default: that of the folder, or printed",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the experiment")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="runs at a time; default: one per core, or one on a GPU"
    )
    declare_cells(parser)
    parser.add_argument("--list", action="store_true", help="show the cells and their progress, run nothing")
    parser.add_argument("--quiet", action="store_true", help="print no overview")


def run(parsed: argparse.Namespace) -> None:
    from training.experiments.overview import Overview
    from training.experiments.protocol import PRESETS as KNOWN
    from training.experiments.runner import claim, run_cells

    workers = _default_workers() if parsed.workers is None else parsed.workers
    if not 1 <= workers <= 1024:
        raise ValueError(f"--workers is {workers}: at least one run at a time is needed")
    preset = KNOWN[parsed.preset].scaled(parsed.scaling)
    preset.tables(parsed.table, parsed.cells)  # wrong names are refused before a folder is made
    if not parsed.list or (parsed.out.is_dir() and any(parsed.out.iterdir())):
        preset = claim(parsed.out, parsed.preset, parsed.scaling)
    chosen = preset.cells(parsed.out, parsed.table, parsed.cells)
    if parsed.list:
        _list(chosen, parsed.json)
        return
    begin = time.monotonic()
    outcomes = run_cells(chosen, workers, Overview(chosen, workers, not parsed.quiet))
    record: dict[str, Any] = {
        "cells": len(chosen),
        "done": len(outcomes.done),
        "diverged": outcomes.diverged,
        "failed": list(outcomes.failed),
        "seconds": round(time.monotonic() - begin, 1),
        "out": str(parsed.out),
    }
    show(record, parsed.json)
    if outcomes.failed:
        name, reason = next(iter(outcomes.failed.items()))
        raise RuntimeError(f"{len(outcomes.failed)} cells failed, {name}: {reason}; the same command tries them again")
    if not parsed.json:
        print(f"fem-frames report {parsed.out} writes tables and figures")


def _default_workers() -> int:
    """One worker per core; a GPU serves a single worker."""
    from training.run.building import choose_device
    from training.run.store import cores

    return cores() if choose_device(None).type == "cpu" else 1


def _list(cells: list[Any], as_json: bool) -> None:
    states = [(cell, cell.state()) for cell in cells]
    rows = (
        {
            "status": "at work" if cell.busy() else state.status,
            "step": state.step,
            "steps": cell.resolved.total_steps,
            "seconds": state.seconds,
            "loss": state.loss,
            "cell": cell.name,
        }
        for cell, state in states
    )
    columns = {"status": "s", "step": "d", "steps": "d", "seconds": ".0f", "loss": ".3e", "cell": "s"}
    show_rows(rows, columns, as_json)
