"""Smooth functions that are 1 on one Dirichlet part of the boundary and 0 on the others.

They carry the data of each part into the domain. The coarsest ones have the least energy ∫ |∇χ|²; each finer one is the
prolongation, corrected at new boundary points, so that the functions are as smooth as the parts allow.

N points, K cells, j a level.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.mesh.hierarchy import MeshHierarchy
from fem_frames.mesh.simplices import SimplexMesh
from fem_frames.problem.definition import Problem


def dirichlet_partition(
    hierarchy: MeshHierarchy, problem: Problem, conditions: Sequence[int]
) -> dict[int, tuple[Floats, ...]]:
    """For each of these Dirichlet conditions and each level, nodal values (N_j,) of its function.

    A point in two parts belongs to the condition that is listed first.
    """
    owners = _owners(hierarchy, problem)
    coarsest = _least_energy(hierarchy.meshes[0], owners[0], conditions)
    found = {}
    for number, values in zip(conditions, coarsest, strict=True):
        levels = [values]
        for level, owner in zip(hierarchy.levels[1:], owners[1:], strict=True):
            fine = np.concatenate([levels[-1], levels[-1][level.ends].mean(axis=1)])
            levels.append(np.where(owner < 0, fine, owner == number))
        found[number] = tuple(levels)
    return found


def _owners(hierarchy: MeshHierarchy, problem: Problem) -> list[Ints]:
    """For each level, (N_j,) the Dirichlet condition that gives u at each point, -1 if none does."""
    part, found = hierarchy.condition_facets(problem), []
    given = [i for i, condition in enumerate(problem.conditions) if condition.kind == "dirichlet"]
    for level in hierarchy.levels:
        owner = np.full(level.point_count, -1)
        for number in reversed(given):  # the first condition overwrites later ones
            owner[level.facets[part[level.facet_origin] == number]] = number
        found.append(owner)
    return found


def _least_energy(mesh: SimplexMesh, owner: Ints, conditions: Sequence[int]) -> list[Floats]:
    """Nodal values (N,) of the functions on one mesh; zero on parts of the domain without Dirichlet data."""
    from scipy import sparse
    from scipy.sparse import csgraph, linalg

    (gradients, volumes), N = mesh.hats, len(mesh.points)
    local = np.einsum("k,kid,kjd->kij", volumes, gradients, gradients)
    rows, columns = np.broadcast_arrays(mesh.cells[:, :, None], mesh.cells[:, None])
    A = sparse.csr_matrix((local.ravel(), (rows.ravel(), columns.ravel())), shape=(N, N))
    neighbours = sparse.csr_matrix((np.ones(rows.size), (rows.ravel(), columns.ravel())), shape=(N, N))
    component = csgraph.connected_components(neighbours, directed=False)[1]
    free = np.flatnonzero((owner < 0) & np.isin(component, component[owner >= 0]))
    solve = linalg.splu(A[free][:, free].tocsc()).solve if len(free) else None
    found = []
    for number in conditions:
        values = np.where(owner == number, 1.0, 0.0)
        if solve is not None:
            values[free] = solve(-(A @ values)[free])
        found.append(values)
    return found
