"""The formulations by name: the ones that come with the library, and those that users define.

Needs no torch until a formulation is asked for, so that the command line can list the names.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fem_frames.formulations.formulation import Formulation
    from fem_frames.operators.frame import Frame
    from fem_frames.problem.definition import Problem

_HOMES = {
    "energy": "energy.Energy",
    "least-squares": "least_squares.LeastSquares",
    "weighted-least-squares": "least_squares.WeightedLeastSquares",
}
_OWN: dict[str, type[Formulation]] = {}


def formulation_names() -> tuple[str, ...]:
    """The names of all formulations that are known here."""
    return (*_HOMES, *(name for name in _OWN if name not in _HOMES))


def register(formulation: type[Formulation]) -> None:
    """Makes a formulation known by its name; subclasses of `Formulation` with a name are registered on their own."""
    home = _HOMES.get(formulation.name)
    if home is not None and f"{formulation.__module__}.{formulation.__name__}" != f"fem_frames.formulations.{home}":
        raise ValueError(f"the name {formulation.name!r} is that of a formulation of fem-frames: choose another")
    _OWN[formulation.name] = formulation


def formulation_class(name: str) -> type[Formulation]:
    """The formulation of this name, or a ValueError that says which there are."""
    if name in _OWN:
        return _OWN[name]
    if name not in _HOMES:
        raise ValueError(
            f"formulation is {name!r}; choose from {', '.join(formulation_names())}, or import the module that "
            "defines one of your own first"
        )
    module, _, attribute = _HOMES[name].partition(".")
    found: type[Formulation] = getattr(importlib.import_module(f"fem_frames.formulations.{module}"), attribute)
    return found


def make_formulation(frame: Frame, problem: Problem) -> Formulation:
    """The formulation that the frame was exported for."""
    arrays = getattr(frame, "arrays", None)  # what is no frame is refused by the formulation
    return formulation_class("energy" if arrays is None else arrays.formulation)(frame, problem)
