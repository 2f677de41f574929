"""Errors under MPI: one rank's failure becomes everyone's, before anybody waits for it in vain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def together(comm: Any, work: Callable[[], T]) -> T:
    """work() on this rank; if it fails on any rank, an error on all of them. Collective.

    `work` itself must not communicate.
    """
    error: Exception | None = None
    try:
        result = work()
    except Exception as caught:
        error = caught
    failures = comm.allgather(None if error is None else (isinstance(error, ValueError), f"{type(error).__name__}: {error}"))
    if error is not None:
        raise error
    for rank, failure in enumerate(failures):
        if failure is not None:
            is_value_error, message = failure
            raise (ValueError if is_value_error else RuntimeError)(f"rank {rank} failed: {message}")
    return result


def on_root(comm: Any, work: Callable[[], T]) -> T:
    """work() on rank 0 alone, its result on every rank; its error too. Collective."""
    result = together(comm, lambda: work() if comm.rank == 0 else None)
    return comm.bcast(result)
