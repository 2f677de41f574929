"""Reads meshes from gmsh files with meshio."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np

from fem_frames.mesh.coarse import MeshArrays
from fem_frames.mesh.geometry import orient


def read_gmsh(path: str | Path) -> MeshArrays:
    """The simplices of highest dimension in a gmsh .msh file; physical groups become region and facet tags.

    See docs/problems.md.
    """
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
    # meshio calls sys.exit on some malformed files, and raises its own and many other errors on others.
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"{path} cannot be read as a gmsh mesh; save it with gmsh as .msh 2.2 or 4.1, all in physical groups"
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
    used, cells = np.unique(cells, return_inverse=True)  # gmsh keeps points that belong to no cell
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
