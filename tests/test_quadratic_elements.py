"""Quadratic elements, P1 and edge bubbles: states, rates, conditioning, rounding, files."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from curved_meshes import plate_problem
from frames import bent, case, dense_differential, samples
from oracles import sine_problem, slope
from quadratic import LEVELS, NAME, exported, made, unit
from small_runs import small_objective

from fem_frames import (
    EdgeBubbles,
    Field,
    Frame,
    FrameArrays,
    Grid,
    LinearFunctional,
    P1Values,
    P2Energy,
    PointValues,
    RegionMean,
    bubble_values,
    condition_numbers,
    frame_condition,
    make_formulation,
    namespace,
    solve,
    solve_reference,
)
from fem_frames.fenicsx import door
from fem_frames.frame import level_matrices, matrices
from fem_frames.operators.coordinates import Coordinates
from fem_frames.outputs import OutputMap
from fem_frames.studies.conditioning import condition_rows
from fem_frames.studies.levels import embedded
from fem_frames.studies.rounding import rounding_rows
from training import Configuration, Surrogate, train

pytestmark = pytest.mark.serial


# ---- the element


@pytest.mark.parametrize("d", [1, 2, 3])
def test_recursive_dense_and_nodal_routes_to_d_agree(d):
    """The nodal route knows no coarse level: H, then states on the finest mesh."""
    problem = bent(d)
    arrays = exported(problem, LEVELS[d])
    dense = dense_differential(arrays)
    nodal = level_matrices.nodal_differential_matrix(arrays).to_scipy() @ matrices.synthesis(arrays).toarray()
    found = Frame.from_arrays(arrays, "float64").D.to_dense().numpy()
    size = np.abs(dense).max()
    assert 0.5 < size < 20
    np.testing.assert_allclose(found, dense, rtol=0, atol=1e-14 * size)
    np.testing.assert_allclose(nodal, dense, rtol=0, atol=1e-12 * size)  # differences of nodal values


@pytest.mark.parametrize("d", [1, 2, 3])
def test_bubbles_have_norm_one_and_states_of_order_one(d):
    """In H1 by quadrature; gradients and second derivatives in states, whatever the level and the unit of the mesh."""
    for size in (1.0, 1000.0):
        problem = replace(unit(d), mesh=Grid((1,) * d, (0.0,) * d, (size,) * d))
        for levels in (1, LEVELS[d]):
            arrays = exported(problem, levels)
            field, family = arrays.fields[1], arrays.families[1]
            assert family.level_sizes[:-1] == (0,) * (len(arrays.levels) - 1)
            hats, weights = door.barycentric_quadrature(d, 4)
            points = np.einsum("qn,knd->kqd", hats, arrays.points[arrays.levels[-1].cells])
            states = level_matrices.nodal_states(arrays, field, len(arrays.levels) - 1)
            at = np.einsum("klc,kqce->klqe", states, level_matrices.shifted_units(arrays, field, points))
            square = (at[..., 1 : 1 + d] ** 2).sum(axis=-1) + at[..., 0] ** 2 / arrays.length**2
            local = arrays.volumes[:, None] * (square @ weights)
            whole = np.bincount(level_matrices.nodal_places(arrays, field).ravel(), local.ravel())[family.free[-1]]
            np.testing.assert_allclose(whole * family.scale[-1] ** 2, 1, rtol=1e-12)
            entries = np.abs(dense_differential(arrays).reshape(len(arrays.volumes), -1, arrays.frame_size))
            of_bubbles = entries[:, d + 1 :, -len(family.free[-1]) :].max(axis=(0, 2))
            assert (of_bubbles[1:] < 20).all()
            assert (of_bubbles[1 + d :] > 0.1).all()


@pytest.mark.parametrize("d", [2, 3])
def test_transported_states_are_those_of_the_moved_cell(d):
    rng, element = np.random.default_rng(0), EdgeBubbles(d, 0.5)
    cells = np.arange(d + 1)[None]
    points, jacobian = rng.standard_normal((d + 1, d)), np.eye(d) + 0.3 * rng.standard_normal((d, d))
    from fem_frames.mesh.simplices import p1_gradients

    before, after = (element.states(x, cells, p1_gradients(x, cells)[0]) for x in (points, points @ jacobian.T))
    np.testing.assert_allclose(element.transport(before, jacobian[None, None]), after, rtol=1e-10, atol=1e-10)


def test_frames_on_curved_boundaries_have_bubbles_on_the_moved_cells():
    problem = plate_problem()
    problem = replace(problem, neumann={})
    arrays = exported(problem, 2)
    assert arrays.curved
    dense = dense_differential(arrays)
    found = Frame.from_arrays(arrays, "float64").D.to_dense().numpy()
    np.testing.assert_allclose(found, dense, rtol=0, atol=1e-13 * np.abs(dense).max())
    formulation, y = make_formulation(Frame.from_arrays(arrays, "float64"), problem), samples(problem, 1)
    reference = solve_reference(problem, y.numpy(), 2, NAME)
    np.testing.assert_allclose(formulation.loss(solve(formulation, y, 1e-12).w, y), reference.loss, rtol=1e-9)


# ---- what the elements are for


def test_energies_of_the_unit_square():
    """-Δu = 1: with 225 unknowns P2 comes nearer to the least energy than P1 with 3969."""
    y = torch.ones(1, 1, dtype=torch.float64)
    energies = {}
    for name, levels, size in ((NAME, 3, 225), ("energy", 6, 3969)):
        formulation = made(unit(2), levels, formulation=name)
        assert formulation.frame.arrays.nodal_size == size
        energies[name] = float(formulation.loss(solve(formulation, y, 1e-12).w, y))
    assert energies[NAME] == pytest.approx(-0.0175655, abs=1e-7)
    assert energies["energy"] == pytest.approx(-0.0175582, abs=1e-7)


@pytest.mark.parametrize(("d", "levels"), [(1, (3, 4, 5, 6)), (2, (2, 3, 4)), (3, (1, 2))])
def test_rates_of_convergence(d, levels):
    _, u, gradient = sine_problem(d)

    def source(x, y):
        sine = namespace(x).sin(np.pi * x)
        return d * np.pi**2 * math.prod(sine[..., i] for i in range(d)) + 0 * y[..., 0]

    problem = unit(d, source=source, quadrature_degree=4)
    y = torch.ones(1, 1, dtype=torch.float64)
    h1, l2 = [], []
    for level in levels:
        formulation = made(problem, level)
        arrays, w = formulation.frame.arrays, solve(formulation, y, 1e-11).w
        fields = formulation.synthesise(w)
        hats, weights = door.barycentric_quadrature(d, 6)
        x = np.einsum("qn,knd->kqd", hats, arrays.points[arrays.levels[-1].cells])
        at = sum(
            np.einsum(
                "kc,kqce->kqe",
                level_matrices.cell_states(arrays, f, fields[f.name][0].numpy()),
                level_matrices.shifted_units(arrays, f, x)[..., : 1 + d],
            )
            for f in arrays.fields
        )
        off = at - np.concatenate([u(x)[..., None], gradient(x)], axis=-1)
        square = np.einsum("k,q,kqe->e", arrays.volumes, weights, off**2)
        l2.append(square[0] ** 0.5)
        h1.append(square[1:].sum() ** 0.5)
    short = 0.3 if d == 3 else 0.1  # two levels on a coarse mesh
    assert slope(h1) == pytest.approx(2, abs=short)
    assert slope(l2) == pytest.approx(3, abs=short)


@pytest.mark.parametrize(("d", "expected"), [(2, (5.83, 9.63, 12.8, 15.3)), (3, (12.4, 22.1))])
def test_frames_are_well_conditioned(d, expected):
    problem, y = unit(d), torch.ones(1, dtype=torch.float64)
    found = [frame_condition(made(problem, level), y) for level in range(1, len(expected) + 1)]
    np.testing.assert_allclose(found, expected, rtol=0.02)


def test_coarser_levels_of_a_frame_are_frames_of_their_own():
    """Their bubbles are those of the coarser mesh: condition numbers and rounding of every level need them."""
    problem = bent(2)
    arrays = exported(problem, 3)
    for level in range(arrays.first_level, 4):
        short, own = arrays.coarsened(level), exported(problem, level)
        assert short.fields[1].element == own.fields[1].element
        for found, expected in zip(short.flat().items(), own.flat().items(), strict=False):
            if found[0] != "neumann_load" and not found[0].startswith("groups"):
                assert found[0] == expected[0]
                np.testing.assert_allclose(found[1], expected[1], rtol=1e-12, atol=1e-12, err_msg=found[0])
    rows = list(condition_rows(arrays, problem, problem.parameters.nominal))
    assert [row["level"] for row in rows] == [1, 2, 3]
    assert max(row["cond_bpx"] for row in rows) < 40
    numbers = condition_numbers(made(problem, 2), torch.as_tensor(problem.parameters.nominal[0]))
    assert numbers.cond_bpx == pytest.approx(rows[1]["cond_bpx"], rel=1e-3)
    with pytest.raises(ValueError, match="u bubbles in edge bubbles has no coefficients on the levels of a finer"):
        embedded(torch.zeros(1, arrays.coarsened(2).frame_size), arrays.coarsened(2), arrays)


@pytest.mark.parametrize(("d", "levels"), [(2, 5), (3, 2)])
def test_half_precision_gives_gradients_to_three_digits(d, levels):
    problem = unit(d)
    rows = rounding_rows(
        exported(problem, levels), problem, np.ones((1, 1)), ("float16", "float32"), ("recursive",), levels=[levels]
    )
    half, single = rows
    assert half["gradient_error"] < 1.5e-3
    assert single["gradient_error"] < 5e-7


# ---- frames, files, nets, surrogates


def test_files_and_coordinates(tmp_path):
    problem, arrays = case("square, P2")
    arrays.save(tmp_path / "frame.npz")
    found = FrameArrays.load(tmp_path / "frame.npz")
    assert [f.element for f in found.fields] == [f.element for f in arrays.fields]
    assert isinstance(found.fields[1].element, EdgeBubbles)
    for name, array in arrays.flat().items():
        np.testing.assert_array_equal(found.flat()[name], array)
    coordinates = Coordinates(found, problem)
    free = torch.randn(2, found.nodal_size, dtype=torch.float64)
    fields = coordinates.fields(free)
    assert {name: values.shape[1] for name, values in fields.items()} == {f.name: len(f.lift[-1]) for f in found.fields}
    torch.testing.assert_close(coordinates.free({k: v.numpy() for k, v in fields.items()}), free)
    H = Frame.from_arrays(found, "float64").H
    torch.testing.assert_close(H(coordinates.coefficients(free)), free)


def test_normalisation_in_the_energy():
    """The hats and the bubbles then have energy one for the nominal parameters."""
    problem = replace(bent(2), normalisation="energy")
    formulation = made(problem, 2)
    y = torch.as_tensor(problem.parameters.nominal)
    energies = formulation.stable(y).to_dense()[0].diagonal()
    torch.testing.assert_close(energies, torch.ones_like(energies))


@pytest.mark.parametrize("net", ["full", "separate", "separate-frame"])
def test_nets_take_families_that_are_empty_on_coarse_levels(net):
    for dtype in ("float64", "float16"):
        objective, _ = small_objective("square, P2", net=net, dtype=dtype)
        assert torch.isfinite(objective())
        gradient = objective.gradient()
        assert torch.isfinite(gradient).all()
        assert (gradient != 0).any()


def test_a_surrogate_in_p2(tmp_path):
    """Trained, checked by PETSc, improved, written, and asked for values between points."""
    problem = bent(2)
    options = dict(levels=2, optimizer="soap", rate=1e-2, epochs=80, test_samples=4, rank=4, blocks=2)
    result = train(Configuration(formulation=NAME, **options), tmp_path / "run", problem=problem, quiet=True)
    assert result["test"]["mre"] < 0.02
    surrogate = Surrogate.load(tmp_path / "run", problem)
    y = problem.parameters.sample(2, 1)
    improved = surrogate.improve(y, 1e-8)
    assert (improved.error_bound <= 1e-8).all()
    for name in ("u.vtu", "u.xdmf"):
        surrogate.write(y[:1], tmp_path / name)
    surrogate.plot(y[:1], tmp_path / "u.png")
    assert surrogate.flux(y).shape == (2, len(surrogate.arrays.volumes), 2)
    x = np.array([[0.3, 0.4], [0.55, 0.8]])
    at = surrogate.at(x, y)
    outputs = surrogate.output(y, [PointValues(x), RegionMean()])
    np.testing.assert_allclose(outputs.values[:, :2].numpy(), np.asarray(at["u"]), rtol=1e-5)


def test_values_between_points_contain_the_bubbles():
    """A quadratic function, as DOLFINx would interpolate it: its values and its mean are exact."""
    problem = replace(unit(2), dirichlet_value=lambda x: x[:, 0] ** 2 + 2 * x[:, 0] * x[:, 1])
    formulation = made(problem, 2)
    w, y = torch.zeros(1, formulation.frame.frame_size, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    x = np.random.default_rng(0).uniform(size=(9, 2))
    outputs = OutputMap(formulation, [PointValues(x), RegionMean()])
    expected = [*(x[:, 0] ** 2 + 2 * x[:, 0] * x[:, 1]), 1 / 3 + 1 / 2]
    np.testing.assert_allclose(outputs.values(w, y)[0], expected, rtol=1e-12)
    # The lift is affine: differences are the functionals on the frame.
    w = torch.randn(w.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    change = outputs.values(w, y)[0].numpy() - expected
    np.testing.assert_allclose((outputs.functional(y)[0] @ w[0]).numpy(), change, rtol=1e-10, atol=1e-12)
    bubbles = formulation.frame.arrays.fields[1]
    vector = LinearFunctional(np.ones(len(bubbles.lift[-1])), "u bubbles")
    assert OutputMap(formulation, vector).values(w, y).shape == (1, 1)


# ---- what is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"neumann": {"rest": 1.0}}, r"neumann\['rest'\] is not zero: the formulation energy-p2 has no load on edge"),
        ({"robin": {"rest": (1.0, 0.0)}}, r"robin\['rest'\] is given, but the formulation energy-p2 has no Robin"),
    ],
)
def test_boundary_terms_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        exported(replace(bent(2), **changes), 1)


def test_frames_that_do_not_fit_are_refused(tmp_path):
    _, arrays = case("square, P2")
    field = arrays.fields[1]
    free = (np.arange(2), *field.free[1:])
    with pytest.raises(ValueError, match="u bubbles is free on coarse levels, but edge bubbles has functions on the"):
        replace(arrays, fields=(arrays.fields[0], replace(field, free=free)))
    reverse = {"name": "test-p2-reverse", "fields": (Field("b", EdgeBubbles, bubble_values), Field("u", P1Values))}
    type("Reverse", (P2Energy,), reverse)
    with pytest.raises(ValueError, match="the field before b is not in P1"):
        solve_reference(unit(2), np.ones((1, 1)), 1, "test-p2-reverse")
