"""Passes over all values of a coefficient or a source in compiled code, where torch would take longer than a solve."""

from __future__ import annotations

import ctypes
import math
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from fem_frames.compiling import Source, compiled, in_threads

CODE = Path(__file__).with_name("values.c")
FLAGS = ("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fopenmp-simd")
"""Vectors of exp and the like; NaN and infinity stay what they are."""
LIBRARIES = ("-lmvec", "-lm")
PIECE = 2**14  # numbers per thread below which threads do not pay


def real_name(values: Any) -> str | None:
    """float or double for a tensor on the processor; None for other tensors."""
    import torch

    names = {torch.float32: "float", torch.float64: "double"}
    return names.get(values.dtype) if values.device.type == "cpu" else None


def exponentials(values: Any) -> Any:
    """exp of a contiguous tensor, in its memory, which nobody else uses."""
    library = _library(values)
    if library is None:
        return values.exp_()
    n, size = values.numel(), values.element_size()
    shares = pieces(n)
    in_threads(
        len(shares),
        lambda k: library.exponentials(values.data_ptr() + shares[k][0] * size, shares[k][1] - shares[k][0]),
    )
    return values


def extremes(values: Any) -> tuple[float, float]:
    """The least and the greatest number of a contiguous tensor, both NaN if one of them is."""
    library = _library(values) if values.numel() else None
    if library is None:
        low, high = values.aminmax()
        return float(low), float(high)
    found = values.new_empty(2)
    wrong = library.extremes(values.data_ptr(), values.numel(), found.data_ptr())
    low, high = found.tolist()
    return (math.nan, math.nan) if wrong else (low, high)


def pieces(n: int) -> list[tuple[int, int]]:
    """Bounds of the shares of n numbers that torch's number of threads, or fewer, work on."""
    import torch

    threads = max(1, min(torch.get_num_threads(), n // PIECE))
    cuts = [n * k // threads for k in range(threads + 1)]
    return list(pairwise(cuts))


def _library(values: Any) -> ctypes.CDLL | None:
    real = real_name(values)
    if real is None or not values.is_contiguous():
        return None
    library = _compiled(real)
    if library is not None:
        library.exponentials.restype, library.extremes.restype = None, ctypes.c_int64
        library.exponentials.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        library.extremes.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    return library


def _compiled(real: str) -> ctypes.CDLL | None:
    return compiled(_source(real))


@cache
def _source(real: str) -> Source:
    macros = (f"-DREAL={real}", f"-DEXP=exp{'f' * (real == 'float')}")
    return Source("values", CODE.read_text(), (*FLAGS, *macros), LIBRARIES)
