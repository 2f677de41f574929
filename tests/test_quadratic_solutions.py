"""Quadratic elements against DOLFINx and PETSc: functions, matrices, solutions, equations of users."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import ufl
from frames import bent, samples
from quadratic import LEVELS, NAME, P2Reaction, exported, made, unit
from walls import NAMES, cube, ramp, wave

from fem_frames import (
    Equation,
    Field,
    P2Energy,
    Parameter,
    PointValues,
    Problem,
    Uniform,
    certify,
    solve,
    solve_reference,
)
from fem_frames.fenicsx import door, petsc
from fem_frames.fenicsx.dofs import bubbles_from_middles, edge_dofs, middles_from_bubbles, node_dofs
from fem_frames.frame import level_matrices
from fem_frames.outputs import OutputMap
from fem_frames.solvers.bounds import norm_of

pytestmark = pytest.mark.serial


# ---- DOLFINx's P2


def p2_values(arrays, seed=0):
    """A random P2 function: values at points and midpoints, and its edge bubbles."""
    rng, edges = np.random.default_rng(seed), arrays.simplices(len(arrays.levels) - 1, 1)[0]
    u, middles = rng.standard_normal(len(arrays.points)), rng.standard_normal(len(edges))
    return u, middles, bubbles_from_middles(u, middles, edges), edges


@pytest.mark.parametrize("d", [1, 2, 3])
def test_functions_of_dolfinx_are_the_sums_of_both_fields(d):
    """∫ u² and ∫ |∇u|² of a P2 function by DOLFINx, and by the states of its nodal values and bubbles."""
    arrays = exported(bent(d), LEVELS[d])
    u, middles, bubbles, edges = p2_values(arrays)
    np.testing.assert_allclose(middles_from_bubbles(u, bubbles, edges), middles, atol=1e-14)
    mesh = door.create(arrays.points, arrays.levels[-1].cells, door.MPI.COMM_SELF)
    V = door.space(mesh, ("P", 2))
    function = door.fem.Function(V)
    (at_points, node), (at_edges, edge) = node_dofs(V, V), edge_dofs(V, V, edges)
    assert sorted([*at_points, *at_edges]) == list(range(len(function.x.array)))
    function.x.array[at_points], function.x.array[at_edges] = u[node], middles[edge]
    ufl = door.ufl
    dx = ufl.Measure("dx", domain=mesh, metadata={"quadrature_degree": 4})
    forms = (function**2 * dx, ufl.inner(ufl.grad(function), ufl.grad(function)) * dx)
    expected = [door.integral(door.compile_form(form), door.MPI.COMM_SELF) for form in forms]
    hats, weights = door.barycentric_quadrature(d, 4)
    points = np.einsum("qn,knd->kqd", hats, arrays.points[arrays.levels[-1].cells])
    parts = zip(arrays.fields, (u, bubbles), strict=True)
    at = sum(
        np.einsum(
            "kc,kqce->kqe",
            level_matrices.cell_states(arrays, f, values),
            level_matrices.shifted_units(arrays, f, points)[..., : 1 + d],
        )
        for f, values in parts
    )
    found = [
        np.einsum("k,q,kq->", arrays.volumes, weights, square)
        for square in (at[..., 0] ** 2, (at[..., 1:] ** 2).sum(-1))
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_nodal_matrix_is_that_of_dolfinx(d):
    """A_y of hats and bubbles is DOLFINx's P2 stiffness matrix, from values at points and midpoints to bubbles."""
    problem = unit(d)
    formulation = made(problem, LEVELS[d] - 1)
    arrays = formulation.frame.arrays
    mesh = door.create(arrays.points, arrays.levels[-1].cells, door.MPI.COMM_SELF)
    V, ufl = door.space(mesh, ("P", 2)), door.ufl
    u, v = ufl.TrialFunction(V), ufl.TestFunction(V)
    form = ufl.inner(ufl.grad(u), ufl.grad(v)) * ufl.dx
    indptr, indices, data = petsc.assemble_matrix(door.compile_form(form)).getValuesCSR()
    dense = np.zeros((len(indptr) - 1,) * 2)
    dense[np.repeat(np.arange(len(dense)), np.diff(indptr)), indices] = data
    edges = arrays.simplices(len(arrays.levels) - 1, 1)[0]
    (at_points, node), (at_edges, edge) = node_dofs(V, V), edge_dofs(V, V, edges)
    N, E = len(arrays.points), len(edges)
    T = np.zeros((N + E, N + E))  # hats and bubbles to DOLFINx's dofs
    T[at_points, node] = 1
    T[at_edges, N + edge] = 1
    for end in range(2):
        T[at_edges, edges[edge, end]] = 0.5
    free = np.concatenate([arrays.fields[0].free[-1], N + arrays.fields[1].free[-1]])
    expected = (T.T @ dense @ T)[np.ix_(free, free)]
    found = formulation.A(torch.ones(1, 1, dtype=torch.float64)).to_dense()[0]
    np.testing.assert_allclose(found, expected, atol=1e-12 * np.abs(expected).max())


CONDITIONS = {
    "fixed": {"dirichlet": {"left": lambda x: 1 + x[:, 0] ** 2 + x[:, -1] ** 2}},
    "of y": {"dirichlet": {"left": wave}},
    "several": {"dirichlet": {"left": lambda x: np.sin(x[:, -1]), "right": wave}},
    "constant": {"dirichlet": {"left": Parameter(1), "right": 2.0}},
    "constant in x": {"dirichlet": {"left": lambda x, y: y[..., 1] ** 2}},
    "of y, then constant": {"dirichlet": {"left": ramp, "right": Parameter(1)}},
}


def with_conditions(d, name):
    mesh = cube(d)
    assert set(mesh.facet_names) <= set(NAMES)
    return replace(bent(d), mesh=mesh, **{"dirichlet_value": 0.0, **CONDITIONS[name]}, parameters=THREE)


THREE = Uniform((0.0, 0.5, 1.0), (1.0, 1.5, 2.0))


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("name", CONDITIONS)
def test_frame_and_petsc_agree(d, name):
    """Values at points, bubbles and energies, with all kinds of Dirichlet data."""
    problem = with_conditions(d, name)
    levels = {1: 3, 2: 2, 3: 1}[d]
    formulation, y = made(problem, levels), samples(problem, 2)
    reference = solve_reference(problem, y.numpy(), levels, NAME, solver="lu")
    w = solve(formulation, y, 1e-12).w
    found = formulation.synthesise(w, y)
    assert float(found["u bubbles"].abs().max()) > 1e-4
    for field, values in found.items():
        np.testing.assert_allclose(values, reference.fields[field], rtol=0, atol=1e-10)
    np.testing.assert_allclose(formulation.loss(w, y), reference.loss, rtol=1e-10, atol=1e-12)
    free = formulation.coordinates.free(reference.fields, formulation.frame.device, y.numpy())
    again = formulation.coordinates.coefficients(free)
    assert float(formulation.residual(again, y).abs().max()) < 1e-10


@pytest.mark.parametrize("d", [1, 2, 3])
def test_reactions_agree_with_petsc(d):
    problem = bent(d)
    levels = {1: 3, 2: 2, 3: 1}[d]
    formulation, y = made(problem, levels, formulation=P2Reaction.name), samples(problem, 2)
    reference = solve_reference(problem, y.numpy(), levels, P2Reaction.name, solver="lu")
    w = solve(formulation, y, 1e-12).w
    np.testing.assert_allclose(formulation.synthesise(w)["u bubbles"], reference.fields["u bubbles"], atol=1e-10)
    np.testing.assert_allclose(formulation.loss(w, y), reference.loss, rtol=1e-10)
    noise = 0.01 * torch.randn(w.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bound, error = certify(formulation, w + noise, y).value, norm_of(formulation, noise, y)
    assert (error <= bound).all()
    assert (bound <= 10 * error).all()


def test_a_reaction_without_forms_of_its_own_has_none():
    class Without(P2Reaction):
        name = "test-p2-reaction-without-forms"

        def reaction(self, y):
            return super().reaction(y)

    assert P2Energy.has_forms()
    assert P2Reaction.has_forms()
    assert not Without.has_forms()


# ---- equations of users in P2


@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.parametrize("d", [1, 2, 3])
def test_equations_have_the_solutions_of_the_formulation(d, name):
    """The states of bubbles are shifted to quadrature points in the unit that they have on the mesh."""
    problem = with_conditions(d, name)

    def energy(u, y, x, dx, ds):
        a = 1 + y[0] * x[0] + y[1] * x[d - 1] ** 2
        return (a / 2 * ufl.dot(ufl.grad(u), ufl.grad(u)) - (1 + y[1] * x[0] ** 2) * u) * dx

    own = replace(problem, coefficient=Equation(Field("u", "P2"), energy=energy), source=1.0)
    levels = {1: 3, 2: 2, 3: 1}[d]
    expected, found = made(problem, levels), made(own, levels, formulation="energy")
    y = samples(problem, 2)
    one, other = (formulation.synthesise(solve(formulation, y, 1e-12).w, y) for formulation in (expected, found))
    for field in ("u", "u bubbles"):
        torch.testing.assert_close(other[field], one[field], rtol=0, atol=1e-10)


@pytest.mark.parametrize("d", [2, 3])
def test_quadratic_vectors_are_exact(d):
    """u = (x0² + y0 x0 + x1², x0 x1), given on the left, with tractions on the other walls."""

    def energy(u, y, x, dx, ds):
        load = (2 + y[0]) * u[0] * ds("right") + 2 * u[0] * ds("top")
        load += x[1] * u[1] * ds("right") + x[0] * u[1] * ds("top") - x[0] * u[1] * ds("bottom")
        return (ufl.inner(ufl.grad(u), ufl.grad(u)) / 2 + 4 * u[0]) * dx - load

    field = Field("u", "P2", components=2, dirichlet={"left": (lambda x: x[:, 1] ** 2, 0.0)})
    problem = Problem(cube(d), Equation(field, energy=energy), Uniform((0.0,), (1.0,)), quadrature_degree=4)
    formulation, y = made(problem, 1, formulation="energy"), torch.tensor([[0.25], [0.75]], dtype=torch.float64)
    w = solve(formulation, y, 1e-12).w
    found, arrays = formulation.synthesise(w, y), formulation.frame.arrays
    edges = arrays.simplices(len(arrays.levels) - 1, 1)[0]
    for k, part in enumerate(
        (lambda x: x[..., 0] ** 2 + y * x[..., 0] + x[..., 1] ** 2, lambda x: x[..., 0] * x[..., 1])
    ):
        points = torch.as_tensor(arrays.points.copy())
        at_points, middles = part(points).expand(2, -1), part(points[edges].mean(dim=1)).expand(2, -1)
        torch.testing.assert_close(found[f"u[{k}]"], at_points, rtol=0, atol=1e-9)
        bubbles = bubbles_from_middles(at_points.numpy(), middles.numpy(), edges)
        np.testing.assert_allclose(found[f"u[{k}] bubbles"], bubbles, rtol=0, atol=1e-9)
    x = np.random.default_rng(0).uniform(size=(5, d))
    outputs = OutputMap(formulation, PointValues(x, "u[1]"))
    np.testing.assert_allclose(outputs.values(w, y)[1], x[:, 0] * x[:, 1], atol=1e-9)
