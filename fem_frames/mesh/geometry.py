"""Volumes, orientation and facets of simplices.

K cells, N points, F facets, d dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def signed_volumes(points: Floats, cells: Ints) -> Floats:
    """(K,) volumes of simplices, negative where the orientation is negative."""
    d = points.shape[1]
    corners = points[cells]  # (K, d+1, d)
    return np.asarray(np.linalg.det(corners[:, 1:] - corners[:, :1]) / (1, 1, 2, 6)[d])


def orient(points: npt.ArrayLike, cells: npt.ArrayLike) -> Ints:
    """The same cells in positive orientation: swaps two vertices of each inverted cell."""
    x, oriented = np.asarray(points, np.float64), np.array(cells, np.int64)
    inverted = signed_volumes(x, oriented) < 0
    oriented[inverted, -2:] = oriented[inverted, -2:][:, ::-1]
    return oriented


def facets_of(cells: Ints) -> Ints:
    """(K, d+1, d) vertices of the facets of each cell; facet i lies opposite vertex i."""
    width = cells.shape[1]
    return np.stack([np.delete(cells, i, axis=1) for i in range(width)], axis=1)


def row_keys(rows: Ints, bound: int) -> Ints:
    """(n,) one number per row of non-negative numbers below `bound`, independent of the order within the row."""
    if bound ** rows.shape[-1] >= 2**63:
        raise ValueError(f"{bound} points are too many to encode {rows.shape[-1]} of them in one 64-bit number")
    rows = np.sort(rows, axis=-1)
    key = rows[..., 0].copy()
    for i in range(1, rows.shape[-1]):
        key = key * bound + rows[..., i]
    return key


def boundary_facets(cells: Ints) -> Ints:
    """(F, d) facets of exactly one cell, vertices ascending, in the order of their cells."""
    facets = np.sort(facets_of(cells), axis=-1).reshape(-1, cells.shape[1] - 1)
    order = np.lexsort(facets.T[::-1])
    change = (facets[order[1:]] != facets[order[:-1]]).any(axis=1)
    alone = np.concatenate([[True], change]) & np.concatenate([change, [True]])
    return facets[np.sort(order[alone])]


def as_tuple(values: Sequence[float] | npt.ArrayLike) -> tuple[float, ...]:
    """A tuple of Python floats, which is hashable and prints as plain numbers."""
    return tuple(float(v) for v in np.asarray(values, np.float64).reshape(-1))
