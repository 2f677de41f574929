"""A net that is a solver: full multigrid whose smoothing and correction weights are learned.

It sees the coefficient and the load on every level instead of y alone. Its few weights start as those of a Chebyshev
cycle; training adapts them to the family of coefficients that the parameters span.

B samples, p parameters, N free nodal values, Nhat frame coefficients.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fem_frames.formulations.formulation import Formulation
from fem_frames.formulations.formulation_checks import check_quadratic
from fem_frames.operators.analysis import FrameAnalysis
from fem_frames.operators.checking import is_plain
from fem_frames.solvers.cycle_plans import Chebyshev, Cycle, Plan, chebyshev
from fem_frames.solvers.multigrid import Multigrid
from fem_frames.solvers.sample_multigrid import SampleMultigrid
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
        check_quadratic(formulation, "the net multigrid")
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
        recorded = torch.is_grad_enabled() and self.weights.requires_grad
        traced = torch.compiler.is_compiling() or recorded
        at = self._multigrid.recorded(y) if traced else self._multigrid.at(y)
        v = self._solved(at, formulation.nodal_load(y).T.contiguous(), traced)
        if recorded and not v.requires_grad:  # one level, which is solved exactly: there is nothing to learn
            v = v + 0 * self.weights.sum()
        return v.T

    def prepare_tracing(self) -> None:
        """Makes the tables that torch's operations need: while torch traces, no tables may be made."""
        formulation = self.formulation
        y = torch.as_tensor(formulation.problem.parameters.nominal).to(formulation.frame.device, formulation.wide)
        self._solved(self._multigrid.recorded(y), formulation.nodal_load(y).T.contiguous(), True)

    def solved(self, y: Tensor) -> Callable[[], Tensor]:
        """A function that solves for y (B, p) with coefficient, load and set-up done already, for measurements."""
        at, b = self._multigrid.at(y), self.formulation.nodal_load(y).T.contiguous()
        return lambda: self._solved(at, b, False)

    def _solved(self, at: SampleMultigrid, b: Tensor, traced: bool) -> Tensor:
        """(N, B) the learned cycle's answers to loads (N, B), judged unless torch traces."""
        weights = self.weights.to(self.formulation.wide) if traced else self.weights.double().tolist()
        plan = LearnedPlan(weights, self.steps[0])
        if traced or not is_plain(b):
            return at.full_cycle(b, plan)
        v, share = at.judged_cycle(b, plan)
        return self._judged(at, v, share, b)

    def _judged(self, at: SampleMultigrid, v: Tensor, share: Tensor, b: Tensor) -> Tensor:
        """(N, B) v with relative estimates (B,), or the Chebyshev cycle's answers where they are estimated better."""
        doubtful = ~(share <= self.limit)  # NaN too
        if not doubtful.any():
            return v
        other, its_share = at.judged_cycle(b, self._chebyshev)
        worse = doubtful & ~(share <= its_share)
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
                self._limit = float(at.judged_cycle(b, self._chebyshev)[1].max())
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
