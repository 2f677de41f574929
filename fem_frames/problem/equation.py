"""An equation of the user: fields, and an energy or a weak form as a function that returns a UFL form.

d dimension, p parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fem_frames.mesh.coarse import Grid, MeshArrays
from fem_frames.messages import either
from fem_frames.problem.boundary import REST, BoundaryValue, Condition, make_conditions
from fem_frames.problem.densities import Density, Part, check_determined

ELEMENTS = ("P1", "P2", "RT0")
MOST_COMPONENTS = 20


@dataclass(frozen=True)
class Unknown:
    """A field of an equation as the user sees it: a scalar, a vector of nodal fields, or a flux."""

    name: str
    element: str = "P1"
    components: int | None = None
    """None for a scalar; a flux in RT0 is a vector of the space's dimension by itself."""
    dirichlet: Any = None
    """Groups with values as in Problem; a tuple of values or None per component. None takes the problem's."""

    def names(self) -> tuple[str, ...]:
        """The names of its frame fields: one per component."""
        if self.components is None:
            return (self.name,)
        return tuple(f"{self.name}[{k}]" for k in range(self.components))

    def parts(self, d: int, start: int) -> list[Part]:
        """Its places in the state, from `start` on."""
        if self.element == "RT0":
            return [Part(self.name, "RT0", start, d + 1)]
        found = []
        for name in self.names():
            found.append(Part(name, "P1 with values", start, d + 1))
            start += d + 1
            if self.element == "P2":
                found.append(Part(f"{name} bubbles", "edge bubbles", start, bubble_size(d)))
                start += bubble_size(d)
        return found


def bubble_size(d: int) -> int:
    """Value, gradient and second derivatives."""
    return 1 + d + d * (d + 1) // 2


@dataclass(frozen=True, eq=False)
class Equation:
    """Fields, and their energy, or their weak form with one test function per field.

    `energy(u, y, x, dx, ds)` and `residual(u, v, y, x, dx, ds)` return a UFL form; with several fields all of them come
    first, then all test functions. dx("steel") and ds("inflow") are integrals over groups. See docs/equations.md.
    """

    fields: tuple[Unknown, ...]
    energy: Callable[..., Any] | None = None
    residual: Callable[..., Any] | None = None
    monotonicity: Callable[..., Any] | None = None
    """y to a number α(y) in UFL, as the user claims: for all u the second derivative of the energy for y is at least
    α(y) times that of the energy for the nominal y at u = 0. Error bounds of nonlinear energies rest on it."""
    density: Density | None = None
    """The programs, for an equation that was read with its frame and has no functions."""
    _compiled: dict[tuple[int, int], Density] = field(default_factory=dict, repr=False)
    _dimensions: dict[str, int] = field(default_factory=dict, repr=False)

    def __init__(
        self,
        *fields: Any,
        energy: Callable[..., Any] | None = None,
        residual: Callable[..., Any] | None = None,
        monotonicity: Callable[..., Any] | None = None,
        density: Density | None = None,
    ) -> None:
        for name, value in (
            ("energy", energy),
            ("residual", residual),
            ("monotonicity", monotonicity),
            ("density", density),
            ("_compiled", {}),
            ("_dimensions", {}),
        ):
            object.__setattr__(self, name, value)
        given = fields[0] if len(fields) == 1 and isinstance(fields[0], tuple | list) else fields
        object.__setattr__(self, "fields", tuple(_unknown(f) for f in given))
        _check(self)

    @classmethod
    def recorded(cls, density: Density) -> Equation:
        """The equation of programs that were read from a file."""
        fields = unknowns_of([(part.name, part.element) for part in density.parts])
        made = cls(*fields, density=density)
        if [(p.name, p.element, p.size) for p in made.parts(density.dimension)] != [
            (p.name, p.element, p.size) for p in density.parts
        ]:
            raise ValueError("the fields of the equation do not fit each other")
        return made

    def check(self, density: Density) -> None:
        """Raises a NoProgramError if the density cannot be that of an equation."""
        check_determined(density)

    @property
    def function(self) -> Callable[..., Any]:
        """The energy or the weak form."""
        found = self.energy or self.residual
        if found is None:
            raise ValueError(
                "the equation was read from a file, which has its programs but not its function: give the problem, as "
                + either("--problem", "problem=…")
            )
        return found

    @property
    def has_function(self) -> bool:
        """False for an equation that was read with its frame."""
        return self.energy is not None or self.residual is not None

    @property
    def what(self) -> str:
        """For messages."""
        return "the energy" if self.residual is None else "the residual"

    def adopt(self, density: Density) -> None:
        """Takes programs that were made from this equation before: they need no UFL."""
        self._compiled[density.dimension, density.parameters] = density

    @property
    def called(self) -> str:
        """What its function is called in messages."""
        return "energy" if self.residual is None else "residual"

    def parts(self, d: int) -> tuple[Part, ...]:
        """The places of all fields in the state."""
        found: list[Part] = []
        for unknown in self.fields:
            found += unknown.parts(d, found[-1].start + found[-1].size if found else 0)
        return tuple(found)

    def compiled(self, d: int, p: int) -> Density:
        """The programs in dimension d for p parameters; compiled once, with UFL, unless they were read from a file."""
        if self.density is not None:
            if (self.density.dimension, self.density.parameters) != (d, p):
                raise ValueError(
                    f"the equation was read for dimension {self.density.dimension} and {self.density.parameters} "
                    f"parameters, not for dimension {d} and {p}"
                )
            return self.density
        if (d, p) not in self._compiled:
            from fem_frames.fenicsx.weak_forms import compile_equation

            self._compiled[d, p] = compile_equation(self, d, p)
        return self._compiled[d, p]


def unknowns_of(parts: Sequence[tuple[str, str]]) -> list[Unknown]:
    """The fields as the user sees them, from the names and elements of frame fields or of parts of states."""
    fields: dict[str, Unknown] = {}
    names = [name for name, _ in parts]
    for part, kind in parts:
        if kind == "edge bubbles":
            continue
        base, bracket, rest = part.rpartition("[")
        name = base if bracket and rest[:-1].isdigit() else part
        element = "RT0" if kind == "RT0" else "P2" if f"{part} bubbles" in names else "P1"
        count = None if name == part else 1 + (fields[name].components or 0 if name in fields else 0)
        fields[name] = Unknown(name, element, count)
    return list(fields.values())


def _unknown(given: Any) -> Unknown:
    """A field that the user made by `Field`."""
    if isinstance(given, Unknown):
        return given
    unknown = getattr(given, "unknown", None)
    if unknown is None:
        raise ValueError(f"{given!r} is no field of an equation: write Equation(Field('u'), energy=…)")
    return unknown()


def _check(equation: Equation) -> None:
    if not equation.fields:
        raise ValueError("the equation has no fields: write Equation(Field('u'), energy=…)")
    names = [name for f in equation.fields for name in f.names()]
    if len(set(names)) < len(names):
        raise ValueError(f"two fields are called {max(names, key=names.count)!r}: rename one")
    if equation.density is not None:
        return
    if (equation.energy is None) == (equation.residual is None):
        both = "both energy and residual" if equation.energy is not None else "neither energy nor residual"
        raise ValueError(f"the equation has {both}: give one, a function that returns a UFL form")
    for name in ("energy", "residual", "monotonicity"):
        given = getattr(equation, name)
        is_form = type(given).__module__.partition(".")[0] in ("ufl", "dolfinx")  # these can be called too
        if given is not None and (is_form or not callable(given)):
            raise ValueError(
                f"{name} is a {type(given).__name__}; give a function that returns the form, because forms are bound "
                "to a mesh: energy=lambda u, y, x, dx, ds: …"
            )


def equation_conditions(
    equation: Equation, dirichlet: Any, dirichlet_value: Any, others: Mapping[str, Any], source: Any
) -> tuple[Condition, ...]:
    """The boundary conditions of all fields; those of the problem hold for nodal fields without their own.

    `others` are the problem's data for other conditions, which an equation has in its form.
    """
    for kind, given in others.items():
        if given:
            raise ValueError(
                f"{kind} is given, but the problem has an equation of its own: write boundary terms in it, such as "
                "- h * u * ds('inflow')"
            )
    if callable(source) or source != 1.0:
        raise ValueError("a source is given, but the problem has an equation of its own: write - f * u * dx in it")
    if isinstance(dirichlet_value, tuple | list):
        raise ValueError(
            f"dirichlet_value is {dirichlet_value!r}; values per component go by group, as in "
            "dirichlet={'inflow': (1.0, 0.0)}"
        )
    is_mapping = isinstance(dirichlet, Mapping)
    shared = () if is_mapping else make_conditions(dirichlet, dirichlet_value, {}, {})
    if is_mapping and (callable(dirichlet_value) or dirichlet_value != 0):
        raise ValueError("dirichlet has values by group, so leave dirichlet_value out")
    nodal = [unknown for unknown in equation.fields if unknown.element != "RT0"]
    if isinstance(dirichlet, Mapping) and dirichlet and nodal and all(f.dirichlet is not None for f in nodal):
        raise ValueError(
            f"dirichlet = {dict(dirichlet)!r} of the problem is for fields without their own, but all fields have one: "
            "leave one of them out"
        )
    found: list[Condition] = []
    for unknown in equation.fields:
        if unknown.element == "RT0":
            given = unknown.dirichlet or {}
            if not isinstance(given, Mapping):
                raise ValueError(f"the flux {unknown.name} is given by groups, {{'wall': 0.0}}, not by {given!r}")
            free = Condition("dirichlet", (REST,), BoundaryValue(0.0, "free"))  # as where u is given
            own = (*make_conditions(None, 0.0, given, {}), free)
            found += [replace(c, field=unknown.name) for c in own]
            continue
        for k, name in enumerate(unknown.names()):
            if unknown.dirichlet is None and not is_mapping:
                own = shared
            else:
                given = dirichlet if unknown.dirichlet is None else unknown.dirichlet
                own = _of_component(unknown, k, given)
            found += [replace(c, field=name) for c in own]
            if unknown.element == "P2":
                found += [replace(c, field=f"{name} bubbles") for c in own]
    return tuple(found)


def _of_component(unknown: Unknown, k: int, given: Any) -> tuple[Condition, ...]:
    """The conditions of one component: a tuple has a value per component, None where it is free."""
    if not isinstance(given, Mapping):
        return make_conditions(given, 0.0, {}, {})
    own = {}
    for group, value in given.items():
        if not isinstance(value, tuple | list):
            own[group] = value
            continue
        count = unknown.components or 1
        if len(value) != count:
            raise ValueError(
                f"dirichlet[{group!r}] of {unknown.name} has {len(value)} values for {count} "
                f"component{'' if count == 1 else 's'}: give one per component, None where it is free"
            )
        if value[k] is not None:
            own[group] = value[k]
    return make_conditions(own, 0.0, {}, {})


def mesh_dimension(mesh: Any, equation: Equation | None) -> int:
    """The dimension of the space that a mesh lies in; files are read once per equation."""
    if equation is not None and equation.density is not None:
        return equation.density.dimension
    if isinstance(mesh, Grid):
        return len(mesh.shape)
    if isinstance(mesh, MeshArrays):
        return mesh.dimension
    parts = mesh if isinstance(mesh, tuple | list) else (mesh,)
    geometry = getattr(parts[0] if parts else None, "geometry", None)
    if geometry is not None:
        return int(geometry.dim)
    known = {} if equation is None else equation._dimensions
    if str(mesh) not in known:
        from fem_frames.fenicsx.refinement import coarse_mesh

        known[str(mesh)] = coarse_mesh(mesh).dimension
    return known[str(mesh)]
