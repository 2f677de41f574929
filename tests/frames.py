"""Frames of every kind for tests, and dense matrices for them by routes that share nothing with the operators."""

from dataclasses import replace
from functools import cache
from itertools import combinations, combinations_with_replacement

import numpy as np
import torch
from scipy import sparse

from fem_frames import (
    ByRegion,
    Grid,
    MeshArrays,
    MeshHierarchy,
    Pointwise,
    Problem,
    Uniform,
    export_frame,
    make_problem,
)
from fem_frames.frame import matrices


def mixed(d):
    """Essential and natural boundary data that are not zero, a and f vary with x and y."""
    return Problem(
        mesh=Grid((1,) * d),
        coefficient=Pointwise(lambda x, y: 1 + y[..., 0] * x[..., 0] + y[..., 1] * x[..., -1] ** 2),
        parameters=Uniform((0.0, 0.0), (1.0, 2.0)),
        source=lambda x, y: 1 + y[..., 1] * x[..., 0] ** 2,
        dirichlet=lambda x: np.isclose(x[:, 0], 0),
        dirichlet_value=lambda x: 1 + x[:, 0] + x[:, -1],
        neumann={"rest": lambda x: 0.5 + x[:, -1]},
        quadrature_degree=4,
    )


def bent(d):
    """Essential data that are not in P1, for quadratic elements; the rest of the boundary is insulated."""
    return replace(mixed(d), dirichlet_value=lambda x: 1 + x[:, 0] + x[:, -1] ** 2, neumann={})


def _longest_edge():
    return Problem(Grid((2, 1)), ByRegion({0: 0}), Uniform((0.5,), (1.5,)), refinement="dolfinx")


def _raised():
    """A lift that is constant, so that its states vanish, and a source that depends on y."""
    return Problem(
        mesh=Grid((1, 1)),
        coefficient=ByRegion({0: 0}),
        parameters=Uniform((0.5,), (1.5,)),
        source=lambda x, y: 1 + y[..., 0] * x[..., 1],
        dirichlet_value=2.0,
    )


def fine_square(n):
    """A coarse mesh of n × n squares in millimetres, where u is given on one side."""
    sides = [np.linspace(0.0, 1000.0, n + 1)] * 2
    x = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2)
    corner = np.array([i * (n + 1) + j for i in range(n) for j in range(n)])
    halves = np.array([[0, n + 1, n + 2], [0, n + 2, 1]])
    cells = (corner[:, None, None] + halves).reshape(-1, 3)
    return Problem(
        mesh=MeshArrays(x, cells),
        coefficient=ByRegion({0: 0}),
        parameters=Uniform((0.5,), (1.5,)),
        source=1e-6,
        dirichlet=lambda x: np.isclose(x[:, 0], 0),
    )


def ring(**changes):
    """A square with a hole, where some fields without divergence are no curls."""
    return replace(make_problem("ring"), **changes)


CASES = {
    "interval": (lambda: make_problem("quarters"), 5, "energy", None),
    "interval, mixed": (lambda: mixed(1), 4, "energy", None),
    "interval, LS": (lambda: make_problem("quarters"), 5, "least-squares", None),
    "interval, LS, level 0": (lambda: make_problem("quarters"), 4, "least-squares", 0),
    "interval, LS, mixed": (lambda: mixed(1), 4, "least-squares", None),
    "square": (lambda: make_problem("checkerboard"), 3, "energy", None),
    "square, mixed": (lambda: mixed(2), 3, "energy", None),
    "square, raised": (_raised, 3, "energy", None),
    "square, one level": (lambda: replace(make_problem("checkerboard"), coarse="none"), 3, "energy", 3),
    "square, dolfinx": (_longest_edge, 3, "energy", None),
    "square, coarse level": (lambda: fine_square(12), 1, "energy", None),
    "square, LS, coarse level": (lambda: fine_square(4), 0, "least-squares", None),
    "square, lognormal": (lambda: make_problem("lognormal"), 3, "energy", None),
    "square, inclusion": (lambda: make_problem("inclusion"), 3, "energy", None),
    "L-shape": (lambda: make_problem("lshape"), 2, "energy", None),
    "square, LS": (lambda: make_problem("checkerboard"), 3, "least-squares", None),
    "square, LS, mixed": (lambda: mixed(2), 2, "least-squares", None),
    "square, weighted": (lambda: make_problem("checkerboard"), 2, "weighted-least-squares", None),
    "square, weighted, mixed": (lambda: mixed(2), 2, "weighted-least-squares", None),
    "ring, LS": (ring, 1, "least-squares", None),
    "cube, LS": (lambda: make_problem("cube"), 1, "least-squares", None),
    "cube, LS, mixed": (lambda: mixed(3), 1, "least-squares", None),
    "cube": (lambda: make_problem("cube"), 2, "energy", None),
    "cube, mixed": (lambda: mixed(3), 2, "energy", None),
    "interval, P2": (lambda: bent(1), 3, "energy-p2", None),
    "square, P2": (lambda: bent(2), 2, "energy-p2", None),
    "square, P2, constant": (lambda: make_problem("checkerboard"), 2, "energy-p2", None),
    "cube, P2": (lambda: bent(3), 1, "energy-p2", None),
}


SIX = (
    "interval, LS, mixed",
    "square, mixed",
    "square, LS, mixed",
    "square, weighted, mixed",
    "cube, mixed",
    "cube, LS, mixed",
)
"""Every dimension, element and formulation, each with a and f that vary and all boundary data: for one code's sake."""


@cache
def case(name):
    """(problem, arrays)"""
    make, levels, formulation, first = CASES[name]
    problem = make()
    return problem, export_frame(MeshHierarchy.from_problem(problem, levels), problem, formulation, first)


def finest_level(arrays):
    """The frame of the finest level alone."""
    level = replace(arrays.levels[-1], ends=np.zeros((0, 2), np.int64))
    fields = tuple(replace(f, free=f.free[-1:], lift=f.lift[-1:]) for f in arrays.fields)
    nodal = (f for f in arrays.families if f.name == f.field)
    last = {
        f.name: f.functions[-1].part(f.coarse if len(f.free) == 1 else 0, f.functions[-1].shape[0])
        for f in arrays.families
    }
    families = tuple(replace(f, free=f.free[-1:], functions=(last[f.name],), coarse=0) for f in nodal)
    return replace(arrays, first_level=arrays.finest_level, levels=(level,), fields=fields, families=families)


def samples(problem, count, dtype=torch.float64, seed=0):
    """(count, p) parameters that every dtype represents exactly."""
    return torch.as_tensor(problem.parameters.sample(count, seed)).bfloat16().to(dtype)


def dense_differential(arrays):
    """(K m, Nhat) D from the assembled one, rows scaled by |T|^{1/2}."""
    D = matrices.cell_differential(arrays).toarray()
    return np.repeat(np.sqrt(arrays.volumes), len(D) // len(arrays.volumes))[:, None] * D


def dense_forms(problem, arrays, y):
    """(B, Nhat, Nhat) HᵀA_yH from basix's tables at quadrature points."""
    D = matrices.quadrature_differential(arrays, problem.quadrature_degree).toarray()
    data = matrices.quadrature_data(arrays, problem.quadrature_degree)
    d, points = arrays.dimension, data.weights.size
    rows = D.reshape(points, -1, D.shape[1])
    tables = problem.tabulate(data.points, arrays.regions)
    a = problem.coefficient_values(tables, y, data.points).reshape(len(y), points)
    found = []
    for values in a:
        root = np.sqrt(data.weights).reshape(-1, 1, 1)
        if arrays.formulation == "energy":
            parts = [root * np.sqrt(values)[:, None, None] * rows]
        elif arrays.formulation == "energy-p2":
            gradients = rows[:, 1 : 1 + d] + rows[:, 2 + d : 2 + 2 * d]
            parts = [root * np.sqrt(values)[:, None, None] * gradients]
        else:
            weight = np.sqrt(values)[:, None, None] if arrays.formulation.startswith("weighted") else 1.0
            flux = weight * (rows[:, d : 2 * d] / values[:, None, None] - rows[:, :d])
            parts = [root * flux, arrays.length * root * rows[:, 2 * d :]]
        found.append(sum(part.reshape(-1, D.shape[1]).T @ part.reshape(-1, D.shape[1]) for part in parts))
    return np.stack(found)


def nodal_forms(problem, arrays, y):
    """(B, N, N) A_y: on the finest level alone the frame is the nodal basis, but for the normalisation."""
    basis = finest_level(arrays)
    height = np.concatenate([f.scale[0] for f in basis.families])
    return dense_forms(problem, basis, y) / np.outer(height, height)


def dense_residuals(problem, arrays, y):
    """(B, K, r, m) what is squared on a cell, of its state times |T|^{1/2}: by NumPy, at quadrature points.

    (E): √a g, in P2 with the gradient g of u at the centre plus that of the bubbles, g + S (x - x_c). (LS): the
    divergence q, and τ/a - g with τ = τ_c + (x - x_c) q/d, times √a with weights.
    """
    data = matrices.quadrature_data(arrays, problem.quadrature_degree)
    K, Q, d = data.points.shape
    tables = problem.tabulate(data.points, arrays.regions)
    a = np.broadcast_to(problem.coefficient_values(tables, y, data.points), (len(y), K, Q))[..., None, None]
    roots = np.sqrt(data.weights / arrays.volumes[:, None])[..., None, None]
    if arrays.formulation == "energy":
        return (roots * np.sqrt(a) * np.eye(d)).reshape(len(y), K, Q * d, d)
    if arrays.formulation == "energy-p2":
        gradients = np.zeros((K, Q, d, 2 + 2 * d + d * (d + 1) // 2))
        gradients[..., 1 : 1 + d] = gradients[..., 2 + d : 2 + 2 * d] = np.eye(d)
        off = (data.points - arrays.centres[:, None]) / arrays.fields[1].element.unit
        for place, (i, j) in enumerate(combinations_with_replacement(range(d), 2)):
            gradients[:, :, i, 2 + 2 * d + place] = off[..., j]
            gradients[:, :, j, 2 + 2 * d + place] = off[..., i]
        return (roots * np.sqrt(a) * gradients).reshape(len(y), K, Q * d, -1)
    flux = np.zeros((len(y), K, Q, d, 2 * d + 1))
    flux[..., :d] = -np.eye(d)
    flux[..., d : 2 * d] = np.eye(d) / a
    flux[..., 2 * d :] = (data.points - arrays.centres[:, None])[..., None] / (d * a)
    flux *= roots * (np.sqrt(a) if arrays.formulation.startswith("weighted") else 1.0)
    divergence = arrays.length * np.broadcast_to(np.eye(2 * d + 1)[2 * d :], (len(y), K, 1, 2 * d + 1))
    return np.concatenate([divergence, flux.reshape(len(y), K, Q * d, -1)], axis=2)


def block_diagonal(blocks):
    """(B, K r, K m) from (B, K, r, m)."""
    return np.stack([sparse.block_diag(list(of_sample)).toarray() for of_sample in blocks])


def dense_blocks(problem, arrays, y):
    """(B, K m, K m) C_y."""
    residuals = dense_residuals(problem, arrays, y)
    return block_diagonal(np.swapaxes(residuals, 2, 3) @ residuals)


def dense_localisation(arrays):
    """(K L, N) E: which free value is a cell's value at its corners, or through its facets in the order of corners."""
    cells, columns, start = arrays.levels[-1].cells, [], 0
    for f in arrays.fields:
        if f.degree == 0:
            numbers = {(int(point),): start + i for i, point in enumerate(f.free[-1])}
            local = [[(int(point),) for point in cell] for cell in cells]
        else:
            facets = arrays.simplices(len(arrays.levels) - 1, f.degree)[0]
            numbers = {tuple(sorted(facets[j].tolist())): start + i for i, j in enumerate(f.free[-1])}
            local = [combinations(sorted(cell.tolist()), f.degree + 1) for cell in cells]
        columns.append([[numbers.get(simplex, -1) for simplex in simplices] for simplices in local])
        start += len(f.free[-1])
    places = np.concatenate(columns, axis=1).ravel()
    return 1.0 * (places[:, None] == np.arange(start))
