"""Products with sparse matrices by rows, in torch.

A product gathers rows of x and sums them. The transpose has its own table and gathers too, so neither it nor a backward
pass needs atomic additions: sums are deterministic, and in half precision they are accumulated in float32.

R rows, n columns, B samples; the batch is last, so that a gathered row is contiguous.
"""

from __future__ import annotations

import torch

from fem_frames.frame.sparse import SparseMatrix


class SparseProduct:
    """SparseMatrix times (n, B) in torch, rounded once to dtype.

    It uses `embedding_bag`, torch's kernel for weighted sums of gathered rows, which is as fast as a compiled recursion
    without compiling anything, and accurate in half precision.
    """

    def __init__(self, rows: SparseMatrix, dtype: torch.dtype, device: torch.device) -> None:
        self.shape = rows.shape
        index = torch.int32 if max(len(rows.columns), *rows.shape) < 2**31 else torch.int64
        self._starts = torch.as_tensor(rows.starts).to(device, index)
        self._columns = torch.as_tensor(rows.columns).to(device, index)
        self._weights = torch.as_tensor(rows.weights).to(device, dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(n, B) to (R, B)."""
        if not len(self._columns):
            return x.new_zeros(self.shape[0], x.shape[1])
        return torch.nn.functional.embedding_bag(
            self._columns,
            x,
            self._starts,
            mode="sum",
            per_sample_weights=self._weights,
            include_last_offset=True,
        )


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision in which sums are accumulated: float32 for float16 and bfloat16, otherwise dtype itself."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
