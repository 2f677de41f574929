"""Quadratic energies below convex ones: bounds for second derivatives that hold for all states.

If ψ'' ≥ m'' for all states, with a quadratic m, then m'' bounds the energy's curvature from below, which error bounds
of nonlinear energies need. m is found by rules on the program of ψ:

- Terms of degree two or less in the state are their own bounds; linear terms have none to give.
- Sums add bounds; factors of x and y must not be negative, which is a condition to be checked for the y at hand.
- φ∘q, for q convex with q ≥ c and q'' ≥ Q and for φ convex and nondecreasing on [c, ∞), has a second derivative of at
  least φ'(c) Q: powers t^p with p ≥ 1 and c ≥ 0, and exp. So has cosh of an affine form ℓ, ∇ℓ∇ℓᵀ.
- Powers of |ℓ|, even powers of ℓ, and powers t^p with p ≥ 1/2 of c + Σ ℓ_k² with c ≥ 0 are convex.
- The larger one of two convex functions is convex.

An affine form ℓ is affine in the state, with coefficients of x and y.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fem_frames.problem.densities import ENERGY, Density, Integral
from fem_frames.problem.programs import NoProgramError, Program, ProgramBuilder, Value


@dataclass(frozen=True, eq=False)
class LowerBound:
    """A quadratic density whose second derivatives are at most those of another one, for all states."""

    density: Density
    conditions: tuple[Integral, ...]
    """Numbers of x and y that must not be negative at any point, for the bound to hold for this y."""


def quadratic_lower_bound(density: Density) -> LowerBound | None:
    """The bound that the rules give for an energy; None if they do not show that it is convex, or give zero."""
    if density.kind != ENERGY:
        return None
    integrals, conditions = [], []
    try:
        for integral in density.integrals:
            rules = _Rules(integral.program)
            quadratic = rules.quadratic(integral.program.result)
            if quadratic is None:
                return None
            if quadratic.result != 0.0:
                integrals.append(replace(integral, program=quadratic))
            conditions += [replace(integral, program=condition) for condition in rules.conditions()]
        found = replace(density, integrals=tuple(integrals), loads=(), monotonicity=None)
        if all(program.result == 0.0 for rows in found.hessians for row in rows for program in row):
            return None
    except NoProgramError:  # numbers of the rules overflow, or programs become too long
        return None
    return LowerBound(found, tuple(conditions))


@dataclass(frozen=True)
class _Power:
    """factor · base^exponent, where the factor depends on x and y alone; a number or data have no base."""

    factor: Value
    base: Value | None = None
    exponent: Value = 0.0
    absolute: bool = False
    """Whether it is a power of |base|."""


@dataclass(frozen=True)
class _Convex:
    """A convex function of the state whose second derivative is at least Σ factor ∇ℓ∇ℓᵀ."""

    low: Value | None
    """A number of x and y below all its values; None if there is none."""
    parts: tuple[tuple[Value, Value], ...] = ()
    """Pairs of factor and ℓ."""
    squares: bool = False
    """Whether it is low + Σ ½ factor ℓ² exactly."""


class _Rules:
    """What is known of the values of one program."""

    def __init__(self, program: Program) -> None:
        self._builder = ProgramBuilder(program)
        self._conditions: dict[Value, None] = {}
        self._affine: set[Value] = set()
        self._degrees: dict[Value, int | None] = {}
        self._convex: dict[Value, _Convex] = {}
        self._powers: dict[Value, _Power | None] = {}
        for number, operation in enumerate(program.operations):
            arguments = operation.arguments
            self._degrees["op", number] = self._degree_of(operation.name, [self._degree(a) for a in arguments])
            self._powers["op", number] = self._visited(("op", number), operation.name, arguments)

    def conditions(self) -> list[Program]:
        """One program per number that must not be negative."""
        return [self._builder.program(value) for value in self._conditions]

    def quadratic(self, result: Value) -> Program | None:
        """The program of a quadratic function below the result, up to linear terms."""
        found: list[Value] = []
        b = self._builder
        for value, factor in self._terms(result).items():
            degree = self._degree(value)
            if degree is not None and degree <= 2:
                found.append(b.add("mul", factor, value))
                continue
            power = self._power(value)
            if power is None:
                return None
            convex = self._as_convex(replace(power, factor=b.add("mul", factor, power.factor)))
            if convex is None:
                return None
            for part, form in convex.parts:
                found.append(b.add("mul", b.add("mul", 0.5, part), b.add("mul", form, form)))
        return b.program(b.total(found))

    def _terms(self, result: Value) -> dict[Value, Value]:
        """Terms, with factors of x and y, whose sum is the result."""
        b, found = self._builder, dict[Value, Value]()
        factors: dict[Value, Value] = {result: 1.0}

        def add(value: Value, factor: Value) -> None:
            factors[value] = b.add("add", factors.get(value, 0.0), factor)

        for number in reversed(range(result[1] + 1 if isinstance(result, tuple) and result[0] == "op" else 0)):
            value = "op", number
            if value not in factors:
                continue
            factor, operation = factors.pop(value), b.operation(number)
            name, arguments = operation.name, operation.arguments
            constant = [self._degree(a) == 0 for a in arguments]
            if name in ("add", "sub"):
                add(arguments[0], factor)
                add(arguments[1], factor if name == "add" else b.add("neg", factor))
            elif name == "neg":
                add(arguments[0], b.add("neg", factor))
            elif name == "mul" and any(constant):
                data, rest = arguments if constant[0] else arguments[::-1]
                add(rest, b.add("mul", factor, data))
            elif name == "div" and constant[1]:
                add(arguments[0], b.add("div", factor, arguments[1]))
            else:
                found[value] = factor
        return found | factors

    # ---- degrees of polynomials in the state

    def _degree(self, value: Value) -> int | None:
        """0 to 2 for polynomials in the state with coefficients of x and y; None for all others."""
        if not isinstance(value, tuple):
            return 0
        return self._degrees[value] if value[0] == "op" else int(value[0] == "s")

    @staticmethod
    def _degree_of(name: str, degrees: list[int | None]) -> int | None:
        known = [degree for degree in degrees if degree is not None]
        if len(known) < len(degrees):
            return None
        if not any(known):
            return 0
        if name in ("add", "sub", "neg"):
            return max(known)
        if name == "mul":
            return sum(known) if sum(known) <= 2 else None
        if name == "where" and known[0] == 0:
            return max(known)
        return known[0] if name == "div" and not known[1] else None

    # ---- powers and convex functions

    def _power(self, value: Value) -> _Power | None:
        if isinstance(value, tuple) and value[0] == "op":
            return self._powers[value]
        if isinstance(value, tuple) and value[0] == "s":
            self._affine.add(value)
            return _Power(1.0, value, 1.0)
        return _Power(value)

    def _visited(self, value: Value, name: str, arguments: tuple[Value, ...]) -> _Power | None:
        """The result of an operation as a power of an affine or a convex function; None if it is neither."""
        if self._degree(value) == 0:
            return _Power(value)
        given = [self._power(a) for a in arguments]
        powers = [power for power in given if power is not None]
        if len(powers) < len(given):
            return None
        if name in ("mul", "div"):
            return self._product(powers[0], powers[1], name)
        if self._degree(value) == 1:
            self._affine.add(value)
            return _Power(1.0, value, 1.0)
        if name in ("sqrt", "pow"):
            exponent = 0.5 if name == "sqrt" else arguments[1]
            return self._raised(powers[0], exponent) if self._degree(exponent) == 0 else None
        if name == "abs" and self._is_affine(powers[0]):
            return replace(powers[0], factor=self._builder.add("abs", powers[0].factor), absolute=True)
        found = self._combined(name, arguments, powers)
        if found is None:
            return None
        self._convex[value] = found
        return _Power(1.0, value, 1.0)

    def _product(self, left: _Power, right: _Power, name: str) -> _Power | None:
        b = self._builder
        factor = b.add(name, left.factor, right.factor)
        if right.base is None:
            return replace(left, factor=factor)
        if left.base is None:
            return replace(right, factor=factor) if name == "mul" else None
        if left.base != right.base:
            return None
        exponent = b.add("add" if name == "mul" else "sub", left.exponent, right.exponent)
        if left.absolute == right.absolute:
            return _Power(factor, left.base, exponent, left.absolute)
        plain = right if left.absolute else left
        return _Power(factor, left.base, exponent, True) if _is_even(plain.exponent) else None

    def _raised(self, power: _Power, exponent: Value) -> _Power | None:
        """A power of a power; roots are taken of what is not negative alone."""
        b = self._builder
        whole = isinstance(exponent, float) and exponent.is_integer()
        if power.base in self._affine:
            if not power.absolute and _is_even(power.exponent):
                power = replace(power, absolute=True)
            allowed = whole or power.absolute
        else:
            low = None if power.base is None else self._convex[power.base].low
            allowed = low is not None and self._require(low)
        if not allowed or not (whole or self._require(power.factor)):
            return None
        factor, raised = b.add("pow", power.factor, exponent), b.add("mul", power.exponent, exponent)
        return replace(power, factor=factor, exponent=raised)

    def _is_affine(self, power: _Power) -> bool:
        return power.base in self._affine and not power.absolute and power.exponent == 1.0

    def _combined(self, name: str, arguments: tuple[Value, ...], powers: list[_Power]) -> _Convex | None:
        """Sums, maxima and functions of convex functions."""
        b = self._builder
        if name in ("sub", "neg"):
            last = powers[-1]
            if last.base is not None and not self._is_affine(last):
                powers[-1] = replace(last, factor=b.add("neg", last.factor))  # convex if the factor is negative
            elif last.base is None:
                powers[-1] = _Power(b.add("neg", last.factor))
        if name == "cosh" and self._is_affine(powers[0]):
            return _Convex(1.0, ((1.0, arguments[0]),))
        found = [convex for convex in (self._as_convex(power) for power in powers) if convex is not None]
        if len(found) < len(powers):
            return None
        lows = [convex.low for convex in found if convex.low is not None]
        if name in ("add", "sub", "neg"):
            low = b.total(lows) if len(lows) == len(found) else None
            parts = tuple(part for convex in found for part in convex.parts)
            return _Convex(low, parts, all(convex.squares for convex in found))
        if name == "exp":
            low = b.add("exp", lows[0]) if lows else 0.0
            return _Convex(low, tuple((b.add("mul", low, part), form) for part, form in found[0].parts))
        if name == "where" and powers[0].base is None:
            choice, first, second = arguments[0], *found[1:]
            low = None if first.low is None or second.low is None else b.add("where", choice, first.low, second.low)
            parts = tuple((b.add("where", choice, part, 0.0), form) for part, form in first.parts)
            return _Convex(low, parts + tuple((b.add("where", choice, 0.0, part), form) for part, form in second.parts))
        if name in ("maximum", "at_least"):
            return _Convex(b.add("maximum", *lows) if len(lows) == 2 else lows[0] if lows else None)
        return None

    def _as_convex(self, power: _Power) -> _Convex | None:
        """The power as a convex function, under conditions on its factor; None if it is not convex."""
        b, factor, exponent = self._builder, power.factor, power.exponent
        if power.base is None:
            return _Convex(factor, squares=True)
        if self._is_affine(power):
            return _Convex(None)
        if not self._require(factor):
            return None
        if power.base in self._affine:
            if not isinstance(exponent, float) or exponent < 1.0 or not (power.absolute or _is_even(exponent)):
                return None
            square = exponent == 2.0
            return _Convex(0.0, ((b.add("mul", 2.0, factor), power.base),) if square else (), square)
        inner = self._convex[power.base]
        if exponent == 1.0:
            low = None if inner.low is None else b.add("mul", factor, inner.low)
            return _Convex(low, self._times(factor, inner), inner.squares)
        if inner.low is None or not self._require(inner.low):
            return None
        low = b.add("mul", factor, b.add("pow", inner.low, exponent))
        if isinstance(exponent, float) and exponent < 1.0:
            return _Convex(low) if inner.squares and exponent >= 0.5 else None
        less = b.add("sub", exponent, 1.0)
        if not self._require(less):
            return None
        slope = b.add("mul", exponent, b.add("pow", inner.low, less))
        return _Convex(low, self._times(b.add("mul", factor, slope), inner))

    def _times(self, factor: Value, convex: _Convex) -> tuple[tuple[Value, Value], ...]:
        return tuple((self._builder.add("mul", factor, part), form) for part, form in convex.parts)

    def _require(self, value: Value) -> bool:
        """Notes that the value must not be negative; False for numbers that are."""
        if not isinstance(value, tuple):
            return value >= 0.0
        self._conditions[value] = None
        return True


def _is_even(exponent: Value) -> bool:
    return isinstance(exponent, float) and exponent > 0.0 and exponent % 2.0 == 0.0
