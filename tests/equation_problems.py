"""Problems with equations of their own, for tests."""

import numpy as np
from ufl import CellDiameter, FacetNormal, as_matrix, as_vector, div, dot, exp, grad, inner, split, sym, tr  # noqa: F401

from fem_frames import Equation, Field, Grid, MeshArrays, Parameter, Problem, Uniform

FOUR = Uniform((0.5,) * 4, (1.5,) * 4)


def left(x):
    return np.isclose(x[:, 0], 0)


def blocks(x):
    return (x[:, 0] > 0.5).astype(int) + 2 * (x[:, -1] > 0.5) * (x.shape[1] > 1)


def square(d=2):
    """Two cells per direction whose sides are called left, right and, in the plane, bottom and top."""
    if d != 2:
        return Grid((2,) * d)
    x = np.array([(i / 2, j / 2) for j in range(3) for i in range(3)])
    corner = np.array([0, 1, 3, 4])
    cells = (corner[:, None, None] + np.array([[0, 1, 4], [0, 4, 3]])).reshape(-1, 3)
    sides = {"bottom": (1, 0), "right": (0, 1), "top": (1, 1), "left": (0, 0)}
    facets, tags, names = [], [], {}
    for tag, (name, (axis, at)) in enumerate(sides.items(), start=1):
        names[name] = tag
        on = np.flatnonzero(np.isclose(x[:, axis], at))
        order = on[np.argsort(x[on, 1 - axis])]
        facets += [(order[k], order[k + 1]) for k in range(len(order) - 1)]
        tags += [tag] * (len(order) - 1)
    return MeshArrays(
        x,
        cells,
        regions=np.repeat([0, 1, 0, 1], 2),
        facets=np.array(facets),
        facet_tags=np.array(tags),
        region_names={"west": 0, "east": 1},
        facet_names=names,
    )


def diffusion(u, y, x, dx, ds):
    return sum(y[k] * inner(grad(u), grad(u)) / 2 * dx(k) for k in range(4)) - u * dx


def tensor(u, y, x, dx, ds):
    a = as_matrix([[1 + y[0], 0.3], [0.3, exp(y[1] * x[0])]])
    return (dot(grad(u), a * grad(u)) / 2 + y[2] * u**2 / 2 - x[1] * u) * dx + y[3] * (u**2 / 2 - u) * ds("right")


def elastic(u, y, x, dx, ds):
    e = sym(grad(u))
    stored = sum(
        (y[2 * k] * tr(e) ** 2 / 2 + y[2 * k + 1] * inner(e, e)) * dx(g) for k, g in enumerate(("west", "east"))
    )
    return stored - 0.3 * u[1] * ds("right") + 0.1 * u[1] * dx


def squares(u, s, y, x, dx, ds):
    """The least squares of −div(a ∇u) = 1."""
    return ((div(s) + 1) ** 2 + inner(s / y[0] - grad(u), s / y[0] - grad(u))) * dx


PROBLEMS = {
    "diffusion": lambda: Problem(Grid((1, 1)), Equation(Field("u"), energy=diffusion), FOUR, regions=blocks),
    "tensor": lambda: Problem(square(), Equation(Field("u"), energy=tensor), FOUR, dirichlet={"left": Parameter(0)}),
    "elastic": lambda: Problem(
        square(),
        Equation(
            Field("u", components=2, dirichlet={"left": (0.0, Parameter(1, 0.1)), "top": (None, 0.0)}), energy=elastic
        ),
        FOUR,
    ),
    "least squares": lambda: Problem(
        Grid((1, 1)), Equation(Field("u"), Field("s", "RT0"), energy=squares), Uniform((0.5,), (1.5,))
    ),
    "in space": lambda: Problem(
        Grid((1, 1, 1)),
        Equation(
            Field("u", components=3),
            energy=lambda u, y, x, dx, ds: (
                (y[0] * inner(sym(grad(u)), sym(grad(u))) + y[1] * div(u) ** 2 / 2 - x[0] * u[2]) * dx
            ),
        ),
        Uniform((0.5,) * 2, (1.5,) * 2),
        dirichlet=left,
    ),
    "interval": lambda: Problem(
        Grid((2,)),
        Equation(
            Field("u"),
            energy=lambda u, y, x, dx, ds: (
                (y[0] * u.dx(0) ** 2 + exp(y[1] * x[0]) * u**2 - 2 * u) / 2 * dx + y[1] * u**2 * ds
            ),
        ),
        Uniform((0.5,) * 2, (1.5,) * 2),
        dirichlet={},
    ),
}
