"""PETSc reference solutions: rates, exact cases, boundary data, solvers, serial against MPI."""

import dataclasses

import numpy as np
import oracles
import pytest
from mpi4py import MPI
from petsc4py import PETSc

from fem_frames import (
    ByRegion,
    Grid,
    MeshArrays,
    MeshHierarchy,
    Pointwise,
    Problem,
    ReferenceSolutions,
    ReferenceSolver,
    Uniform,
    error_norms,
    flux_error_norms,
    make_problem,
    solve_reference,
)
from fem_frames.fenicsx.refinement import coarse_mesh
from fem_frames.mesh.geometry import orient


@pytest.mark.parametrize(("d", "levels"), [(1, range(4, 9)), (2, range(3, 7)), (3, range(2, 5))])
def test_energy_solutions_converge_with_the_expected_rates(d, levels):
    problem, exact, gradient = oracles.sine_problem(d)
    h1, l2 = [], []
    for level in levels:
        hierarchy = MeshHierarchy.from_problem(problem, level)
        u = solve_reference(problem, [0.5], level).u[0]
        errors = error_norms(hierarchy.points, hierarchy.finest.cells, u, exact, gradient)
        h1.append(errors[0])
        l2.append(errors[1])
    assert oracles.slope(h1) == pytest.approx(1, abs=0.1)
    assert oracles.slope(l2) == pytest.approx(2, abs=0.15)


def test_error_norms_are_those_of_the_closed_form():
    """Zero against x² + y² on the unit square: ∫ u² = 28/45, ∫ |∇u|² = 8/3."""
    hierarchy = MeshHierarchy.refine(coarse_mesh(Grid((1, 1))), 1)
    zero = np.zeros(len(hierarchy.points))
    h1, l2 = error_norms(
        hierarchy.points, hierarchy.finest.cells, zero, lambda x: (x**2).sum(axis=-1), lambda x: 2 * x, degree=4
    )
    assert (h1**2, l2**2) == pytest.approx((8 / 3, 28 / 45), rel=1e-12)


def test_interval_solutions_are_exact_at_nodes():
    """Piecewise constant a: u at the nodes is that of the differential equation."""
    problem = make_problem("quarters")
    y = np.array([1.0, 0.8, 1.4, 0.7])
    x = MeshHierarchy.from_problem(problem, 6).points[:, 0]
    # σ = c - x with c from u(1) = 0, and u the integral of σ/a
    edges = np.linspace(0, 1, 5)
    first = (edges[1:] - edges[:-1]) / y
    second = (edges[1:] ** 2 - edges[:-1] ** 2) / 2 / y
    c = second.sum() / first.sum()
    upper = np.minimum(np.maximum(x[:, None], edges[:-1]), edges[1:])
    exact = ((c * (upper - edges[:-1]) - (upper**2 - edges[:-1] ** 2) / 2) / y).sum(axis=1)
    np.testing.assert_allclose(solve_reference(problem, y, 6).u[0], exact, atol=1e-12)


def test_least_squares_floor_is_that_of_the_paper_set_up():
    """Mean loss of the P1×P1 minimiser over y, J = 10: about h²/12 E[a⁻²] = 1.05e-7."""
    problem = make_problem("quarters")
    solutions = solve_reference(problem, problem.parameters.sample(250, 0), 10, "least-squares", distribute="samples")
    assert solutions.loss.mean() == pytest.approx(1.05e-7, rel=0.05)
    joint = (solutions.u**2).sum(axis=1) + (solutions.fields["sigma"] ** 2).sum(axis=1)
    assert joint.mean() == pytest.approx(98.5, rel=0.02)


def test_least_squares_loss_is_the_sum_of_squared_residuals():
    """By the closed form on cells, from the nodal values in the exported numbering."""
    problem = make_problem("quarters")
    y = problem.parameters.sample(3, 1)
    solutions = solve_reference(problem, y, 6, "least-squares")
    hierarchy = MeshHierarchy.from_problem(problem, 6)
    cells, h = hierarchy.finest.cells, 2.0**-6
    x = hierarchy.points[:, 0]
    a = y[:, hierarchy.regions(problem)]
    sign = np.sign(x[cells[:, 1]] - x[cells[:, 0]])
    left, right = np.where(sign > 0, cells.T, cells.T[::-1])
    gradient = (solutions.u[:, right] - solutions.u[:, left]) / h
    sigma = solutions.fields["sigma"]
    slope, middle = (sigma[:, right] - sigma[:, left]) / h, (sigma[:, right] + sigma[:, left]) / 2
    loss = h * ((slope + 1) ** 2 + (middle / a - gradient) ** 2 + (slope / a) ** 2 * h**2 / 12).sum(axis=1)
    np.testing.assert_allclose(solutions.loss, loss, rtol=1e-9)


@pytest.mark.parametrize("formulation", ["least-squares", "weighted-least-squares"])
@pytest.mark.parametrize(("d", "levels"), [(2, range(3, 7)), (3, range(1, 4))])
def test_least_squares_converge_with_rate_one_in_h1_and_h_div(d, levels, formulation):
    problem, exact, gradient = oracles.sine_problem(d)
    y, found = np.array([0.5]), []
    for level in levels:
        hierarchy = MeshHierarchy.from_problem(problem, level)
        solutions = solve_reference(problem, y, level, formulation)
        place = hierarchy.points, hierarchy.finest.cells
        h1, _ = error_norms(*place, solutions.u[0], exact, gradient)
        flux, divergence = flux_error_norms(
            *place,
            solutions.fields["sigma"][0],
            lambda x: (1 + 0.5 * x[..., :1]) * gradient(x),
            lambda x: -problem.source(x, y),
        )
        found.append((h1, flux, divergence, np.sqrt(solutions.loss[0])))
    for errors in np.transpose(found):
        assert oracles.slope(errors) == pytest.approx(1, abs=0.1 if d == 2 else 0.25)


@pytest.mark.parametrize("name", ["checkerboard", "lshape", "inclusion"])
@pytest.mark.parametrize("formulation", ["least-squares", "weighted-least-squares"])
def test_block_preconditioned_gradients_agree_with_lu(name, formulation):
    """For one y after the other; the number of iterations does not grow with the mesh as that of plain CG would."""
    problem = make_problem(name)
    iterations = []
    for level in (3, 5):
        y = problem.parameters.sample(2, 0)
        solve = ReferenceSolver(problem, level, formulation, solver="cg")
        found = [solve(sample) for sample in y]
        iterations.append(solve._system.solver.ksp.getIterationNumber())
        exact = solve_reference(problem, y, level, formulation, solver="lu", comm=MPI.COMM_SELF)
        for i, (fields, loss) in enumerate(found):
            assert loss == pytest.approx(exact.loss[i], rel=1e-8)
            for name_of_field, values in fields.items():
                np.testing.assert_allclose(values, exact.fields[name_of_field][i], rtol=0, atol=1e-10)
    assert iterations[1] < 1.6 * iterations[0]


def test_least_squares_and_energy_agree_in_the_limit():
    problem = make_problem("quarters")
    y = problem.parameters.sample(1, 2)
    difference = []
    for level in (5, 6, 7):
        least_squares = solve_reference(problem, y, level, "least-squares")
        difference.append(np.abs(least_squares.u - solve_reference(problem, y, level).u).max())
    assert oracles.slope(difference) == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_given_boundary_data_are_met_exactly_by_linear_solutions(d):
    """u = 1 + 2 x₀ - x₁ …: Dirichlet data where x₀ is 0 or 1, Neumann data elsewhere (1D: at x₀ = 1)."""
    slopes = np.array([2.0, -1.0, 0.5])[:d]

    def u(x):
        return 1 + x @ slopes

    def flux(x):
        outward = np.where(np.isclose(x, 0), -1, np.where(np.isclose(x, 1), 1, 0))
        return 3.0 * outward @ slopes

    problem = Problem(
        mesh=Grid((1,) * d),
        coefficient=ByRegion({}, fixed={0: 3.0}),
        parameters=Uniform((0.0,), (1.0,)),
        source=0.0,
        dirichlet=lambda x: np.isclose(x[:, 0], 0) | (np.isclose(x[:, 0], 1) & (d > 1)),
        dirichlet_value=u,
        neumann={"rest": flux},
    )
    points = MeshHierarchy.from_problem(problem, 3).points
    for formulation in ("energy", "least-squares")[: 1 + (d == 1)]:
        solutions = solve_reference(problem, [0.5], 3, formulation)
        np.testing.assert_allclose(solutions.u[0], u(points), atol=1e-10)
        if formulation == "least-squares":
            np.testing.assert_allclose(solutions.fields["sigma"][0], 3 * slopes[0], atol=1e-10)
            assert solutions.loss[0] == pytest.approx(0, abs=1e-20)


def test_energy_is_that_of_the_solution():
    """With zero Dirichlet data the energy at the minimiser is -½ ∫ f u."""
    problem = make_problem("checkerboard")
    solutions = solve_reference(problem, problem.parameters.sample(2, 0), 4)
    hierarchy = MeshHierarchy.from_problem(problem, 4)
    integral = (solutions.u[:, hierarchy.finest.cells].mean(axis=2) * 2.0**-9).sum(axis=1)
    np.testing.assert_allclose(solutions.loss, -integral / 2, rtol=1e-10)


@pytest.mark.parametrize(
    ("name", "levels", "formulation"),
    [
        ("quarters", 6, "energy"),
        ("quarters", 6, "least-squares"),
        ("checkerboard", 4, "energy"),
        ("lshape", 3, "energy"),
        ("cookies", 4, "energy"),
        ("lognormal", 4, "energy"),
        ("inclusion", 4, "energy"),
        ("cube", 3, "energy"),
        ("checkerboard", 3, "least-squares"),
        ("lshape", 2, "weighted-least-squares"),
        ("cube", 2, "least-squares"),
    ],
)
def test_ways_of_distribution_and_solvers_agree(name, levels, formulation):
    """On one rank: multigrid against LU. On several: distributed mesh, distributed samples and serial too."""
    problem = make_problem(name)
    y = problem.parameters.sample(3, 0)
    serial = solve_reference(problem, y, levels, formulation, solver="lu", comm=MPI.COMM_SELF)
    for distribute in ("mesh", "samples"):
        solutions = solve_reference(problem, y, levels, formulation, distribute=distribute)
        assert set(solutions.fields) == set(serial.fields)
        for field, values in serial.fields.items():
            np.testing.assert_allclose(solutions.fields[field], values, rtol=0, atol=1e-10)
        np.testing.assert_allclose(solutions.loss, serial.loss, rtol=1e-8)


def test_every_kind_of_mesh_gives_the_same_solution(comm):
    from dolfinx import mesh as dmesh

    problem = dataclasses.replace(make_problem("checkerboard"), mesh=Grid((2, 2)))
    y = problem.parameters.sample(1, 0)
    expected = solve_reference(problem, y, 2)
    mesh = dmesh.create_rectangle(comm, [np.zeros(2), np.ones(2)], [2, 2])
    arrays = MeshHierarchy.from_problem(problem, 1)
    coarse = MeshArrays(arrays.level_points(0), orient(arrays.level_points(0), arrays.levels[0].cells))
    for source in (mesh, (mesh, None, None), coarse):
        solutions = solve_reference(dataclasses.replace(problem, mesh=source), y, 2)
        np.testing.assert_allclose(solutions.u, expected.u, atol=1e-12)


def test_red_and_dolfinx_refinement_converge_to_the_same(comm):
    problem = make_problem("lshape")
    y = problem.parameters.sample(1, 0)
    losses = {}
    for refinement in ("red", "dolfinx"):
        changed = dataclasses.replace(problem, refinement=refinement)
        losses[refinement] = [solve_reference(changed, y, level).loss[0] for level in (3, 4, 5)]
    gaps = np.abs(np.subtract(losses["red"], losses["dolfinx"]))
    assert gaps[-1] < 0.5 * gaps[0]
    assert losses["red"][-1] == pytest.approx(losses["dolfinx"][-1], rel=5e-3)


# ---- options and failures -------------------------------------------------------------------------------


def test_a_solve_that_does_not_converge_says_why():
    problem = make_problem("checkerboard")
    with pytest.raises(RuntimeError, match=r"did not converge in 1 iterations: DIVERGED_(MAX_IT|ITS); try solver='lu'"):
        solve_reference(problem, np.ones(4), 4, petsc_options={"ksp_max_it": 1})


def test_petsc_options_win_and_are_not_left_behind():
    problem = make_problem("checkerboard")
    options = PETSc.Options()
    options["ksp_rtol"] = 1e-5
    try:
        loose = ReferenceSolver(problem, 3)
        tight = ReferenceSolver(problem, 3, petsc_options={"ksp_rtol": 1e-9, "pc_type": "jacobi"})
        by_default, by_argument = (made._system.solver.ksp for made in (loose, tight))
        assert (by_default.getTolerances()[0], by_argument.getTolerances()[0]) == (1e-5, 1e-9)
        assert by_argument.getPC().getType() == "jacobi"
        assert options.getReal("ksp_rtol") == 1e-5
        assert not options.hasName("pc_type")
    finally:
        options.delValue("ksp_rtol")


def test_petsc_options_that_are_read_late_work():
    """Smoothers of multigrid are made when it is set up, not when the solver is."""
    problem = make_problem("checkerboard")
    options = {"pc_type": "gamg", "mg_levels_ksp_type": "richardson", "mg_levels_pc_type": "sor"}
    solve = ReferenceSolver(problem, 5, petsc_options=options)
    solve(np.ones(4))
    smoother = solve._system.solver.ksp.getPC().getMGSmoother(1)
    assert smoother.getType() == "richardson"
    assert smoother.getPC().getType() == "sor"


def test_options_that_petsc_refuses_are_named_and_forgotten():
    problem = make_problem("checkerboard")
    with pytest.raises(ValueError, match=r"PETSc refuses the options .*nonsense"):
        solve_reference(problem, np.ones(4), 2, petsc_options={"ksp_type": "nonsense"})
    assert solve_reference(problem, np.ones(4), 2).u.max() > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(levels=0), "levels = 0"),
        (dict(levels=-2), "levels = -2"),
        (dict(y=np.ones(3)), "p = 4 parameters"),
        (dict(y=np.ones((0, 4))), "y is empty"),
        (dict(y=np.full(4, 9.0)), "outside the parameters"),
        (dict(formulation="mixed"), "choose from energy, least-squares"),
        (dict(solver="magic"), "choose from cg, lu"),
        (dict(distribute="both"), "choose mesh or samples"),
    ],
)
@pytest.mark.parametrize("distribute", ["mesh", "samples"])
def test_bad_calls_are_named_on_every_rank(change, message, distribute):
    arguments = dict(y=np.ones(4), levels=2, distribute=distribute) | change
    with pytest.raises(ValueError, match=message):
        solve_reference(make_problem("checkerboard"), **arguments)


@pytest.mark.parametrize(("name", "dimension"), [("quarters", 1), ("cube", 3)])
@pytest.mark.parametrize("distribute", ["mesh", "samples"])
def test_where_least_squares_has_no_multigrid_is_named(name, dimension, distribute):
    problem = make_problem(name)
    y = problem.parameters.sample(2, 0)
    with pytest.raises(ValueError, match=f"no multigrid in dimension {dimension}; use solver='lu'"):
        solve_reference(problem, y, 2, "least-squares", solver="cg", distribute=distribute)


@pytest.mark.parametrize("distribute", ["mesh", "samples"])
def test_an_error_on_one_rank_is_raised_on_all(distribute, comm):
    """The coefficient is negative near one corner only, or for one sample only."""
    bad_mesh = Pointwise(lambda x, y: np.where(x[..., 0] + x[..., 1] < 0.3, -1.0, 1.0) + 0 * y[..., 0])
    bad_sample = Pointwise(lambda x, y: np.where(y[..., 0] > 0.55, -1.0, 1.0) + 0 * x[..., 0])
    problem = Problem(Grid((2, 2)), bad_mesh if distribute == "mesh" else bad_sample, Uniform((0.0,), (1.0,)))
    with pytest.raises(ValueError, match="a_y must be positive and finite, but it is -1"):
        solve_reference(problem, [[0.5], [0.6]], 3, distribute=distribute)


def test_saved_solutions_come_back_and_damage_is_refused(tmp_path):
    problem = make_problem("quarters")
    solutions = solve_reference(problem, problem.parameters.sample(2, 0), 3, "least-squares", comm=MPI.COMM_SELF)
    solutions.save(tmp_path / "r.npz")
    loaded = ReferenceSolutions.load(tmp_path / "r.npz")
    np.testing.assert_array_equal(loaded.fields["sigma"], solutions.fields["sigma"])
    assert loaded.record["problem"] == "quarters"
    with np.load(tmp_path / "r.npz") as content:
        arrays = dict(content)
    np.savez(tmp_path / "short.npz", **(arrays | {"field.u": arrays["field.u"][:1]}))
    np.savez(tmp_path / "less.npz", **{k: v for k, v in arrays.items() if k != "loss"})
    for name, message in (("short", "different length"), ("less", "lacks")):
        with pytest.raises(ValueError, match=message):
            ReferenceSolutions.load(tmp_path / f"{name}.npz")
