"""Checks of formulations: their classes when they are defined, and frames and problems when they are made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fem_frames.frame.arrays import FrameArrays
from fem_frames.frame.fields import Field, dirichlet_values, neumann_fluxes
from fem_frames.problem.definition import Problem

if TYPE_CHECKING:
    from fem_frames.formulations.formulation import Formulation


def check_class(kind: type[Formulation]) -> None:
    """Raises a ValueError if the name or the fields of a formulation are not usable."""
    if not isinstance(kind.name, str) or not kind.name:
        raise ValueError(f"the name of {kind.__name__} is {kind.name!r}; a text is expected")
    fields = getattr(kind, "fields", None)
    if not isinstance(fields, tuple) or not fields or not all(isinstance(f, Field) for f in fields):
        raise ValueError(f"the fields of {kind.__name__} are {fields!r}; a tuple is expected: (Field('u', P1),)")
    names = [f.name for f in fields]
    if len(set(names)) < len(names):
        raise ValueError(f"two fields of {kind.__name__} are called {max(names, key=names.count)!r}: rename one")


def check_fields(arrays: FrameArrays, kind: type[Formulation]) -> None:
    """Raises a ValueError unless the frame has the fields of the formulation."""
    found = [(f.name, f.element.name) for f in arrays.fields]
    expected = [(f.name, f.element.name) for f in kind.fields]
    if found != expected:
        shown, wanted = (", ".join(f"{name} in {element}" for name, element in pairs) for pairs in (found, expected))
        raise ValueError(f"the frame has the fields {shown}, but {kind.name} has {wanted}: export it again")


def check_boundary(arrays: FrameArrays, kind: type[Formulation], problem: Problem) -> None:
    """Raises a ValueError if the frame has other boundary data than the problem, in fields that take them."""
    for field, f in zip(kind.fields, arrays.fields, strict=True):
        if field.essential is dirichlet_values:
            value = next((c.value for c in problem.conditions if c.kind == "dirichlet"), None)
            if value is not None and not np.allclose(value.at(arrays.points), f.lift[-1]):
                raise arrays.misfit(problem, "its Dirichlet data differ")
        given = field.essential is neumann_fluxes and f.lift[-1].any()
        without = all(c.value.is_zero for c in problem.conditions if c.kind == "neumann")
        if without and (given or arrays.neumann_load.any()):
            raise arrays.misfit(problem, "it has no Neumann data, but the frame has")
