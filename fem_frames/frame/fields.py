"""The fields of a formulation, with their elements and essential boundary data.

N points, F facets of a mesh.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fem_frames.frame.boundary import LiftShape
from fem_frames.frame.elements import Element
from fem_frames.frame.partition import dirichlet_partition
from fem_frames.mesh.geometry import Floats
from fem_frames.mesh.hierarchy import MeshHierarchy
from fem_frames.problem.definition import Problem


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
    """An unknown function of a formulation: `Field("u", P1)`, or `Field("sigma", RT0, neumann_fluxes)`.

    See docs/formulations.md.
    """

    name: str
    element: type[Element]
    essential: Callable[[MeshHierarchy, Problem], EssentialData] = dirichlet_values
    """Gives the boundary data that the field itself satisfies; all other data enter the loss."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"the name of a field is {self.name!r}; a text is expected")
        if not isinstance(self.element, type) or not issubclass(self.element, Element):
            raise ValueError(
                f"the element of {self.name} is {self.element!r}; a class is expected: P1, P1Values, EdgeBubbles or RT0"
            )
        if not callable(self.essential):
            raise ValueError(f"essential of {self.name} is {self.essential!r}; a function of hierarchy and problem")
