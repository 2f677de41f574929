"""Equations for tests: problems in all dimensions on meshes with named groups, and their integrals in torch."""

from dataclasses import replace

import numpy as np
import torch
from ufl import (
    CellDiameter,
    CellVolume,
    Circumradius,
    FacetNormal,
    Identity,
    as_matrix,
    as_vector,
    cos,
    div,
    dot,
    exp,
    grad,
    inner,
    sin,
    sym,
    tr,
)

from fem_frames import Grid, MeshHierarchy, Parameter, Problem, Uniform, export_frame
from fem_frames.fenicsx.refinement import coarse_mesh
from fem_frames.formulations.state_integrals import StateIntegral
from fem_frames.frame.fields import Field
from fem_frames.mesh.geometry import boundary_facets
from fem_frames.mesh.simplices import simplices
from fem_frames.problem.equation import Equation

LEVELS = {1: 4, 2: 2, 3: 1}
BOX = Uniform((0.5,) * 4, (1.5,) * 4)


def named_mesh(d):
    """Two cells per direction; the regions "soft" and "hard", the groups "left", "right" and 9, the walls."""
    arrays = coarse_mesh(Grid((2,) * d, (0.0,) * d, (1.0, 0.8, 0.7)[:d]))
    centre, facets = arrays.points[arrays.cells].mean(axis=1), boundary_facets(arrays.cells)
    x = arrays.points[facets].mean(axis=1)[:, 0]
    tags = np.select([np.isclose(x, 0), np.isclose(x, 1)], [4, 2], 9)
    return replace(
        arrays,
        regions=np.where(centre[:, 0] < 0.5, 3, 7),
        facets=facets,
        facet_tags=tags,
        region_names={"soft": 3, "hard": 7},
        facet_names={"left": 4, "right": 2},
    )


def diffusion(u, y, x, dx, ds):
    return (
        y[0] * exp(0.3 * x[0]) * inner(grad(u), grad(u)) / 2 * dx - sin(y[1] * x[len(x) - 1]) * u * dx - u * ds("right")
    )


def tensor(u, y, x, dx, ds):
    """A full tensor, a reaction in one region, and boundary terms with the normal and x."""
    d, n = len(x), FacetNormal(x)
    a = as_matrix([[2 + y[0] if i == j else 0.3 * exp(y[1] * x[0]) for j in range(d)] for i in range(d)])
    inside = (dot(grad(u), a * grad(u)) / 2 - cos(x[0]) * u) * dx + y[2] * u**2 / 2 * dx("hard")
    return inside + (y[3] + x[0] ** 2) * u**2 / 2 * ds("left", "right") - dot(n, x) * (1 + y[1]) * u * ds


def elasticity(u, y, x, dx, ds):
    e, d = sym(grad(u)), len(x)
    stored = sum(
        (y[2 * k] * tr(e) ** 2 / 2 + y[2 * k + 1] * inner(e, e)) * dx(region)
        for k, region in enumerate(("soft", "hard"))
    )
    return stored - 0.1 * y[0] * u[d - 1] * dx - dot(u, FacetNormal(x)) * ds("right")


def least_squares(u, sigma, y, x, dx, ds):
    a = 1 + y[0] * x[0]
    residual = sigma / a - grad(u)
    return (div(sigma) + y[1]) ** 2 * dx + inner(residual, residual) * dx


def carreau(u, y, x, dx, ds):
    return (y[0] * (1 + inner(grad(u), grad(u))) ** 1.5 / 3 + y[1] * u**4 / 4 - 3 * u) * dx + u**2 * ds("right")


def sizes(u, y, x, dx, ds):
    h = CellDiameter(x) + CellVolume(x) + 0.5 * Circumradius(x)
    return (y[0] + h) * inner(grad(u), grad(u)) / 2 * dx - u * dx + u**2 / CellDiameter(x) * ds("right")


def hyperelastic(u, y, x, dx, ds):
    """A nonlinear energy of vectors, convex near zero."""
    F = Identity(len(u)) + grad(u)
    C = F.T * F
    return (y[0] * (tr(C) - len(u)) ** 2 / 4 + y[1] * inner(sym(grad(u)), sym(grad(u)))) * dx - 0.1 * u[0] * ds("right")


def advection(u, v, y, x, dx, ds):
    """Linear and not symmetric."""
    b = as_vector([1 + y[1], x[0], -x[0]][: len(x)])
    return (y[0] * inner(grad(u), grad(v)) + dot(b, grad(u)) * v - v) * dx + u * v * ds("right")


def advection_cubed(u, v, y, x, dx, ds):
    return advection(u, v, y, x, dx, ds) + y[2] * u**3 * v * dx("soft")


def stokes(u, p, v, q, y, x, dx, ds):
    """Two fields with their tests: stabilised by the size of cells."""
    flow = y[0] * inner(grad(u), grad(v)) - p * div(v) + q * div(u) - y[1] * v[0]
    return (flow + CellDiameter(x) ** 2 * inner(grad(p), grad(q)) + p * q) * dx


FLUXES = {"right": 0.2}, {"right": 0.2, 9: 0.0}  # without them u and sigma would not be unique
U, VECTOR = Field("u"), {d: Field("u", components=d) for d in (2, 3)}
QUADRATIC = {d: Field("u", "P2", components=d) for d in (2, 3)}
ENERGIES = {
    "diffusion": (lambda d: U, diffusion),
    "tensor": (lambda d: U, tensor),
    "elasticity": (lambda d: VECTOR.get(d), elasticity),
    "least squares": (lambda d: (Field("u"), Field("sigma", "RT0", dirichlet=FLUXES[d > 1])), least_squares),
    "sizes": (lambda d: U, sizes),
    "tensor, P2": (lambda d: Field("u", "P2"), tensor),
    "elasticity, P2": (lambda d: QUADRATIC.get(d), elasticity),
    "carreau, P2": (lambda d: Field("u", "P2"), carreau),
    "carreau": (lambda d: U, carreau),
    "hyperelastic": (lambda d: VECTOR.get(d), hyperelastic),
}
RESIDUALS = {
    "advection": (lambda d: U, advection),
    "advection, cubed": (lambda d: U, advection_cubed),
    "stokes": (lambda d: (VECTOR.get(d), Field("p", dirichlet={})), stokes),
}
NONLINEAR = ("carreau", "carreau, P2", "hyperelastic", "advection, cubed")
VALUES = {"left": Parameter(3)}


def has(name, d):
    """Whether a case exists in a dimension."""
    return d > 1 or name not in ("elasticity", "elasticity, P2", "hyperelastic", "stokes")


def problem_of(name, d, **changes):
    fields, function = {**ENERGIES, **RESIDUALS}[name]
    kind = "energy" if name in ENERGIES else "residual"
    settings = {"dirichlet": VALUES, "quadrature_degree": 3} | changes
    return Problem(named_mesh(d), Equation(fields(d), **{kind: function}), BOX, **settings)


def simple_problem(name, d):
    """The same fields with a quadratic energy, whose frame serves the same mesh."""

    def squares(*arguments):
        fields, (dx, _) = arguments[:-4], arguments[-2:]
        return sum(((inner(grad(f), grad(f)) + inner(f, f)) * dx for f in fields), 0 * dx)

    problem = problem_of(name, d)
    return replace(problem, coefficient=Equation(problem.equation.fields, energy=squares))


def frame_of(name, d):
    problem = simple_problem(name, d)
    return export_frame(MeshHierarchy.from_problem(problem, LEVELS[d]), problem)


class InTorch:
    """The integrals of an equation as a function of nodal values, from its programs alone."""

    def __init__(self, arrays, problem):
        self.density, cells = problem.density(), arrays.levels[-1].cells
        self.integrals = [
            StateIntegral(arrays, self.density, number, lambda a: torch.as_tensor(np.array(a)))
            for number in range(len(self.density.integrals))
        ]
        self.tables = {}
        for part, field in zip(self.density.parts, arrays.fields, strict=True):
            element = field.element
            table = element.states(arrays.points, cells, arrays.levels[-1].gradients)  # (K, L, c)
            scaled = table * np.sqrt(arrays.volumes)[:, None, None]
            self.tables[part.name] = torch.as_tensor(scaled), torch.as_tensor(simplices(cells, element.degree)[1])

    def states(self, fields):
        """(K, m, 1)"""
        return torch.cat(
            [torch.einsum("klc,kl->kc", table, fields[name][places]) for name, (table, places) in self.tables.items()],
            dim=1,
        )[..., None]

    def energy(self, fields, y):
        return sum(integral.value(self.states(fields), y)[0] for integral in self.integrals)

    def residual(self, fields, tests, y):
        s, v = self.states(fields), self.states(tests)
        return sum(float(i.add_slope(s, y, torch.zeros_like(s), v, "v")[0]) for i in self.integrals)
