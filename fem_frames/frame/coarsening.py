"""The frame that ends at a coarser level: its meshes and functions are those of the first levels.

Fields whose functions are not nested get the functions of the new finest level, which the longer frame does not have.

N points, K cells of the new finest level, d dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fem_frames.frame.families import FieldLevel, FrameFamily
from fem_frames.mesh.geometry import Floats, Ints, signed_volumes
from fem_frames.mesh.simplices import SimplexMesh, find

if TYPE_CHECKING:
    from fem_frames.frame.arrays import FrameArrays, FrameField


def coarsened(arrays: FrameArrays, count: int, regions: Callable[[Floats], npt.ArrayLike] | None) -> FrameArrays:
    """The frame on its first `count` levels; see `FrameArrays.coarsened`."""
    levels, d = arrays.levels[:count], arrays.dimension
    points = arrays.points[: arrays.point_count(count - 1)].copy()
    load, groups = arrays.neumann_load.copy(), arrays.groups
    for index in range(len(arrays.levels) - 1, count - 1, -1):  # a coarse hat is a sum of finer hats
        size, ends = arrays.point_count(index - 1), arrays.levels[index].ends
        groups = None if groups is None else groups.coarsened(size, ends)
        np.add.at(load, ends, 0.5 * load[size : size + len(ends), None])
        load = load[:size].copy()
    K = len(levels[-1].cells)
    centres = points[levels[-1].cells].mean(axis=1)
    volumes = arrays.volumes.reshape(K, -1).sum(axis=1)
    if arrays.curved:
        volumes = np.abs(signed_volumes(points, levels[-1].cells))
    tags = arrays.regions[:: len(arrays.regions) // K].copy() if regions is None else np.asarray(regions(centres))
    fields = [f.coarsened(count) for f in arrays.fields]
    families = [replace(f, free=f.free[:count], functions=f.functions[:count]) for f in arrays.families]
    if count < len(arrays.levels):
        for k, field in enumerate(arrays.fields):
            if not field.element.nested:
                fields[k], own = _on_level(arrays, field, count - 1, volumes)
                families = [own.get(family.name, family) for family in families]
    return replace(
        arrays,
        points=points,
        levels=levels,
        fields=tuple(fields),
        families=tuple(families),
        volumes=volumes,
        centres=centres.reshape(K, d),
        regions=tags.astype(np.int64),
        neumann_load=load,
        boundary=None if arrays.boundary is None else arrays.boundary.coarsened(count),
        groups=groups,
    )


def _on_level(
    arrays: FrameArrays, field: FrameField, index: int, volumes: Floats
) -> tuple[FrameField, dict[str, FrameFamily]]:
    """A field that is not nested, with functions on levels[index] alone, and its families by name."""
    levels = []
    for j in range(index + 1):
        mesh = SimplexMesh(arrays.points[: arrays.point_count(j)], arrays.levels[j].cells)
        fixed = np.ones(len(field.lift[j]), bool)
        if j == index:
            fixed[_free_on(arrays, field, index)] = False
        levels.append(FieldLevel(mesh, fixed, arrays.length))
    element = field.element.for_mesh(arrays.dimension, volumes)
    made = replace(field.coarsened(index + 1), element=element, free=tuple(level.free for level in levels))
    return made, {family.name: family for family in element.families(field.name, levels)}


def _free_on(arrays: FrameArrays, field: FrameField, index: int) -> Ints:
    """The simplices of levels[index] whose part at the first corner is free on the finest level: then all parts are."""
    finest = len(arrays.levels) - 1
    parts = arrays.simplices(index, field.degree)[0]  # (n, k+1)
    for j in range(index + 1, finest + 1):
        edges = np.stack([np.broadcast_to(parts[:, :1], parts[:, 1:].shape), parts[:, 1:]], axis=2)  # (n, k, 2)
        middles = find(edges.reshape(-1, 2), arrays.levels[j].ends).reshape(edges.shape[:2])
        parts = np.concatenate([parts[:, :1], arrays.point_count(j - 1) + middles], axis=1)
    place = find(parts, arrays.simplices(finest, field.degree)[0])
    if (place < 0).any():
        raise ValueError(
            f"the frame cannot be coarsened: the parts of simplices that carry {field.name} are no simplices of the "
            "finest mesh; export it for the coarser level"
        )
    return np.flatnonzero(np.isin(place, field.free[-1]))
