"""The coarse level: condition numbers do not grow with the coarse mesh, units do not matter, nets see a level more."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import sparse

from fem_frames import (
    ByRegion,
    Field,
    Frame,
    FrameArrays,
    Grid,
    MeshHierarchy,
    P1Values,
    Pointwise,
    Problem,
    QuadraticFormulation,
    Uniform,
    certify,
    export_frame,
    flux_bounds,
    frame_condition,
    make_formulation,
    make_problem,
    solve,
    solve_reference,
)
from fem_frames.frame.aggregation import nested_spaces, orthonormal
from fem_frames.frame.coarse_space import SMALL, SMALLEST, h1_matrix
from fem_frames.studies.rounding import rounding_rows
from tests.frames import fine_square
from training import Configuration, Surrogate, train


def square(n, dirichlet="all", **changes):
    return Problem(Grid((n, n)), ByRegion({0: 0}), Uniform((0.5,), (1.5,)), dirichlet=dirichlet, **changes)


def left(x):
    return np.isclose(x[:, 0], x[:, 0].min())


def formulation_on(problem, levels, name="energy", dtype="float64", **options):
    arrays = export_frame(MeshHierarchy.from_problem(problem, levels), problem, name, **options)
    return make_formulation(Frame.from_arrays(arrays, dtype), problem)


def condition(problem, levels, name="energy", **options):
    return frame_condition(formulation_on(problem, levels, name, **options), torch.ones(1, dtype=torch.float64), 1e-2)


def growth(sizes, values):
    """The fitted exponent of values in the number of nodes, n² for n × n squares."""
    return np.polyfit(np.log(np.square(sizes)), np.log(values), 1)[0]


# ---- condition numbers


@pytest.mark.serial
@pytest.mark.parametrize("dirichlet", ["all", left])
def test_condition_numbers_do_not_grow_with_the_coarse_mesh(dirichlet):
    sizes = (8, 16, 32, 64)
    found = {choice: [condition(square(n, dirichlet), 1, coarse=choice) for n in sizes] for choice in ("auto", "none")}
    assert max(found["auto"]) < 15
    assert abs(growth(sizes, found["auto"])) < 0.1
    assert growth(sizes, found["none"]) > 0.8


@pytest.mark.serial
def test_a_fine_mesh_is_used_as_it_is():
    """J = 0: the hats of one mesh, and the coarse level."""
    sizes = (8, 16, 32, 64)
    found = [condition(square(n, left), 0) for n in sizes]
    assert max(found) < 15
    assert growth(sizes, found) < 0.2  # the number of algebraic levels grows, from one to three


@pytest.mark.serial
@pytest.mark.parametrize("dirichlet", ["all", left])
def test_condition_numbers_of_least_squares_do_not_grow_either(dirichlet):
    sizes = (4, 8, 16, 32)
    found = [condition(square(n, dirichlet), 0, "least-squares") for n in sizes]
    assert max(found) < 40
    assert growth(sizes, found) < 0.25
    assert condition(square(32, dirichlet), 0, "least-squares", coarse="none") > 20 * found[-1]


@pytest.mark.serial
def test_the_flux_has_a_coarse_level_in_three_dimensions():
    problem = Problem(Grid((3, 3, 3)), ByRegion({0: 0}), Uniform((0.5,), (1.5,)), dirichlet=left)
    low, high = flux_bounds(formulation_on(problem, 0, "least-squares"))
    plain = flux_bounds(formulation_on(problem, 0, "least-squares", coarse="none"))
    assert high / low < 60
    assert plain[1] / plain[0] > 3 * high / low


@pytest.mark.parametrize("choice", ["dense", "algebraic"])
def test_choices_span_the_same_space(choice):
    """Solutions do not depend on the frame; condition numbers of both choices are small."""
    problem, y = square(8, left), torch.tensor([[0.7], [1.3]], dtype=torch.float64)
    plain, made = (formulation_on(problem, 1, coarse=c) for c in ("none", choice))
    u, v = (f.synthesise(solve(f, y, 1e-12).w, y)["u"] for f in (plain, made))
    np.testing.assert_allclose(u, v, rtol=0, atol=1e-10 * float(u.abs().max()))
    assert frame_condition(made, y[0]) < 12
    sizes = made.frame.level_sizes["u"]
    assert sizes[0] == (72 if choice == "dense" else sizes[0])
    assert sizes[1:] == plain.frame.level_sizes["u"]


def test_small_meshes_need_none():
    assert not export_frame(MeshHierarchy.from_problem(square(4), 1), square(4)).has_coarse
    assert not export_frame(
        MeshHierarchy.from_problem(make_problem("quarters"), 3), make_problem("quarters")
    ).has_coarse


# ---- units


@pytest.mark.serial
@pytest.mark.parametrize("name", ["energy", "least-squares", "weighted-least-squares"])
@pytest.mark.parametrize("n", [2, 10])
def test_units_do_not_matter(name, n):
    """Condition numbers, iterations and relative bounds of a mesh in metres, millimetres and kilometres."""
    found = []
    for unit in (1.0, 1e3, 1e-3):
        problem = square(n, left)
        problem = replace(problem, mesh=Grid((n, n), (0.0, 0.0), (unit, unit)))
        formulation = formulation_on(problem, 1, name)
        y = torch.tensor([[0.7], [1.3]], dtype=torch.float64)
        solution = solve(formulation, y, 1e-9)
        size = solution.w.abs().max()
        wave = torch.sin(torch.arange(solution.w.shape[1], dtype=torch.float64))
        bounds = [certify(formulation, solution.w + 0.01 * size * wave, y, norm.name) for norm in formulation.norms]
        relative = torch.stack([bound.relative for bound in bounds]).flatten().tolist()
        found.append([frame_condition(formulation, y[0]), *solution.iterations.tolist(), *relative])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-6)


def test_the_length_can_be_chosen():
    problem = fine_square(2)
    arrays = export_frame(MeshHierarchy.from_problem(problem, 1), problem)
    assert arrays.length == 1000
    given = replace(problem, length=1.0)
    assert export_frame(MeshHierarchy.from_problem(given, 1), given).length == 1
    for wrong in (0, -1.0, np.inf, "metre"):
        with pytest.raises(ValueError, match=r"length is .* a positive number is expected"):
            replace(problem, length=wrong)


# ---- what else stands on it


@pytest.mark.serial
@pytest.mark.parametrize(("name", "levels"), [("energy", 0), ("energy", 1), ("least-squares", 0)])
def test_solutions_are_those_of_petsc(name, levels):
    problem, y = fine_square(8), np.array([[0.7], [1.3]])
    formulation = formulation_on(problem, levels, name)
    samples = torch.as_tensor(y)
    found = formulation.synthesise(solve(formulation, samples, 1e-12).w, samples)
    reference = solve_reference(problem, y, levels, name)
    for field, values in reference.fields.items():
        np.testing.assert_allclose(found[field], values, rtol=0, atol=1e-8 * np.abs(values).max())
    np.testing.assert_allclose(
        formulation.loss(solve(formulation, samples, 1e-12).w, samples), reference.loss, rtol=1e-8
    )


@pytest.mark.serial
@pytest.mark.parametrize("name", ["energy", "least-squares"])
def test_gradients_in_float16_are_stable(name):
    problem = fine_square(24)
    arrays = export_frame(MeshHierarchy.from_problem(problem, 1), problem, name)
    y = problem.parameters.sample(2, seed=0)
    rows = list(rounding_rows(arrays, problem, y, ("float16",), ("recursive",)))
    assert [row["level"] for row in rows] == [0, 1]
    assert max(row["gradient_error"] for row in rows) < 2e-3


def test_files_keep_the_coarse_level(tmp_path):
    problem = fine_square(8)
    arrays = export_frame(MeshHierarchy.from_problem(problem, 1), problem, "least-squares")
    arrays.save(tmp_path / "frame.npz")
    loaded = FrameArrays.load(tmp_path / "frame.npz")
    assert loaded.level_sizes == arrays.level_sizes
    assert (loaded.length, loaded.lowest_level, loaded.has_coarse) == (1000.0, -1, True)
    assert "a coarse level and levels 0 to 1" in repr(loaded)
    x = torch.ones(1, arrays.frame_size, dtype=torch.float64)
    assert torch.equal(*(Frame.from_arrays(a, "float64").D(x) for a in (arrays, loaded)))


def test_prolongation_from_the_coarse_level():
    """It gives nodal values of the first mesh: the coarse functions themselves."""
    formulation = formulation_on(fine_square(8), 1)
    frame = formulation.frame
    coarse, first = frame.level_sizes["u"][:2]
    P = frame.P(0)
    assert P.shape == (first, coarse)
    w = torch.zeros(1, frame.frame_size, dtype=torch.float64)
    w[0, :coarse] = torch.linspace(-1, 1, coarse, dtype=torch.float64)
    nodal = frame.P(1)(P(w[:, :coarse]))
    torch.testing.assert_close(frame.H(w), nodal, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="no prolongation to level -1; the frame has those to 0, …, 1"):
        frame.P(-1)


@pytest.mark.serial
@pytest.mark.parametrize("net", ["full", "separate", "separate-frame"])
@pytest.mark.parametrize("formulation", ["energy", "least-squares"])
def test_nets_have_one_more_level(net, formulation, tmp_path):
    problem = fine_square(6)
    settings = Configuration(
        problem="mine.py", levels=1, formulation=formulation, net=net, epochs=3, blocks=1, rank=2, batch=4,
        test_samples=2, level_decay=0.5,
    )  # fmt: skip
    result = train(settings, tmp_path / "run", problem=problem, quiet=True)
    surrogate = Surrogate.load(tmp_path / "run", problem=problem)
    assert surrogate.net.first_level == -1
    assert surrogate.net.level_sizes == surrogate.arrays.level_sizes
    assert result["parameters"] == surrogate.net.parameter_count()
    assert np.isfinite(result["test"]["mre"])
    decay = surrogate.net.decay[: sum(surrogate.arrays.level_sizes["u"]), 0]
    sizes = surrogate.arrays.level_sizes["u"]
    depth = np.log2(49) / 2  # of the first mesh, with 7 × 7 points
    assert surrogate.arrays.level_depths == pytest.approx((0, depth, depth + 1))
    expected = np.repeat(2 ** (-0.5 * np.array([0, depth, depth + 1])), sizes)
    np.testing.assert_allclose(decay, expected, rtol=1e-6)


@pytest.mark.serial
def test_a_mesh_without_refinement_can_be_trained(tmp_path):
    problem = square(8)
    settings = Configuration(problem="mine.py", levels=0, epochs=2, blocks=1, rank=2, batch=4, test_samples=2)
    result = train(settings, tmp_path / "run", problem=problem, quiet=True)
    assert np.isfinite(result["test"]["mre"])
    assert Surrogate.load(tmp_path / "run", problem=problem).certify(problem.parameters.sample(2, 0)).value.shape == (
        2,
    )


# ---- normalisation in the nominal energy


class Reaction(QuadraticFormulation):
    """−Δu + y u = 1."""

    name = "reaction of the coarse space tests"
    fields = (Field("u", P1Values),)

    def blocks(self, y):
        r = self.check_parameters(y)[:, 0].to(self.wide)
        C = torch.zeros(len(self.moments), 3, 3, len(r)).to(r)
        C[:, 0, 0] = r
        C[:, 1:, 1:] = torch.eye(2).to(r)[..., None] + r * self.moments[..., None]
        return C

    def state_functional(self, y):
        return self.source_functional(y)


def _reaction(normalisation, n=1):
    one = Pointwise(lambda x, y: 1 + 0 * y[..., 0])
    return Problem(Grid((n, n)), one, Uniform((0.5e4,), (1.5e4,)), normalisation=normalisation)


@pytest.mark.serial
@pytest.mark.parametrize(("n", "levels"), [(1, 5), (24, 1)])
def test_the_nominal_energy_conditions_strong_reactions(n, levels):
    y = torch.tensor([1e4], dtype=torch.float64)
    found = {}
    for kind in ("H1", "energy"):
        formulation = formulation_on(_reaction(kind, n), levels, Reaction.name)
        found[kind] = frame_condition(formulation, y)
    assert found["energy"] < 20
    assert found["energy"] < 0.5 * found["H1"]


@pytest.mark.serial
@pytest.mark.parametrize("name", ["energy", "least-squares"])
def test_functions_have_nominal_energy_one(name):
    problem = replace(fine_square(6), normalisation="energy")
    formulation = formulation_on(problem, 1, name)
    y = torch.as_tensor(problem.parameters.nominal)
    unit = torch.eye(formulation.frame.frame_size, dtype=torch.float64)
    energies = torch.stack([formulation.stable(y).quadratic(row[None])[0] for row in unit])
    np.testing.assert_allclose(energies, 1, rtol=1e-10)


@pytest.mark.serial
def test_the_nominal_energy_conditions_high_contrast():
    regions = dict(regions=lambda x: (x[:, 0] > 0.5).astype(int) + 2 * (x[:, 1] > 0.5))
    base = Problem(Grid((2, 2)), ByRegion({0: 0}, fixed={1: 1e4, 2: 1e-4, 3: 1.0}), Uniform((0.5,), (1.5,)), **regions)
    found = {kind: condition(replace(base, normalisation=kind), 4) for kind in ("H1", "energy")}
    assert found["energy"] < 0.02 * found["H1"]


# ---- aggregation by itself


def test_spaces_are_nested_and_hold_constants_nearly():
    hierarchy = MeshHierarchy.from_problem(square(24), 0)
    A = h1_matrix(hierarchy.meshes[0], 1.0)
    spaces = nested_spaces(A, np.arange(A.shape[0]), np.ones((A.shape[0], 1)), SMALLEST)
    assert [space.shape[1] for space in spaces] == sorted((space.shape[1] for space in spaces), reverse=True)
    assert spaces[-1].shape[1] <= SMALLEST
    bases = [space.toarray() for space in spaces]
    for fine, coarse in pairwise(bases):
        rest = coarse - fine @ np.linalg.lstsq(fine, coarse, rcond=None)[0]
        assert np.abs(rest).max() < 1e-10 * np.abs(coarse).max()
    one = np.ones(A.shape[0])
    for basis in bases:
        rest = one - basis @ np.linalg.lstsq(basis, one, rcond=None)[0]
        assert np.linalg.norm(rest) < 0.05 * np.linalg.norm(one)


def test_vector_fields_may_have_fewer_unknowns_at_some_nodes():
    hierarchy = MeshHierarchy.from_problem(square(12), 0)
    h1 = h1_matrix(hierarchy.meshes[0], 1.0)
    x = hierarchy.points
    kept = np.ones(2 * len(x), bool)
    kept[0::2][np.isclose(x[:, 0], 0)] = False  # tangential at x = 0
    A = sparse.kron(h1, np.eye(2), format="csr")[kept][:, kept]
    nodes = np.repeat(np.arange(len(x)), 2)[kept]
    constants = np.tile(np.eye(2), (len(x), 1))[kept]
    spaces = nested_spaces(A, nodes, constants, 2 * SMALL)
    assert spaces[-1].shape[1] <= 2 * SMALL
    gram = spaces[-1].T @ A @ spaces[-1]
    assert np.linalg.eigvalsh(gram.toarray())[0] > 0


def test_small_spaces_are_their_own_smallest_ones():
    A = sparse.csr_array(np.diag(np.arange(1.0, 6.0)))
    (space,) = nested_spaces(A, np.arange(5), np.ones((5, 1)), 5)
    np.testing.assert_array_equal(space.toarray(), np.eye(5))
    # Nodes without neighbours cannot be aggregated.
    (space,) = nested_spaces(A, np.arange(5), np.ones((5, 1)), 2)
    assert space.shape == (5, 5)


def test_orthonormal_bases_leave_out_what_depends_on_the_rest():
    norm = sparse.csr_array(np.diag([1.0, 4.0, 9.0]))
    functions = np.array([[1.0, 2.0, 1.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    basis = orthonormal(functions, norm)
    assert basis.shape == (3, 2)
    np.testing.assert_allclose(basis.T @ norm @ basis, np.eye(2), atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(coarse="fine"), "coarse is 'fine'; choose from auto, none, dense, algebraic"),
        (dict(normalisation="L2"), "normalisation is 'L2'; choose from H1, energy"),
    ],
)
def test_wrong_choices_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        square(2, **change)
    if "coarse" in change:
        with pytest.raises(ValueError, match=message):
            export_frame(MeshHierarchy.from_problem(square(2), 1), square(2), **change)
