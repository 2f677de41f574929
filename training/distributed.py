"""The processes of one run: this one alone, or those that `torchrun` started.

All hold the same net and take the same steps; each evaluates its share of a batch, and losses and gradients are summed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from fem_frames.files import one_line

_store: Any = None  # what all processes of torchrun can read and write, until they end


class ProcessLostError(RuntimeError):
    """Another process of the run has ended."""


@contextlib.contextmanager
def _others_needed() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # "Connection closed by peer" and the like
        raise ProcessLostError(f"another process of the run has ended ({one_line(error)})") from error


def is_first_to_fail(message: str) -> bool:
    """Whether no other process of torchrun has said this, or has made this one fail by ending.

    Before the processes have found each other they fail alike: the first one speaks, and the others wait for the end
    that torchrun makes of them; one that goes on after that has failed alone.
    """
    rank = os.environ["RANK"]
    if _store is None:
        time.sleep(0.0 if rank == "0" else 1.5)
        return True
    try:
        first, _, told = _store.compare_set("fem-frames failure", "", f"{rank} {message}").decode().partition(" ")
    except RuntimeError:  # torchrun is gone, and the store with it
        return True
    return bool(first == rank or not (told == message or "another process of the run" in message))


@dataclass(frozen=True)
class World:
    """Rank and number of processes."""

    rank: int = 0
    size: int = 1
    joined: bool = False
    """Whether this object made the group of processes."""
    launcher: int | None = None
    """The process that started this one, torchrun's."""

    @classmethod
    def join(cls, device: torch.device) -> World:
        """The world that torchrun made, or this process alone."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1 or not dist.is_available():
            return cls()
        joined = not dist.is_initialized()
        if joined:
            if device.type == "cuda":
                torch.cuda.set_device(device)
            global _store
            # Long enough for the test set to be solved on rank 0 while the others wait.
            patience, backend = timedelta(hours=2), "nccl" if device.type == "cuda" else "gloo"
            _store, rank, size = next(dist.rendezvous("env://", timeout=patience))
            dist.init_process_group(backend, store=_store, rank=rank, world_size=size, timeout=patience)
        return cls(dist.get_rank(), dist.get_world_size(), joined, os.getppid())

    @property
    def leads(self) -> bool:
        """Whether this process writes and speaks."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """Which rows of a batch are this process's."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def add(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            with _others_needed():
                dist.all_reduce(values)
        return values

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether the flag is set on any process."""
        return bool(self.add(torch.tensor(float(flag), device=device))) if self.size > 1 else flag

    def wait(self) -> None:
        if self.size > 1:
            with _others_needed():
                dist.barrier()

    @property
    def orphaned(self) -> bool:
        """Whether torchrun is gone, so that nobody would end this process."""
        return self.launcher is not None and os.getppid() != self.launcher

    def leave(self) -> None:
        if self.joined:
            dist.destroy_process_group()
