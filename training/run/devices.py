"""How CUDA multiplies, and what results record about the GPU.

By default CUDA may round the factors of float32 products to the ten bits of TF32, and sum products of half precision
in half precision. A run should have the precision that its configuration names.
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
    """Inside, CUDA computes products in their own precision, and sums products of half precision in float32.

    Restores torch's settings, which are global, afterwards; other devices stay untouched.
    """
    if device.type != "cuda":
        yield
        return
    matmul = torch.backends.cuda.matmul
    before = {name: _pair(name) for name in _REDUCTIONS.values()}
    accumulation = getattr(matmul, _ACCUMULATION, None)  # missing in the oldest supported torch
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
    """CUDA's present settings: whether it uses TF32, and which half precisions it sums in themselves."""
    _, value = _float32()
    matmul = torch.backends.cuda.matmul
    in_half = [dtype for dtype, name in _REDUCTIONS.items() if getattr(matmul, name)]
    return {"tf32": value in (True, "tf32"), "sums_in_half": in_half}


def describe(device: torch.device) -> dict[str, Any]:
    """The name of a GPU, its CUDA version and how it multiplies; empty for other devices."""
    if device.type != "cuda":
        return {}
    return {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda, **product_settings()}


def _float32() -> tuple[str, Any]:
    """The name and value of the setting for float32 products, which has an old and a new form in torch.

    torch refuses to mix them: reading or setting the form that was not used last would make the other unusable.
    """
    matmul = torch.backends.cuda.matmul
    try:
        return "allow_tf32", matmul.allow_tf32
    except RuntimeError:
        return "fp32_precision", matmul.fp32_precision


def _pair(name: str) -> Any:
    """The setting of a reduction for restoring it, with that of split sums if torch has one."""
    matmul = torch.backends.cuda.matmul
    split = getattr(matmul, f"{name}_split_k", None)
    return getattr(matmul, name) if split is None else (getattr(matmul, name), split)
