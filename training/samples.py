"""Training samples y: new random ones in every step, a fixed set in minibatches, or Sobol points.

The batch of a step depends only on the seed and the step, not on earlier draws, so a resumed or distributed run sees
the same samples. Seeds end in a distinct number because NumPy treats (s, 0) like s, which a test set may use.

B samples in a batch over all processes, p parameters, K samples of a fixed set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from fem_frames.mesh.geometry import Floats
from fem_frames.problem.definition import Gaussian, Uniform

if TYPE_CHECKING:
    from torch.quasirandom import SobolEngine

Rows = npt.NDArray[np.int64]


class Samples(Protocol):
    """The batches of all steps."""

    steps_per_epoch: int
    repeats: bool
    """Whether all steps have the same batch."""

    def batch(self, step: int) -> tuple[Floats, Rows | None]:
        """(B, p) parameters of a step, and their rows in the fixed set if there is one."""


class FreshSamples:
    """New random samples in every step, drawn for many steps at a time."""

    repeats = False
    BLOCK = 64  # steps

    def __init__(self, parameters: Uniform | Gaussian, batch: int, steps_per_epoch: int, seed: int) -> None:
        self.steps_per_epoch = steps_per_epoch
        self._parameters, self._batch, self._seed = parameters, batch, seed
        self._number, self._block = -1, np.empty((0, 0))

    def batch(self, step: int) -> tuple[Floats, Rows | None]:
        number, place = divmod(step, self.BLOCK)
        if number != self._number:
            self._number = number
            self._block = self._parameters.sample(self.BLOCK * self._batch, (self._seed, number, 1))
        return self._block[place * self._batch : (place + 1) * self._batch], None


class FixedSamples:
    """K random samples, in another order in every epoch."""

    def __init__(self, parameters: Uniform | Gaussian, count: int, batch: int, seed: int) -> None:
        self.y = parameters.sample(count, (seed, 0, 2))
        self.steps_per_epoch = -(-count // batch)
        self.repeats = self.steps_per_epoch == 1
        self._batch, self._seed = batch, seed
        self._epoch, self._order = -1, np.arange(count)

    def batch(self, step: int) -> tuple[Floats, Rows | None]:
        epoch, place = divmod(step, self.steps_per_epoch)
        if not self.repeats and epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng((self._seed, epoch, 3)).permutation(len(self.y))
        rows = self._order[place * self._batch : (place + 1) * self._batch]
        return self.y[rows], rows


class SobolSamples:
    """Consecutive points of scrambled Sobol sequences, spread more evenly than random points."""

    repeats = False
    LENGTH = 2**30  # torch's sequences end here without an error

    def __init__(self, parameters: Uniform | Gaussian, batch: int, steps_per_epoch: int, seed: int) -> None:
        from torch.quasirandom import SobolEngine

        if parameters.dimension > SobolEngine.MAXDIM:
            raise ValueError(
                f"Sobol points have at most {SobolEngine.MAXDIM} coordinates, there are {parameters.dimension} "
                "parameters: use sampling fresh"
            )
        self.steps_per_epoch = steps_per_epoch
        self._parameters, self._batch = parameters, batch
        self._seed = seed
        self._number, self._engine = 0, self._sequence(0)

    def batch(self, step: int) -> tuple[Floats, Rows | None]:
        import torch

        number, place = divmod(step, self.LENGTH // self._batch)
        if number != self._number:
            self._number, self._engine = number, self._sequence(number)
        first = place * self._batch
        if self._engine.num_generated > first:
            self._engine.reset()
        self._engine.fast_forward(first - self._engine.num_generated)
        points = self._engine.draw(self._batch, dtype=torch.float64).numpy()
        return self._parameters.quantile(points), None

    def _sequence(self, number: int) -> SobolEngine:
        """The first sequence is scrambled with the seed itself, later ones with numbers derived from it."""
        from torch.quasirandom import SobolEngine

        seed = int(np.random.default_rng((self._seed, number, 4)).integers(2**31)) if number else self._seed
        return SobolEngine(self._parameters.dimension, scramble=True, seed=seed)
