"""Weak forms are solved, trained and asked; what only energies have is refused."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from dolfinx import fem
from oracles import Assembly
from scipy import sparse
from small_runs import call_command, result_of
from ufl import FacetNormal, Measure, TestFunction, dot, exp, grad, inner
from weak_forms import LINEAR, coefficients, formulation, made, samples, weak, wind

from fem_frames import PointValues, certify, certify_outputs, differentiable_solve, error_bound, make_problem, solve
from fem_frames.solvers.conjugate_gradients import ConvergenceError
from fem_frames.solvers.differentiable import tangent_solve
from fem_frames.solvers.multigrid import Multigrid, has_multigrid
from fem_frames.studies.efficiency import efficiency_rows
from training.losses import make_loss
from training.rivals.reduced_bases import NodalSystem

pytestmark = pytest.mark.serial


# ---- solutions


@pytest.mark.parametrize("name", LINEAR)
def test_solutions_are_those_of_dense_systems(name):
    """B is assembled by applying Dᵀ C_y D to unit vectors; its pseudo-inverse gives the solution."""
    form = made(name)
    y = samples(form)
    found = solve(form, y, 1e-12)
    fields = form.synthesise(found.w, y)
    D, C = form.frame.D.to_dense(), form.C(y).to_dense()
    for sample in range(len(y)):
        B = D.T @ C[sample] @ D
        f = -form.dual_residual(torch.zeros_like(found.w), y)[sample]
        w = torch.linalg.pinv(B, rtol=1e-11) @ f
        expected = form.synthesise(w[None], y[sample : sample + 1])
        for field, values in fields.items():
            torch.testing.assert_close(values[sample], expected[field][0], rtol=0, atol=1e-8)
    assert (form.dual_norm(found.w, y) < 1e-8 * form.constant(y).sqrt()).all()


def test_heat_at_once_is_implicit_euler_step_by_step():
    problem = make_problem("heat", steps=4, duration=0.3)
    form = formulation(problem, 3)
    y = samples(form, 2)
    found = form.synthesise(solve(form, y, 1e-12).w)
    one = make_problem("heat", steps=1, duration=0.3 / 4)
    step = formulation(one, 3)
    M = step.local_matrices(y)  # τ a ∇u·∇v + u v
    arrays = step.frame.arrays
    cells, free = arrays.levels[-1].cells, arrays.fields[0].free[-1]
    mass = arrays.volumes[:, None, None] * (np.eye(3) + 1) / 12
    rows, columns = (np.broadcast_to(a, mass.shape).ravel() for a in (cells[:, :, None], cells[:, None]))
    whole = (len(arrays.points),) * 2
    mass = sparse.csr_matrix((mass.ravel(), (rows, columns)), shape=whole).toarray()
    for sample in range(2):
        A = sparse.csr_matrix((M[..., sample].numpy().ravel(), (rows, columns)), shape=whole).toarray()
        u = np.zeros(len(arrays.points))
        for k in range(4):
            load = mass @ (u + 0.3 / 4)
            u = np.zeros_like(u)
            u[free] = np.linalg.solve(A[np.ix_(free, free)], load[free])
            np.testing.assert_allclose(found[f"u[{k}]"][sample], u, atol=1e-10)


def test_solutions_of_nonlinear_weak_forms_have_no_residual_in_dolfinx():
    form = made("burgers")
    arrays, y = form.frame.arrays, samples(form)
    found = form.synthesise(solve(form, y, 1e-12).w)["u"].numpy()
    assembly = Assembly(arrays)
    u, v, dx = fem.Function(assembly.V), TestFunction(assembly.V), Measure("dx", assembly.mesh)
    for values, sample in zip(found, y, strict=True):
        a, b = (float(value) for value in sample)
        u.x.array[:] = values[assembly.place]
        residual = assembly.vector(
            ((1 + u**2) * a * inner(grad(u), grad(v)) + 3 * u * dot(wind(2), grad(u)) * v - 8 * b * v)
            * dx(metadata={"quadrature_degree": form.problem.quadrature_degree})
        )
        load = assembly.vector(8 * b * v * dx)
        assert np.abs(residual[arrays.fields[0].free[-1]]).max() < 1e-10 * np.abs(load).max()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_solves_in_low_precision_reach_the_tolerance(dtype):
    exact = made("square")
    low, y = exact.to(dtype), samples(exact).to(torch.float16)
    found = solve(low, y.to(low.frame.dtype), 1e-10)
    expected = solve(exact, y.double(), 1e-12)
    torch.testing.assert_close(exact.frame.H(found.w), exact.frame.H(expected.w), rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", ["square", "outflow"])
def test_derivatives_and_corrected_outputs_of_linear_weak_forms(name):
    """The adjoint of the matrix of the loss serves as that of the equation."""
    form = made(name)
    y, direction = samples(form), torch.tensor([[1.0, 0.5]], dtype=torch.float64).expand(3, -1)

    def total(y):
        return form.synthesise(solve(form, y, 1e-12).w, y)["u"].sum(1)

    free = y.clone().requires_grad_()
    values = form.synthesise(differentiable_solve(form, free, 1e-12), free)["u"].sum()
    (gradient,) = torch.autograd.grad(values, free)
    slope = (total(y + 1e-5 * direction) - total(y - 1e-5 * direction)) / 2e-5
    torch.testing.assert_close((gradient * direction).sum(1), slope, rtol=1e-6, atol=0)
    w, change = tangent_solve(form, y, direction.contiguous(), 1e-12)
    found = torch.func.jvp(form.synthesise, (w, y), (change, direction.contiguous()))[1]["u"].sum(1)
    torch.testing.assert_close(found, slope, rtol=1e-6, atol=0)
    centre = [PointValues([[0.5, 0.5]])]
    corrected = certify_outputs(form, w + 0.01 * coefficients(form), y, centre, adjoint=True)
    torch.testing.assert_close(corrected.values, certify_outputs(form, w, y, centre).values, rtol=1e-5, atol=0)
    assert not corrected.bounded


def test_problems_without_solutions_are_told():
    insulated = weak(lambda u, v, y, x, dx, ds: (inner(grad(u), grad(v)) - y[0] * v) * dx, dirichlet={})
    form = formulation(insulated, 2)
    with pytest.raises(ConvergenceError, match="the equation has no solution there"):
        solve(form, samples(form))
    balanced = weak(lambda u, v, y, x, dx, ds: (inner(grad(u), grad(v)) - y[0] * (x[0] - 0.5) * v) * dx, dirichlet={})
    form = formulation(balanced, 2)
    y = samples(form)
    assert (form.dual_norm(solve(form, y).w, y) < 1e-8).all()

    def bratu(size):
        return weak(
            lambda u, v, y, x, dx, ds: (inner(grad(u), grad(v)) - y[0] * exp(u) * v) * dx,
            p=1,
            low=size,
            high=size + 0.1,
        )

    form = formulation(bratu(6.0), 3)  # there are two solutions below about 6.8, and none above
    assert (solve(form, samples(form)).residual < 1e-10).all()
    form = formulation(bratu(8.0), 3)
    with pytest.raises(ConvergenceError, match=r"Gauss-Newton stays at a residual of .* may have no solution"):
        solve(form, samples(form))


def test_normals_and_nonlinear_boundary_terms():
    """Stefan-Boltzmann's law on the boundary: radiation balances the source, ∫ y₀ f = ∫ y₁ u⁴ ds."""

    def residual(u, v, y, x, dx, ds):
        n = FacetNormal(u.ufl_domain()) if hasattr(u, "ufl_domain") and u.ufl_domain() else None
        assert n is not None
        return (inner(grad(u), grad(v)) - y[0] * v) * dx + y[1] * dot(n, n) * (u + 1) ** 4 * v * ds

    form = formulation(weak(residual, dirichlet={}, quadrature_degree=5), 3)
    y = samples(form)
    w = solve(form, y, 1e-12).w
    one = torch.ones(3, len(form.frame.arrays.points), dtype=torch.float64)
    test = form.coordinates.coefficients(one)  # the constant 1 in frame coordinates
    torch.testing.assert_close((form.dual_residual(w, y) * test).sum(1), torch.zeros(3, dtype=torch.float64))
    assert (form.synthesise(w)["u"] > -1).all()


# ---- what is refused


def test_bounds_and_methods_for_energies_are_refused():
    form = made("square")
    y, w = samples(form), coefficients(form)
    for bound in (error_bound, certify):
        with pytest.raises(ValueError, match="no error bound: the dual norm of its residual bounds no error"):
            bound(form, w, y)
    with pytest.raises(ValueError, match="no error bound in the norm 'energy'"):
        form.error_norm("energy")
    assert not has_multigrid(form)
    for multigrid in (lambda: Multigrid(form), lambda: solve(form, y, solver="multigrid")):
        with pytest.raises(ValueError, match="multigrid is for energies"):
            multigrid()
    with pytest.raises(ValueError, match="need a symmetric A_y"):
        NodalSystem(form)
    with pytest.raises(ValueError, match="no error bound"):
        list(efficiency_rows(form.frame.arrays, form.problem, y.numpy()))
    with pytest.raises(ValueError, match="no coefficient a"):
        form.coefficient(y)


def test_nonlinear_weak_forms_have_no_matrix_for_all_w():
    form = made("burgers")
    y, w = samples(form), coefficients(form)
    for matrix in (form.C, form.stable, form.A, form.load):
        with pytest.raises(ValueError, match="is not linear, so it has no matrix for all w"):
            matrix(y)
    with pytest.raises(ValueError, match="multigrid is for energies"):
        solve(form, y, solver="multigrid")
    loss = make_loss("bpx", form)
    with pytest.raises(ValueError, match="is not linear"):
        loss(w, loss.batch(y.numpy()))


def test_values_that_are_not_finite_are_told():
    form = formulation(weak(lambda u, v, y, x, dx, ds: (inner(grad(u), grad(v)) - v / (y[0] - y[0])) * dx), 2)
    with pytest.raises(ValueError, match=r"the residual.* is not (finite|a number)"):
        form.check_data(samples(form))
    with pytest.raises(ValueError, match="no term over dx has u, which is then not determined"):
        formulation(weak(lambda u, v, y, x, dx, ds: y[0] * v * dx), 2)


# ---- training, commands, the catalogue


@pytest.mark.parametrize("precision", [(), ("--precision", "float16", "--mixed")], ids=["float32", "float16 mixed"])
def test_runs_of_weak_forms_learn_and_say_the_dual_norm(tmp_path, precision):
    run = tmp_path / "run"
    options = ("--epochs", 150, "--batch", 16, "--test-samples", 8, "--optimizer", "soap", "--level-decay", 1)
    small = ("--rank", 4, "--blocks", 2, "--evaluate-every", 50)
    call_command(
        "train", "--problem", "transport", "--levels", 3, *options, *small, *precision, "--out", run, "--quiet"
    )
    test = result_of(run)["test"]
    assert test["mre"] < 0.25
    assert test["ratio"] is None
    found = json.loads(call_command("evaluate", run, "--samples", 8, "--json").stdout)
    assert 0 < found["dual_norm_mean"] <= found["dual_norm_max"] < 0.2
    assert "error_bound_mean" not in found
    y = "0.3,-0.5,1,1,1,1,1"
    one = json.loads(call_command("query", run, "--y", y, "--json").stdout)
    assert one["dual_norm"] == pytest.approx(one["loss"] ** 0.5)
    assert one["error_bound"] is None
    assert "dual norm" in call_command("query", run, "--y", y).stdout
    assert "dual norm" in call_command("query", run, "--y", y, "--y", y).stdout
    assert "a weak form has no error bound" in call_command("evaluate", run, "--norm", "energy", expect=2).stderr
    said = call_command("query", run, "--y", y, "--tol", 1e-3, expect=2).stderr
    assert "no bound: the dual norm of the residual of a weak form bounds no error" in said
    assert "leave out --tol" in said


@pytest.mark.parametrize("optimizer", ["soap", "ngd"])
def test_training_knows_weak_forms(tmp_path, optimizer):
    """Nonlinear ones too, by first-order methods; natural gradients use the matrix of the loss."""
    file = tmp_path / "mine.py"
    file.write_text(
        "from ufl import dot, grad, inner\n"
        "from fem_frames import Equation, Field, Grid, Problem, Uniform\n"
        "def residual(u, v, y, x, dx, ds):\n"
        f"    factor = {'1 + u**2' if optimizer == 'soap' else '1'}\n"
        "    return (factor * y[0] * inner(grad(u), grad(v)) + u.dx(0) * v - y[1] * v) * dx\n"
        "problem = Problem(Grid((1, 1)), Equation(Field('u'), residual=residual), Uniform((0.5,) * 2, (1.5,) * 2))\n"
    )
    if optimizer == "soap":
        options = ("--epochs", 200, "--level-decay", 1)
    else:
        options = ("--epochs", 6, "--training-samples", 16)
    small = ("--batch", 16, "--test-samples", 8, "--rank", 4, "--blocks", 2, "--optimizer", optimizer)
    run = tmp_path / "run"
    call_command("train", "--problem", file, "--levels", 3, *options, *small, "--out", run, "--quiet")
    assert result_of(run)["test"]["mre"] < 0.2


def test_built_in_weak_forms_are_listed_without_ufl():
    code = (
        "import sys\n"
        "sys.modules.update({'ufl': None, 'dolfinx': None})\n"
        "from fem_frames import make_problem\n"
        "for name in ('transport', 'heat'):\n"
        "    print(make_problem(name).parameters)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1] == "[0.5, 1.5]^4"


def test_transport_is_what_it_says():
    """At the least diffusion the solution stays near its inflow along b, and within the bounds of the data."""
    form = formulation(make_problem("transport", slowest=0.1), 4)
    y = torch.tensor([[0.0, -1.0, 1.0, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    u = form.synthesise(solve(form, y, 1e-10).w, y)["u"][0]
    x = torch.as_tensor(form.frame.arrays.points.copy())
    left = x[:, 0] == 0
    torch.testing.assert_close(u[left], torch.sin(np.pi * x[left, 1]))
    assert float(u.min()) > -1e-3
    assert float(u.max()) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="slowest is 2"):
        make_problem("transport", slowest=2.0)
    with pytest.raises(ValueError, match="at most 20"):
        make_problem("heat", steps=21)
