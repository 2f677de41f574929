"""Coarse meshes of simplices: DOLFINx's grids by description, arrays, gmsh files. No DOLFINx here.

K cells, N points, F facets, d dimension.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_CELL_NAMES = {1: "intervals", 2: "triangles", 3: "tetrahedra"}


@dataclass(frozen=True)
class Grid:
    """Interval, rectangle or box, cut into simplices by DOLFINx's own generator."""

    shape: tuple[int, ...]
    """Number of intervals, squares or cubes in each direction."""
    lower: tuple[float, ...] = ()
    """Corner with the smallest coordinates; the origin when empty."""
    upper: tuple[float, ...] = ()
    """Corner with the largest coordinates; (1, …, 1) when empty."""

    def __post_init__(self) -> None:
        shape = np.atleast_1d(np.asarray(self.shape))
        whole = shape.ndim == 1 and np.issubdtype(shape.dtype, np.integer)
        if not whole or len(shape) not in _CELL_NAMES or (shape < 1).any():
            raise ValueError(f"Grid shape {self.shape}: one to three positive whole numbers of cells are expected")
        d = len(shape)
        object.__setattr__(self, "shape", tuple(int(n) for n in shape))
        object.__setattr__(self, "lower", as_tuple(self.lower) or (0.0,) * d)
        object.__setattr__(self, "upper", as_tuple(self.upper) or (1.0,) * d)
        if len(self.lower) != d or len(self.upper) != d:
            raise ValueError(f"Grid corners {self.lower} and {self.upper} do not have {d} coordinates each")
        if not all(-np.inf < low < high < np.inf for low, high in zip(self.lower, self.upper, strict=True)):
            raise ValueError(f"Grid from {self.lower} to {self.upper} is empty or not bounded: give lower < upper")

    @property
    def box(self) -> Floats:
        """(2, d) the smallest and largest coordinates."""
        return np.array([self.lower, self.upper])


@dataclass(frozen=True, eq=False)
class MeshArrays:
    """Points and simplices as arrays, checked: what a hierarchy starts from.

    Cells list their vertices in positive orientation (counter-clockwise in 2D); `orient` sees to it.
    """

    points: Floats  # (N, d)
    cells: Ints  # (K, d+1) rows of points
    regions: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # (K,) tags, empty: all 0
    facets: Ints = field(default_factory=lambda: np.zeros((0, 1), np.int64))  # (F, d) tagged boundary facets
    facet_tags: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # (F,)

    def __post_init__(self) -> None:
        points = _array(self.points, np.float64, "points", 2)
        cells = _array(self.cells, np.int64, "cells", 2)
        d = points.shape[1]
        if d not in _CELL_NAMES:
            raise ValueError(f"points have {d} coordinates; meshes are of dimension 1, 2 or 3")
        if cells.shape[1] != d + 1 or len(cells) == 0:
            raise ValueError(
                f"cells have shape {cells.shape}, but points of dimension {d} need at least one cell of {d + 1} "
                f"vertices: only {_CELL_NAMES[d]} are supported (for a flat mesh pass points[:, :2])"
            )
        if not np.isfinite(points).all():
            raise ValueError(f"point {int(np.argwhere(~np.isfinite(points))[0, 0])} has a NaN or infinite coordinate")
        _check_references(cells, len(points), "cell")
        regions = _array(self.regions, np.int64, "regions", 1)
        if len(regions) == 0:
            regions = np.zeros(len(cells), np.int64)
        if len(regions) != len(cells):
            raise ValueError(f"{len(regions)} region tags were given for {len(cells)} cells; give one a cell")
        facets = _array(self.facets, np.int64, "facets", 2)
        if len(facets) and facets.shape[1] != d:
            raise ValueError(f"facets have {facets.shape[1]} points each; in dimension {d} they have {d}")
        facets = facets.reshape(-1, d)
        tags = _array(self.facet_tags, np.int64, "facet_tags", 1)
        if len(tags) != len(facets):
            raise ValueError(f"{len(tags)} facet tags were given for {len(facets)} facets; give one a facet")
        _check_references(facets, len(points), "facet")
        unused = np.setdiff1d(np.arange(len(points)), cells)
        if len(unused):
            raise ValueError(f"point {unused[0]} belongs to no cell ({len(unused)} such points): remove it")
        _check_geometry(points, cells)
        for name, value in zip(
            ("points", "cells", "regions", "facets", "facet_tags"), (points, cells, regions, facets, tags), strict=True
        ):
            value = value.copy()
            value.flags.writeable = False
            object.__setattr__(self, name, value)

    @property
    def box(self) -> Floats:
        """(2, d) the smallest and largest coordinates."""
        return np.array([self.points.min(axis=0), self.points.max(axis=0)])

    @property
    def dimension(self) -> int:
        return int(self.points.shape[1])


def signed_volumes(points: Floats, cells: Ints) -> Floats:
    """(K,) volumes of simplices, negative where the vertices are in negative orientation."""
    d = points.shape[1]
    corners = points[cells]  # (K, d+1, d)
    return np.asarray(np.linalg.det(corners[:, 1:] - corners[:, :1]) / (1, 1, 2, 6)[d])


def orient(points: npt.ArrayLike, cells: npt.ArrayLike) -> Ints:
    """The same cells, all in positive orientation: two vertices change places where they are not."""
    x, oriented = np.asarray(points, np.float64), np.array(cells, np.int64)
    inverted = signed_volumes(x, oriented) < 0
    oriented[inverted, -2:] = oriented[inverted, -2:][:, ::-1]
    return oriented


def facets_of(cells: Ints) -> Ints:
    """(K, d+1, d) vertices of the facets of each cell; facet i lies opposite vertex i."""
    width = cells.shape[1]
    return np.stack([np.delete(cells, i, axis=1) for i in range(width)], axis=1)


def row_keys(rows: Ints, bound: int) -> Ints:
    """(n,) one number for each row of non-negative numbers below `bound`, whatever their order in the row."""
    if bound ** rows.shape[-1] >= 2**63:
        raise ValueError(f"{bound} points are too many to tell rows of {rows.shape[-1]} apart by one number")
    rows = np.sort(rows, axis=-1)
    key = rows[..., 0].copy()
    for i in range(1, rows.shape[-1]):
        key = key * bound + rows[..., i]
    return key


def boundary_facets(cells: Ints) -> Ints:
    """(F, d) facets that belong to one cell only, vertices ascending, in the order of their cells."""
    facets = np.sort(facets_of(cells), axis=-1).reshape(-1, cells.shape[1] - 1)
    order = np.lexsort(facets.T[::-1])
    change = (facets[order[1:]] != facets[order[:-1]]).any(axis=1)
    alone = np.concatenate([[True], change]) & np.concatenate([change, [True]])
    return facets[np.sort(order[alone])]


def read_gmsh(path: str | Path) -> MeshArrays:
    """Simplices of the highest dimension in a gmsh .msh file; physical groups give region and facet tags."""
    try:
        import meshio
    except ImportError as error:
        raise ValueError("reading gmsh files needs meshio: pip install meshio") from error

    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no mesh file {path}")
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stdout(complaint), contextlib.redirect_stderr(complaint):
            content = meshio.read(path, file_format="gmsh")
    # meshio ends some malformed files by sys.exit, and raises its own and many other errors for the rest.
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"{path} cannot be read as a gmsh mesh; save it by gmsh as .msh 2.2 or 4.1, everything in physical groups"
        ) from error
    kinds = ("line", "triangle", "tetra")
    present = [d for d, kind in enumerate(kinds, start=1) if kind in content.cells_dict]
    foreign = set(content.cells_dict) - {*kinds, "vertex"}
    if foreign or not present:
        raise ValueError(
            f"{path} holds cells of kind {sorted(foreign) or 'none'}; only first-order simplices are supported"
        )
    d = present[-1]
    tags = content.cell_data_dict.get("gmsh:physical", {})
    cells = content.cells_dict[kinds[d - 1]].astype(np.int64)
    facet_kind = ("vertex", *kinds)[d - 1]
    tagged = facet_kind in tags and facet_kind in content.cells_dict
    used, cells = np.unique(cells, return_inverse=True)  # gmsh keeps points that no cell uses
    place = np.full(len(content.points), -1, np.int64)
    place[used] = np.arange(len(used))
    points = np.ascontiguousarray(content.points[used, :d], np.float64)
    if content.points.shape[1] > d and np.ptp(content.points[used, d:], axis=0).max(initial=0) > 0:
        raise ValueError(f"{path} is a surface or curve in space; a flat mesh of dimension {d} in R^{d} is expected")
    return MeshArrays(
        points=points,
        cells=orient(points, cells.reshape(-1, d + 1)),
        regions=np.asarray(tags.get(kinds[d - 1], np.zeros(len(cells) // (d + 1))), np.int64).reshape(-1),
        facets=place[content.cells_dict[facet_kind]] if tagged else np.zeros((0, d), np.int64),
        facet_tags=np.asarray(tags[facet_kind], np.int64) if tagged else np.zeros(0, np.int64),
    )


def _array(value: npt.ArrayLike, dtype: type, name: str, ndim: int) -> npt.NDArray:
    raw = np.asarray(value)
    if raw.ndim != ndim:
        raise ValueError(f"{name} must be an array with {ndim} axes, not of shape {raw.shape}")
    if dtype is np.int64 and raw.size and not np.issubdtype(raw.dtype, np.integer):
        raise ValueError(f"{name} must be whole numbers, not {raw.dtype}: use .astype(int)")
    try:
        return raw.astype(dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be numbers, not {raw.dtype}") from error


def _check_references(rows: Ints, count: int, what: str) -> None:
    wrong = np.flatnonzero(((rows < 0) | (rows >= count)).any(axis=1))
    if len(wrong):
        raise ValueError(
            f"{what} {wrong[0]} refers to the points {rows[wrong[0]].tolist()}, "
            f"but the points are numbered 0 to {count - 1}"
        )


def _check_geometry(points: Floats, cells: Ints) -> None:
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
            "or pass fem_frames.mesh.orient(points, cells)"
        )
    _check_facets(points, cells)
    _check_hanging(points, cells)


def _check_facets(points: Floats, cells: Ints) -> None:
    """Every facet has at most two cells, on opposite sides of it: nothing overlaps there."""
    d = points.shape[1]
    facets = facets_of(cells).reshape(-1, d)
    _, position, count = np.unique(row_keys(facets, len(points)), return_inverse=True, return_counts=True)
    if count.max() > 2:
        cell = int(np.flatnonzero(count[position] > 2)[0]) // (d + 1)
        raise ValueError(f"a facet of cell {cell} belongs to more than two cells; remove the cells that stand twice")
    # Both cells of an inner facet see it in opposite orientation, up to the place of the opposite vertex.
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
    """No vertex lies on a boundary facet of a cell that does not have it."""
    if points.shape[1] == 1:
        return
    facets = boundary_facets(cells)
    corners, vertices = points[facets], np.unique(facets)  # (F, d, d)
    centre = corners.mean(axis=1)
    radius = np.linalg.norm(corners - centre[:, None], axis=-1).max(axis=1)
    near = _points_near(points[vertices], centre, radius)
    facet = np.repeat(np.arange(len(facets)), [len(found) for found in near])
    vertex = vertices[np.concatenate(near)]
    # Barycentric coordinates of the nearest point in the facet's plane, and the distance from it.
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
    """For every ball the numbers of the points in it."""
    try:
        from scipy.spatial import cKDTree
    except ImportError:  # where there is no DOLFINx, meshes are small
        return [np.flatnonzero(np.linalg.norm(points - c, axis=1) <= r) for c, r in zip(centres, radii, strict=True)]
    return [np.asarray(found, np.int64) for found in cKDTree(points).query_ball_point(centres, radii)]


def as_tuple(values: Sequence[float] | npt.ArrayLike) -> tuple[float, ...]:
    """A tuple of Python floats: hashable, and printed as numbers."""
    return tuple(float(v) for v in np.asarray(values, np.float64).reshape(-1))
