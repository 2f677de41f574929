"""The multigrid of a batch of y: cycles, estimates, and conjugate gradients preconditioned by a cycle.

`SampleMultigrid` is the interface; `fem_frames.solvers.torch_cycles` and `fem_frames.solvers.compiled_cycles` realise
it.

B samples, N free nodal values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

import torch
from torch import Tensor

from fem_frames.operators.linear import LinearOperator, RowOperator, batch_last
from fem_frames.operators.products import accumulation_dtype
from fem_frames.solvers.cycle_plans import Chebyshev, Cycle, Plan

HALF = (torch.float16, torch.bfloat16)
INDEFINITE = (
    "the matrix on the coarsest level is not positive definite: give Dirichlet or Robin data on a part of the "
    "boundary, or a wider precision if the coefficient varies over many orders of magnitude"
)


class SampleMultigrid(ABC):
    """The matrices A_y of all levels for a batch of y, and the cycles that solve with them.

    Public methods take and give (B, N); those with a plan have the batch last.
    """

    dtype: torch.dtype
    wide: torch.dtype
    scale: Tensor | None = None
    """(B,) the matrices are divided by it in half precision, which has little range; None elsewhere."""

    @property
    @abstractmethod
    def A(self) -> RowOperator:
        """A_y on the free nodal values, in half precision divided by `scale`."""

    @abstractmethod
    def full_cycle(self, b: Tensor, plan: Plan) -> Tensor:
        """(N, B) full multigrid: solves on the coarsest level, then prolongates and cycles once on every finer one."""

    @abstractmethod
    def preconditioned(self, r: Tensor, plan: Plan) -> Tensor:
        """(N, B) one cycle from zero for A v = r."""

    @abstractmethod
    def estimated_square(self, v: Tensor, b: Tensor) -> Tensor:
        """(B,) the square of the estimate for v and b (N, B), of the scaled matrices."""

    def judged_cycle(self, b: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        """(N, B) full multigrid, and (B,) its estimated errors relative to the energy norms of the answers."""
        v = self.full_cycle(b, plan)
        return v, relative_estimate(self.estimated_square(v, b), dot(v, b))

    def full(self, b: Tensor, cycle: Cycle = Cycle()) -> Tensor:  # noqa: B008 (frozen)
        """(B, N) the result of full multigrid for right-hand sides b (B, N), without iterating."""
        return self.full_cycle(batch_last(self.scaled(b)), Chebyshev(cycle)).T

    def v_cycle(self, cycle: Cycle = Cycle()) -> CycleOperator:  # noqa: B008 (frozen)
        """One cycle from zero as an operator, which approximates the inverse of A_y."""
        return CycleOperator(self, cycle)

    def residual(self, v: Tensor, b: Tensor) -> Tensor:
        """(B, N) b - A_y v, divided by `scale` in half precision."""
        return self.scaled(b) - self.A(v)

    def estimate(self, v: Tensor, b: Tensor) -> Tensor:
        """(B,) an estimate of the energy norm of the error of v (B, N); not a bound, which `certify` gives.

        η² = Σ_j r_jᵀ D_j⁻¹ r_j with the residuals restricted to all levels, in the time of two products with A_y.
        """
        square = self.estimated_square(batch_last(v), batch_last(self.scaled(b)))
        return (square if self.scale is None else square * self.scale).clamp_min(0).sqrt()

    def refined(self, b: Tensor, v: Tensor, steps: int, cycle: Cycle = Cycle()) -> Tensor:  # noqa: B008 (frozen)
        """(B, N) v after some steps of conjugate gradients, preconditioned by a cycle."""
        if steps == 0:
            return v
        state = ConjugateDirections(self, Chebyshev(cycle), batch_last(self.scaled(b)), batch_last(v))
        for _ in range(steps):
            state.step()
        return state.x.T

    def answer(self, b: Tensor, steps: int, cycle: Cycle = Cycle()) -> Tensor:  # noqa: B008 (frozen)
        """(B, N) full multigrid, then some steps of conjugate gradients."""
        return self.refined(b, self.full(b, cycle), steps, cycle)

    def scaled(self, b: Tensor) -> Tensor:
        """b (B, N) for the scaled matrices, in the working precision."""
        return (b if self.scale is None else b / self.scale[:, None]).to(self.dtype)


class CycleOperator(LinearOperator):
    """M ≈ A_y⁻¹: one cycle from zero, symmetric and positive definite if pre and post steps are equal."""

    def __init__(self, multigrid: SampleMultigrid, cycle: Cycle) -> None:
        self._multigrid = multigrid
        self._plans = Chebyshev(cycle), Chebyshev(replace(cycle, pre=cycle.post, post=cycle.pre))
        A = multigrid.A
        self.shape, self.dtype, self.device, self.batch = A.shape, A.dtype, A.device, A.batch

    def __call__(self, x: Tensor) -> Tensor:
        return self._cycled(x, self._plans[0])

    def T(self, z: Tensor) -> Tensor:
        return self._cycled(z, self._plans[1])

    def _cycled(self, x: Tensor, plan: Plan) -> Tensor:
        self.check(x, self.shape[1])
        given = x if x.ndim > 1 else x[None]
        made = self._multigrid.preconditioned(batch_last(self._multigrid.scaled(given)), plan).T
        return made if x.ndim > 1 else made[0]


class ConjugateDirections:
    """Conjugate gradients for A x = b, preconditioned by a cycle, one step at a time; everything is (N, B)."""

    def __init__(self, multigrid: SampleMultigrid, plan: Plan, b: Tensor, x: Tensor | None) -> None:
        self._multigrid, self._plan, self._A = multigrid, plan, multigrid.A
        self.x = torch.zeros_like(b) if x is None else x
        self.r = b.clone() if x is None else b - self._A.rows(x)
        self._p: Tensor | None = None
        self._square = torch.zeros(b.shape[1], dtype=multigrid.wide, device=b.device)  # (B,) rᵀMr

    def step(self, active: Tensor | None = None) -> Tensor:
        """One iteration for the samples that are active; (B,) those for which it made sense."""
        z = self._multigrid.preconditioned(self.r, self._plan)
        square = dot(self.r, z)
        if self._p is None:
            self._p = z
        else:
            ratio = torch.where(self._square > 0, square / self._square, 0.0).to(z.dtype)
            self._p = torch.addcmul(z, ratio, self._p)
        self._square = square
        product = self._A.rows(self._p)
        curvature = dot(self._p, product)
        good = (curvature > 0) & torch.isfinite(curvature) & (square > 0)
        good = good if active is None else good & active
        size = torch.where(good, square / curvature, 0.0).to(z.dtype)
        product = torch.where(good, product, 0.0)  # 0 times infinity is not 0
        self.x = torch.addcmul(self.x, size, self._p)
        self.r = torch.addcmul(self.r, size, product, value=-1)
        return good


def relative_estimate(square: Tensor, energy: Tensor) -> Tensor:
    """(B,) estimated errors relative to the energy norm, from the squares of both."""
    return (square.clamp_min(0) / energy.clamp_min(torch.finfo(energy.dtype).tiny)).sqrt()


def dot(x: Tensor, z: Tensor) -> Tensor:
    """(B,) inner products of (n, B), summed in float32 for half precision."""
    wide = accumulation_dtype(x.dtype)
    return (x.to(wide) * z.to(wide)).sum(0)
