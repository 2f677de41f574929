"""Functions of x and y as programs, recorded while torch evaluates them once.

Only functions that work point by point have a program: they take components of x and y, combine them by arithmetic and
elementary functions, and add components up. Everything else is left to torch: the recorder returns None for it.

K cells, Q points in a cell, B samples, d dimension, p parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fem_frames.problem.programs import (
    BINARY,
    MOST_OPERATIONS,
    MOST_POWER,
    UNARY,
    NoProgramError,
    Program,
    ProgramBuilder,
    Value,
)

LOGICAL = {"logical_and": "mul", "bitwise_and": "mul", "logical_or": "maximum", "bitwise_or": "maximum"}
KEPT = {"clone", "detach", "alias", "contiguous", "lift_fresh_copy"}
"""Operations of torch that do not change values."""


def recorded(function: Callable[[Any, Any], Any], d: int, p: int) -> Program | None:
    """The program of function(x, y), which sees x (K, Q, 1, d) and y (1, 1, B, p); None if it has none.

    The function runs once, so it must depend on nothing but its arguments.
    """
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    # Axes of different lengths, so that shapes tell which is which.
    K, Q, B = [n for n in range(5, 12) if n not in (d, p)][:3]
    x, y = torch.rand(K, Q, 1, d, dtype=torch.float64), torch.rand(1, 1, B, p, dtype=torch.float64)
    try:
        with torch.no_grad():
            graph = make_fx(function)(x, y)
        return _Recorder(graph, (K, Q, B)).program(d, p)
    except (Exception, SystemExit):  # evaluating it in torch reports errors of the function
        return None


class _Recorder:
    """Replays the tensor operations of a graph on arrays of scalar values.

    The array of a tensor has length 1 along cells, points and samples, so NumPy broadcasts it as torch does the tensor.
    """

    def __init__(self, graph: Any, lengths: tuple[int, int, int]) -> None:
        self._graph, self._lengths = graph, lengths
        self._builder = ProgramBuilder()

    def program(self, d: int, p: int) -> Program:
        values: dict[Any, Any] = {}
        inputs = iter((self._input("x", d), self._input("y", p)))
        for node in self._graph.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(inputs)
            elif node.op == "get_attr":
                values[node] = _constants(getattr(self._graph, node.target))
            elif node.op == "call_function":
                values[node] = self._replayed(node, values)
            elif node.op == "output":
                found = values.get(node.args[0])
                if found is None or _shape(node.args[0]) != self._lengths:
                    raise NoProgramError
                return Program(self._builder.operations, (found.item(),))
            else:
                raise NoProgramError
        raise NoProgramError

    @staticmethod
    def _input(letter: str, count: int) -> np.ndarray:
        made = np.empty((1, 1, 1, count), object)
        for k in range(count):
            made[0, 0, 0, k] = (letter, k)
        return made

    def _replayed(self, node: Any, values: dict[Any, Any]) -> np.ndarray:
        name = str(node.target).removeprefix("aten.").partition(".")[0].rstrip("_")
        known = {argument: values[argument] for argument in node.all_input_nodes}
        args = [known.get(a, a) if not isinstance(a, list | tuple) else [known.get(b, b) for b in a] for a in node.args]
        options = {key: value for key, value in node.kwargs.items() if value is not None}
        found = self._structural(name, args, options, node)
        return self._pointwise(name, args, options) if found is None else found

    def _structural(self, name: str, args: list[Any], options: dict[str, Any], node: Any) -> np.ndarray | None:
        """Operations on the axes of components, which come after cells, points and samples; None for other names."""
        if name == "scalar_tensor":
            return _constants(args[0])
        if name in KEPT or name == "_to_copy":
            _floating(node)
            return args[0]
        if name == "select":
            return np.take(args[0], args[2], axis=self._component(args[0], args[1]))
        if name == "slice":
            axis, bounds = self._component(args[0], args[1] if len(args) > 1 else 0), [*args[2:], None, None, None]
            return args[0][(slice(None),) * axis + (slice(*bounds[:3]),)]
        if name == "unsqueeze":
            rank = args[0].ndim + 1
            return np.expand_dims(args[0], self._component(np.empty((1,) * rank), args[1]))
        if name in ("cat", "stack"):
            axis = args[1] if len(args) > 1 else 0
            parts = args[0] if name == "cat" else [np.expand_dims(a, axis) for a in args[0]]
            return np.concatenate(parts, axis=self._component(parts[0], axis))
        if name == "sum":
            if options or len(args) < 2:
                raise NoProgramError
            keep = len(args) > 2 and bool(args[2])
            (axis,) = (self._component(args[0], a) for a in args[1])
            total = None
            for k in range(args[0].shape[axis]):
                part = np.take(args[0], [k] if keep else k, axis=axis)
                total = part if total is None else self._mapped("add", total, part)
            return total
        return None

    @staticmethod
    def _component(array: np.ndarray, axis: int) -> int:
        """The axis as a number from 0 on, if it is one of components."""
        axis = axis % array.ndim
        if axis < 3:
            raise NoProgramError
        return axis

    def _pointwise(self, name: str, args: list[Any], options: dict[str, Any]) -> np.ndarray:
        scale = options.pop("alpha", 1)
        if options:
            raise NoProgramError
        if name == "rsub":
            name, args = "sub", [args[1], args[0], *args[2:]]
        if name in ("add", "sub") and scale != 1:
            args = [args[0], self._mapped("mul", args[1], scale)]
        if name in LOGICAL:
            args = [self._mapped("ne", a, 0.0) for a in args]
            name = LOGICAL[name]
        if name == "bitwise_not":
            name = "logical_not"
        if name in ("clamp", "clamp_min", "clamp_max"):
            low, high = {"clamp": [*args[1:], None], "clamp_min": [args[1], None], "clamp_max": [None, args[1]]}[name][
                :2
            ]
            value = args[0] if low is None else self._mapped(_clamp("at_least", "maximum", low), args[0], low)
            return value if high is None else self._mapped(_clamp("at_most", "minimum", high), value, high)
        fits = len(args) == (1 if name in UNARY else 2 if name in BINARY else 3 if name == "where" else -1)
        if not fits:
            raise NoProgramError
        return self._mapped(name, *args)

    def _mapped(self, name: str, *arguments: Any) -> np.ndarray:
        """The operation on all values of arrays, or numbers, that are broadcast against each other."""
        arrays = [a if isinstance(a, np.ndarray) else _constants(a) for a in arguments]
        made = np.broadcast(*arrays) if len(arrays) > 1 else arrays[0]
        found = np.empty(made.shape, object)
        wide = [np.broadcast_to(a, made.shape) for a in arrays]
        for index in np.ndindex(made.shape):
            found[index] = self._done(name, *(a[index] for a in wide))
        return found

    def _done(self, name: str, *arguments: Value) -> Value:
        if name == "pow":
            base, power = arguments
            if isinstance(power, float) and power.is_integer() and 1 <= power <= MOST_POWER:
                made = base
                for _ in range(int(power) - 1):
                    made = self._done("mul", made, base)
                return made
            if power == 0.5:
                return self._done("sqrt", base)
        return self._builder.raw(name, *arguments)


def _clamp(constant: str, general: str, bound: Any) -> str:
    """The operation for a bound that is a number, or that depends on x or y."""
    return general if isinstance(bound, np.ndarray) else constant


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _floating(node: Any) -> None:
    """Refuses conversions to whole numbers, which round."""
    if not node.meta["val"].dtype.is_floating_point:
        raise NoProgramError


def _constants(value: Any) -> np.ndarray:
    """Numbers, or a tensor that does not depend on x and y, as an array of values."""
    numbers = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    if numbers.dtype == object or np.iscomplexobj(numbers) or numbers.size > MOST_OPERATIONS:
        raise NoProgramError
    made = np.empty(numbers.shape, object)
    for index in np.ndindex(numbers.shape):
        made[index] = float(numbers[index])
        if not math.isfinite(made[index]):
            raise NoProgramError
    return made
