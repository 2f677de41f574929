"""`fem-frames export-net`: writes the net alone, for programs without fem-frames."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fem_frames.commands.shared import declare, declare_force, declare_run, load_run, show


def add(subparsers: Any) -> None:
    parser = declare(
        subparsers,
        "export-net",
        run,
        "Writes the net, y to frame coefficients, as a program of torch.export (.pt2) or ONNX (.onnx).",
    )
    declare_run(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="file name ending in .pt2 or .onnx")
    declare_force(parser)


def run(parsed: argparse.Namespace) -> None:
    from fem_frames.files import check_new

    check_new(parsed.out, parsed.force)
    surrogate = load_run(parsed)
    surrogate.export(parsed.out)
    show(
        {"out": str(parsed.out), "parameters": surrogate.net.parameter_count(), "bytes": parsed.out.stat().st_size},
        parsed.json,
    )
