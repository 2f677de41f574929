"""Unit cubes with named walls, and problems on them whose boundary data depend on y."""

import numpy as np
import torch

from fem_frames import (
    ByRegion,
    Frame,
    Grid,
    MeshArrays,
    MeshHierarchy,
    Parameter,
    Pointwise,
    Problem,
    Uniform,
    export_frame,
    make_formulation,
)
from fem_frames.fenicsx.refinement import coarse_mesh
from fem_frames.mesh.geometry import boundary_facets

NAMES = {"left": 1, "right": 2, "bottom": 3, "top": 4, "back": 5}


def cube(d, n=2):
    """The unit cube with the walls left and right, in the plane also bottom and top, in space also back."""
    grid = coarse_mesh(Grid((n,) * d))
    facets = boundary_facets(grid.cells)
    middle, tags = grid.points[facets].mean(axis=1), np.full(len(facets), 5)
    for axis, (low, high) in zip(range(min(d, 2)), ((1, 2), (3, 4)), strict=False):
        tags[np.isclose(middle[:, axis], 0)] = low
        tags[np.isclose(middle[:, axis], 1)] = high
    names = {name: tag for name, tag in NAMES.items() if tag in tags}
    return MeshArrays(grid.points, grid.cells, facets=facets, facet_tags=tags, facet_names=names)


def varying(d, **conditions):
    """A problem with a and f that vary with x and y, and these boundary conditions."""
    return Problem(
        mesh=cube(d),
        coefficient=Pointwise(lambda x, y: 1 + y[..., 0] * x[..., 0]),
        parameters=Uniform((0.0, 0.5, 1.0), (1.0, 1.5, 2.0)),
        source=lambda x, y: 1 + y[..., 1] * x[..., 0],
        quadrature_degree=4,
        **conditions,
    )


def wave(x, y):
    return y[..., 2] * (1 + x[..., -1] ** 2)


def ramp(x, y):
    return y[..., 1] + x[..., -1]


CONDITIONS = {
    "dirichlet": {"dirichlet": {"left": Parameter(1), "right": wave}},
    "one varies": {"dirichlet": {"left": lambda x: 1 + x[:, -1], "right": Parameter(1, 2.0, -0.5)}},
    "neumann": {"dirichlet": {"left": ramp}, "neumann": {"right": wave}},
    "fixed too": {"dirichlet": {"left": 0.3}, "neumann": {"right": Parameter(2, -1.0)}},
}
ROBIN = {
    "one wall": {"dirichlet": {"left": ramp}, "robin": {"right": (wave, Parameter(1))}},
    "k of x": {"dirichlet": {"left": 0.5}, "robin": {"right": (lambda x: 1 + x[:, -1], wave)}},
    "pure": {"dirichlet": None, "robin": {"rest": (lambda x, y: 1 + y[..., 0] * x[..., 0], Parameter(2))}},
    "corner": {"dirichlet": {}, "robin": {"left": (2.0, 1.0), "right": (Parameter(1), ramp)}},
}


def linear(d, robin):
    """(problem, u): the exact solution u = y0 + y1 x0 + y2 x1 is in P1; y2 is unused in one dimension."""

    def u(x, y):
        return y[..., 0] + y[..., 1] * x[..., 0] + (y[..., 2] * x[..., 1] if d > 1 else 0.0)

    neumann, walls = {"right": Parameter(1)}, {}
    if d > 1:
        neumann["top"] = Parameter(2)
    if d > 1 and not robin:
        neumann["bottom"] = Parameter(2, -1.0)
    elif d > 1:
        walls["bottom"] = (Parameter(3), lambda x, y: u(x, y) - y[..., 2] / y[..., 3])
    elif robin:
        del neumann["right"]
        walls["right"] = (Parameter(3), lambda x, y: u(x, y) + y[..., 1] / y[..., 3])
    parameters = Uniform((-1.0, -1.0, -1.0, 0.5), (1.0, 1.0, 1.0, 2.0))
    one = ByRegion({}, fixed={0: 1.0})
    return Problem(cube(d), one, parameters, 0.0, dirichlet={"left": u}, neumann=neumann, robin=walls), u


def formulation_on(problem, levels, name="energy", dtype="float64"):
    arrays = export_frame(MeshHierarchy.from_problem(problem, levels), problem, name)
    return make_formulation(Frame.from_arrays(arrays, dtype), problem)


def samples(problem, count, seed=1):
    return torch.as_tensor(problem.parameters.sample(count, seed))
