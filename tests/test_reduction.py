"""Methods without frames and nets: full and reduced systems, regression on modes."""

from dataclasses import replace
from math import comb, prod

import numpy as np
import pytest
import torch
from frames import case, nodal_forms
from numpy.polynomial.legendre import leggauss
from oracles import slope

from fem_frames import Affine, Frame, MeshHierarchy, export_frame, make_formulation, make_problem
from fem_frames.operators.coordinates import Coordinates
from fem_frames.problem.definition import Uniform
from training.metrics import evaluate, query_seconds
from training.references import reference_solutions
from training.rivals.reduced_bases import (
    AffineSystem,
    AssembledReducedBasis,
    BandedSolves,
    NodalSystem,
    PodSpace,
    RivalAnswers,
    Snapshots,
    SparseSolves,
    direct_solves,
    full_system,
    gradient_errors,
    reduced_basis,
)
from training.rivals.regression import PodNet, PolynomialChaos, affordable_degree, total_degrees

pytestmark = pytest.mark.serial
AFFINE = ("interval", "interval, LS", "square", "L-shape", "cube")
OTHER = ("interval, mixed", "interval, LS, mixed", "square, mixed", "square, inclusion", "square, lognormal")


def exact(name):
    problem, arrays = case(name)
    return make_formulation(Frame.from_arrays(arrays, "float64"), problem)


def any_snapshots(formulation, count, seed=0):
    """Values that span whatever they can: they solve nothing."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(count, formulation.frame.arrays.nodal_size, dtype=torch.float64, generator=generator)
    return Snapshots(formulation.problem.parameters.sample(count, seed), values, 0.0)


def solved(formulation, count, seed=0):
    return Snapshots.solve(direct_solves(full_system(formulation)), formulation.problem.parameters.sample(count, seed))


def dense(formulation, y):
    return formulation.A(torch.as_tensor(y)).to_dense()  # (B, N, N)


# ---- full systems and direct solves


@pytest.mark.parametrize("name", [*AFFINE, *OTHER])
def test_systems_are_those_of_the_formulation(name):
    """Sparse matrices of one pattern against those from basix's tables; those with affine weights are found."""
    formulation = exact(name)
    system, y = full_system(formulation), formulation.problem.parameters.sample(3, 5)
    assert isinstance(system, AffineSystem) == (name in AFFINE)
    A, b = nodal_forms(*case(name), y), formulation.nodal_load(torch.as_tensor(y))
    for own, entries in zip(A, system.entries(y), strict=True):
        np.testing.assert_allclose(system.matrix(entries).toarray(), own, atol=1e-12 * np.abs(own).max())
    np.testing.assert_allclose(system.loads(y), b, atol=1e-12 * float(b.abs().max()))


def test_an_affine_coefficient_has_an_affine_energy():
    problem, arrays = case("square, lognormal")
    problem = replace(
        problem,
        coefficient=Affine(2.0, problem.coefficient.modes),
        parameters=Uniform((-0.2,) * 8, (0.2,) * 8),
        name="affine",
    )
    formulation = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    system, y = full_system(formulation), problem.parameters.sample(2, 1)
    assert isinstance(system, AffineSystem)
    np.testing.assert_allclose(system.entries(y), NodalSystem(formulation).entries(y), atol=1e-12)


@pytest.mark.parametrize("kind", [BandedSolves, SparseSolves])
@pytest.mark.parametrize("name", ["interval, LS", "interval, LS, mixed", "square, inclusion", "square, mixed", "cube"])
def test_direct_solves_agree_with_petsc(name, kind):
    formulation = exact(name)
    y = formulation.problem.parameters.sample(3, 5)
    by_petsc = reference_solutions(formulation, y, references="petsc")
    truth = formulation.coordinates.free(by_petsc.fields, formulation.frame.device)
    torch.testing.assert_close(kind(full_system(formulation))(y), truth, rtol=0, atol=1e-9 * float(truth.abs().max()))


def test_bands_on_an_interval_are_narrow():
    """u and σ of a point follow each other, so that an unknown meets at most three after it."""
    assert BandedSolves(full_system(exact("interval, LS"))).bandwidth == 3
    assert BandedSolves(full_system(exact("interval"))).bandwidth == 1


# ---- modes


@pytest.mark.parametrize("name", ["interval, LS", "square, inclusion"])
def test_modes_are_orthonormal_and_miss_what_the_spectrum_says(name):
    formulation = exact(name)
    snapshots = solved(formulation, 20)
    space = PodSpace.build(formulation, snapshots, 6)
    states = formulation.nodal_differential(space.modes)
    torch.testing.assert_close(states @ states.T, torch.eye(6, dtype=torch.float64), rtol=0, atol=1e-10)
    missed = formulation.nodal_differential(snapshots.values - space.project(snapshots.values))
    assert float(missed.square().sum()) == pytest.approx(float(space.spectrum[6:].square().sum()), rel=1e-8, abs=1e-18)
    again = space.synthesise(space.coefficients(space.project(snapshots.values)))
    torch.testing.assert_close(again, space.project(snapshots.values))


@pytest.mark.parametrize("name", ["interval", "interval, LS", "square", "square, inclusion", "square, mixed"])
def test_a_reduced_basis_with_all_modes_is_the_direct_solve(name):
    formulation = exact(name)
    snapshots = any_snapshots(formulation, formulation.frame.arrays.nodal_size + 1)
    space = PodSpace.build(formulation, snapshots)
    assert space.size == formulation.frame.arrays.nodal_size
    system, y = full_system(formulation), formulation.problem.parameters.sample(4, 5)
    truth = direct_solves(system)(y)
    torch.testing.assert_close(reduced_basis(system, space)(y), truth, rtol=0, atol=1e-8 * float(truth.abs().max()))


@pytest.mark.parametrize("name", ["interval", "interval, LS", "square", "square, inclusion", "square, mixed"])
def test_reduced_systems_are_projections_of_the_full_ones(name):
    """For an affine coefficient by two routes, from terms that were reduced before and from the assembled matrix."""
    formulation = exact(name)
    space, y = PodSpace.build(formulation, any_snapshots(formulation, 8)), formulation.problem.parameters.sample(3, 5)
    A, b, V = dense(formulation, y), formulation.nodal_load(torch.as_tensor(y)), space.modes
    system = full_system(formulation)
    for method in {type(m): m for m in (reduced_basis(system, space), AssembledReducedBasis(system, space))}.values():
        matrices, loads = method.systems(y)
        torch.testing.assert_close(matrices, V @ A @ V.T, rtol=0, atol=1e-10)
        torch.testing.assert_close(loads, (b - A @ space.mean) @ V.T, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["interval, LS", "square, inclusion"])
def test_a_reduced_basis_is_best_in_the_energy_norm(name):
    formulation = exact(name)
    system, y = full_system(formulation), formulation.problem.parameters.sample(5, 5)
    space = PodSpace.build(formulation, solved(formulation, 12), 4)
    truth, A = direct_solves(system)(y), formulation.A(torch.as_tensor(y))
    found, generator = reduced_basis(system, space)(y), torch.Generator().manual_seed(0)
    error, best = A.quadratic(found - truth), space.project(truth)
    assert (error <= A.quadratic(best - truth) * (1 + 1e-9)).all()
    for size in (1e-3, 1e-1):
        c = space.coefficients(found)
        other = c + size * torch.randn(c.shape, dtype=torch.float64, generator=generator)
        assert (error < A.quadratic(space.synthesise(other) - truth)).all()


def test_a_galerkin_basis_is_quasi_optimal():
    """‖∇(u - u_N)‖ lies between the error of the projection and √(max a / min a) times it."""
    formulation = exact("square, inclusion")
    system, y = full_system(formulation), formulation.problem.parameters.sample(8, 5)
    reference = reference_solutions(formulation, y)
    whole = PodSpace.build(formulation, solved(formulation, 40))
    arrays, last = formulation.frame.arrays, np.inf
    for n in (2, 6, 18):
        space = whole.first(n)
        best = gradient_errors(
            formulation,
            Coordinates(arrays).coefficients(
                space.project(formulation.coordinates.free(reference.fields, formulation.frame.device))
            ),
            reference,
        )
        found = gradient_errors(
            formulation,
            RivalAnswers(formulation, reduced_basis(system, space)).coefficients(torch.as_tensor(y)),
            reference,
        )
        assert (best <= found * (1 + 1e-9)).all()
        assert (found <= np.sqrt(10) * best).all()
        assert best.mean() < last
        last = best.mean()


def test_eight_modes_hold_all_solutions_on_quarters():
    """(u, σ) lie in an affine space of dimension 8; discrete ones up to O(h²), so that losses differ by O(h⁴)."""
    problem = make_problem("quarters")
    arrays = export_frame(MeshHierarchy.from_problem(problem, 9), problem, "least-squares")
    ninth, excess = [], []
    for level in range(5, 10):
        coarse = arrays.coarsened(level, problem.regions)
        formulation = make_formulation(Frame.from_arrays(coarse, "float64"), problem)
        reference = reference_solutions(formulation, problem.parameters.sample(20, 5))
        spectrum = PodSpace.build(formulation, solved(formulation, 30)).spectrum
        ninth.append(float(spectrum[8] / spectrum[7]))
        space = PodSpace.build(formulation, solved(formulation, 9), 8)
        found = evaluate(RivalAnswers(formulation, reduced_basis(full_system(formulation), space)), reference)
        excess.append(found.excess)
    assert slope(ninth) == pytest.approx(2, abs=0.1)
    assert slope(excess) == pytest.approx(4, abs=0.2)
    assert 0 < excess[-1] < 1e-12


# ---- regression


def test_legendre_polynomials_are_orthonormal():
    formulation = exact("square, inclusion")
    snapshots = any_snapshots(formulation, 40)
    method = PolynomialChaos(formulation.problem, PodSpace.build(formulation, snapshots, 2), snapshots, 3)
    nodes, weights = leggauss(4)
    box = formulation.problem.parameters
    grid = np.stack(np.meshgrid(nodes, nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 3)
    weight = torch.as_tensor([prod(w) / 8 for w in np.stack(np.meshgrid(*[weights] * 3), axis=-1).reshape(-1, 3)])
    values = method.polynomials(box.quantile((grid + 1) / 2))
    assert values.shape[1] == comb(6, 3) == len({tuple(d) for d in total_degrees(3, 3)})
    gram = values.T @ (weight[:, None] * values)
    torch.testing.assert_close(gram, torch.eye(20, dtype=torch.float64), rtol=0, atol=1e-13)


@pytest.mark.parametrize(("degree", "right"), [(1, False), (2, True), (3, True)])
def test_polynomial_chaos_is_exact_for_polynomials(degree, right):
    formulation = exact("interval, LS")
    problem, shapes = formulation.problem, any_snapshots(formulation, 3, seed=1).values

    def values(y):
        y = torch.as_tensor(y)
        return torch.stack([1 + y[:, 0] * y[:, 3], y[:, 1] ** 2 - y[:, 2], 3 * y[:, 2]], dim=1) @ shapes

    y, new = problem.parameters.sample(80, 0), problem.parameters.sample(6, 1)
    snapshots = Snapshots(y, values(y), 0.0)
    method = PolynomialChaos(problem, PodSpace.build(formulation, snapshots), snapshots, degree)
    assert (float((method(new) - values(new)).abs().max()) < 1e-10) == right


def test_degrees_are_what_solves_afford():
    assert [affordable_degree(4, 400), affordable_degree(3, 1000, 4), affordable_degree(2, 1, 1)] == [5, 9, 0]


def test_a_small_net_learns_the_coefficients():
    """Better than the mean, and the better the longer it is fitted; its seed decides, torch's own stays as it is."""
    formulation = exact("interval, LS")
    snapshots, new = solved(formulation, 60), solved(formulation, 30, seed=1)
    space = PodSpace.build(formulation, snapshots, 8)
    before = torch.random.get_rng_state()

    def error(steps, seed=0):
        method = PodNet(formulation.problem, space, snapshots, (16, 16), steps, seed)
        return float((method(new.y) - new.values).square().sum() / (space.mean - new.values).square().sum())

    short, long = error((50, 0)), error((100, 200))
    assert long < 0.1 * short < 0.1
    assert error((50, 0)) == short != error((50, 0), seed=1)
    assert torch.equal(before, torch.random.get_rng_state())


# ---- measures


@pytest.mark.parametrize("name", ["interval, LS", "square, mixed"])
def test_a_method_is_measured_like_a_surrogate(name):
    formulation = exact(name)
    reference = reference_solutions(formulation, formulation.problem.parameters.sample(5, 5))
    answers = RivalAnswers(formulation, direct_solves(full_system(formulation)))
    found, w = evaluate(answers, reference), answers.coefficients(torch.as_tensor(reference.y))
    assert found.mre < 1e-9
    assert found.excess == pytest.approx(0, abs=1e-12)
    assert float(gradient_errors(formulation, w, reference).max()) < 1e-8
    np.testing.assert_allclose(answers(reference.y)["u"], reference.u, atol=1e-9)
    assert query_seconds(answers, reference.y) > 0


def test_errors_of_gradients_are_relative():
    formulation = exact("interval, LS")
    reference = reference_solutions(formulation, formulation.problem.parameters.sample(5, 5))
    w = formulation.coordinates.coefficients(formulation.coordinates.free(reference.fields, formulation.frame.device))
    torch.testing.assert_close(
        gradient_errors(formulation, 1.25 * w, reference), torch.full((5,), 0.25, dtype=torch.float64)
    )


# ---- what does not fit


def test_what_does_not_fit_is_refused_with_a_remedy():
    formulation = exact("interval, LS")
    problem, snapshots = formulation.problem, solved(formulation, 6)
    space = PodSpace.build(formulation, snapshots)
    with pytest.raises(ValueError, match=r"9 modes are wanted, but 6 snapshots have 5 .* or more snapshots"):
        PodSpace.build(formulation, snapshots, 9)
    with pytest.raises(ValueError, match="number of modes is 0"):
        space.first(0)
    with pytest.raises(ValueError, match="7 snapshots are wanted, but there are 6: solve for more"):
        snapshots.first(7)
    with pytest.raises(ValueError, match=r"15 polynomials of degree 2 .* 6 snapshots: take degree 1 at most"):
        PolynomialChaos(problem, space, snapshots, 2)
    with pytest.raises(ValueError, match=r"is outside the parameters"):
        reduced_basis(full_system(formulation), space)(np.full((1, 4), 9.0))
    with pytest.raises(ValueError, match=r"float32 .* pass formulation.to\('float64', 'cpu'\)"):
        NodalSystem(formulation.to("float32"))
    with pytest.raises(ValueError, match=r"N\(0, I\) in R\^8, .* parameters=Uniform"):
        PolynomialChaos(make_problem("lognormal"), space, snapshots, 1)
