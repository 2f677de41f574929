"""Weak forms for tests: advection, indefinite and coupled problems, boundary terms, fluxes, nonlinear ones."""

from functools import cache

import numpy as np
import torch
from ufl import as_vector, div, dot, grad, inner

from fem_frames import (
    Equation,
    Field,
    Frame,
    Grid,
    MeshHierarchy,
    Parameter,
    Problem,
    Uniform,
    export_frame,
    make_formulation,
    make_problem,
)

WIND = (1.0, 0.5, 0.25)
U = (Field("u"),)


def weak(residual, *, fields=U, p=2, d=2, low=0.5, high=1.5, **options):
    return Problem(Grid((1,) * d), Equation(*fields, residual=residual), Uniform((low,) * p, (high,) * p), **options)


def wind(d):
    return as_vector(WIND[:d])


def advection(diffusion=1.0, d=2, **options):
    def residual(u, v, y, x, dx, ds):
        return (
            diffusion * y[0] * inner(grad(u), grad(v)) + dot(wind(d), grad(u)) * v - y[1] * (1 + x[0] ** 2) * v
        ) * dx

    return weak(residual, d=d, **options)


def helmholtz(square):
    return weak(lambda u, v, y, x, dx, ds: (inner(grad(u), grad(v)) - square * y[0] * u * v - y[1] * v) * dx)


def outflow(d=2):
    """Boundary terms, and given values that depend on y."""

    def residual(u, v, y, x, dx, ds):
        form = (y[0] * inner(grad(u), grad(v)) + 3 * dot(wind(d), grad(u)) * v - x[0] * v) * dx
        return form + (2 * u - y[1]) * v * ds

    return weak(residual, d=d, dirichlet=lambda x: np.isclose(x[:, 0], 0), dirichlet_value=Parameter(1))


def mixed():
    """A flux in RT0 and its potential, coupled in one direction only."""

    def residual(s, u, t, v, y, x, dx, ds):
        flux = inner(s - y[0] * grad(u), t) + div(s) * div(t)
        return (flux + y[1] * inner(grad(u), grad(v)) + dot(wind(2), grad(u)) * v - v) * dx

    return weak(residual, fields=(Field("s", "RT0"), Field("u")))


def system():
    """Two components, with a coupling that is not symmetric and different data."""

    def residual(u, v, y, x, dx, ds):
        return (inner(grad(u), grad(v)) + 5 * y[0] * u[1] * v[0] - u[0].dx(1) * v[1] - y[1] * v[0]) * dx

    return weak(residual, fields=(Field("u", components=2, dirichlet={"all": (0.0, 1.0)}),))


def burgers():
    """Not linear, in its leading term and in the advection."""

    def residual(u, v, y, x, dx, ds):
        return ((1 + u**2) * y[0] * inner(grad(u), grad(v)) + 3 * u * dot(wind(2), grad(u)) * v - 8 * y[1] * v) * dx

    return weak(residual)


LINEAR = {
    "interval": lambda: (advection(d=1), 4),
    "square": lambda: (advection(), 3),
    "cube": lambda: (advection(d=3), 1),
    "helmholtz": lambda: (helmholtz(30.0), 3),
    "outflow": lambda: (outflow(), 2),
    "outflow, cube": lambda: (outflow(3), 1),
    "mixed": lambda: (mixed(), 2),
    "system": lambda: (system(), 2),
    "transport": lambda: (make_problem("transport"), 2),
    "heat": lambda: (make_problem("heat", steps=3), 2),
}
ALL = {**LINEAR, "burgers": lambda: (burgers(), 3)}


@cache
def made(name, dtype="float64"):
    problem, levels = ALL[name]()
    return formulation(problem, levels, dtype)


def formulation(problem, levels, dtype="float64"):
    arrays = export_frame(MeshHierarchy.from_problem(problem, levels), problem)
    return make_formulation(Frame.from_arrays(arrays, dtype), problem)


def samples(form, count=3):
    return torch.as_tensor(form.problem.parameters.sample(count, 0))


def coefficients(form, count=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 0.3 * torch.randn(count, form.frame.frame_size, dtype=torch.float64, generator=generator)
