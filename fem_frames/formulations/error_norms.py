"""The norms of error bounds, and the error for formulations without forms in UFL."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ErrorNorm:
    """A norm with bounds for errors, and the solution against which errors are measured. See docs/surrogates.md."""

    name: str
    text: str
    """The name in words."""
    formula: str
    """The formula in e, the error of u, and τ, the error of σ."""
    against: str
    """"exact solution", or "discrete solution" for the one on the frame's finest mesh."""

    def __str__(self) -> str:
        return f"{self.text}, against the {self.against}"


class MissingFormsError(ValueError):
    """The formulation has no forms in UFL, which reference solutions by PETSc need."""

    def __init__(self) -> None:
        super().__init__("the formulation has no forms in UFL: define `forms`, or solve with fem_frames.solve")
