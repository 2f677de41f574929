"""The processes of one run: this one alone, or those that `torchrun` started.

All hold the same net and take the same steps; each evaluates its share of a batch, and losses and gradients are summed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor
from torch import distributed as dist


@dataclass(frozen=True)
class World:
    """Rank and number of processes."""

    rank: int = 0
    size: int = 1
    joined: bool = False
    """Whether this object made the group of processes."""

    @classmethod
    def join(cls, device: torch.device) -> World:
        """The world that torchrun made, or this process alone."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1 or not dist.is_available():
            return cls()
        joined = not dist.is_initialized()
        if joined:
            if device.type == "cuda":
                torch.cuda.set_device(device)
            # Long enough for the test set to be solved on rank 0 while the others wait.
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(hours=2))
        return cls(dist.get_rank(), dist.get_world_size(), joined)

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
            dist.all_reduce(values)
        return values

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()

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
