"""Finds the finest cell that contains a point: first the cell of the coarsest mesh, then child after child.

n points to locate, K_j cells of level j, d dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fem_frames.mesh.geometry import Floats, Ints

TOLERANCE = 1e-10  # relative to the size of the domain: points this close to the domain count as inside


def locate(x: npt.ArrayLike, points: Floats, levels: Sequence[Any], nested: bool = True) -> tuple[Ints, Floats]:
    """(n,) finest cells that contain the points x (n, d), and (n, d+1) barycentric coordinates in these cells.

    Every level has `cells` (K_j, d+1) and `gradients` (K_j, d+1, d) of their hats; cell c has the children
    2^d c, …, 2^d c + 2^d - 1. A point on an edge is assigned to one of its cells. The cost is O(levels) per point.
    On curved boundaries cells are not `nested`: then only the finest level is searched, at a cost of O(K).
    """
    levels = levels if nested else levels[-1:]
    x = _checked(x, points.shape[1])
    d, size = x.shape[1], float(np.ptp(points, axis=0).max())
    cell, gap = _coarse_cells(x, points, levels[0], TOLERANCE * size)
    outside = np.flatnonzero(gap > TOLERANCE * size)
    if len(outside):
        i = int(outside[0])
        raise ValueError(
            f"point {i} = {x[i].tolist()} lies outside the domain; give points inside it or on its boundary"
        )
    for level in levels[1:]:
        children = 2**d * cell[:, None] + np.arange(2**d)  # (n, 2^d)
        least = _barycentric(x[:, None], points, level, children).min(axis=2)
        cell = np.take_along_axis(children, least.argmax(axis=1)[:, None], axis=1)[:, 0]
    return cell, _barycentric(x, points, levels[-1], cell)


def _checked(x: npt.ArrayLike, d: int) -> Floats:
    """The points as (n, d); in one dimension they may come as (n,)."""
    try:
        found = np.asarray(x, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"points must be an array of numbers: {error}") from error
    if found.ndim == 1 and d == 1:
        found = found[:, None]
    if found.ndim != 2 or found.shape[1] != d:
        raise ValueError(f"points have shape {np.shape(x)}; (n, {d}) is expected")
    wrong = np.flatnonzero(~np.isfinite(found).all(axis=1))
    if len(wrong):
        raise ValueError(f"point {wrong[0]} = {found[wrong[0]].tolist()} is not finite")
    return found


def _barycentric(x: Floats, points: Floats, level: Any, cell: Ints) -> Floats:
    """(…, d+1) barycentric coordinates of x (…, d) in the cells (…): hats are affine and 1/(d+1) at the centre."""
    corners = points[level.cells[cell]]  # (…, d+1, d)
    off = x - corners.mean(axis=-2)
    return np.asarray((level.gradients[cell] * off[..., None, :]).sum(axis=-1) + 1 / corners.shape[-2])


def _coarse_cells(x: Floats, points: Floats, level: Any, tolerance: float) -> tuple[Ints, Floats]:
    """(n,) the cell that contains each point, or the nearest candidate, and (n,) the distance to this cell.

    Candidates are the cells whose bounding boxes meet the point's box of a grid; without any the distance is infinite.
    """
    d, K = x.shape[1], len(level.cells)
    corners = points[level.cells]
    low, high = corners.min(axis=1) - tolerance, corners.max(axis=1) + tolerance  # (K, d)
    origin, side = low.min(axis=0), np.ptp(points, axis=0) + 2 * tolerance
    # The grid has about one box per cell.
    count = np.clip(np.floor(side * (K / np.prod(side)) ** (1 / d)), 1, K).astype(np.int64)
    width = side / count
    first, last = (
        np.clip(np.floor((corner - origin) / width).astype(np.int64), 0, count - 1) for corner in (low, high)
    )
    box, member = _boxes(first, last, count)
    order = np.argsort(box, kind="stable")
    member, starts = member[order], np.searchsorted(box[order], np.arange(int(np.prod(count)) + 1))
    place = np.floor((x - origin) / width)
    inside = ((place >= 0) & (place <= count)).all(axis=1)  # points on the upper boundary belong to the last box
    mine = np.ravel_multi_index(tuple(np.clip(place, 0, count - 1).astype(np.int64).T), tuple(count))
    tried = np.where(inside, starts[mine + 1] - starts[mine], 0)  # (n,) number of candidates
    found, gap = np.zeros(len(x), np.int64), np.full(len(x), np.inf)
    for k in range(int(tried.max(initial=0))):
        some = np.flatnonzero((tried > k) & (gap > 0))
        cell = member[starts[mine[some]] + k]
        lengths = np.linalg.norm(level.gradients[cell], axis=2)  # of gradients: inverse heights over the facets
        away = np.maximum(-_barycentric(x[some], points, level, cell) / lengths, 0).max(axis=1)
        better = away < gap[some]
        found[some[better]], gap[some[better]] = cell[better], away[better]
    return found, gap


def _boxes(first: Ints, last: Ints, count: Ints) -> tuple[Ints, Ints]:
    """Pairs (box, cell) for all boxes of a grid between the corners `first` and `last` (K, d) of each cell."""
    extent = last - first + 1  # (K, d)
    each = extent.prod(axis=1)
    cell = np.repeat(np.arange(len(first)), each)
    rest = np.arange(len(cell)) - np.repeat(np.cumsum(each) - each, each)  # number within the cell's boxes
    place = np.empty((len(cell), first.shape[1]), np.int64)
    for axis in range(first.shape[1] - 1, -1, -1):
        rest, place[:, axis] = np.divmod(rest, extent[cell, axis])
    return np.ravel_multi_index(tuple((first[cell] + place).T), tuple(count)), cell
