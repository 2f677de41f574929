"""Coarse simplicial meshes: descriptions of DOLFINx grids, and arrays. Needs no DOLFINx.

K cells, N points, F facets, d dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fem_frames.mesh.checks import check_geometry, check_groups, check_references, checked_array, checked_names
from fem_frames.mesh.geometry import Floats, Ints, as_tuple

_CELL_NAMES = {1: "intervals", 2: "triangles", 3: "tetrahedra"}


@dataclass(frozen=True)
class Grid:
    """An interval, rectangle or box that DOLFINx divides into simplices. See docs/problems.md."""

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

    @property
    def point_count(self) -> int:
        return int(np.prod([n + 1 for n in self.shape]))


@dataclass(frozen=True, eq=False)
class MeshArrays:
    """Points and simplices as checked arrays, from which a hierarchy is refined.

    Cells list their vertices in positive orientation (counter-clockwise in 2D); `orient` arranges this.
    See docs/problems.md.
    """

    points: Floats  # (N, d)
    cells: Ints  # (K, d+1) rows of points
    regions: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # (K,) tags, empty: all 0
    facets: Ints = field(default_factory=lambda: np.zeros((0, 1), np.int64))  # (F, d) tagged boundary facets
    facet_tags: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # (F,)
    region_names: Mapping[str, int] = field(default_factory=dict)
    """Names of region tags: {"steel": 1}. Tags that no cell carries may have names too."""
    facet_names: Mapping[str, int] = field(default_factory=dict)
    """Names of facet tags: {"inflow": 7}; "all" and "rest" have a meaning of their own."""

    def __post_init__(self) -> None:
        points = checked_array(self.points, np.float64, "points", 2)
        cells = checked_array(self.cells, np.int64, "cells", 2)
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
        check_references(cells, len(points), "cell")
        regions = checked_array(self.regions, np.int64, "regions", 1)
        if len(regions) == 0:
            regions = np.zeros(len(cells), np.int64)
        if len(regions) != len(cells):
            raise ValueError(f"{len(regions)} region tags were given for {len(cells)} cells; give one per cell")
        facets = checked_array(self.facets, np.int64, "facets", 2)
        if len(facets) and facets.shape[1] != d:
            raise ValueError(f"facets have {facets.shape[1]} points each; in dimension {d} they have {d}")
        facets = facets.reshape(-1, d)
        tags = checked_array(self.facet_tags, np.int64, "facet_tags", 1)
        if len(tags) != len(facets):
            raise ValueError(f"{len(tags)} facet tags were given for {len(facets)} facets; give one per facet")
        check_references(facets, len(points), "facet")
        unused = np.setdiff1d(np.arange(len(points)), cells)
        if len(unused):
            raise ValueError(f"point {unused[0]} belongs to no cell ({len(unused)} such points): remove it")
        check_geometry(points, cells)
        names = {name: checked_names(getattr(self, name), name) for name in ("region_names", "facet_names")}
        check_groups(points, cells, facets, tags, names["facet_names"])
        for name, mapping in names.items():
            object.__setattr__(self, name, mapping)
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

    @property
    def point_count(self) -> int:
        return len(self.points)
