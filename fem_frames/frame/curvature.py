"""Frames on curved boundaries, where new points are moved: what the functions of coarser levels are on moved cells.

P_j does not change if points move: a new point has the mean of the values at its two ends, and fluxes through facets
are prolonged alike. So a coarse function on a moved child is the image of its parent's function on the unmoved child,
whose corners are midpoints of the parent's edges, under the affine map from the unmoved to the moved child. Elements
map states accordingly (`Element.transport`), and D remains a recursion.

All of it follows from the points of the frame: a point is moved if it is not the mean of its two ends.

K_j cells on level j, K finest cells, n moved cells, N_j points on level j, d dimension.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fem_frames.mesh.geometry import Floats, Ints, signed_volumes

if TYPE_CHECKING:
    from fem_frames.frame.arrays import FrameArrays
    from fem_frames.frame.elements import Element


def moved_points(arrays: FrameArrays) -> npt.NDArray[np.bool_]:
    """(N,) whether each point is not the mean of its two ends; points of the first level are not."""
    return np.concatenate(
        [np.zeros(arrays.point_count(0), bool)]
        + [
            (arrays.points[arrays.point_count(j - 1) : arrays.point_count(j)] != _middles(arrays, j)).any(axis=1)
            for j in range(1, len(arrays.levels))
        ]
    )


def unmoved_points(arrays: FrameArrays, index: int) -> Floats:
    """(N_j, d) the points of levels[index], new ones at the midpoints of their edges."""
    if not arrays.curved or not index:
        return arrays.points[: arrays.point_count(index)]
    return np.concatenate([arrays.points[: arrays.point_count(index - 1)], _middles(arrays, index)])


def _middles(arrays: FrameArrays, index: int) -> Floats:
    return np.asarray(arrays.points[arrays.levels[index].ends].mean(axis=1))


def moved_cells(arrays: FrameArrays, index: int) -> tuple[Ints, Floats]:
    """(n,) the moved cells of levels[index], and (n, d, d) Jacobians of the maps from the unmoved cells to them."""
    cells, before = arrays.levels[index].cells, unmoved_points(arrays, index)
    moved = (arrays.points[: len(before)] != before).any(axis=1)
    found = np.flatnonzero(moved[cells].any(axis=1))
    return found, _jacobians(before[cells[found]], arrays.points[cells[found]])


def _jacobians(before: Floats, after: Floats) -> Floats:
    """(n, d, d) of the affine maps between simplices with corners (n, d+1, d)."""
    edges = (np.swapaxes(corners[:, 1:] - corners[:, :1], 1, 2) for corners in (before, after))
    old, new = edges
    return np.asarray(new @ np.linalg.inv(old))


def handed_down(arrays: FrameArrays, element: Element, index: int, states: Floats) -> Floats:
    """(K, n, c) states on the finest cells of functions with the states (K_j, n, c) on the cells of levels[index]."""
    if not arrays.curved:
        cell = arrays.ancestors(index)
        offset = arrays.centres - arrays.points[arrays.levels[index].cells].mean(axis=1)[cell]
        return element.shift(states[cell], offset[:, None])
    for fine in range(index + 1, len(arrays.levels)):
        states = states.repeat(2**arrays.dimension, axis=0)
        states = transported(arrays, element, fine, element.shift(states, child_offsets(arrays, fine)[:, None]))
    return states


def child_offsets(arrays: FrameArrays, index: int) -> Floats:
    """(K_j, d) from the centres of the parents of the cells of levels[index] to the centres of the unmoved cells."""
    cells, coarse = arrays.levels[index].cells, arrays.levels[index - 1].cells
    parents = arrays.points[coarse].mean(axis=1)[np.arange(len(cells)) >> arrays.dimension]
    return np.asarray(unmoved_points(arrays, index)[cells].mean(axis=1) - parents)


def transported(arrays: FrameArrays, element: Element, index: int, states: Floats) -> Floats:
    """(K_j, n, c) states on the cells of levels[index] from states on the unmoved cells."""
    if not arrays.curved:
        return states
    cells, jacobians = moved_cells(arrays, index)
    found = states.copy()
    found[cells] = element.transport(states[cells], jacobians[:, None])
    return found


def extended_corners(arrays: FrameArrays, index: int) -> Floats:
    """(K, d+1, d) corners of the ancestor on levels[index] of each finest cell, as this cell sees it.

    On a finest cell T a function of levels[index] is the one on the simplex that has T, in its moved place, for its
    descendant: T's ancestor itself if neither T nor a cell between them is moved.
    """
    ancestors = arrays.ancestors(index)
    plain = arrays.points[arrays.levels[index].cells[ancestors]]
    if not arrays.curved:
        return plain
    corners, moved = arrays.points[arrays.levels[-1].cells], np.zeros(len(ancestors), bool)
    for fine in range(len(arrays.levels) - 1, index, -1):
        cell = arrays.ancestors(fine)
        weights = np.linalg.inv(_weights(arrays, fine))  # (K_fine, d+1, d+1)
        corners = np.einsum("kpc,kcd->kpd", weights[cell], corners)
        moved |= np.isin(cell, moved_cells(arrays, fine)[0])
    return np.where(moved[:, None, None], corners, plain)


def _weights(arrays: FrameArrays, index: int) -> Floats:
    """(K_j, d+1, d+1) barycentric coordinates of the unmoved corners of each cell in its parent."""
    before, cells = arrays.point_count(index - 1), arrays.levels[index].cells
    both = np.concatenate([np.arange(before)[:, None].repeat(2, axis=1), arrays.levels[index].ends])[cells]
    parents = arrays.levels[index - 1].cells[np.arange(len(cells)) >> arrays.dimension]
    return np.asarray((both[..., None] == parents[:, None, None]).mean(axis=2))


def distortion(arrays: FrameArrays, index: int) -> float:
    """√(max det J · max ‖J‖²/det J) for the map from the mesh of levels[index] to the finest mesh with Jacobians J.

    The map is affine on every descendant. Friedrichs' constant of the finest mesh is at most that of the mesh of
    levels[index] times this factor: transform ∫ v² and ∫ |∇v|². It is 1 if no point is moved.
    """
    if not arrays.curved or index == len(arrays.levels) - 1:
        return 1.0
    plain = arrays.points[arrays.levels[index].cells[arrays.ancestors(index)]]
    jacobians = _jacobians(plain, extended_corners(arrays, index))
    determinants = np.linalg.det(jacobians)
    stretch = np.linalg.norm(jacobians, ord=2, axis=(1, 2)) ** 2 / determinants
    return float(np.sqrt(determinants.max() * stretch.max()))


def check_children(arrays: FrameArrays) -> None:
    """Raises a ValueError if a moved cell is inverted, for frames from files."""
    for index in range(1, len(arrays.levels) if arrays.curved else 1):
        cells = arrays.levels[index].cells
        before, after = (signed_volumes(x, cells) for x in (unmoved_points(arrays, index), arrays.points))
        if not (before * after > 0).all():
            raise ValueError(f"a cell of level {arrays.first_level + index} is inverted: the file is damaged")


def check_elements(elements: list[Element]) -> None:
    """Raises a ValueError unless elements transport their states; a subclass with other states needs its own way."""
    for element in elements:
        order = type(element).__mro__
        defined = {
            name: next(k for k, kind in enumerate(order) if name in vars(kind))
            for name in ("transport", "states", "shift", "state_size")
        }
        if order[defined["transport"]].__name__ == "Element" or defined["transport"] > min(defined.values()):
            raise ValueError(
                f"the element {element.name!r} does not say how its states change on moved cells, which frames on "
                "curved boundaries need: define transport(states, jacobian), or leave `curved` out of the problem"
            )
