"""R_y of least squares maps states of cells to residuals, so that C_y = R_yᵀ R_y.

B samples, K finest cells, Q quadrature points in a cell, m = 2d + 1 numbers (g, τ_c, q) in a cell's state, L the
length of the domain.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from fem_frames.operators.cells import cells_last, flat_first
from fem_frames.operators.checking import is_watched
from fem_frames.operators.linear import LinearOperator


class FluxResidual(LinearOperator):
    """R_y maps states (g, τ_c, q) to residuals on every cell, so that C_y = R_yᵀ R_y.

    The first residual of a cell is its divergence, L q; the others represent τ/a - g with τ(x) = τ_c + (q/d)(x - x_c).
    """

    def __init__(self, inverse: Tensor, residuals: int, dimension: int, length: float, dtype: torch.dtype) -> None:
        """`inverse` (K, Q, B): 1/a in the precision of the computation; results are rounded to dtype."""
        self.length = length
        K, _, self.batch = inverse.shape
        self.shape = (K * residuals, K * (2 * dimension + 1))
        self.dtype, self.device, self.dimension, self.residual_size = dtype, inverse.device, dimension, residuals

    @abstractmethod
    def cells(self, s: Tensor, source: Tensor | float = 0.0) -> Tensor:
        """(K, m, B) to (K, residuals, B); `source` (K, 1, B) or (K, 1, 1) is added to q."""

    @abstractmethod
    def cells_transposed(self, r: Tensor) -> Tensor:
        """(K, residuals, B) to (K, m, B)."""

    def squares(self, s: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) sums of squared residuals r of the states s (K, m, B), and R_yᵀ r (K, m, B)."""
        r = self.cells(s, source)
        return r.square().sum((0, 1)), self.cells_transposed(r)

    def __call__(self, x: Tensor) -> Tensor:
        self.check(x, self.shape[1])
        return flat_first(self.cells(cells_last(x, 2 * self.dimension + 1)).to(self.dtype), x)

    def T(self, z: Tensor) -> Tensor:
        self.check(z, self.shape[0])
        return flat_first(self.cells_transposed(cells_last(z, self.residual_size)).to(self.dtype), z)


class ConstantFluxResidual(FluxResidual):
    """R_y for a constant on cells: L q, √κ q/(d a) and τ_c/a - g κ the mean of |x - x_c|²: an exact closed form."""

    def __init__(self, inverse: Tensor, spread: Tensor, dimension: int, length: float, dtype: torch.dtype) -> None:
        """`inverse` (K, 1, B): 1/a; `spread` (K,): √κ/d."""
        super().__init__(inverse, dimension + 2, dimension, length, dtype)
        self._inverse, self._slope = inverse, spread[:, None, None] * inverse  # (K, 1, B)

    def cells(self, s: Tensor, source: Tensor | float = 0.0) -> Tensor:
        d = self.dimension
        g, centre, q = s[:, :d], s[:, d : 2 * d], s[:, 2 * d :]
        divergence = self.length * (q.to(self._slope.dtype) + source)
        return torch.cat([divergence, self._slope * q, self._inverse * centre - g], dim=1)

    def cells_transposed(self, r: Tensor) -> Tensor:
        divergence, slope, flux = r[:, :1], r[:, 1:2], r[:, 2:]
        return torch.cat([-flux, self._inverse * flux, self.length * divergence + self._slope * slope], dim=1)

    def squares(self, s: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
        # Training steps get the same numbers in half the passes over memory; autograd needs the plain version.
        if is_watched(s) or is_watched(self._inverse) or is_watched(source):
            return super().squares(s, source)
        d, dtype = self.dimension, self._inverse.dtype
        g, centre, q = s[:, :d], s[:, d : 2 * d], s[:, 2 * d :]
        back = s.new_empty(s.shape, dtype=dtype)
        flux = (self._inverse * centre).sub_(g)
        torch.neg(flux, out=back[:, :d])
        torch.mul(self._inverse, flux, out=back[:, d : 2 * d])
        divergence, slope = self.length * (q + source), self._slope * q
        torch.addcmul(self.length * divergence.to(dtype), self._slope, slope, out=back[:, 2 * d :])
        return sum((part * part).sum((0, 1)) for part in (flux, divergence, slope)), back  # type: ignore[return-value]


class QuadratureFluxResidual(FluxResidual):
    """R_y for a that varies on cells: L q and, per quadrature point, τ(x)/a(x) - g times the root of its weight."""

    def __init__(self, inverse: Tensor, weights: Tensor, offsets: Tensor, length: float, dtype: torch.dtype) -> None:
        """`inverse` (K, Q, B): 1/a; `weights` (Q,), sum 1; `offsets` (K, Q, d): (x - x_c)/d."""
        Q, d = offsets.shape[1:]
        super().__init__(inverse, 1 + Q * d, d, length, dtype)
        self._inverse, self._offsets = inverse[:, :, None], offsets[..., None]  # (K, Q, 1, B), (K, Q, d, 1)
        self._roots = weights.sqrt()[:, None, None]  # (Q, 1, 1)

    def cells(self, s: Tensor, source: Tensor | float = 0.0) -> Tensor:
        d = self.dimension
        g, centre, q = s[:, None, :d], s[:, None, d : 2 * d], s[:, 2 * d :]
        flux = self._inverse * (centre + q[:, None] * self._offsets) - g  # (K, Q, d, B)
        return torch.cat([self.length * (q.to(flux.dtype) + source), (self._roots * flux).flatten(1, 2)], dim=1)

    def cells_transposed(self, r: Tensor) -> Tensor:
        flux = self._roots * r[:, 1:].unflatten(1, (-1, self.dimension))  # (K, Q, d, B)
        weighted = self._inverse * flux
        q = self.length * r[:, :1] + (weighted * self._offsets).sum((1, 2))[:, None]
        return torch.cat([-flux.sum(1), weighted.sum(1), q], dim=1)


class WeightedFluxResidual(FluxResidual):
    """Another FluxResidual with all residuals but the divergence multiplied by weights."""

    def __init__(self, inner: FluxResidual, weights: Tensor) -> None:
        """`weights` broadcast to (K, residuals - 1, B)."""
        self.shape, self.dtype, self.device, self.batch = inner.shape, inner.dtype, inner.device, inner.batch
        self.dimension, self.residual_size, self.length = inner.dimension, inner.residual_size, inner.length
        self._inner, self._weights = inner, weights

    def cells(self, s: Tensor, source: Tensor | float = 0.0) -> Tensor:
        return self._weighted(self._inner.cells(s, source))

    def cells_transposed(self, r: Tensor) -> Tensor:
        return self._inner.cells_transposed(self._weighted(r))

    def _weighted(self, r: Tensor) -> Tensor:
        return torch.cat([r[:, :1], self._weights * r[:, 1:]], dim=1)
