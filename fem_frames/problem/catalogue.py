"""The built-in problems."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fem_frames.memory import check_memory
from fem_frames.mesh.coarse import Grid, MeshArrays
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.problem.coefficients import Array, ByRegion, ExpAffine, Pointwise
from fem_frames.problem.definition import Gaussian, Problem, Uniform, whole_number


def quarters(low: float = 0.5, high: float = 1.5) -> Problem:
    """Unit interval with one parameter per quarter, f = 1: the paper's experiments."""
    return Problem(
        mesh=Grid((1,)),
        coefficient=ByRegion.each(4),
        parameters=Uniform((low,) * 4, (high,) * 4),
        regions=lambda x: _blocks(x, 4),
        first_level=1,
        coarse="none",  # as in the paper
        resolved_from=2,
    )


def checkerboard(blocks: int = 2, low: float = 0.5, high: float = 1.5) -> Problem:
    """Unit square with one parameter on each of blocks × blocks squares, f = 1."""
    return _block_problem(2, blocks, low, high)


def cube(blocks: int = 2, low: float = 0.5, high: float = 1.5) -> Problem:
    """Unit cube with one parameter on each of blocks × blocks × blocks cubes, f = 1."""
    return _block_problem(3, blocks, low, high)


def lshape(low: float = 0.5, high: float = 1.5) -> Problem:
    """(-1, 1)² without its lower right quarter, with one parameter on each of the three squares, f = 1."""
    points = np.array([[-1, -1], [0, -1], [-1, 0], [0, 0], [1, 0], [-1, 1], [0, 1], [1, 1]], np.float64)
    cells = np.array([[0, 1, 3], [0, 3, 2], [2, 3, 6], [2, 6, 5], [3, 4, 7], [3, 7, 6]])
    return Problem(
        mesh=MeshArrays(points, cells, regions=np.repeat(np.arange(3), 2)),
        coefficient=ByRegion.each(3),
        parameters=Uniform((low,) * 3, (high,) * 3),
    )


def ring(low: float = 0.5, high: float = 1.5) -> Problem:
    """Unit square without the middle one of its 3 × 3 blocks, with one parameter on each other block, f = 1."""
    points = np.array([(i, j) for j in range(4) for i in range(4)]) / 3
    corners = np.array([i + 4 * j for j in range(3) for i in range(3) if (i, j) != (1, 1)])
    halves = np.array([[0, 1, 5], [0, 5, 4]])
    return Problem(
        mesh=MeshArrays(points, (corners[:, None, None] + halves).reshape(-1, 3), regions=np.repeat(np.arange(8), 2)),
        coefficient=ByRegion.each(8),
        parameters=Uniform((low,) * 8, (high,) * 8),
    )


def cookies(rows: int = 2, radius: float = 0.3, low: float = 0.5, high: float = 1.5) -> Problem:
    """Unit square with rows × rows disks, each with its own parameter, in a background of 1, f = 1.

    The radius is relative to the distance between centres. A cell belongs to a disk if its midpoint does.
    """
    rows = whole_number(rows, "rows")
    _check_count("rows", rows, rows**2)
    if not 0 < radius <= 0.5:
        raise ValueError(f"radius is {radius}; disks need 0 < radius <= 0.5, in units of the distance between centres")

    def region(x: Floats) -> Ints:
        cell = np.clip(np.floor(rows * x), 0, rows - 1)
        inside = np.linalg.norm(rows * x - cell - 0.5, axis=-1) < radius
        return np.where(inside, cell[:, 0] + rows * cell[:, 1], rows**2).astype(np.int64)

    return Problem(
        mesh=Grid((1, 1)),
        coefficient=ByRegion({k: k for k in range(rows**2)}, fixed={rows**2: 1.0}),
        parameters=Uniform((low,) * rows**2, (high,) * rows**2),
        regions=region,
    )


def lognormal(terms: int = 8, scale: float = 1.0, decay: float = 2.0) -> Problem:
    """Unit square, log a = scale Σ_k y_k |k|^-decay cos(π k₁x₁) cos(π k₂x₂), y normal, f = 1.

    The sum runs over the `terms` smallest k ≠ 0.
    """
    terms = whole_number(terms, "terms")
    _check_count("terms", terms, terms)
    side = range(int(np.sqrt(terms)) + 2)
    waves = sorted(((m, n) for m in side for n in side if m + n > 0), key=lambda k: (k[0] ** 2 + k[1] ** 2, k[1]))
    k = np.array(waves[:terms], np.float64)  # (terms, 2)
    amplitude = scale * np.linalg.norm(k, axis=1) ** -decay

    def modes(x: Floats) -> Floats:
        return np.asarray(amplitude * np.prod(np.cos(np.pi * k * x[..., None, :]), axis=-1))

    return Problem(mesh=Grid((1, 1)), coefficient=ExpAffine(0.0, modes), parameters=Gaussian(terms))


def inclusion(conductivity: float = 10.0) -> Problem:
    """Unit square with a = 1 outside a disk of given conductivity; y = (centre, radius), f = 1.

    The disk moves with y, which makes linear reduction inefficient.
    """

    def a(x: Array, y: Array) -> Array:
        inside = (x[..., 0] - y[..., 0]) ** 2 + (x[..., 1] - y[..., 1]) ** 2 < y[..., 2] ** 2
        return 1.0 + (conductivity - 1.0) * inside

    return Problem(
        mesh=Grid((1, 1)),
        coefficient=Pointwise(a),
        parameters=Uniform((0.25, 0.25, 0.1), (0.75, 0.75, 0.2)),
        quadrature_degree=4,
    )


PROBLEMS: dict[str, Callable[..., Problem]] = {
    make.__name__: make for make in (quarters, checkerboard, lshape, ring, cookies, lognormal, inclusion, cube)
}


def _check_count(name: str, value: int, parameters: int) -> None:
    """Raises a ValueError for more parameters than memory holds, at 500 bytes per parameter for lists and tables."""
    check_memory(f"{name} = {value}, which makes {parameters:.3g} parameters,", 500.0 * parameters, f"use fewer {name}")


def _block_problem(d: int, blocks: int, low: float, high: float) -> Problem:
    blocks = whole_number(blocks, "blocks")
    _check_count("blocks", blocks, blocks**d)
    # The coarsest possible mesh: `halvings` refinements of it resolve the blocks.
    halvings = (blocks & -blocks).bit_length() - 1
    return Problem(
        mesh=Grid((blocks >> halvings,) * d),
        coefficient=ByRegion.each(blocks**d),
        parameters=Uniform((low,) * blocks**d, (high,) * blocks**d),
        regions=lambda x: _blocks(x, blocks),
        resolved_from=halvings,
    )


def _blocks(x: Floats, blocks: int) -> Ints:
    """(K,) number of the block of the unit cube that contains x (K, d), first coordinate fastest."""
    place = np.clip(np.floor(blocks * x), 0, blocks - 1).astype(np.int64)
    return np.asarray(place @ blocks ** np.arange(x.shape[-1]))
