"""Second derivatives of energies as operators on states.

B samples, K finest cells, m numbers in a cell's state.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fem_frames.formulations.state_integrals import StateIntegral
from fem_frames.operators.cells import cells_last, flat_first
from fem_frames.operators.linear import ExplicitOperator


class SecondDerivative(ExplicitOperator):
    """ψ''(s) of an energy on every finest cell, C_y if it is quadratic: products with states, without any blocks."""

    def __init__(
        self,
        integrals: Sequence[StateIntegral],
        y: Tensor,
        sizes: tuple[int, int],
        dtype: torch.dtype,
        s: Tensor | None = None,
    ) -> None:
        """`sizes` are (K, m), `dtype` is that of states that it is applied to.

        `y` (B, p) and `s` (K, m, B), which quadratic energies do not need, are in the precision of the integrals.
        """
        self._integrals, self._y, self._s, self._m = integrals, y, s, sizes[1]
        self.shape = (sizes[0] * sizes[1],) * 2
        self.dtype, self.device, self.batch = dtype, y.device, len(y)

    def cells(self, z: Tensor) -> Tensor:
        """(K, m, B) products with z (K, m, B), in the precision of the integrals; B may be a multiple of y's."""
        times = z.shape[2] // len(self._y)
        y, s = self._y.repeat(times, 1), z if self._s is None else self._s.repeat(1, 1, times)
        found = torch.zeros_like(z)
        for integral in self._integrals:
            integral.add_product(s, z, y, found)
        return found

    def multiply(self, x: Tensor, transposed: bool) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        found = self.cells(cells_last(flat, self._m).to(self._y.dtype))
        return flat_first(found.to(self.dtype), flat).reshape(x.shape)
