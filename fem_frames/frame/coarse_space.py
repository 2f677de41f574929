"""The coarse level of a frame: functions that span the space of its first mesh well conditioned, however fine it is.

The more hats one mesh has, the worse conditioned they are. No mesh lies below the first one, so smoothed aggregation
(`aggregation.py`) finds nested spaces inside its finite element space. The normalised basis functions of these spaces,
and an orthonormal basis of the smallest, join the frame as one more level. A space that is small already is its own
smallest one, and gets an orthonormal basis only.

N points, n free nodal values, L the length of the domain, d dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from fem_frames.frame.aggregation import nested_spaces, orthonormal
from fem_frames.frame.sparse import SparseMatrix
from fem_frames.mesh.geometry import Ints
from fem_frames.mesh.simplices import SimplexMesh

SMALL = 64  # free nodal values up to which the space of the first mesh gets an orthonormal basis
SMALLEST = 24  # functions of the smallest space on larger meshes: each of them has a state on every cell
WELL = 10.0  # condition number of the functions on the first mesh up to which they need no coarse level


def size_limit(choice: str, functions: Sequence[SparseMatrix], norm: Any, free: Ints) -> int | None:
    """The size of the smallest space for a choice of the coarse level, None for no coarse level.

    `functions` are those of a field on the first mesh, `norm` the matrix of the field's norm on all nodal values.
    """
    if choice == "none" or not len(free):
        return None
    if choice == "auto" and len(free) <= SMALL and _condition(functions, norm) <= WELL:
        return None
    if choice == "dense":
        return len(free)
    return SMALL if len(free) <= 8 * SMALL else SMALLEST


def _condition(functions: Sequence[SparseMatrix], norm: Any) -> float:
    """The ratio of the largest to the least nonzero eigenvalue of the functions' Gram matrix."""
    F = sparse.vstack([rows.to_scipy() for rows in functions])
    values = np.linalg.eigvalsh((F @ norm @ F.T).toarray())
    return float(values[-1] / values[values > 1e-10 * values[-1]][0])


def coarse_level(chains: Sequence[Sequence[Any]], norm: Any, free: Ints) -> SparseMatrix:
    """The functions (rows) of the coarse level as combinations of all nodal values.

    A chain has the bases (n, ·) of nested spaces of free nodal values. All spaces but the last of each chain give their
    normalised basis functions; the last ones together get an orthonormal basis.
    """
    inner = sparse.csr_array(norm)[free][:, free]
    found = [_normalised(basis, inner) for chain in chains for basis in chain[:-1]]
    last = sparse.hstack([chain[-1] for chain in chains])
    rows = sparse.vstack([*(basis.T for basis in found), sparse.csr_array(orthonormal(last, inner).T)])
    coo = rows.tocoo()
    keep = np.abs(coo.data) > 1e-14 * np.abs(coo.data).max(initial=0.0)
    return SparseMatrix.from_entries(coo.row[keep], free[coo.col[keep]], coo.data[keep], (rows.shape[0], norm.shape[0]))


def _normalised(basis: Any, norm: Any) -> Any:
    """The basis functions divided by their norms; those that vanish are left out."""
    squares = np.asarray((basis.multiply(norm @ basis)).sum(axis=0)).ravel()
    kept = np.flatnonzero(squares > 1e-16 * squares.max(initial=0.0))
    return sparse.csr_array(sparse.csc_array(basis)[:, kept] @ sparse.diags(1 / np.sqrt(squares[kept])))


def scalar_chain(norm: Any, free: Ints, limit: int) -> list[Any]:
    """Nested spaces (n, ·) of functions with values at the free points, with constants as candidates."""
    inner = sparse.csr_array(norm)[free][:, free]
    return nested_spaces(inner, np.arange(len(free)), np.ones((len(free), 1)), limit)


def h1_matrix(mesh: SimplexMesh, length: float) -> Any:
    """(N, N) the matrix of ‖∇v‖² + ‖v‖²/L² for the hats."""
    d, (gradients, volumes) = mesh.dimension, mesh.hats
    mass = (1 + np.eye(d + 1)) / ((d + 1) * (d + 2) * length**2)
    local = volumes[:, None, None] * (np.einsum("kid,kjd->kij", gradients, gradients) + mass)
    rows, columns = (np.broadcast_to(a, local.shape).ravel() for a in (mesh.cells[:, :, None], mesh.cells[:, None]))
    return sparse.csr_array((local.ravel(), (rows, columns)), shape=(len(mesh.points),) * 2)
