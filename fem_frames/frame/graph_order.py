"""Renumbers the unknowns of a multigrid's levels so that neighbours in the mesh are neighbours in memory.

Points of refined meshes are numbered level by level, so the neighbours of a point are scattered. The children of a cell
are contiguous, which makes the order of the cells a space-filling curve: unknowns follow it here.

n unknowns and E rows of G on a level.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fem_frames.frame.graphs import Graph, GraphHierarchy, GraphLevel
from fem_frames.frame.sparse import SparseMatrix
from fem_frames.mesh.geometry import Ints


def reordered(tables: GraphHierarchy) -> tuple[GraphHierarchy, Ints]:
    """The same hierarchy with other numbers of unknowns and rows, and the old numbers (N,) of the finest unknowns.

    Unknowns at the same point get consecutive numbers.
    Columns of `of_cells` keep their numbers. Weights of the finest level that are given instead of computed, by
    `of_local`, keep theirs too.
    """
    order = _order(_first_cells(tables), tables.levels[-1].graph.points)
    finest, rows, made = order, np.empty(0, np.int64), []
    for index in range(len(tables.levels) - 1, -1, -1):
        level, places = tables.levels[index], _inverse(order)
        given = level.of_cells is None and index == len(tables.levels) - 1
        graph, row_order = _renumbered(level.graph, places, keep=given)
        of_cells = None if level.of_cells is None else _moved(level.of_cells, _inverse(row_order), None)
        of_finer = None if level.of_finer is None else _moved(level.of_finer, _inverse(row_order), rows)
        rows, P = _inverse(row_order), level.prolongation
        if P is not None:
            coarser = _order(_first_rows(P, places), tables.levels[index - 1].graph.points)
            P, order = _moved(P, places, _inverse(coarser)), coarser
        made.append(GraphLevel(graph, P, of_cells, of_finer))
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
    table, graph = level.of_cells or tables.of_local, level.graph
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


def _first_rows(P: SparseMatrix, places: Ints) -> Ints:
    """(columns,) for each column of P the first of its rows, in their new places."""
    found = np.full(P.shape[1], P.shape[0])
    np.minimum.at(found, P.columns, np.repeat(places, np.diff(P.starts)))
    return found


def _renumbered(graph: Graph, places: Ints, keep: bool) -> tuple[Graph, Ints]:
    """The graph with its unknowns moved to `places`, and the old numbers (E,) of its rows, which `keep` leaves."""
    edges, grounds, m = np.sort(places[graph.edges], axis=1), places[graph.grounds], len(graph.edges)
    points = graph.points[_inverse(places)]
    if keep:
        return Graph(graph.size, edges, grounds, points), np.arange(m + len(grounds))
    edge_order, ground_order = np.lexsort(edges.T[::-1]), np.argsort(grounds)
    row_order = np.concatenate([edge_order, m + ground_order])
    return Graph(graph.size, edges[edge_order], grounds[ground_order], points), row_order


def _moved(matrix: SparseMatrix, rows: Ints, columns: Ints | None) -> SparseMatrix:
    """The matrix with its rows, and columns if given, moved to these places."""
    row = np.repeat(rows, np.diff(matrix.starts))
    column = matrix.columns if columns is None else columns[matrix.columns]
    return SparseMatrix.from_entries(row, column, matrix.weights, matrix.shape)


def _inverse(order: Ints) -> Ints:
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return places
