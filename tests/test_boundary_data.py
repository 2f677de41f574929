"""Boundary data that depend on y, and several Dirichlet parts: closed forms, PETSc, files, messages."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from frames import mixed
from walls import CONDITIONS, cube, formulation_on, linear, ramp, samples, varying, wave

from fem_frames import (
    ByRegion,
    Frame,
    FrameArrays,
    Grid,
    MeshHierarchy,
    Parameter,
    Problem,
    Uniform,
    export_frame,
    make_formulation,
    solve,
    solve_reference,
)
from fem_frames.fenicsx.sweep import problem_digest
from fem_frames.frame.fields import dirichlet_values
from fem_frames.frame.partition import dirichlet_partition
from fem_frames.solvers.bounds import certify, norm_of
from fem_frames.studies.extended_precision import ExtendedForm

LEVELS = {1: 4, 2: 3, 3: 1}
BOTH = ["energy", "least-squares"]


# ---- closed forms


@pytest.mark.serial
@pytest.mark.parametrize("formulation", BOTH)
def test_interval_between_two_given_ends(formulation):
    """-u'' = 0, u(0) = y0, u(1) = y1."""
    problem = Problem(
        cube(1),
        ByRegion({}, fixed={0: 1.0}),
        Uniform((-1.0, -1.0), (1.0, 1.0)),
        0.0,
        dirichlet={"left": Parameter(0), "right": Parameter(1)},
    )
    made = formulation_on(problem, 5, formulation)
    y = samples(problem, 4)
    u = made.synthesise(solve(made, y, 1e-12).w, y)["u"]
    x = torch.as_tensor(made.frame.arrays.points[:, 0].copy())
    torch.testing.assert_close(u, y[:, :1] + (y[:, 1:] - y[:, :1]) * x, rtol=0, atol=1e-12)


@pytest.mark.serial
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("formulation", BOTH)
def test_linear_solutions_are_exact(d, formulation):
    problem, u = linear(d, robin=False)
    made = formulation_on(problem, LEVELS[d], formulation)
    y = samples(problem, 3)
    found = made.synthesise(solve(made, y, 1e-12).w, y)
    expected = u(torch.as_tensor(made.frame.arrays.points.copy()), y[:, None])
    torch.testing.assert_close(found["u"], expected, rtol=0, atol=1e-10)
    if formulation == "least-squares":
        assert float(made.loss(solve(made, y, 1e-12).w, y).max()) < 1e-20


@pytest.mark.serial
@pytest.mark.parametrize("d", [1, 2])
def test_data_at_their_mean_give_the_solution_of_fixed_data(d):
    """A frame with data of y, at one y, is the frame with these numbers."""
    problem = varying(d, dirichlet={"left": Parameter(1)}, neumann={"right": Parameter(2)})
    y = samples(problem, 1)
    g, h = float(y[0, 1]), float(y[0, 2])
    fixed = replace(problem, dirichlet={"left": g}, neumann={"right": h})
    for formulation in BOTH:
        one, other = (formulation_on(p, 2, formulation) for p in (problem, fixed))
        w = torch.randn(1, one.frame.frame_size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        for a, b in zip(one.loss_and_residual(w, y), other.loss_and_residual(w, y), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(one.load(y), other.load(y), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(one.synthesise(w, y)["u"], other.synthesise(w)["u"], rtol=0, atol=1e-13)


# ---- PETSc, serial and over MPI


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.parametrize("formulation", BOTH)
def test_frame_and_petsc_agree(d, name, formulation):
    problem = varying(d, **CONDITIONS[name])
    made, y = formulation_on(problem, LEVELS[d], formulation), samples(problem, 2)
    reference = solve_reference(problem, y.numpy(), LEVELS[d], formulation, solver="lu")
    w = solve(made, y, 1e-12).w
    for field, values in made.synthesise(w, y).items():
        np.testing.assert_allclose(values, reference.fields[field], rtol=0, atol=1e-10)
    np.testing.assert_allclose(made.loss(w, y), reference.loss, rtol=1e-10, atol=1e-13)
    # The coefficients of PETSc's solution have no residual.
    free = made.coordinates.free(reference.fields, made.frame.device, y.numpy())
    again = made.coordinates.coefficients(free)
    assert float(made.residual(again, y).abs().max()) < 1e-10
    np.testing.assert_allclose(made.synthesise(again, y)["u"], reference.u, rtol=0, atol=1e-12)


# ---- the parts of a formulation fit each other


@pytest.mark.serial
@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.parametrize("formulation", BOTH)
def test_loss_load_constant_and_residual_are_one_quadratic(name, formulation):
    problem = varying(2, **CONDITIONS[name])
    made, y = formulation_on(problem, 2, formulation), samples(problem, 3)
    zero = torch.zeros(3, made.frame.frame_size, dtype=torch.float64)
    w = torch.randn(zero.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(made.loss(zero, y), made.constant(y))
    torch.testing.assert_close(made.residual(zero, y), -made.load(y))
    torch.testing.assert_close(made.nodal_loss(made.frame.H(w), y), made.loss(w, y))
    torch.testing.assert_close(made.frame.H.T(made.nodal_load(y)), made.load(y))
    leaf = w.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(made.loss(leaf, y).sum(), leaf)
    torch.testing.assert_close(gradient, 2 * made.factor * made.residual(w, y))
    residual, loss = ExtendedForm(made)(w[0], y[0])
    torch.testing.assert_close(torch.as_tensor(residual.astype(float)), made.residual(w, y)[0])
    assert float(loss) == pytest.approx(float(made.loss(w, y)[0]), rel=1e-12)


@pytest.mark.serial
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("formulation", BOTH)
@pytest.mark.parametrize("name", CONDITIONS)
def test_residuals_near_the_solution_in_low_precision(dtype, formulation, name):
    """They are as small as one rounding of the states allows; the lift must not lose more digits than F w."""
    problem = varying(2, **CONDITIONS[name])
    exact, y = formulation_on(problem, 4, formulation), samples(problem, 3)
    made = exact.to(dtype)
    low = y.to(made.wide)
    w = solve(exact, y, 1e-12).w
    gap = made.residual(w.to(made.frame.dtype), low).double() - exact.residual(w, y)
    size = float(exact.C(y)(exact.states(w, y)).norm())
    assert float(gap.norm()) < 60 * torch.finfo(made.frame.dtype).eps * size
    u = made.synthesise(w.to(made.frame.dtype), low)["u"].double()
    largest = float(u.abs().max())
    torch.testing.assert_close(
        u, exact.synthesise(w, y)["u"], rtol=0, atol=30 * largest * torch.finfo(made.frame.dtype).eps
    )


@pytest.mark.serial
@pytest.mark.parametrize("formulation", BOTH)
def test_bounds_bound_for_random_y(formulation):
    problem = varying(2, **CONDITIONS["neumann"])
    made, y = formulation_on(problem, 3, formulation), samples(problem, 16)
    w = solve(made, y, 1e-12).w
    noise = 0.1 * torch.randn(w.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    bound = certify(made, w + noise, y)
    error = norm_of(made, noise, y)
    assert (bound.value >= error).all()
    assert (bound.relative > 0).all()


@pytest.mark.serial
def test_synthesis_needs_y_where_the_lift_depends_on_it():
    problem = varying(1, **CONDITIONS["dirichlet"])
    made, y = formulation_on(problem, 2), samples(problem, 2)
    w = torch.zeros(2, made.frame.frame_size, dtype=torch.float64)
    for ask in (made.synthesise, made.states):
        with pytest.raises(ValueError, match=r"boundary data depend on y: pass"):
            ask(w)
    with pytest.raises(ValueError, match=r"3 samples y for 2 solutions"):
        made.synthesise(w, samples(problem, 3))
    assert made.lift_needs_y
    other = formulation_on(varying(1, dirichlet={"left": 1.0}, neumann={"right": Parameter(1)}), 2)
    assert not other.lift_needs_y
    assert other.synthesise(w[:, : other.frame.frame_size].new_zeros(2, other.frame.frame_size))["u"].shape[0] == 2
    torch.testing.assert_close(made.synthesise(w[0], y[0])["u"], made.synthesise(w, y)["u"][0])


# ---- several Dirichlet parts


@pytest.mark.serial
@pytest.mark.parametrize("d", [1, 2, 3])
def test_partition_is_one_on_its_part_and_sums_to_one(d):
    parts = {"left": 1.0, "right": 2.0, **({"bottom": 3.0} if d > 1 else {})}
    problem = varying(d, dirichlet=parts)
    hierarchy = MeshHierarchy.from_problem(problem, 2)
    found = dirichlet_partition(hierarchy, problem, range(len(parts)))
    for j in range(3):
        x = hierarchy.level_points(j)
        walls = [x[:, 0] == 0, x[:, 0] == 1] + ([x[:, 1] == 0] if d > 1 else [])
        np.testing.assert_allclose(sum(levels[j] for levels in found.values()), 1, atol=1e-12)
        for k, levels in found.items():
            first = walls[k] & ~np.any(walls[:k], axis=0) if k else walls[k]
            others = np.any(walls, axis=0) & ~first
            assert (levels[j][first] == 1).all()
            assert (levels[j][others] == 0).all()
            np.testing.assert_allclose(np.clip(levels[j], 0, 1), levels[j], atol=1e-12)


@pytest.mark.serial
def test_lift_of_several_parts_has_all_their_values():
    """A point in two parts belongs to the one that is listed first."""
    problem = varying(2, dirichlet={"left": 1.0, "bottom": lambda x: 5 + x[:, 0], "right": 0.0})
    hierarchy = MeshHierarchy.from_problem(problem, 3)
    data, x = dirichlet_values(hierarchy, problem), hierarchy.points
    assert not data.shapes
    lift = data.lift[-1]
    left, bottom, right = x[:, 0] == 0, x[:, 1] == 0, x[:, 0] == 1
    assert (lift[left] == 1).all()
    np.testing.assert_array_equal(lift[bottom & ~left], (5 + x[:, 0])[bottom & ~left])
    assert (lift[right & ~bottom] == 0).all()


@pytest.mark.serial
def test_domain_in_two_pieces_has_partitions_on_both():
    """The second piece has no Dirichlet part, but a Robin condition."""
    points = np.array([[0.0], [0.5], [1.0], [2.0], [2.5], [3.0]])
    cells = np.array([[0, 1], [1, 2], [3, 4], [4, 5]])
    mesh = type(cube(1))(points, cells, facets=np.array([[0], [2], [3], [5]]), facet_tags=np.array([1, 2, 3, 4]))
    one = ByRegion({}, fixed={0: 1.0})
    problem = Problem(
        mesh, one, Uniform((0.0,), (1.0,)), 0.0, dirichlet={1: Parameter(0), 2: 1.0}, robin={3: (2.0, Parameter(0))}
    )
    made, y = formulation_on(problem, 2), torch.tensor([[0.25]], dtype=torch.float64)
    u, x = made.synthesise(solve(made, y, 1e-12).w, y)["u"][0], made.frame.arrays.points[:, 0]
    np.testing.assert_allclose(u, np.where(x > 1.5, 0.25, 0.25 + 0.75 * x), atol=1e-11)


# ---- files


@pytest.mark.serial
@pytest.mark.parametrize("formulation", BOTH)
@pytest.mark.parametrize("name", CONDITIONS)
def test_frames_keep_boundary_data_in_files_and_on_coarser_levels(tmp_path, formulation, name):
    problem = varying(2, **CONDITIONS[name])
    made, y = formulation_on(problem, 3, formulation), samples(problem, 2)
    made.frame.arrays.save(tmp_path / "frame.npz")
    arrays = FrameArrays.load(tmp_path / "frame.npz")
    again = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    w = torch.randn(2, made.frame.frame_size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(again.loss(w, y), made.loss(w, y))
    assert torch.equal(again.synthesise(w, y)["u"], made.synthesise(w, y)["u"])
    coarse = make_formulation(Frame.from_arrays(arrays.coarsened(2), "float64"), problem)
    direct = formulation_on(problem, 2, formulation)
    w = w[:, : direct.frame.frame_size]
    torch.testing.assert_close(coarse.loss(w, y), direct.loss(w, y), rtol=1e-12, atol=0)
    torch.testing.assert_close(coarse.synthesise(w, y)["u"], direct.synthesise(w, y)["u"], rtol=0, atol=1e-13)


@pytest.mark.serial
def test_frames_without_such_data_have_no_arrays_for_them(tmp_path):
    arrays = export_frame(MeshHierarchy.from_problem(mixed(2), 2), mixed(2))
    assert arrays.boundary is None
    assert not any(f.shapes for f in arrays.fields)
    assert not [name for name in arrays.flat() if "boundary" in name or "shape" in name]


@pytest.mark.serial
def test_digests_see_data_of_y():
    problem = varying(1, dirichlet={"left": Parameter(1)}, neumann={"right": Parameter(2)})
    others = [
        replace(problem, dirichlet={"left": Parameter(1, 1.1)}),
        replace(problem, neumann={"right": Parameter(2, 1.0, 0.1)}),
    ]
    digests = [problem_digest(p, 2, "energy") for p in (problem, *others)]
    assert len(set(digests)) == 3


# ---- messages


def _refused():
    grid, one, box = Grid((1, 1)), ByRegion({0: 0}), Uniform((0.5,), (1.5,))
    return {
        r"dirichlet\['left'\] is parameter 3, but there are p = 3": lambda: varying(
            1, dirichlet={"left": Parameter(3)}
        ),
        r"u is given on no facet .* Robin": lambda: formulation_on(varying(1, dirichlet=None), 1),
        r"dirichlet_value has values of shape \(2, 1, 1, 1\)": lambda: formulation_on(
            Problem(grid, one, box, dirichlet_value=lambda x, y: y), 1
        ),
        r"dirichlet_value is not finite for y": lambda: formulation_on(
            Problem(grid, one, box, dirichlet_value=lambda x, y: np.nan * y[..., 0]), 1
        ),
        r"dirichlet_value fails .* IndexError": lambda: formulation_on(
            Problem(grid, one, box, dirichlet_value=lambda x, y: y[..., 4]), 1
        ),
    }


@pytest.mark.serial
@pytest.mark.parametrize("message", _refused())
def test_bad_data_are_refused(message):
    with pytest.raises(ValueError, match=message):
        _refused()[message]()


@pytest.mark.serial
def test_frames_of_other_conditions_are_refused():
    problem = varying(2, dirichlet={"left": Parameter(1), "right": 1.0}, neumann={"top": wave})
    arrays = formulation_on(problem, 1).frame.arrays
    for other, why in (
        ({"dirichlet": {"left": ramp, "right": 2.0}}, "Dirichlet data differ"),
        ({"dirichlet": {"left": 1.0, "right": 1.0}}, "Dirichlet data differ"),
        ({"neumann": {"top": 1.0}}, "depend on y"),
    ):
        with pytest.raises(ValueError, match=why):
            make_formulation(Frame.from_arrays(arrays, "float64"), replace(problem, **other))


@pytest.mark.serial
def test_data_that_are_not_finite_for_some_y_are_named():
    problem = varying(1, dirichlet={"left": lambda x, y: 1 / (y[..., 0] - 0.25)})
    made = formulation_on(problem, 2)
    y = torch.tensor([[0.5, 1.0, 1.0], [0.25, 1.0, 1.0]], dtype=torch.float64)
    w = torch.zeros(2, made.frame.frame_size, dtype=torch.float64)
    for ask in (lambda: made.loss(w, y), lambda: made.check_data(y), lambda: made.synthesise(w, y)):
        with pytest.raises(ValueError, match=r"dirichlet\['left'\] is not finite for y = \(0.25, 1, 1\)"):
            ask()


@pytest.mark.parametrize("formulation", ["energy", "least-squares"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(neumann={"rest": lambda x: 7 * (0.5 + x[:, -1])}), r"neumann\['rest'\] differs"),
        (dict(neumann={"rest": 3.0}), r"neumann\['rest'\] differs"),
        (dict(length=2.0), "its length is 2.0, not 1.0"),
    ],
)
def test_frames_of_other_neumann_data_are_refused(formulation, change, message, tmp_path):
    problem = mixed(2)
    arrays = export_frame(MeshHierarchy.from_problem(problem, 1), problem, formulation)
    arrays.save(tmp_path / "frame.npz")
    frame = Frame.from_arrays(FrameArrays.load(tmp_path / "frame.npz"), "float64")
    make_formulation(frame, problem)
    with pytest.raises(ValueError, match=message):
        make_formulation(frame, replace(problem, **change))


def test_parameters_that_make_k_negative_are_refused_at_once():
    for k in (Parameter(0, scale=-1.0, offset=0.5), Parameter(0, scale=0.0, offset=-1.0)):
        with pytest.raises(ValueError, match=r"k of robin\['rest'\] is -.* it must be positive"):
            Problem(Grid((1, 1)), ByRegion({0: 0}), Uniform((0.5,), (1.5,)), dirichlet={}, robin={"rest": (k, 1.0)})
