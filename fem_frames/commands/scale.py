"""`fem-frames scale`: whether answers and training feel the mesh, the parameters, the contrast and the processes."""

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
        "scale",
        run,
        "Measures how errors, times and memory change with the mesh, the number of parameters, the contrast of the "
        "coefficient and the number of processes. Cells run one after the other, and complete ones are skipped: the "
        "same command again finishes a study that was stopped. Presets: quick (coarse meshes, two minutes), full (2D "
        "to J = 9, 3D to J = 5, hours). `fem-frames report DIR` writes the page.",
    )
    parser.add_argument("--preset", choices=PRESETS, required=True, help="size of the study")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the study")
    declare_cells(parser)
    parser.add_argument(
        "--again", action="store_true", help="measure complete cells again; nets that were trained are kept"
    )
    parser.add_argument("--list", action="store_true", help="show the cells and their progress, run nothing")
    parser.add_argument("--quiet", action="store_true", help="print no progress")


def run(parsed: argparse.Namespace) -> None:
    from training.scaling.cells import claim, read_cell, run_cells
    from training.scaling.presets import PRESETS as KNOWN

    preset = KNOWN[parsed.preset]
    preset.chosen(parsed.cells)  # wrong names are refused before a folder is made
    if not parsed.list or (parsed.out.is_dir() and any(parsed.out.iterdir())):
        preset = claim(parsed.out, parsed.preset)
    cells = preset.chosen(parsed.cells)
    if parsed.list:
        known = [(cell.name, read_cell(cell, parsed.out)) for cell in cells]
        rows = [
            {"status": "new" if found is None else "done", "seconds": found and found["seconds"], "cell": name}
            for name, found in known
        ]
        show_rows(rows, {"status": "s", "seconds": ".0f", "cell": "s"}, parsed.json)
        return
    begin = time.monotonic()
    failed = run_cells(cells, parsed.out, parsed.again, progress(parsed.quiet))
    done = sum(read_cell(cell, parsed.out) is not None for cell in cells)
    seconds = round(time.monotonic() - begin, 1)
    told = {"cells": len(cells), "done": done, "failed": list(failed), "seconds": seconds, "out": str(parsed.out)}
    show(told, parsed.json)
    if failed:
        name, reason = next(iter(failed.items()))
        raise RuntimeError(f"{len(failed)} cells failed, {name}: {reason}; the same command tries them again")
    if not parsed.json:
        print(f"fem-frames report {parsed.out} writes page and figures")
