"""Smoothed aggregation: nested spaces inside a finite element space, found from its matrix and its near-kernel alone.

Nodes are gathered in aggregates. On every aggregate the candidates, functions of least energy such as constants, are
restricted to it and made orthonormal; steps of Jacobi's iteration smooth these restrictions, which are then the basis
of the next space. The method is that of P. Vaněk, J. Mandel and M. Brezina, Algebraic multigrid by smoothed
aggregation for second and fourth order elliptic problems, Computing 56 (1996) 179-196. PETSc and PyAMG offer it for a
fixed number of unknowns per node; vector fields that are tangential at a part of the boundary have fewer there.

n unknowns, m nodes, b candidates, n_k functions of space k.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import linalg

from fem_frames.mesh.geometry import Floats, Ints

STEPS = (2, 1)  # of Jacobi's iteration for the first space and for all others, whose matrices couple more neighbours
RANK = 1e-8  # singular values below this share of the largest count as zero


def nested_spaces(matrix: Any, nodes: Ints, candidates: Floats, coarsest: int) -> list[Any]:
    """Bases (n, n_k) of nested spaces, each inside the one before, until n_k is at most `coarsest`.

    `matrix` (n, n) is symmetric and positive definite, `nodes` (n,) has the node of each unknown, `candidates` (n, b)
    are functions that the spaces should contain nearly. A space that is small already is its own only one.
    """
    basis: Any = sparse.identity(matrix.shape[0], format="csr")
    found = []
    for P, _ in prolongations(matrix, nodes, candidates, coarsest):
        basis = sparse.csr_array(basis @ P)
        found.append(basis)
    return found or [basis]


def prolongations(
    matrix: Any, nodes: Ints, candidates: Floats, coarsest: int, steps: tuple[int, int] = STEPS
) -> list[tuple[Any, Ints]]:
    """(n_{k-1}, n_k) the bases of the spaces of `nested_spaces` in the basis of the space before; none if n is small.

    With each comes (n_k,) the aggregate of each function. `steps` of Jacobi's iteration smooth the first space and the
    others.
    """
    A, of_node, near_kernel = sparse.csr_array(matrix), np.asarray(nodes), np.asarray(candidates, np.float64)
    graph = _graph(A, of_node)
    found: list[tuple[Any, Ints]] = []
    while A.shape[0] > coarsest:
        aggregate = _aggregates(graph)
        tentative, of_node, near_kernel = _tentative(aggregate[of_node], near_kernel)
        if tentative.shape[1] > 0.8 * A.shape[0]:
            break  # nodes without neighbours are left
        P = _smoothed(A, tentative, steps[bool(found)])
        A = sparse.csr_array(P.T @ A @ P)
        # The graph of the aggregates, not that of the denser matrix: the ratio between spaces stays the same.
        graph = _contracted(graph, aggregate)
        found.append((P, of_node))
    return found


def orthonormal(functions: Any, matrix: Any) -> Floats:
    """(n, r) a basis of the span of `functions` (n, k), orthonormal in the inner product of `matrix`."""
    dense = functions.toarray() if sparse.issparse(functions) else np.asarray(functions)
    gram = dense.T @ (matrix @ dense)
    scale = np.sqrt(np.diag(gram))
    kept = scale > RANK * scale.max(initial=0.0)
    dense, gram, scale = dense[:, kept], gram[kept][:, kept], scale[kept]
    values, vectors = np.linalg.eigh(gram / np.outer(scale, scale))
    large = values > RANK * values.max(initial=0.0)
    # Functions of least energy per size come first.
    return np.asarray((dense / scale) @ (vectors[:, large] / np.sqrt(values[large]))[:, ::-1])


def _graph(A: Any, nodes: Ints) -> Any:
    """(m, m) which nodes are neighbours."""
    entries = A.tocoo()
    ends, count = (nodes[entries.row], nodes[entries.col]), int(nodes.max()) + 1
    return _pattern(sparse.csr_array((np.ones(len(entries.data)), ends), shape=(count, count)))


def _contracted(graph: Any, aggregate: Ints) -> Any:
    """Which aggregates are neighbours."""
    shape = (len(aggregate), int(aggregate.max()) + 1)
    members = sparse.csr_array((np.ones(len(aggregate)), (np.arange(len(aggregate)), aggregate)), shape=shape)
    return _pattern(sparse.csr_array(members.T @ graph @ members))


def _pattern(graph: Any) -> Any:
    graph.sum_duplicates()
    graph.data[:] = 1.0
    return graph


def _aggregates(graph: Any) -> Ints:
    """(m,) the aggregate of each node: a node with all its neighbours where they are free, the rest joins these."""
    starts, neighbours = graph.indptr.tolist(), graph.indices
    found, count = np.full(len(starts) - 1, -1, np.int64), 0
    for node in range(len(found)):
        around = neighbours[starts[node] : starts[node + 1]]
        if found[node] < 0 and (found[around] < 0).all():
            found[around], found[node] = count, count
            count += 1
    first = found.copy()
    for node in np.flatnonzero(first < 0).tolist():
        around = first[neighbours[starts[node] : starts[node + 1]]]
        joined = around[around >= 0]
        if len(joined):  # the aggregate that most of its neighbours belong to
            found[node] = np.bincount(joined).argmax()
        elif found[node] < 0:
            around = neighbours[starts[node] : starts[node + 1]]
            found[around[found[around] < 0]], found[node] = count, count
            count += 1
    return found


def _tentative(aggregate: Ints, candidates: Floats) -> tuple[Any, Ints, Floats]:
    """The orthonormal restrictions of the candidates to aggregates (n, n_1), their aggregates, and new candidates.

    `aggregate` (n,) belongs to unknowns. Restrictions that are linearly dependent on others are left out: an aggregate
    at the boundary may carry fewer functions than others.
    """
    order = np.argsort(aggregate, kind="stable")
    bounds = np.searchsorted(aggregate[order], np.arange(int(aggregate.max()) + 2))
    rows, columns, weights, owners, coarse = [], [], [], [], []
    count = 0
    for number, (first, last) in enumerate(itertools.pairwise(bounds.tolist())):
        own = order[first:last]
        if not len(own):
            continue
        left, values, right = np.linalg.svd(candidates[own], full_matrices=False)
        rank = int((values > RANK * max(values[0], 1e-300)).sum())
        rows.append(np.repeat(own, rank))
        columns.append(np.tile(count + np.arange(rank), len(own)))
        weights.append(left[:, :rank].ravel())
        coarse.append(values[:rank, None] * right[:rank])
        owners.append(np.full(rank, number))
        count += rank
    entries = np.concatenate(weights), (np.concatenate(rows), np.concatenate(columns))
    made = sparse.csr_array(entries, shape=(len(aggregate), count))
    # Aggregates without functions leave gaps in the numbers, which do no harm.
    return made, np.concatenate(owners), np.concatenate(coarse)


def _smoothed(A: Any, tentative: Any, steps: int) -> Any:
    inverse = sparse.diags(1 / A.diagonal())
    radius = _spectral_radius(A)
    for _ in range(steps):
        tentative = tentative - (4 / 3 / radius) * (inverse @ (A @ tentative))
    return sparse.csr_array(tentative)


def _spectral_radius(A: Any) -> float:
    """The largest eigenvalue of A relative to its diagonal."""
    root = sparse.diags(1 / np.sqrt(A.diagonal()))
    scaled = root @ A @ root
    if A.shape[0] < 20:
        return float(np.linalg.eigvalsh(scaled.toarray()).max())
    start = np.random.default_rng(0).standard_normal(A.shape[0])
    return float(linalg.eigsh(scaled, 1, which="LA", v0=start, tol=1e-2, return_eigenvectors=False)[0])
