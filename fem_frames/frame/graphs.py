"""Matrices of fields with values at points as weighted graphs, on all levels of a multigrid, in NumPy.

Every symmetric matrix is A = Gᵀ diag(c) G. A row of G is an edge between two unknowns, with the entries 1 and -1, or it
grounds one unknown, with the entry 1: such rows stand for given neighbours, reaction and Robin terms. The weights c are
linear in the data of the cells, and so are those of the coarser matrices PᵀAP: each level needs one table that is made
once.

Unknowns are the free nodal values, field after field. Edges join values of different fields too where the equation
couples these, as elasticity does; fields are interpolated separately.

n unknowns and E rows of G on a level, P points, K cells, L local nodal values of a cell, d dimension.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations, combinations_with_replacement

import numpy as np

from fem_frames.frame import level_matrices
from fem_frames.frame.arrays import FrameArrays
from fem_frames.frame.sparse import SparseMatrix
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.mesh.simplices import Entries

COARSEST = 32  # unknowns up to which a level is solved by its inverse matrix
NEGLIGIBLE = 1e-13  # weights below this share of the largest are rounding


@dataclass(frozen=True, eq=False)
class Graph:
    """The rows of G: edges (first, second), then grounded unknowns."""

    size: int  # n
    edges: Ints  # (edges, 2), first < second
    grounds: Ints  # (grounds,)
    points: Ints
    """(n,) the point of each unknown, on algebraic levels its aggregate: several unknowns have the same one."""

    @property
    def at_points(self) -> Ints:
        """(c, P) the unknowns at each point, of which there are at most c; n where there are fewer."""
        _, point, count = np.unique(self.points, return_inverse=True, return_counts=True)
        order, point = np.argsort(point.ravel(), kind="stable"), point.ravel()
        found = np.full((count.max(initial=1), len(count)), self.size)
        found[np.arange(self.size) - (np.cumsum(count) - count)[point[order]], point[order]] = order
        return found

    @property
    def incidence(self) -> SparseMatrix:
        """G (E, n)."""
        m, g = len(self.edges), len(self.grounds)
        rows = np.concatenate([np.arange(m), np.arange(m), m + np.arange(g)])
        columns = np.concatenate([self.edges[:, 0], self.edges[:, 1], self.grounds])
        return SparseMatrix.from_entries(rows, columns, np.repeat([1.0, -1.0, 1.0], [m, m, g]), (m + g, self.size))

    @property
    def places(self) -> tuple[Ints, Ints, Floats]:
        """Row, column and sign of every weight in the dense matrix A, for weights that are repeated 4 and 1 times."""
        first, second = self.edges.T
        rows = np.concatenate([first, second, first, second, self.grounds])
        columns = np.concatenate([first, second, second, first, self.grounds])
        signs = np.repeat([1.0, 1.0, -1.0, -1.0, 1.0], [*[len(first)] * 4, len(self.grounds)])
        return rows, columns, signs


@dataclass(frozen=True, eq=False)
class GraphLevel:
    """One level of a multigrid; the tables that its way of set-up does not need are None."""

    graph: Graph
    prolongation: SparseMatrix | None  # (n, unknowns of the level before); None on the coarsest level
    of_data: SparseMatrix | None = None
    """(E, data) weights c: on the finest level from the data of the matrix, on others from one number per cell."""
    of_finer: SparseMatrix | None = None
    """(E, weights of the next finer level) weights of the Galerkin product PᵀAP."""


@dataclass(frozen=True, eq=False)
class GraphHierarchy:
    """The levels of a multigrid from coarse to fine."""

    levels: tuple[GraphLevel, ...]
    diffusion: bool
    """Whether the data are positive numbers."""

    @property
    def signed(self) -> tuple[bool, ...]:
        """Per level, whether weights may be negative."""
        found = []
        for level in self.levels:
            table = level.of_data
            found.append(not self.diffusion or table is None or bool((table.weights < 0).any()))
        return tuple(found)


def graph_hierarchy(
    arrays: FrameArrays,
    diffusion: bool,
    facets: Ints | None = None,
    blocks: bool = False,
    coarsest: int = COARSEST,
) -> GraphHierarchy:
    """The levels for matrices of the frame's fields, which have their values at points.

    Their data are local matrices, K L L numbers, or with `blocks` symmetric blocks on states, K m m numbers. With
    `diffusion` they are K numbers, one per cell, times the local matrices of the Laplacian. On nested meshes the coarse
    matrices then follow from means over children, which is the Galerkin product; otherwise they are computed from the
    weights of the next finer level. `facets` (F, d) have matrices of their own, on top of a number per cell: the data
    are K + F d d numbers. Below a first mesh of more than `coarsest` unknowns come algebraic levels.
    """
    last = len(arrays.levels) - 1
    sizes = [len(_points(arrays, index)) for index in range(last + 1)]
    # The finest one of the small levels is the coarsest one here: products on tiny levels cost more than they save.
    first = max((index for index, n in enumerate(sizes) if n <= coarsest), default=0)
    families = arrays.volumes.reshape(-1, 2**arrays.dimension) if last else arrays.volumes[:, None]
    averages = diffusion and not arrays.curved and np.allclose(families, families[:, :1], rtol=1e-9, atol=0)
    levels: list[GraphLevel] = []
    finer: tuple[Graph, SparseMatrix] | None = None  # the next finer graph, and the prolongation to it
    for index in range(last, first - 1, -1):
        P = level_matrices.nodal_prolongation(arrays, index) if index > first else None
        of_data = of_finer = None
        if index == last or averages:
            of_data, graph = _from_cells(arrays, index, diffusion or facets is not None, facets, blocks)
        else:
            assert finer is not None
            of_finer, graph = _from_finer(*finer, _points(arrays, index))
        levels.append(GraphLevel(graph, P, of_data, of_finer))
        finer = None if P is None else (graph, P)
    levels[-1:] = _algebraic_levels(arrays, levels[-1], first, coarsest)
    return GraphHierarchy(tuple(reversed(levels)), diffusion)


def _points(arrays: FrameArrays, index: int) -> Ints:
    """(n,) the points of all free nodal values on a level, field after field."""
    return np.concatenate([field.free[index] for field in arrays.fields])


def _from_cells(
    arrays: FrameArrays, index: int, diffusion: bool, facets: Ints | None = None, blocks: bool = False
) -> tuple[SparseMatrix, Graph]:
    """The graph of a mesh's matrix, and its weights from numbers (E, K), blocks (E, K m m) or matrices (E, K L L).

    The numbers of cells are those of every field. Matrices of facets (F, d) add F d d columns, for the first field.
    Blocks are those of the finest level.
    """
    level, points = arrays.levels[index], _points(arrays, index)
    places = level_matrices.free_numbers(arrays, index)  # (K, L)
    edges, grounds = _Entries(), _Entries()
    if diffusion:
        columns, corners = level.cells.shape
        volumes = level_matrices.level_volumes(arrays, index)
        local = volumes[:, None, None] * np.einsum("kid,kjd->kij", level.gradients, level.gradients)
        source = np.arange(columns)
        for start in range(0, places.shape[1], corners):
            for i, j in combinations(range(corners), 2):
                _add_pair(edges, grounds, places[:, start + i], places[:, start + j], source, -local[:, i, j])
        if facets is not None:
            number = np.full(arrays.point_count(index), -1)
            number[arrays.fields[0].free[index]] = np.arange(len(arrays.fields[0].free[index]))
            columns += _add_matrices(edges, grounds, number[facets], columns)
    elif blocks:
        columns = _add_blocks(edges, grounds, places, level_matrices.local_states(arrays))
    else:
        columns = _add_matrices(edges, grounds, places, 0)
    return _graph_table(points, edges, grounds, columns)


def _add_matrices(edges: _Entries, grounds: _Entries, places: Ints, first: int) -> int:
    """Weights from local matrices (n, L, L) on unknowns (n, L), which are columns from `first` on; their number."""
    n, L = places.shape
    entry = first + np.arange(n * L * L).reshape(n, L, L)
    for i, j in combinations(range(L), 2):
        for a, b in ((i, j), (j, i)):
            _add_pair(edges, grounds, places[:, i], places[:, j], entry[:, a, b], np.full(n, -0.5))
    for i in range(L):  # the sum of row i grounds the unknown
        for j in range(L):
            _add_ground(grounds, places[:, i], entry[:, i, j], np.ones(n))
    return entry.size


def _add_blocks(edges: _Entries, grounds: _Entries, places: Ints, states: Floats) -> int:
    """Weights from blocks (K, m, m) on the states (K, m, L) of unknowns (K, L); their upper triangles are read."""
    K, m, L = states.shape
    number, sums = m * m * np.arange(K), states.sum(2)
    for a, b in combinations_with_replacement(range(m), 2):
        column = number + m * a + b

        def entry(one: Floats, other: Floats, a: int = a, b: int = b) -> Floats:
            """(K,) the product of the block's entry with two states."""
            return one[:, a] * other[:, b] + (one[:, b] * other[:, a] if a != b else 0.0)

        for i, j in combinations(range(L), 2):
            weights = -entry(states[:, :, i], states[:, :, j])
            if weights.any():
                _add_pair(edges, grounds, places[:, i], places[:, j], column, weights)
        for i in range(L):  # the sum of row i grounds the unknown
            weights = entry(states[:, :, i], sums)
            if weights.any():
                _add_ground(grounds, places[:, i], column, weights)
    return K * m * m


class _Entries:
    """Collects entries of a table: the key of a row, the column and the weight."""

    def __init__(self) -> None:
        self.keys: list[Ints] = []
        self.columns: list[Ints] = []
        self.weights: list[Floats] = []

    def add(self, keys: Ints, columns: Ints, weights: Floats) -> None:
        self.keys.append(keys)
        self.columns.append(columns)
        self.weights.append(weights)

    def joined(self) -> tuple[Ints, Ints, Floats]:
        if not self.keys:
            return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
        return np.concatenate(self.keys), np.concatenate(self.columns), np.concatenate(self.weights)


_SHIFT = 1 << 31


def _add_pair(edges: _Entries, grounds: _Entries, p: Ints, q: Ints, columns: Ints, weights: Floats) -> None:
    """Weights of the edges between unknowns p and q; where one of them is given (-1), it grounds the other one."""
    both = (p >= 0) & (q >= 0)
    low, high = np.minimum(p, q)[both], np.maximum(p, q)[both]
    edges.add(low.astype(np.int64) * _SHIFT + high, columns[both], weights[both])
    for one, other in ((p, q), (q, p)):
        lone = (one >= 0) & (other < 0)
        grounds.add(one[lone].astype(np.int64), columns[lone], weights[lone])


def _add_ground(grounds: _Entries, p: Ints, columns: Ints, weights: Floats) -> None:
    free = p >= 0
    grounds.add(p[free].astype(np.int64), columns[free], weights[free])


def _graph_table(points: Ints, edges: _Entries, grounds: _Entries, columns: int) -> tuple[SparseMatrix, Graph]:
    """Sums entries of equal rows and columns, and drops rows that are zero but for rounding."""
    tables, keys = [], []
    largest = max(float(np.abs(e.joined()[2]).max(initial=0.0)) for e in (edges, grounds))
    for entries in (edges, grounds):
        key, column, weight = entries.joined()
        known, row = np.unique(key, return_inverse=True)
        row, column, weight = _summed(row.ravel(), column, weight, columns, NEGLIGIBLE * largest)
        kept, row = np.unique(row, return_inverse=True)
        tables.append(SparseMatrix.from_entries(row.ravel(), column, weight, (len(kept), columns)))
        keys.append(known[kept])
    graph = Graph(len(points), np.stack(np.divmod(keys[0], _SHIFT), axis=1), keys[1], points)
    return SparseMatrix.stacked(*tables), graph


def _summed(rows: Ints, columns: Ints, weights: Floats, width: int, least: float) -> Entries:
    """Entries with equal rows and columns as one, without those whose size is at most `least`."""
    key, place = np.unique(rows.astype(np.int64) * width + columns, return_inverse=True)
    sums = np.bincount(place.ravel(), weights=weights, minlength=len(key))
    kept = np.abs(sums) > least
    return (*np.divmod(key[kept], width), sums[kept])


def _from_finer(graph: Graph, P: SparseMatrix, points: Ints) -> tuple[SparseMatrix, Graph]:
    """The table of the Galerkin product: PᵀAP = Σ_e c_e gᵀg with g = row e of GP, and its graph at these points."""
    product, E = _differences(graph, P), len(graph.edges) + len(graph.grounds)
    count = np.diff(product.starts)
    # All pairs of entries in the same row of GP.
    row = np.repeat(np.arange(E), count**2)
    within = np.arange(len(row)) - np.repeat(np.cumsum(count**2) - count**2, count**2)
    i, j = product.starts[row] + within // count[row], product.starts[row] + within % count[row]
    p, q, weight = product.columns[i], product.columns[j], product.weights[i] * product.weights[j]
    edges, grounds = _Entries(), _Entries()
    half = p < q
    _add_pair(edges, grounds, p[half], q[half], row[half], -weight[half])
    _add_ground(grounds, p, row, weight)  # sums of rows
    return _graph_table(points, edges, grounds, E)


def _differences(graph: Graph, P: SparseMatrix) -> SparseMatrix:
    """GP: the values of the coarse functions, as differences along edges and at grounded unknowns."""
    parts, edges = [], np.arange(len(graph.edges))
    grounds = len(edges) + np.arange(len(graph.grounds))
    for rows, unknowns, sign in (
        (edges, graph.edges[:, 0], 1.0),
        (edges, graph.edges[:, 1], -1.0),
        (grounds, graph.grounds, 1.0),
    ):
        count = np.diff(P.starts)[unknowns]
        local = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        entry = np.repeat(P.starts[unknowns], count) + local
        parts.append((np.repeat(rows, count), P.columns[entry], sign * P.weights[entry]))
    rows, columns, weights = (np.concatenate(a) for a in zip(*parts, strict=True))
    shape = (len(edges) + len(grounds), P.shape[1])
    return SparseMatrix.from_entries(*_summed(rows, columns, weights, shape[1], NEGLIGIBLE), shape)


def _algebraic_levels(arrays: FrameArrays, level: GraphLevel, index: int, coarsest: int) -> list[GraphLevel]:
    """The coarsest level of a multigrid on meshes with algebraic levels below it, from fine to coarse."""
    graph = level.graph
    if graph.size <= coarsest:
        return [level]
    from scipy import sparse

    from fem_frames.frame.aggregation import prolongations

    table, mesh_graph = _from_cells(arrays, index, diffusion=True)
    G = mesh_graph.incidence.to_scipy()
    laplacian = sparse.csr_array(G.T @ sparse.diags(table.to_scipy().sum(axis=1)) @ G)
    # A small multiple of the identity, so that a field without given values has a positive definite matrix too.
    matrix = laplacian + 1e-6 * sparse.diags(laplacian.diagonal())
    field = np.repeat(np.arange(len(arrays.fields)), [len(f.free[index]) for f in arrays.fields])
    # Constants in every field. Rotations too would save elasticity a third of its iterations, but make the tables of
    # the Galerkin products nine times larger in the plane, and twenty times in space.
    candidates = 1.0 * (field[:, None] == np.arange(len(arrays.fields)))
    found, nodes = [level], np.unique(graph.points, return_inverse=True)[1].ravel()
    for basis, points in prolongations(matrix, nodes, candidates, coarsest, steps=(1, 1)):
        P = SparseMatrix.from_scipy(basis)
        found[-1] = replace(found[-1], prolongation=P)
        of_finer, graph = _from_finer(graph, P, points)
        found.append(GraphLevel(graph, None, None, of_finer))
    return found
