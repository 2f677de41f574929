"""The processes of one run: this process alone, or those that `torchrun` started.

All hold the same net and take the same steps; each evaluates its share of a batch, and they sum losses and gradients.
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
from torch import Tensor, nn
from torch import distributed as dist

_store: Any = None  # a store shared by all processes of torchrun until they end


class ProcessLostError(RuntimeError):
    """Another process of the run has ended."""


@contextlib.contextmanager
def _others_needed() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # "Connection closed by peer" and the like
        raise ProcessLostError("another process of the run has ended") from error


def is_first_to_fail(message: str) -> bool:
    """Whether this process should report: no other process of torchrun reported the same or caused this failure.

    Before they are connected all processes fail alike: the first one reports, and the others wait for torchrun to end
    them; a process that survives this wait has failed alone.
    """
    rank = os.environ["RANK"]
    if _store is None:
        time.sleep(0.0 if rank == "0" else 1.5)
        return True
    try:
        first, _, told = _store.compare_set("fem-frames failure", "", f"{rank} {message}").decode().partition(" ")
    except RuntimeError:  # torchrun and its store are gone
        return True
    consequence = "another process of the run" in message or message.startswith("interrupted")  # caused by torchrun
    return bool(first == rank or not (told == message or consequence))


@dataclass(frozen=True)
class World:
    """Rank and number of processes."""

    rank: int = 0
    size: int = 1
    joined: bool = False
    """Whether this object created the process group."""
    launcher: int | None = None
    """The id of torchrun's process, which started this one."""

    @classmethod
    def join(cls, device: torch.device) -> World:
        """Joins the processes of torchrun, or returns this process alone."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1 or not dist.is_available():
            return cls()
        joined = not dist.is_initialized()
        if joined:
            if device.type == "cuda":
                torch.cuda.set_device(device)
            global _store
            # Long enough for rank 0 to solve the test set while the others wait.
            patience, backend = timedelta(hours=2), "nccl" if device.type == "cuda" else "gloo"
            _store, rank, size = next(dist.rendezvous("env://", timeout=patience))
            dist.init_process_group(backend, store=_store, rank=rank, world_size=size, timeout=patience)
        return cls(dist.get_rank(), dist.get_world_size(), joined, os.getppid())

    @property
    def leads(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """The rows of a batch that belong to this process."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def add(self, values: Tensor) -> Tensor:
        """Sums the values over all processes, in place."""
        if self.size > 1:
            with _others_needed():
                dist.all_reduce(values)
        return values

    def take_first(self, net: nn.Module) -> None:
        """Gives the net on every process the numbers that it has on the first one."""
        for value in (*net.parameters(), *net.buffers()) if self.size > 1 else ():
            whole = value.detach().contiguous()
            with _others_needed():
                dist.broadcast(whole.reshape(-1).view(torch.uint8), 0)  # of any type of numbers
            value.data.copy_(whole)

    def wait(self) -> None:
        if self.size > 1:
            with _others_needed():
                dist.barrier()

    @property
    def orphaned(self) -> bool:
        """Whether torchrun is gone, so that nothing else would end this process."""
        return self.launcher is not None and os.getppid() != self.launcher

    def leave(self) -> None:
        if self.joined:
            dist.destroy_process_group()


class GradientMessage:
    """Sums loss and gradient over the processes and tells whether one must stop, in one message per evaluation."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._buffer: Tensor | None = None  # (P + 2,) gradient, loss, requests to stop
        self._stopping: bool | None = False

    def add(self, loss: Tensor, gradient: Tensor, stop: bool) -> Tensor:
        """Returns the sum of the losses in their precision; replaces the gradients (P,) by their sum."""
        if self._world.size == 1:
            return loss
        if self._buffer is None:
            self._buffer = torch.empty(len(gradient) + 2, dtype=loss.dtype, device=loss.device)
        self._buffer[:-2].copy_(gradient)
        self._buffer[-2] = loss
        self._buffer[-1].fill_(float(stop))
        self._world.add(self._buffer)
        gradient.copy_(self._buffer[:-2])
        self._stopping = None
        return self._buffer[-2].clone()

    def read(self, value: Tensor) -> float:
        """The value as a number; the same wait for the device reads whether a process must stop."""
        if self._buffer is None:
            return float(value)
        number, wishes = torch.stack([value, self._buffer[-1]]).tolist()
        self._stopping = wishes > 0
        return float(number)

    @property
    def stopping(self) -> bool:
        """Whether any process asked to stop when it sent its last gradient; equal on all processes."""
        if self._stopping is None:
            assert self._buffer is not None
            self._stopping = float(self._buffer[-1]) > 0
        return self._stopping
