"""Programs of scalar operations as compiled code that evaluates them for all points and samples.

What depends on y alone is computed once per sample, what depends on x alone once per point. The inner loop goes over
samples, or over points where there are few samples, and runs in vectors, with the vector functions of the C library.

n points, B samples, d dimension, p parameters.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fem_frames.compiling import Source, compiled, in_threads
from fem_frames.problem.compiled_values import FLAGS, LIBRARIES, pieces, real_name
from fem_frames.problem.programs import BINARY, CLIPPED, Operation, Program, Value
from fem_frames.problem.recording import recorded

FEW = 8  # samples below which the inner loop goes over points

# Operations in C; {0} and {1} are arguments, F ends the names of functions. Like torch, they keep NaN;
# at_least and at_most, whose second argument is a constant, need one instruction for that.
OPERATIONS = {
    "neg": "-{0}",
    "reciprocal": "1 / {0}",
    "rsqrt": "1 / sqrt{F}({0})",
    "abs": "fabs{F}({0})",
    "sigmoid": "1 / (1 + exp{F}(-{0}))",
    "logical_not": "{0} == 0",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "atan2": "atan2{F}({0}, {1})",
    "pow": "pow{F}({0}, {1})",
    "minimum": "{0} < {1} || {0} != {0} ? {0} : {1}",
    "maximum": "{0} > {1} || {0} != {0} ? {0} : {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "at_least": "{0} < {1} ? {1} : {0}",
    "at_most": "{0} > {1} ? {1} : {0}",
    "where": "{0} != 0 ? {1} : {2}",
}
# The functions of the C library that it has for vectors.
VECTOR = {"exp", "log", "sin", "cos", "pow", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "erf"}
VECTOR |= {"exp2", "expm1", "log2", "log10", "log1p"}
X, Y = 1, 2  # what a value depends on; both: 3


def compiled_function(function: Callable[[Any, Any], Any], points: Any, p: int) -> CompiledFunction | None:
    """function(x, y) at points (…, d) in compiled code; None where it has no program or nothing compiles it."""
    program = None if real_name(points) is None else recorded(function, points.shape[-1], p)
    return None if program is None else compiled_program(program, points)


def compiled_program(program: Program, points: Any) -> CompiledFunction | None:
    """A program of x and y, which depends on both, at points (…, d) in compiled code; None if nothing compiles it."""
    real = real_name(points)
    if real is None:
        return None
    library = compiled(Source("function", c_code(program, real), FLAGS, LIBRARIES))
    return None if library is None else CompiledFunction(library, program, points)


class CompiledFunction:
    """Maps y (B, p) to values (n, B) at fixed points."""

    def __init__(self, library: ctypes.CDLL, program: Program, points: Any) -> None:
        """`points` (…, d) are n points in the precision that the library is compiled for."""
        self._library, self.program = library, program
        self.points = points.reshape(-1, points.shape[-1]).T.contiguous()  # (d, n)
        self._evaluate = library.evaluate
        self._evaluate.restype = None
        self._evaluate.argtypes = [*[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 4]

    def at(self, points: Any) -> CompiledFunction:
        """The same function at other points."""
        return CompiledFunction(self._library, self.program, points)

    def __call__(self, y: Any) -> Any:
        import torch

        n, B = self.points.shape[1], y.shape[0]
        rows = y.T.contiguous()  # (p, B)
        out = torch.empty(n, B, dtype=self.points.dtype)
        shares = [(first // B, last // B) for first, last in pieces(n * B)]
        pointers = self.points.data_ptr(), rows.data_ptr(), out.data_ptr()
        in_threads(len(shares), lambda k: self._evaluate(*pointers, *shares[k], n, B))
        return out


def c_code(program: Program, real: str) -> str:
    """The function `evaluate` of a program in C."""
    stored = Stored("", lambda results: [f"out[k * B + b] = {results[0]};"])
    return "\n".join(
        [
            "/* Values out (n, B) of a function of x (d, n) and y (p, B), for points [from, to). */",
            *declarations(program, real),
            f"enum {{ FEW = {FEW}, MOST = 256 }};",
            *loops(program, real, "over_samples", X, stored),
            *loops(program, real, "over_points", Y, stored),
            "void evaluate(const real *x, const real *y, real *out, int64_t from, int64_t to, int64_t n, int64_t B) {",
            "    if (B < FEW) for (int64_t k = from; k < to; k += MOST)",
            "        over_points(x, y, out, k, k + MOST < to ? k + MOST : to, 0, B, n, B);",
            "    else for (int64_t b = 0; b < B; b += MOST)",
            "        over_samples(x, y, out, from, to, b, b + MOST < B ? b + MOST : B, n, B);",
            "}",
            "",
        ]
    )


def declarations(program: Program, real: str) -> Iterator[str]:
    """What comes before code that uses `in_c`."""
    F = "f" if real == "float" else ""
    yield f"#include <stdint.h>\ntypedef {real} real;\nreal sqrt{F}(real), fabs{F}(real);"
    for name in sorted({operation.name for operation in program.operations} | {"exp"}):
        if name in VECTOR:
            yield f'__attribute__((simd("notinbranch"))) real {name}{F}(real{", real" * (name in BINARY)});'
    yield from (f"real bound{k} = {value!r};" for value, k in bounds(program).items())


def in_c(operation: Operation, arguments: list[str], F: str, known: dict[Value, int]) -> str:
    """An operation in C; `known` are the bounds of the program, which the code has as c0, c1, …."""
    pattern = OPERATIONS.get(operation.name, f"{operation.name}{{F}}({{0}})")
    if operation.name in CLIPPED:
        arguments = [arguments[0], f"c{known[operation.arguments[1]]}"]
    return pattern.format(*arguments, F=F)


def bounds(program: Program) -> dict[Value, int]:
    """Numbers the constants that values are clipped to. In C they are global variables, not constants.

    A compiler that knows c replaces exp(x > c ? c : x) by x > c ? exp(c) : exp(x), and x may be where exp is slow.
    """
    clipped = (operation for operation in program.operations if operation.name in CLIPPED)
    return {value: k for k, value in enumerate(dict.fromkeys(operation.arguments[1] for operation in clipped))}


def needs_of(program: Program) -> list[int]:
    """For each operation whether it depends on x, y or both."""
    found: list[int] = []
    for operation in program.operations:
        found.append(0)
        for value in operation.arguments:
            if isinstance(value, tuple):
                found[-1] |= X if value[0] == "x" else Y if value[0] == "y" else found[value[1]]
    return found


@dataclass(frozen=True)
class Stored:
    """What loops do with the results of a program."""

    argument: str
    """In C, before the array `out`; empty if there is none."""
    lines: Callable[[list[str]], Iterable[str]]
    """For the results in C, the lines that end the inner loop."""
    sums: tuple[str, ...] = ()
    """Variables that the inner loop adds to."""
    after: tuple[str, ...] = ()
    """Lines after the inner loop."""


def loops(program: Program, real: str, name: str, outer: int, stored: Stored) -> Iterator[str]:
    """A function that loops over points or samples (`outer`), and inside over the other ones.

    Values of the inner kind are computed before, into arrays of at most MOST numbers.
    """
    inner, F, needs = Y if outer == X else X, "f" if real == "float" else "", needs_of(program)
    kind = {X: ("k", "from", "to"), Y: ("b", "first", "last")}
    (i, begin, end), (o, outer_begin, outer_end) = kind[inner], kind[outer]
    readers = [(need, v) for step, need in zip(program.operations, needs, strict=True) for v in step.arguments]
    readers += [(X | Y, v) for v in program.results]
    # Operations on inner values that others use, or that are results.
    shared = sorted(
        {v[1] for need, v in readers if isinstance(v, tuple) and v[0] == "op" and needs[v[1]] == inner != need}
    )
    places, clips = {number: place for place, number in enumerate(shared)}, bounds(program)

    def named(value: Value, before: bool) -> str:
        if not isinstance(value, tuple):
            return f"((real){value!r})"
        letter, number = value
        if letter == "op":
            return f"kept[{places[number]}][{i} - {begin}]" if number in places and not before else f"v{number}"
        own = X if letter == "x" else Y
        index = f"{number} * n + k" if own == X else f"{number} * B + b"
        return f"{letter}[{index}]" if own == inner else f"{letter}{number}"

    def lines(which: set[int], before: bool, indent: str) -> Iterator[str]:
        for number, operation in enumerate(program.operations):
            if needs[number] in which:
                text = in_c(operation, [named(v, before) for v in operation.arguments], F, clips)
                yield f"{indent}const real v{number} = {text};"

    yield (
        f"static void {name}(const real *restrict x, const real *restrict y, {stored.argument}real *restrict out,"
        " int64_t from, int64_t to, int64_t first, int64_t last, int64_t n, int64_t B) {"
    )
    yield from (f"    const real c{k} = bound{k};" for k in clips.values())
    if shared:
        yield f"    real kept[{len(shared)}][MOST];"
        yield "    #pragma omp simd"
        yield f"    for (int64_t {i} = {begin}; {i} < {end}; {i}++) {{"
        yield from lines({0, inner}, True, "        ")
        yield from (f"        kept[{place}][{i} - {begin}] = v{number};" for number, place in places.items())
        yield "    }"
    yield f"    for (int64_t {o} = {outer_begin}; {o} < {outer_end}; {o}++) {{"
    letter = "x" if outer == X else "y"
    for number in sorted({v[1] for _, v in readers if isinstance(v, tuple) and v[0] == letter}):
        index = f"{number} * n + k" if outer == X else f"{number} * B + b"
        yield f"        const real {letter}{number} = {letter}[{index}];"
    yield from lines({0, outer}, False, "        ")
    yield from (f"        real {name} = 0;" for name in stored.sums)
    yield "        #pragma omp simd" + (f" reduction(+:{','.join(stored.sums)})" if stored.sums else "")
    yield f"        for (int64_t {i} = {begin}; {i} < {end}; {i}++) {{"
    yield from lines({X | Y}, False, "            ")
    yield from (f"            {line}" for line in stored.lines([named(v, False) for v in program.results]))
    yield "        }"
    yield from (f"        {line}" for line in stored.after)
    yield "    }"
    yield "}"
