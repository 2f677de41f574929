"""The command `fem-frames`: one module a subcommand, each with `add` that declares it and names what it runs.

Bad input ends with one line and exit code 2, failure of the work itself with exit code 1; with FEM_FRAMES_TRACEBACK=1
in the environment Python's traceback comes too.
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
from fem_frames.commands import (
    bench,
    condition,
    evaluate,
    export,
    export_net,
    info,
    iterations,
    plot,
    problems,
    query,
    reference,
    report,
    rounding,
    tables,
    train,
)
from fem_frames.speech import on_command_line

COMMANDS = (
    *(info, problems, export, reference, condition, iterations, rounding, bench),
    *(train, evaluate, query, plot, export_net, tables, report),
)
_FAILED = 8531  # tag of the messages by which failing ranks find each other


class _Parser(argparse.ArgumentParser):
    """One line for what is wrong instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help says more\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _Parser(
        prog="fem-frames",
        description="Neural surrogates for parametric PDEs on FEniCSx, preconditioned and stable by multilevel frames.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"fem-frames {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(subparsers)
    parsed, rest = parser.parse_known_args(arguments)
    strangers = [word for word in rest if word.startswith("--")] if parsed.takes_petsc_options else rest
    if strangers or (rest and not rest[0].startswith("-")):
        parsed.parser.error(f"unknown argument {(strangers or rest)[0]}")
    parsed.petsc_arguments = rest
    try:
        with on_command_line():
            parsed.run(parsed)
    except KeyboardInterrupt as error:
        _fail(str(error) or "interrupted; what was finished is kept", 130)
    except ValueError as error:
        _fail(str(error), 2)
    except BrokenPipeError:  # who read the output has enough of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        _fail(f"{type(error).__name__}: {' '.join(str(error).split())}", 1)
    return 0


def _fail(message: str, code: int) -> NoReturn:
    mpi: Any = sys.modules.get("mpi4py.MPI")
    parallel = mpi is not None and mpi.COMM_WORLD.size > 1
    alike = parallel and _all_failed(mpi.COMM_WORLD)
    if os.environ.get("FEM_FRAMES_TRACEBACK"):
        traceback.print_exc()
    rank = os.environ.get("RANK", "0")  # of torchrun
    if rank != "0" and code == 2:
        time.sleep(1.0)  # the first process says the same
    elif not alike or mpi.COMM_WORLD.rank == 0:
        print(f"fem-frames: {message}", file=sys.stderr, flush=True)
    if parallel and not alike:
        time.sleep(0.5)  # mpirun drops output that it has not passed on when a rank aborts
        mpi.COMM_WORLD.Abort(code)  # the other ranks may be waiting for this one
    sys.exit(code)


def _all_failed(comm: Any, patience: float = 2.0) -> bool:
    """Whether every rank comes here within a moment: then one message does for all, and none need be stopped.

    By messages of a tag of their own: another rank may be in a collective call, which must not be joined.
    """
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    calls = [comm.isend(None, dest=rank, tag=_FAILED) for rank in others]
    until = time.monotonic() + patience
    while others and time.monotonic() < until:
        others = [rank for rank in others if not comm.iprobe(source=rank, tag=_FAILED)]
        time.sleep(0.01)
    if others:
        return False
    for rank in range(comm.size):
        if rank != comm.rank:
            comm.recv(source=rank, tag=_FAILED)
    for call in calls:
        call.wait()
    return True
