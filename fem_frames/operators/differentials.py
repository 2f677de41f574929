"""Two other realisations of D: gathered as in the paper, and as an assembled matrix.

They serve to compare the recursion in accuracy and speed. In half precision both sum in float32, unless `accumulate`
names their own dtype as in a plain implementation; then long sums stagnate.

B samples, K finest cells, L functions on a cell, m numbers in a cell's state.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

from fem_frames.frame.arrays import FrameArrays
from fem_frames.frame.curvature import handed_down
from fem_frames.frame.level_matrices import field_of, local_table, state_size, state_slices
from fem_frames.operators.linear import ExplicitOperator, batch_last
from fem_frames.operators.products import accumulation_dtype

LAYOUTS = ("csr", "coo")


class GatherDifferential(ExplicitOperator):
    """D : R^Nhat -> R^(K m); every finest cell gathers from its ancestors on all levels, at a cost of O(J N).

    See "Matrix-free numerical realization" in the paper.
    """

    def __init__(
        self, arrays: FrameArrays, dtype: torch.dtype, device: torch.device, accumulate: torch.dtype | None = None
    ) -> None:
        m = state_size(arrays)
        self.shape = (len(arrays.volumes) * m, arrays.frame_size)
        self.dtype, self.device, self.hint = dtype, device, "was the net built with frame.level_sizes?"
        self._state_size, self._accumulate = m, accumulate or accumulation_dtype(dtype)
        self._tables: list[tuple[slice, slice, Tensor, Tensor]] = []
        start = 0
        for family in arrays.families:
            part = state_slices(arrays)[family.field]
            for index, size in enumerate(family.level_sizes):
                cell, table = arrays.ancestors(index), local_table(arrays, family, index)
                functions = table.functions[cell]  # (K, n)
                states = handed_down(arrays, field_of(arrays, family).element, index, table.states)  # (K, n, c)
                states = states * np.sqrt(arrays.volumes)[:, None, None]
                if size:
                    indices = torch.as_tensor(np.maximum(functions, 0), device=device)  # padding has zero states
                    weights = torch.as_tensor(states).to(device, dtype)
                    self._tables.append((slice(start, start + size), part, indices, weights))
                start += size

    def multiply(self, x: Tensor, transposed: bool) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        made = self._scatter(flat) if transposed else self._gather(flat)
        return made.reshape(*x.shape[:-1], made.shape[-1])

    def _gather(self, w: Tensor) -> Tensor:
        states = w.new_zeros(len(w), self.shape[0] // self._state_size, self._state_size, dtype=self._accumulate)
        for columns, part, dofs, weights in self._tables:
            local = w[:, columns][:, dofs]  # (B, K, L)
            states[..., part] += torch.einsum("bkl,klc->bkc", local.to(self._accumulate), weights.to(self._accumulate))
        return states.flatten(1).to(self.dtype)

    def _scatter(self, z: Tensor) -> Tensor:
        states = z.unflatten(1, (-1, self._state_size)).to(self._accumulate)
        w = torch.zeros(len(z), self.shape[1], dtype=self._accumulate, device=z.device)
        for columns, part, dofs, weights in self._tables:
            local = torch.einsum("bkc,klc->bkl", states[..., part], weights.to(self._accumulate))
            w[:, columns].index_add_(1, dofs.flatten(), local.flatten(1))
        return w.to(self.dtype)


class SparseDifferential(ExplicitOperator):
    """D : R^Nhat -> R^(K m) as one assembled sparse matrix, and its transpose as another."""

    def __init__(
        self,
        arrays: FrameArrays,
        dtype: torch.dtype,
        device: torch.device,
        layout: str = "csr",
        accumulate: torch.dtype | None = None,
    ) -> None:
        from scipy import sparse

        from fem_frames.frame.matrices import cell_differential, to_torch

        if layout not in LAYOUTS:
            raise ValueError(f"layout is {layout!r}; choose from {', '.join(LAYOUTS)}")
        self._accumulate = accumulate or accumulation_dtype(dtype)
        if layout == "csr" and self._accumulate in (torch.float16, torch.bfloat16):
            raise ValueError("torch has no CSR products in half precision: use layout='coo', or accumulate in float32")
        scale = np.repeat(np.sqrt(arrays.volumes), state_size(arrays))
        matrix = sparse.csr_array(sparse.diags(scale) @ cell_differential(arrays))
        self.shape = matrix.shape
        self.dtype, self.device, self.hint = dtype, device, "was the net built with frame.level_sizes?"
        # The entries are rounded to dtype first: only sums use the wider type.
        matrix.data = torch.as_tensor(matrix.data).to(dtype).double().numpy()
        self._matrix, self._transposed = (to_torch(a, layout, self._accumulate, device) for a in (matrix, matrix.T))

    def multiply(self, x: Tensor, transposed: bool) -> Tensor:
        matrix = self._transposed if transposed else self._matrix
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            made = torch.sparse.mm(matrix, batch_last(x.reshape(-1, x.shape[-1])).to(self._accumulate))
        return made.T.to(self.dtype).reshape(*x.shape[:-1], made.shape[0])
