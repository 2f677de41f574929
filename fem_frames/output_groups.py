"""Regions and boundary groups of a frame by name or tag, for outputs.

F boundary facets, n midpoints, d dimension.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fem_frames.frame.arrays import FrameArrays
from fem_frames.mesh.checks import known_names
from fem_frames.problem.boundary import ALL


def region_groups(arrays: FrameArrays) -> tuple[dict[str, int], set[int]]:
    """Tags of the regions that have a name, and all tags of regions."""
    tags = set(np.unique(arrays.regions).tolist())
    return {name: tag for name, tag in arrays.record.get("region_names", {}).items() if tag in tags}, tags


def boundary_groups(arrays: FrameArrays) -> tuple[dict[str, int], set[int]]:
    """Tags of the boundary groups that have a name, and all tags of boundary facets."""
    if arrays.groups is None:
        return {}, set()
    tags = set(np.unique(arrays.groups.tags).tolist()) - {-1}
    return {name: tag for name, tag in arrays.record.get("facet_names", {}).items() if tag in tags}, tags


def group_facets(arrays: FrameArrays, group: Any) -> npt.NDArray[np.bool_]:
    """(F,) which boundary facets of the finest mesh belong to a group: a name, a tag, "all" or a function of x."""
    groups = arrays.groups
    if groups is None:
        raise ValueError(
            "the frame does not record its boundary facets, because an earlier version made it or it was coarsened: "
            "export it again for this level, or train again"
        )
    if isinstance(group, str) and group == ALL:
        return np.ones(len(groups.facets), bool)
    if callable(group):
        middles = arrays.points[groups.facets].mean(axis=1)
        told = np.asarray(group(middles))
        if told.shape != (len(middles),) or told.dtype.kind not in "bui":
            raise ValueError(
                f"the function of a BoundaryFlux gave {told.dtype} values of shape {told.shape} for {len(middles)} "
                "midpoints x (n, d); give True or False for each"
            )
        if not told.any():
            raise ValueError("the function of a BoundaryFlux is true on no boundary facet: fix it")
        return told.astype(bool)
    names, tags = boundary_groups(arrays)
    tag = names.get(group) if isinstance(group, str) else group
    if isinstance(tag, bool) or tag not in tags:
        there = known_names(str(group), names, sorted(tags - set(names.values())))
        has = f"the mesh has {there}" if there else "the mesh has no groups; give its facets names or tags"
        raise ValueError(f"no boundary facet is called {group!r}; {has}; 'all' or a function of x works on every mesh")
    return np.asarray(groups.tags == tag)
