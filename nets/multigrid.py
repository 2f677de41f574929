"""A net that is a solver: full multigrid whose smoothing and correction weights are learned.

It sees the coefficient and the load on every level instead of y alone. Its few weights start as those of a Chebyshev
cycle; training adapts them to the family of coefficients that the parameters span.

B samples, p parameters, N free nodal values, Nhat frame coefficients.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fem_frames.formulations.formulation import Formulation
from fem_frames.operators.analysis import FrameAnalysis
from fem_frames.operators.checking import is_plain
from fem_frames.solvers.multigrid import Chebyshev, Cycle, Multigrid, Plan, SampleMultigrid, chebyshev
from nets.frame_net import Box, FrameNet, Sizes

DEPTHS = (
    6  # levels with weights of their own, counted from the level on which a cycle begins; deeper ones share the last
)
JUDGES = 32  # samples on which the Chebyshev cycle is tried, to know what may be expected of an answer


class MultigridNet(FrameNet):
    """Maps y (B, p) to frame coefficients by one full multigrid with learned weights.

    `steps` has the number of smoothing steps before and after each coarse correction. The cycle on the finest level and
    those on coarser levels have weights of their own. Outside of training, an answer whose estimated error exceeds what
    a Chebyshev cycle leaves is replaced by the better one of the two, with a warning. See docs/queries.md.
    """

    def __init__(
        self, formulation: Formulation, level_sizes: Sizes, steps: tuple[int, int], nodal: bool, box: Box | None = None
    ) -> None:
        parameters = formulation.problem.parameters.dimension
        super().__init__(parameters, level_sizes, box=box)
        self.steps, self._nodal = steps, nodal
        wide = formulation.wide
        # Half precision holds the weights, but a cycle in it would need refinement.
        self.formulation = formulation if formulation.frame.dtype == wide else formulation.to(wide)
        self._multigrid = Multigrid(self.formulation)
        frame = self.formulation.frame
        self._analysis = FrameAnalysis(frame.arrays, wide, frame.device)
        self._chebyshev = Chebyshev(Cycle(*steps))
        self.weights = nn.Parameter(torch.empty(2, DEPTHS, sum(steps) + 2))
        self.initialise()
        self._limit: float | None = None

    @staticmethod
    def count(steps: tuple[int, int]) -> int:
        """The number of weights."""
        return 2 * DEPTHS * (sum(steps) + 2)

    def initialise(self) -> None:
        """Sets the weights of a Chebyshev cycle, with corrections and starts that are taken as they are."""
        pre, post = self.steps
        row = [*(chebyshev(pre) if pre else ()), *(chebyshev(post)[::-1] if post else ()), 1.0, 1.0]
        with torch.no_grad():
            self.weights.copy_(torch.tensor(row).expand_as(self.weights))

    def coefficients(self, x: Tensor) -> Tensor:
        raise AssertionError("this net needs y itself")

    def forward(self, y: Tensor) -> Tensor:
        v = self.nodal_values(y)
        return (v if self._nodal else self._analysis(v)).to(self.weights.dtype)

    def nodal_values(self, y: Tensor) -> Tensor:
        """(B, N) free nodal values, in the wide precision."""
        if torch.is_grad_enabled() and y.requires_grad:
            raise ValueError(
                "the net multigrid has no gradient in y: use fem_frames.differentiable_solve, "
                "which takes one adjoint solve"
            )
        formulation = self.formulation
        y = y.to(formulation.frame.device, formulation.wide)
        at, b = self._multigrid.at(y), formulation.nodal_load(y).T.contiguous()
        recorded = torch.is_grad_enabled() and self.weights.requires_grad
        traced = torch.compiler.is_compiling() or recorded
        weights = self.weights.to(formulation.wide) if traced else self.weights.double().tolist()
        v = at.full_cycle(b, LearnedPlan(weights, self.steps[0]))
        if recorded and not v.requires_grad:  # one level, which is solved exactly: there is nothing to learn
            v = v + 0 * self.weights.sum()
        if not recorded and is_plain(v):
            v = self._judged(at, v, b)
        return v.T

    def _judged(self, at: SampleMultigrid, v: Tensor, b: Tensor) -> Tensor:
        """(N, B) v, with the Chebyshev cycle's answers where they are estimated to be better."""
        limit = self.limit
        share = _relative_estimate(at, v, b)
        doubtful = ~(share <= limit)  # NaN too
        if not doubtful.any():
            return v
        other = at.full_cycle(b, self._chebyshev)
        worse = doubtful & ~(share <= _relative_estimate(at, other, b))
        if not worse.any():
            return v
        warnings.warn(
            f"{int(worse.sum())} of {len(worse)} answers come from the Chebyshev cycle, because the learned one is "
            "estimated to be worse there: train for such parameters, or improve the answers (tol)",
            stacklevel=4,
        )
        return torch.where(worse, other, v)

    @property
    def limit(self) -> float:
        """The largest relative estimate of the Chebyshev cycle's error for some random parameters."""
        if self._limit is None:
            formulation = self.formulation
            samples = formulation.problem.parameters.sample(JUDGES, 0)
            y = torch.as_tensor(samples).to(formulation.frame.device, formulation.wide)
            with torch.no_grad():
                at, b = self._multigrid.at(y), formulation.nodal_load(y).T.contiguous()
                self._limit = float(_relative_estimate(at, at.full_cycle(b, self._chebyshev), b).max())
        return self._limit


class LearnedPlan(Plan):
    """Weights by kind of cycle, on the finest level or below, and by depth below the level where the cycle began."""

    def __init__(self, weights: Tensor | list[list[list[float]]], pre: int) -> None:
        """(2, DEPTHS, pre + post + 2): smoothing steps, factor of the correction, factor of the start."""
        self._weights, self._pre = weights, pre

    def _row(self, j: int, top: int, last: int) -> Sequence[float] | Tensor:
        return self._weights[int(top < last)][min(top - j, DEPTHS - 1)]

    def weights(
        self, j: int, top: int, last: int
    ) -> tuple[Sequence[float | Tensor], Sequence[float | Tensor], float | Tensor | None]:
        row = list(self._row(j, top, last))
        return row[: self._pre], row[self._pre : -2], row[-2]

    def start(self, j: int, last: int) -> float | Tensor | None:
        return self._row(j, j, last)[-1]


def _relative_estimate(at: SampleMultigrid, v: Tensor, b: Tensor) -> Tensor:
    """(B,) the estimated error of v (N, B) relative to its own energy norm."""
    return at.estimate(v.T, b.T) / (v * b).sum(0).clamp_min(torch.finfo(v.dtype).tiny).sqrt()
