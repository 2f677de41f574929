"""Sizes and shapes of simplices: diameters, mean ratios, measures of facets.

K cells, N points, F facets, d dimension.
"""

from __future__ import annotations

import numpy as np

from fem_frames.mesh.geometry import Floats, Ints, signed_volumes


def edge_lengths(points: Floats, cells: Ints) -> Floats:
    """(K, edges) lengths of the edges of simplices."""
    first, second = np.triu_indices(cells.shape[1], 1)
    return np.asarray(np.linalg.norm(points[cells[:, first]] - points[cells[:, second]], axis=-1))


def diameters(points: Floats, cells: Ints) -> Floats:
    """(K,) the longest edge of each simplex."""
    return np.asarray(edge_lengths(points, cells).max(axis=1))


def mean_ratios(points: Floats, cells: Ints) -> Floats:
    """(K,) shape of simplices, d (d! |T|)^(2/d) (d+1)^(1-1/d) / Σ (edge lengths)²: 1 if equilateral, near 0 if flat."""
    d = points.shape[1]
    factorial = (1, 1, 2, 6)[d]
    volume = np.abs(signed_volumes(points, cells)) * factorial
    return np.asarray(d * volume ** (2 / d) * (d + 1) ** (1 - 1 / d) / (edge_lengths(points, cells) ** 2).sum(axis=1))


def facet_measures(corners: Floats) -> Floats:
    """(F,) lengths or areas of facets with the corners (F, d, d); 1 for points."""
    d = corners.shape[1]
    if d == 1:
        return np.ones(len(corners))
    edges = corners[:, 1:] - corners[:, :1]
    if d == 2:
        return np.asarray(np.linalg.norm(edges[:, 0], axis=-1))
    return np.asarray(np.linalg.norm(np.cross(edges[:, 0], edges[:, 1]), axis=-1) / 2)
