"""Programs of scalar operations: user functions and densities as data, which any machine evaluates without their code.

A program is what compiled code evaluates without temporaries, what derivatives are made of, and what files hold.

B samples, d dimension, p parameters, m numbers in a cell's state.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

MOST_OPERATIONS = 4000
"""Longer programs would take compilers too long."""
MOST_POWER = 8
"""Powers with whole exponents up to this are products."""

Value = tuple[str, int] | float
"""An input, such as ("x", i) or ("y", k); ("op", number of an operation); or a constant."""
INPUTS = {"x": "the position", "y": "the parameters", "n": "the normal", "s": "the state", "v": "the state of the test"}
"""Letters of inputs: states at a point, not scaled, of all fields together. The letter z is a direction in them."""

UNARY = {
    *("neg", "reciprocal", "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "erf", "abs", "sigmoid", "logical_not"),
}
BINARY = {"add", "sub", "mul", "div", "pow", "atan2", "minimum", "maximum", "lt", "le", "gt", "ge", "eq", "ne"}
CLIPPED = {"at_least", "at_most"}
"""Like maximum and minimum with a constant."""
BREAKING = {"abs", "minimum", "maximum", "lt", "le", "gt", "ge", "eq", "ne", "logical_not"} | CLIPPED
"""Operations with kinks or jumps; where only passes on those of its condition."""
COUNTS = dict.fromkeys(UNARY, 1) | dict.fromkeys(BINARY | CLIPPED, 2) | {"where": 3}
"""The number of arguments of each operation."""


class NoProgramError(Exception):
    """The function does something that programs do not have."""


@dataclass(frozen=True)
class Operation:
    """One scalar operation, such as add, on earlier values."""

    name: str
    arguments: tuple[Value, ...]


@dataclass(frozen=True)
class Program:
    """Operations in the order in which they are done, and the values that are its results."""

    operations: tuple[Operation, ...]
    results: tuple[Value, ...]

    @property
    def result(self) -> Value:
        """The result of a program with one result."""
        (only,) = self.results
        return only

    def inputs(self) -> set[tuple[str, int]]:
        """The inputs that operations or results use."""
        used = [*(a for operation in self.operations for a in operation.arguments), *self.results]
        return {value for value in used if isinstance(value, tuple) and value[0] != "op"}

    def broken(self) -> set[tuple[str, int]]:
        """The inputs in which the results may have kinks or jumps: second derivatives do not see these."""
        depends: list[set[tuple[str, int]]] = []
        found: set[tuple[str, int]] = set()
        for operation in self.operations:
            own: set[tuple[str, int]] = set()
            for a in operation.arguments:
                if isinstance(a, tuple):
                    own |= depends[a[1]] if a[0] == "op" else {a}
            depends.append(own)
            if operation.name in BREAKING:
                found |= own
        return found

    def letters(self) -> list[set[str]]:
        """For each result the letters of the inputs that it depends on."""
        found: list[set[str]] = []

        def of(value: Value) -> set[str]:
            if not isinstance(value, tuple):
                return set()
            return found[value[1]] if value[0] == "op" else {value[0]}

        for operation in self.operations:
            found.append(set().union(*(of(a) for a in operation.arguments)))
        return [of(value) for value in self.results]

    def record(self) -> dict[str, Any]:
        """The program as lists, numbers and texts."""
        operations = [[o.name, *(_written(a) for a in o.arguments)] for o in self.operations]
        return {"operations": operations, "results": [_written(value) for value in self.results]}

    @classmethod
    def from_record(cls, record: Any, sizes: Mapping[str, int]) -> Program:
        """The program of a record; raises a ValueError unless its inputs exist: `sizes` has their number by letter."""
        keys = {"operations", "results"}
        if not isinstance(record, Mapping) or set(record) != keys or not all(isinstance(record[k], list) for k in keys):
            raise ValueError("a program consists of the lists operations and results")
        if len(record["operations"]) > MOST_OPERATIONS:
            raise ValueError(
                f"a program has {len(record['operations'])} operations; at most {MOST_OPERATIONS} are read"
            )
        operations: list[Operation] = []
        for given in record["operations"]:
            name = given[0] if isinstance(given, list) and given else None
            if not isinstance(name, str) or COUNTS.get(name) != len(given) - 1:
                raise ValueError(f"a program has the operation {str(given)[:40]}, which is unknown")
            arguments = tuple(_read(a, sizes, len(operations)) for a in given[1:])
            operations.append(Operation(name, arguments))
        return cls(tuple(operations), tuple(_read(value, sizes, len(operations)) for value in record["results"]))


def _written(value: Value) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _read(given: Any, sizes: Mapping[str, int], done: int) -> Value:
    if type(given) in (int, float) and abs(given) <= sys.float_info.max:  # NaN fails too
        return float(given)
    if isinstance(given, list) and [type(part) for part in given] == [str, int]:
        letter, number = given
        if 0 <= number < (done if letter == "op" else sizes.get(letter, 0)):
            return letter, number
    raise ValueError(f"a program has the value {str(given)[:40]}, which does not exist")


class ProgramBuilder:
    """Collects operations, each once; operations on numbers are done at once, and those without effect left out."""

    def __init__(self, program: Program | None = None) -> None:
        """`program` makes its operations known, with their numbers."""
        self._numbers: dict[Operation, int] = {}
        self._operations: list[Operation] = []
        for operation in () if program is None else program.operations:
            self._numbers[operation] = len(self._operations)
            self._operations.append(operation)

    def operation(self, number: int) -> Operation:
        return self._operations[number]

    @property
    def operations(self) -> tuple[Operation, ...]:
        return tuple(self._operations)

    def raw(self, name: str, *arguments: Value) -> Value:
        """The operation as it is."""
        operation = Operation(name, arguments)
        if operation not in self._numbers:
            if len(self._operations) >= MOST_OPERATIONS:
                raise NoProgramError(f"it has more than {MOST_OPERATIONS} operations")
            self._numbers[operation] = len(self._operations)
            self._operations.append(operation)
        return "op", self._numbers[operation]

    def add(self, name: str, *arguments: Value) -> Value:
        """The operation, or a simpler value that equals it."""
        if name == "pow":
            return self._power(*arguments)
        if all(not isinstance(a, tuple) for a in arguments):
            return _folded(name, *arguments)
        simple = _simpler(name, arguments)
        if simple is not None:
            return simple if not isinstance(simple, Operation) else self.add(simple.name, *simple.arguments)
        if name in ("add", "mul"):  # so that a + b and b + a are one operation
            arguments = tuple(sorted(arguments, key=_rank))
        first, last = arguments[0], arguments[-1]
        if name == "mul" and not isinstance(first, tuple) and isinstance(last, tuple) and last[0] == "op":
            inner = self.operation(last[1])
            if inner.name == "mul" and not isinstance(inner.arguments[0], tuple):  # a number times a number times b
                return self.add("mul", first * inner.arguments[0], inner.arguments[1])
        return self.raw(name, *arguments)

    def total(self, values: Iterable[Value]) -> Value:
        """The sum of values."""
        found: Value = 0.0
        for value in values:
            found = self.add("add", found, value)
        return found

    def _power(self, base: Value, power: Value) -> Value:
        if not isinstance(power, tuple):
            if power == 0.0:
                return 1.0
            if float(power).is_integer() and 1 <= abs(power) <= MOST_POWER:
                made = base
                for _ in range(int(abs(power)) - 1):
                    made = self.add("mul", made, base)
                return made if power > 0 else self.add("div", 1.0, made)
            if power == 0.5:
                return self.add("sqrt", base)
            if power == 1.5:  # roots are faster than powers
                return self.add("mul", base, self.add("sqrt", base))
            if power == -0.5:
                return self.add("div", 1.0, self.add("sqrt", base))
            if not isinstance(base, tuple):
                return _folded("pow", base, power)
        return self.raw("pow", base, power)

    def program(self, *results: Value) -> Program:
        """The program with these results, without operations that they do not need."""
        needed: set[int] = set()
        operations = self._operations
        stack = [value[1] for value in results if isinstance(value, tuple) and value[0] == "op"]
        while stack:
            number = stack.pop()
            if number not in needed:
                needed.add(number)
                stack += [a[1] for a in operations[number].arguments if isinstance(a, tuple) and a[0] == "op"]
        places = {number: place for place, number in enumerate(sorted(needed))}

        def renamed(value: Value) -> Value:
            return ("op", places[value[1]]) if isinstance(value, tuple) and value[0] == "op" else value

        kept = [operations[number] for number in sorted(needed)]
        made = tuple(Operation(o.name, tuple(renamed(a) for a in o.arguments)) for o in kept)
        return Program(made, tuple(renamed(value) for value in results))

    def copied(self, program: Program, inputs: Callable[[tuple[str, int]], Value] = lambda value: value) -> list[Value]:
        """The results of another program whose inputs are replaced by values of this one."""
        found: list[Value] = []

        def of(value: Value) -> Value:
            if not isinstance(value, tuple):
                return value
            return found[value[1]] if value[0] == "op" else inputs(value)

        for operation in program.operations:
            found.append(self.add(operation.name, *(of(a) for a in operation.arguments)))
        return [of(value) for value in program.results]


def _rank(value: Value) -> tuple[int, str, float]:
    return (1, value[0], value[1]) if isinstance(value, tuple) else (0, "", value)


def _simpler(name: str, arguments: tuple[Value, ...]) -> Value | Operation | None:
    """What an operation amounts to if one of its arguments is 0 or 1; None if it is needed."""
    if name == "where":
        return arguments[1] if arguments[1] == arguments[2] else None
    if len(arguments) != 2:
        return None
    a, b = arguments
    if name == "add":
        return b if a == 0.0 else a if b == 0.0 else Operation("mul", (2.0, a)) if a == b else None
    if name == "sub":
        return a if b == 0.0 else Operation("neg", (b,)) if a == 0.0 else 0.0 if a == b else None
    if name == "mul":
        if a == 0.0 or b == 0.0:
            return 0.0
        return b if a == 1.0 else a if b == 1.0 else None
    if name == "div":
        if isinstance(b, float) and b and math.frexp(b)[0] in (0.5, -0.5):  # a power of two has an exact reciprocal
            return Operation("mul", (1.0 / b, a))
        return 0.0 if a == 0.0 else None
    return None


def _folded(name: str, *arguments: Value) -> float:
    """The value of an operation on numbers; raises a NoProgramError unless it is finite."""
    from fem_frames.problem.program_values import evaluated_number

    try:
        found = evaluated_number(name, *(float(a) for a in arguments))  # type: ignore[arg-type]
    except (ValueError, ZeroDivisionError, OverflowError) as error:
        raise NoProgramError(f"{name} of {', '.join(map(str, arguments))} is not a number") from error
    if not math.isfinite(found):
        raise NoProgramError(f"{name} of {', '.join(map(str, arguments))} is not finite")
    return found
