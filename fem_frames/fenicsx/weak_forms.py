"""UFL forms of users as programs on the states of cells.

UFL lowers tensor algebra and derivatives itself; what is left are sums, products and functions of components of the
fields, of their gradients, of x, y and the normal. Forms are made by calling the user's function with fields on no mesh
in particular, because a form is bound to a mesh.

d dimension, p parameters, m numbers in a cell's state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fem_frames.fenicsx import door
from fem_frames.fenicsx.door import ufl
from fem_frames.problem.callbacks import calling
from fem_frames.problem.densities import CELLS, ENERGY, FACETS, RESIDUAL, Density, Group, Integral, Part, check_programs
from fem_frames.problem.equation import Equation
from fem_frames.problem.programs import NoProgramError, ProgramBuilder, Value

KINDS = {"cell": CELLS, "exterior_facet": FACETS}
FUNCTIONS = {
    **{
        name: name
        for name in ("sqrt", "exp", "cos", "sin", "tan", "cosh", "sinh", "tanh", "acos", "asin", "atan", "erf")
    },
    "ln": "log",
}
COMPARISONS = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
SIZES = {"CellDiameter": 0, "CellVolume": 1, "Circumradius": 2}
HOW = "it is a function of the fields{tests}, y, x, dx and ds that returns a UFL form"
ONE_CELL = "which no single cell knows: integrals over facets between cells (dS) have no place in a conforming method"
REFUSED = {
    "PositiveRestricted": f"it restricts to one side of a facet, {ONE_CELL}; use dx and ds alone",
    "NegativeRestricted": f"it restricts to one side of a facet, {ONE_CELL}; use dx and ds alone",
    "CellAvg": "averages over cells are not supported; write the integrand itself",
    "FacetAvg": "averages over facets are not supported; write the integrand itself",
    "ComplexValue": "it has complex numbers; write real and imaginary parts as two fields",
    "Imag": "it has complex numbers; write real and imaginary parts as two fields",
    "FacetArea": "sizes of facets are not supported; use CellDiameter",
    "QuadratureWeight": "quadrature weights are not supported",
}


class GroupMeasure:
    """dx or ds of an equation: `f * dx`, `f * dx("steel")`, `f * ds("inflow", "outflow")`."""

    def __init__(
        self, name: str, integrate: Callable[[Any, tuple[Group, ...]], Any], groups: tuple[Group, ...] = ()
    ) -> None:
        self._name, self._integrate, self._groups = name, integrate, groups

    def __call__(self, *groups: Any, **options: Any) -> GroupMeasure:
        if options:
            raise ValueError(
                f"{self._name} takes groups alone, not {', '.join(options)}: quadrature_degree is a setting of Problem"
            )
        flat = tuple(g for group in groups for g in (group if isinstance(group, tuple | list) else (group,)))
        for group in flat:
            if not isinstance(group, str | int) or isinstance(group, bool):
                raise ValueError(f"{self._name} names the group {group!r}; a name or a tag is expected")
        return GroupMeasure(self._name, self._integrate, flat)

    def __add__(self, other: Any) -> GroupMeasure:
        if not isinstance(other, GroupMeasure) or other._name != self._name or not (self._groups and other._groups):
            raise ValueError(f"{self._name} of two groups are added as {self._name}('a') + {self._name}('b')")
        return GroupMeasure(self._name, self._integrate, (*self._groups, *other._groups))

    def __rmul__(self, integrand: Any) -> Any:
        shape = getattr(integrand, "ufl_shape", ())
        if shape:
            raise ValueError(
                f"what stands before {self._name} has the shape {shape}; integrals are over numbers: use inner, dot or "
                "a component"
            )
        return self._integrate(integrand, self._groups)


class Arguments:
    """What a user's function is called with: fields, tests, y, x, dx and ds."""

    def __init__(self, equation: Equation, d: int, fields: Sequence[Any], tests: Sequence[Any], y: Any, x: Any) -> None:
        self.equation, self.d = equation, d
        self._fixed = (*fields, *tests, y, x)

    def form(self, integrate: Callable[[str], Callable[[Any, tuple[Group, ...]], Any]]) -> Any:
        """The user's form; `integrate("dx")` makes an integral of an integrand and groups."""
        equation = self.equation
        how = HOW.format(tests="" if equation.residual is None else ", their test functions")
        measures = [GroupMeasure(name, integrate(name)) for name in ("dx", "ds")]
        with calling(equation.what, equation.function, how):
            form = equation.function(*self._fixed, *measures)
        if isinstance(form, int | float) and form == 0:
            raise ValueError(
                f"{equation.what} is zero: return a form, such as inner(grad(u), grad(u)) / 2 * dx - u * dx"
            )
        if not isinstance(form, ufl.Form):
            kind = "nothing" if form is None else f"a {type(form).__name__}"
            raise ValueError(f"{equation.what} returns {kind}, not a form: end every term with * dx or * ds")
        return form


def fields_of(equation: Equation, d: int, components: Sequence[Any]) -> list[Any]:
    """The fields as UFL expressions, from their components one after the other."""
    found, start = [], 0
    for unknown in equation.fields:
        count = d if unknown.element == "RT0" else (unknown.components or 1)
        own = list(components[start : start + count])
        scalar = unknown.components is None and unknown.element != "RT0"
        found.append(own[0] if scalar else ufl.as_vector(own))
        start += count
    return found


def component_count(equation: Equation, d: int) -> int:
    return sum(d if f.element == "RT0" else (f.components or 1) for f in equation.fields)


def compile_equation(equation: Equation, d: int, p: int) -> Density:
    """The density of an equation; raises a ValueError that names what cannot be computed from states."""
    count = component_count(equation, d)
    u = door.abstract_vector(d, count)
    v = ufl.Coefficient(u.ufl_function_space())
    domain = u.ufl_function_space().ufl_domain()
    y, x = ufl.Constant(domain, shape=(p,)), ufl.SpatialCoordinate(domain)
    fields = fields_of(equation, d, [u[i] for i in range(count)])
    tests = fields_of(equation, d, [v[i] for i in range(count)]) if equation.residual is not None else []
    parts = equation.parts(d)
    known: list[tuple[str, tuple[Group, ...]]] = []

    def integrate(name: str) -> Callable[[Any, tuple[Group, ...]], Any]:
        measure = ufl.Measure(name, domain=domain)

        def made(integrand: Any, groups: tuple[Group, ...]) -> Any:
            if (name, groups) not in known:
                known.append((name, groups))
            return integrand * measure(1 + known.index((name, groups)))

        return made

    form = Arguments(equation, d, fields, tests, y, x).form(integrate)
    try:
        integrals = tuple(_integrals(form, known, lambda: _Scalars(u, v, y, parts, equation, d)))
        monotonicity = None
        if equation.monotonicity is not None:
            with calling("monotonicity", equation.monotonicity, "it is a function of y that returns a number"):
                claimed = ufl.as_ufl(equation.monotonicity(y))
            scalars = _Scalars(None, None, y, parts, equation, d)
            monotonicity = scalars.builder.program(scalars.of(door.lowered(claimed)))
        if not integrals:
            raise NoProgramError("it is zero")
        kind = ENERGY if equation.residual is None else RESIDUAL
        density = Density(kind, d, p, parts, integrals, monotonicity=monotonicity)
        check_programs(density)
    except NoProgramError as error:
        raise ValueError(f"{equation.what} cannot be computed from the states of cells: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{equation.what} is nested too deeply; write sums with sum(…)") from error
    return density


def _integrals(
    form: Any, known: Sequence[tuple[str, tuple[Group, ...]]], scalars: Callable[[], _Scalars]
) -> Iterator[Integral]:
    if form.arguments():
        raise NoProgramError("it has test or trial functions of its own: give the energy, or use those of residual=")
    places: dict[tuple[str, tuple[Group, ...]], tuple[_Scalars, list[Value]]] = {}
    for integral in door.lowered(form).integrals():
        kind, tag = integral.integral_type(), integral.subdomain_id()
        if kind == "interior_facet":
            raise NoProgramError(f"it has an integral over facets between cells (dS), {ONE_CELL}")
        if kind not in KINDS:
            raise NoProgramError(f"it has an integral over {kind}s; use dx and ds")
        if dict(integral.metadata()):
            raise NoProgramError("an integral has metadata of its own; quadrature_degree is a setting of Problem")
        tags = tag if isinstance(tag, tuple) else (tag,)
        for number in tags:
            own = isinstance(number, int) and 0 < number <= len(known)
            if not own and number not in ("everywhere", "otherwise"):
                raise NoProgramError(f"an integral has the subdomain {number!r}; use the dx and ds that are given")
            key = known[number - 1] if own else ({"cell": "dx"}.get(kind, "ds"), ())
            reader, values = places.setdefault(key, (scalars(), []))
            values.append(reader.of(integral.integrand()))
    for (name, groups), (reader, values) in places.items():
        total = reader.builder.total(values)
        if total != 0.0:
            yield Integral(CELLS if name == "dx" else FACETS, groups, reader.builder.program(total))


class _Scalars:
    """Maps lowered UFL expressions to values of a program."""

    def __init__(self, u: Any, v: Any, y: Any, parts: Sequence[Part], equation: Equation, d: int) -> None:
        self.builder = ProgramBuilder()
        self._y, self._d = y, d
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
        raise NoProgramError(f"{name} is not supported: {str(e)[:60]}; write it with sums, products and functions")

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
