"""Weak forms that minimise nothing: the loss is the squared norm of the residual in the frame's dual norm.

A weak form R(u, v) = Σ ∫ ρ(s, t, x, y), linear in the state t of the test function v, has the residual r = FᵀR(u, ·):
with ρ_y(s) = ∂R/∂t on every cell, r = Dᵀ ρ_y(Dw + lift). F is a frame of H1 (and H(div)), so |r| is equivalent to the
norm of the residual in the dual space, with constants that hardly depend on the mesh. The loss is |r|², and its
gradient 2 Dᵀ (∂R/∂s with t = D r) needs first derivatives only.

For a linear weak form ρ_y(s) = C_y s - ℓ_y with blocks C_y that need not be symmetric; with B = DᵀC_yD the matrix of
the loss is BᵀB.

B samples, K finest cells, m numbers in a cell's state, L local nodal values, N nodal values, Nhat frame coefficients.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fem_frames.formulations.error_norms import ErrorNorm
from fem_frames.formulations.formulation import Formulation
from fem_frames.formulations.state_integrals import StateIntegral
from fem_frames.frame import level_matrices
from fem_frames.operators.cells import CellBlocks, CellEntries, Congruent, Transposed, cells_last, flat_first
from fem_frames.operators.checking import is_plain, unseen
from fem_frames.operators.linear import dot
from fem_frames.problem.definition import Problem
from fem_frames.problem.densities import Density
from fem_frames.problem.evaluation import NotFiniteError
from fem_frames.problem.parameters import numbers


class DualNorm(Formulation):
    """Minimise |FᵀR(u, ·)|² for a weak form R of the user. See docs/formulations.md."""

    density: ClassVar[Density]
    is_assembled = False
    data_of_y = True
    factor = 1.0
    norms = ()
    no_bound = (
        "no bound: the dual norm of the residual of a weak form bounds no error unless an inf-sup constant is known"
    )

    def __init__(self, frame: Any, problem: Problem) -> None:
        super().__init__(frame, problem)
        self._integrals = [
            StateIntegral(frame.arrays, self.density, number, self._as_data)
            for number in range(len(self.density.integrals))
        ]
        self._cell_count = len(frame.arrays.volumes)
        self._state_size = level_matrices.state_size(frame.arrays)

    @property
    def is_quadratic(self) -> bool:  # type: ignore[override]
        return self.density.is_linear

    @classmethod
    def error_norm(cls, name: str | None = None) -> ErrorNorm:
        asked = "" if name is None else f" in the norm {name!r}"
        raise ValueError(
            f"a weak form has no error bound{asked}: the dual norm of its residual bounds no error unless an inf-sup "
            "constant is known; formulation.dual_norm(w, y) is that norm, an estimate up to constants"
        )

    # ---- data

    def coefficient(self, y: Tensor) -> Tensor:
        raise ValueError(f"the problem {self.problem.name} has an equation of its own, and no coefficient a")

    source = coefficient

    def check_values(self, y: Tensor) -> None:
        self.check_parameters(y)

    def check_data(self, y: Tensor) -> None:
        y = self.check_parameters(y)
        self.constant(y)
        self._linearised(y, self._lifted(y))

    def _lifted(self, y: Tensor) -> Tensor:
        """(K, m, B) the states of the lift, in the wide precision."""
        return self._cells(self.lift(y).expand(y.shape[0], -1))

    def _cells(self, states: Tensor) -> Tensor:
        return cells_last(states, self._state_size).to(self.wide)

    # ---- residual and loss

    def _functional(self, s: Tensor, y: Tensor) -> Tensor:
        """(K, m, B) ρ_y(s), for states s of the same shape."""
        found, wide = torch.zeros_like(s), self.check_parameters(y).to(self.wide)
        for integral in self._integrals:
            integral.add_slope(s, wide, found, s, of="v")  # R is linear in v: its derivative is the same for all v
        return found

    def _transposed(self, s: Tensor, v: Tensor, y: Tensor) -> Tensor:
        """(K, m, B) the derivative of R in the direction of the test states v with respect to the states s."""
        found, wide = torch.zeros_like(s), self.check_parameters(y).to(self.wide)
        for integral in self._integrals:
            integral.add_slope(s, wide, found, v)
        return found

    def _on_frame(self, z: Tensor) -> Tensor:
        """(B, Nhat) Dᵀ z in the wide precision, for z (K, m, B)."""
        scaled, size = self._scaled(z)
        return self.frame.D.T(flat_first(scaled, scaled[0])).to(self.wide) * size[:, None]

    def _on_cells(self, r: Tensor) -> Tensor:
        """(K, m, B) D r in the wide precision, for r (B, Nhat)."""
        scaled, size = self._scaled(r.to(self.wide).T)
        return self._cells(self.frame.D(scaled.T)) * size

    def _scaled(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """z (…, B) in the frame's dtype, divided by a power of two per sample, and these numbers (B,).

        In half precision small loads and residuals near the solution would lose digits, or vanish, without it.
        """
        if self.wide == self.frame.dtype:
            return z, torch.ones_like(z[(0,) * (z.ndim - 1)])
        largest = z.detach().abs().flatten(0, -2).amax(0)
        known = (largest > 0) & torch.isfinite(largest)
        size = torch.exp2(torch.floor(torch.log2(torch.where(known, largest, 1.0))))
        return (z / size).to(self.frame.dtype), size

    def dual_residual(self, w: Tensor, y: Tensor) -> Tensor:
        """(B, Nhat) FᵀR(u, ·), the residual on the functions of the frame, in the wide precision."""
        self.check_coefficients(w, y)
        return self._on_frame(self._functional(self._states(w, y), y))

    def dual_norm(self, w: Tensor, y: Tensor) -> Tensor:
        """(B,) the dual norm of the residual: no bound for the error, but equivalent to it if the problem is stable."""
        return self.loss(w, y).sqrt()

    def _states(self, w: Tensor, y: Tensor) -> Tensor:
        """(K, m, B) the states of lift + F w in the wide precision."""
        s = self._on_cells(w if w.ndim == 2 else w[None])
        if self.lifted:
            s = s + self._cells(self.lift(y))
        return s.expand(-1, -1, max(s.shape[2], self.check_parameters(y).shape[0]))

    def loss(self, w: Tensor, y: Tensor) -> Tensor:
        r = self.dual_residual(w, y)
        return self._tested(dot(r, r), y)

    def loss_and_residual(self, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self.check_coefficients(w, y)
        s = self._states(w, y)
        r = self._on_frame(self._functional(s, y))
        back = self._on_frame(self._transposed(s, self._on_cells(r), y))
        return self._tested(dot(r, r), y), back.to(self.frame.dtype).reshape(w.shape)

    def _tested(self, loss: Tensor, y: Tensor) -> Tensor:
        """The loss, if it is finite; in training steps only a test is kept."""
        tests = unseen(loss)
        if tests is not None:
            tests.append(torch.isfinite(loss.detach()).all())
        elif is_plain(loss) and not torch.isfinite(loss).all():
            sample = int((~torch.isfinite(loss)).nonzero()[0])
            at = y.reshape(-1, y.shape[-1])
            raise NotFiniteError(
                f"the residual is not finite for y = {numbers(at[min(sample, len(at) - 1)].tolist())}: change the "
                "equation, the parameters, or the precision"
            )
        return loss

    # ---- derivatives of the residual

    @cached_property
    def _places(self) -> list[tuple[int, int]]:
        """Rows and columns of the entries of ∂ρ_y/∂s that are not always zero."""
        m, seen = self._state_size, np.zeros((self._state_size,) * 2, bool)
        shifted = np.zeros((m, m), bool)  # which entries of a cell's state are seen in those at a point
        for part, field in zip(self.density.parts, self.frame.arrays.fields, strict=True):
            generic = np.sqrt(2.0 + np.arange(self.frame.arrays.dimension))
            own = slice(part.start, part.start + part.size)
            shifted[own, own] = (
                field.element.shift(np.eye(part.size), np.broadcast_to(generic, (part.size, len(generic)))) != 0
            )
        for rows in self.density.hessians:
            given = np.array([[program.result != 0.0 for program in row] for row in rows])
            seen |= (shifted @ given @ shifted.T).astype(bool)
        return [(int(i), int(j)) for i, j in np.argwhere(seen)]

    def _linearised(self, y: Tensor, s: Tensor | None = None) -> CellEntries:
        """∂ρ_y/∂s at states s (K, m, B)."""
        if not self._places:
            raise ValueError(
                f"the weak form of {self.problem.name} does not depend on its fields: there is no equation"
            )
        blocks = self.rounded(self._blocks(y, s), "C_y")
        entries = {(a, b): blocks[:, a, b].contiguous() for a, b in self._places}
        return CellEntries(entries, self._cell_count, self._state_size, blocks.shape[3])

    def _check_linear(self) -> None:
        if not self.is_quadratic:
            raise ValueError(
                f"the weak form of {self.problem.name} is not linear, so it has no matrix for all w: use "
                "curvature(w, y), the loss stable, or solve"
            )

    def C(self, y: Tensor) -> CellEntries:
        self._check_linear()
        return self._linearised(y)

    def stable(self, y: Tensor) -> Congruent:
        """BᵀB with B = DᵀC_yD."""
        return Congruent(Congruent(self.frame.D, self.C(y)))

    def gauss_newton(self, w: Tensor, y: Tensor) -> Congruent:
        """JᵀJ with the derivative J of the residual at w; twice this is the curvature of the loss at its zeros."""
        if self.is_quadratic:
            return self.stable(y)
        self.check_coefficients(w, y)
        return Congruent(Congruent(self.frame.D, self._linearised(y, self._states(w, y))))

    curvature = gauss_newton

    def weak_blocks(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """(K, m, m, B) C_y and (K, m, B) ℓ_y with ρ_y(s) = C_y s - ℓ_y, of a linear weak form."""
        self._check_linear()
        B = self.check_parameters(y).shape[0]
        zero = torch.zeros(self._cell_count, self._state_size, B, dtype=self.wide, device=self.frame.device)
        return self._blocks(y), -self._functional(zero, y)

    def _blocks(self, y: Tensor, s: Tensor | None = None) -> Tensor:
        """(K, m, m, B) ∂ρ_y/∂s."""
        m, wide = self._state_size, self.check_parameters(y).to(self.wide)
        count = len(wide) if s is None else s.shape[2]
        blocks = torch.zeros(self._cell_count, m, m, count, dtype=self.wide, device=self.frame.device)
        for integral in self._integrals:
            integral.add_blocks(blocks, wide, s)
        return blocks

    def local_matrices(self, y: Tensor) -> Tensor:
        """(K, L, L, B) local matrices of the weak form, rows of tests; A_y is not assembled from them."""
        self._check_linear()
        return self._local(self._blocks(y))

    def energy_matrices(self, y: Tensor) -> Tensor:
        """The symmetric part of the local matrices; of the derivative at the lift if the weak form is not linear."""
        y = self.check_parameters(y)
        local = self._local(self._blocks(y, None if self.is_quadratic else self._lifted(y)))
        return 0.5 * (local + local.transpose(1, 2))

    def _local(self, blocks: Tensor) -> Tensor:
        states = self._as_data(level_matrices.local_states(self.frame.arrays))  # (K, m, L)
        return torch.einsum("kml,kmnb,kni->klib", states, blocks, states)

    def A(self, y: Tensor) -> Congruent:
        """A_y = MᵀHHᵀM with the nodal matrix M of the weak form, so that HᵀA_yH is the matrix of the loss."""
        M = Congruent(self.localisation, CellBlocks(self.local_matrices(y).to(self.frame.dtype)))
        return Congruent(M, Congruent(Transposed(self.frame.H)))

    # ---- the loss as a quadratic form

    def state_load(self, y: Tensor) -> Tensor:
        self._check_linear()
        y = self.check_parameters(y)
        s = self._lifted(y)
        load = -self._transposed(s, self._on_cells(self._on_frame(self._functional(s, y))), y)
        return flat_first(self.rounded(load, "the load"), y)

    def functional(self, y: Tensor) -> Tensor:
        return torch.zeros(1, self.frame.arrays.nodal_size, dtype=self.wide, device=self.frame.device)

    def frame_functional(self, y: Tensor) -> Tensor:
        return torch.zeros(1, self.frame.frame_size, dtype=self.frame.dtype, device=self.frame.device)

    def constant(self, y: Tensor) -> Tensor:
        y = self.check_parameters(y)
        r = self._on_frame(self._functional(self._lifted(y), y))
        return self._tested(dot(r, r), y)

    def energy_norm(self, states: Tensor, y: Tensor) -> Tensor:
        raise ValueError("a weak form has no energy norm: it minimises nothing")
