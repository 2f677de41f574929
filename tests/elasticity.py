"""Linear elasticity as a formulation of one's own: each component of the displacement is a field in P1."""

from dataclasses import replace

import numpy as np
import torch

from fem_frames import (
    P1,
    Field,
    Frame,
    Grid,
    MeshHierarchy,
    Pointwise,
    Problem,
    QuadraticFormulation,
    Uniform,
    export_frame,
    make_formulation,
)
from fem_frames.frame.fields import dirichlet_values


class Elasticity(QuadraticFormulation):
    """Minimise ∫ μ |ε(u)|² + ½ λ (div u)² - f u_0 - h u_0 over the Neumann part.

    Young's modulus is a_y, Poisson's number the last parameter.
    """

    source_at_points = True

    def blocks(self, y):
        d = len(self.fields)
        E, nu = self.mean(self.coefficient(y)), self.check_parameters(y)[:, -1].to(self.wide)  # (K, B), (B,)
        first, second = E / (1 + nu) * nu / (1 - 2 * nu), E / (2 * (1 + nu))  # λ, μ
        unit, trace = torch.eye(d * d).to(E), torch.eye(d).flatten().to(E)
        swapped = unit.reshape(d, d, d * d).transpose(0, 1).reshape(d * d, d * d)
        parts = (second, unit + swapped), (first, torch.outer(trace, trace))
        return sum(number[:, None, None] * matrix[..., None] for number, matrix in parts)

    @staticmethod
    def forms(V, w, a, f, y, dx):
        from ufl import Identity, TestFunction, TrialFunction, as_vector, grad, inner, split, sym, tr

        nu = y[len(y) - 1]

        def energy(u, v):
            of_u, of_v = sym(grad(as_vector(split(u)))), sym(grad(as_vector(split(v))))
            stress = a / (1 + nu) * (of_u + nu / (1 - 2 * nu) * tr(of_u) * Identity(len(split(u))))
            return inner(stress, of_v) * dx

        v = TestFunction(V)
        return energy(TrialFunction(V), v), f * split(v)[0] * dx, 0.5 * energy(w, w) - f * split(w)[0] * dx


class Elasticity2(Elasticity):
    name = "test-elasticity-2"
    fields = (Field("u[0]", P1), Field("u[1]", P1))


class Elasticity3(Elasticity):
    name = "test-elasticity-3"
    fields = (Field("u[0]", P1), Field("u[1]", P1), Field("u[2]", P1))


def on_rollers(hierarchy, problem):
    """The Dirichlet data, and u = 0 where x_0 = 0."""
    data = dirichlet_values(hierarchy, problem)
    fixed = tuple(mask | np.isclose(hierarchy.points[: len(mask), 0], 0) for mask in data.fixed)
    return replace(data, fixed=fixed)


class OnRollers2(Elasticity):
    """The fields have different free points."""

    name = "test-on-rollers-2"
    fields = (Field("u[0]", P1), Field("u[1]", P1, on_rollers))


class OnRollers3(Elasticity):
    name = "test-on-rollers-3"
    fields = (Field("u[0]", P1), Field("u[1]", P1, on_rollers), Field("u[2]", P1))


def block(d, low=0.3, high=0.45, mesh=None, **changes):
    """A block that stands on the ground; its load is lateral, Poisson's number between `low` and `high`."""
    made = Problem(
        mesh=Grid((1,) * d) if mesh is None else mesh,
        coefficient=Pointwise(lambda x, y: 1 + y[..., 0] * x[..., 0] + y[..., 1] * x[..., -1] ** 2),
        parameters=Uniform((0.0, 0.0, low), (1.0, 2.0, high)),
        source=lambda x, y: 1 + y[..., 1] * x[..., 0],
        dirichlet=lambda x: np.isclose(x[:, -1], 0),
        neumann={"rest": lambda x: 0.5 + x[:, -1]},
        quadrature_degree=2,
    )
    return replace(made, **changes)


def elasticity(problem, levels, dtype="float64", name="test-elasticity-2"):
    arrays = export_frame(MeshHierarchy.from_problem(problem, levels), problem, name)
    return make_formulation(Frame.from_arrays(arrays, dtype), problem)
