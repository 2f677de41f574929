"""Derivatives of programs, which are programs again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fem_frames.problem.programs import NoProgramError, Program, ProgramBuilder, Value

Input = tuple[str, int]
Slopes = Callable[[ProgramBuilder, tuple[Value, ...], Value], tuple[Value, ...]]


def gradient(program: Program, inputs: Sequence[Input]) -> Program:
    """The derivatives of the program's only result with respect to inputs, as results of one program."""
    builder = ProgramBuilder(program)
    return builder.program(*_gradient(builder, program.result, inputs))


def hessian(program: Program, inputs: Sequence[Input]) -> list[list[Program]]:
    """The second derivatives of the program's only result, row by row, each a program of its own."""
    first = gradient(program, inputs)
    rows = []
    for k in range(len(inputs)):
        builder = ProgramBuilder(first)
        rows.append([builder.program(value) for value in _gradient(builder, first.results[k], inputs)])
    return rows


def with_gradient(program: Program, inputs: Sequence[Input]) -> Program:
    """The program's only result and its derivatives with respect to inputs."""
    builder = ProgramBuilder(program)
    return builder.program(program.result, *_gradient(builder, program.result, inputs))


def directional(program: Program, inputs: Sequence[Input], direction: str) -> Program:
    """For each result its derivative along a direction, whose components are the inputs (direction, k)."""
    builder = ProgramBuilder(program)
    found = []
    for result in program.results:
        slopes = _gradient(builder, result, inputs)
        parts = [builder.add("mul", slope, (direction, k)) for k, slope in enumerate(slopes)]
        found.append(builder.total(parts))
    return builder.program(*found)


def _gradient(builder: ProgramBuilder, result: Value, inputs: Sequence[Input]) -> list[Value]:
    """Backward through the operations: each adds to the derivatives with respect to its arguments."""
    slopes: dict[Value, Value] = {result: 1.0}
    count = result[1] + 1 if isinstance(result, tuple) and result[0] == "op" else 0
    wanted = _depending(builder, count, set(inputs))
    operations = builder.operations
    for number in reversed(range(count)):
        slope = slopes.get(("op", number))
        operation = operations[number]
        if slope is None or slope == 0.0 or number not in wanted:
            continue
        for argument, share in zip(
            operation.arguments,
            _shares(builder, operation.name, operation.arguments, ("op", number), slope),
            strict=True,
        ):
            if isinstance(argument, tuple) and (argument[0] != "op" or argument[1] in wanted):
                slopes[argument] = builder.add("add", slopes.get(argument, 0.0), share())
    return [slopes.get(given, 0.0) for given in inputs]


def _depending(builder: ProgramBuilder, count: int, inputs: set[Input]) -> set[int]:
    """The operations whose values depend on one of the inputs."""
    found: set[int] = set()
    for number, operation in enumerate(builder.operations[:count]):
        for a in operation.arguments:
            if isinstance(a, tuple) and (a in inputs or (a[0] == "op" and a[1] in found)):
                found.add(number)
    return found


def _shares(
    b: ProgramBuilder, name: str, arguments: tuple[Value, ...], value: Value, slope: Value
) -> list[Callable[[], Value]]:
    """For each argument how to make its share of the derivative: `slope` times a partial derivative."""
    mul, div = (lambda *v: b.add("mul", *v)), (lambda *v: b.add("div", *v))
    if name in ("add", "sub"):
        return [lambda: slope, lambda: slope if name == "add" else b.add("neg", slope)]
    if name == "mul":
        return [lambda: mul(slope, arguments[1]), lambda: mul(slope, arguments[0])]
    if name == "div":
        return [
            lambda: div(slope, arguments[1]),
            lambda: b.add("neg", div(mul(slope, value), arguments[1])),
        ]
    if name == "pow":
        return [
            lambda: mul(slope, _slope_of_power(b, *arguments)),
            lambda: mul(slope, mul(value, b.add("log", arguments[0]))),
        ]
    if name == "where":
        return [
            lambda: 0.0,
            lambda: b.add("where", arguments[0], slope, 0.0),
            lambda: b.add("where", arguments[0], 0.0, slope),
        ]
    if name in ("minimum", "maximum", "at_least", "at_most"):
        first = b.add("le" if name in ("minimum", "at_most") else "ge", *arguments)
        return [lambda: b.add("where", first, slope, 0.0), lambda: b.add("where", first, 0.0, slope)]
    if name in ("lt", "le", "gt", "ge", "eq", "ne", "logical_not"):
        return [lambda: 0.0 for _ in arguments]
    if name == "atan2":
        square = b.add("add", mul(arguments[0], arguments[0]), mul(arguments[1], arguments[1]))
        return [
            lambda: div(mul(slope, arguments[1]), square),
            lambda: b.add("neg", div(mul(slope, arguments[0]), square)),
        ]
    return [lambda: mul(slope, _slope(b, name, arguments[0], value))]


def _slope_of_power(b: ProgramBuilder, base: Value, power: Value) -> Value:
    if isinstance(power, tuple):
        return b.add("mul", power, b.add("pow", base, b.add("sub", power, 1.0)))
    return b.add("mul", power, b.add("pow", base, power - 1.0))


def _slope(b: ProgramBuilder, name: str, a: Value, value: Value) -> Value:
    """The derivative of a function of one argument, from its argument and its value."""

    def over(numerator: Value, *denominator: Value) -> Value:
        return b.add("div", numerator, denominator[0])

    def square(v: Value) -> Value:
        return b.add("mul", v, v)

    def minus(left: Value, right: Value) -> Value:
        return b.add("sub", left, right)

    def plus(left: Value, right: Value) -> Value:
        return b.add("add", left, right)

    rules: dict[str, Callable[[], Value]] = {
        "neg": lambda: -1.0,
        "reciprocal": lambda: b.add("neg", square(value)),
        "sqrt": lambda: over(0.5, value),
        "rsqrt": lambda: b.add("div", b.add("mul", -0.5, value), a),
        "exp": lambda: value,
        "exp2": lambda: b.add("mul", math.log(2.0), value),
        "expm1": lambda: plus(value, 1.0),
        "log": lambda: over(1.0, a),
        "log2": lambda: over(1.0 / math.log(2.0), a),
        "log10": lambda: over(1.0 / math.log(10.0), a),
        "log1p": lambda: over(1.0, plus(a, 1.0)),
        "sin": lambda: b.add("cos", a),
        "cos": lambda: b.add("neg", b.add("sin", a)),
        "tan": lambda: plus(1.0, square(value)),
        "asin": lambda: over(1.0, b.add("sqrt", minus(1.0, square(a)))),
        "acos": lambda: over(-1.0, b.add("sqrt", minus(1.0, square(a)))),
        "atan": lambda: over(1.0, plus(1.0, square(a))),
        "sinh": lambda: b.add("cosh", a),
        "cosh": lambda: b.add("sinh", a),
        "tanh": lambda: minus(1.0, square(value)),
        "erf": lambda: b.add("mul", 2 / math.sqrt(math.pi), b.add("exp", b.add("neg", square(a)))),
        "abs": lambda: b.add("where", b.add("ge", a, 0.0), 1.0, -1.0),
        "sigmoid": lambda: b.add("mul", value, minus(1.0, value)),
    }
    if name not in rules:
        raise NoProgramError(f"{name} has no derivative")
    return rules[name]()
