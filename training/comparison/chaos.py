"""Polynomial chaos by chaospy, fitted to the coefficients of POD modes."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

from fem_frames.mesh.geometry import Floats
from fem_frames.problem.definition import Problem
from training.rivals.reduced_bases import PodSpace, Snapshots
from training.rivals.regression import Regression


def is_there() -> bool:
    """Whether chaospy is installed: `pip install "fem-frames[compare]"`."""
    return find_spec("chaospy") is not None


class ChaospyRegression(Regression):
    """chaospy's expansion and its least-squares fit."""

    def __init__(self, problem: Problem, space: PodSpace, snapshots: Snapshots, degree: int) -> None:
        super().__init__(problem, space, snapshots)
        import chaospy

        self.name = f"polynomial chaos by chaospy, degree {degree}"
        box = chaospy.J(*(chaospy.Uniform(a, b) for a, b in zip(self._low, self._high, strict=True)))
        expansion = chaospy.generate_expansion(degree, box, normed=True)
        targets = space.coefficients(snapshots.values).numpy()
        self._model = chaospy.fit_regression(expansion, snapshots.y.T, targets)

    def coefficients(self, y: Floats) -> Tensor:
        """(B, n) of the modes."""
        return torch.as_tensor(self._model(*y.T).T.copy())

    def values(self, y: Floats) -> Tensor:
        return self.space.synthesise(self.coefficients(y))
