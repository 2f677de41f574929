"""Basis functions at points of the reference simplex, by basix, in the order and orientation of `mesh.simplices`.

n points, E edges of a cell, d dimension.
"""

from __future__ import annotations

import numpy as np

from fem_frames.fenicsx.door import basix, entities, reference_cell
from fem_frames.mesh.geometry import Floats
from fem_frames.mesh.simplices import facet_vectors, find, simplices


def tabulate(d: int, points: Floats) -> tuple[Floats, Floats]:
    """P1 on the reference simplex: values (n, d+1) and derivatives (n, d+1, d) at points (n, d)."""
    cell, variant = reference_cell(d), basix.LagrangeVariant.gll_warped
    table = basix.create_element(basix.ElementFamily.P, cell, 1, variant).tabulate(1, points)
    table = np.asarray(table).reshape(d + 1, len(points), d + 1)
    return table[0], np.moveaxis(table[1:], 0, -1)


def tabulate_edges(d: int, points: Floats) -> tuple[Floats, Floats, Floats]:
    """The functions of edges in P2 on the reference simplex: values (n, E), derivatives (n, E, d) and (n, E, d, d).

    Edges have the order of `mesh.simplices`.
    """
    cell, variant = reference_cell(d), basix.LagrangeVariant.gll_warped
    element = basix.create_element(basix.ElementFamily.P, cell, 2, variant)
    place = find(simplices(np.arange(d + 1)[None], 1)[0], entities(d, 1))
    own = [element.entity_dofs[1][i][0] for i in place]
    table = np.asarray(element.tabulate(2, points)).reshape(-1, len(points), (d + 1) * (d + 2) // 2)[..., own]
    unit = np.eye(d, dtype=int)
    first = [table[basix.index(*unit[i].tolist())] for i in range(d)]
    second = [[table[basix.index(*(unit[i] + unit[j]).tolist())] for j in range(d)] for i in range(d)]
    return table[0], np.stack(first, axis=-1), np.moveaxis(np.array(second), (0, 1), (-2, -1))


def tabulate_facets(d: int, points: Floats) -> tuple[Floats, Floats]:
    """RT0 on the reference simplex with flux 1 through each facet: values (n, d+1, d) and divergences (n, d+1).

    Facets have the order and orientation of `mesh.simplices`; P1 for d = 1.
    """
    if d == 1:
        values, derivatives = tabulate(1, points)
        return values[..., None], derivatives[..., 0]
    cell, variant = reference_cell(d), basix.LagrangeVariant.legendre
    element = basix.create_element(basix.ElementFamily.RT, cell, 1, variant)
    corners, facets = np.concatenate([np.zeros((1, d)), np.eye(d)]), simplices(np.arange(d + 1)[None], d - 1)[0]
    both = np.concatenate([points, corners[facets].mean(axis=1)])
    # basix numbers facets by the opposite corner, which is the reverse order.
    table = np.asarray(element.tabulate(1, both)).reshape(d + 1, len(both), d + 1, d)[:, :, ::-1]
    middle = table[0, len(points) :]  # (d+1, d+1, d) functions at the midpoint of each facet
    flux = np.einsum("ffi,fi->f", middle, facet_vectors(corners, facets))
    table = table[:, : len(points)] / flux[:, None]
    return table[0], np.einsum("inci->nc", table[1:])
