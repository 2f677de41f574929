"""The fields of a formulation, with their elements and essential boundary data.

N points, F facets of a mesh.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fem_frames.frame.boundary import LiftShape
from fem_frames.frame.elements import Element, element_class
from fem_frames.frame.partition import dirichlet_partition
from fem_frames.mesh.geometry import Floats
from fem_frames.mesh.hierarchy import MeshHierarchy
from fem_frames.problem.definition import Problem
from fem_frames.problem.equation import ELEMENTS, MOST_COMPONENTS, Unknown

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class EssentialData:
    """Masks of the given nodal values of a field on every level, and nodal values that agree with them.

    See docs/formulations.md.
    """

    fixed: tuple[npt.NDArray[np.bool_], ...]  # for each level, (simplices that carry nodal values,)
    lift: tuple[Floats, ...]  # the same shapes
    shapes: tuple[LiftShape, ...] = ()
    """For each condition whose data depend on y, the function that carries them; `lift` then has the other data."""


def dirichlet_values(hierarchy: MeshHierarchy, problem: Problem) -> EssentialData:
    """u is given on the Dirichlet part of the boundary, at points. See docs/formulations.md."""
    fixed = hierarchy.fixed_points(problem)
    given = {i: c.value for i, c in enumerate(problem.conditions) if c.kind == "dirichlet" and not c.value.is_zero}
    ones = tuple(np.ones(len(mask)) for mask in fixed)
    # The data are interpolated everywhere, not only on the boundary: a smooth lift keeps its digits in float16.
    if sum(c.kind == "dirichlet" for c in problem.conditions) == 1:
        carriers = dict.fromkeys(given, ones)
    else:
        carriers = dirichlet_partition(hierarchy, problem, list(given)) if given else {}
    lift = [np.zeros(len(mask)) for mask in fixed]
    for count, number in enumerate(i for i, value in given.items() if not value.depends_on_y):
        at = given[number].at(hierarchy.points)
        parts = [carrier * at[: len(carrier)] for carrier in carriers[number]]
        lift = [v + part for v, part in zip(lift, parts, strict=True)] if count else parts
    shapes = tuple(LiftShape(i, carriers[i]) for i, value in given.items() if value.depends_on_y)
    return EssentialData(fixed, tuple(lift), shapes)


def neumann_fluxes(hierarchy: MeshHierarchy, problem: Problem) -> EssentialData:
    """σ·n is given, as fluxes through facets, where u is not. See docs/formulations.md."""
    from fem_frames.frame.raviart_thomas import given_fluxes

    return given_fluxes(hierarchy, problem)


def bubble_values(hierarchy: MeshHierarchy, problem: Problem) -> EssentialData:
    """u is given on the Dirichlet part, on its edges: `EdgeBubbles` have what P1 lacks of it. See docs/formulations.md.

    The value of an edge is the value of the data at its midpoint minus the mean of the data at its ends.
    """
    from fem_frames.frame.edge_bubbles import given_bubbles

    return given_bubbles(hierarchy, problem)


@dataclass(frozen=True)
class Field:
    """An unknown function. In an equation: `Field("u")`, `Field("u", components=2)`, `Field("sigma", "RT0")`.

    A formulation of one's own names element classes: `Field("u", P1)`, `Field("sigma", RT0, neumann_fluxes)`.
    See docs/equations.md and docs/formulations.md.
    """

    name: str
    element: type[Element] | str = "P1"
    """In an equation "P1", "P2" or "RT0"."""
    essential: Callable[[MeshHierarchy, Problem], EssentialData] = dirichlet_values
    """Gives the boundary data that the field itself satisfies; all other data enter the loss."""
    components: int | None = None
    """In an equation the number of components of a vector; None for a scalar, and for a flux."""
    dirichlet: Any = None
    """In an equation the given values, as in Problem; a tuple has one per component, None where it is free."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"the name of a field is {self.name!r}; a text is expected")
        is_class = isinstance(self.element, type) and issubclass(self.element, Element)
        if not is_class and self.element not in ELEMENTS:
            raise ValueError(
                f"the element of {self.name} is {self.element!r}; choose {', '.join(map(repr, ELEMENTS))} for an "
                "equation, or a class for a formulation of your own: P1, P1Values, EdgeBubbles or RT0"
            )
        if not callable(self.essential):
            raise ValueError(f"essential of {self.name} is {self.essential!r}; a function of hierarchy and problem")
        count = self.components
        if count is not None and (
            isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= MOST_COMPONENTS
        ):
            raise ValueError(
                f"components of {self.name} is {count!r}; give 1 to {MOST_COMPONENTS}, or None for a scalar"
            )
        if count is not None and self.element == "RT0":
            raise ValueError(f"{self.name} is a flux in RT0, a vector by itself: leave components out")

    @property
    def kind(self) -> type[Element]:
        """The element class."""
        return self.element if isinstance(self.element, type) else element_class(self.element)

    def unknown(self) -> Unknown:
        """The field as an equation takes it."""
        if isinstance(self.element, type):
            names = {"P1": "P1", "P1 with values": "P1", "RT0": "RT0"}
            if self.element.name not in names:
                raise ValueError(
                    f"the element of {self.name} is {self.element.name!r}; equations have {', '.join(ELEMENTS)}"
                )
            return Unknown(self.name, names[self.element.name], self.components, self.dirichlet)
        return Unknown(self.name, self.element, self.components, self.dirichlet)


def joined_components(fields: Mapping[str, T], stack: Callable[[list[T]], T], count: int | None = None) -> dict[str, T]:
    """The fields with components "u[0]", "u[1]", … joined to "u"; with `count` only those of so many components."""
    groups: dict[str, list[str]] = {}
    for name in fields:
        groups.setdefault(vector_name(name) or name, []).append(name)
    found: dict[str, T] = {}
    for name, parts in groups.items():
        if vector_name(parts[0]) is None or count not in (None, len(parts)):
            found |= {part: fields[part] for part in parts}
        else:
            found[name] = stack([fields[part] for part in parts])
    return found


def vector_name(name: str) -> str | None:
    """The name of the vector field that a frame field "u[1]" is a component of; None for others."""
    base, bracket, rest = name.rpartition("[")
    return base if bracket and base and rest.endswith("]") and rest[:-1].isdigit() else None


def field_data(name: str) -> Callable[[MeshHierarchy, Problem], EssentialData]:
    """The boundary data of one field of an equation."""

    def essential(hierarchy: MeshHierarchy, problem: Problem) -> EssentialData:
        own, first = problem.of_field(name)
        element = next(part.element for part in problem.density().parts if part.name == name)
        data = {"RT0": neumann_fluxes, "edge bubbles": bubble_values}.get(element, dirichlet_values)(hierarchy, own)
        shapes = tuple(LiftShape(first + shape.condition, shape.values) for shape in data.shapes)
        return EssentialData(data.fixed, data.lift, shapes)

    return essential
