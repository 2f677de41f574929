"""`fem-frames serve`: a service that programs for inverse problems and uncertainty quantification can call."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from fem_frames.commands.output_options import declare_outputs, outputs_of
from fem_frames.commands.shared import declare, declare_device, declare_run, load_run, show


def add(subparsers: Any) -> None:
    parser = declare(
        subparsers,
        "serve",
        run,
        "Answers requests of other programs by HTTP and JSON, in the protocol UM-Bridge 1.0, until Ctrl-C or SIGTERM. "
        "The model is called forward. Its input is one vector of parameters; its output is the vector of the outputs "
        "that are named, or without any the nodal values of each field. The configuration of a request may ask for "
        "bounds, for answers improved to a tolerance and for outputs corrected by adjoint solves. Requests that wait "
        "at the same time are answered together.",
    )
    declare_run(parser)
    declare_device(parser)
    declare_outputs(parser, adjoint=False)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; default: %(default)s, this machine")
    parser.add_argument("--port", type=int, default=4242, metavar="P", help="0: a free one; default: %(default)s")
    parser.add_argument(
        "--batch", type=int, default=256, metavar="B", help="most requests answered together; default: %(default)s"
    )
    parser.add_argument("--verbose", action="store_true", help="print a line per batch to stderr")


def run(parsed: argparse.Namespace) -> None:
    if not 0 <= parsed.port < 2**16:
        raise ValueError(f"--port {parsed.port}: give a number from 0 to {2**16 - 1}")
    if parsed.batch < 1:
        raise ValueError(f"--batch {parsed.batch}: give at least one")
    try:
        import aiohttp  # noqa: F401
    except ImportError as error:
        raise ValueError(f'`serve` needs aiohttp ({error}): pip install "fem-frames[serve]"') from error
    from training.service.model import Forward
    from training.service.server import serve

    surrogate = load_run(parsed)
    model = Forward(surrogate, outputs_of(parsed))

    def started(url: str) -> None:
        record = {
            "url": url,
            "model": "forward",
            "problem": surrogate.problem.name,
            "parameters": model.parameters,
            "outputs": list(model.labels),
            "bounds": model.has_bounds,
        }
        if parsed.json:
            print(json.dumps(record))
        else:
            show({**record, "bounds": "yes" if model.has_bounds else "none for this formulation"}, as_json=False)
            print("Ctrl-C ends the service.")
        sys.stdout.flush()

    serve(model, parsed.host, parsed.port, parsed.batch, started, _to_stderr if parsed.verbose else None)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
