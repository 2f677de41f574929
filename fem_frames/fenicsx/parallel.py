"""Errors under MPI: a failure on one rank is raised on all ranks, so that none waits for ever."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


def together(comm: Any, work: Callable[[], T]) -> T:
    """work() on this rank; if it fails on any rank, all ranks raise an error. Collective.

    `work` itself must not communicate.
    """
    return together_in_steps(comm, (do() for do in (work,)))[0]


def together_in_steps(comm: Any, steps: Iterable[T]) -> list[T]:
    """The list of results of `steps` on this rank; if a step fails on any rank, all stop after their step. Collective.

    `steps` must not communicate over comm, and may have a different length on each rank.
    """
    launcher = os.getppid()
    alarm = comm.Dup() if comm.size > 1 else None
    error: Exception | None = None
    results: list[T] = []
    calls = []
    try:
        for result in steps:
            results.append(result)
            if alarm is not None:
                end_if_orphaned(launcher)
                if alarm.iprobe():
                    break
    except Exception as caught:
        error = caught
        if alarm is not None:
            calls = [alarm.isend(None, dest=rank) for rank in range(comm.size) if rank != comm.rank]
    failures = comm.allgather(
        None if error is None else (isinstance(error, ValueError), f"{type(error).__name__}: {error}")
    )
    if alarm is not None:
        for rank, failure in enumerate(failures):
            if failure is not None and rank != comm.rank:
                alarm.recv(source=rank)
        for call in calls:
            call.wait()
        alarm.Free()
    if error is not None:
        raise error
    for rank, failure in enumerate(failures):
        if failure is not None:
            is_value_error, message = failure
            raise (ValueError if is_value_error else RuntimeError)(f"rank {rank} failed: {message}")
    return results


def end_if_orphaned(launcher: int) -> None:
    """Ends this rank at once if mpirun, the process `launcher`, is gone: nothing else would end it."""
    if os.getppid() != launcher:
        print("fem-frames: mpirun was killed, so this rank ends too", file=sys.stderr, flush=True)
        os._exit(1)  # an exception would wait for other ranks, which may be gone as well


def on_root(comm: Any, work: Callable[[], T]) -> T:
    """work() on rank 0 alone; all ranks get its result or its error. Collective."""
    result = together(comm, lambda: work() if comm.rank == 0 else None)
    return comm.bcast(result)
