"""Evaluates programs in NumPy or torch: inputs are arrays that broadcast against each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fem_frames.problem.programs import Program, Value

Array = Any  # a NumPy array, a torch tensor, or a number

_DIRECT: dict[str, Callable[..., Any]] = {
    "neg": lambda a: -a,
    "reciprocal": lambda a: 1 / a,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}
_NUMPY_NAMES = {"pow": "power", "asin": "arcsin", "acos": "arccos", "atan": "arctan", "atan2": "arctan2"}


def evaluated(program: Program, read: Callable[[tuple[str, int]], Array], like: Array) -> list[Array]:
    """The results, in the kind of `like`; `read` gives the input for ("x", i) and so on."""
    module = _Numpy() if isinstance(like, np.ndarray) else _Torch(like)
    inputs: dict[tuple[str, int], Array] = {}
    found: list[Array] = []
    last = {a: number for number, operation in enumerate(program.operations) for a in operation.arguments}
    kept = set(program.results)

    def of(value: Value) -> Array:
        if not isinstance(value, tuple):
            return value
        if value[0] == "op":
            return found[value[1]]
        if value not in inputs:
            inputs[value] = read(value)
        return inputs[value]

    for number, operation in enumerate(program.operations):
        arguments = [of(a) for a in operation.arguments]
        if operation.name in _DIRECT:
            found.append(_DIRECT[operation.name](*(module.number(a) for a in arguments)))
        else:
            found.append(module.call(operation.name, arguments))
        for a in operation.arguments:  # arrays that nothing needs any more would fill the memory
            if isinstance(a, tuple) and a[0] == "op" and last[a] == number and a not in kept:
                found[a[1]] = None
    return [of(value) for value in program.results]


def evaluated_number(name: str, *arguments: float) -> float:
    """One operation on numbers."""
    if name in _DIRECT:
        return float(_DIRECT[name](*arguments))
    special: dict[str, Callable[..., float]] = {
        "abs": abs,
        "minimum": min,
        "maximum": max,
        "at_least": max,
        "at_most": min,
        "rsqrt": lambda a: a**-0.5,
        "exp2": lambda a: 2.0**a,
        "sigmoid": lambda a: 1 / (1 + math.exp(-a)),
        "logical_not": lambda a: float(a == 0),
        "where": lambda c, a, b: a if c else b,
    }
    return float((special.get(name) or getattr(math, name))(*arguments))


class _Numpy:
    @staticmethod
    def number(value: Array) -> Array:
        """Comparisons as numbers."""
        return np.asarray(value, np.float64) if getattr(value, "dtype", None) == np.bool_ else value

    def call(self, name: str, arguments: list[Array]) -> Array:
        a = [self.number(value) for value in arguments]
        if name == "where":
            return np.where(np.asarray(a[0]) != 0, a[1], a[2])
        if name in ("at_least", "at_most"):
            return (np.maximum if name == "at_least" else np.minimum)(*a)
        if name == "rsqrt":
            return 1 / np.sqrt(a[0])
        if name == "sigmoid":
            return 1 / (1 + np.exp(-a[0]))
        if name == "logical_not":
            return np.asarray(np.asarray(a[0]) == 0, np.float64)
        if name == "erf":
            return np.vectorize(math.erf, otypes=[np.float64])(a[0])
        return getattr(np, _NUMPY_NAMES.get(name, name))(*a)


class _Torch:
    def __init__(self, like: Array) -> None:
        self._like = like

    def number(self, value: Array) -> Array:
        """Comparisons as numbers."""
        import torch

        return value.to(self._like.dtype) if getattr(value, "dtype", None) == torch.bool else value

    def call(self, name: str, arguments: list[Array]) -> Array:
        import torch

        a = [torch.as_tensor(self.number(v), dtype=self._like.dtype, device=self._like.device) for v in arguments]
        if name == "where":
            return torch.where(a[0] != 0, a[1], a[2])
        if name in ("at_least", "at_most"):
            return (torch.maximum if name == "at_least" else torch.minimum)(*a)
        if name == "logical_not":
            return (a[0] == 0).to(self._like.dtype)
        return getattr(torch, name)(*a)
