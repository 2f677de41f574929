"""The first-order least-squares formulation (LS), with the flux σ = a_y ∇u as a second field.

Lengths are measured in L, the longest side of the box around the domain, so the unit of the mesh does not matter: the
functional is L² ‖div σ + f‖² + ‖σ/a - ∇u‖².

Its loss is evaluated as a sum of squared residuals over cells: expanded into a quadratic form it would lose all digits
near the solution. Unlike the energy, the loss measures the error itself, in the norm of the functional.

B samples, K finest cells, Q quadrature points in a cell, m = 2d + 1 numbers (g, τ_c, q) in a cell's state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fem_frames.formulations.flux_residuals import (
    ConstantFluxResidual,
    FluxResidual,
    QuadratureFluxResidual,
    WeightedFluxResidual,
)
from fem_frames.formulations.formulation import ErrorNorm, Formulation
from fem_frames.frame import level_matrices
from fem_frames.frame.elements import P1, RT0
from fem_frames.frame.fields import Field, neumann_fluxes
from fem_frames.mesh.geometry import Floats
from fem_frames.mesh.simplices import diameters, spreads
from fem_frames.operators.cells import Congruent, cells_last, flat_first
from fem_frames.operators.frame import Frame
from fem_frames.problem.coefficients import ByRegion
from fem_frames.problem.definition import Problem


def _norms(flux: str) -> tuple[ErrorNorm, ...]:
    """The root of the loss is the error in the first norm; `flux` is the part of that norm beside the divergence."""
    return (
        ErrorNorm("functional", "norm of the functional", f"√(L² ‖div τ‖² + ‖{flux}‖²)", "exact solution"),
        ErrorNorm("energy", "energy norm", "√∫ a |∇e|²", "exact solution"),
    )


class LeastSquares(Formulation):
    """(LS): minimise L² ‖div σ + f_y‖² + ‖a_y^{-1} σ - ∇u‖².

    With σ = a_y ∇u the first residual is div σ + f; the paper prints -f. The flux is in RT0, which in one dimension is
    P1. See docs/formulations.md.
    """

    name = "least-squares"
    symbol = "(LS)"
    fields = (Field("u", P1), Field("sigma", RT0, neumann_fluxes))
    neumann_is_load = False
    data_of_y = True
    factor = 1.0
    norms = _norms("τ/a - ∇e")

    def __init__(self, frame: Frame, problem: Problem) -> None:
        super().__init__(frame, problem)
        arrays, d = frame.arrays, frame.arrays.dimension
        self.length = float(arrays.length)
        self._spread_root = self._as_data(np.sqrt(spreads(arrays.points, arrays.levels[-1].cells)) / d)
        self._offsets = self._as_data((level_matrices.quadrature_points(arrays) - arrays.centres[:, None]) / d)
        self._volume_roots = self._as_data(np.sqrt(arrays.volumes))[:, None]  # (K, 1)
        if not callable(problem.source):
            self._fixed_source = float(problem.source) * self._volume_roots

    @classmethod
    def reference_solvers(cls, dimension: int) -> tuple[str, ...]:
        return ("lu", "cg") if dimension == 2 else ("lu",)

    @staticmethod
    def forms(V: Any, w: Any, a: Any, f: Any, y: Any, dx: Any, length: float = 1.0) -> tuple[Any, Any, Any]:
        return _forms(V, w, f, dx, 1 / a, 1, length)

    def energy_norm(self, states: Tensor, y: Tensor) -> Tensor:
        return self.gradient_norm(states, y)

    def solution_norm(self, y: Tensor) -> Tensor:
        """L ‖f_y‖, because the exact solution satisfies a^{-1} σ = ∇u and div σ = -f."""
        return (self.length**2 * self.scaled_source(y).square().sum(0) + self.oscillation(y)).sqrt()

    def squares(self, y: Tensor) -> tuple[Tensor, Tensor] | None:
        R, K = self.R(y), len(self._volume_roots)
        m, B = 2 * R.dimension + 1, R.batch or 1
        unit = torch.eye(m, dtype=self.wide, device=self.frame.device)
        columns = [R.cells(unit[i][None, :, None].expand(K, -1, B)) for i in range(m)]
        blocks = torch.stack(columns, dim=2)  # (K, r, m, B)
        offsets = torch.zeros_like(blocks[:, :, 0])
        offsets[:, 0] = self.length * self.scaled_source(y)
        return blocks, offsets

    def affine_weights(self) -> Callable[[Floats], Floats] | None:
        # ‖σ/a - ∇u‖² is quadratic in 1/a.
        a = self.problem.coefficient
        if callable(self.problem.source) or not isinstance(a, ByRegion) or self.boundary is not None:
            return None
        used = sorted(set(a.parameter.values()))
        return lambda y: np.concatenate([np.ones((len(y), 1)), 1 / y[:, used], 1 / y[:, used] ** 2], axis=1)

    def R(self, y: Tensor) -> FluxResidual:
        """R_y with C_y = R_yᵀ R_y."""
        return self._residual(self.coefficient(y))

    def _residual(self, a: Tensor) -> FluxResidual:
        inverse, dtype = 1 / a, self.frame.dtype
        if inverse.shape[1] == 1:
            return ConstantFluxResidual(inverse, self._spread_root, self.frame.arrays.dimension, self.length, dtype)
        return QuadratureFluxResidual(inverse, self._weights, self._offsets, self.length, dtype)

    def weighted_R(self, y: Tensor) -> FluxResidual:
        """R_y of the weighted formulation, with the flux residual a_y^{-1/2} σ - a_y^{1/2} ∇u."""
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
        return self._as_data(level_matrices.local_states(self.frame.arrays))

    def residuals(self, R: FluxResidual, states: Tensor, y: Tensor) -> Tensor:
        """(K, r, B) residuals from the states (B, K m) of lift + F w, with R = R_y, in the wide precision."""
        return R.cells(cells_last(states, 2 * R.dimension + 1), self.scaled_source(y)[:, None])

    def loss(self, w: Tensor, y: Tensor) -> Tensor:
        self.check_coefficients(w, y)
        return self.residuals(self.R(y), self.states(w, y), y).square().sum((0, 1)) + self.oscillation(y)

    def flux_gaps(self, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(K, B) ‖a_y^{-1/2} σ - a_y^{1/2} ∇u‖ per cell, and (B,) ‖div σ + f̄‖ with f̄ the means of f_y over cells."""
        self.check_coefficients(w, y)
        r = self.residuals(self.weighted_R(y), self.states(w, y), y)
        return r[:, 1:].square().sum(1).sqrt(), r[:, 0].square().sum(0).sqrt() / self.length

    def loss_and_residual(self, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self.check_coefficients(w, y)
        R, source = self.R(y), self.scaled_source(y)[:, None]
        loss, back = R.squares(cells_last(self.states(w, y), 2 * R.dimension + 1), source)
        residual = self.frame.D.T(flat_first(back.to(self.frame.dtype), w))
        return loss + self.oscillation(y), residual

    def oscillation(self, y: Tensor) -> Tensor:
        """(B,) or (1,) L² ‖f - f̄‖², f̄ the means over cells: the part of the loss that no discrete flux can change."""
        return self.length**2 * self.oscillations(y).sum(0)

    def oscillations(self, y: Tensor) -> Tensor:
        """(K, B) ‖f - f̄‖² per cell, or zeros (1, 1) or (1, B) if f is constant on cells."""
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
        r = self.residuals(R, self.lift(y).expand(y.shape[0], -1), y)
        return flat_first(self.rounded(-R.cells_transposed(r), "the load"), y)

    def constant(self, y: Tensor) -> Tensor:
        y = self.check_parameters(y)
        r = self.residuals(self.R(y), self.lift(y).expand(y.shape[0], -1), y)
        return r.square().sum((0, 1)) + self.oscillation(y)

    def frame_functional(self, y: Tensor) -> Tensor:
        return torch.zeros(1, self.frame.frame_size, dtype=self.frame.dtype, device=self.frame.device)

    def scaled_source(self, y: Tensor) -> Tensor:
        """(K, B) means of f over cells times |T|^{1/2}, or (K, 1) if f is a number."""
        if callable(self.problem.source):
            return self._volume_roots * self.mean(self.source(y))
        return self._fixed_source

    @cached_property
    def poincare_constants(self) -> Tensor:
        """(K, 1) diam(T)/π: on a cell T, ‖v‖ ≤ diam(T)/π ‖∇v‖ for all v of mean zero."""
        return self._as_data(diameters(self.frame.arrays.points, self.frame.arrays.levels[-1].cells) / np.pi)[:, None]


class WeightedLeastSquares(LeastSquares):
    """Minimise ‖div σ + f_y‖² + ‖a_y^{-1/2} σ - a_y^{1/2} ∇u‖², better conditioned if a_y varies strongly.

    See docs/formulations.md.
    """

    name = "weighted-least-squares"
    norms = _norms("a^{-1/2} τ - a^{1/2} ∇e")

    @staticmethod
    def forms(V: Any, w: Any, a: Any, f: Any, y: Any, dx: Any, length: float = 1.0) -> tuple[Any, Any, Any]:
        from fem_frames.fenicsx.door import ufl

        return _forms(V, w, f, dx, 1 / ufl.sqrt(a), ufl.sqrt(a), length)

    def affine_weights(self) -> Callable[[Floats], Floats] | None:
        return None

    def R(self, y: Tensor) -> FluxResidual:
        return self.weighted_R(y)


def _forms(V: Any, w: Any, f: Any, dx: Any, of_flux: Any, of_gradient: Any, length: float) -> tuple[Any, Any, Any]:
    """The forms for the residuals of_flux σ - of_gradient ∇u and L (div σ + f); the paper prints -f, but σ = a ∇u."""
    from fem_frames.fenicsx.door import ufl

    one = V.mesh.topology.dim == 1  # then σ is in P1
    square = 1 if length == 1 else length**2  # UFL leaves out the number 1

    def div(s: Any) -> Any:
        return s.dx(0) if one else ufl.div(s)

    def residual(u: Any, s: Any) -> Any:
        return of_flux * s - of_gradient * (u.dx(0) if one else ufl.grad(u))

    (u, s), (v, t), (w_u, w_s) = ufl.TrialFunctions(V), ufl.TestFunctions(V), ufl.split(w)
    bilinear = (square * div(s) * div(t) + ufl.inner(residual(u, s), residual(v, t))) * dx
    functional = (square * (div(w_s) + f) ** 2 + ufl.inner(residual(w_u, w_s), residual(w_u, w_s))) * dx
    return bilinear, -square * f * div(t) * dx, functional
