"""Quadrature points of integrals over cells and boundary facets: where they are, and the states of cells there.

B samples, C cells or facets of an integral, Q quadrature points, m numbers in a cell's state, d dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from torch import Tensor

from fem_frames.formulations.boundary_terms import facet_cells
from fem_frames.frame.arrays import FrameArrays
from fem_frames.frame.boundary import areas
from fem_frames.frame.elements import element_class
from fem_frames.frame.level_matrices import quadrature_points
from fem_frames.mesh.checks import group_tags
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.problem.densities import CELLS, Integral, Part

AsData = Callable[[np.ndarray], Tensor]


class Places:
    """The quadrature points of an integral: where they are, and their weights."""

    def __init__(self, arrays: FrameArrays, integral: Integral) -> None:
        self.cells: Ints | None = None
        """(C,) the cell of each entry; None for all cells in order."""
        self.normals: Floats | None = None  # (C, d)
        if integral.kind == CELLS:
            self.points = quadrature_points(arrays)  # (C, Q, d)
            self.weights = arrays.volumes[:, None] * arrays.rule_weights  # (C, Q)
            if integral.groups:
                tags = group_tags(integral.groups, arrays.record.get("region_names", {}), arrays.regions, "region")
                self.cells = np.flatnonzero(np.isin(arrays.regions, tags))
                self.points, self.weights = self.points[self.cells], self.weights[self.cells]
        else:
            groups = arrays.groups
            if groups is None:
                raise ValueError("the frame has no groups of boundary facets: export it again")
            chosen = np.arange(len(groups.facets))
            if integral.groups:
                tags = group_tags(integral.groups, arrays.record.get("facet_names", {}), groups.tags, "boundary facet")
                chosen = np.flatnonzero(np.isin(groups.tags, tags))
            owners = facet_cells(arrays, groups.facets[chosen])
            order = np.argsort(owners, kind="stable")  # threads take all facets of a cell
            self.cells = owners[order]
            corners = arrays.points[groups.facets[chosen[order]]]  # (C, d, d)
            self.points = np.einsum("qn,fnd->fqd", groups.rule_points, corners)
            self.weights = areas(corners)[:, None] * groups.rule_weights
            self.normals = _normals(corners, corners.mean(axis=1) - arrays.centres[self.cells])
        own = slice(None) if self.cells is None else self.cells
        self.offsets = self.points - arrays.centres[own][:, None]  # (C, Q, d)
        self.volumes = arrays.volumes[own]
        self.corners = arrays.points[arrays.levels[-1].cells[own]]  # (C, d+1, d)
        self.gradients = arrays.levels[-1].gradients[own]  # (C, d+1, d)

    def hats(self) -> Floats:
        """(C, Q, d+1) values of the hats of each cell."""
        return 1 / self.gradients.shape[1] + np.einsum("cqd,cld->cql", self.offsets, self.gradients)

    def sizes(self) -> Floats:
        """(C, 3) diameter, volume and radius of the circumscribed ball of each cell."""
        corners = self.corners
        edges = np.linalg.norm(corners[:, :, None] - corners[:, None], axis=-1)  # (C, d+1, d+1)
        # The centre z of the ball satisfies 2 (p_i - p_0) · z = |p_i|² - |p_0|², relative to the first corner.
        rows = corners[:, 1:] - corners[:, :1]
        centre = np.linalg.solve(2 * rows, (rows**2).sum(axis=2)[..., None])[..., 0]
        return np.stack([edges.max(axis=(1, 2)), self.volumes, np.linalg.norm(centre, axis=1)], axis=1)


def _normals(corners: Floats, outward: Floats) -> Floats:
    """(C, d) unit normals of facets with these corners (C, d, d), on the side of `outward` (C, d)."""
    d = corners.shape[2]
    if d == 1:
        normal = np.ones((len(corners), 1))
    elif d == 2:
        edge = corners[:, 1] - corners[:, 0]
        normal = np.stack([edge[:, 1], -edge[:, 0]], axis=1)
    else:
        normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    normal = normal * np.where((normal * outward).sum(axis=1) < 0, -1.0, 1.0)[:, None]
    return np.asarray(normal / np.linalg.norm(normal, axis=1, keepdims=True))


class PointInputs:
    """Reads x, y, the normal and the sizes of cells at the points of an integral, for programs."""

    def __init__(self, places: Places, as_data: AsData) -> None:
        self._x = as_data(places.points)
        self._normals = None if places.normals is None else as_data(places.normals)
        self._places, self._as_data = places, as_data

    @cached_property
    def _sizes(self) -> Tensor:
        return self._as_data(self._places.sizes())

    def __call__(self, given: tuple[str, int], y: Tensor) -> Tensor:
        """The input as a tensor that broadcasts to (C, Q, B), for y (B, p)."""
        letter, i = given
        if letter == "x":
            return self._x[..., i, None]
        if letter == "y":
            return y[None, None, :, i]
        if letter == "n":
            assert self._normals is not None
            return self._normals[:, None, i, None]
        return self._sizes[:, None, i, None]


Factor = tuple[str, int, int] | None
"""An element and the entries of its states in a cell and at a point whose factor this is; None is the number one."""


class Shifts:
    """States at the points of an integral, from those of its cells: sums of entries times factors.

    States of cells are scaled, so the factors of the Taylor shift are divided by |T|^{1/2}.
    """

    def __init__(self, arrays: FrameArrays, parts: Sequence[Part], places: Places) -> None:
        self.roots: Floats = np.sqrt(places.volumes)[:, None]  # (C, 1)
        self.terms: list[list[tuple[int, Factor]]] = []
        """For each entry of the state at a point the entries of the cell's state that it consists of."""
        d = places.offsets.shape[2]
        self._offsets = places.offsets
        self._elements = {part.element: element_class(part.element).for_mesh(d, arrays.volumes) for part in parts}
        offset = np.linspace(0.3, 0.7, d)  # any one: which factors are zero or one is the same everywhere
        for part in parts:
            element = self._elements[part.element]
            if element.state_size != part.size:
                raise ValueError(
                    f"the element {part.element!r} of {part.name} has {element.state_size} entries, not {part.size}"
                )
            pattern = element.shift(np.eye(part.size), np.broadcast_to(offset, (part.size, d)))
            for j in range(part.size):
                factors = [None if pattern[i, j] == 1.0 else (part.element, i, j) for i in range(part.size)]
                self.terms.append([(part.start + i, factors[i]) for i in range(part.size) if pattern[i, j] != 0.0])

    def factor(self, name: Factor) -> Floats:
        """(C, Q) or (1, 1) a factor, not divided by |T|^{1/2}."""
        if name is None:
            return np.ones((1, 1))
        text, i, j = name
        unit = np.zeros((*self._offsets.shape[:2], self._elements[text].state_size))
        unit[..., i] = 1.0
        return np.asarray(self._elements[text].shift(unit, self._offsets)[..., j])
