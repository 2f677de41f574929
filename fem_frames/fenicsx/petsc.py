"""The door to PETSc, for what is assembled and solved: DOLFINx may come without it, and exports frames then too."""

from __future__ import annotations

from typing import Any

import numpy as np

import fem_frames.fenicsx.door  # noqa: F401  which says what is wrong with DOLFINx, if anything is
from fem_frames.fenicsx.absence import no_petsc

try:
    from dolfinx.fem import petsc as fem_petsc
    from petsc4py import PETSc
except ImportError as error:
    raise no_petsc(error) from error


def assemble_matrix(form: Any, into: PETSc.Mat | None = None) -> PETSc.Mat:
    """PETSc matrix of a compiled bilinear form, no boundary conditions; `into` is overwritten if given."""
    if into is None:
        into = fem_petsc.create_matrix(form)
    into.zeroEntries()
    fem_petsc.assemble_matrix(into, form)
    into.assemble()
    return into


def assemble_vector(form: Any) -> PETSc.Vec:
    """PETSc vector of a compiled linear form, contributions of all ranks added."""
    vector = fem_petsc.assemble_vector(form)
    vector.ghostUpdate(addv=PETSc.InsertMode.ADD, mode=PETSc.ScatterMode.REVERSE)
    return vector


def version() -> str:
    """PETSc's version and its scalars, which are real: the door to DOLFINx lets no others in."""
    return f"{'.'.join(map(str, PETSc.Sys.getVersion()))} ({np.dtype(PETSc.ScalarType).name})"
