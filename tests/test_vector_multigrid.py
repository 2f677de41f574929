"""Multigrid for several fields: elasticity with a field per component, and species that react with each other."""

import subprocess
from functools import cache

import numpy as np
import pytest
import torch
from elasticity import block, elasticity
from frames import case, samples
from test_compiled_cycles import PLANS, assert_near, both
from test_multigrid import dense_solution, energy_norms
from test_multigrid_net import energy_error
from test_operators import check_contract

from fem_frames import (
    Cycle,
    Field,
    Frame,
    Grid,
    Multigrid,
    P1Values,
    QuadraticFormulation,
    compiling,
    differentiable_solve,
    error_bound,
    make_formulation,
    solve,
    solve_reference,
)
from fem_frames.operators.analysis import FrameAnalysis
from fem_frames.solvers import compiled_cycles
from fem_frames.solvers.solution import solve_linear
from training import Configuration, Surrogate, train
from training.references import ByMultigrid, reference_solutions

pytestmark = pytest.mark.serial


class Species(QuadraticFormulation):
    """Minimise ∫ ½ a_y |∇u|² + |∇v|² + ½ r (u - v)² - f u, and Robin terms of u."""

    name = "test-species"
    fields = (Field("u", P1Values), Field("v", P1Values))
    robin = True

    def blocks(self, y):
        a, r = self.mean(self.coefficient(y)), 1 + self.check_parameters(y)[:, 1].to(self.wide)
        d = self.moments.shape[1]
        m, mass = 1 + d, torch.zeros(len(a), 1 + d, 1 + d).to(a)
        mass[:, 0, 0], mass[:, 1:, 1:] = 1.0, self.moments
        C = torch.zeros(len(a), 2 * m, 2 * m, len(r)).to(a)
        for i, j, sign in ((0, 0, 1), (0, m, -1), (m, 0, -1), (m, m, 1)):
            C[:, i : i + m, j : j + m] = sign * r * mass[..., None]
        C[:, 1:m, 1:m] += torch.eye(d).to(a)[..., None] * a[:, None, None]
        C[:, m + 1 :, m + 1 :] += 2 * torch.eye(d).to(a)[..., None]
        return C

    def state_functional(self, y):
        load = self.source_functional(y)
        return torch.cat([load, torch.zeros_like(load)], dim=1)


CASES = {
    "plane": (block(2), 3, "test-elasticity-2"),
    "plane, rollers": (block(2), 3, "test-on-rollers-2"),
    "plane, algebraic": (block(2, mesh=Grid((9, 9))), 1, "test-elasticity-2"),
    "plane, algebraic, rollers": (block(2, mesh=Grid((9, 9))), 0, "test-on-rollers-2"),
    "plane, one field fixed": (block(2, dirichlet_value=0.3), 2, "test-on-rollers-2"),
    "space": (block(3), 2, "test-elasticity-3"),
    "space, rollers": (block(3), 2, "test-on-rollers-3"),
    "space, algebraic": (block(3, mesh=Grid((4, 4, 4))), 0, "test-elasticity-3"),
    "species": (block(2), 3, "test-species"),
    "species, Robin": (block(2, dirichlet=None, neumann={}, robin={"rest": (2.0, 0.5)}), 3, "test-species"),
}


@cache
def formulation(name, dtype="float64"):
    if dtype != "float64":
        return formulation(name).to(dtype)
    problem, levels, kind = CASES[name]
    return elasticity(problem, levels, dtype, kind)


@pytest.mark.parametrize("name", CASES)
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


@pytest.mark.parametrize("name", CASES)
def test_the_smoother_s_blocks_bound_the_matrix(name):
    """A ≤ 2 D on all levels, where D has the blocks of unknowns at the same point, their diagonals enlarged."""
    made = formulation(name)
    multigrid = Multigrid(made)
    at = multigrid.recorded(samples(made.problem, 2))
    for j, (level, A) in enumerate(zip(multigrid.levels, at.matrices, strict=True)):
        unit = torch.eye(level.size, dtype=torch.float64)
        inverse = torch.stack([at.smoother(j, column[:, None].expand(-1, 2)).T for column in unit], dim=2)
        torch.testing.assert_close(inverse, inverse.mT, rtol=0, atol=1e-12 * float(inverse.abs().max()))
        dense, points = A.to_dense(), multigrid._tables.levels[j].graph.points
        own = torch.as_tensor(points[:, None] == points)
        assert not inverse[:, ~own].any()
        blocks = torch.linalg.inv(inverse)
        off = own & ~torch.eye(level.size, dtype=torch.bool)
        torch.testing.assert_close(blocks[:, off], dense[:, off], rtol=0, atol=1e-12 * float(dense.abs().max()))
        root = torch.linalg.cholesky(inverse)
        values = torch.linalg.eigvalsh(root.mT @ dense @ root)
        assert float(values.min()) > 0
        assert float(values.max()) <= 2 + 1e-9


@pytest.mark.parametrize("name", CASES)
def test_cycles_solve(name):
    made = formulation(name)
    y = samples(made.problem, 3)
    at, b, truth = Multigrid(made).at(y), made.nodal_load(y), dense_solution(made, y)
    size = energy_norms(at.A, truth)
    for cycle in (Cycle(), Cycle(1, 1), Cycle(3, 3), Cycle(2, 2, visits=2)):
        start = at.full(b, cycle)
        assert float((energy_norms(at.A, start - truth) / size).max()) < 0.7
        found = at.refined(b, start, 50, cycle)
        assert float((energy_norms(at.A, found - truth) / size).max()) < 1e-8
    ratio = at.estimate(start, b) / energy_norms(at.A, start - truth)
    assert 0.1 < float(ratio.min()) <= float(ratio.max()) < 2


@pytest.mark.parametrize("chunk", [1, 5, None])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_compiled_cycles_are_those_in_torch(name, dtype, chunk, monkeypatch):
    if chunk is not None:
        monkeypatch.setattr(compiled_cycles, "CHUNK", chunk)
        monkeypatch.setattr(compiled_cycles, "CACHED", 0)
    made = formulation(name, dtype)
    y = samples(made.problem, 5, made.wide)
    compiled, plain = both(made, y)
    b = made.nodal_load(y).T.contiguous()
    for plan in PLANS:
        assert_near(compiled.full_cycle(b, plan), plain.full_cycle(b.clone(), plan))
        assert_near(compiled.preconditioned(b, plan), plain.preconditioned(b.clone(), plan))
    v = compiled.full(b.T)
    assert_near(compiled.A(v), plain.A(v))
    torch.testing.assert_close(compiled.estimate(0.5 * v, b.T), plain.estimate(0.5 * v, b.T), rtol=1e-4, atol=0)
    for steps in (0, 1, 3):
        assert_near(compiled.answer(b.T, steps), plain.answer(b.T, steps))


@pytest.mark.parametrize("real", ["float", "double"])
def test_the_source_compiles_without_warnings_for_several_unknowns_at_a_point(real, tmp_path):
    flags = ["-std=c11", "-Wall", "-Wextra", "-Wno-psabi", "-Werror", f"-DREAL={real}", "-DWIDTH=64", "-DPOINT=3"]
    command = [compiling._compiler(), *flags, "-c", "-x", "c", "-", "-o", str(tmp_path / "cycles.o")]
    source = compiled_cycles.source_code()
    done = subprocess.run(command, input=source, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["plane, rollers", "space", "plane, algebraic", "species"])
def test_matrices_and_analysis_fulfil_the_contract(name, dtype):
    made, exact = formulation(name, str(dtype).removeprefix("torch.")), formulation(name)
    multigrid = Multigrid(made)
    assert multigrid.dtype == made.wide  # never in half precision, which loses what cancels between fields
    check_contract(multigrid.at(samples(made.problem, 2, made.wide)).A, exact.A(samples(made.problem, 2)).to_dense())
    analysis = FrameAnalysis(made.frame.arrays, dtype, made.frame.device)
    check_contract(analysis, FrameAnalysis(made.frame.arrays, torch.float64, made.frame.device).to_dense())
    if dtype == torch.float64:
        v = torch.randn(3, made.frame.arrays.nodal_size, dtype=dtype)
        torch.testing.assert_close(made.frame.H(analysis(v)), v, rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_both_solvers_agree_in_every_precision(name, dtype):
    made = formulation(name, dtype)
    y = samples(made.problem, 3, made.wide)
    exact, y64 = formulation(name), samples(made.problem, 3)
    fast, slow = (solve(m, at, 1e-10, solver=s) for m, at, s in ((made, y, None), (exact, y64, "frame")))
    assert (fast.solver, slow.solver) == ("multigrid", "frame")
    assert float(fast.residual.max()) <= 1e-10
    off = exact.frame.H(fast.w) - exact.frame.H(slow.w)
    assert float(off.abs().max()) < 1e-7 * float(exact.frame.H(slow.w).abs().max())


@pytest.mark.parametrize("name", ["plane, rollers", "plane, algebraic", "space"])
def test_solutions_are_those_of_petsc(name):
    made, (_, levels, kind) = formulation(name), CASES[name]
    y = samples(made.problem, 2)
    reference = solve_reference(made.problem, y.numpy(), levels, formulation=kind)
    w = solve(made, y, 1e-11).w
    for field, values in made.synthesise(w, y).items():
        expected = reference.fields[field]
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-8 * abs(expected).max())
    np.testing.assert_allclose(made.loss(w, y), reference.loss, rtol=1e-8)


def test_bounds_hold():
    made = formulation("plane, rollers")
    y = samples(made.problem, 4)
    w = solve(made, y, 1e-11).w
    for size in (1e-4, 1e-2):
        error = size * torch.randn_like(w)
        assert (error_bound(made, w + error, y) >= made.energy_norm(made.frame.D(error), y)).all()


@pytest.mark.parametrize(("d", "levels"), [(2, (4, 6)), (3, (2, 3))])
@pytest.mark.parametrize("poisson", [0.3, 0.45])
def test_iterations_do_not_see_the_mesh(d, levels, poisson):
    counts = []
    for level in levels:
        made = elasticity(block(d, poisson - 1e-6, poisson + 1e-6), level, "float64", f"test-elasticity-{d}")
        counts.append(int(solve(made, samples(made.problem, 3), 1e-10).iterations.max()))
    assert counts[1] <= 1 + 1.2 * counts[0], (poisson, counts)


def test_adjoint_right_hand_sides():
    made = formulation("plane, rollers")
    y = samples(made.problem, 3)
    functional = torch.randn(3, made.frame.arrays.nodal_size, dtype=torch.float64)
    found = solve_linear(made, y, made.frame.H.T(functional), 1e-12)
    expected = torch.linalg.solve(made.A(y).to_dense(), functional)
    torch.testing.assert_close(made.frame.H(found.w), expected, rtol=0, atol=1e-9 * float(expected.abs().max()))


def test_references_are_checked_by_petsc():
    made = formulation("plane")
    y = made.problem.parameters.sample(5, 0)
    found = reference_solutions(made, y)
    assert found.record["reference"] == "multigrid"
    assert found.record["checked_by_petsc"] == 2
    assert set(found.fields) == {"u[0]", "u[1]"}


@pytest.mark.parametrize("name", ["test-elasticity-2", "test-on-rollers-2"])
def test_a_learned_cycle_is_trained_and_improved(name, tmp_path):
    problem, errors = block(2, 0.2, 0.3), []
    y = problem.parameters.sample(16, 9)
    for epochs in (0, 200):  # the first one is the Chebyshev cycle
        settings = Configuration(formulation=name, levels=3, net="multigrid", epochs=epochs, batch=16, test_samples=8)
        train(settings, tmp_path / str(epochs), problem=problem, quiet=True)
        surrogate = Surrogate.load(tmp_path / str(epochs), problem)
        errors.append(energy_error(surrogate, y).mean())
    assert errors[1] < 0.7 * errors[0]
    truth = reference_solutions(surrogate.formulation, y).fields
    for field, values in surrogate.improve(y, 1e-8).values.items():
        np.testing.assert_allclose(values, truth[field], rtol=0, atol=1e-6 * abs(truth[field]).max())


def test_fields_in_other_elements_are_refused():
    problem, arrays = case("square, LS")
    with pytest.raises(ValueError, match="need fields in P1, but sigma is not: solve in the frame"):
        FrameAnalysis(arrays, torch.float64, torch.device("cpu"))
    made = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    with pytest.raises(ValueError, match="multigrid is for fields with values at points, but least-squares has u and"):
        ByMultigrid(made)


def test_gradients_flow_through_right_hand_sides():
    made = formulation("plane, rollers")
    y = samples(made.problem, 2)
    b = made.nodal_load(y)
    free = b.clone().requires_grad_()
    torch.autograd.gradcheck(lambda x: Multigrid(made).recorded(y).full(x), free, atol=1e-6, fast_mode=True)


@pytest.mark.parametrize("name", ["plane, rollers", "species"])
def test_gradients_in_y_are_refused_and_those_of_the_adjoint_solve_are_right(name):
    """Products with A_y record none in its weights: what torch would find without them is wrong."""
    made = formulation(name)
    y, multigrid = samples(made.problem, 2), Multigrid(made)
    b, free = made.nodal_load(y), y.clone().requires_grad_()
    refused = pytest.raises(ValueError, match=r"no gradient in y: use fem_frames\.differentiable_solve")
    for at in (multigrid.recorded(free), multigrid.at(free)):
        for cycle in (at.full, at.A, at.v_cycle()):
            with refused:
                cycle(b)
    with refused:
        multigrid.answer(free, 1)

    def total(y, w):
        return made.frame.H(w).square().sum(1)

    (found,) = torch.autograd.grad(total(free, differentiable_solve(made, free, 1e-12)).sum(), free)
    step = 1e-4 * y[:, :1]
    shift = torch.cat([step, torch.zeros_like(y[:, 1:])], dim=1)
    low, high = (total(at, solve(made, at, 1e-13).w) for at in (y - shift, y + shift))
    torch.testing.assert_close(found[:, 0], (high - low) / (2 * step[:, 0]), rtol=1e-6, atol=0)
