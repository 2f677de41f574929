"""Lowered UFL expressions as values of programs on the states of cells.

d dimension, p parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fem_frames.fenicsx.door import ufl
from fem_frames.problem.densities import Part
from fem_frames.problem.equation import Equation
from fem_frames.problem.programs import NoProgramError, ProgramBuilder, Value

FUNCTIONS = {
    **{
        name: name
        for name in ("sqrt", "exp", "cos", "sin", "tan", "cosh", "sinh", "tanh", "acos", "asin", "atan", "erf")
    },
    "ln": "log",
}
COMPARISONS = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
KNOWN = (
    "sums, products and powers, sqrt, exp, ln, erf, abs, circular and hyperbolic functions, min_value, max_value and "
    "conditional"
)
SIZES = {"CellDiameter": 0, "CellVolume": 1, "Circumradius": 2}
ONE_CELL = "and a cell does not know its neighbours: use dx and ds alone"
REFUSED = {
    "PositiveRestricted": f"it has a jump, an average or one side of a facet, {ONE_CELL}",
    "NegativeRestricted": f"it has a jump, an average or one side of a facet, {ONE_CELL}",
    "CellAvg": "averages over cells are not supported; write the integrand itself",
    "FacetAvg": "averages over facets are not supported; write the integrand itself",
    "ComplexValue": "it has complex numbers; write real and imaginary parts as two fields",
    "Imag": "it has complex numbers; write real and imaginary parts as two fields",
    "FacetArea": "sizes of facets are not supported; use CellDiameter",
    "QuadratureWeight": "quadrature weights are not supported",
}


class Scalars:
    """Maps lowered UFL expressions to values of a program."""

    def __init__(
        self, u: Any, v: Any, y: Any, parts: Sequence[Part], equation: Equation, d: int, *, on_facets: bool = False
    ) -> None:
        self.builder = ProgramBuilder()
        self._y, self._on_facets = y, on_facets
        self._letters = [(function, letter) for function, letter in ((u, "s"), (v, "v")) if function is not None]
        self._components = list(_components(equation, parts, d))
        self._memo: dict[Any, Value] = {}

    def of(self, e: Any, component: tuple[int, ...] = (), indices: dict[int, int] | None = None) -> Value:
        indices = indices or {}
        own = {number: indices[number] for number in _free(e) if number in indices}
        key = (e, component, tuple(sorted(own.items())))
        if key not in self._memo:
            self._memo[key] = self._visit(e, component, indices)
        return self._memo[key]

    def _visit(self, e: Any, component: tuple[int, ...], indices: dict[int, int]) -> Value:
        name = type(e).__name__
        if name in REFUSED:
            raise NoProgramError(REFUSED[name])
        handler = getattr(self, f"_{name}", None)
        if handler is not None:
            return handler(e, component, indices)
        if isinstance(e, ufl.classes.ScalarValue):
            return float(e._value)
        if isinstance(e, ufl.classes.MathFunction) and e._name in FUNCTIONS:
            return self.builder.add(FUNCTIONS[e._name], self.of(e.ufl_operands[0], (), indices))
        if isinstance(e, ufl.classes.BinaryCondition) and e._name in COMPARISONS:
            return self.builder.add(COMPARISONS[e._name], *(self.of(o, (), indices) for o in e.ufl_operands))
        if isinstance(e, ufl.classes.Coefficient):
            return self._function(e, component)
        if isinstance(e, ufl.classes.Constant):
            return self._constant(e, component)
        if isinstance(e, ufl.classes.Argument):
            raise NoProgramError(
                "it has a test or trial function of its own: give the energy, or use those of residual="
            )
        raise NoProgramError(f"{name} is not supported; there are {KNOWN}")

    # ---- terminals

    def _function(self, e: Any, component: tuple[int, ...]) -> Value:
        letter = next((letter for function, letter in self._letters if function == e), None)
        if letter is None:
            raise NoProgramError(
                f"it has the function {e}, which is no field of the equation: write data as expressions in x and y"
            )
        return self.builder.total((letter, i) for i in self._components[component[0]].values)

    def _constant(self, e: Any, component: tuple[int, ...]) -> Value:
        if e != self._y:
            raise NoProgramError(f"it has the constant {e}: write the number itself, or make it a parameter")
        return "y", component[0]

    def _Grad(self, e: Any, component: tuple[int, ...], indices: dict[int, int]) -> Value:
        (f,) = e.ufl_operands
        letter = next((letter for function, letter in self._letters if function == f), None)
        if letter is None:
            what = "second derivatives" if type(f).__name__ == "Grad" else f"the gradient of a {type(f).__name__}"
            raise NoProgramError(
                f"it has {what}, which the states of cells do not have: integrate by parts, or make the flux a field"
            )
        which, direction = component
        return self._components[which].slope(self.builder, letter, direction)

    def _SpatialCoordinate(self, e: Any, component: tuple[int, ...], indices: dict[int, int]) -> Value:
        return "x", component[0] if component else 0

    def _FacetNormal(self, e: Any, component: tuple[int, ...], indices: dict[int, int]) -> Value:
        if not self._on_facets:
            raise NoProgramError("it has the normal of facets inside dx: only ds has one")
        return "n", component[0] if component else 0

    def _size(self, e: Any, component: tuple[int, ...], indices: dict[int, int]) -> Value:
        return "h", SIZES[type(e).__name__]

    _CellDiameter = _CellVolume = _Circumradius = _size

    def _Zero(self, e: Any, component: tuple[int, ...], indices: dict[int, int]) -> Value:
        return 0.0

    def _Identity(self, e: Any, component: tuple[int, ...], indices: dict[int, int]) -> Value:
        return float(component[0] == component[1])

    # ---- operators

    def _Indexed(self, e: Any, component: tuple[int, ...], indices: dict[int, int]) -> Value:
        inner, multi = e.ufl_operands
        return self.of(inner, _numbers(multi, indices), indices)

    def _ComponentTensor(self, e: Any, component: tuple[int, ...], indices: dict[int, int]) -> Value:
        inner, multi = e.ufl_operands
        own = {index.count(): k for index, k in zip(multi.indices(), component, strict=True)}
        return self.of(inner, (), {**indices, **own})

    def _ListTensor(self, e: Any, component: tuple[int, ...], indices: dict[int, int]) -> Value:
        return self.of(e.ufl_operands[component[0]], component[1:], indices)

    def _IndexSum(self, e: Any, component: tuple[int, ...], indices: dict[int, int]) -> Value:
        inner, multi = e.ufl_operands
        (index,) = multi.indices()
        return self.builder.total(
            self.of(inner, component, {**indices, index.count(): k}) for k in range(e.dimension())
        )

    def _Sum(self, e: Any, component: tuple[int, ...], indices: dict[int, int]) -> Value:
        return self.builder.total(self.of(o, component, indices) for o in e.ufl_operands)

    def _Product(self, e: Any, component: tuple[int, ...], indices: dict[int, int]) -> Value:
        found: Value = 1.0
        for o in e.ufl_operands:
            found = self.builder.add("mul", found, self.of(o, (), indices))
        return found

    def _Division(self, e: Any, component: tuple[int, ...], indices: dict[int, int]) -> Value:
        a, b = e.ufl_operands
        return self.builder.add("div", self.of(a, component, indices), self.of(b, (), indices))

    def _two(self, e: Any, component: tuple[int, ...], indices: dict[int, int]) -> Value:
        name = {"Power": "pow", "MinValue": "minimum", "MaxValue": "maximum", "Atan2": "atan2"}[type(e).__name__]
        return self.builder.add(name, *(self.of(o, (), indices) for o in e.ufl_operands))

    _Power = _MinValue = _MaxValue = _Atan2 = _two

    def _Abs(self, e: Any, component: tuple[int, ...], indices: dict[int, int]) -> Value:
        return self.builder.add("abs", self.of(e.ufl_operands[0], component, indices))

    def _Conditional(self, e: Any, component: tuple[int, ...], indices: dict[int, int]) -> Value:
        condition, true, false = e.ufl_operands
        chosen = self.of(true, component, indices), self.of(false, component, indices)
        return self.builder.add("where", self.of(condition, (), indices), *chosen)

    def _condition(self, e: Any, component: tuple[int, ...], indices: dict[int, int]) -> Value:
        parts = [self.of(o, (), indices) for o in e.ufl_operands]
        if type(e).__name__ == "NotCondition":
            return self.builder.add("logical_not", parts[0])
        return self.builder.add("mul" if type(e).__name__ == "AndCondition" else "maximum", *parts)

    _AndCondition = _OrCondition = _NotCondition = _condition

    def _same(self, e: Any, component: tuple[int, ...], indices: dict[int, int]) -> Value:
        return self.of(e.ufl_operands[0], component, indices)

    _Variable = _Conj = _Real = _same


class _Component:
    """One component of a field: where the states have its value and its derivatives."""

    def __init__(self, values: tuple[int, ...], slopes: Sequence[tuple[tuple[int, float], ...]]) -> None:
        """`values`: entries whose sum is the value; `slopes`: for each direction entries and their factors."""
        self.values, self._slopes = values, slopes

    def slope(self, builder: ProgramBuilder, letter: str, direction: int) -> Value:
        return builder.total(builder.add("mul", factor, (letter, entry)) for entry, factor in self._slopes[direction])


def _components(equation: Equation, parts: Sequence[Part], d: int) -> Iterator[_Component]:
    """All components one after the other, as `fields_of` takes them."""
    places = {part.name: part.start for part in parts}
    for unknown in equation.fields:
        if unknown.element == "RT0":
            start = places[unknown.name]
            for i in range(d):  # ∂_j τ_i = δ_ij div τ / d
                own = ((start + d, 1.0 / d),)
                yield _Component((start + i,), [own if i == j else () for j in range(d)])
            continue
        for name in unknown.names():
            starts = (places[name], *([places[f"{name} bubbles"]] if unknown.element == "P2" else []))
            yield _Component(starts, [tuple((at + 1 + j, 1.0) for at in starts) for j in range(d)])


def _free(e: Any) -> tuple[int, ...]:
    try:
        return tuple(e.ufl_free_indices)
    except (AttributeError, ValueError):  # conditions and multi-indices have none
        return ()


def _numbers(multi: Any, indices: dict[int, int]) -> tuple[int, ...]:
    return tuple(int(i) if isinstance(i, ufl.classes.FixedIndex) else indices[i.count()] for i in multi.indices())
