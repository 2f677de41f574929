"""Multigrid: matrices of all levels, cycles as operators, estimates, and solutions in every precision and contrast."""

from functools import cache

import numpy as np
import pytest
import torch
from curved_meshes import plate_problem
from frames import case, fine_square, samples
from test_elements import Reaction
from test_operators import check_contract
from walls import ROBIN, formulation_on, varying

from fem_frames import (
    ByRegion,
    Cycle,
    Frame,
    Grid,
    MeshHierarchy,
    Multigrid,
    Problem,
    Uniform,
    export_frame,
    make_formulation,
    make_problem,
    solve,
    solve_reference,
)
from fem_frames.operators.analysis import FrameAnalysis
from fem_frames.solvers.cycle_plans import chebyshev
from fem_frames.solvers.solution import MultigridSolver, solve_linear

pytestmark = pytest.mark.serial
FRAMES = (
    "interval",
    "interval, mixed",
    "square",
    "square, mixed",
    "square, raised",
    "square, one level",
    "square, dolfinx",
    "square, coarse level",
    "square, lognormal",
    "L-shape",
    "cube",
    "cube, mixed",
)
OTHERS = ("Robin", "reaction", "curved", "curved reaction", "algebraic", "algebraic Robin")


@cache
def formulation(name, dtype="float64"):
    if name in FRAMES:
        problem, arrays = case(name)
        return make_formulation(Frame.from_arrays(arrays, dtype), problem)
    if name == "Robin":
        return formulation_on(varying(2, **ROBIN["one wall"]), 2).to(dtype)
    if name == "algebraic Robin":
        problem = Problem(
            Grid((9, 9)), ByRegion({0: 0}), Uniform((0.5,), (1.5,)), 1.0, dirichlet=None, robin={"rest": (2.0, 0.5)}
        )
        return formulation_on(problem, 1).to(dtype)
    problem = fine_square(17) if name == "algebraic" else plate_problem()
    if name == "reaction":
        problem = make_problem("checkerboard")
    kind = Reaction.name if "reaction" in name else "energy"
    arrays = export_frame(MeshHierarchy.from_problem(problem, 3 if name == "reaction" else 1), problem, kind)
    return make_formulation(Frame.from_arrays(arrays, dtype), problem)


def energy_norms(matrix, error):
    return (error * matrix(error)).sum(1).clamp_min(0).sqrt()


def dense_solution(made, y):
    return torch.linalg.solve(made.A(y).to_dense(), made.nodal_load(y))


@pytest.mark.parametrize("name", FRAMES + OTHERS)
def test_matrices_of_all_levels_are_galerkin_products(name):
    made = formulation(name)
    y = samples(made.problem, 3)
    multigrid = Multigrid(made)
    matrices = [A.to_dense() for A in multigrid.recorded(y).matrices]
    torch.testing.assert_close(matrices[-1], made.A(y).to_dense(), rtol=1e-10, atol=1e-10 * float(matrices[-1].max()))
    for level, coarse, fine in zip(multigrid.levels[1:], matrices, matrices[1:], strict=False):
        P = level.P.to_dense()
        size = float(coarse.abs().max())
        torch.testing.assert_close(coarse, P.T @ fine @ P, rtol=1e-10, atol=1e-11 * size)
    assert multigrid.sizes[0] <= 32
    assert multigrid.sizes[-1] == made.frame.arrays.nodal_size


@pytest.mark.parametrize("name", FRAMES + OTHERS)
def test_the_smoother_s_diagonal_bounds_the_matrix(name):
    """A ≤ 2 D on all levels: then no Jacobi step with Chebyshev weights increases an error in the energy norm."""
    made = formulation(name)
    at = Multigrid(made).recorded(samples(made.problem, 2))
    for A, inverse in zip(at.matrices, at.inverse_diagonals, strict=True):
        root = inverse.T.sqrt()
        values = torch.linalg.eigvalsh(root[:, :, None] * A.to_dense() * root[:, None])
        assert float(values.min()) > 0
        assert float(values.max()) <= 2 + 1e-9


@pytest.mark.parametrize("name", FRAMES + OTHERS)
def test_cycles_solve(name):
    """One cycle of every kind reduces errors, and conjugate gradients with it reach the dense solution."""
    made = formulation(name)
    y = samples(made.problem, 3)
    at, b, truth = Multigrid(made).at(y), made.nodal_load(y), dense_solution(made, y)
    size = energy_norms(at.A, truth)
    for cycle in (Cycle(), Cycle(1, 1), Cycle(3, 3), Cycle(2, 2, visits=2)):
        start = at.full(b, cycle)
        assert float((energy_norms(at.A, start - truth) / size).max()) < 0.2
        found = at.refined(b, start, 12, cycle)
        assert float((energy_norms(at.A, found - truth) / size).max()) < 1e-8
    M = at.v_cycle().to_dense() @ at.A.to_dense()
    assert float(torch.linalg.eigvals(torch.eye(M.shape[-1]) - M).abs().max()) < 0.6


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["interval", "square, mixed", "cube", "algebraic", "Robin"])
def test_matrices_and_analysis_fulfil_the_contract(name, dtype):
    made, exact = formulation(name, str(dtype).removeprefix("torch.")), formulation(name)
    at = Multigrid(made).at(samples(made.problem, 3, made.wide))
    dense = exact.A(samples(made.problem, 3)).to_dense()
    check_contract(at.A, dense if at.scale is None else dense / at.scale.double()[:, None, None])
    analysis = FrameAnalysis(made.frame.arrays, dtype, made.frame.device)
    check_contract(analysis, FrameAnalysis(made.frame.arrays, torch.float64, made.frame.device).to_dense())


def test_unequal_steps_are_transposed():
    made = formulation("square, mixed")
    M = Multigrid(made).at(samples(made.problem, 2)).v_cycle(Cycle(2, 1))
    unit = torch.eye(M.shape[0], dtype=torch.float64)
    transposed = torch.stack([M.T(column.expand(2, -1)) for column in unit], dim=-1)
    torch.testing.assert_close(transposed, M.to_dense().mT, rtol=0, atol=1e-12)
    symmetric = Multigrid(made).at(samples(made.problem, 2)).v_cycle().to_dense()
    torch.testing.assert_close(symmetric, symmetric.mT, rtol=0, atol=1e-12)
    assert float(torch.linalg.eigvalsh(symmetric).min()) > 0


@pytest.mark.parametrize("name", ["interval, mixed", "square", "square, coarse level", "cube", "curved"])
def test_analysis_is_a_right_inverse_of_synthesis(name):
    made = formulation(name)
    v = torch.randn(3, made.frame.arrays.nodal_size, dtype=torch.float64)
    analysis = FrameAnalysis(made.frame.arrays, torch.float64, made.frame.device)
    torch.testing.assert_close(made.frame.H(analysis(v)), v, rtol=0, atol=1e-11)


def test_estimates_are_near_the_error():
    problem = make_problem("lognormal")
    arrays = export_frame(MeshHierarchy.from_problem(problem, 5), problem)
    made = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    y = samples(problem, 16)
    at, b, truth = Multigrid(made).at(y), made.nodal_load(y), dense_solution(made, y)
    for v in (0 * truth, at.full(b), at.refined(b, at.full(b), 1), truth + 0.1 * torch.randn_like(truth)):
        ratio = at.estimate(v, b) / energy_norms(at.A, v - truth)
        assert float(ratio.min()) > 0.4
        assert float(ratio.max()) < 2.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", ["interval, mixed", "square, mixed", "cube, mixed", *OTHERS])
def test_both_solvers_agree_in_every_precision(name, dtype):
    made = formulation(name, dtype)
    y = samples(made.problem, 3, made.wide)
    exact, y64 = formulation(name), samples(made.problem, 3)
    fast, slow = (solve(m, at, 1e-11, solver=s) for m, at, s in ((made, y, None), (exact, y64, "frame")))
    assert (fast.solver, slow.solver) == ("multigrid", "frame")
    assert float(fast.residual.max()) <= 1e-11
    off = exact.frame.H(fast.w) - exact.frame.H(slow.w)
    assert float(off.abs().max()) < 1e-8 * float(exact.frame.H(slow.w).abs().max())


def blocks(contrast, levels, dtype="float64"):
    """A checkerboard of 4 × 4 blocks with values between 1 and the contrast."""
    problem = make_problem("checkerboard", blocks=4, low=1.0, high=float(contrast))
    arrays = export_frame(MeshHierarchy.from_problem(problem, levels), problem)
    made = make_formulation(Frame.from_arrays(arrays, dtype), problem)
    board = np.indices((4, 4)).sum(0).ravel() % 2
    y = np.stack(
        [np.where(board, contrast, 1.0), np.where(board, 1.0, contrast), np.where(np.arange(16) < 5, 1, contrast)]
    )
    return made, torch.as_tensor(y, dtype=torch.float64)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_high_contrast_needs_few_more_iterations(dtype):
    made, y = blocks(1e4, 5, dtype)
    found = solve(made, y.to(made.wide), 1e-8)
    assert int(found.iterations.max()) <= 30
    reference = solve_reference(made.problem, y.numpy(), 5)
    u = made.to("float64").synthesise(found.w)["u"]
    np.testing.assert_allclose(u, reference.fields["u"], rtol=0, atol=1e-6 * abs(reference.fields["u"]).max())


def test_iterations_do_not_see_the_mesh():
    for name, levels in (("checkerboard", (4, 6)), ("cube", (3, 5)), ("quarters", (6, 10))):
        counts = []
        for level in levels:
            problem = make_problem(name)
            arrays = export_frame(MeshHierarchy.from_problem(problem, level), problem)
            made = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
            counts.append(int(solve(made, samples(problem, 4), 1e-10).iterations.max()))
        assert counts[1] <= counts[0] + 3, (name, counts)


def test_adjoint_right_hand_sides():
    made = formulation("square, mixed")
    y = samples(made.problem, 3)
    functional = torch.randn(3, made.frame.arrays.nodal_size, dtype=torch.float64)
    found = solve_linear(made, y, made.frame.H.T(functional), 1e-12)
    expected = torch.linalg.solve(made.A(y).to_dense(), functional)
    torch.testing.assert_close(made.frame.H(found.w), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_chebyshev_weights_are_optimal(steps):
    """The polynomial of the weights oscillates between equal extremes on the interval, as Chebyshev's does."""
    x = np.linspace(0.5, 2.0, 2001)
    error = np.prod([1 - w * x for w in chebyshev(steps)], axis=0)
    extreme = 1 / np.polynomial.chebyshev.Chebyshev.basis(steps)(-2.5 / 1.5)
    assert abs(error).max() == pytest.approx(abs(extreme), rel=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(pre=-1), "pre is -1; a whole number of at least 0"),
        (dict(pre=0, post=0), "a cycle without smoothing does not converge"),
        (dict(visits=0), "visits is 0; a whole number of at least 1"),
        (dict(low=3.0), "low is 3.0; a number between 0 and 2"),
    ],
)
def test_cycles_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        Cycle(**options)


def test_what_has_no_multigrid_says_so():
    problem, arrays = case("square, LS")
    made = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    with pytest.raises(
        ValueError, match=r"fields with values at points, but least-squares has u and sigma: solve it in the frame"
    ):
        Multigrid(made)
    assert solve(made, samples(problem, 1), 1e-6).solver == "frame"
    with pytest.raises(ValueError, match="solver is 'lu'; choose from multigrid, frame"):
        solve(formulation("square"), samples(formulation("square").problem, 1), solver="lu")
    with pytest.raises(ValueError, match="pre = 2 and post = 1 differ"):
        MultigridSolver(formulation("square"), samples(formulation("square").problem, 1), Cycle(2, 1))
