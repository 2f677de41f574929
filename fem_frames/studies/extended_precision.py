"""Residual and loss in extended precision, to measure rounding errors in float64 and below.

Uses NumPy's long double on the float64 tables: where it is no wider than float64, errors of float64 appear as zero.

K finest cells, m numbers per cell state, r residuals per cell.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from fem_frames.formulations.formulation import Formulation
from fem_frames.formulations.formulation_checks import check_quadratic
from fem_frames.frame import level_matrices
from fem_frames.frame.sparse import SparseMatrix

Extended = npt.NDArray[np.longdouble]


class ExtendedForm:
    """Residual DᵀC_yD w - load and loss of a formulation in float64, evaluated in extended precision."""

    def __init__(self, formulation: Formulation) -> None:
        if formulation.frame.dtype != torch.float64:
            raise ValueError(f"extended precision starts from float64, not {formulation.frame.dtype}")
        check_quadratic(formulation, "this study")
        arrays = formulation.frame.arrays
        self._formulation, self._lift = formulation, level_matrices.lift_states(arrays).astype(np.longdouble)
        self._sizes = [family.level_sizes for family in arrays.families]
        self._tables = level_matrices.differential_matrices(arrays)
        self._transposed = [table.transposed() for table in self._tables]

    def __call__(self, w: torch.Tensor, y: torch.Tensor) -> tuple[Extended, np.longdouble]:
        """(Nhat,) residual and the loss, for w (Nhat,) and y (p,) in float64."""
        long_w = w.numpy().astype(np.longdouble)
        lift = _long(self._formulation.lift(y)[0]) if self._formulation.lift_needs_y else self._lift
        states = self._differential(long_w) + lift
        weak = self._formulation.weak_blocks(y)
        if weak is not None:
            return self._dual_norm(*weak, states)
        squares = self._formulation.squares(y)
        if squares is not None:
            return self._sum_of_squares(*squares, states, y)
        return self._quadratic(long_w, states, y)

    def _quadratic(self, w: Extended, states: Extended, y: torch.Tensor) -> tuple[Extended, np.longdouble]:
        """Of a density ½ sᵀ C_y s - ℓ_yᵀ s, and a load on the frame."""
        formulation, K = self._formulation, len(self._formulation.frame.arrays.volumes)
        m, C = len(states) // K, formulation.C(y)
        unit = torch.eye(m, dtype=torch.float64)
        columns = [C(unit[i].repeat(K)[None])[0].view(K, m) for i in range(m)]
        blocks = torch.stack(columns, dim=2).numpy().astype(np.longdouble)  # (K, m, m)
        flux = np.einsum("kij,kj->ki", blocks, states.reshape(K, m)).ravel()
        on_states = formulation.state_functional(y)
        load = np.zeros(K * m, np.longdouble) if on_states is None else _long(on_states[..., 0].reshape(-1))
        functional = _long(formulation.frame_functional(y)[0])
        offset = np.longdouble(formulation.lift_functional(y).sum()) - np.longdouble(formulation.oscillation(y).sum())
        loss = flux @ states / 2 - load @ states - functional @ w - offset
        return self._transpose(flux - load) - functional, loss

    def _sum_of_squares(
        self, R: torch.Tensor, offsets: torch.Tensor, states: Extended, y: torch.Tensor
    ) -> tuple[Extended, np.longdouble]:
        blocks, K = _long(R[..., 0]), len(R)  # (K, r, m)
        residuals = np.einsum("krm,km->kr", blocks, states.reshape(K, -1)) + _long(offsets[..., 0])
        loss = (residuals**2).sum() + np.longdouble(self._formulation.oscillation(y).sum())
        return self._transpose(np.einsum("krm,kr->km", blocks, residuals).ravel()), loss

    def _dual_norm(self, C: torch.Tensor, load: torch.Tensor, states: Extended) -> tuple[Extended, np.longdouble]:
        blocks, K = _long(C[..., 0]), len(C)  # (K, m, m)
        of_states = np.einsum("kij,kj->ki", blocks, states.reshape(K, -1)) - _long(load[..., 0])
        dual = self._transpose(of_states.ravel())
        back = np.einsum("kij,ki->kj", blocks, self._differential(dual).reshape(K, -1))
        return self._transpose(back.ravel()), (dual**2).sum()

    def _differential(self, w: Extended) -> Extended:
        levels = np.split(w, np.cumsum([size for sizes in self._sizes for size in sizes])[:-1])
        count, state = len(self._tables), w[:0]
        for j, table in enumerate(self._tables):
            state = _product(table, np.concatenate([state, *levels[j::count]]))
        return state

    def _transpose(self, state: Extended) -> Extended:
        count = len(self._tables)
        pieces = [state] * (count * len(self._sizes))
        for j in reversed(range(count)):
            before = self._tables[j - 1].shape[0] if j else 0
            parts = np.cumsum([before, *(sizes[j] for sizes in self._sizes)])[:-1]
            state, *pieces[j::count] = np.split(_product(self._transposed[j], state), parts)
        return np.concatenate(pieces)


def _long(values: torch.Tensor) -> Extended:
    return values.numpy().astype(np.longdouble)


def _product(rows: SparseMatrix, x: Extended) -> Extended:
    made = np.zeros(rows.shape[0], np.longdouble)
    filled = np.diff(rows.starts) > 0
    if filled.any():
        made[filled] = np.add.reduceat(rows.weights * x[rows.columns], rows.starts[:-1][filled])
    return made
