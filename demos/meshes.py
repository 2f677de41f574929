"""Problems on meshes as users bring them: plates with holes, a graded mesh, an L-shape, a bracket, in any unit.

    fem-frames condition --problem demos/meshes.py:plate --set nodes=1500 --levels 2

Each function makes a problem on a coarse mesh of about this many points: −div(a_y ∇u) = 1, where a_y is one of three
parameters on each of three strips, so a_y = 1 in the middle of the parameters. SciPy makes the meshes, by Delaunay's
rule from points with random displacements. The unit multiplies all lengths: 1000 is metres in millimetres.
demo_any_mesh.py measures frames on them.
"""

import itertools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.spatial import Delaunay, cKDTree

from fem_frames import ByRegion, MeshArrays, Problem, Uniform
from fem_frames.mesh.geometry import boundary_facets, orient

Points = npt.NDArray[np.float64]
HOLES = ((0.6, 0.5, 0.2), (1.4, 0.5, 0.25))  # x, y, radius


def plate(nodes: int = 1500, unit: float = 1.0) -> Problem:
    """2 × 1 with two holes; u = 0 on the left side, insulated elsewhere."""
    h = 1.43 / np.sqrt(nodes)

    def inside(x: Points) -> npt.NDArray[np.bool_]:
        clear = [np.linalg.norm(x - (a, b), axis=1) > radius * (1 - 1e-9) for a, b, radius in HOLES]
        return np.logical_and.reduce([*clear, x[:, 0] <= 2, x[:, 1] <= 1, (x >= 0).all(axis=1)])

    box = [(0.0, 0.0), (2.0, 0.0), (2.0, 1.0), (0.0, 1.0)]
    curves = [_segments(box, h), *(_circle(*hole, h) for hole in HOLES)]
    points, cells = _triangles(np.concatenate(curves), inside, h)
    return _problem(
        points, cells, unit, {"left": 0.0}, lambda x: np.where(x[:, 0] < 1e-9, 1, 2), ("left", "rest of it")
    )


def corner(nodes: int = 5000, unit: float = 1.0) -> Problem:
    """The L-shape (-1, 1)² without its lower right quarter; u = 0 on its boundary."""
    h = 1.85 / np.sqrt(nodes)
    sides = _segments([(-1, -1), (0, -1), (0, 0), (1, 0), (1, 1), (-1, 1)], h)

    def inside(x: Points) -> npt.NDArray[np.bool_]:
        return np.asarray((np.abs(x) <= 1).all(axis=1) & ((x[:, 0] <= 0) | (x[:, 1] >= 0)))

    points, cells = _triangles(sides, inside, h)
    return _problem(points, cells, unit, "all")


def graded(nodes: int = 5000, ratio: float = 1200.0, unit: float = 1.0) -> Problem:
    """Three quarters of a disk without its tip; cells shrink towards the tip by this ratio. u = 0 on its boundary."""
    step = np.sqrt(1.5 * np.pi * np.log(ratio) / nodes)
    rows = np.exp(-step * np.arange(int(np.log(ratio) / step) + 1))
    angles = np.linspace(0, 1.5 * np.pi, int(1.5 * np.pi / step) + 1)
    found = []
    for number, radius in enumerate(rows):
        turned = (
            angles if number % 2 == 0 else np.concatenate([angles[:1], (angles[1:] + angles[:-1]) / 2, angles[-1:]])
        )
        found.append(radius * np.stack([np.cos(turned), np.sin(turned)], axis=1))
    points = np.concatenate(found)
    cells = Delaunay(points).simplices
    middle = points[cells].mean(axis=1)
    angle, radius = np.arctan2(middle[:, 1], middle[:, 0]) % (2 * np.pi), np.linalg.norm(middle, axis=1)
    return _problem(*_clean(points, cells[(angle < 1.5 * np.pi) & (radius > rows[-1])]), unit, "all")


def bracket(nodes: int = 5000, unit: float = 1.0) -> Problem:
    """Two plates 1 × 1 × 0.2 at a right angle, one with a hole, in tetrahedra; u = 0 at the upper end."""
    n = 5 * max(1, round((nodes / 0.37) ** (1 / 3) / 5))
    voxels = np.array(list(itertools.product(range(n), repeat=3)))
    middle = (voxels + 0.5) / n
    hole = np.linalg.norm(middle[:, :2] - (0.6, 0.5), axis=1) < 0.2
    kept = voxels[((middle[:, 2] < 0.2) & ~hole) | (middle[:, 0] < 0.2)]
    paths = [np.cumsum(np.eye(3, dtype=int)[list(order)], axis=0) for order in itertools.permutations(range(3))]
    steps = np.array([np.concatenate([np.zeros((1, 3), int), path]) for path in paths])  # (6, 4, 3)
    corners = (kept[:, None, None] + steps).reshape(-1, 4, 3)
    numbers = corners @ np.array([(n + 1) ** 2, n + 1, 1])
    used, cells = np.unique(numbers, return_inverse=True)
    cells = cells.reshape(-1, 4)
    places = np.stack(np.unravel_index(used, (n + 1,) * 3), axis=1) / n
    inner = np.setdiff1d(np.arange(len(places)), boundary_facets(np.sort(cells, axis=1)))
    places[inner] += np.random.default_rng(0).uniform(-0.15, 0.15, (len(inner), 3)) / n
    return _problem(
        places, cells, unit, {"top": 0.0}, lambda x: np.where(x[:, 2] > 1 - 1e-9, 1, 2), ("top", "rest of it")
    )


def _problem(
    points: Points,
    cells: npt.NDArray,
    unit: float,
    dirichlet: object,
    tag: Callable[[Points], npt.NDArray] | None = None,
    names: tuple[str, ...] = (),
) -> Problem:
    cells = orient(points, cells)
    x = points[cells].mean(axis=1)[:, 0]
    low, high = points[:, 0].min(), points[:, 0].max()
    regions = np.clip((3 * (x - low) / (high - low)).astype(int), 0, 2)
    facets = boundary_facets(np.sort(cells, axis=1))
    tags = np.zeros(0, int) if tag is None else tag(points[facets].mean(axis=1))
    mesh = MeshArrays(
        unit * points,
        cells,
        regions,
        facets if len(tags) else np.zeros((0, points.shape[1]), int),
        tags,
        facet_names={name: number for number, name in enumerate(names, start=1)},
    )
    return Problem(mesh, ByRegion.each(3), Uniform((0.5,) * 3, (1.5,) * 3), dirichlet=dirichlet)


def _segments(corners: list[tuple[float, float]], h: float) -> Points:
    """Points at distances of about h along a closed polygon."""
    found = []
    for a, b in itertools.pairwise([*corners, corners[0]]):
        start, end = np.array(a, float), np.array(b, float)
        count = max(1, round(float(np.linalg.norm(end - start)) / h))
        found.append(start + (end - start) * (np.arange(count) / count)[:, None])
    return np.concatenate(found)


def _circle(x: float, y: float, radius: float, h: float) -> Points:
    angle = 2 * np.pi * np.arange(max(8, round(2 * np.pi * radius / h))) / max(8, round(2 * np.pi * radius / h))
    return np.array([x, y]) + radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _triangles(
    boundary: Points, inside: Callable[[Points], npt.NDArray[np.bool_]], h: float
) -> tuple[Points, npt.NDArray]:
    """A mesh of the domain with these boundary points; inner ones lie near a lattice of equilateral triangles."""
    low, high = boundary.min(axis=0), boundary.max(axis=0)
    rows = np.arange(low[1], high[1], h * np.sqrt(0.75))
    lattice = [
        np.stack(np.broadcast_arrays(np.arange(low[0], high[0], h) + k % 2 * h / 2, y), 1) for k, y in enumerate(rows)
    ]
    inner = np.concatenate(lattice)
    inner = inner + np.random.default_rng(0).uniform(-0.12, 0.12, inner.shape) * h
    inner = inner[inside(inner) & (cKDTree(boundary).query(inner)[0] > 0.7 * h)]
    points = np.concatenate([boundary, inner])
    cells = Delaunay(points).simplices
    corners = points[cells]
    area = np.abs(np.linalg.det(corners[:, 1:] - corners[:, :1])) / 2
    return _clean(points, cells[inside(corners.mean(axis=1)) & (area > 1e-3 * h**2)])


def _clean(points: Points, cells: npt.NDArray) -> tuple[Points, npt.NDArray]:
    """Without points that no cell uses."""
    used, numbers = np.unique(cells, return_inverse=True)
    return points[used], numbers.reshape(cells.shape)
