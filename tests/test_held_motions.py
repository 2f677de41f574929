"""Energies that leave a translation or a rotation free are refused by name, exactly where their matrix is singular."""

from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from ufl import conditional, div, grad, inner, lt, sym, tr

from fem_frames import (
    Equation,
    Field,
    Frame,
    MeshArrays,
    MeshHierarchy,
    Problem,
    Uniform,
    export_frame,
    make_formulation,
    make_problem,
    solve_reference,
)
from fem_frames.formulations import held_motions
from fem_frames.frame.motions import Motions

pytestmark = pytest.mark.serial

FACES = ("left", "front", "below")  # where x[0], x[1] and x[2] are zero


def box(d):
    """A cube of d! simplices with groups of facets."""
    points = np.array(list(np.ndindex(*(2,) * d)), float)
    number = {tuple(point): i for i, point in enumerate(points)}
    cells = []
    for order in permutations(range(d)):
        corners = [np.zeros(d)]
        for axis in order:
            corners.append(corners[-1] + np.eye(d)[axis])
        corners[:2] = corners[:2] if np.linalg.det(np.diff(corners, axis=0)) > 0 else corners[1::-1]
        cells.append([number[tuple(corner)] for corner in corners])
    groups = {tuple(sorted(facet)) for cell in cells for facet in combinations(cell, d)}
    tagged = [(facet, axis) for facet in sorted(groups) for axis in range(d) if not points[list(facet), axis].any()]
    facets, tags = (np.array(part) for part in zip(*tagged, strict=True))
    return MeshArrays(
        points, np.array(cells), facets=facets, facet_tags=tags, facet_names=dict(zip(FACES[:d], range(d), strict=True))
    )


def problem_of(energy, *fields, d=2):
    return Problem(box(d), Equation(*fields, energy=energy), Uniform((0.5,) * 2, (2.0,) * 2), quadrature_degree=4)


def vector(energy, d=2, element="P1", **dirichlet):
    return problem_of(energy, Field("u", element, components=d, dirichlet=dirichlet), d=d)


def square(v):
    return inner(v, v)


def stored(u, y):
    e = sym(grad(u))
    return y[0] * tr(e) ** 2 / 2 + y[1] * square(e)


def elastic(u, y, x, dx, ds):
    return (stored(u, y) - u[0]) * dx


def hardening(u, y, x, dx, ds):
    return (stored(u, y) * (1 + stored(u, y)) - u[0]) * dx


def sprung(size):
    return lambda u, y, x, dx, ds: elastic(u, y, x, dx, ds) + size * square(u) * ds("left")


def in_a_corner(u, y, x, dx, ds):
    """A weak foundation below a small part of the body."""
    return elastic(u, y, x, dx, ds) + conditional(lt(sum(x[i] for i in range(2)), 0.4), 1e-4, 0.0) * square(u) * dx


def tied(factor):
    def energy(u, p, y, x, dx, ds):
        return (square(grad(u)) / 2 + y[0] * square(grad(p)) / 2 + y[1] * (factor * u - p) ** 2 - u) * dx

    return energy


def sliding(u, y, x, dx, ds):
    """Only u[0] - u[1] has a spring."""
    return (stored(u, y) + y[0] * square(grad(u)) + (u[0] - u[1]) ** 2 - u[0]) * dx


def quartic(u, y, x, dx, ds):
    return (y[0] * square(grad(u)) / 2 + y[1] * u**4 / 4 - u) * dx


def contrast(u, y, x, dx, ds):
    stiff = conditional(lt(x[0], 0.5), 1e8, 1.0)
    return (stiff * square(grad(u)) / 2 + conditional(lt(x[0], 0.5), 0.0, 1e-3) * u**2 - u) * dx


TURNING = {"front": (0.0, None), "left": (None, 0.0)}
REFUSED = {
    "turning": (lambda: vector(elastic, **TURNING), "u may still be turned about (0, 0);"),
    "turning, nonlinear": (lambda: vector(hardening, **TURNING), "u may still be turned about (0, 0);"),
    "turning, quadratic elements": (
        lambda: vector(elastic, element="P2", **TURNING),
        "u may still be turned about (0, 0);",
    ),
    "turning, cube": (
        lambda: vector(elastic, 3, left=(None, 0.0, None), front=(0.0, None, None), below=(None, None, 0.0)),
        "u may still be turned about the axis through (0, 0, 0.5) along (0, 0, 1);",
    ),
    "moving": (lambda: vector(sliding), "u may still be moved along (1, 1);"),
    "two fields": (
        lambda: problem_of(tied(2), Field("u", dirichlet={}), Field("p", dirichlet={})),
        "u and p may still be changed by (1, 2) together;",
    ),
}
HELD = {
    "clamped": lambda: vector(elastic, left=0.0),
    "rollers": lambda: vector(elastic, left=(0.0, None), front=(None, 0.0)),
    "rollers, cube": lambda: vector(
        elastic, 3, left=(0.0, None, None), front=(None, 0.0, None), below=(None, None, 0.0)
    ),
    "weak springs": lambda: vector(sprung(1e-5)),
    "foundation": lambda: vector(in_a_corner),
    "turning prevented by a spring": lambda: vector(sprung(1e-3), front=(0.0, None)),
    "two fields, one given": lambda: problem_of(tied(2), Field("u", dirichlet={}), Field("p", dirichlet={"left": 0.0})),
    "quartic": lambda: problem_of(quartic, Field("u", dirichlet={})),
    "contrast": lambda: problem_of(contrast, Field("u", dirichlet={})),
}


def exported(problem, levels=2):
    return export_frame(MeshHierarchy.from_problem(problem, levels), problem)


def eigenvalues(problem, levels):
    """Least and largest, of the second derivative in the nodal basis at random nodal values."""
    form = make_formulation(Frame.from_arrays(exported(problem, levels), "float64"), problem)
    v = torch.randn(1, form.frame.arrays.nodal_size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = torch.linalg.eigvalsh(form.nodal_curvature(v, torch.as_tensor(problem.parameters.nominal)).to_dense())
    return float(found.min()), float(found.max())


@pytest.mark.parametrize("name", REFUSED)
def test_free_motions_are_refused_by_name_and_the_matrix_is_singular(name, monkeypatch):
    make, text = REFUSED[name]
    levels = 1 if "cube" in name else 2
    with pytest.raises(ValueError, match=r"the energy has no unique minimum: .*give more values by dirichlet") as error:
        exported(make(), levels)
    assert text.rstrip(";") + "; neither" in str(error.value)
    monkeypatch.setattr(held_motions, "check_motions", lambda arrays, problem: None)
    least, largest = eigenvalues(make(), levels)
    assert abs(least) < 1e-12 * largest


@pytest.mark.parametrize("name", HELD)
def test_what_holds_its_fields_is_not_refused_and_the_matrix_is_regular(name):
    least, largest = eigenvalues(HELD[name](), 1 if "cube" in name else 2)
    assert least > 1e-14 * largest
    assert least > 0


def test_saddle_points_least_squares_and_built_in_equations_are_not_refused():
    def stokes(u, p, y, x, dx, ds):
        return (y[0] * square(grad(u)) / 2 - p * div(u) - u[0]) * dx

    def fluxes(s, u, y, x, dx, ds):
        return (square(div(s) + y[1]) + square(s - y[0] * grad(u))) / 2 * dx

    exported(problem_of(stokes, Field("u", components=2), Field("p", dirichlet={})))
    exported(problem_of(fluxes, Field("s", "RT0"), Field("u")))
    for name in ("elastic", "anisotropic", "reaction", "carreau"):
        exported(make_problem(name))


@pytest.mark.parametrize("name", ["turning", "moving"])
def test_reference_solutions_refuse_them_too(name):
    make, text = REFUSED[name]
    with pytest.raises(ValueError, match="the energy has no unique minimum") as error:
        solve_reference(make(), [[1.0, 1.0]], 2)
    assert text.rstrip(";") in str(error.value)
    with pytest.raises(ValueError, match=r"nothing fixes u\[1\]"):
        solve_reference(vector(elastic, left=(0.0, None)), [[1.0, 1.0]], 2)


def test_motions_are_affine_functions_with_their_names():
    points = np.random.default_rng(0).uniform(-1, 3, (20, 2))
    motions = Motions.of_fields(points, ["u[0]", "u[1]", "p"], 4.0)
    assert len(motions) == 4
    assert motions.texts()[:3] == [
        "u may still be moved along (1, 0)",
        "u may still be moved along (0, 1)",
        "p may still be changed by a constant",
    ]
    about = np.array([[0.5, 0.25]])  # the motions that keep this point, and p
    rows = np.concatenate([motions.at(name, about).T for name in ("u[0]", "u[1]", "p")])
    (turned,) = (kept := motions.unseen(rows, 1e-9)).texts()
    assert turned == "u may still be turned about (0.5, 0.25)"
    arm, moved = points - about, np.stack([kept.at(name, points)[0] for name in ("u[0]", "u[1]")], axis=1)
    np.testing.assert_allclose((arm * moved).sum(axis=1), 0, atol=1e-12)
    np.testing.assert_allclose(np.ptp(np.linalg.norm(moved, axis=1) / np.linalg.norm(arm, axis=1)), 0, atol=1e-12)
