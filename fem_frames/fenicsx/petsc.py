"""The door to PETSc, for assembly and solvers. A DOLFINx without PETSc can still export frames."""

from __future__ import annotations

from typing import Any

import numpy as np

import fem_frames.fenicsx.door  # noqa: F401  so that problems with DOLFINx are reported first
from fem_frames.fenicsx.absence import no_petsc

try:
    from dolfinx.fem import petsc as fem_petsc
    from petsc4py import PETSc
except ImportError as error:
    raise no_petsc(error) from error


def assemble_matrix(form: Any, into: PETSc.Mat | None = None) -> PETSc.Mat:
    """PETSc matrix of a compiled bilinear form without boundary conditions; overwrites `into` if given."""
    if into is None:
        into = fem_petsc.create_matrix(form)
    into.zeroEntries()
    fem_petsc.assemble_matrix(into, form)
    into.assemble()
    return into


def assemble_vector(form: Any) -> PETSc.Vec:
    """PETSc vector of a compiled linear form, with the contributions of all ranks added."""
    vector = fem_petsc.assemble_vector(form)
    vector.ghostUpdate(addv=PETSc.InsertMode.ADD, mode=PETSc.ScatterMode.REVERSE)
    return vector


def version() -> str:
    """PETSc's version and scalar type, which is real because the door to DOLFINx refuses complex builds."""
    return f"{'.'.join(map(str, PETSc.Sys.getVersion()))} ({np.dtype(PETSc.ScalarType).name})"
