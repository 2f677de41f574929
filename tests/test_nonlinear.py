"""Nonlinear energies of users: derivatives, Newton's method, error bounds and training."""

import functools
import json

import numpy as np
import pytest
import torch
from small_runs import call_command
from ufl import Identity, det, exp, grad, inner, ln, sqrt

from fem_frames import (
    Equation,
    Field,
    Frame,
    Grid,
    MeshHierarchy,
    Multigrid,
    PointValues,
    Problem,
    Uniform,
    certify,
    certify_outputs,
    differentiable_solve,
    error_bound,
    export_frame,
    make_formulation,
    make_problem,
    solve,
    solve_linear,
    tangent_solve,
)
from fem_frames.solvers.conjugate_gradients import ConvergenceError
from fem_frames.solvers.newton import newton
from training import Configuration, Surrogate, train
from training.losses import make_loss
from training.metrics import bound_record, energy_error
from training.references import reference_solutions
from training.run.trainer import TrainingError

pytestmark = pytest.mark.serial


def square(u):
    return inner(grad(u), grad(u))


def left(x):
    return np.isclose(x[:, 0], 0)


def neo_hookean(u, y, x, dx, ds):
    F = Identity(2) + grad(u)
    return ((inner(F, F) - 2 - 2 * ln(det(F))) / 2 + y[0] * ln(det(F)) ** 2 / 2) * dx + 0.1 * u[1] * dx


def problem_of(energy, components=None, monotonicity=None, **more):
    equation = Equation(Field("u", components=components), energy=energy, monotonicity=monotonicity)
    return Problem(Grid((1, 1)), equation, Uniform((0.5,), (1.5,)), **{"quadrature_degree": 4, **more})


PROBLEMS = {
    "carreau": lambda: make_problem("carreau"),
    "lift and boundary": lambda: problem_of(
        lambda u, y, x, dx, ds: (y[0] * (1 + square(u)) ** 1.5 / 3 - x[1] * u) * dx + (abs(u) ** 5 / 5 - y[0] * u) * ds,
        dirichlet=left,
        dirichlet_value=lambda x: 1 + x[:, 1],
    ),
    "exponential": lambda: problem_of(lambda u, y, x, dx, ds: (y[0] * square(u) / 2 + exp(u) + exp(-u) - 10 * u) * dx),
    "Neo-Hooke": lambda: problem_of(neo_hookean, components=2, dirichlet=left),
}
CONVEX = [name for name in PROBLEMS if name != "Neo-Hooke"]


@functools.cache
def formulation(name, levels=3):
    problem = PROBLEMS[name]()
    arrays = export_frame(MeshHierarchy.from_problem(problem, levels), problem)
    return make_formulation(Frame.from_arrays(arrays, "float64"), problem)


def samples(exact, count, seed=0):
    return torch.as_tensor(exact.problem.parameters.sample(count, seed))


def random(exact, count, size=0.1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return size * torch.randn(count, exact.frame.frame_size, dtype=torch.float64, generator=generator)


def solved(energy, tol=1e-10, levels=3, **more):
    """The formulation of an energy, and the solutions for three samples."""
    problem = problem_of(energy, **more)
    arrays = export_frame(MeshHierarchy.from_problem(problem, levels), problem)
    exact = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    return exact, solve(exact, samples(exact, 3), tol)


# ---- derivatives


@pytest.mark.parametrize("name", PROBLEMS)
def test_residual_and_curvature_are_derivatives(name):
    exact, h = formulation(name), 1e-5
    y, w, z = samples(exact, 3), 0.02 * random(exact, 3), 0.02 * random(exact, 3, seed=1)
    loss, residual = exact.loss_and_residual(w, y)
    torch.testing.assert_close(loss, exact.loss(w, y))
    slope = (exact.loss(w + h * z, y) - exact.loss(w - h * z, y)) / (2 * h)
    torch.testing.assert_close((residual * z).sum(1), slope, rtol=1e-7, atol=1e-9)
    change = (exact.residual(w + h * z, y) - exact.residual(w - h * z, y)) / (2 * h)
    torch.testing.assert_close(exact.curvature(w, y)(z), change, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(exact.residual(0 * w, y), -exact.load(y))
    torch.testing.assert_close(exact.loss(0 * w, y), exact.constant(y))
    torch.testing.assert_close(exact.stable(y)(z), exact.curvature(0 * w, y)(z))


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_routes_by_states_and_by_nodal_values_agree(name):
    exact = formulation(name)
    y, w, z, H = samples(exact, 3), 0.02 * random(exact, 3), random(exact, 3, seed=1), exact.frame.H
    torch.testing.assert_close(exact.nodal_loss(H(w), y), exact.loss(w, y))
    nodal = exact.nodal_curvature(H(w), y)
    torch.testing.assert_close(H.T(nodal(H(z))), exact.curvature(w, y)(z))
    torch.testing.assert_close(exact.bpx(y)(z), exact.stable(y)(z))
    assert exact.local_curvature(w, y).shape == exact.local_matrices(y).shape


@pytest.mark.parametrize("loss", ["stable", "bpx", "nodal"])
def test_curvatures_of_losses_belong_to_the_answer(loss):
    made, h = make_loss(loss, formulation("carreau")), 1e-5
    y, w = samples(made.formulation, 2), random(made.formulation, 2)
    if made.nodal:
        w = made.formulation.frame.H(w)
    batch, z = made.batch(y.numpy()), w.flip(1)
    change = (made.with_gradient(w + h * z, batch)[1] - made.with_gradient(w - h * z, batch)[1]) / (2 * h)
    torch.testing.assert_close(made.curvature(batch, w)(z), change, rtol=1e-6, atol=1e-7)


# ---- Newton's method


@pytest.mark.parametrize("name", PROBLEMS)
def test_solutions_have_no_residual_and_the_least_energy(name):
    exact = formulation(name)
    y = samples(exact, 4)
    found = solve(exact, y, 1e-11)
    assert (found.residual <= 1e-11).all()
    assert found.solver == ("multigrid" if name != "Neo-Hooke" else "frame")
    again = solve(exact, y, 1e-11, solver="frame")
    torch.testing.assert_close(exact.frame.H(again.w), exact.frame.H(found.w), rtol=0, atol=1e-9)
    for seed in range(3):
        assert (exact.loss(found.w + 0.01 * random(exact, 4, seed=seed), y) > exact.loss(found.w, y)).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_narrow_formulations_reach_the_same_solutions(dtype):
    exact = formulation("carreau")
    narrow = exact.to(dtype)
    y = samples(exact, 2).to(narrow.wide)
    truth = exact.frame.H(solve(exact, y.double(), 1e-12).w)
    for solver in ("multigrid", "frame"):
        found = solve(narrow, y, 1e-10, solver=solver)
        torch.testing.assert_close(exact.frame.H(found.w), truth, rtol=0, atol=1e-9)


def test_samples_that_are_done_take_no_more_iterations():
    exact = formulation("carreau")
    y = samples(exact, 3)
    found = solve(exact, y, 1e-10)
    w = found.w.clone()
    w[1] = 0
    again = newton(exact, y, 1e-10, start=w)
    assert again.iterations[[0, 2]].tolist() == [0, 0]
    assert again.iterations[1] == found.iterations[1]
    assert torch.equal(again.w[[0, 2]], w[[0, 2]])
    alone = solve(exact, y[1], 1e-10)
    torch.testing.assert_close(exact.frame.H(alone.w)[0], exact.frame.H(again.w)[1], rtol=0, atol=1e-9)


def test_curvature_that_vanishes_at_zero_needs_no_special_start():
    """The p-Laplacian: its second derivative at u = 0 is zero."""
    exact, found = solved(lambda u, y, x, dx, ds: (square(u) ** 2 / 4 - y[0] * u) * dx)
    assert found.solver == "frame"
    assert (found.residual <= 1e-10).all()
    # u scales like the load to the power 1/3
    y, peak = samples(exact, 3)[:, 0], exact.frame.H(found.w).amax(1)
    torch.testing.assert_close(peak / y ** (1 / 3), (peak / y ** (1 / 3)).mean().expand(3), rtol=1e-8, atol=0)


def test_double_wells_end_in_a_minimum():
    exact, found = solved(lambda u, y, x, dx, ds: (square(u) / 200 + (u**2 - 1) ** 2 / 4 - y[0] * u / 10) * dx)
    assert (found.residual <= 1e-10).all()
    curvature = exact.nodal_curvature(exact.frame.H(found.w), samples(exact, 3)).to_dense()
    assert (torch.linalg.eigvalsh(curvature)[:, 0] > 0).all()


@pytest.mark.parametrize(
    "energy",
    [
        lambda u, y, x, dx, ds: (square(u) / 2 - 10 * u**4 - 30 * y[0] * u) * dx,
        lambda u, y, x, dx, ds: (square(u) / 2 - 20 * u**2 + sqrt(1 + u**2) - y[0] * u) * dx,
        lambda u, y, x, dx, ds: (square(u) / 2 - 100 * u**3 - y[0] * u) * dx,
    ],
)
def test_energies_without_minimum_are_reported(energy):
    with pytest.raises(ConvergenceError, match="the energy has negative curvature: it may have no minimum"):
        solved(energy)


def test_multigrid_that_was_asked_for_says_that_matrices_are_not_positive():
    problem = problem_of(lambda u, y, x, dx, ds: (square(u) / 2 - 50 * u**2 + u**4 - y[0] * u) * dx)
    exact = make_formulation(Frame.from_arrays(export_frame(MeshHierarchy.from_problem(problem, 3), problem)), problem)
    y = samples(exact, 2).to(exact.wide)
    with pytest.raises(ConvergenceError, match=r"no positive curvature in step 1: it may have no .*; .* leave out"):
        solve(exact, y, 1e-5, solver="multigrid")
    assert (solve(exact, y, 1e-10).residual <= 1e-10).all()


def test_what_solves_linear_equations_refuses_nonlinear_energies():
    exact = formulation("carreau")
    y = samples(exact, 2)
    with pytest.raises(ValueError, match="the equation is nonlinear: give the coefficients at="):
        solve_linear(exact, y, exact.load(y))
    with pytest.raises(ValueError, match="answer solves linear equations, but that of carreau is not linear"):
        Multigrid(exact).answer(y)
    with pytest.raises(ValueError, match="the net multigrid solves linear equations"):
        train(Configuration(problem="carreau", levels=2, net="multigrid"), "unused", quiet=True)


# ---- derivatives in y


@pytest.mark.parametrize("name", CONVEX)
def test_gradients_in_y_are_those_of_differences(name):
    exact = formulation(name)
    y, goal = samples(exact, 2), exact.frame.H.T(torch.ones(2, exact.frame.arrays.nodal_size, dtype=torch.float64))
    free = y.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((differentiable_solve(exact, free, 1e-12) * goal).sum(), free)
    for k in range(y.shape[1]):
        v = torch.zeros_like(y)
        v[:, k] = 1
        h = 1e-4 * float(exact.problem.parameters.upper[k])
        up, down = (solve(exact, y + sign * h * v, 1e-13).w for sign in (1, -1))
        change = ((up - down) * goal).sum(1) / (2 * h)
        torch.testing.assert_close(gradient[:, k], change, rtol=1e-6, atol=1e-9)
        tangent = (tangent_solve(exact, y, v, 1e-12)[1] * goal).sum(1)
        torch.testing.assert_close(gradient[:, k], tangent, rtol=1e-8, atol=1e-12)


# ---- error bounds


def perturbations(exact, count):
    """Rough, smooth and local ones, small and large."""
    smooth, fine = random(exact, count, seed=2), random(exact, count, seed=3)
    smooth[:, 20:], fine[:, : exact.frame.frame_size // 2] = 0, 0
    for e in (random(exact, count, seed=1), smooth, fine):
        for size in (1e-4, 1e-2, 1.0):
            yield size * e / e.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("name", CONVEX)
def test_errors_are_below_their_bounds_and_not_far_below(name):
    exact = formulation(name, 4)
    assert exact.norms[0].text == "energy norm of the quadratic part below the energy for the nominal y"
    y = samples(exact, 8, seed=1)
    w = solve(exact, y, 1e-12).w
    size = exact.frame.H(w).norm() / 10
    for e in perturbations(exact, 8):
        found = certify(exact, w + size * e, y)
        error = exact.energy_norm(exact.frame.D(size * e), y)
        assert (found.value >= error).all()
        assert (found.value <= 10 * error).all()
        truth = exact.energy_norm(exact.states(w, y), y)
        assert (found.relative >= error / truth).all()


def test_bounds_of_claims_and_of_rules_hold_alike():
    def energy(u, y, x, dx, ds):
        return (y[0] * (1 + square(u)) ** 1.5 / 3 + u**4 - 5 * u) * dx

    found, solution = solved(energy, 1e-12, 4)
    claimed, _ = solved(energy, 1e-12, 4, monotonicity=lambda y: y[0])
    assert claimed.norms[0].text.endswith("if the energy is as monotone as claimed")
    y, e = samples(found, 3), random(found, 3)
    bounds = [certify(f, solution.w + e, y) for f in (found, claimed)]
    torch.testing.assert_close(bounds[0].value, bounds[1].value, rtol=1e-2, atol=0)
    assert bounds[0].norm != bounds[1].norm


def test_outputs_of_nonlinear_energies_have_bounds():
    exact = formulation("carreau", 4)
    y = samples(exact, 4)
    w, e = solve(exact, y, 1e-12).w, 0.1 * random(exact, 4)
    output = PointValues([[0.3, 0.4]])
    truth, found = certify_outputs(exact, w, y, output), certify_outputs(exact, w + e, y, output)
    assert found.bounded
    assert ((found.values - truth.values).abs() <= found.error_bound + truth.error_bound).all()
    with pytest.raises(ValueError, match="adjoint solves do not correct outputs of nonlinear equations"):
        certify_outputs(exact, w, y, output, adjoint=True)


def test_no_bound_without_convexity():
    exact = formulation("Neo-Hooke")
    y, w = samples(exact, 2), random(exact, 2, 0.01)
    for ask in (certify, error_bound):
        with pytest.raises(ValueError, match="no bound: the energy is not known to be convex; give monotonicity="):
            ask(exact, w, y)
    found = certify_outputs(exact, w, y, PointValues([[0.3, 0.4]], "u[1]"))
    assert not found.bounded
    assert torch.isinf(found.error_bound).all()


@pytest.mark.parametrize(
    ("energy", "dirichlet"),
    [
        # The quadratic part sees neither functions of x₀ alone nor, with factors below zero, anything at all.
        (
            lambda u, y, x, dx, ds: (y[0] * u.dx(0) ** 2 / 2 + square(u) ** 2 / 4 - u) * dx,
            lambda x: np.isclose(x[:, 1], 0),
        ),
        (lambda u, y, x, dx, ds: (square(u) / 2 + (y[0] - 2) * u**4 - u) * dx, "all"),
    ],
)
def test_bounds_are_infinite_where_the_quadratic_part_does_not_suffice(energy, dirichlet):
    problem = problem_of(energy, dirichlet=dirichlet)
    exact = make_formulation(
        Frame.from_arrays(export_frame(MeshHierarchy.from_problem(problem, 3), problem), "float64"), problem
    )
    found = certify(exact, random(exact, 2), samples(exact, 2))
    assert torch.isinf(found.value).all()
    assert torch.isinf(found.relative).all()


# ---- training


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("carreau") / "run"
    settings = dict(problem="carreau", levels=3, optimizer="soap", level_decay=1.0, epochs=150, test_samples=8)
    return folder, train(Configuration(**settings), folder, quiet=True)


def test_surrogates_are_trained_and_improved_by_newton_steps(trained):
    folder, result = trained
    assert result["test"]["mre"] < 0.15
    surrogate = Surrogate.load(folder)
    y = surrogate.problem.parameters.sample(5, 1)
    exact, own = surrogate.formulation, torch.as_tensor(y)
    before = surrogate.certify(y)
    better = surrogate.improve(y, 1e-6)
    assert (better.error_bound <= 1e-6).all()
    assert (before.value > 1e-3).any()
    w = solve(exact, own, 1e-12).w
    assert (exact.energy_norm(exact.frame.D(better.w - w), own) <= better.error_bound).all()
    assert (better.iterations < solve(exact, own, 1e-12).iterations).all()
    with pytest.raises(ConvergenceError, match="rounding allows no smaller one"):
        surrogate.improve(y[:1], 1e-18)


def test_commands_print_the_bounds(trained):
    folder, _ = trained
    point = ("--y", "1,0.8,1.2,0.9,20,10")
    said = call_command("query", folder, *point).stdout
    assert "energy norm of the quadratic part below the energy for the nominal y, against the discrete solution" in said
    record = json.loads(call_command("evaluate", folder, "--samples", 4, "--json").stdout)
    assert record["reference"] == "Newton's method and multigrid"
    assert record["error_bound_max"] > 0
    assert 0 < record["energy_error"] < record["relative_bound_max"]
    better = json.loads(call_command("query", folder, *point, "--tol", 1e-5, "--json").stdout)
    assert better["error_bound"] <= 1e-5
    assert better["iterations"] > 0


@pytest.mark.parametrize("optimizer", ["ngd", "lbfgs"])
def test_line_searches_train_nonlinear_energies(optimizer, tmp_path):
    settings = dict(problem="carreau", levels=2, optimizer=optimizer, training_samples=16, epochs=6, test_samples=8)
    result = train(Configuration(**settings, blocks=1, rank=2, precision="float64"), tmp_path / "run", quiet=True)
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in log if "loss" in record and "test" not in record]
    assert result["test"]["mre"] < 0.5
    assert losses[-1] < losses[0]


def test_energies_that_are_not_convex_are_trained_without_bounds(tmp_path):
    problem = problem_of(neo_hookean, components=2, dirichlet=left)
    settings = dict(levels=2, optimizer="soap", epochs=100, test_samples=4, level_decay=1.0)
    result = train(Configuration(**settings), tmp_path / "run", problem=problem, quiet=True)
    assert result["test"]["mre"] < 0.2
    surrogate = Surrogate.load(tmp_path / "run", problem)
    y = problem.parameters.sample(2, 1)
    assert set(bound_record(surrogate, y).values()) == {None}
    reference = reference_solutions(surrogate.formulation, y)
    assert reference.record["reference"] == "PETSc"
    assert energy_error(surrogate, reference) is None
    for ask in (surrogate.certify, lambda y: surrogate.improve(y, 1e-3)):
        with pytest.raises(ValueError, match="no bound: the energy is not known to be convex"):
            ask(y)


def test_training_says_that_the_energy_fell_without_bound(tmp_path):
    problem = problem_of(lambda u, y, x, dx, ds: (square(u) / 2 - u**4 - y[0] * u) * dx)
    settings = dict(levels=2, optimizer="adam", rate=1.0, epochs=2000, test_samples=0)
    with pytest.raises(
        TrainingError, match=r"the loss fell without bound, from .* to -.*: the energy may have no minimum"
    ):
        train(Configuration(**settings), tmp_path / "run", problem=problem, quiet=True)
