"""Unit cubes cut into blocks: meshes with named sides, tags of blocks, and checks of the options of built-in problems.

K cells, d dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np

from fem_frames.memory import check_memory
from fem_frames.mesh.coarse import MeshArrays
from fem_frames.mesh.geometry import Floats, Ints, orient

SIDES = (("left", "right"), ("bottom", "top"), ("front", "back"))
"""Names of the sides where a coordinate is 0 and where it is 1, for each coordinate."""


def block_tags(x: Floats, blocks: int) -> Ints:
    """(K,) number of the block of the unit cube that contains x (K, d), first coordinate fastest."""
    place = np.clip(np.floor(blocks * x), 0, blocks - 1).astype(np.int64)
    return np.asarray(place @ blocks ** np.arange(x.shape[-1]))


def halvings(blocks: int) -> int:
    """The number of refinements after which the coarsest mesh that can be refined to the blocks resolves them."""
    return (blocks & -blocks).bit_length() - 1


def unit_cube(d: int, n: int) -> MeshArrays:
    """The unit cube in dimension d as n^d cubes, cut along ascending paths, with the names of `SIDES`."""
    places = np.indices((n + 1,) * d).reshape(d, -1).T[:, ::-1]  # (N, d), first coordinate fastest
    lowest = np.flatnonzero((places < n).all(axis=1))
    strides = (n + 1) ** np.arange(d)
    cells = []
    for order in permutations(range(d)):
        cells.append(lowest[:, None] + np.cumsum([0, *strides[list(order)]]))
    points = places / n
    found = orient(points, np.stack(cells, axis=1).reshape(-1, d + 1))
    corners = np.concatenate([np.delete(found, i, axis=1) for i in range(d + 1)])  # (F, d)
    facets, tags = [], []
    for number, (k, end) in enumerate((k, end) for k in range(d) for end in (0, n)):
        own = corners[(places[corners, k] == end).all(axis=1)]
        facets.append(own)
        tags.append(np.full(len(own), number))
    names = {side: number for number, side in enumerate(side for pair in SIDES[:d] for side in pair)}
    return MeshArrays(points, found, facets=np.concatenate(facets), facet_tags=np.concatenate(tags), facet_names=names)


def check_count(name: str, value: int, parameters: int) -> None:
    """Raises a ValueError for more parameters than memory holds, at 500 bytes per parameter for lists and tables."""
    check_memory(f"{name} = {value}, which makes {parameters:.3g} parameters,", 500.0 * parameters, f"use fewer {name}")


def positive(value: Any, name: str) -> float:
    """The value as float, or a ValueError that names it."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < np.inf:
        raise ValueError(f"{name} is {value!r}; a positive number is expected")
    return float(value)


def choice(value: Any, name: str, known: Sequence[Any]) -> Any:
    """The value, or a ValueError that lists the choices."""
    if isinstance(value, bool) or value not in known:
        raise ValueError(f"{name} is {value!r}; choose from {', '.join(map(str, known))}")
    return value
