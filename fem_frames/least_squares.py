"""The first-order least-squares formulation (LS), with the flux σ = a_y ∇u as a second field.

Its loss is a sum of squared residuals over cells, evaluated as such: expanded into a quadratic form it would lose all
digits near the solution. Unlike the energy it measures the error itself, in a norm of its own: that of the functional.

B samples, K finest cells, Q quadrature points in a cell, m = 2d + 1 numbers (g, τ_c, q) in a cell's state.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fem_frames import tables
from fem_frames.formulations import ErrorNorm, Formulation
from fem_frames.frame import Frame
from fem_frames.friedrichs import diameters
from fem_frames.operators import Congruent, LinearOperator, cells_last, flat_first, is_watched
from fem_frames.problem import Problem
from fem_frames.whitney import spreads


class FluxResidual(LinearOperator):
    """R_y: states (g, τ_c, q) to residuals on every cell, so that C_y = R_yᵀ R_y.

    The first residual of a cell is its divergence q, the others make up τ/a - g with τ(x) = τ_c + (q/d)(x - x_c).
    """

    def __init__(self, inverse: Tensor, residuals: int, dimension: int, dtype: torch.dtype) -> None:
        """`inverse` (K, Q, B): 1/a in the precision to compute in; results are rounded to dtype."""
        K, _, self.batch = inverse.shape
        self.shape = (K * residuals, K * (2 * dimension + 1))
        self.dtype, self.device, self.dimension, self.residual_size = dtype, inverse.device, dimension, residuals

    @abstractmethod
    def cells(self, s: Tensor, source: Tensor | float = 0.0) -> Tensor:
        """(K, m, B) to (K, residuals, B); `source` (K, 1, B) or (K, 1, 1) is added to the divergence."""

    @abstractmethod
    def cells_transposed(self, r: Tensor) -> Tensor:
        """(K, residuals, B) to (K, m, B)."""

    def squares(self, s: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) sums of squared residuals r of the states s (K, m, B), and R_yᵀ r (K, m, B); without autograd."""
        r = self.cells(s, source)
        return r.square().sum((0, 1)), self.cells_transposed(r)

    def __call__(self, x: Tensor) -> Tensor:
        self.check(x, self.shape[1])
        return flat_first(self.cells(cells_last(x, 2 * self.dimension + 1)).to(self.dtype), x)

    def T(self, z: Tensor) -> Tensor:
        self.check(z, self.shape[0])
        return flat_first(self.cells_transposed(cells_last(z, self.residual_size)).to(self.dtype), z)


class ConstantFluxResidual(FluxResidual):
    """a constant on cells: residuals q, √κ q/(d a) and τ_c/a - g, κ the mean of |x - x_c|²; exact in closed form."""

    def __init__(self, inverse: Tensor, spread: Tensor, dimension: int, dtype: torch.dtype) -> None:
        """`inverse` (K, 1, B): 1/a; `spread` (K,): √κ/d."""
        super().__init__(inverse, dimension + 2, dimension, dtype)
        self._inverse, self._slope = inverse, spread[:, None, None] * inverse  # (K, 1, B)

    def cells(self, s: Tensor, source: Tensor | float = 0.0) -> Tensor:
        d = self.dimension
        g, centre, q = s[:, :d], s[:, d : 2 * d], s[:, 2 * d :]
        return torch.cat([q.to(self._slope.dtype) + source, self._slope * q, self._inverse * centre - g], dim=1)

    def cells_transposed(self, r: Tensor) -> Tensor:
        divergence, slope, flux = r[:, :1], r[:, 1:2], r[:, 2:]
        return torch.cat([-flux, self._inverse * flux, divergence + self._slope * slope], dim=1)

    def squares(self, s: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
        # The same in half the passes over memory, for training steps; where something looks on, as written above.
        if is_watched(s) or is_watched(self._inverse) or is_watched(source):
            return super().squares(s, source)
        d, dtype = self.dimension, self._inverse.dtype
        g, centre, q = s[:, :d], s[:, d : 2 * d], s[:, 2 * d :]
        back = s.new_empty(s.shape, dtype=dtype)
        flux = (self._inverse * centre).sub_(g)
        torch.neg(flux, out=back[:, :d])
        torch.mul(self._inverse, flux, out=back[:, d : 2 * d])
        divergence, slope = q + source, self._slope * q
        torch.addcmul(divergence.to(dtype), self._slope, slope, out=back[:, 2 * d :])
        return sum((part * part).sum((0, 1)) for part in (flux, divergence, slope)), back  # type: ignore[return-value]


class QuadratureFluxResidual(FluxResidual):
    """a varies on cells: residuals q and, at each quadrature point, τ(x)/a(x) - g times the root of the weight."""

    def __init__(self, inverse: Tensor, weights: Tensor, offsets: Tensor, dtype: torch.dtype) -> None:
        """`inverse` (K, Q, B): 1/a; `weights` (Q,), sum 1; `offsets` (K, Q, d): (x - x_c)/d."""
        Q, d = offsets.shape[1:]
        super().__init__(inverse, 1 + Q * d, d, dtype)
        self._inverse, self._offsets = inverse[:, :, None], offsets[..., None]  # (K, Q, 1, B), (K, Q, d, 1)
        self._roots = weights.sqrt()[:, None, None]  # (Q, 1, 1)

    def cells(self, s: Tensor, source: Tensor | float = 0.0) -> Tensor:
        d = self.dimension
        g, centre, q = s[:, None, :d], s[:, None, d : 2 * d], s[:, 2 * d :]
        flux = self._inverse * (centre + q[:, None] * self._offsets) - g  # (K, Q, d, B)
        return torch.cat([q.to(flux.dtype) + source, (self._roots * flux).flatten(1, 2)], dim=1)

    def cells_transposed(self, r: Tensor) -> Tensor:
        flux = self._roots * r[:, 1:].unflatten(1, (-1, self.dimension))  # (K, Q, d, B)
        weighted = self._inverse * flux
        q = r[:, :1] + (weighted * self._offsets).sum((1, 2))[:, None]
        return torch.cat([-flux.sum(1), weighted.sum(1), q], dim=1)


class WeightedFluxResidual(FluxResidual):
    """Another one with all residuals but the divergence multiplied by weights."""

    def __init__(self, inner: FluxResidual, weights: Tensor) -> None:
        """`weights` (K, residuals - 1, B) or such that broadcast."""
        self.shape, self.dtype, self.device, self.batch = inner.shape, inner.dtype, inner.device, inner.batch
        self.dimension, self.residual_size = inner.dimension, inner.residual_size
        self._inner, self._weights = inner, weights

    def cells(self, s: Tensor, source: Tensor | float = 0.0) -> Tensor:
        return self._weighted(self._inner.cells(s, source))

    def cells_transposed(self, r: Tensor) -> Tensor:
        return self._inner.cells_transposed(self._weighted(r))

    def _weighted(self, r: Tensor) -> Tensor:
        return torch.cat([r[:, :1], self._weights * r[:, 1:]], dim=1)


def _norms(flux: str) -> tuple[ErrorNorm, ...]:
    """The root of the loss is the error in the first; `flux` is its part beside the divergence."""
    return (
        ErrorNorm("functional", "norm of the functional", f"√(‖div τ‖² + ‖{flux}‖²)", "exact solution"),
        ErrorNorm("energy", "energy norm", "√∫ a |∇e|²", "exact solution"),
    )


class LeastSquares(Formulation):
    """(LS): minimise ‖div σ + f_y‖² + ‖a_y^{-1} σ - ∇u‖².

    With σ = a_y ∇u the first residual is div σ + f; the paper prints -f. The flux is in RT0, which in one dimension is
    P1.
    """

    name = "least-squares"
    factor = 1.0
    norms = _norms("τ/a - ∇e")

    def __init__(self, frame: Frame, problem: Problem) -> None:
        super().__init__(frame, problem)
        arrays, d = frame.arrays, frame.arrays.dimension
        self._spread_root = self._as_data(np.sqrt(spreads(arrays.points, arrays.levels[-1].cells)) / d)
        self._offsets = self._as_data((tables.quadrature_points(arrays) - arrays.centres[:, None]) / d)
        self._volume_roots = self._as_data(np.sqrt(arrays.volumes))[:, None]  # (K, 1)
        if not callable(problem.source):
            self._fixed_source = float(problem.source) * self._volume_roots

    def R(self, y: Tensor) -> FluxResidual:
        """R_y, of which C_y = R_yᵀ R_y."""
        return self._residual(self.coefficient(y))

    def _residual(self, a: Tensor) -> FluxResidual:
        inverse, dtype = 1 / a, self.frame.dtype
        if inverse.shape[1] == 1:
            return ConstantFluxResidual(inverse, self._spread_root, self.frame.arrays.dimension, dtype)
        return QuadratureFluxResidual(inverse, self._weights, self._offsets, dtype)

    def weighted_R(self, y: Tensor) -> FluxResidual:
        """R_y with a_y^{-1/2} σ - a_y^{1/2} ∇u for its flux: that of the weighted formulation."""
        a = self.coefficient(y)
        root = a.sqrt()  # a^{-1/2} σ - a^{1/2} ∇u is this times a^{-1} σ - ∇u
        weights = root if a.shape[1] == 1 else root.repeat_interleave(self.frame.arrays.dimension, dim=1)
        return WeightedFluxResidual(self._residual(a), weights)

    def C(self, y: Tensor) -> Congruent:
        return Congruent(self.R(y))

    def local_matrices(self, y: Tensor) -> Tensor:
        R = self.R(y)
        local = self._local_states
        columns = [R.cells(local[:, :, i, None].expand(-1, -1, R.batch or 1)) for i in range(local.shape[2])]
        residuals = torch.stack(columns, dim=2)  # (K, r, L, B)
        return torch.einsum("krlb,krnb->klnb", residuals, residuals)

    @cached_property
    def _local_states(self) -> Tensor:
        """(K, m, L) states of the local basis functions."""
        return self._as_data(tables.local_states(self.frame.arrays))

    def residuals(self, R: FluxResidual, states: Tensor, y: Tensor) -> Tensor:
        """(K, r, B) residuals from the states (B, K m) of lift + F w, with R = R_y, in the wide precision."""
        return R.cells(cells_last(states, 2 * R.dimension + 1), self.scaled_source(y)[:, None])

    def loss(self, w: Tensor, y: Tensor) -> Tensor:
        self.check_coefficients(w, y)
        return self.residuals(self.R(y), self.states(w), y).square().sum((0, 1)) + self.oscillation(y)

    def flux_gaps(self, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(K, B) ‖a_y^{-1/2} σ - a_y^{1/2} ∇u‖ on each cell, and (B,) ‖div σ + f̄‖, f̄ the means of f_y over cells."""
        self.check_coefficients(w, y)
        r = self.residuals(self.weighted_R(y), self.states(w), y)
        return r[:, 1:].square().sum(1).sqrt(), r[:, 0].square().sum(0).sqrt()

    def loss_and_residual(self, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self.check_coefficients(w, y)
        R, source = self.R(y), self.scaled_source(y)[:, None]
        loss, back = R.squares(cells_last(self.states(w), 2 * R.dimension + 1), source)
        residual = self.frame.D.T(flat_first(back.to(self.frame.dtype), w))
        return loss + self.oscillation(y), residual

    def oscillation(self, y: Tensor) -> Tensor:
        """(B,) or (1,) ‖f - f̄‖², f̄ the means over cells: the part of the loss that no discrete flux can change."""
        return self.oscillations(y).sum(0)

    def oscillations(self, y: Tensor) -> Tensor:
        """(K, B), or (1, 1) and (1, B) zeros, ‖f - f̄‖² of the cells."""
        if not callable(self.problem.source):
            return torch.zeros(1, 1, dtype=self.wide, device=self.frame.device)
        f = self.source(y)
        if f.shape[1] == 1:
            return f.new_zeros(1, self.check_parameters(y).shape[0])
        return self._volume_roots**2 * self.mean((f - self.mean(f)[:, None]).square())

    def functional(self, y: Tensor) -> Tensor:
        return torch.zeros(1, self.frame.arrays.nodal_size, dtype=self.wide, device=self.frame.device)

    def state_load(self, y: Tensor) -> Tensor:
        y = self.check_parameters(y)
        R = self.R(y)
        r = self.residuals(R, self._lift.expand(len(y), -1), y)
        return flat_first(self.rounded(-R.cells_transposed(r), "the load"), y)

    def constant(self, y: Tensor) -> Tensor:
        y = self.check_parameters(y)
        r = self.residuals(self.R(y), self._lift.expand(len(y), -1), y)
        return r.square().sum((0, 1)) + self.oscillation(y)

    def frame_functional(self, y: Tensor) -> Tensor:
        return torch.zeros(1, self.frame.frame_size, dtype=self.frame.dtype, device=self.frame.device)

    def scaled_source(self, y: Tensor) -> Tensor:
        """(K, B) or, for a number, (K, 1) means of f over cells, times |T|^{1/2}."""
        if callable(self.problem.source):
            return self._volume_roots * self.mean(self.source(y))
        return self._fixed_source

    @cached_property
    def poincare_constants(self) -> Tensor:
        """(K, 1) diam(T)/π: on a cell T, ‖v‖ ≤ diam(T)/π ‖∇v‖ for all v of mean zero."""
        return self._as_data(diameters(self.frame.arrays) / np.pi)[:, None]


class WeightedLeastSquares(LeastSquares):
    """Minimise ‖div σ + f_y‖² + ‖a_y^{-1/2} σ - a_y^{1/2} ∇u‖², better conditioned where a_y varies much."""

    name = "weighted-least-squares"
    norms = _norms("a^{-1/2} τ - a^{1/2} ∇e")

    def R(self, y: Tensor) -> FluxResidual:
        return self.weighted_R(y)
