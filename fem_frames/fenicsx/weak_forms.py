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
from fem_frames.fenicsx.form_scalars import ONE_CELL, Scalars
from fem_frames.problem.callbacks import calling, is_ours
from fem_frames.problem.densities import CELLS, ENERGY, FACETS, RESIDUAL, Density, Group, Integral
from fem_frames.problem.equation import Equation
from fem_frames.problem.programs import NoProgramError, Value

KINDS = {"cell": CELLS, "exterior_facet": FACETS}
FIRST_TAG = 2**20
"""Tags of integrals start here, far from those in forms that ignore the given dx and ds."""
HINTS = (
    (("positional argument",), "it is called as {call}"),
    (("out of bounds", "out of range", "already indexed"), "{sizes}"),
    (("'groupmeasure'",), "the integrand comes first: f * dx"),
    (("'form'",), "end every term with * dx or * ds"),
    (("in a python context",), "write conditional(gt(a, b), c, d) in place of if"),
    (("ufunc", "must be tensor", "__float__"), "take functions such as exp from ufl"),
    (
        ("math domain", "expected a positive", "expected a nonnegative"),
        "roots and logarithms of negative numbers do not exist",
    ),
    (
        ("shape", "rank", "scalar", "free ind"),
        "numbers and vectors do not fit: {sizes}; use inner, dot, tr, or components",
    ),
)
"""Parts of the messages of Python and UFL, in small letters, and what helps."""


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
        self._sizes = [
            *(_size(f.name, field) for f, field in zip(equation.fields, fields, strict=True)),
            *(_size(name, value) for name, value in (("y", y), ("x", x))),
        ]

    def form(self, integrate: Callable[[str], Callable[[Any, tuple[Group, ...]], Any]]) -> Any:
        """The user's form; `integrate("dx")` makes an integral of an integrand and groups."""
        equation = self.equation
        measures = [GroupMeasure(name, integrate(name)) for name in ("dx", "ds")]
        with door.quiet(), calling(equation.what, equation.function, self._advice):
            form = equation.function(*self._fixed, *measures)
        if isinstance(form, int | float) and form == 0:
            raise ValueError(_zero(equation))
        if not isinstance(form, ufl.Form):
            kind = "nothing" if form is None else f"a {type(form).__name__}"
            raise ValueError(f"{equation.what} returns {kind}, not a form: end every term with * dx or * ds")
        return form

    def _advice(self, error: BaseException) -> str:
        if is_ours(error):
            return ""
        names, sizes = [f.name for f in self.equation.fields], ", ".join(self._sizes)
        tests = [f"v_{name}" if len(names) > 1 else "v" for name in names]
        function = self.equation.called
        given = ", ".join([*names, *(() if self.equation.residual is None else tests), "y", "x", "dx", "ds"])
        told = str(error).lower()
        hint = next((hint for parts, hint in HINTS if any(part in told for part in parts)), "")
        return (hint or "it is called as {call} and returns a UFL form").format(
            call=f"{function}({given})", sizes=sizes
        )


def _size(name: str, value: Any) -> str:
    """The number of entries of an argument, in words."""
    if not value.ufl_shape:
        return f"{name} is a number"
    (count,) = value.ufl_shape
    return (
        f"{name} has {count} entries, {name}[0] to {name}[{count - 1}]" if count > 1 else f"{name} has one, {name}[0]"
    )


def _zero(equation: Equation) -> str:
    return f"{equation.what} is zero: return a form, such as inner(grad(u), grad(u)) / 2 * dx - u * dx"


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
            return integrand * measure(FIRST_TAG + known.index((name, groups)))

        return made

    form = Arguments(equation, d, fields, tests, y, x).form(integrate)

    def scalars(on_facets: bool) -> Scalars:
        return Scalars(u, v, y, parts, equation, d, on_facets=on_facets)

    try:
        integrals = tuple(_integrals(form, known, scalars))
        monotonicity = None
        if equation.monotonicity is not None:
            with calling("monotonicity", equation.monotonicity, "it is a function of y that returns a number"):
                claimed = ufl.as_ufl(equation.monotonicity(y))
            if claimed.ufl_shape:
                raise ValueError(
                    f"monotonicity returns values of shape {claimed.ufl_shape}; one number is expected, such as y[0]"
                )
            of_y = Scalars(None, None, y, parts, equation, d)
            monotonicity = of_y.builder.program(of_y.of(door.lowered(claimed)))
        if not integrals:
            raise ValueError(_zero(equation))
        kind = ENERGY if equation.residual is None else RESIDUAL
        density = Density(kind, d, p, parts, integrals, monotonicity=monotonicity)
        _ = density.is_linear, density.diffusion  # derivatives may not exist
        equation.check(density)
    except NoProgramError as error:
        raise ValueError(f"{equation.what} cannot be computed from the states of cells: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{equation.what} is nested too deeply; write sums with sum(…)") from error
    return density


def _integrals(
    form: Any, known: Sequence[tuple[str, tuple[Group, ...]]], scalars: Callable[[bool], Scalars]
) -> Iterator[Integral]:
    if form.arguments():
        raise NoProgramError("it has test or trial functions of its own: give the energy, or use those of residual=")
    places: dict[tuple[str, tuple[Group, ...]], tuple[Scalars, list[Value]]] = {}
    with door.quiet():
        lowered = door.lowered(form)
    for integral in lowered.integrals():
        kind, tag = integral.integral_type(), integral.subdomain_id()
        if kind == "interior_facet":
            raise NoProgramError(f"it has an integral over facets between cells (dS), {ONE_CELL}")
        if kind not in KINDS:
            raise NoProgramError(f"it has an integral over {kind}s; use dx and ds")
        if dict(integral.metadata()):
            raise NoProgramError("an integral has metadata of its own; quadrature_degree is a setting of Problem")
        tags = tag if isinstance(tag, tuple) else (tag,)
        for number in tags:
            own = isinstance(number, int) and FIRST_TAG <= number < FIRST_TAG + len(known)
            if not own and number not in ("everywhere", "otherwise"):
                raise NoProgramError(
                    f"an integral over the group {number!r} has a measure of its own: use the dx and ds that are given"
                )
            key = known[number - FIRST_TAG] if own else ({"cell": "dx"}.get(kind, "ds"), ())
            reader, values = places.setdefault(key, (scalars(KINDS[kind] == FACETS), []))
            values.append(reader.of(integral.integrand()))
    for (name, groups), (reader, values) in places.items():
        total = reader.builder.total(values)
        if total != 0.0:
            yield Integral(CELLS if name == "dx" else FACETS, groups, reader.builder.program(total))
