"""Coarse meshes whose boundary points lie on circles, cylinders and spheres, for tests."""

from itertools import permutations

import numpy as np
from scipy.spatial import Delaunay

from fem_frames import ByRegion, MeshArrays, Pointwise, Problem, Uniform
from fem_frames.mesh.curves import Circle, Cylinder, Sphere
from fem_frames.mesh.geometry import boundary_facets, orient

HOLES = {"left": Circle((0.6, 0.5), 0.25), "right": Circle((1.5, 0.45), 0.2)}


def arc(circle, count, turn=0.1):
    angle = turn + 2 * np.pi * np.arange(count) / count
    return np.array(circle.centre) + circle.radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def tagged(points, cells, tag, names, unit=1.0, regions=()):
    """The mesh with boundary facets tagged by a function of their corners (F, d, d)."""
    cells = orient(points, cells)
    facets = boundary_facets(cells)
    tags = tag(points[facets])
    return MeshArrays(unit * points, cells, np.asarray(regions, np.int64), facets, tags, facet_names=names)


def on(curve, corners):
    """(F,) whether all corners of facets lie on a curve."""
    flat = corners.reshape(-1, corners.shape[2])
    return (np.linalg.norm(curve(flat) - flat, axis=1) < 1e-9).reshape(corners.shape[:2]).all(axis=1)


def plate(unit=1.0, count=8):
    """[0, 2] x [0, 1] with two holes; the tags are 1 and 2 for the holes, 3 and 4 for the sides, 5 for the rest."""
    x, y = np.meshgrid(np.linspace(0, 2, 9), np.linspace(0, 1, 5), indexing="ij")
    grid = np.stack([x.ravel(), y.ravel()], axis=1)
    clear = [np.linalg.norm(grid - np.array(c.centre), axis=1) > 1.35 * c.radius for c in HOLES.values()]
    points = np.concatenate([grid[clear[0] & clear[1]], *(arc(c, count) for c in HOLES.values())])
    cells = Delaunay(points).simplices.astype(np.int64)
    centre = points[cells].mean(axis=1)
    for c in HOLES.values():
        cells = cells[np.linalg.norm(centre - np.array(c.centre), axis=1) > 0.95 * c.radius]
        centre = points[cells].mean(axis=1)

    def tag(corners):
        tags = np.full(len(corners), 5)
        for number, curve in enumerate(HOLES.values(), start=1):
            tags[on(curve, corners)] = number
        for number, side in ((3, 0.0), (4, 2.0)):
            tags[(corners[..., 0] == side).all(axis=1)] = number
        return tags

    names = {"left": 1, "right": 2, "in": 3, "out": 4, "walls": 5}
    return tagged(points, cells, tag, names, unit)


def scaled(unit):
    return {name: Circle(unit * np.array(c.centre), unit * c.radius) for name, c in HOLES.items()}


def disk(count=8, radius=1.0, centre=(0.0, 0.0)):
    """A fan of triangles around the centre; its rim has the tag 1."""
    rim = arc(Circle(centre, radius), count, 0.0)
    points = np.concatenate([[centre], rim])
    k = np.arange(count)
    cells = np.stack([np.zeros_like(k), 1 + k, 1 + (k + 1) % count], axis=1)
    return tagged(points, cells, lambda corners: np.ones(len(corners), np.int64), {"rim": 1})


def pipe():
    """A hollow cylinder of length 1 between the radii 0.5 and 1; tags: 1 inside, 2 outside, 3 and 4 the ends."""
    count = 8
    angle = 2 * np.pi * np.arange(count) / count
    ring = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    points = np.array([[*(r * e), z] for z in (0.0, 0.5, 1.0) for r in (0.5, 1.0) for e in ring])

    def number(a, r, z):
        return (z * 2 + r) * count + a % count

    cells = []
    for z in range(2):
        for a in range(count):
            for order in permutations(range(3)):  # Kuhn: paths through the corners of a block
                at, path = np.array([a, 0, z]), []
                path.append(number(*at))
                for axis in order:
                    at = at + np.eye(3, dtype=int)[axis]
                    path.append(number(*at))
                cells.append(path)

    def tag(corners):
        tags = np.full(len(corners), 3)
        tags[(corners[..., 2] == 1).all(axis=1)] = 4
        tags[on(PIPE["inside"], corners)] = 1
        tags[on(PIPE["outside"], corners)] = 2
        return tags

    return tagged(points, np.array(cells), tag, {"inside": 1, "outside": 2, "bottom": 3, "top": 4})


PIPE = {"inside": Cylinder((0, 0, 5), (0, 0, 2), 0.5), "outside": Cylinder((0, 0, 0), (0, 0, -1), 1.0)}


def ball(radius=1.0):
    """An icosahedron, divided from its centre; its surface has the tag 1."""
    golden = (1 + 5**0.5) / 2
    corners = np.array([[0, a, b * golden] for a in (-1, 1) for b in (-1, 1)])
    corners = np.concatenate([np.roll(corners, k, axis=1) for k in range(3)])
    corners = radius * corners / np.linalg.norm(corners, axis=1, keepdims=True)
    hull = Delaunay(np.concatenate([[[0.0, 0.0, 0.0]], corners]))
    points = np.concatenate([[[0.0, 0.0, 0.0]], corners])
    return tagged(points, hull.simplices, lambda c: np.ones(len(c), np.int64), {"surface": 1})


def plate_problem(curves=True, unit=1.0, **changes):
    """Flow through the plate with given and insulated parts and a load on a curved one; a and f vary with x and y."""
    data = dict(
        mesh=plate(unit),
        coefficient=Pointwise(lambda x, y: 1 + y[..., 0] * x[..., 0] / unit + y[..., 1] * (x[..., 1] / unit) ** 2),
        parameters=Uniform((0.0, 0.0), (1.0, 2.0)),
        source=lambda x, y: 1 + y[..., 1] * (x[..., 0] / unit) ** 2,
        dirichlet={"in": lambda x: 1 + x[:, 1] / unit, "left": lambda x: 1 + x[:, 1] / unit},
        neumann={"right": lambda x: 0.5 + x[:, 0] / unit, "out": -1.0},
        quadrature_degree=4,
        curved=scaled(unit) if curves else {},
    )
    return Problem(**data | changes)


def pipe_problem(curves=True):
    return Problem(
        mesh=pipe(),
        coefficient=Pointwise(lambda x, y: 1 + y[..., 0] * x[..., 0] ** 2 + y[..., 1] * x[..., 2]),
        parameters=Uniform((0.0, 0.0), (1.0, 2.0)),
        source=lambda x, y: 1 + y[..., 1] * x[..., 2] ** 2,
        dirichlet={"inside": lambda x: x[:, 2] + x[:, 0]},
        neumann={"outside": lambda x: 0.5 + x[:, 2]},
        quadrature_degree=4,
        curved=PIPE if curves else {},
    )


def disk_problem(curves=True, count=8, **changes):
    """-Δu = 1 on the unit disk: u = (1 - |x|²)/4, and ∫ |∇u|² = ∫ u = π/8."""
    data = dict(
        mesh=disk(count),
        coefficient=ByRegion({0: 0}),
        parameters=Uniform((1.0,), (2.0,)),
        curved={"rim": Circle((0, 0), 1)} if curves else {},
    )
    return Problem(**data | changes)


def ball_problem(curves=True):
    """-Δu = 1 on the unit ball: u = (1 - |x|²)/6, and ∫ |∇u|² = ∫ u = 4π/45."""
    return Problem(
        mesh=ball(),
        coefficient=ByRegion({0: 0}),
        parameters=Uniform((1.0,), (2.0,)),
        curved={"surface": Sphere((0, 0, 0), 1)} if curves else {},
    )
