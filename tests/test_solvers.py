"""Solutions from every precision, iterations that do not see the mesh, and spectra."""

import numpy as np
import pytest
import torch
from frames import case, dense_blocks, dense_differential, dense_forms, finest_level, nodal_forms, samples

from fem_frames import (
    ByRegion,
    Frame,
    Grid,
    MeshHierarchy,
    Problem,
    Uniform,
    condition_numbers,
    conjugate_gradients,
    export_frame,
    make_formulation,
    make_problem,
    solve,
    solve_reference,
)
from fem_frames.solvers.conjugate_gradients import ConvergenceError
from fem_frames.solvers.spectra import extreme_eigenvalues
from fem_frames.studies.conditioning import condition_rows
from fem_frames.studies.iterations import iteration_rows
from fem_frames.studies.levels import nominal_parameters
from fem_frames.studies.rounding import rounding_rows

pytestmark = pytest.mark.serial


def frame_arrays(name, levels, formulation="energy", first_level=None):
    problem = make_problem(name)
    return problem, export_frame(MeshHierarchy.from_problem(problem, levels), problem, formulation, first_level)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "formulation", "levels"), [("checkerboard", "energy", 5), ("quarters", "least-squares", 8)]
)
def test_every_precision_reaches_petscs_solution(name, formulation, levels, dtype):
    problem, arrays = frame_arrays(name, levels, formulation)
    made = make_formulation(Frame.from_arrays(arrays, dtype), problem)
    y = samples(problem, 4, made.frame.dtype)
    found = solve(made, y, 1e-12)
    assert found.w.dtype == torch.float64
    assert float(found.residual.max()) <= 1e-12
    assert (found.refinements == 1) == (dtype == "float64")
    reference = solve_reference(problem, y.double().numpy(), levels, formulation)
    for field, values in made.to("float64").synthesise(found.w).items():
        np.testing.assert_allclose(values, reference.fields[field], rtol=0, atol=1e-8)


@pytest.mark.parametrize(("upper", "levels"), [((1.0, 0.01), 3), ((1000.0, 1000.0), 2)], ids=["flat", "large"])
def test_float64_outlasts_residuals_that_rise_for_long(upper, levels):
    """On flat cells and large domains conjugate gradients go more than PATIENCE steps without a smaller residual."""
    problem = Problem(Grid((3, 3), upper=upper), ByRegion.each(1), Uniform((0.5,), (1.5,)))
    arrays = export_frame(MeshHierarchy.from_problem(problem, levels), problem, "least-squares")
    made = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    y = samples(problem, 2)
    found = solve(made, y, 1e-12)
    reference = solve_reference(problem, y.numpy(), levels, "least-squares")
    for field, values in made.synthesise(found.w).items():
        np.testing.assert_allclose(values, reference.fields[field], rtol=0, atol=1e-7 * abs(values).max())


def test_refinement_in_float32_and_none():
    problem, arrays = case("square")
    made = make_formulation(Frame.from_arrays(arrays, "float16"), problem)
    y = samples(problem, 2, torch.float16)
    assert solve(made, y, 1e-5, refine="float32").w.dtype == torch.float32
    assert solve(made, y, 1e-1, refine=None).w.dtype == torch.float16
    with pytest.raises(ConvergenceError, match=r"sample \d stays at a relative residual .*refine='float64'") as caught:
        solve(made, y, 1e-9, refine="float32")
    assert float(caught.value.reached.residual.max()) < 1e-5  # what was reached is not lost


def test_samples_stop_on_their_own():
    """A batch gives each sample the iterates that it would have alone; a zero load gives zero."""
    problem, arrays = case("square")
    made = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    y = samples(problem, 4)
    load = made.load(y).clone()
    load[2] = 0
    together = conjugate_gradients(made.stable(y), load, 1e-6)
    assert int(together.iterations[2]) == 0
    assert len(set(together.iterations.tolist())) > 2
    for i in range(4):
        alone = conjugate_gradients(made.stable(y[i : i + 1]), load[i : i + 1], 1e-6)
        assert int(alone.iterations) == int(together.iterations[i])
        torch.testing.assert_close(alone.x[0], together.x[i], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b * torch.nan, "finite right-hand sides"),
        (lambda b: b[0], "finite right-hand sides"),
        (lambda b: b[:, 1:], "takes vectors of length"),
    ],
)
def test_right_hand_sides_that_make_no_sense(change, message):
    problem, arrays = case("square")
    made = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    y = samples(problem, 1)
    with pytest.raises(ValueError, match=message):
        conjugate_gradients(made.stable(y), change(made.load(y)), 1e-6)


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e25])
def test_conjugate_gradients_in_float32_take_any_scale(scale):
    problem, arrays = case("square")
    made = make_formulation(Frame.from_arrays(arrays, "float32"), problem)
    y = samples(problem, 2, torch.float32)
    b = made.load(y)
    found = conjugate_gradients(made.stable(y), b * scale, 1e-5).x / scale
    torch.testing.assert_close(made.stable(y)(found), b, rtol=0, atol=1e-5)


def test_high_contrast_in_float16():
    """The coefficients of these lognormal samples vary by a factor of thousands."""
    problem, arrays = frame_arrays("lognormal", 4)
    made = make_formulation(Frame.from_arrays(arrays, "float16"), problem)
    y = torch.as_tensor(problem.parameters.sample(8, 1)).half()
    assert float(solve(made, y, 1e-10).residual.max()) <= 1e-10


def test_iterations_do_not_grow_with_the_level_and_float32_keeps_its_accuracy():
    problem, arrays = frame_arrays("quarters", 10, "least-squares")
    rows = list(iteration_rows(arrays, problem, problem.parameters.sample(4, 0), 1e-6, ("float64", "float32")))
    for dtype in ("float64", "float32"):
        mine = {r["level"]: r for r in rows if r["dtype"] == dtype}
        assert mine[10]["stable_iterations"] <= mine[7]["stable_iterations"] + 2
        assert mine[10]["nodal_iterations"] is None or mine[10]["nodal_iterations"] > 4 * mine[7]["nodal_iterations"]
        assert mine[10]["stable_residual"] < 2e-6
    assert mine[10]["bpx_residual"] > 1e-3  # float32: converged in its own eyes only


@pytest.mark.parametrize(("tol", "message"), [(0.0, "tol is 0.0"), (2.0, "tol is 2.0")])
def test_tolerances_that_make_no_sense(tol, message):
    problem, arrays = case("square")
    made = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    with pytest.raises(ValueError, match=message):
        solve(made, samples(problem, 1), tol)
    with pytest.raises(ValueError, match="would lose digits"):
        solve(made, samples(problem, 1), refine="float32")


# ---- spectra


@pytest.mark.parametrize("name", ["interval, LS", "square", "square, mixed", "L-shape", "cube"])
def test_lanczos_agrees_with_dense_eigenvalues(name):
    problem, arrays = case(name)
    made = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    y = samples(problem, 1)
    found = condition_numbers(made, y, tol=1e-8)

    def condition(matrix):
        values = np.linalg.eigvalsh(matrix)
        values = values[values > 1e-10 * values[-1]]  # what is zero belongs to the kernel of F
        return float(values[-1] / values[0])

    given = problem, arrays, y.numpy()
    assert found.cond_A == pytest.approx(condition(nodal_forms(*given)[0]), rel=1e-3)
    assert found.cond_bpx == pytest.approx(condition(dense_forms(*given)[0]), rel=1e-3)
    D = dense_differential(arrays)
    assert found.cond_D == pytest.approx(condition(D.T @ D) ** 0.5, rel=1e-3)
    Q = np.linalg.svd(dense_differential(finest_level(arrays)), full_matrices=False)[0]  # orthonormal, of ran D
    assert found.cond_C == pytest.approx(condition(Q.T @ dense_blocks(*given)[0] @ Q), rel=1e-3)


@pytest.mark.parametrize(
    ("name", "formulation", "first", "expected"),
    [
        ("checkerboard", "energy", None, {4: (103, 7.1, 2.7), 6: (1.7e3, 9.2, 3.0)}),
        ("cube", "energy", None, {3: (None, 8.1, None), 4: (103, 11.9, None)}),
        ("quarters", "least-squares", 0, {4: (1.1e3, 8.0, 2.8), 10: (4.2e6, 10.7, 3.3)}),
        ("quarters", "least-squares", 1, {4: (1.1e3, None, 5.1), 10: (4.2e6, None, 6.0)}),
    ],
)
def test_condition_numbers_to_expect(name, formulation, first, expected):
    """a = 1; within five per cent of what was measured elsewhere, with other code."""
    problem, arrays = frame_arrays(name, max(expected), formulation, first)
    rows = {r["level"]: r for r in condition_rows(arrays, problem, nominal_parameters(problem))}
    for level, values in expected.items():
        for key, value in zip(("cond_A", "cond_bpx", "cond_D"), values, strict=True):
            assert value is None or rows[level][key] == pytest.approx(value, rel=0.05), (level, key)


def test_conditioning_is_uniform_in_the_level():
    problem, arrays = frame_arrays("lshape", 6)
    y = np.array([[1.0, 1.0, 1.0], [0.5, 1.5, 1.0]])
    rows = [list(condition_rows(arrays, problem, sample[None])) for sample in y]
    for mine, contrast in zip(rows, (1, 3), strict=True):
        bpx = [r["cond_bpx"] for r in mine]
        assert bpx[-1] - bpx[-2] < bpx[-2] - bpx[-3] < 2 * contrast
        assert mine[-1]["cond_A"] > 3.5 * mine[-2]["cond_A"]
        assert max(r["cond_C"] for r in mine) <= contrast + 1e-6
    assert rows[0][-1]["cond_bpx"] == pytest.approx(11, rel=0.05)


def test_spectra_refuse_low_precision_and_many_samples():
    problem, arrays = case("square")
    low = make_formulation(Frame.from_arrays(arrays, "float32"), problem)
    with pytest.raises(ValueError, match=r"in float64, not torch\.float32"):
        condition_numbers(low, samples(problem, 1, torch.float32))
    with pytest.raises(ValueError, match="one y is expected, not 2"):
        condition_numbers(make_formulation(Frame.from_arrays(arrays, "float64"), problem), samples(problem, 2))


def test_lanczos_that_has_not_converged_says_so():
    diagonal = torch.linspace(1, 1e6, 4000, dtype=torch.float64)
    with pytest.raises(ConvergenceError, match="not converged in 20 steps"):
        extreme_eigenvalues(lambda v: diagonal * v, lambda v: v, 4000, torch.device("cpu"), tol=1e-9, max_steps=20)


# ---- rounding


def test_rounding_near_the_solution_of_the_papers_problem():
    """float16, J = 10, (LS): the recursion keeps gradient and loss, HᵀA_yH keeps neither."""
    problem, arrays = frame_arrays("quarters", 10, "least-squares")
    rows = rounding_rows(arrays, problem, problem.parameters.sample(4, 0), levels=[10])
    found = {(r["dtype"], r["route"]): r for r in rows}
    recursive, bpx = found["float16", "recursive"], found["float16", "bpx"]
    assert recursive["gradient_error"] < 1e-3
    assert bpx["gradient_error"] > 0.1
    assert 0.1 < recursive["loss"] / recursive["loss_true"] < 10
    assert abs(bpx["loss"] / bpx["loss_true"]) > 1e3
    for dtype, eps in (("float32", 1.2e-7), ("float64", 2.2e-16)):
        assert found[dtype, "recursive"]["gradient_error"] < 5 * eps
        assert found[dtype, "bpx"]["gradient_error"] > 1000 * eps
        assert found[dtype, "recursive"]["loss"] == pytest.approx(found[dtype, "recursive"]["loss_true"], rel=100 * eps)


def test_rounding_errors_of_the_recursion_do_not_grow_with_the_level():
    problem, arrays = frame_arrays("checkerboard", 7)
    y = problem.parameters.sample(2, 0)
    rows = list(rounding_rows(arrays, problem, y, ["float16"], levels=[3, 5, 7]))
    errors = {
        route: [r["gradient_error"] for r in rows if r["route"] == route] for route in ("recursive", "bpx", "sparse")
    }
    assert max(errors["recursive"]) < 1.2e-3
    assert errors["bpx"][2] > 3 * errors["bpx"][1]
    assert errors["sparse"][2] > 0.1  # summed in float16, which stagnates
    cured = list(rounding_rows(arrays, problem, y, ["float16"], ["sparse"], working_sums=False, levels=[7]))
    assert cured[0]["gradient_error"] < 2e-3
