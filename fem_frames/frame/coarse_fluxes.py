"""The coarse level of a flux in RT0: curls of potentials, and vector fields with values at points, interpolated.

Every field in H(div) is the sum of a curl and of a field in H1; both have nested spaces at points, found by smoothed
aggregation. This is the idea of the auxiliary spaces of R. Hiptmair and J. Xu, Nodal auxiliary space preconditioning in
H(curl) and H(div) spaces, SIAM J. Numer. Anal. 45 (2007) 2483-2509. Where the flux through the boundary is given, the
fields of H1 are tangential; potentials vanish there, in three dimensions their tangential components.

N points, F facets, d dimension.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from fem_frames.frame.aggregation import nested_spaces
from fem_frames.frame.coarse_space import coarse_level, h1_matrix, scalar_chain
from fem_frames.frame.raviart_thomas import FluxLevel
from fem_frames.frame.sparse import SparseMatrix
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.mesh.simplices import facet_vectors

FLAT = (
    0.2  # squared sine of 27 degrees, up to which the normals at a point count as one direction: those of an octagon do
)


def coarse_fluxes(level: FluxLevel, limit: int, norm: Any) -> SparseMatrix:
    """The functions of the coarse level as fluxes (F,) through all facets, normalised by the matrix `norm` (F, F)."""
    d, free = level.mesh.dimension, level.free
    if d == 1:
        return coarse_level([scalar_chain(norm, free, limit)], norm, free)
    h1 = h1_matrix(level.mesh, level.length)
    fields = [(_interpolation(level) @ basis)[free] for basis in _vector_chain(level, h1, limit, tangential=True)]
    potentials = [(level.curl_matrix() @ basis)[free] for basis in _potentials(level, h1, limit)]
    return coarse_level([chain for chain in (potentials, fields) if chain], norm, free)


def _potentials(level: FluxLevel, h1: Any, limit: int) -> list[Any]:
    """Nested spaces (faces, ·) of potentials whose curls do not change given fluxes."""
    faces, free = level.faces, level.free_faces()
    if not len(free):
        return []
    if level.mesh.dimension == 2:
        unit = sparse.csr_array((np.ones(len(free)), (free, np.arange(len(free)))), shape=(len(faces), len(free)))
        return [unit @ basis for basis in scalar_chain(h1, free, limit)]
    # The circulation of a linear field along an edge is its mean times the edge.
    edges = level.mesh.points[faces[:, 1]] - level.mesh.points[faces[:, 0]]
    on_edges = _integrals(faces, edges, len(level.mesh.points))
    kept = np.zeros(len(faces))
    kept[free] = 1.0
    on_edges = sparse.diags(kept) @ on_edges
    return [on_edges @ basis for basis in _vector_chain(level, h1, limit, tangential=False)]


def _interpolation(level: FluxLevel) -> Any:
    """(F, N d) vectors at points to the fluxes of the linear field, which are exact."""
    points = level.mesh.points
    return _integrals(level.facets, facet_vectors(points, level.facets), len(points))


def _integrals(simplices: Ints, vectors: Floats, count: int) -> Any:
    """(S, N d) the mean over the corners of each simplex, times its vector."""
    S, corners = simplices.shape
    d = vectors.shape[1]
    columns = simplices[:, :, None] * d + np.arange(d)
    rows = np.broadcast_to(np.arange(S)[:, None, None], columns.shape)
    weights = np.broadcast_to(vectors[:, None] / corners, columns.shape)
    return sparse.csr_array((weights.ravel(), (rows.ravel(), columns.ravel())), shape=(S, count * d))


def _vector_chain(level: FluxLevel, h1: Any, limit: int, *, tangential: bool) -> list[Any]:
    """Nested spaces (N d, ·) of vector fields with values at points, constants as candidates.

    Where fluxes are given, the fields are tangential to the boundary, or else normal to it.
    """
    d, count = level.mesh.dimension, len(level.mesh.points)
    directions, nodes = _directions(level, tangential)
    if not len(nodes):
        return []
    inner = directions.T @ sparse.kron(h1, sparse.identity(d), format="csr") @ directions
    constants = directions.T @ np.tile(np.eye(d), (count, 1))
    number = np.unique(nodes, return_inverse=True)[1]
    return [directions @ basis for basis in nested_spaces(inner, number, constants, d * limit)]


def _directions(level: FluxLevel, tangential: bool) -> tuple[Any, Ints]:
    """(N d, n) unit vectors at points in which fields may point, as columns, and the point of each."""
    points, d = level.mesh.points, level.mesh.dimension
    count, facets = len(points), level.facets[level.fixed]
    normal = facet_vectors(points, facets)
    normal = normal / np.linalg.norm(normal, axis=1, keepdims=True)
    squares, number = np.zeros((count, d, d)), np.bincount(facets.ravel(), minlength=count)
    np.add.at(squares, facets, (normal[:, :, None] * normal[:, None])[:, None])
    values, vectors = np.linalg.eigh(squares / np.maximum(number, 1)[:, None, None])  # (N, d), (N, d, d)
    inside = number == 0
    allowed = np.where(inside[:, None], True, values < FLAT if tangential else values > 1 - FLAT)
    vectors[inside] = np.eye(d)
    node, component = np.nonzero(allowed)
    weights = vectors[node, :, component]  # (n, d)
    rows = node[:, None] * d + np.arange(d)
    columns = np.broadcast_to(np.arange(len(node))[:, None], rows.shape)
    shape = (count * d, len(node))
    return sparse.csr_array((weights.ravel(), (rows.ravel(), columns.ravel())), shape=shape), node
