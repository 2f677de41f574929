"""Reads coarse meshes from gmsh files, with the names of their physical groups.

n points, m elements, d dimension.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fem_frames.mesh.coarse import MeshArrays
from fem_frames.mesh.geometry import Floats, Ints, facets_of, orient, row_keys
from fem_frames.mesh.gmsh_readers import GmshContent, names_given_twice, read_content

_CELLS = ("points", "lines", "triangles", "tetrahedra")
_GROUPS = ("points", "curves", "surfaces", "volumes")


@dataclass(frozen=True)
class MeshFile(os.PathLike[str]):
    """A mesh file that may be in several places; it is taken from the first place that has it."""

    places: tuple[Path, ...]

    def __fspath__(self) -> str:
        return str(next((path for path in self.places if path.is_file()), self.places[0]))


def read_gmsh(path: str | os.PathLike[str]) -> MeshArrays:
    """The simplices of highest dimension in a gmsh .msh file, with physical groups as region and facet tags and names.

    It is read by the package gmsh or by meshio, whichever is installed. See docs/meshes.md.
    """
    places, file = getattr(path, "places", (path,)), Path(path)
    if not file.is_file():
        raise ValueError("there is no mesh file " + ", nor ".join(str(place) for place in places))
    return arrays_of_content(read_content(file), file)


def arrays_of_content(content: GmshContent, path: Path) -> MeshArrays:
    """The mesh in a gmsh file's content; raises a ValueError that says what is wrong with it."""
    d = max((k for k in range(1, 4) if len(content.elements[k])), default=0)
    if content.foreign or d == 0:
        found = ", ".join(content.foreign) or "none"
        raise ValueError(
            f"{path} holds cells of kind {found}; only first-order simplices are supported: mesh with triangles or "
            "tetrahedra, Mesh.ElementOrder = 1, and put them into a physical group"
        )
    _check_names(content, d, path)
    cells, regions = _once(content, d, path)
    used, cells = np.unique(cells, return_inverse=True)  # gmsh keeps points that belong to no cell
    cells = cells.reshape(-1, d + 1)
    if np.ptp(content.points[used, d:], axis=0).max(initial=0) > 1e-12 * np.ptp(content.points, axis=0).max():
        raise ValueError(
            f"{path} holds {_CELLS[d]} and is a surface or curve in space; a flat mesh of dimension {d} in R^{d} is "
            f"expected: lay it into the first {d} coordinate{'s' * (d > 1)}, or, if gmsh left the {_CELLS[d + 1]} out, "
            f"put the {_GROUPS[d + 1]} into a physical group too"
        )
    points = np.ascontiguousarray(content.points[used, :d], np.float64)
    facets, tags = _tagged_facets(content, d, used, cells)
    return MeshArrays(
        points=points,
        cells=orient(points, cells),
        regions=regions,
        facets=facets,
        facet_tags=tags,
        region_names=dict(content.names[d]),
        facet_names=dict(content.names[d - 1]),
    )


def _once(content: GmshContent, d: int, path: Path) -> tuple[Ints, Ints]:
    """Cells (m, d+1) and their groups (m,), each cell once; raises a ValueError if one is in two groups."""
    cells, groups = content.elements[d], content.groups[d]
    _, first, place = np.unique(row_keys(cells, len(content.points)), return_index=True, return_inverse=True)
    wrong = np.flatnonzero(groups[first][place.reshape(-1)] != groups)
    if len(wrong):
        pair = [groups[first][place.reshape(-1)[wrong[0]]], groups[wrong[0]]]
        shown = " and ".join(_group(content, d, int(tag)) for tag in pair)
        centre = content.points[cells[wrong[0]]][:, :d].mean(axis=0).tolist()
        raise ValueError(
            f"{path}: the physical groups {shown} share the cell at {_rounded(centre)}; a cell belongs to one region: "
            "put every part of the domain into one group"
        )
    keep = np.sort(first)
    return cells[keep], groups[keep]


def _tagged_facets(content: GmshContent, d: int, used: Ints, cells: Ints) -> tuple[Ints, Ints]:
    """Facets (m, d) of cells that are in a group, in the numbering of the used points, and their tags (m,)."""
    place = np.full(len(content.points), -1, np.int64)
    place[used] = np.arange(len(used))
    facets, tags = place[content.elements[d - 1]], content.groups[d - 1]
    keep = (facets >= 0).all(axis=1) & (tags != 0)
    facets, tags = facets[keep], tags[keep]
    # Elements that are no facets of cells, such as curves beside the domain, play no role.
    keys = row_keys(facets, len(used))
    known = np.isin(keys, row_keys(facets_of(cells), len(used)))
    # Format 2 lists facets that are in several groups several times.
    once = np.zeros(len(keys), bool)
    once[np.unique(np.stack([keys, tags], axis=1), axis=0, return_index=True)[1]] = True
    return facets[known & once], tags[known & once]


def _check_names(content: GmshContent, d: int, path: Path) -> None:
    for dimension in (d - 1, d):
        for name, tags in names_given_twice(content.names[dimension]):
            raise ValueError(
                f"{path}: the {_GROUPS[dimension]} of the physical groups {' and '.join(map(str, tags))} have the same "
                f"name {name!r}; rename one, or put all of them into one group"
            )


def _group(content: GmshContent, dimension: int, tag: int) -> str:
    name = next((name for name, other in content.names[dimension] if other == tag), None)
    return f"{tag}" if name is None else f"{name!r} ({tag})"


def _rounded(point: Floats) -> list[float]:
    return [float(f"{x:.6g}") for x in point]
