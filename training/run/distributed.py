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
from torch import Tensor, nn
from torch import distributed as dist

_store: Any = None  # what all processes of torchrun can read and write, until they end


class ProcessLostError(RuntimeError):
    """Another process of the run has ended."""


@contextlib.contextmanager
def _others_needed() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # "Connection closed by peer" and the like
        raise ProcessLostError("another process of the run has ended") from error


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
    consequence = "another process of the run" in message or message.startswith("interrupted")  # by torchrun
    return bool(first == rank or not (told == message or consequence))


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
        """Whether torchrun is gone, so that nobody would end this process."""
        return self.launcher is not None and os.getppid() != self.launcher

    def leave(self) -> None:
        if self.joined:
            dist.destroy_process_group()


class GradientMessage:
    """Loss and gradient summed over the processes, and whether one of them is to stop: one message per evaluation."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._buffer: Tensor | None = None  # (P + 2,) gradient, loss, wishes to stop
        self._stopping: bool | None = False

    def add(self, loss: Tensor, gradient: Tensor, stop: bool) -> Tensor:
        """The sum of losses, in their precision; that of the gradients (P,) takes their place."""
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
        """A number, in one wait for the device, in which is learnt too whether a process is to stop."""
        if self._buffer is None:
            return float(value)
        number, wishes = torch.stack([value, self._buffer[-1]]).tolist()
        self._stopping = wishes > 0
        return float(number)

    @property
    def stopping(self) -> bool:
        """Whether a process was to stop when it sent its last gradient: the same on all."""
        if self._stopping is None:
            assert self._buffer is not None
            self._stopping = float(self._buffer[-1]) > 0
        return self._stopping
