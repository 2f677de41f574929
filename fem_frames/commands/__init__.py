"""The command `fem-frames`: one module per subcommand, whose `add` declares its options and its `run` function.

Bad input and a missing FEniCSx end with one line and exit code 2, failed work with exit code 1. With
FEM_FRAMES_TRACEBACK=1 in the environment Python's traceback is printed too.

This file imports almost nothing: `main` must start before any slow import, so that it can handle Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import time

from fem_frames.fenicsx.absence import FEniCSxError

TYPE_CHECKING = False  # type checkers take it for true; importing the module typing would be slow
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import Any, NoReturn, TextIO

_FAILED = 8531  # tag of the messages that failing ranks exchange


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        _run(arguments)
    except KeyboardInterrupt as error:
        _fail(str(error) or "interrupted; what was finished is kept", 130)
    except ValueError as error:
        _fail(str(error), 2)
    except FEniCSxError as error:
        _fail(str(error), 2)
    except BrokenPipeError:  # the reader of the output has closed it
        _discard(sys.stdout)
        sys.exit(1)
    except OSError as error:
        if error.filename is None:
            _fail(f"{type(error).__name__}: {error}", 1)
        _fail(f"cannot use {error.filename}: {error.strerror}", 2)  # a name that is too long, or missing rights
    except Exception as error:
        _fail(f"{type(error).__name__}: {error}", 1)
    return 0


def _run(arguments: Sequence[str] | None) -> None:
    _write_any_text()
    import signal
    import threading

    # Python sets handlers only in the main thread, and a handler that another program installed must stay.
    ours = threading.current_thread() is threading.main_thread()
    ours = ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        if ours:
            signal.signal(signal.SIGINT, _interrupt)
        from fem_frames.commands.parser import parse
        from fem_frames.messages import on_command_line

        parsed = parse(arguments)
        with on_command_line():
            parsed.run(parsed)
    except SystemExit:  # raised by --help, --version and bad arguments
        _flush()
        raise
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    _flush()


def _flush() -> None:
    """Writes the rest of the output now, while an error can still be reported."""
    if sys.stdout is not None:
        sys.stdout.flush()


def _write_any_text() -> None:
    """Replaces letters that the output's encoding lacks, such as ∇ in ASCII, by question marks instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handles Ctrl-C. During imports it ends the process at once, because some modules print or swallow exceptions."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            if os.environ.get("RANK", "0") == "0":
                os.write(2, b"fem-frames: interrupted\n")
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


def _discard(stream: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fail(message: str, code: int) -> NoReturn:
    message = " ".join(message.split())
    mpi: Any = sys.modules.get("mpi4py.MPI")
    parallel = mpi is not None and mpi.COMM_WORLD.size > 1
    alike = parallel and _all_failed(mpi.COMM_WORLD)
    try:
        _flush()
    except OSError:
        _discard(sys.stdout)
    try:
        if os.environ.get("FEM_FRAMES_TRACEBACK"):
            import traceback

            traceback.print_exc()
        if int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ:  # set by torchrun
            from training.run.distributed import is_first_to_fail

            alone = is_first_to_fail(message)
            message = f"rank {os.environ['RANK']}: {message}"
        else:
            alone = not alike or mpi.COMM_WORLD.rank == 0
        if alone:
            print(f"fem-frames: {message}", file=sys.stderr, flush=True)
    except OSError:  # the message cannot be written, but the exit code can
        _discard(sys.stderr)
    if parallel and not alike:
        time.sleep(0.5)  # mpirun drops output that is still in transit when a rank aborts
        mpi.COMM_WORLD.Abort(code)  # the other ranks may be waiting for this one
    sys.exit(code)


def _all_failed(comm: Any, patience: float = 2.0) -> bool:
    """Whether every rank fails within a moment: then one message serves for all, and no rank must be stopped.

    Uses messages with their own tag, because another rank may be in a collective call, which must not be joined.
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
