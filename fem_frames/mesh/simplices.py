"""Lowest-order Whitney forms on simplices: hat functions, edge functions and Raviart-Thomas functions as one family.

The form of a k-simplex has integral 1 over this simplex and 0 over all others of dimension k. Points (k = 0) carry hat
functions; facets (k = d - 1) carry Raviart-Thomas functions (RT0), where the integral is the flux through the facet.
In one dimension the two coincide. Simplices list their points in ascending order, which orients them without signs.

N points, K cells, S simplices of dimension k, d dimension, C local simplices per cell, in the order of
`itertools.combinations`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fem_frames.mesh.geometry import Floats, Ints, row_keys, signed_volumes

Entries = tuple[Ints, Ints, Floats]
"""Rows, columns and weights of a sparse matrix without repeated entries."""


@dataclass(frozen=True, eq=False)
class SimplexMesh:
    """A mesh of ascending cells; its simplices, volumes and gradients of hats are computed once."""

    points: Floats  # (N, d)
    cells: Ints  # (K, d+1)
    _simplices: dict[int, tuple[Ints, Ints]] = field(default_factory=dict, init=False, repr=False)

    @property
    def dimension(self) -> int:
        return int(self.points.shape[1])

    def simplices(self, k: int) -> tuple[Ints, Ints]:
        """(S, k+1) the k-simplices, and (K, C) those of each cell."""
        if k not in self._simplices:
            self._simplices[k] = simplices(self.cells, k)
        return self._simplices[k]

    @cached_property
    def hats(self) -> tuple[Floats, Floats]:
        """(K, d+1, d) gradients of the hats on each cell, and the volumes (K,)."""
        return p1_gradients(self.points, self.cells)


def p1_gradients(points: Floats, cells: Ints) -> tuple[Floats, Floats]:
    """(K, d+1, d) gradients of the hats on each cell, and the volumes (K,)."""
    corners = points[cells]
    edges = corners[:, 1:] - corners[:, :1]  # (K, d, d), rows
    inner = np.swapaxes(np.linalg.inv(edges), 1, 2)  # rows: gradients of the hats 1, …, d
    gradients = np.concatenate([-inner.sum(axis=1, keepdims=True), inner], axis=1)
    return gradients, np.abs(signed_volumes(points, cells))


def simplices(cells: Ints, k: int) -> tuple[Ints, Ints]:
    """(S, k+1) the k-simplices of a mesh whose cells are ascending, and (K, C) their numbers in each cell.

    Points keep their numbers; other simplices are numbered in the order of the cells that contain them.
    """
    local = local_simplices(cells, k)  # (K, C, k+1)
    if k == 0:
        return np.arange(int(cells.max()) + 1)[:, None], local[..., 0]
    _, first, place = np.unique(row_keys(local, int(cells.max()) + 1).ravel(), return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    return local.reshape(-1, k + 1)[first[order]], number[place.ravel()].reshape(local.shape[:2])


def local_simplices(cells: Ints, k: int) -> Ints:
    """(K, C, k+1) points of the k-simplices of each cell."""
    return np.asarray(cells[:, list(itertools.combinations(range(cells.shape[1]), k + 1))])


def find(wanted: Ints, among: Ints) -> Ints:
    """(n,) positions of the simplices `wanted` (n, k+1) in the table `among`, -1 where there is none."""
    if not len(among):
        return np.full(len(wanted), -1)
    bound = 1 + max(int(wanted.max(initial=0)), int(among.max(initial=0)))
    keys, keys_wanted = row_keys(among, bound), row_keys(wanted, bound)
    order = np.argsort(keys)
    place = order[np.minimum(np.searchsorted(keys, keys_wanted, sorter=order), len(keys) - 1)]
    return np.where(keys[place] == keys_wanted, place, -1)


def boundary_entries(table: Ints, faces: Ints) -> Entries:
    """The matrix that maps values on `faces` to alternating sums over the faces of each simplex in `table` (S, k+1).

    By Stokes these sums are the integrals of dω: differences of point values along edges, circulations around
    triangles. For facets the entries are the fluxes of curls.
    """
    count = table.shape[1]
    sides = [np.delete(table, i, axis=1) for i in range(count)]
    columns = np.stack([find(side, faces) for side in sides], axis=1)  # (S, k+1)
    rows = np.broadcast_to(np.arange(len(table))[:, None], columns.shape)
    signs = np.broadcast_to((-1.0) ** np.arange(count), columns.shape)
    return rows.ravel(), columns.ravel(), signs.ravel()


def prolongation_entries(
    coarse: tuple[Ints, Ints], fine: tuple[Ints, Ints], coarse_cells: Ints, ends: Ints, children: int
) -> Entries:
    """Coarse forms in terms of fine ones: the integrals of the coarse forms over the fine simplices.

    `coarse` and `fine` come from `simplices`; a fine point i is a coarse point, or the midpoint of the edge between the
    points `ends[i - coarse points]`; fine cell c lies in the coarse cell c // children. The integral over a simplex is
    a minor of the barycentric coordinates of its corners.
    """
    table, of_cells = fine
    k, (K, C) = table.shape[1] - 1, of_cells.shape
    parent = np.zeros(len(table), np.int64)
    parent[of_cells.ravel()[::-1]] = (np.arange(K).repeat(C) // children)[::-1]
    count = int(coarse_cells.max()) + 1
    both = np.concatenate([np.arange(count)[:, None].repeat(2, axis=1), ends])[table]  # (S, k+1, 2)
    corners = coarse_cells[parent]  # (S, d+1)
    barycentric = (both[..., None] == corners[:, None, None]).mean(axis=2)  # (S, k+1, d+1)
    chosen = list(itertools.combinations(range(corners.shape[1]), k + 1))
    weights = np.stack([_determinants(barycentric[..., list(c)]) for c in chosen], axis=1)  # (S, C)
    columns = coarse[1][parent]
    rows = np.broadcast_to(np.arange(len(table))[:, None], columns.shape)
    used = weights != 0
    return rows[used], columns[used], weights[used]


def facet_states(points: Floats, cells: Ints) -> Floats:
    """(K, d+1, d+1) states of the facet forms on each cell: the value at the centre (d numbers) and the divergence.

    On a cell T the form is ±(x - x') / (d |T|), where x' is the corner opposite the facet.
    """
    d = cells.shape[1] - 1
    corners, volumes = points[cells], signed_volumes(points, cells)
    opposite = np.arange(d, -1, -1)  # itertools.combinations omits the last point first
    divergence = (-1.0) ** opposite / volumes[:, None]  # (K, d+1)
    centre = (corners.mean(axis=1, keepdims=True) - corners[:, opposite]) * divergence[..., None] / d
    return np.concatenate([centre, divergence[..., None]], axis=2)


def moments(points: Floats, cells: Ints) -> Floats:
    """(K, d, d) means of (x - x_c)(x - x_c)ᵀ over the cells, x_c their centres."""
    d = cells.shape[1] - 1
    corners = points[cells]
    off = corners - corners.mean(axis=1, keepdims=True)
    return np.asarray(np.einsum("kni,knj->kij", off, off) / ((d + 1) * (d + 2)))


def diameters(points: Floats, cells: Ints) -> Floats:
    """(K,) diameters of the cells: their longest edges."""
    corners = points[cells]
    pairs = itertools.combinations(range(corners.shape[1]), 2)
    return np.asarray(np.max([np.linalg.norm(corners[:, i] - corners[:, k], axis=1) for i, k in pairs], axis=0))


def spreads(points: Floats, cells: Ints) -> Floats:
    """(K,) means of |x - x_c|² over the cells with centres x_c."""
    d = cells.shape[1] - 1
    corners = points[cells]
    off = corners - corners.mean(axis=1, keepdims=True)
    return np.asarray((off**2).sum(axis=(1, 2)) / ((d + 1) * (d + 2)))


def facet_vectors(points: Floats, facets: Ints) -> Floats:
    """(F, d) normals n of facets in the positive direction, with |n| the facet's area: n · σ is the flux."""
    d = points.shape[1]
    if d == 1:
        return np.ones((len(facets), 1))
    first = points[facets[:, 1]] - points[facets[:, 0]]
    if d == 2:
        return np.stack([first[:, 1], -first[:, 0]], axis=1)
    return np.asarray(np.cross(first, points[facets[:, 2]] - points[facets[:, 0]]) / 2)


def _determinants(matrices: npt.NDArray) -> Floats:
    """(S,) determinants of (S, n, n), n ≤ 3, by expansion, which is exact for the entries 0, 1/2 and 1."""
    if matrices.shape[1] == 1:
        return np.asarray(matrices[:, 0, 0])
    first = matrices[:, 0]
    rest = matrices[:, 1:]
    minors = [_determinants(np.delete(rest, i, axis=2)) for i in range(matrices.shape[1])]
    return np.asarray(sum((-1.0) ** i * first[:, i] * minor for i, minor in enumerate(minors)))
