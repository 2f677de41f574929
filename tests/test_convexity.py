"""Quadratic energies below convex ones: the rules, against second derivatives at random states."""

import numpy as np
import pytest
import torch
from ufl import Identity, as_matrix, conditional, cosh, det, dot, exp, grad, inner, ln, lt, max_value, sqrt, sym, tr

from fem_frames import Equation, Field
from fem_frames.fenicsx.weak_forms import compile_equation
from fem_frames.problem.convexity import quadratic_lower_bound
from fem_frames.problem.densities import Density
from fem_frames.problem.program_values import evaluated

pytestmark = pytest.mark.serial


def square(u):
    return inner(grad(u), grad(u))


def density_of(energy, components=None, parameters=3):
    equation = Equation(Field("u", components=components), energy=energy)
    return compile_equation(equation, 2, parameters).reduced


def second_derivatives(density, states, read):
    """(n, m, m) of all integrals together, at states (n, m); `read` gives the other inputs."""
    n, m = states.shape
    found = np.zeros((n, m, m))

    def value(given):
        return states[:, given[1]] if given[0] == "s" else read(given)

    for rows in density.hessians:
        for j, row in enumerate(rows):
            for k, program in enumerate(row):
                found[:, j, k] += np.asarray(evaluated(program, value, states)[0])
    return found


CONVEX = {
    "Carreau": lambda u, y, x, dx, ds: (y[0] * (1 + square(u)) ** 1.5 / 3 + y[1] * u**4 / 4 - u) * dx,
    "Carreau, power of y": lambda u, y, x, dx, ds: (
        (y[0] * ((2 + square(u)) ** (1 + y[1]) - 1) / (1 + y[1]) + u**2 - u) * dx
    ),
    "t times its root": lambda u, y, x, dx, ds: (1 + square(u)) * sqrt(1 + square(u)) * y[0] * dx,
    "minimal surfaces": lambda u, y, x, dx, ds: (sqrt(1 + square(u)) + y[0] * (u - x[0]) ** 2 / 2) * dx,
    "powers of moduli": lambda u, y, x, dx, ds: (square(u) / 2 + y[0] * abs(u - 1) ** 3 - u) * dx,
    "a root of a square": lambda u, y, x, dx, ds: (square(u) / 2 + y[0] * sqrt((2 * u) ** 2) ** 3 - u) * dx,
    "cosh": lambda u, y, x, dx, ds: (y[0] * square(u) / 2 + cosh(2 * u + x[0])) * dx,
    "exp": lambda u, y, x, dx, ds: (y[0] * exp(square(u) / 4) + exp(-u) - u) * dx,
    "one side": lambda u, y, x, dx, ds: (y[0] * square(u) / 2 + 10 * max_value(u - x[1], 0) ** 2) * dx,
    "two laws": lambda u, y, x, dx, ds: (
        conditional(lt(x[0], 0.5), y[0] * square(u), (1 + square(u)) ** 2) * dx + u**4 * dx
    ),
    "a full tensor": lambda u, y, x, dx, ds: (
        (dot(grad(u), as_matrix([[2, y[0]], [y[0], 2]]) * grad(u)) / 2 + u**6 - u) * dx
    ),
}


@pytest.mark.parametrize("name", CONVEX)
def test_second_derivatives_are_at_least_those_of_the_bound(name):
    density = density_of(CONVEX[name])
    found = quadratic_lower_bound(density)
    assert found is not None
    assert found.density.is_linear
    rng = np.random.default_rng(0)
    n, m = 400, density.state_size
    states = rng.standard_normal((n, m)) * 10.0 ** rng.uniform(-2, 0.5, (n, 1))
    data = {"x": rng.uniform(size=(n, 2)), "y": rng.uniform(0.5, 1.5, (n, 3))}

    def read(given):
        return data[given[0]][:, given[1]]

    for condition in found.conditions:
        assert (np.asarray(evaluated(condition.program, read, states)[0]) >= 0).all()
    below = second_derivatives(found.density, states, read)
    rest = np.linalg.eigvalsh(second_derivatives(density, states, read) - below)
    assert (rest[:, 0] >= -1e-12 * (1 + rest[:, -1])).all()
    assert (np.linalg.eigvalsh(below)[:, -1] > 0.1).all()  # and it is not zero


def test_bounds_are_those_by_hand():
    """φ'(c) q'' for Carreau: y0 on gradients, for the state (u, ∂u); and φ'' ≥ 1 of cosh."""
    carreau = quadratic_lower_bound(density_of(CONVEX["Carreau"]))
    states, y = np.ones((1, 3)), np.array([1.3, 0.7, 0.0])
    np.testing.assert_allclose(
        second_derivatives(carreau.density, states, lambda given: y[given[1]])[0], np.diag([0.0, 1.3, 1.3]), atol=1e-15
    )
    other = quadratic_lower_bound(density_of(CONVEX["cosh"]))
    np.testing.assert_allclose(
        second_derivatives(other.density, states, lambda given: y[given[1]])[0], np.diag([4.0, 1.3, 1.3]), atol=1e-14
    )


def test_sums_of_squares_of_affine_forms_are_seen_in_vector_fields():
    def energy(u, y, x, dx, ds):
        e = sym(grad(u))
        return ((1 + inner(e, e) + tr(e) ** 2) ** 1.5 / 3 - u[0]) * dx

    density = density_of(energy, components=2)
    found = quadratic_lower_bound(density)
    assert density.state_size == 4  # gradients alone
    rotation = np.array([0.0, 1.0, -1.0, 0.0])
    C = second_derivatives(found.density, np.ones((1, 4)), lambda given: 1.0)[0]
    np.testing.assert_allclose(C @ rotation, 0, atol=1e-15)
    assert np.linalg.matrix_rank(C) == 3


UNKNOWN = {
    "odd powers": lambda u, y, x, dx, ds: (square(u) / 2 + u**3) * dx,
    "concave functions": lambda u, y, x, dx, ds: (square(u) / 2 - u**4) * dx,
    "powers below one": lambda u, y, x, dx, ds: (u**2 + (1 + square(u)) ** 0.25) * dx,
    "roots of what may be negative": lambda u, y, x, dx, ds: (u**2 + (square(u) - 1) ** 1.5) * dx,
    "products of two forms": lambda u, y, x, dx, ds: (square(u) / 2 + u**2 * square(u)) * dx,
    "products of convex functions": lambda u, y, x, dx, ds: (square(u) / 2 + exp(u) * exp(u.dx(0) ** 2)) * dx,
    "the p-Laplacian, which degenerates": lambda u, y, x, dx, ds: (square(u) ** 2 / 4 - u) * dx,
    "a difference of convex functions": lambda u, y, x, dx, ds: (square(u) + u**4 - cosh(u)) * dx,
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_the_rules_do_not_show_has_no_bound(name):
    assert quadratic_lower_bound(density_of(UNKNOWN[name])) is None


def test_neo_hookean_energies_have_no_bound():
    def energy(u, y, x, dx, ds):
        F = Identity(2) + grad(u)
        return ((inner(F, F) - 2 - 2 * ln(det(F))) / 2 + y[0] * ln(det(F)) ** 2 / 2) * dx

    assert quadratic_lower_bound(density_of(energy, components=2)) is None


def test_quadratic_terms_are_their_own_bounds_even_if_they_are_not_convex():
    """A double well: the bound is indefinite, and formulations see that no α fits."""
    found = quadratic_lower_bound(density_of(lambda u, y, x, dx, ds: (square(u) / 2 + (u**2 - 1) ** 2 / 4) * dx))
    assert found is None  # (u² - 1)² is a power of what may be negative
    found = quadratic_lower_bound(density_of(lambda u, y, x, dx, ds: (square(u) / 2 - u**2 / 2 + u**4 / 4) * dx))
    C = second_derivatives(found.density, np.zeros((1, 3)), lambda given: 1.0)[0]
    np.testing.assert_allclose(C, np.diag([-1.0, 1.0, 1.0]))


def test_factors_must_not_be_negative_for_the_y_at_hand():
    found = quadratic_lower_bound(
        density_of(lambda u, y, x, dx, ds: ((1 + square(u)) ** 2 + (y[0] - x[0]) * u**4) * dx)
    )
    values = [
        evaluated(c.program, lambda given: {"y": torch.tensor(1.0), "x": torch.tensor(2.0)}[given[0]], torch.ones(1))[0]
        for c in found.conditions
    ]
    assert min(float(value) for value in values) < 0


def test_bounds_of_recorded_densities_are_the_same():
    density = density_of(CONVEX["Carreau"])
    again = Density.from_record(density.record())
    one, other = (quadratic_lower_bound(d).density.integrals[0].program for d in (density, again))
    assert one == other


def test_sums_that_share_their_parts_take_no_exponential_time():
    def energy(u, y, x, dx, ds):
        part = u
        for _ in range(60):
            part = part + (part - x[0]) * y[0]
        return (square(u) / 2 + part + u**4) * dx

    assert quadratic_lower_bound(density_of(energy)) is not None
