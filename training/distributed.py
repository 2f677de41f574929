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

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether the flag is set on any process."""
        return bool(self.add(torch.tensor(float(flag), device=device))) if self.size > 1 else flag

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()

    def leave(self) -> None:
        if self.joined:
            dist.destroy_process_group()
