"""Checks of user meshes: point numbers, orientation, overlaps, hanging nodes, groups and their names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fem_frames.mesh.geometry import Floats, Ints, boundary_facets, facets_of, row_keys, signed_volumes


def checked_array(value: npt.ArrayLike, dtype: type, name: str, ndim: int) -> npt.NDArray:
    raw = np.asarray(value)
    if raw.ndim != ndim:
        raise ValueError(f"{name} must be an array with {ndim} axes, not of shape {raw.shape}")
    if dtype is np.int64 and raw.size and not np.issubdtype(raw.dtype, np.integer):
        raise ValueError(f"{name} must be whole numbers, not {raw.dtype}: use .astype(int)")
    try:
        return raw.astype(dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be numbers, not {raw.dtype}") from error


RESERVED = ("all", "rest")
"""Names that boundary conditions use for all of the boundary, and for what no other condition names."""


def checked_names(names: Any, what: str) -> Mapping[str, int]:
    """A copy of the names of tags; raises a ValueError unless they are texts with whole numbers."""
    if not isinstance(names, Mapping):
        raise ValueError(f"{what} is a {type(names).__name__}; a dictionary is expected: {{'inflow': 7}}")
    for name, tag in names.items():
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"{what} has the name {name!r}; a text is expected: {{'inflow': 7}}")
        if isinstance(tag, bool) or not isinstance(tag, int | np.integer):
            raise ValueError(f"{what}[{name!r}] is {tag!r}; a tag is expected, which is a whole number")
        if what == "facet_names" and name in RESERVED:
            meaning = "all of the boundary" if name == "all" else "all that no other condition names"
            raise ValueError(f"a group of facets is called {name!r}, which stands for {meaning}: rename the group")
    return {str(name): int(tag) for name, tag in names.items()}


def check_groups(points: Floats, cells: Ints, facets: Ints, tags: Ints, names: Mapping[str, int]) -> None:
    """Raises a ValueError if a boundary facet is in two groups; facets between cells may be."""
    if len(facets) == 0:
        return
    keys = row_keys(facets, len(points))
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    twice = np.flatnonzero(tags[first][place.reshape(-1)] != tags)
    if len(twice) == 0:
        return
    outer = twice[np.isin(keys[twice], row_keys(boundary_facets(cells), len(points)))]
    if len(outer):
        name_of = {tag: repr(name) for name, tag in names.items()}
        pair = [int(tags[first][place.reshape(-1)[outer[0]]]), int(tags[outer[0]])]
        shown = " and ".join(name_of.get(tag, str(tag)) for tag in pair)
        where = points[facets[outer[0]]].tolist()
        raise ValueError(
            f"the boundary facet {where} is in the groups {shown}; a facet belongs to one group: take it out of one, "
            "or make a group of what they share"
        )


def known_names(wanted: str, names: Iterable[str], tags: Iterable[int] = ()) -> str:
    """For messages about an unknown name: what there is, and which of it was probably meant."""
    names = list(names)
    close = difflib.get_close_matches(wanted.lower(), [name.lower() for name in names], 1, 0.6)
    meant = [name for name in names if close and name.lower() == close[0]]
    there = ", ".join([*map(repr, names), *map(str, tags)])
    return there + (f"; did you mean {meant[0]!r}?" if meant else "")


def group_tags(groups: Iterable[str | int], names: Mapping[str, int], known: Ints, what: str) -> list[int]:
    """The tags of the groups that an equation names; raises a ValueError for groups that the mesh does not have.

    `known` has the tags of all cells or facets, -1 where there is none.
    """
    found, there = [], sorted({int(tag) for tag in np.unique(known)} - {-1})
    for group in groups:
        tag = names.get(group) if isinstance(group, str) else group
        if tag is None or tag not in there:
            named = [name for name, number in names.items() if number in there]
            has = known_names(str(group), named, there) or f"no groups of {what}s"
            raise ValueError(f"the equation names the group {group!r}, but no {what} carries it; the mesh has {has}")
        found.append(int(tag))
    return found


def check_references(rows: Ints, count: int, what: str) -> None:
    wrong = np.flatnonzero(((rows < 0) | (rows >= count)).any(axis=1))
    if len(wrong):
        raise ValueError(
            f"{what} {wrong[0]} refers to the points {rows[wrong[0]].tolist()}, "
            f"but the points are numbered 0 to {count - 1}"
        )


def check_geometry(points: Floats, cells: Ints) -> None:
    volume = signed_volumes(points, cells)
    corners = points[cells]
    size = np.linalg.norm(corners[:, 1:] - corners[:, :1], axis=-1).max(axis=1)  # (K,)
    flat = np.flatnonzero(np.abs(volume) <= 1e-12 * size ** points.shape[1])
    if len(flat):
        raise ValueError(
            f"cell {flat[0]} with the points {cells[flat[0]].tolist()} is degenerate: "
            f"its volume is {volume[flat[0]]:.1e}; remove it or move its points"
        )
    inverted = np.flatnonzero(volume < 0)
    if len(inverted):
        raise ValueError(
            f"cell {inverted[0]} with the points {cells[inverted[0]].tolist()} is inverted: its volume is "
            f"{volume[inverted[0]]:.1e} ({len(inverted)} such cells); list its vertices in positive order, "
            "or pass fem_frames.mesh.geometry.orient(points, cells)"
        )
    _check_facets(points, cells)
    _check_hanging(points, cells)


def _check_facets(points: Floats, cells: Ints) -> None:
    """Every facet has at most two cells, on opposite sides of it, so that they do not overlap."""
    d = points.shape[1]
    facets = facets_of(cells).reshape(-1, d)
    _, position, count = np.unique(row_keys(facets, len(points)), return_inverse=True, return_counts=True)
    if count.max() > 2:
        cell = int(np.flatnonzero(count[position] > 2)[0]) // (d + 1)
        raise ValueError(f"a facet of cell {cell} belongs to more than two cells; remove duplicate cells")
    # Two cells see their common facet in opposite orientations, up to the position of the opposite vertex.
    order = np.argsort(facets, axis=1)
    parity = np.linalg.det(np.eye(d)[order]).round() if d > 1 else np.ones(len(facets))
    side = parity * np.tile((-1.0) ** np.arange(d + 1), len(cells))
    same = np.flatnonzero((count == 2) & (np.bincount(position, weights=side) != 0))
    if len(same):
        pair = np.flatnonzero(position == same[0]) // (d + 1)
        raise ValueError(
            f"cells {pair[0]} and {pair[1]} lie on the same side of their common facet and overlap: "
            "the mesh is folded there; move its points"
        )


def _check_hanging(points: Floats, cells: Ints) -> None:
    """No vertex lies on a boundary facet without being one of its corners."""
    if points.shape[1] == 1:
        return
    facets = boundary_facets(cells)
    corners, vertices = points[facets], np.unique(facets)  # (F, d, d)
    centre = corners.mean(axis=1)
    radius = np.linalg.norm(corners - centre[:, None], axis=-1).max(axis=1)
    near = _points_near(points[vertices], centre, radius)
    facet = np.repeat(np.arange(len(facets)), [len(found) for found in near])
    vertex = vertices[np.concatenate(near)]
    # Barycentric coordinates of the projection onto the facet's plane, and the distance to that plane.
    edges = np.swapaxes(corners[facet, 1:] - corners[facet, :1], 1, 2)  # (n, d, d-1)
    offset = points[vertex] - corners[facet, 0]
    local = np.einsum("nij,nj->ni", np.linalg.pinv(edges), offset)
    distance = np.linalg.norm(np.einsum("nij,nj->ni", edges, local) - offset, axis=-1)
    barycentric = np.concatenate([1 - local.sum(axis=1, keepdims=True), local], axis=1)
    on_facet = (distance < 1e-9 * radius[facet]) & (barycentric > -1e-9).all(axis=1)
    hanging = np.flatnonzero(on_facet & (barycentric.max(axis=1) < 1 - 1e-9))
    if len(hanging):
        raise ValueError(
            f"point {vertex[hanging[0]]} lies on the facet {facets[facet[hanging[0]]].tolist()} without being a vertex "
            "of it: a hanging node; split the cell that has the facet"
        )


def _points_near(points: Floats, centres: Floats, radii: Floats) -> list[Ints]:
    """The numbers of the points in each ball."""
    try:
        from scipy.spatial import cKDTree
    except ImportError:  # without DOLFINx meshes are small
        return [np.flatnonzero(np.linalg.norm(points - c, axis=1) <= r) for c, r in zip(centres, radii, strict=True)]
    return [np.asarray(found, np.int64) for found in cKDTree(points).query_ball_point(centres, radii)]
