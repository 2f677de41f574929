"""Refines a coarse mesh into nested meshes with DOLFINx, in this package's own numbering.

N points, K cells, F boundary facets, d dimension.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fem_frames.fenicsx import door
from fem_frames.fenicsx.door import MPI
from fem_frames.mesh.coarse import Grid, MeshArrays
from fem_frames.mesh.geometry import Floats, Ints, boundary_facets, facets_of, row_keys
from fem_frames.mesh.gmsh import read_gmsh
from fem_frames.mesh.hierarchy import Level, MeshHierarchy
from fem_frames.problem.curved import CurvedBoundary
from fem_frames.problem.definition import REFINEMENTS, whole_number

CELL_LIMIT = 2**28  # of the finest mesh, which has to fit into memory


def refine(
    coarse: MeshArrays, levels: int, refinement: str = "red", curved: Mapping[Any, Any] | None = None
) -> MeshHierarchy:
    """Refines a coarse mesh `levels` times uniformly, on this rank alone; new points of curved groups are moved."""
    levels = whole_number(levels, "levels", least=0)
    if refinement not in REFINEMENTS:
        raise ValueError(f"refinement is {refinement!r}; choose from {', '.join(REFINEMENTS)}")
    if len(coarse.cells) * 2 ** (coarse.dimension * levels) > CELL_LIMIT:
        raise ValueError(f"levels = {levels} would make more than {CELL_LIMIT:.1e} cells; use fewer levels")
    by_dolfinx = refinement == "dolfinx" and (coarse.dimension > 1 or door.REFINES_INTERVALS)
    halve = door.refine if by_dolfinx else refine_red
    # With ascending vertices, Bey's rule keeps the tetrahedra of a grid similar on all levels.
    mesh = door.create(coarse.points, np.sort(coarse.cells, axis=1), MPI.COMM_SELF)
    cell_number = door.input_cells(mesh)
    facets = boundary_facets(coarse.cells)
    meshes = [Level(np.sort(coarse.cells, axis=1), np.zeros((0, 2), np.int64), facets, np.arange(len(facets)))]
    points = np.array(coarse.points)
    tags, names = _facet_tags(coarse, facets), (coarse.facet_names, coarse.region_names)
    curves, shapes = CurvedBoundary.of(coarse, facets, tags, curved or {}), np.ones(len(coarse.cells))
    for _ in range(levels):
        fine, parent = halve(mesh)
        level, points, cell_number, node_number = _renumber(meshes[-1], points, fine, cell_number[parent])
        if curves.groups:
            points, shapes = curves.moved(points, level, shapes)
            door.move(fine, points[node_number])
        meshes.append(level)
        mesh = fine
    return MeshHierarchy(
        points,
        tuple(meshes),
        coarse.regions,
        tags,
        refinement,
        *names,
        inner_facet_tags=_inner_facet_tags(coarse, facets),
        curved=dict(curved or {}),
    )


# Edges by their ends; the 2^d children by corners 0, …, d of the cell and then the midpoints of its edges, in order.
_EDGES = {1: [[0, 1]], 2: [[0, 1], [0, 2], [1, 2]], 3: [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]}
_CHILDREN = {
    1: [[0, 2], [2, 1]],
    2: [[0, 3, 4], [3, 1, 5], [4, 5, 2], [3, 5, 4]],
    3: [
        *([0, 4, 5, 6], [4, 1, 7, 8], [5, 7, 2, 9], [6, 8, 9, 3]),  # at the corners
        *([4, 5, 6, 8], [4, 5, 7, 8], [5, 6, 8, 9], [5, 7, 8, 9]),  # in the octahedron, cut along the edge 5-8
    ],
}


def refine_red(coarse: Any) -> tuple[Any, Ints]:
    """Like `door.refine`, but into halves, four triangles similar to their parent, or eight tetrahedra by Bey's rule.

    DOLFINx bisects triangles by their longest edge if edge lengths differ by a factor of √2 or more. Right isosceles
    triangles have exactly this ratio, so rounding decides how they are cut, and the frames are worse conditioned.
    Bey's rule uses the order of a cell's vertices: the descendants of a tetrahedron have at most three shapes, and
    cubes cut into six along ascending paths (Kuhn) keep this pattern on all levels, the same around every inner point.
    """
    x, cells = door.coordinates(coarse), door.nodes(coarse)
    d = cells.shape[1] - 1
    corners, children = np.array(_EDGES[d]), np.array(_CHILDREN[d])
    edges = np.sort(cells[:, corners], axis=-1).reshape(-1, 2)
    key, middle = np.unique(row_keys(edges, len(x)), return_inverse=True)
    ends = np.stack(np.divmod(key, len(x)), axis=1)
    vertices = np.concatenate([cells, len(x) + middle.reshape(len(cells), -1)], axis=1)
    fine = door.create(
        np.concatenate([x, x[ends].mean(axis=1)]), vertices[:, children].reshape(-1, d + 1), MPI.COMM_SELF
    )
    return fine, door.input_cells(fine) // 2**d


def coarse_mesh(source: Any) -> MeshArrays:
    """The coarse mesh as arrays, from any kind of `Problem.mesh`. Collective for a distributed DOLFINx mesh."""
    if isinstance(source, MeshArrays):
        return source
    if isinstance(source, Grid):
        return door.generate(source)
    if isinstance(source, str | os.PathLike):
        return read_gmsh(source)
    if hasattr(source, "physical_groups"):  # DOLFINx's MeshData, a named tuple with the tags of ridges and peaks too
        parts = (source.mesh, source.cell_tags, source.facet_tags, source.physical_groups)
    else:
        parts = tuple(source) if isinstance(source, tuple | list) else (source,)
    if 1 <= len(parts) <= 4 and door.is_mesh(parts[0]):
        arrays = door.arrays_of(*parts[:3])
        return _named(arrays, parts[3]) if len(parts) == 4 else arrays
    raise ValueError(
        f"a mesh cannot be made from {type(source).__name__}: give a Grid, MeshArrays, the path of a gmsh file, "
        "a DOLFINx mesh, DOLFINx's (mesh, cell tags, facet tags), or (mesh, cell tags, facet tags, names)"
    )


def _named(arrays: MeshArrays, groups: Any) -> MeshArrays:
    """The mesh with names of its tags: {"inflow": (dimension, tag)}, or {"inflow": tag} where the tag says enough."""
    if not isinstance(groups, Mapping):
        raise ValueError(
            f"the names of tags are a {type(groups).__name__}; a dictionary is expected: {{'inflow': (1, 7)}}, from "
            "names to dimension and tag"
        )
    d = arrays.dimension
    names: dict[int, dict[Any, Any]] = {d: {}, d - 1: {}}
    for name, group in groups.items():
        if name == "":  # groups without a name
            continue
        if isinstance(group, tuple | list):
            if len(group) != 2:
                raise ValueError(f"the name {name!r} stands for {group!r}; give a pair (dimension, tag), or a tag")
            dimension, tag = group
        else:
            tag, carried = group, [k for k, tags in ((d, arrays.regions), (d - 1, arrays.facet_tags)) if group in tags]
            if len(carried) != 1:
                which = "both cells and facets carry" if carried else "neither cells nor facets carry"
                raise ValueError(
                    f"the name {name!r} stands for the tag {tag!r}, which {which}; give a pair (dimension, tag): "
                    f"({d}, {tag!r}) for cells, ({d - 1}, {tag!r}) for facets"
                )
            dimension = carried[0]
        if dimension in names:
            names[dimension][name] = tag
    return replace(arrays, region_names=names[d], facet_names=names[d - 1])


def _renumber(coarse: Level, points: Floats, fine: Any, parent: Ints) -> tuple[Level, Floats, Ints, Ints]:
    """DOLFINx's fine mesh as a Level in our numbering, all points, and our numbers of its cells and nodes.

    `parent` (K,) is our number of the coarse cell that contains each fine cell.
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
    # A vertex is a corner of the parent (one weight 1) or the midpoint of an edge (two weights 1/2).
    low = np.take_along_axis(corners, (halves > 0).argmax(axis=-1), axis=1)
    high = np.take_along_axis(corners, d - (halves[..., ::-1] > 0).argmax(axis=-1), axis=1)
    ends_of_node = np.zeros((len(x), 2), np.int64)
    ends_of_node[table] = np.stack([low, high], axis=-1)
    new = ends_of_node[:, 0] != ends_of_node[:, 1]
    # New points follow the order of the cells that contain them, so gathering from cells to points stays in the cache.
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
    return level, all_points, cell_number, number


def _facet_origin(coarse: Level, facets: Ints, ends: Ints, count: int) -> Ints:
    """(F,) boundary facet of level 0 that each boundary facet of the refinement of `coarse` lies in."""
    both = np.concatenate([np.repeat(np.arange(count)[:, None], 2, axis=1), ends])[facets]  # (F, d, 2)
    both = np.sort(both.reshape(len(facets), -1), axis=1)
    first = np.concatenate([np.ones((len(both), 1), bool), both[:, 1:] != both[:, :-1]], axis=1)
    parent_facet = both[first].reshape(len(facets), -1)  # its d corners
    # Numbering boundary points separately keeps the key of a facet within 64 bits.
    outer = np.unique(coarse.facets)
    keys = row_keys(np.searchsorted(outer, coarse.facets), len(outer))
    wanted = row_keys(np.searchsorted(outer, parent_facet), len(outer))
    order = np.argsort(keys)
    found = order[np.searchsorted(keys, wanted, sorter=order)]
    assert (keys[found] == wanted).all(), "a boundary facet lies in no boundary facet of its parent"
    return coarse.facet_origin[found]


def _facet_tags(coarse: MeshArrays, facets: Ints) -> Ints:
    """(F,) tag of each boundary facet, -1 if it has none."""
    tags = np.full(len(facets), -1, np.int64)
    given = {
        int(k): int(t) for k, t in zip(row_keys(coarse.facets, len(coarse.points)), coarse.facet_tags, strict=True)
    }
    for i, key in enumerate(row_keys(facets, len(coarse.points))):
        tags[i] = given.get(int(key), -1)
    return tags


def _inner_facet_tags(coarse: MeshArrays, facets: Ints) -> Ints:
    """Tags of the tagged facets that are facets of cells, but not on the boundary."""
    count = len(coarse.points)
    given, outer, known = (row_keys(rows, count) for rows in (coarse.facets, facets, facets_of(coarse.cells)))
    return coarse.facet_tags[np.isin(given, known) & ~np.isin(given, outer)]
