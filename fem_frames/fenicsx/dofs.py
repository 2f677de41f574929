"""Maps DOLFINx's degrees of freedom to nodal values in the numbering of the input mesh, on each rank.

Local numbers refer to the (mixed) space `whole`, owned dofs come first; d dimension.
"""

from __future__ import annotations

import numpy as np

from fem_frames.fenicsx import door
from fem_frames.fenicsx.door import fem
from fem_frames.mesh.geometry import Floats, Ints, facets_of
from fem_frames.mesh.simplices import facet_vectors, find


def node_dofs(V: fem.FunctionSpace, whole: fem.FunctionSpace) -> tuple[Ints, Ints]:
    """Owned dofs of a P1 or P2 (sub)space at points, in the local numbering of `whole`, and the input node of each."""
    index_map = whole.dofmap.index_map
    node = np.full(index_map.size_local + index_map.num_ghosts, -1, np.int64)
    node[_dofs_of_parts(V, 0)] = door.nodes(V.mesh)
    owned = np.flatnonzero(node[: index_map.size_local] >= 0)
    return owned, door.input_nodes(V.mesh)[node[owned]]


def edge_dofs(V: fem.FunctionSpace, whole: fem.FunctionSpace, edges: Ints) -> tuple[Ints, Ints]:
    """Owned dofs of a P2 (sub)space at midpoints of edges, in the local numbering of `whole`, and the row of `edges`.

    `edges` (E, 2) has the input nodes of all edges.
    """
    index_map, d = whole.dofmap.index_map, V.mesh.topology.dim
    place = np.full(index_map.size_local + index_map.num_ghosts, -1, np.int64)
    table = door.input_nodes(V.mesh)[door.nodes(V.mesh)][:, door.entities(d, 1)]  # (K, L, 2)
    place[_dofs_of_parts(V, 1)] = find(table.reshape(-1, 2), edges).reshape(table.shape[:2])
    owned = np.flatnonzero(place[: index_map.size_local] >= 0)
    return owned, place[owned]


def bubbles_from_middles(u: Floats, middles: Floats, edges: Ints) -> Floats:
    """(…, E) coefficients of edge bubbles of a P2 function from its values (…, N) at points and (…, E) at midpoints."""
    return np.asarray(middles - u[..., edges].mean(axis=-1))


def middles_from_bubbles(u: Floats, bubbles: Floats, edges: Ints) -> Floats:
    """(…, E) values of a P2 function at midpoints of edges from its values (…, N) at points and its edge bubbles."""
    return np.asarray(bubbles + u[..., edges].mean(axis=-1))


def facet_dofs(V: fem.FunctionSpace, whole: fem.FunctionSpace, facets: Ints) -> tuple[Ints, Ints, Floats]:
    """Owned dofs of an RT0 subspace in the local numbering of `whole`, the row of `facets` of each, and factors.

    `facets` has the input nodes of all facets. A dof is the flux to the positive side of `mesh.simplices` times its
    factor. The factor depends on release and dimension, so it is computed from the dofs of constant fields.
    """
    mesh, index_map = V.mesh, whole.dofmap.index_map
    d, count = mesh.topology.dim, index_map.size_local + index_map.num_ghosts
    table = np.sort(facets_of(door.input_nodes(mesh)[door.nodes(mesh)]), axis=2)  # (K, d+1, d)
    place, normal, values = np.full(count, -1, np.int64), np.ones((count, d)), np.zeros((count, d))
    place[door.dofs(V)] = find(table.reshape(-1, d), facets).reshape(table.shape[:2])  # facet i leaves out corner i
    x = np.zeros((int(facets.max()) + 1, d))
    x[door.input_nodes(mesh)] = door.coordinates(mesh)
    normal[door.dofs(V)] = facet_vectors(x, table.reshape(-1, d)).reshape(table.shape)
    alone, to_whole = V.collapse()
    for axis, constant in enumerate(np.eye(d)):
        function = fem.Function(alone)
        function.interpolate(lambda at, constant=constant: np.outer(constant, np.ones(at.shape[1])))
        values[np.asarray(to_whole), axis] = function.x.array
    owned = np.flatnonzero(place[: index_map.size_local] >= 0)
    factor = (values * normal).sum(axis=1) / (normal**2).sum(axis=1)
    return owned, place[owned], factor[owned]


def global_node_dofs(V: fem.FunctionSpace, whole: fem.FunctionSpace, wanted: Ints) -> Ints:
    """Dofs of a P1 subspace at input nodes of this rank's cells, in the global numbering of `whole`."""
    of_node = np.full(int(wanted.max(initial=-1)) + 1, -1, np.int64)
    local, node = door.dofs(V).ravel(), door.input_nodes(V.mesh)[door.nodes(V.mesh)].ravel()
    here = node < len(of_node)
    of_node[node[here]] = whole.dofmap.index_map.local_to_global(local[here].astype(np.int32))
    return of_node[wanted]


def _dofs_of_parts(V: fem.FunctionSpace, k: int) -> Ints:
    """(K, C) local dofs of the k-dimensional parts of each cell, one for each part, in the order of `door.entities`."""
    layout, count = V.dofmap.dof_layout, len(door.entities(V.mesh.topology.dim, k))
    return np.asarray(door.dofs(V)[:, [layout.entity_dofs(k, i)[0] for i in range(count)]])
