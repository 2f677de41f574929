"""The built-in problems with equations: their energies in closed form, their meshes, and what is refused."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from test_imports import run_without_dolfinx
from ufl import div, grad, inner

from fem_frames import (
    Equation,
    Field,
    Frame,
    Grid,
    MeshHierarchy,
    Problem,
    Uniform,
    error_bound,
    export_frame,
    make_formulation,
    make_problem,
    solve,
)
from fem_frames.fenicsx.refinement import coarse_mesh
from fem_frames.problem.blocks import SIDES, unit_cube
from fem_frames.solvers.spectra import frame_condition

pytestmark = pytest.mark.serial
DEFAULTS = ["elastic", "anisotropic", "reaction"]


@cache
def exact(name, levels, **options):
    problem = make_problem(name, **options)
    arrays = export_frame(MeshHierarchy.from_problem(problem, levels), problem)
    return make_formulation(Frame.from_arrays(arrays, "float64"), problem)


def samples(made, count=3):
    return torch.as_tensor(made.problem.parameters.sample(count, 0))


def quadratic(made, y, *fields):
    """(B,) ⟨A_y v, v⟩ / 2 for the functions of x that are the fields' values at the points, and (B,) the load of v."""
    arrays = made.frame.arrays
    parts = [f(arrays.points)[field.free[-1]] for f, field in zip(fields, arrays.fields, strict=True)]
    v = torch.as_tensor(np.concatenate(parts)).expand(len(y), -1)
    load = made.nodal_load(y)
    return 0.5 * (made.A(y)(v) * v).sum(1), (load * v).sum(1)


# ---- energies


@pytest.mark.parametrize("load", ["weight", "traction"])
@pytest.mark.parametrize("d", [2, 3])
def test_a_uniform_strain_has_the_elastic_energy(d, load):
    """u = (p x₀, q x₀, …): tr ε = p, ε : ε = p² + q²/2; ∫ u₁ = q/2, and q on the right side."""
    made, (p, q) = exact("elastic", 2, dimension=d, load=load), (0.7, -0.4)
    y = samples(made)
    fields = (lambda x: p * x[:, 0], lambda x: q * x[:, 0], lambda x: 0 * x[:, 0])
    energy, work = quadratic(made, y, *fields[:d])
    young, poisson = y[:, ::2], y[:, 1::2]
    first, shear = young * poisson / ((1 + poisson) * (1 - 2 * poisson)), young / (2 * (1 + poisson))
    want = (first * p**2 / 2 + shear * (p**2 + q**2 / 2)).mean(1)
    torch.testing.assert_close(energy, want, rtol=1e-12, atol=0)
    torch.testing.assert_close(work, torch.full_like(work, -q if load == "traction" else -q / 2), rtol=1e-12, atol=0)


def test_a_beam_half_as_stiff_sinks_twice_as_far():
    made = exact("elastic", 4, load="traction")
    y = torch.tensor([[1.0, 0.3] * 4, [0.5, 0.3] * 4], dtype=torch.float64)
    found = made.synthesise(solve(made, y, 1e-10, solver="frame").w, y)
    tip = found["u[1]"][:, made.frame.arrays.points[:, 0] == 1].mean(dim=1)
    assert float(tip[0]) < 0
    torch.testing.assert_close(tip[1], 2 * tip[0])


def test_the_stiffness_of_fibres_is_the_rotated_tensor():
    """RᵀKR cell by cell, with the angle and the conductivity across of each block."""
    made = exact("anisotropic", 3, blocks=2)
    arrays, y = made.frame.arrays, samples(made, 1)
    free, cells, gradients = arrays.fields[0].free[-1], arrays.levels[-1].cells, arrays.levels[-1].gradients
    angle, across = y[0, ::2].numpy()[arrays.regions], y[0, 1::2].numpy()[arrays.regions]
    fibre = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    tensor = fibre[:, :, None] * fibre[:, None] * (1 - across)[:, None, None] + across[:, None, None] * np.eye(2)
    local = np.einsum("k,kid,kde,kje->kij", arrays.volumes, gradients, tensor, gradients)
    whole = np.zeros((len(arrays.points),) * 2)
    np.add.at(whole, (cells[:, :, None], cells[:, None]), local)
    np.testing.assert_allclose(made.A(y).to_dense()[0].numpy(), whole[np.ix_(free, free)], atol=1e-13)


@pytest.mark.parametrize("fixed", ["none", "left"])
def test_reaction_and_transfer_of_a_linear_function(fixed):
    """v = x₀: ∫ |∇v|² = 1, ∫ v² = 1/3, and on the sides 1 at the right and 1/3 at the bottom and the top."""
    made = exact("reaction", 3, fixed=fixed, strength=7.0, transfer=2.0)
    y = samples(made)
    energy, load = quadratic(made, y, lambda x: x[:, 0])
    want = y[:, :4].mean(1) / 2 + y[:, 4] / 6 + y[:, 5] / 2 * (1 + 2 / 3)
    torch.testing.assert_close(energy, want, rtol=1e-12, atol=0)
    torch.testing.assert_close(load, torch.full_like(load, 0.5), rtol=1e-12, atol=0)
    if fixed == "none":  # v = 1 is free too
        energy, _ = quadratic(made, y, lambda x: np.ones(len(x)))
        torch.testing.assert_close(energy, y[:, 4] / 2 + y[:, 5] * 4 / 2, rtol=1e-12, atol=0)


def test_transfer_needs_sides_and_a_number():
    assert make_problem("reaction").parameters.dimension == 6
    assert make_problem("reaction", fixed="all").parameters.dimension == 5
    assert make_problem("reaction", transfer=0.0).parameters.dimension == 5


@pytest.mark.parametrize("name", DEFAULTS)
def test_bounds_hold_for_the_built_in_equations(name):
    made = exact(name, 4)
    y = samples(made)
    w = solve(made, y, 1e-12, solver="frame").w
    wrong = w + 1e-3 * torch.randn(w.shape, generator=torch.Generator().manual_seed(0), dtype=w.dtype)
    states = made.states(wrong, y) - made.states(w, y)
    error = (made.C(y)(states) * states).sum(1).sqrt()
    bound = error_bound(made, wrong, y)
    assert (error <= bound).all()
    assert (bound <= 20 * error).all()


# ---- condition numbers


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({"fixed": "all", "strength": 1e4, "low": 0.99, "high": 1.01}, 9.5),
        ({"fixed": "left", "transfer": 10.0, "strength": 1e-6, "low": 0.99, "high": 1.01}, 35.0),
        ({"fixed": "none", "strength": 1.0, "transfer": 0.0, "low": 0.99, "high": 1.01}, 20.0),
    ],
)
def test_condition_numbers_of_reactions_stay_bounded(options, want):
    made = exact("reaction", 5, **options)
    assert frame_condition(made, torch.as_tensor(made.problem.parameters.nominal)[0]) < want


# ---- meshes


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_the_cube_is_the_one_of_dolfinx_with_names(d, n):
    mine, theirs = unit_cube(d, n), coarse_mesh(Grid((n,) * d))

    def as_set(mesh):
        corners = np.round(n * mesh.points[mesh.cells]).astype(int)  # (K, d+1, d)
        return {frozenset(map(tuple, cell.tolist())) for cell in corners}

    assert as_set(mine) == as_set(theirs)
    for k, pair in enumerate(SIDES[:d]):
        for end, side in enumerate(pair):
            own = mine.facets[mine.facet_tags == mine.facet_names[side]]
            assert (mine.points[own][..., k] == end).all()
            assert len(own) == (1, n, 2 * n**2)[d - 1]


@pytest.mark.parametrize(
    ("name", "options", "refinement"),
    [
        ("reaction", {}, "red"),
        ("reaction", {}, "dolfinx"),
        ("elastic", {"dimension": 3}, "red"),
        ("quarters", {}, "red"),
    ],
)
def test_a_coarsened_frame_keeps_the_groups_of_its_boundary(name, options, refinement):
    problem = replace(make_problem(name, **options), refinement=refinement)
    fine = export_frame(MeshHierarchy.from_problem(problem, 3), problem)
    coarse = export_frame(MeshHierarchy.from_problem(problem, 2), problem)
    for field, table in coarse.groups.flat().items():
        np.testing.assert_array_equal(fine.coarsened(2, problem.regions).groups.flat()[field], table)


@pytest.mark.parametrize("name", ["elastic", "reaction"])
def test_built_in_equations_need_no_ufl_once_their_frame_is_there(tmp_path, name):
    """UFL makes the programs, which the frame holds."""
    problem = make_problem(name)
    export_frame(MeshHierarchy.from_problem(problem, 3), problem).save(tmp_path / "frame.npz")
    done = run_without_dolfinx(
        f"""
from fem_frames.commands import main
from fem_frames import PROBLEMS
from training import Surrogate

main(["condition", "--frame", "frame.npz"])
settings = ["--epochs", "3", "--rank", "3", "--test-samples", "2", "--quiet"]
main(["train", "--problem", {name!r}, "--frame", "frame.npz", "--out", "run", *settings])
surrogate = Surrogate.load("run")
assert (surrogate.error_bound(surrogate.problem.parameters.sample(2, 0)) > 0).all()
assert len(PROBLEMS) == len([make() for make in PROBLEMS.values()])
""",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_several_fluxes_have_one_matrix_of_d():
    """D as one sparse matrix, whose columns follow the families, against the recursion."""

    def energy(u, s, t, y, x, dx, ds):
        off = s - y[0] * grad(u), t - grad(u)
        return (sum(inner(r, r) for r in off) + (div(s) + 1) ** 2 + (div(t) - 1) ** 2) * dx

    fields = Field("u"), Field("s", "RT0"), Field("t", "RT0")
    problem = Problem(unit_cube(2, 1), Equation(*fields, energy=energy), Uniform((1.0,), (2.0,)))
    arrays = export_frame(MeshHierarchy.from_problem(problem, 2), problem)
    assert [family.field for family in arrays.families] == ["u", "s", "t", "s", "t"]
    recursive, sparse = (Frame.from_arrays(arrays, "float64", differential=kind).D for kind in ("recursive", "sparse"))
    torch.testing.assert_close(sparse.to_dense(), recursive.to_dense())


# ---- options


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("elastic", {"poisson_high": 0.49}, "poisson_high is 0.49; at most 0.45"),
        (
            "elastic",
            {"poisson_low": 0.5},
            "poisson_low is 0.5 and poisson_high is 0.4; -1 < poisson_low < poisson_high",
        ),
        ("elastic", {"dimension": 1}, "dimension is 1; choose from 2, 3"),
        ("elastic", {"clamped": "right"}, "clamped is 'right'; choose from left, all"),
        ("elastic", {"clamped": "all", "load": "traction"}, "all sides are clamped"),
        ("anisotropic", {"low": 0.0}, "low is 0 and high is 1"),
        ("anisotropic", {"angle_low": 2.0}, "angle_low is 2 and angle_high is 1.57"),
        ("reaction", {"strength": -1.0}, "strength is -1"),
        ("reaction", {"transfer": -1.0}, "transfer is -1"),
        ("reaction", {"fixed": "top"}, "choose from left, all, none"),
    ],
)
def test_options_out_of_range_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        make_problem(name, **options)
