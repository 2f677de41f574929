"""Batched multigrid over the meshes of a frame: cycles, estimates, and conjugate gradients preconditioned by a cycle.

A_y acts on the free nodal values of one scalar field. All samples of a batch go through a cycle together, with the
batch last, so that every product streams through memory once for all of them. The smoother is Jacobi's iteration with
weights from Chebyshev polynomials; where a frame's first mesh is fine, algebraic levels lie below it.
W. Hackbusch, Multi-grid methods and applications, Springer 1985, treats these methods.

B samples, n unknowns of a level, N of the finest one, E weights of a level, K cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fem_frames.formulations.formulation import Formulation
from fem_frames.frame.elements import P1, P1Values
from fem_frames.frame.graphs import GraphLevel, graph_hierarchy
from fem_frames.operators.checking import is_plain
from fem_frames.operators.graphs import GraphMatrix, GraphProducts
from fem_frames.operators.linear import LinearOperator, batch_last
from fem_frames.operators.products import SparseProduct, accumulation_dtype
from fem_frames.operators.recursion import Prolongation

HALF = (torch.float16, torch.bfloat16)


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


def has_multigrid(formulation: Formulation) -> bool:
    """Whether the formulation has a multigrid: one scalar field with its values at points."""
    fields = formulation.frame.arrays.fields
    return len(fields) == 1 and isinstance(fields[0].element, P1 | P1Values) and formulation.frame.arrays.nodal_size > 0


class Multigrid:
    """The levels of a formulation's multigrid, from coarse to fine; `at(y)` sets them up for samples.

    See docs/queries.md.
    """

    def __init__(self, formulation: Formulation) -> None:
        if not has_multigrid(formulation):
            names = " and ".join(field.name for field in formulation.frame.arrays.fields)
            raise ValueError(
                f"multigrid is for one scalar field with values at points, but {formulation.name} has {names}: "
                "solve it in the frame, solve(…, solver='frame')"
            )
        self.formulation = formulation
        self.dtype, self.device, self.wide = formulation.frame.dtype, formulation.frame.device, formulation.wide
        tables = graph_hierarchy(formulation.frame.arrays, formulation.is_diffusion)
        self._of_local = None if tables.of_local is None else SparseProduct(tables.of_local, self.wide, self.device)
        self.levels = [
            MultigridLevel(level, signed, self.dtype, self.device)
            for level, signed in zip(tables.levels, tables.signed, strict=True)
        ]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of unknowns on each level."""
        return tuple(level.size for level in self.levels)

    def at(self, y: Tensor) -> SampleMultigrid:
        """The matrices of all levels for y (B, p)."""
        y = self.formulation.check_parameters(y)
        if self._of_local is None:
            return self.from_cells(self.formulation.cell_diffusion(y))
        local = self.formulation.local_matrices(y)  # (K, L, L, B)
        return SampleMultigrid(self, self._weights(self._of_local(local.flatten(0, 2))))

    def from_cells(self, a: Tensor) -> SampleMultigrid:
        """The matrices of all levels for diffusion numbers a (K, B) of the finest cells, in the wide precision."""
        found: list[Tensor] = []
        for level in reversed(self.levels):
            if level.of_cells is None:
                assert level.of_finer is not None
                found.append(level.of_finer(found[-1]))
                continue
            a = a if not found else a.unflatten(0, (level.of_cells.shape[1], -1)).mean(1)
            found.append(level.of_cells(a))
        return SampleMultigrid(self, found[::-1])

    def _weights(self, finest: Tensor) -> list[Tensor]:
        """(E, B) the weights of all levels from those of the finest one."""
        found = [finest]
        for level in reversed(self.levels[:-1]):
            assert level.of_finer is not None
            found.append(level.of_finer(found[-1]))
        return found[::-1]

    def answer(self, y: Tensor, steps: int = 1, cycle: Cycle = Cycle()) -> Tensor:  # noqa: B008 (frozen)
        """(B, N) free nodal values of the solutions by full multigrid and `steps` of conjugate gradients.

        This is the fast way to many answers; `solve` goes on until a tolerance is met.
        """
        at, b = self.at(y), self.formulation.nodal_load(y)
        return at.refined(b, at.full(b, cycle), steps, cycle)


class MultigridLevel:
    """The products of one level that do not depend on y."""

    def __init__(self, level: GraphLevel, signed: bool, dtype: torch.dtype, device: torch.device) -> None:
        wide = accumulation_dtype(dtype)
        self.products = GraphProducts(level.graph, signed, dtype, device)
        self.size = level.graph.size
        self.P = None if level.prolongation is None else Prolongation(level.prolongation, dtype, device)
        self.of_cells = None if level.of_cells is None else SparseProduct(level.of_cells, wide, device)
        self.of_finer = None if level.of_finer is None else SparseProduct(level.of_finer, wide, device)
        rows, columns, signs = level.graph.places
        self._places = torch.as_tensor(rows * level.graph.size + columns).to(device)
        self._signs = torch.as_tensor(signs).to(device, wide)[:, None]
        self._edges = len(level.graph.edges)

    def dense(self, weights: Tensor) -> Tensor:
        """(B, n, n) the matrices with weights (E, B)."""
        edges = weights[: self._edges]
        values = torch.cat([edges, edges, edges, edges, weights[self._edges :]]) * self._signs
        flat = values.new_zeros(self.size**2, values.shape[1]).index_add_(0, self._places, values)
        return flat.T.unflatten(1, (self.size, self.size))


class SampleMultigrid:
    """The matrices A_y of all levels for a batch of y, and the cycles that solve with them.

    Public methods take and give (B, N); inside, the batch is last.
    """

    def __init__(self, multigrid: Multigrid, weights: Sequence[Tensor]) -> None:
        """`weights` (E, B) of each level, in the wide precision."""
        self._levels, dtype = multigrid.levels, multigrid.dtype
        self.wide, self.dtype = multigrid.wide, dtype
        diagonals = [level.products.diagonal(c) for level, c in zip(self._levels, weights, strict=True)]
        self.scale: Tensor | None = None
        """(B,) the matrices are divided by it in half precision, which has little range; None elsewhere."""
        if dtype in HALF:
            self.scale = diagonals[-1].amax(0)
            weights, diagonals = ([value / self.scale for value in values] for values in (weights, diagonals))
        matrices = [c.to(dtype) for c in weights]
        self.matrices = [GraphMatrix(level.products, c) for level, c in zip(self._levels, matrices, strict=True)]
        self.inverse_diagonals = [value.reciprocal().to(dtype) for value in diagonals]  # (n, B)
        self._coarsest = _inverse(self._levels[0].dense(weights[0]))  # (n, n, B)

    @property
    def A(self) -> GraphMatrix:
        """A_y on the free nodal values, in half precision divided by `scale`."""
        return self.matrices[-1]

    # ---- public maps, batch first

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
        r = batch_last(self.residual(v, b))
        square = torch.zeros(r.shape[1], dtype=self.wide, device=r.device)
        for j in range(len(self._levels) - 1, 0, -1):
            square += _dot(r, self.inverse_diagonals[j] * r)
            r = self._restricted(j, r)
        square += _dot(r, self.coarsest(r))
        return (square if self.scale is None else square * self.scale).clamp_min(0).sqrt()

    def refined(self, b: Tensor, v: Tensor, steps: int, cycle: Cycle = Cycle()) -> Tensor:  # noqa: B008 (frozen)
        """(B, N) v after some steps of conjugate gradients, preconditioned by a cycle."""
        if steps == 0:
            return v
        rhs, x = batch_last(self.scaled(b)), batch_last(v)
        state = ConjugateDirections(self, Chebyshev(cycle), rhs, x)
        for _ in range(steps):
            state.step()
        return state.x.T

    def scaled(self, b: Tensor) -> Tensor:
        """b (B, N) for the scaled matrices, in the working precision."""
        return (b if self.scale is None else b / self.scale[:, None]).to(self.dtype)

    # ---- cycles, batch last

    def full_cycle(self, b: Tensor, plan: Plan) -> Tensor:
        """(N, B) full multigrid: solves on the coarsest level, then prolongates and cycles once on every finer one."""
        loads = [b]
        for j in range(len(self._levels) - 1, 0, -1):
            loads.append(self._restricted(j, loads[-1]))
        loads.reverse()
        v, last = self.coarsest(loads[0]), len(self._levels) - 1
        for j in range(1, last + 1):
            v = self._prolonged(j, v)
            start = plan.start(j, last)
            v = v if start is None else v * start
            v = self.cycle(j, v, loads[j], plan, j)
        return v

    def cycle(self, j: int, v: Tensor | None, b: Tensor, plan: Plan, top: int) -> Tensor:
        """(n, B) one cycle on level j for A v = b, begun on level `top`; None is zero. It may overwrite v."""
        if j == 0:
            return self.coarsest(b)
        pre, post, correction = plan.weights(j, top, len(self._levels) - 1)
        v = self._smoothed(j, v, b, pre)
        r = b if v is None else self._residual(j, v, b)
        r, e = self._restricted(j, r), None
        for _ in range(plan.visits):
            e = self.cycle(j - 1, e, r, plan, top)
            if j == 1:
                break  # solved exactly
        assert e is not None
        e = self._prolonged(j, e)
        e = e if correction is None else e * correction
        v = e if v is None else v.add_(e) if _owned(v) else v + e
        made = self._smoothed(j, v, b, post)
        assert made is not None
        return made

    def coarsest(self, b: Tensor) -> Tensor:
        """(n, B) the solution on the coarsest level."""
        return (self._coarsest * b.to(self.wide)).sum(1).to(self.dtype)

    def _smoothed(self, j: int, v: Tensor | None, b: Tensor, weights: Sequence[float | Tensor]) -> Tensor | None:
        D = self.inverse_diagonals[j]
        for w in weights:
            if v is None:
                v = D * b * w
                continue
            r = self._residual(j, v, b)
            v = v.addcmul_(r, D, value=w) if isinstance(w, float) and _owned(v) else v + r * D * w
        return v

    def _residual(self, j: int, v: Tensor, b: Tensor) -> Tensor:
        if _owned(v) and not b.requires_grad:
            product = self.matrices[j].rows(v)
            return torch.sub(b, product, out=product)
        return b - self.matrices[j](v.T).T

    def _prolonged(self, j: int, v: Tensor) -> Tensor:
        P = self._levels[j].P
        assert P is not None
        return P.rows(v) if _owned(v) else P(v.T).T

    def _restricted(self, j: int, r: Tensor) -> Tensor:
        P = self._levels[j].P
        assert P is not None
        return P.rows_transposed(r) if _owned(r) else P.T(r.T).T


def _owned(v: Tensor) -> bool:
    """Whether nobody differentiates through v, so that it may be overwritten."""
    return not (torch.is_grad_enabled() and v.requires_grad)


def _inverse(matrices: Tensor) -> Tensor:
    """(n, n, B) the inverses of positive definite matrices (B, n, n)."""
    factor, failed = torch.linalg.cholesky_ex(matrices)
    if is_plain(matrices) and failed.any():
        raise ValueError(
            "the matrix on the coarsest level is not positive definite: give Dirichlet or Robin data on a part of the "
            "boundary, or a wider precision if the coefficient varies over many orders of magnitude"
        )
    return torch.cholesky_inverse(factor).permute(1, 2, 0).contiguous()


def _dot(x: Tensor, z: Tensor) -> Tensor:
    """(B,) inner products of (n, B), summed in float32 for half precision."""
    wide = accumulation_dtype(x.dtype)
    return (x.to(wide) * z.to(wide)).sum(0)


class Plan:
    """The weights of a cycle's smoothing steps and corrections; learned ones are tensors."""

    visits = 1

    def weights(
        self, j: int, top: int, last: int
    ) -> tuple[Sequence[float | Tensor], Sequence[float | Tensor], float | Tensor | None]:
        """Weights before and after the correction on level j, and its factor, in a cycle that began on level `top`."""
        raise AssertionError

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
        top = len(self._multigrid.matrices) - 1
        made = self._multigrid.cycle(top, None, batch_last(self._multigrid.scaled(given)), plan, top).T
        return made if x.ndim > 1 else made[0]


class ConjugateDirections:
    """Conjugate gradients for A x = b, preconditioned by a cycle, one step at a time; everything is (N, B)."""

    def __init__(self, multigrid: SampleMultigrid, plan: Plan, b: Tensor, x: Tensor | None) -> None:
        self._multigrid, self._plan = multigrid, plan
        self._A, self._top = multigrid.A, len(multigrid.matrices) - 1
        self.x = torch.zeros_like(b) if x is None else x
        self.r = b.clone() if x is None else b - self._A.rows(x)
        self._p: Tensor | None = None
        self._square = torch.zeros(b.shape[1], dtype=multigrid.wide, device=b.device)  # (B,) rᵀMr

    def step(self, active: Tensor | None = None) -> Tensor:
        """One iteration for the samples that are active; (B,) those for which it made sense."""
        z = self._multigrid.cycle(self._top, None, self.r, self._plan, self._top)
        square = _dot(self.r, z)
        if self._p is None:
            self._p = z
        else:
            ratio = torch.where(self._square > 0, square / self._square, 0.0).to(z.dtype)
            self._p = torch.addcmul(z, ratio, self._p)
        self._square = square
        product = self._A.rows(self._p)
        curvature = _dot(self._p, product)
        good = (curvature > 0) & torch.isfinite(curvature) & (square > 0)
        good = good if active is None else good & active
        size = torch.where(good, square / curvature, 0.0).to(z.dtype)
        product = torch.where(good, product, 0.0)  # 0 times infinity is not 0
        self.x = torch.addcmul(self.x, size, self._p)
        self.r = torch.addcmul(self.r, size, product, value=-1)
        return good
