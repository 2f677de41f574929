"""Compiled functions of x and y with derivatives in y, for torch's autograd.

The backward pass adds up λ ∂a/∂y_k over all points in one pass of compiled code: nothing of the size of the values is
recorded. Derivatives of derivatives are left to torch, and so are transformations such as vmap.

n points, B samples, d dimension, p parameters.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fem_frames.compiling import Source, compiled, in_threads
from fem_frames.problem.compiled_functions import FEW, CompiledFunction, Stored, X, Y, declarations, loops
from fem_frames.problem.compiled_values import FLAGS, LIBRARIES, pieces, real_name
from fem_frames.problem.differentiation import gradient
from fem_frames.problem.program_values import evaluated
from fem_frames.problem.programs import NoProgramError, Program

SUMMED = 1024  # points that are added up one after the other; more would lose digits in float32
CACHED = 4096  # sums of derivatives that an inner loop works on, so that they stay in the cache


class DifferentiableFunction:
    """Maps y (B, p), whose gradients are recorded, to values (n, B) of a compiled function."""

    def __init__(self, function: CompiledFunction) -> None:
        self._function = function

    def __call__(self, y: Tensor) -> Tensor:
        found: Tensor = _Values.apply(y, self)
        return found

    def at(self, points: Tensor) -> DifferentiableFunction:
        """The same function at other points."""
        return DifferentiableFunction(self._function.at(points))

    def values(self, y: Tensor) -> Tensor:
        """(n, B) without gradients."""
        found: Tensor = self._function(y.detach())
        return found

    def slopes(self, y: Tensor, weights: Tensor) -> Tensor:
        """(B, p) the sums over points of weights (n, B) times the derivatives in y."""
        recorded = torch.is_grad_enabled() or _is_batched(weights)
        if not recorded and self._slopes is not None:
            return self._slopes(y.detach(), weights)
        with torch.enable_grad():
            free = y if y.requires_grad else y.detach().requires_grad_()
            values = self._in_torch(free)
            none = not values.requires_grad  # as for comparisons
            found = None if none else torch.autograd.grad(values, free, weights, None, recorded, allow_unused=True)[0]
        return torch.zeros_like(y) if found is None else found

    def _in_torch(self, y: Tensor) -> Tensor:
        """(n, B) the values, operation by operation."""
        x = self._function.points  # (d, n)

        def read(given: tuple[str, int]) -> Tensor:
            letter, i = given
            return x[i, :, None] if letter == "x" else y[:, i]

        (found,) = evaluated(self._function.program, read, y)
        return torch.as_tensor(found).expand(x.shape[1], len(y))

    @property
    def is_compiled(self) -> bool:
        """Whether the derivatives are: they may have too many operations."""
        return self._slopes is not None

    @cached_property
    def _slopes(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        return compiled_slopes(self._function)


def _is_batched(x: Tensor) -> bool:
    """Whether torch maps over x, as for several gradients at once."""
    from fem_frames.operators.checking import is_traced

    return is_traced(x) or bool(torch._C._functorch.is_legacy_batchedtensor(x))


class _Values(torch.autograd.Function):
    """y to the values (n, B) of a compiled function."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, function: DifferentiableFunction) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(y)
        return function.values(y)

    @staticmethod
    def backward(ctx: Any, weights: Tensor) -> tuple[Any, ...]:
        (y,) = ctx.saved_tensors
        return ctx.function.slopes(y, weights), None


def compiled_slopes(function: CompiledFunction) -> Callable[[Tensor, Tensor], Tensor] | None:
    """The derivatives of a compiled function in compiled code; None where they or a compiler cannot be had."""
    real = real_name(function.points)
    try:
        inputs = sorted(given for given in function.program.inputs() if given[0] == "y")
        program = gradient(function.program, inputs)
    except NoProgramError:
        return None
    columns = [k for (_, k), result in zip(inputs, program.results, strict=True) if result != 0.0]
    program = Program(program.operations, tuple(result for result in program.results if result != 0.0))
    if not columns:  # as for comparisons
        return lambda y, weights: torch.zeros_like(y)
    if real is None:
        return None
    library = compiled(Source("slopes", slopes_in_c(program, real), FLAGS, LIBRARIES))
    return None if library is None else CompiledSlopes(library, function.points, columns)


class CompiledSlopes:
    """Maps y (B, p) and weights (n, B) to the sums (B, p) of the weighted derivatives at fixed points."""

    def __init__(self, library: ctypes.CDLL, x: Tensor, columns: list[int]) -> None:
        """`x` (d, n) are the points; `columns` the parameters that have derivatives."""
        self._x, self._columns = x, torch.tensor(columns)
        self._add = library.slopes
        self._add.restype = None
        self._add.argtypes = [*[ctypes.c_void_p] * 4, *[ctypes.c_int64] * 4]

    def __call__(self, y: Tensor, weights: Tensor) -> Tensor:
        n, B = self._x.shape[1], len(y)
        rows, given = y.T.contiguous(), weights.contiguous()  # (p, B), (n, B)
        shares = [(first // B, last // B) for first, last in pieces(n * B)]
        parts = [list(range(first, last, SUMMED)) for first, last in shares]
        sums = torch.zeros(sum(map(len, parts)), len(self._columns), B, dtype=self._x.dtype)
        starts = [sum(map(len, parts[:k])) for k in range(len(parts))]
        pointers = [x.data_ptr() for x in (self._x, rows, given)]

        def add(share: int) -> None:
            for k, first in enumerate(parts[share]):
                last = min(first + SUMMED, shares[share][1])
                self._add(*pointers, sums[starts[share] + k].data_ptr(), first, last, n, B)

        in_threads(len(shares), add)
        found = torch.zeros_like(y)
        found[:, self._columns] = sums.sum(0).T
        return found


def slopes_in_c(program: Program, real: str) -> str:
    """The function `slopes`, which adds weights times the results of a program to sums."""
    count = len(program.results)
    most = max(FEW, min(256, CACHED // count))
    sums = [f"a{j}" for j in range(count)]
    places = [f"out[{j} * B + b]" for j in range(count)]

    def adding(names: list[str]) -> Callable[[list[str]], Iterator[str]]:
        def lines(results: list[str]) -> Iterator[str]:
            yield "const real weight = weights[k * B + b];"
            yield from (f"{name} += weight * {result};" for name, result in zip(names, results, strict=True))

        return lines

    argument = "const real *restrict weights, "
    in_registers = Stored(
        argument, adding(sums), tuple(sums), tuple(f"{place} += {a};" for place, a in zip(places, sums, strict=True))
    )
    return "\n".join(
        [
            "/* Adds weights (n, B) times results for x (d, n) and y (p, B), at points [from, to), to out (·, B). */",
            *declarations(program, real),
            f"enum {{ FEW = {FEW}, MOST = {most} }};",
            *loops(program, real, "over_samples", X, Stored(argument, adding(places))),
            *loops(program, real, "over_points", Y, in_registers),
            "void slopes(const real *x, const real *y, const real *weights, real *out, int64_t from, int64_t to,",
            "            int64_t n, int64_t B) {",
            "    if (B < FEW) for (int64_t k = from; k < to; k += MOST)",
            "        over_points(x, y, weights, out, k, k + MOST < to ? k + MOST : to, 0, B, n, B);",
            "    else for (int64_t b = 0; b < B; b += MOST)",
            "        over_samples(x, y, weights, out, from, to, b, b + MOST < B ? b + MOST : B, n, B);",
            "}",
            "",
        ]
    )
