"""RT0 on nested meshes: norms, curls, harmonic fields, boundary data, and what makes it a frame."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
import torch
from frames import SIX, case, ring
from small_runs import call_command

from fem_frames import (
    ByRegion,
    Frame,
    Grid,
    MeshHierarchy,
    Problem,
    Uniform,
    export_frame,
    flux_at_centres,
    make_formulation,
    make_problem,
)
from fem_frames.frame.level_matrices import nodal_places, nodal_states
from fem_frames.frame.matrices import quadrature_data, quadrature_differential
from fem_frames.mesh.simplices import boundary_entries, facet_vectors, find, prolongation_entries, simplices
from fem_frames.solvers.spectra import flux_bounds
from training import Configuration, Surrogate, train

pytestmark = pytest.mark.serial
FLUXES = [
    *(name for name in SIX if "LS" in name or "weighted" in name),
    "square, LS",
    "ring, LS",
    "interval, LS, level 0",
]


def exported(problem, levels, **options):
    return export_frame(MeshHierarchy.from_problem(problem, levels), problem, "least-squares", **options)


def flux_condition(problem, levels, without=None):
    arrays = exported(problem, levels)
    arrays = arrays if without is None else arrays.without(without)
    low, high = flux_bounds(make_formulation(Frame.from_arrays(arrays, "float64"), problem))
    return high / low


@pytest.mark.parametrize("name", FLUXES)
def test_all_functions_have_unit_norm(name):
    """In H1 or H(div), by basix's tables at quadrature points; curls and harmonic fields have no divergence."""
    _, arrays = case(name)
    data, d = quadrature_data(arrays, 2), arrays.dimension
    values = quadrature_differential(arrays, 2).toarray().reshape(*data.weights.shape, 2 * d + 1, -1)
    square = np.einsum("kq,kqmn->mn", data.weights, values**2)  # (2d+1, Nhat)
    start = 0
    for family in arrays.families:
        part = square[:, start : start + sum(family.level_sizes)]
        start += sum(family.level_sizes)
        if family.name == "u":
            assert (part[d:] == 0).all()
            assert (part[:d].sum(axis=0) <= 1 + 1e-12).all()
        else:
            assert (part[:d] == 0).all()
            np.testing.assert_allclose(part[d:].sum(axis=0), 1, rtol=1e-11)
        if family.name == "curl":
            assert np.sqrt(part[2 * d].max()) < 1e-11


@pytest.mark.parametrize(("name", "levels"), [("checkerboard", 3), ("lshape", 2), ("cube", 2)])
def test_facet_functions_have_flux_one_through_their_facet_alone(name, levels):
    arrays = exported(make_problem(name), levels)
    d, sigma = arrays.dimension, arrays.fields[1]
    for index, level in enumerate(arrays.levels):
        facets, of_cells = arrays.simplices(index, d - 1)
        states, centres = nodal_states(arrays, sigma, index), arrays.points[level.cells].mean(axis=1)
        normals, middles = facet_vectors(arrays.points, facets), arrays.points[facets].mean(axis=1)
        assert (nodal_places(arrays, sigma, index) == of_cells).all()
        for k in range(d + 1):
            off = (middles[of_cells[:, k]] - centres)[:, None] / d
            at_middle = states[..., :d] + states[..., d:] * off  # (K, d+1, d)
            flux = (at_middle * normals[of_cells[:, k]][:, None]).sum(axis=2)
            np.testing.assert_allclose(flux, np.broadcast_to(np.arange(d + 1) == k, flux.shape), atol=1e-12)


@pytest.mark.parametrize(("d", "k"), [(d, k) for d in (1, 2, 3) for k in range(d)])
def test_prolongation_commutes_with_differences(d, k):
    """Whitney forms are a complex on every level: first prolonged, then differentiated, or the other way round."""
    hierarchy = MeshHierarchy.from_problem(_box(d), 2)
    coarse, fine = hierarchy.levels[-2:]
    lower, upper = ([simplices(level.cells, j) for level in (coarse, fine)] for j in (k, k + 1))
    P = [_dense(prolongation_entries(*t, coarse.cells, fine.ends, 2**d), t[1], t[0]) for t in (lower, upper)]
    difference = [_dense(boundary_entries(b[0], a[0]), b, a) for a, b in zip(lower, upper, strict=True)]
    np.testing.assert_array_equal(P[1] @ difference[0], difference[1] @ P[0])


def _box(d):
    return Problem(Grid((1,) * d), ByRegion({0: 0}), Uniform((0.5,), (1.5,)))


def _dense(entries, rows, columns):
    matrix = np.zeros((len(rows[0]), len(columns[0])))
    matrix[entries[0], entries[1]] = entries[2]
    return matrix


def test_simplices_are_found_or_not():
    table = np.array([[0, 1], [1, 2], [0, 2]])
    np.testing.assert_array_equal(find(np.array([[1, 2], [2, 3], [0, 1]]), table), [1, -1, 0])


# ---- holes and boundary parts


SIDES = {
    "left and right": lambda x: np.isclose(x[:, 1], 0) | np.isclose(x[:, 1], 1),
    "left": lambda x: ~np.isclose(x[:, 0], 0),
    "all but the bottom": lambda x: np.isclose(x[:, 1], 0),
}


@pytest.mark.parametrize(
    ("problem", "fields"),
    [
        (_box(2), 0),
        (_box(3), 0),
        (make_problem("lshape"), 0),
        (ring(), 1),  # a hole
        (ring(dirichlet=lambda x: np.abs(x - 0.5).max(axis=1) > 0.4), 0),  # nothing flows into the hole
        (dataclasses.replace(_box(2), dirichlet=SIDES["left and right"]), 1),  # flux between the two parts
        (dataclasses.replace(_box(2), dirichlet=SIDES["left"]), 0),
        (dataclasses.replace(_box(2), dirichlet=SIDES["all but the bottom"]), 0),
    ],
    ids=["square", "cube", "L-shape", "ring", "insulated hole", "channel", "one wall", "cup"],
)
def test_harmonic_fields_are_as_many_as_the_topology_says(problem, fields):
    """The first level has as many functions without divergence as there are such fields, and a few more hats."""
    arrays = exported(problem, 1)
    curl, sigma = arrays.families[2], arrays.fields[1]
    assert curl.level_sizes[0] - len(curl.free[0]) == fields
    assert curl.level_sizes[1] == len(curl.free[1])
    divergence = nodal_states(arrays, sigma, 0)[..., -1]
    matrix = np.zeros((len(divergence), len(sigma.lift[0])))
    np.put_along_axis(matrix, nodal_places(arrays, sigma, 0), divergence, axis=1)
    free = matrix[:, sigma.free[0]]
    functions = curl.functions[0].to_scipy().toarray()
    rank = np.linalg.matrix_rank(functions) if len(functions) else 0
    assert rank == free.shape[1] - np.linalg.matrix_rank(free)
    np.testing.assert_allclose(functions @ matrix.T, 0, atol=1e-10)
    given = np.setdiff1d(np.arange(matrix.shape[1]), sigma.free[0])
    assert (functions[:, given] == 0).all()


def test_large_coarse_meshes_have_their_harmonic_fields_too(monkeypatch):

    expected = exported(ring(), 1).families[2].functions[0].to_scipy().toarray()[-1]
    from fem_frames.frame import raviart_thomas

    monkeypatch.setattr(raviart_thomas, "DENSE", 0)
    found = exported(ring(), 1).families[2].functions[0].to_scipy().toarray()[-1]
    np.testing.assert_allclose(found * np.sign(found @ expected), expected, atol=1e-8)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_the_lift_takes_the_given_fluxes(d):
    """On every level ∫ h over each facet; it adds up to the integral over the boundary part, outwards."""
    problem = dataclasses.replace(
        _box(d),
        dirichlet=lambda x: np.isclose(x[:, 0], 0),
        neumann={"rest": lambda x: 1 + x[:, 0]},
        quadrature_degree=3,
    )
    arrays = exported(problem, 3 if d < 3 else 1)
    sigma = arrays.fields[1]
    area = [1, 1, 1][d - 1]
    total = 2 * area + (0, 2, 4)[d - 1] * 1.5  # on the side x = 1, and on those along x
    for index, lift in enumerate(sigma.lift):
        facets = arrays.simplices(index, d - 1)[0]
        given = np.setdiff1d(np.arange(len(facets)), sigma.free[index])
        middle = arrays.points[facets[given]].mean(axis=1)
        outward = np.sign((facet_vectors(arrays.points, facets[given]) * (middle - 0.5)).sum(axis=1))
        assert (lift[given] * outward).sum() == pytest.approx(total, rel=1e-12)
    if d < 3:  # no level changes much: the norm in H(div) stays bounded
        norms = []
        for level in range(arrays.first_level, arrays.finest_level + 1):
            part = arrays.coarsened(level)
            f = make_formulation(Frame.from_arrays(part, "float64"), problem)
            norms.append(float(f._lift.norm()))
        assert norms[-1] < 1.5 * norms[0]


# ---- the frame


@pytest.mark.parametrize(("levels", "expected"), [(1, 4.4), (2, 8.6), (3, 13.4), (4, 16.3)])
def test_condition_numbers_in_h_div_on_the_square(levels, expected):
    assert flux_condition(make_problem("checkerboard"), levels) == pytest.approx(expected, rel=0.05)


def test_facet_functions_alone_are_no_stable_frame():
    problem = make_problem("checkerboard")
    found = [flux_condition(problem, levels, without="curl") for levels in (1, 2, 3)]
    assert found[0] > 150
    assert all(3.5 < b / a < 5 for a, b in itertools.pairwise(found))


def test_a_hole_needs_its_harmonic_field():
    """Without it the condition number is large from the coarsest level on."""
    problem = ring(coarse="none")
    arrays = exported(problem, 2)
    curl = arrays.families[2]
    hats = curl.functions[0].part(0, len(curl.free[0]))
    families = (*arrays.families[:2], dataclasses.replace(curl, functions=(hats, *curl.functions[1:])))
    low, high = flux_bounds(
        make_formulation(Frame.from_arrays(dataclasses.replace(arrays, families=families), "float64"), problem)
    )
    assert high / low > 5 * flux_condition(problem, 2)


def test_what_cannot_be_left_out_is_named():
    arrays = exported(make_problem("checkerboard"), 1)
    with pytest.raises(ValueError, match="no family 'edges'; the frame has u, sigma, curl"):
        arrays.without("edges")
    with pytest.raises(ValueError, match="without the family 'u' the frame does not span u"):
        arrays.without("u")
    with pytest.raises(ValueError, match="does not span sigma; curls can be left out"):
        arrays.without("sigma")
    energy = make_problem("checkerboard")
    made = make_formulation(
        Frame.from_arrays(export_frame(MeshHierarchy.from_problem(energy, 2), energy), "float64"), energy
    )
    with pytest.raises(ValueError, match="has no flux; use least squares"):
        flux_bounds(made)


def test_half_precision_gradients_near_the_solution():
    """DᵀC_yD keeps three digits in float16 where HᵀA_yH has none."""
    from fem_frames.studies.rounding import rounding_rows

    problem = make_problem("checkerboard")
    rows = list(
        rounding_rows(
            exported(problem, 4),
            problem,
            problem.parameters.sample(1, 0),
            ("float16",),
            ("bpx", "recursive"),
            levels=[4],
        )
    )
    error = {row["route"]: row["gradient_error"] for row in rows}
    assert error["recursive"] < 1e-3 < 0.02 < error["bpx"]
    assert torch.isfinite(torch.tensor(error["bpx"]))


# ---- what users see of it


@pytest.mark.parametrize(("name", "levels"), [("checkerboard", 2), ("cube", 1)])
def test_fluxes_of_a_constant_field_give_it_back(name, levels):
    arrays = exported(make_problem(name), levels)
    d = arrays.dimension
    constant = np.arange(1.0, d + 1)
    fluxes = facet_vectors(arrays.points, arrays.simplices(len(arrays.levels) - 1, d - 1)[0]) @ constant
    found = flux_at_centres(arrays, np.stack([fluxes, 2 * fluxes]))
    np.testing.assert_allclose(found[1], np.broadcast_to(2 * constant, arrays.centres.shape), rtol=1e-12)
    with pytest.raises(ValueError, match=r"\(…, \d+\) fluxes is expected"):
        flux_at_centres(arrays, fluxes[1:])


@pytest.mark.parametrize("net", ["full", "separate", "separate-frame"])
@pytest.mark.parametrize("formulation", ["least-squares", "weighted-least-squares"])
def test_all_nets_train_on_triangles(tmp_path, net, formulation):
    """Nothing but the sizes of the levels tells them of the flux."""
    settings = dict(problem="checkerboard", formulation=formulation, levels=3, net=net, optimizer="soap")
    c = Configuration(**settings, level_decay=1.0, epochs=60, batch=16, test_samples=8, evaluate_every=60)
    result = train(c, tmp_path / "run", quiet=True)
    first = json.loads((tmp_path / "run/log.jsonl").read_text().split("\n")[0])["test"]["loss"]
    assert result["floor"] < result["loss"] < 0.5 * first


def test_answers_on_triangles_can_be_seen(tmp_path):
    """By command, in pictures and files: vectors on cells, which are those of the fluxes."""
    import meshio

    settings = dict(problem="checkerboard", formulation="least-squares", levels=2, epochs=5, test_samples=2)
    train(Configuration(**settings), tmp_path / "run", quiet=True)
    surrogate = Surrogate.load(tmp_path / "run")
    fluxes = surrogate([1.0, 0.8, 1.2, 0.6])["sigma"][0].double().numpy()
    vectors = flux_at_centres(surrogate.arrays, fluxes)
    query = ("query", "run", "--y", "1,0.8,1.2,0.6")
    told = json.loads(call_command(*query, "--out", "u.vtu", "--json", cwd=tmp_path).stdout)
    np.testing.assert_allclose(told["values"]["sigma"], vectors, atol=1e-6)
    assert np.shape(told["centres"]) == vectors.shape
    written = meshio.read(tmp_path / "u.vtu")
    np.testing.assert_allclose(written.cell_data["sigma"][0][:, :2], vectors, atol=1e-6)
    assert written.point_data["u"].shape == (25,)
    told = call_command(*query, "--out", "u.xdmf", "--plot", "u.png", cwd=tmp_path).stdout
    assert "sigma        32 vectors of length from" in told
    assert 'Name="sigma"' in (tmp_path / "u.xdmf").read_text()
    call_command("plot", "run", "--samples", "1", "--out", "runs.png", cwd=tmp_path)
    assert (tmp_path / "runs.png").read_bytes().startswith(b"\x89PNG")


def test_surrogates_change_their_precision(tmp_path):
    settings = dict(problem="checkerboard", formulation="least-squares", levels=2, epochs=100, test_samples=2)
    train(Configuration(**settings, net="separate-frame"), tmp_path / "run", quiet=True)
    surrogate = Surrogate.load(tmp_path / "run")
    y = surrogate.problem.parameters.sample(4, 3)
    half = surrogate.to("float16")
    assert next(half.net.parameters()).dtype == torch.float16
    assert next(surrogate.net.parameters()).dtype == torch.float32
    off = (half.coefficients(y) - surrogate.coefficients(y)).norm() / surrogate.coefficients(y).norm()
    assert 1e-5 < off < 1e-2
    with pytest.raises(ValueError, match="dtype is 'float8'"):
        surrogate.to("float8")
    said = call_command("evaluate", "run", "--samples", 4, "--precision", "float16", "--json", cwd=tmp_path).stdout
    told = json.loads(said)
    assert told["precision"] == "float16"
    assert told["loss"] == pytest.approx(float(half.loss(surrogate.problem.parameters.sample(4, 0)).mean()), rel=1e-6)
