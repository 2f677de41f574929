"""How CUDA multiplies, and what is recorded of a GPU with the results that it gave.

Left alone, CUDA may round the factors of float32 products to TF32, ten bits, and add up products in half precision in
half. The precision of a run is to be the one that its configuration names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

_REDUCTIONS = {
    "float16": "allow_fp16_reduced_precision_reduction",
    "bfloat16": "allow_bf16_reduced_precision_reduction",
}
_ACCUMULATION = "allow_fp16_accumulation"


@contextlib.contextmanager
def full_products(device: torch.device) -> Iterator[None]:
    """On CUDA, products inside are those of the precision that they are in, with sums in float32 for half.

    Afterwards torch's settings, which hold for the whole process, are as before; on other devices they stay untouched.
    """
    if device.type != "cuda":
        yield
        return
    matmul = torch.backends.cuda.matmul
    before = {name: _pair(name) for name in _REDUCTIONS.values()}
    accumulation = getattr(matmul, _ACCUMULATION, None)  # younger than the oldest torch that is supported
    precision, value = _float32()
    try:
        setattr(matmul, precision, False if precision == "allow_tf32" else "ieee")
        for name in before:
            setattr(matmul, name, False)
        if accumulation is not None:
            setattr(matmul, _ACCUMULATION, False)
        yield
    finally:
        setattr(matmul, precision, value)
        for name, pair in before.items():
            setattr(matmul, name, pair)
        if accumulation is not None:
            setattr(matmul, _ACCUMULATION, accumulation)


def product_settings() -> dict[str, Any]:
    """How CUDA multiplies at present: in TF32 or not, and where products in half precision are added up in half."""
    _, value = _float32()
    matmul = torch.backends.cuda.matmul
    in_half = [dtype for dtype, name in _REDUCTIONS.items() if getattr(matmul, name)]
    return {"tf32": value in (True, "tf32"), "sums_in_half": in_half}


def describe(device: torch.device) -> dict[str, Any]:
    """What is recorded of a GPU: its name, the version of CUDA, how it multiplies; nothing of other devices."""
    if device.type != "cuda":
        return {}
    return {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda, **product_settings()}


def _float32() -> tuple[str, Any]:
    """The setting for products in float32, and its value: torch has an old and a new one, and mixed it refuses the old.

    Reading or setting the one that was not used last would make the other unusable.
    """
    matmul = torch.backends.cuda.matmul
    try:
        return "allow_tf32", matmul.allow_tf32
    except RuntimeError:
        return "fp32_precision", matmul.fp32_precision


def _pair(name: str) -> Any:
    """A reduction's setting as it is to be put back: with that of split sums, where torch has one."""
    matmul = torch.backends.cuda.matmul
    split = getattr(matmul, f"{name}_split_k", None)
    return getattr(matmul, name) if split is None else (getattr(matmul, name), split)
