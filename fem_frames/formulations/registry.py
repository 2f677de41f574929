"""The formulations by name, both built-in ones and those of users.

Torch is imported only when a formulation is looked up, so that the command line can list the names without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fem_frames.messages import either
from fem_frames.registry import Registry

if TYPE_CHECKING:
    from fem_frames.formulations.formulation import Formulation
    from fem_frames.operators.frame import Frame
    from fem_frames.problem.definition import Problem

_BUILT_IN: Registry[type[Formulation]] = Registry(
    "formulation",
    {
        "energy": "fem_frames.formulations.energy.Energy",
        "least-squares": "fem_frames.formulations.least_squares.LeastSquares",
        "weighted-least-squares": "fem_frames.formulations.least_squares.WeightedLeastSquares",
        "energy-p2": "fem_frames.formulations.quadratic_elements.P2Energy",
    },
)
_OWN: dict[str, type[Formulation]] = {}


def formulation_names() -> tuple[str, ...]:
    """The names of all registered formulations."""
    return (*_BUILT_IN, *(name for name in _OWN if name not in _BUILT_IN))


def register(formulation: type[Formulation]) -> None:
    """Registers a formulation by its name; subclasses of `Formulation` with a name call this automatically."""
    home = _BUILT_IN.homes.get(formulation.name)
    if home not in (None, f"{formulation.__module__}.{formulation.__name__}"):
        raise ValueError(f"the name {formulation.name!r} belongs to a formulation of fem-frames: choose another")
    other = _OWN.get(formulation.name)
    if other is not None and _place(other) != _place(formulation):
        raise ValueError(f"{_place(other)} is called {formulation.name!r} already: choose another name for this one")
    _OWN[formulation.name] = formulation


def _place(kind: type) -> str:
    """Where a class is defined; a class that is defined anew, as in a notebook, has the same place."""
    return f"{kind.__module__}.{kind.__qualname__}"


def formulation_class(name: str) -> type[Formulation]:
    """The formulation with this name; raises a ValueError that lists the names."""
    if name in _OWN:
        return _OWN[name]
    if name not in _BUILT_IN:
        raise ValueError(
            f"formulation is {name!r}; choose from {', '.join(formulation_names())}, or "
            + either("give --problem FILE.py that defines it", "import the module that defines one of your own first")
        )
    return _BUILT_IN[name]


def formulation_for(name: str, problem: Problem) -> type[Formulation]:
    """The class that realises the formulation with this name for a problem; raises a ValueError if none does."""
    return formulation_class(name).variant(problem)


def make_formulation(frame: Frame, problem: Problem) -> Formulation:
    """The formulation that the frame was exported for. See docs/formulations.md."""
    arrays = getattr(frame, "arrays", None)  # the formulation refuses objects that are not frames
    return formulation_for("energy" if arrays is None else arrays.formulation, problem)(frame, problem)
