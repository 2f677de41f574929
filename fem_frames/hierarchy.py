"""Nested meshes: a coarse mesh and its uniform refinements by DOLFINx, in a numbering of our own.

The numbering depends neither on the DOLFINx release nor on MPI: points of a level come first on the next, new
ones follow in the order of the cells they lie in; the children of cell c are the cells 2^d c, …, 2^d c + 2^d - 1;
vertices ascend within a cell. So the ancestor of fine cell c, j levels up, is c >> (d j).

N points, K cells, F boundary facets, d dimension, J the finest level.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fem_frames import dolfinx_door as door
from fem_frames.callbacks import calling
from fem_frames.dolfinx_door import MPI
from fem_frames.mesh import Floats, Grid, Ints, MeshArrays, boundary_facets, read_gmsh, row_keys
from fem_frames.problem import REFINEMENTS, Problem, whole_number

CELL_LIMIT = 2**28  # of the finest mesh, which has to fit into memory


@dataclass(frozen=True, eq=False)
class Level:
    """One mesh of a hierarchy; its points are the first rows of the hierarchy's points."""

    cells: Ints  # (K, d+1) points of each cell, ascending
    ends: Ints  # (N - N of the level before, 2) ends of the edge that each new point halves; (0, 2) on level 0
    facets: Ints  # (F, d) points of each boundary facet, ascending
    facet_origin: Ints  # (F,) boundary facet of level 0 that it lies in

    @property
    def point_count(self) -> int:
        return int(self.cells.max()) + 1


@dataclass(frozen=True, eq=False)
class MeshHierarchy:
    """Meshes of levels 0, …, J, each the uniform refinement of the one before."""

    points: Floats  # (N, d) of the finest level
    levels: tuple[Level, ...]
    coarse_regions: Ints  # (K of level 0,)
    coarse_facet_tags: Ints  # (F of level 0,), -1 where the mesh gave none
    refinement: str = "red"
    source: Any = None
    """`Problem.mesh` that it comes from."""

    @classmethod
    def from_problem(cls, problem: Problem, levels: int) -> MeshHierarchy:
        """The hierarchy of a problem's mesh; on every rank the same."""
        levels = problem.check_levels(levels)
        return replace(cls.refine(coarse_mesh(problem.mesh), levels, problem.refinement), source=problem.mesh)

    @classmethod
    def refine(cls, coarse: MeshArrays, levels: int, refinement: str = "red") -> MeshHierarchy:
        """The hierarchy of `levels` uniform refinements of a coarse mesh, on this rank alone."""
        levels = whole_number(levels, "levels", least=0)
        if refinement not in REFINEMENTS:
            raise ValueError(f"refinement is {refinement!r}; choose from {', '.join(REFINEMENTS)}")
        if len(coarse.cells) * 2 ** (coarse.dimension * levels) > CELL_LIMIT:
            raise ValueError(f"levels = {levels} would make more than {CELL_LIMIT:.1e} cells; use fewer levels")
        halve = door.refine_red if refinement == "red" else door.refine
        # Ascending vertices: those of a grid's tetrahedra are then in the order that keeps them alike when refined.
        mesh = door.create(coarse.points, np.sort(coarse.cells, axis=1), MPI.COMM_SELF)
        cell_number = door.input_cells(mesh)
        facets = boundary_facets(coarse.cells)
        meshes = [Level(np.sort(coarse.cells, axis=1), np.zeros((0, 2), np.int64), facets, np.arange(len(facets)))]
        points = np.array(coarse.points)
        for _ in range(levels):
            fine, parent = halve(mesh)
            level, points, cell_number = _renumber(meshes[-1], points, fine, cell_number[parent])
            meshes.append(level)
            mesh = fine
        return cls(points, tuple(meshes), coarse.regions, _facet_tags(coarse, facets), refinement)

    @property
    def dimension(self) -> int:
        return int(self.points.shape[1])

    @property
    def finest(self) -> Level:
        return self.levels[-1]

    def level_points(self, level: int) -> Floats:
        """(N, d) points of a level."""
        return self.points[: self.levels[level].point_count]

    def centres(self, level: int = -1) -> Floats:
        """(K, d) midpoints of the cells of a level."""
        return np.asarray(self.points[self.levels[level].cells].mean(axis=1))

    def regions(self, problem: Problem) -> Ints:
        """(K,) region tag of every finest cell."""
        if problem.regions is None:
            return np.repeat(self.coarse_regions, len(self.finest.cells) // len(self.coarse_regions))
        with calling("regions", problem.regions, "it is a function of x (n, d), x[:, i], with n whole numbers"):
            tags = np.asarray(problem.regions(self.centres()))
        if tags.shape != (len(self.finest.cells),):
            raise ValueError(
                f"regions gave tags of shape {tags.shape} for {len(self.finest.cells)} cells; give one a cell"
            )
        if not np.array_equal(tags, tags.astype(np.int64)):
            raise ValueError("regions gave tags that are not whole numbers")
        return tags.astype(np.int64)

    def check_problem(self, problem: Problem) -> None:
        """A ValueError if this is the hierarchy of another problem's mesh."""
        mine, other = self.source, problem.mesh
        if mine is None:
            return
        if isinstance(mine, MeshArrays) and isinstance(other, MeshArrays):
            names = ("points", "cells", "regions", "facets", "facet_tags")
            same = all(np.array_equal(getattr(mine, name), getattr(other, name)) for name in names)
        elif isinstance(mine, str | Path) and isinstance(other, str | Path):
            same = Path(mine) == Path(other)
        else:
            same = mine is other or (isinstance(mine, Grid) and bool(mine == other))
        if not same or self.refinement != problem.refinement:
            raise ValueError(f"the hierarchy is not of the mesh of {problem.name}; use MeshHierarchy.from_problem")

    def dirichlet_facets(self, problem: Problem) -> np.ndarray:
        """(F of level 0,) whether u is given on a boundary facet of the coarse mesh."""
        facets = self.levels[0].facets
        if isinstance(problem.dirichlet, str):
            return np.ones(len(facets), bool)
        if callable(problem.dirichlet):
            return self._facets_where(problem.dirichlet)
        known = sorted(set(self.coarse_facet_tags.tolist()) - {-1})
        unknown = sorted(set(problem.dirichlet) - set(known))
        if unknown:
            raise ValueError(f"no boundary facet carries the tag {unknown[0]}; the mesh has {known or 'no facet tags'}")
        return np.isin(self.coarse_facet_tags, problem.dirichlet)

    def _facets_where(self, indicator: Any) -> np.ndarray:
        """(F of level 0,) where the function holds in the middle of all finest facets that lie in a coarse one."""
        middles = self.points[self.finest.facets].mean(axis=1)  # (F, d)
        with calling("dirichlet", indicator, "it is a function of x (n, d), x[:, i], that is true where u is given"):
            told = np.asarray(indicator(middles))
        if told.shape != (len(middles),):
            raise ValueError(f"dirichlet gave values of shape {told.shape} for x (n, d); give one per point (n,)")
        if told.dtype.kind not in "bui":
            raise ValueError(f"dirichlet gave {told.dtype} values; give True where u is given, False elsewhere")
        origin, count = self.finest.facet_origin, len(self.levels[0].facets)
        inside, whole = (
            np.bincount(origin, weights=told.astype(bool), minlength=count),
            np.bincount(origin, minlength=count),
        )
        cut = np.flatnonzero((inside > 0) & (inside < whole))
        if len(cut):
            where = self.points[self.levels[0].facets[cut[0]]].tolist()
            raise ValueError(
                f"the Dirichlet part ends inside the boundary facet {where} of the coarse mesh; it must be a union of "
                "such facets: use a finer coarse mesh, or fix the function"
            )
        return inside > 0

    def _check_components(self, facets: Ints) -> None:
        """Every connected part of the domain has one of these facets."""
        from scipy import sparse

        cells, count = self.levels[0].cells, self.levels[0].point_count
        ends = (np.repeat(cells[:, 0], cells.shape[1]), cells.ravel())
        graph = sparse.coo_matrix((np.ones(cells.size), ends), shape=(count, count))
        parts, part = sparse.csgraph.connected_components(graph, directed=False)
        missed = np.setdiff1d(np.arange(parts), part[facets])
        if len(missed):
            where = self.points[np.flatnonzero(part == missed[0])[0]].tolist()
            raise ValueError(
                f"u is given nowhere on the part of the domain at {where}: make some of its boundary Dirichlet"
            )

    def fixed_points(self, problem: Problem) -> tuple[np.ndarray, ...]:
        """For every level (N,) whether u is given at a point."""
        on_part = self.dirichlet_facets(problem)
        if not on_part.any():
            raise ValueError("u is given on no facet of the boundary, so it is not unique: make a part of it Dirichlet")
        self._check_components(self.levels[0].facets[on_part])
        fixed = []
        for level in self.levels:
            mask = np.zeros(level.point_count, bool)
            mask[level.facets[on_part[level.facet_origin]]] = True
            fixed.append(mask)
        return tuple(fixed)


def coarse_mesh(source: Any) -> MeshArrays:
    """The coarse mesh of whatever `Problem.mesh` may be. Collective if that is a distributed DOLFINx mesh."""
    if isinstance(source, MeshArrays):
        return source
    if isinstance(source, Grid):
        return door.generate(source)
    if isinstance(source, str | Path):
        return read_gmsh(source)
    parts = source if isinstance(source, tuple | list) else (source,)
    if parts and door.is_mesh(parts[0]):
        return door.arrays_of(*parts[:3])  # newer readers of gmsh files give more than mesh and tags
    raise ValueError(
        f"a mesh cannot be made from {type(source).__name__}: give a Grid, MeshArrays, the path of a gmsh file, "
        "a DOLFINx mesh, or DOLFINx's (mesh, cell tags, facet tags)"
    )


def _renumber(coarse: Level, points: Floats, fine: Any, parent: Ints) -> tuple[Level, Floats, Ints]:
    """The level of DOLFINx's fine mesh in our numbering, all its points, and our numbers of its cells.

    `parent` (K,) is our number of the coarse cell that each fine cell lies in.
    """
    table, x = door.nodes(fine), door.coordinates(fine)
    d, count = x.shape[1], len(points)
    corners = coarse.cells[parent]  # (K, d+1) of the parent, ascending
    origin = points[corners[:, 0]]
    jacobian = np.swapaxes(points[corners[:, 1:]] - origin[:, None], 1, 2)  # (K, d, d)
    local = np.einsum("kij,knj->kni", np.linalg.inv(jacobian), x[table] - origin[:, None])
    barycentric = np.concatenate([1 - local.sum(axis=-1, keepdims=True), local], axis=-1)  # (K, d+1, d+1)
    halves = np.rint(2 * barycentric)
    assert np.abs(halves / 2 - barycentric).max() < 1e-6, "DOLFINx's refinement is not nested"
    # A vertex is a corner of the parent (one weight 1) or halves an edge of it (two weights 1/2).
    low = np.take_along_axis(corners, (halves > 0).argmax(axis=-1), axis=1)
    high = np.take_along_axis(corners, d - (halves[..., ::-1] > 0).argmax(axis=-1), axis=1)
    ends_of_node = np.zeros((len(x), 2), np.int64)
    ends_of_node[table] = np.stack([low, high], axis=-1)
    new = ends_of_node[:, 0] != ends_of_node[:, 1]
    # In the order of the cells they lie in: what is gathered from cells to points then comes from the cache.
    first_parent = np.full(len(x), len(coarse.cells))
    np.minimum.at(first_parent, table, parent[:, None])
    key = row_keys(ends_of_node[new], count)
    order = np.lexsort((key, first_parent[new]))
    number = ends_of_node[:, 0].copy()
    number[np.flatnonzero(new)[order]] = count + np.arange(len(order))
    ends = np.stack(np.divmod(key[order], count), axis=1)
    cells = np.sort(number[table], axis=1)
    position = np.lexsort((*cells.T[::-1], parent))
    assert (parent[position] == np.repeat(np.arange(len(coarse.cells)), 2**d)).all(), "a cell has not 2^d children"
    cell_number = np.empty(len(cells), np.int64)
    cell_number[position] = np.arange(len(cells))
    all_points = np.concatenate([points, points[ends].mean(axis=1)])
    cells = cells[position]
    facets = boundary_facets(cells)
    level = Level(cells, ends, facets, _facet_origin(coarse, facets, ends, count))
    return level, all_points, cell_number


def _facet_origin(coarse: Level, facets: Ints, ends: Ints, count: int) -> Ints:
    """(F,) boundary facet of level 0 that each boundary facet of the refinement of `coarse` lies in."""
    both = np.concatenate([np.repeat(np.arange(count)[:, None], 2, axis=1), ends])[facets]  # (F, d, 2)
    both = np.sort(both.reshape(len(facets), -1), axis=1)
    first = np.concatenate([np.ones((len(both), 1), bool), both[:, 1:] != both[:, :-1]], axis=1)
    parent_facet = both[first].reshape(len(facets), -1)  # its corners: d of them
    # Boundary points are numbered among themselves: a number for each facet then fits into 64 bits.
    outer = np.unique(coarse.facets)
    keys = row_keys(np.searchsorted(outer, coarse.facets), len(outer))
    wanted = row_keys(np.searchsorted(outer, parent_facet), len(outer))
    order = np.argsort(keys)
    found = order[np.searchsorted(keys, wanted, sorter=order)]
    assert (keys[found] == wanted).all(), "a boundary facet lies in no boundary facet of its parent"
    return coarse.facet_origin[found]


def _facet_tags(coarse: MeshArrays, facets: Ints) -> Ints:
    tags = np.full(len(facets), -1, np.int64)
    given = {
        int(k): int(t) for k, t in zip(row_keys(coarse.facets, len(coarse.points)), coarse.facet_tags, strict=True)
    }
    for i, key in enumerate(row_keys(facets, len(coarse.points))):
        tags[i] = given.get(int(key), -1)
    return tags
