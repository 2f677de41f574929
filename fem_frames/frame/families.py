"""Families of frame functions: on every level, each function is a combination of a field's nodal basis.

n_j functions of a family on level j, N points, d dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fem_frames.frame.sparse import SparseMatrix
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.mesh.simplices import SimplexMesh


@dataclass(frozen=True, eq=False)
class FieldLevel:
    """A mesh, and which nodal values of a field are given on it."""

    mesh: SimplexMesh
    fixed: npt.NDArray[np.bool_]  # (simplices that carry nodal values,)
    length: float = 1.0
    """L, the unit in which norms measure lengths."""

    @property
    def free(self) -> Ints:
        return np.flatnonzero(~self.fixed)


@dataclass(frozen=True, eq=False)
class FrameFamily:
    """Functions on every level, as combinations of the nodal basis of that level: columns are simplices of the field.

    A nodal family, named like its field, has one entry per function: its normalisation. Others, such as the curls of
    Raviart-Thomas elements, may have several, and on the first level functions that belong to no simplex.
    """

    name: str
    field: str
    degree: int
    """Dimension of the simplices that the functions belong to."""
    free: tuple[Ints, ...]  # for each level, these simplices, in the order of the functions
    functions: tuple[SparseMatrix, ...]  # for each level (n_j, simplices of the field)
    coarse: int = 0
    """How many functions of the first level, its first ones, are the coarse level (`coarse_space.py`)."""

    @property
    def scale(self) -> tuple[Floats, ...]:
        """For each level the normalisation of the functions of simplices; only nodal families have one."""
        first = self.functions[0].part(self.coarse, self.functions[0].shape[0])
        return tuple(functions.weights for functions in (first, *self.functions[1:]))

    @property
    def level_sizes(self) -> tuple[int, ...]:
        """The number of functions on each mesh; those of the coarse level belong to the first one."""
        return tuple(functions.shape[0] for functions in self.functions)

    def with_coarse(self, functions: SparseMatrix) -> FrameFamily:
        """The family with a coarse level of these functions on the first mesh."""
        first = SparseMatrix.stacked(functions, self.functions[0])
        return replace(self, functions=(first, *self.functions[1:]), coarse=functions.shape[0])


def hat_families(field: str, levels: Sequence[FieldLevel]) -> list[FrameFamily]:
    """Hats of the free points of every level, normalised in H1. See "Multilevel frames" in the paper."""
    return [nodal_family(field, 0, levels, hat_norms)]


def nodal_family(
    field: str, degree: int, levels: Sequence[FieldLevel], norms: Callable[[SimplexMesh, float], Floats]
) -> FrameFamily:
    """The nodal basis functions of the free simplices of every level, divided by their `norms`."""
    functions = []
    for level in levels:
        free = level.free
        scale = 1 / norms(level.mesh, level.length)[free]
        functions.append(SparseMatrix.from_entries(np.arange(len(free)), free, scale, (len(free), len(level.fixed))))
    return FrameFamily(field, field, degree, tuple(level.free for level in levels), tuple(functions))


def hat_norms(mesh: SimplexMesh, length: float = 1.0) -> Floats:
    """(N,) full H1 norms of the nodal hats, (‖∇v‖² + ‖v‖²/L²)^{1/2}."""
    d, (gradients, volumes) = mesh.dimension, mesh.hats
    # float64: these norms underflow in half precision
    square = volumes[:, None] * (2 / ((d + 1) * (d + 2) * length**2) + (gradients**2).sum(axis=-1))  # (K, d+1)
    return np.sqrt(np.bincount(mesh.cells.ravel(), weights=square.ravel(), minlength=len(mesh.points)))
