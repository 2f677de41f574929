"""Regression: y to the coefficients of a few POD modes, by polynomials or a small net fitted to snapshots.

B samples, p parameters, S snapshots, n modes, N free nodal values, P polynomials.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import comb

import numpy as np
import torch
from numpy.polynomial.legendre import legvander
from torch import Tensor

from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.problem.definition import Problem, Uniform, whole_number
from training.dense_net import dense_net, fit_by_adam
from training.rivals.reduced_bases import PodSpace, Rival, Snapshots


class Regression(Rival):
    """Fits mode coefficients: modes are orthonormal, so squared errors of coefficients sum to that of the solution."""

    def __init__(self, problem: Problem, space: PodSpace, snapshots: Snapshots) -> None:
        if not isinstance(problem.parameters, Uniform):
            raise ValueError(
                f"the parameters of {problem.name} are {problem.parameters}, but regression here needs a box: "
                "give the problem parameters=Uniform(…)"
            )
        self.problem, self.space, self.solves = problem, space, len(snapshots.y)
        self._low, self._high = np.array(problem.parameters.lower), np.array(problem.parameters.upper)

    def mapped(self, y: Floats) -> Floats:
        """y mapped from its box to [-1, 1]^p."""
        return 2 * (y - self._low) / (self._high - self._low) - 1

    @abstractmethod
    def coefficients(self, y: Floats) -> Tensor:
        """(B, n) of the modes."""

    def values(self, y: Floats) -> Tensor:
        return self.space.synthesise(self.coefficients(y))


class PolynomialChaos(Regression):
    """Legendre polynomials up to a total degree, fitted by least squares."""

    def __init__(self, problem: Problem, space: PodSpace, snapshots: Snapshots, degree: int) -> None:
        super().__init__(problem, space, snapshots)
        self.degree, p = whole_number(degree, "the degree of polynomial chaos", least=0), problem.parameters.dimension
        self.name = f"polynomial chaos, degree {degree}"
        if comb(p + degree, p) > self.solves:
            raise ValueError(
                f"{comb(p + degree, p)} polynomials of degree {degree} cannot be fitted to {self.solves} snapshots: "
                f"take degree {affordable_degree(p, self.solves, 1)} at most, or more snapshots"
            )
        self._degrees = total_degrees(p, degree)  # (P, p)
        targets = space.coefficients(snapshots.values)  # (S, n)
        self._weights = torch.linalg.lstsq(self.polynomials(snapshots.y), targets).solution  # (P, n)

    def polynomials(self, y: Floats) -> Tensor:
        """(B, P) products of Legendre polynomials, orthonormal for y uniform in its box."""
        scale = np.sqrt(2 * np.arange(self.degree + 1) + 1)
        table = torch.as_tensor(scale * legvander(self.mapped(y), self.degree))  # (B, p, degree + 1)
        found = table[:, 0, self._degrees[:, 0]]
        for k in range(1, table.shape[1]):
            found = found * table[:, k, self._degrees[:, k]]
        return found

    def coefficients(self, y: Floats) -> Tensor:
        return self.polynomials(y) @ self._weights


def total_degrees(p: int, degree: int) -> Ints:
    """(P, p) all degrees in p variables with a sum of at most `degree`."""
    if p == 0:
        return np.zeros((1, 0), np.int64)
    return np.concatenate([np.insert(total_degrees(p - 1, degree - k), 0, k, axis=1) for k in range(degree + 1)])


def affordable_degree(p: int, solves: int, surplus: float = 3.0) -> int:
    """The largest total degree with at least `surplus` solves per polynomial."""
    degree = 0
    while surplus * comb(p + degree + 1, p) <= solves:
        degree += 1
    return degree


class PodNet(Regression):
    """A net p - widths - n with SiLU, fitted by Adam and then L-BFGS with all snapshots in every step.

    With `batch`, steps of Adam use so many random snapshots each, which suits large sets.
    """

    def __init__(
        self,
        problem: Problem,
        space: PodSpace,
        snapshots: Snapshots,
        widths: Sequence[int] = (64, 64),
        steps: tuple[int, int] = (1000, 3000),
        seed: int = 0,
        batch: int | None = None,
    ) -> None:
        """`steps` of Adam and of L-BFGS."""
        super().__init__(problem, space, snapshots)
        sizes = (problem.parameters.dimension, *widths, space.size)
        self.name = f"POD and net {'-'.join(map(str, sizes))}"
        self.net = dense_net(sizes, seed)
        targets = space.coefficients(snapshots.values)  # (S, n)
        # One scale for all modes, so that small ones count no more than they do in the solution.
        self._centre, self._scale = targets.mean(0), targets.var(0).sum().sqrt()
        random = None if batch is None else torch.randint(self.solves, (steps[0], batch), generator=_seeded(seed))
        self._fit(self._inputs(snapshots.y), ((targets - self._centre) / self._scale).float(), *steps, random)

    @torch.no_grad()
    def coefficients(self, y: Floats) -> Tensor:
        return self._centre + self._scale * self.net(self._inputs(y)).double()

    def _inputs(self, y: Floats) -> Tensor:
        return torch.as_tensor(self.mapped(y)).float()

    def _fit(self, y: Tensor, targets: Tensor, adam_steps: int, lbfgs_steps: int, random: Tensor | None) -> None:
        """`random` (adam_steps, batch) are the snapshots of each step of Adam; None: all of them."""
        weights = list(self.net.parameters())
        lbfgs = torch.optim.LBFGS(
            weights,
            max_iter=lbfgs_steps,
            max_eval=2 * lbfgs_steps,
            history_size=100,
            tolerance_grad=0.0,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )

        def loss(step: int | None = None) -> Tensor:
            some = slice(None) if step is None or random is None else random[step]
            return (self.net(y[some]) - targets[some]).square().sum(1).mean()

        def evaluation() -> Tensor:
            self.net.zero_grad()
            value = loss()
            value.backward()
            return value.detach()

        fit_by_adam(self.net, loss, adam_steps, (5e-3, 5e-5))
        if lbfgs_steps:
            lbfgs.step(evaluation)


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
