"""The command `fem-frames`: one module a subcommand, each with `add` that declares it and names what it runs.

Bad input ends with one line and exit code 2, failure of the work itself with exit code 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from fem_frames import __version__
from fem_frames.commands import export, info, problems, reference


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="fem-frames",
        description="Neural surrogates for parametric PDEs on FEniCSx, preconditioned and stable by multilevel frames.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"fem-frames {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (info, problems, export, reference):
        command.add(subparsers)
    parsed, rest = parser.parse_known_args(arguments)
    if rest and (not parsed.takes_petsc_options or rest[0].startswith("--") or not rest[0].startswith("-")):
        parsed.parser.error(f"unknown argument {rest[0]}")
    parsed.petsc_arguments = rest
    try:
        parsed.run(parsed)
    except KeyboardInterrupt:
        _fail("interrupted; what was finished is kept", 130)
    except ValueError as error:
        _fail(str(error), 2)
    except Exception as error:
        _fail(f"{type(error).__name__}: {error}", 1)
    return 0


def _fail(message: str, code: int) -> NoReturn:
    mpi: Any = sys.modules.get("mpi4py.MPI")
    parallel = mpi is not None and mpi.COMM_WORLD.size > 1
    if parallel and mpi.COMM_WORLD.rank > 0:
        time.sleep(2)  # rank 0 says it, if it failed too
    if os.environ.get("FEM_FRAMES_TRACEBACK"):
        traceback.print_exc()
    print(f"fem-frames: {message}", file=sys.stderr, flush=True)
    if parallel:
        time.sleep(0.5)  # mpirun drops output that it has not passed on when a rank aborts
        mpi.COMM_WORLD.Abort(code)  # the other ranks may be waiting for this one
    sys.exit(code)
