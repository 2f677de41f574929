"""Renumbers the unknowns of a multigrid's levels so that the numbers of neighbours differ by little.

Points of refined meshes are numbered level by level, so the neighbours of a point are scattered. The children of a cell
are contiguous, which makes the order of the cells a space-filling curve. Points of the finest level follow it, or they
are in the order of Cuthill and McKee, that of a wave through the mesh: then steps of work can go through all unknowns
close behind each other, and `Chunks` says how close. Points of coarser levels follow those of the finest one.

n unknowns and E rows of G on a level.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fem_frames.frame.graphs import Graph, GraphHierarchy, GraphLevel
from fem_frames.frame.sparse import SparseMatrix
from fem_frames.mesh.geometry import Ints


def reordered(tables: GraphHierarchy, as_wave: bool) -> tuple[GraphHierarchy, Ints]:
    """The same hierarchy with other numbers of unknowns and rows, as a wave goes or along the cells.

    The old numbers (N,) of the finest unknowns come with it. Unknowns at the same point get consecutive numbers, and
    edges follow their lower unknown. The data keep their numbers.
    """
    graph = tables.levels[-1].graph
    order = _order(_wave(graph) if as_wave else _first_cells(tables), graph.points)
    finest, made = order, []
    rows = np.empty(0, np.int64)
    for index in range(len(tables.levels) - 1, -1, -1):
        level, places = tables.levels[index], _inverse(order)
        graph, row_order = _renumbered(level.graph, places)
        of_data = None if level.of_data is None else _moved(level.of_data, _inverse(row_order), None)
        of_finer = None if level.of_finer is None else _moved(level.of_finer, _inverse(row_order), rows)
        rows, P = _inverse(row_order), level.prolongation
        if P is not None:
            coarser = _order(_first_rows(P, places), tables.levels[index - 1].graph.points)
            P, order = _moved(P, places, _inverse(coarser)), coarser
        made.append(GraphLevel(graph, P, of_data, of_finer))
    return replace(tables, levels=tuple(made[::-1])), finest


def _order(keys: Ints, points: Ints) -> Ints:
    """(n,) the unknowns, point by point, in the order of each point's least key."""
    known, point = np.unique(points, return_inverse=True)
    least = np.full(len(known), np.iinfo(np.int64).max)
    np.minimum.at(least, point.ravel(), keys)
    return np.lexsort((point.ravel(), least[point.ravel()]))


def _first_cells(tables: GraphHierarchy) -> Ints:
    """(n,) for each unknown of the finest level the first column of its weights' table, which grows with the cell."""
    level = tables.levels[-1]
    table, graph = level.of_data, level.graph
    assert table is not None
    first = table.columns[table.starts[:-1]]  # no row is empty; columns are sorted
    found = np.full(graph.size, np.iinfo(np.int64).max)
    m = len(graph.edges)
    for unknowns, columns in (
        (graph.edges[:, 0], first[:m]),
        (graph.edges[:, 1], first[:m]),
        (graph.grounds, first[m:]),
    ):
        np.minimum.at(found, unknowns, columns)
    return found


def _wave(graph: Graph) -> Ints:
    """(n,) the place of each unknown's point in the order of Cuthill and McKee."""
    from scipy import sparse
    from scipy.sparse import csgraph

    known, point = np.unique(graph.points, return_inverse=True)
    point = point.ravel()
    pairs = point[graph.edges]
    ends = np.concatenate([pairs, pairs[:, ::-1]]).T
    joined = sparse.csr_array((np.ones(ends.shape[1], np.int8), ends), shape=(len(known), len(known)))
    return _inverse(csgraph.reverse_cuthill_mckee(joined, symmetric_mode=True))[point]


def _first_rows(P: SparseMatrix, places: Ints) -> Ints:
    """(columns,) for each column of P the first of its rows, in their new places."""
    found = np.full(P.shape[1], P.shape[0])
    np.minimum.at(found, P.columns, np.repeat(places, np.diff(P.starts)))
    return found


def _renumbered(graph: Graph, places: Ints) -> tuple[Graph, Ints]:
    """The graph with its unknowns moved to `places`, and the old numbers (E,) of its rows."""
    edges, grounds, m = np.sort(places[graph.edges], axis=1), places[graph.grounds], len(graph.edges)
    edge_order, ground_order = np.lexsort(edges.T[::-1]), np.argsort(grounds)
    row_order = np.concatenate([edge_order, m + ground_order])
    renumbered = Graph(graph.size, edges[edge_order], grounds[ground_order], graph.points[_inverse(places)])
    return renumbered, row_order


def _moved(matrix: SparseMatrix, rows: Ints, columns: Ints | None) -> SparseMatrix:
    """The matrix with its rows, and columns if given, moved to these places."""
    row = np.repeat(rows, np.diff(matrix.starts))
    column = matrix.columns if columns is None else columns[matrix.columns]
    return SparseMatrix.from_entries(row, column, matrix.weights, matrix.shape)


def _inverse(order: Ints) -> Ints:
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return places


@dataclass(frozen=True)
class Chunks:
    """Parts of a level's points, which follow each other, and how far work on one of them depends on others."""

    first: Ints
    """(points + 1,) where the unknowns of each point begin."""
    points: Ints
    """(count + 1,) where each chunk begins."""
    inverses: Ints
    """(count + 1,) where its blocks of unknowns at the same point begin, among the entries of all such blocks."""
    edges: Ints
    """(count + 1,) where the edges to higher unknowns begin."""
    reach: Ints
    """(count,) how many chunks have all neighbours of this chunk and of those before it."""
    coarse: Ints
    """(count + 1,) how many coarse unknowns meet the chunks before alone."""

    @classmethod
    def of(cls, level: GraphLevel, size: int) -> Chunks:
        """Chunks of `size` points of a level from `reordered`."""
        graph, n = level.graph, level.graph.size
        first = np.concatenate([[0], np.flatnonzero(np.diff(graph.points)) + 1, [n]])
        points = np.append(np.arange(0, len(first) - 1, size), len(first) - 1)
        begin, count = first[points], len(points) - 1
        chunk = np.repeat(np.arange(count), np.diff(begin))  # (n,) of each unknown
        reach = np.arange(count)
        np.maximum.at(reach, chunk[graph.edges[:, 0]], chunk[graph.edges[:, 1]])
        coarse = np.zeros(count + 1, np.int64)
        if level.prolongation is not None:
            P = level.prolongation
            last = np.zeros(P.shape[1], np.int64)
            np.maximum.at(last, P.columns, np.repeat(chunk, np.diff(P.starts)))
            coarse[1:] = np.searchsorted(np.maximum.accumulate(last), np.arange(count), side="right")
        return cls(
            first=first,
            points=points,
            inverses=np.concatenate([[0], np.cumsum(np.diff(first) ** 2)])[points],
            edges=np.searchsorted(graph.edges[:, 0], begin),
            reach=np.maximum.accumulate(reach) + 1,
            coarse=coarse,
        )
