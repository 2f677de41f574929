"""How multigrid cycles visit and smooth levels: the settings of a cycle, and the weights of its steps.

W. Hackbusch, Multi-grid methods and applications, Springer 1985, treats these methods.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from torch import Tensor

Weights = Sequence[float | Tensor]


@cache
def chebyshev(steps: int, low: float = 0.5, high: float = 2.0) -> tuple[float, ...]:
    """Weights of Jacobi steps that reduce errors best for eigenvalues of D⁻¹A in [low, high]; 2 is the largest one."""
    roots = np.cos(np.pi * (2 * np.arange(steps) + 1) / (2 * steps))
    return tuple(float(w) for w in 2 / (high + low + (high - low) * roots))


@dataclass(frozen=True)
class Cycle:
    """How a multigrid cycle visits and smooths the levels. See docs/queries.md."""

    pre: int = 2
    """Smoothing steps before the coarse correction."""
    post: int = 2
    """Smoothing steps after it; conjugate gradients need as many as before."""
    visits: int = 1
    """Coarse corrections per level: 1 is a V-cycle, 2 a W-cycle."""
    low: float = 0.5
    """Errors with eigenvalues of D⁻¹A above this are left to the smoother; the largest eigenvalue is at most 2."""

    def __post_init__(self) -> None:
        for name, least in (("pre", 0), ("post", 0), ("visits", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} is {value!r}; a whole number of at least {least} is expected")
        if self.pre + self.post == 0:
            raise ValueError("pre and post are 0: a cycle without smoothing does not converge, give one of them steps")
        if not 0 < self.low < 2:
            raise ValueError(f"low is {self.low!r}; a number between 0 and 2 is expected, such as 0.5")


class Plan(ABC):
    """The weights of a cycle's smoothing steps and corrections; learned ones are tensors."""

    visits = 1

    @abstractmethod
    def weights(self, j: int, top: int, last: int) -> tuple[Weights, Weights, float | Tensor | None]:
        """Weights before and after the correction on level j, and its factor, in a cycle that began on level `top`.

        There are equally many on all levels.
        """

    def start(self, j: int, last: int) -> float | Tensor | None:
        """The factor of the coarser solution that a cycle on level j starts from; None is 1."""
        return None


class Chebyshev(Plan):
    """The same weights on every level, from Chebyshev polynomials."""

    def __init__(self, cycle: Cycle) -> None:
        self.visits = cycle.visits
        self._pre = chebyshev(cycle.pre, cycle.low) if cycle.pre else ()
        self._post = chebyshev(cycle.post, cycle.low)[::-1] if cycle.post else ()

    def weights(self, j: int, top: int, last: int) -> tuple[Sequence[float], Sequence[float], None]:
        return self._pre, self._post, None
