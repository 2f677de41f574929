"""The fields of a formulation, with their elements and essential boundary data.

N points, F facets of a mesh.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fem_frames.frame.elements import Element
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


def dirichlet_values(hierarchy: MeshHierarchy, problem: Problem) -> EssentialData:
    """u is given on the Dirichlet part of the boundary, at points. See docs/formulations.md."""
    fixed = hierarchy.fixed_points(problem)
    lift = np.zeros(len(hierarchy.points))
    given = [condition.value for condition in problem.conditions if condition.kind == "dirichlet"]
    if not all(value.is_zero for value in given):
        # The data are interpolated everywhere, not only on the boundary: a smooth lift keeps its digits in float16.
        lift = given[0].at(hierarchy.points).copy()
    return EssentialData(fixed, tuple(lift[: len(mask)].copy() for mask in fixed))


def neumann_fluxes(hierarchy: MeshHierarchy, problem: Problem) -> EssentialData:
    """σ·n is given, as fluxes through facets, where u is not. See docs/formulations.md."""
    from fem_frames.frame.raviart_thomas import given_fluxes

    return given_fluxes(hierarchy, problem)


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
                f"the element of {self.name} is {self.element!r}; a class is expected: P1, P1Values or RT0"
            )
        if not callable(self.essential):
            raise ValueError(f"essential of {self.name} is {self.essential!r}; a function of hierarchy and problem")
