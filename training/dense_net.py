"""Plain nets of dense layers, and their fit to given values by Adam.

B samples, p inputs, s outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


def dense_net(sizes: Sequence[int], seed: int, activation: type[nn.Module] = nn.SiLU) -> nn.Sequential:
    """(B, p) to (B, s): linear layers with sizes (p, …, s), and activations between them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        linear = [nn.Linear(a, b) for a, b in pairwise(sizes)]
    return nn.Sequential(linear[0], *(layer for own in linear[1:] for layer in (activation(), own)))


def fit_by_adam(
    net: nn.Module,
    loss: Callable[[int], Tensor],
    steps: int,
    rates: tuple[float, float],
    betas: tuple[float, float] = (0.9, 0.999),
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Minimises `loss`, a function of the number of the step, with a rate that falls along a cosine.

    `rates` are the first and the last rate.
    """
    adam = torch.optim.Adam(net.parameters(), lr=rates[0], betas=betas)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, max(steps, 1), eta_min=rates[1])
    for step in range(steps):
        adam.zero_grad()
        value = loss(step)
        value.backward()
        if step % 100 == 0:  # a weight that is not finite stays so, so that rare looks suffice
            check_finite(value, step, rates[0])
            if progress is not None:
                progress(step, steps)
        adam.step()
        schedule.step()
    if progress is not None:
        progress(steps, steps)


def check_finite(loss: Tensor, step: int, rate: float) -> None:
    if not bool(torch.isfinite(loss)):
        raise ValueError(f"the loss is not finite at step {step}; try a rate below {rate:g}")
