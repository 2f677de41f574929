"""Robin conditions a ∂u/∂n = k (u_outside - u): closed forms, DOLFINx's own assembly, PETSc, bounds, messages."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import ufl
from mpi4py import MPI
from scipy import sparse
from scipy.sparse.linalg import spsolve
from walls import ROBIN, cube, formulation_on, linear, ramp, samples, varying

from fem_frames import (
    ByRegion,
    Energy,
    Field,
    Frame,
    FrameArrays,
    Grid,
    MeshHierarchy,
    P1Values,
    Parameter,
    Problem,
    QuadraticFormulation,
    Uniform,
    condition_numbers,
    error_bound,
    export_frame,
    frame_bounds,
    make_formulation,
    solve,
    solve_reference,
)
from fem_frames.fenicsx import door, petsc
from fem_frames.fenicsx.dofs import node_dofs
from fem_frames.formulations.quadratic import least_ratios
from fem_frames.formulations.registry import formulation_names
from fem_frames.formulations.robin import RobinEnergy
from fem_frames.solvers.bounds import certify, norm_of
from fem_frames.studies.extended_precision import ExtendedForm

LEVELS = {1: 4, 2: 3, 3: 1}
ONE = ByRegion({}, fixed={0: 1.0})


# ---- closed forms


@pytest.mark.serial
def test_rod_that_cools_at_one_end():
    """-(a u')' = f, u(0) = g, a u'(1) = k (v - u(1)): P1 in one dimension is exact at points."""
    problem = Problem(
        cube(1),
        ByRegion({0: 0}),
        Uniform((0.5, 0.1, -1.0, -1.0), (2.0, 10.0, 1.0, 1.0)),
        3.0,
        dirichlet={"left": Parameter(2)},
        robin={"right": (Parameter(1), Parameter(3))},
    )
    made, y = formulation_on(problem, 5), samples(problem, 8)
    a, k, g, v = y.T[..., None]
    slope = (k * (v - g + 3 / (2 * a)) + 3) / (a + k)
    x = torch.as_tensor(made.frame.arrays.points[:, 0].copy())
    u = made.synthesise(solve(made, y, 1e-12).w, y)["u"]
    torch.testing.assert_close(u, g + slope * x - 3 * x**2 / (2 * a), rtol=0, atol=1e-11)


@pytest.mark.serial
def test_rod_that_cools_at_both_ends_needs_no_given_value():
    """u = v + f/2 (x - x²) + f/(2 k) for a = 1 and the same k and v at both ends."""
    problem = Problem(
        cube(1), ONE, Uniform((0.1, -1.0), (10.0, 1.0)), 2.0, None, robin={"rest": (Parameter(0), Parameter(1))}
    )
    made, y = formulation_on(problem, 5), samples(problem, 8)
    x = torch.as_tensor(made.frame.arrays.points[:, 0].copy())
    u = made.synthesise(solve(made, y, 1e-12).w, y)["u"]
    torch.testing.assert_close(u, y[:, 1:] + x - x**2 + 1 / y[:, :1], rtol=0, atol=1e-10)


@pytest.mark.serial
@pytest.mark.parametrize("d", [1, 2, 3])
def test_linear_solutions_are_exact(d):
    problem, u = linear(d, robin=True)
    made, y = formulation_on(problem, LEVELS[d]), samples(problem, 4)
    found = made.synthesise(solve(made, y, 1e-12).w, y)["u"]
    expected = u(torch.as_tensor(made.frame.arrays.points.copy()), y[:, None])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


# ---- DOLFINx and PETSc


@pytest.mark.serial
@pytest.mark.parametrize("d", [2, 3])
def test_matrix_and_solution_are_those_of_dolfinx(d):
    """∫ a ∇u·∇v + ∫ k u v ds = ∫ f v + ∫ k x₀ v ds, where DOLFINx integrates over the boundary itself."""
    k, levels = 2.5, LEVELS[d]
    problem = Problem(
        Grid((2,) * d), ONE, Uniform((0.0,), (1.0,)), 1.5, dirichlet=None, robin={"rest": (k, lambda x: x[:, 0])}
    )
    made, y = formulation_on(problem, levels), torch.zeros(1, 1, dtype=torch.float64)
    arrays = made.frame.arrays
    mesh = door.create(arrays.points, arrays.levels[-1].cells, MPI.COMM_SELF)
    V = door.space(mesh, "P")
    u, v, x = ufl.TrialFunction(V), ufl.TestFunction(V), ufl.SpatialCoordinate(mesh)
    ds, dx = ufl.Measure("ds", domain=mesh), ufl.Measure("dx", domain=mesh)
    A = petsc.assemble_matrix(door.compile_form(ufl.inner(ufl.grad(u), ufl.grad(v)) * dx + k * u * v * ds))
    b = petsc.assemble_vector(door.compile_form(1.5 * v * dx + k * x[0] * v * ds)).array
    starts, columns, entries = A.getValuesCSR()
    owned, node = node_dofs(V, V)
    place = np.empty_like(node)
    place[owned] = node
    rows = place[np.repeat(np.arange(len(starts) - 1), np.diff(starts))]
    matrix = sparse.csr_matrix((entries, (rows, place[columns])), shape=A.getSize())
    load = np.zeros(len(b))
    load[place] = b
    identity = torch.eye(len(load), dtype=torch.float64)
    np.testing.assert_allclose(made.A(y)(identity), matrix.toarray(), atol=1e-12)
    np.testing.assert_allclose(made.nodal_load(y)[0], load, atol=1e-13)
    found = made.synthesise(solve(made, y, 1e-12).w, y)["u"][0]
    np.testing.assert_allclose(found, spsolve(matrix, load), atol=1e-10)


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("name", ROBIN)
@pytest.mark.parametrize("solver", ["cg", "lu"])
def test_frame_and_petsc_agree(d, name, solver):
    problem = varying(d, **ROBIN[name])
    made, y = formulation_on(problem, LEVELS[d]), samples(problem, 2)
    reference = solve_reference(problem, y.numpy(), LEVELS[d], solver=solver)
    w = solve(made, y, 1e-12).w
    np.testing.assert_allclose(made.synthesise(w, y)["u"], reference.u, rtol=0, atol=1e-8)
    np.testing.assert_allclose(made.loss(w, y), reference.loss, rtol=1e-9)


# ---- the parts of the formulation fit each other


@pytest.mark.serial
@pytest.mark.parametrize("name", ROBIN)
def test_loss_load_constant_and_residual_are_one_quadratic(name):
    problem = varying(2, **ROBIN[name])
    made, y = formulation_on(problem, 2), samples(problem, 3)
    assert isinstance(made, RobinEnergy)
    assert made.name == "energy"
    zero = torch.zeros(3, made.frame.frame_size, dtype=torch.float64)
    w = torch.randn(zero.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(made.loss(zero, y), made.constant(y))
    torch.testing.assert_close(made.residual(zero, y), -made.load(y))
    torch.testing.assert_close(made.nodal_loss(made.frame.H(w), y), made.loss(w, y))
    torch.testing.assert_close(made.stable(y)(w), made.bpx(y)(w))
    leaf = w.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(made.loss(leaf, y).sum(), leaf)
    torch.testing.assert_close(gradient, made.residual(w, y))
    residual, loss = ExtendedForm(made)(w[0], y[0])
    torch.testing.assert_close(torch.as_tensor(residual.astype(float)), made.residual(w, y)[0])
    assert float(loss) == pytest.approx(float(made.loss(w, y)[0]), rel=1e-12)


@pytest.mark.serial
def test_flux_is_that_of_the_energy_without_robin():
    problem = varying(2, dirichlet={"left": ramp})
    with_robin = replace(problem, robin={"right": (1.0, 2.0)})
    one, other = formulation_on(problem, 2), formulation_on(with_robin, 2)
    y = samples(problem, 2)
    w = torch.randn(2, one.frame.frame_size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(other.flux(w, y), one.flux(w, y))


@pytest.mark.serial
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", ROBIN)
def test_residuals_near_the_solution_in_low_precision(dtype, name):
    problem = varying(2, **ROBIN[name])
    exact, y = formulation_on(problem, 4), samples(problem, 3)
    made, w = exact.to(dtype), solve(exact, y, 1e-12).w
    gap = made.residual(w.to(made.frame.dtype), y.to(made.wide)).double() - exact.residual(w, y)
    size = float(exact.C(y)(exact.states(w, y)).norm())
    assert float(gap.norm()) < 60 * torch.finfo(made.frame.dtype).eps * size
    again = solve(made, y.to(made.frame.dtype), 1e-9)
    assert float(again.residual.max()) <= 1e-9


@pytest.mark.serial
@pytest.mark.parametrize(
    ("conditions", "most"),
    [
        ({"dirichlet": None, "robin": {"rest": (1.0, 0.0)}}, 13.0),
        ({"dirichlet": lambda x: np.isclose(x[:, 0], 0), "robin": {"rest": (10.0, 0.0)}}, 34.0),
    ],
    ids=["pure", "left"],
)
def test_condition_numbers_hardly_grow_with_the_level(conditions, most):
    problem = Problem(Grid((1, 1)), ByRegion({0: 0}), Uniform((0.5,), (1.5,)), **conditions)
    arrays = export_frame(MeshHierarchy.from_problem(problem, 6), problem)
    y = torch.ones(1, dtype=torch.float64)
    found = []
    for level in (4, 5, 6):
        made = make_formulation(Frame.from_arrays(arrays.coarsened(level), "float64"), problem)
        found.append(condition_numbers(made, y).cond_bpx)
    assert found[-1] < most
    assert found[2] - found[1] < found[1] - found[0]


# ---- bounds


@pytest.mark.serial
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("name", ROBIN)
def test_bounds_bound_for_random_y(d, name):
    problem = varying(d, **ROBIN[name])
    made, y = formulation_on(problem, LEVELS[d]), samples(problem, 16)
    w = solve(made, y, 1e-12).w
    for size in (1.0, 1e-3):
        noise = size * torch.randn(w.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        ratio = error_bound(made, w + noise, y) / norm_of(made, noise, y)
        assert float(ratio.min()) >= 1
        assert float(ratio.max()) < 8
    # The worst direction for the bound is the eigenvector of the least eigenvalue.
    C = made.stable(y[:1])
    identity = torch.eye(made.frame.frame_size, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(torch.cat([C(row[None]) for row in identity]))
    least = int((values > 1e-9 * values[-1]).nonzero()[0, 0])
    worst = vectors[:, least][None]
    ratio = error_bound(made, w[:1] + worst, y[:1]) / norm_of(made, worst, y[:1])
    assert 1 <= float(ratio) < 2.5


@pytest.mark.serial
def test_bounds_with_strong_contrast_of_k():
    problem = varying(2, dirichlet=None, robin={"rest": (lambda x, y: 10 ** (4 * y[..., 0] - 2) + 0 * x[..., 0], 1.0)})
    made, y = formulation_on(problem, 3), samples(problem, 16)
    w = solve(made, y, 1e-11).w
    noise = torch.randn(w.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert (certify(made, w + noise, y).value >= norm_of(made, noise, y)).all()
    constant = made.coordinates.coefficients(torch.ones(16, made.frame.arrays.nodal_size, dtype=torch.float64))
    assert (certify(made, w + constant, y).value >= norm_of(made, constant, y)).all()


@pytest.mark.serial
@pytest.mark.parametrize(("of_nominal", "of_y"), [(4, 4), (2, 4), (4, 2), (2, 2)])
def test_least_ratios_are_the_largest_numbers_that_keep_the_difference_positive(of_nominal, of_y):
    """Also where blocks have kernels, and where entries of a state have different units."""
    generator = torch.Generator().manual_seed(0)
    units = torch.tensor([1.0, 1e-8, 1e5, 1.0], dtype=torch.float64)
    factors = [
        torch.randn(B, 5, 4, r, dtype=torch.float64, generator=generator) for B, r in ((1, of_nominal), (3, of_y))
    ]
    C0, C = (f @ f.mT for f in factors)
    scaled = [units[:, None] * block * units for block in (C, C0)]
    ratio = least_ratios(*scaled)[..., None, None]
    assert float(torch.linalg.eigvalsh(C - ratio * C0).min()) > -1e-12
    assert float(torch.linalg.eigvalsh(C - (1.01 * ratio + 1e-6) * C0)[..., 0].max()) < 0
    factor = 1 + torch.rand(3, 5, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(least_ratios(factor[..., None, None] * C0, C0), factor)


# ---- formulations of users


def reaction(with_robin):
    class Reaction(QuadraticFormulation):
        """½ ∫ a |∇u|² + ½ ∫ y₁ u² - ∫ f u."""

        name = f"reaction, {'robin' if with_robin else 'plain'}"
        fields = (Field("u", P1Values),)
        robin = with_robin

        def blocks(self, y):
            d = self.frame.arrays.dimension
            a, c = self.mean(self.coefficient(y)), y.to(self.wide)[:, 1]  # (K, B), (B,)
            unit = torch.zeros(1 + d, 1 + d, dtype=self.wide)
            unit[0, 0] = 1.0
            mass = torch.nn.functional.pad(self.moments, (1, 0, 1, 0)) + unit  # (K, 1 + d, 1 + d)
            return (torch.eye(1 + d, dtype=self.wide) - unit)[None, ..., None] * a[:, None, None] + mass[..., None] * c

        def state_functional(self, y):
            return self.source_functional(y)

        @staticmethod
        def forms(V, w, a, f, y, dx):
            u, v = ufl.TrialFunction(V), ufl.TestFunction(V)
            bilinear = (a * ufl.inner(ufl.grad(u), ufl.grad(v)) + y[1] * u * v) * dx
            loss = (0.5 * a * ufl.inner(ufl.grad(w), ufl.grad(w)) + 0.5 * y[1] * w**2 - f * w) * dx
            return bilinear, f * v * dx, loss

    return Reaction


@pytest.mark.serial
def test_formulations_of_users_take_robin_conditions_if_they_say_so():
    problem = varying(2, **ROBIN["one wall"])
    name, y = reaction(True).name, samples(problem, 4)
    made = formulation_on(problem, 3, name)
    reference = solve_reference(problem, y.numpy(), 3, name)
    w = solve(made, y, 1e-12).w
    np.testing.assert_allclose(made.synthesise(w, y)["u"], reference.u, atol=1e-9)
    np.testing.assert_allclose(made.loss(w, y), reference.loss, rtol=1e-10)
    noise = torch.randn(w.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    ratio = error_bound(made, w + noise, y) / norm_of(made, noise, y)
    assert float(ratio.min()) >= 1
    assert float(ratio.max()) < 8


@pytest.mark.serial
@pytest.mark.parametrize("box", [(1.0, 50.0), (1e-4, 1e-2), (0.0, 1e-300)])
def test_bounds_of_weak_reactions_are_sharp(box):
    """Without a reaction C_y is singular on cells; the old bound by its least eigenvalue is then useless."""
    low, high = box
    problem = replace(varying(2, dirichlet={"left": 0.0}), parameters=Uniform((0.0, low, 1.0), (1.0, high, 2.0)))
    made, y = formulation_on(problem, 3, reaction(False).name), samples(problem, 8)
    w = solve(made, y, 1e-11).w
    noise = torch.randn(w.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    bound, error = error_bound(made, w + noise, y), norm_of(made, noise, y)
    by_eigenvalue = made.residual(w + noise, y).norm(dim=1) / (frame_bounds(made)[0] * made.coercivity(y)).sqrt()
    assert (bound >= error).all()
    assert (bound < 8 * error).all()
    assert (bound <= 1.01 * by_eigenvalue).all()
    assert low >= 1 or (bound < 0.2 * by_eigenvalue).all()


class OwnLoss(Energy):
    """A formulation whose class says nothing of data of y."""

    name = "own loss"
    data_of_y = False


@pytest.mark.serial
def test_formulations_that_do_not_say_so_refuse_data_of_y():
    formulation_on(varying(1, dirichlet={"left": 0.0}), 1, OwnLoss.name)
    with pytest.raises(ValueError, match=r"neumann\['right'\] depends on y, but .* own loss .* QuadraticFormulation"):
        formulation_on(varying(1, dirichlet={"left": 0.0}, neumann={"right": Parameter(0)}), 1, OwnLoss.name)


@pytest.mark.serial
def test_formulations_that_take_none_refuse_robin_conditions():
    problem = varying(2, **ROBIN["one wall"])
    for name in ("least-squares", "weighted-least-squares", reaction(False).name):
        with pytest.raises(ValueError, match=rf"robin\['right'\] .* {name} has no Robin .* formulation='energy'"):
            formulation_on(problem, 1, name)
        with pytest.raises(ValueError, match="has no Robin"):
            solve_reference(problem, problem.parameters.sample(1, 0), 1, name)
    arrays = formulation_on(problem, 1).frame.arrays
    with pytest.raises(ValueError, match=r"use make_formulation\(frame, problem\)"):
        Energy(Frame.from_arrays(arrays, "float64"), problem)
    without = replace(problem, robin={})
    with pytest.raises(ValueError, match="P1 with values, but energy has u in P1: export it again"):
        make_formulation(Frame.from_arrays(arrays, "float64"), without)
    assert list(formulation_names()).count("energy") == 1


# ---- files and messages


@pytest.mark.serial
@pytest.mark.parametrize("name", ROBIN)
def test_frames_keep_robin_facets_in_files_and_on_coarser_levels(tmp_path, name):
    problem = varying(2, **ROBIN[name])
    made, y = formulation_on(problem, 3), samples(problem, 2)
    made.frame.arrays.save(tmp_path / "frame.npz")
    arrays = FrameArrays.load(tmp_path / "frame.npz")
    again = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    w = torch.randn(2, made.frame.frame_size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(again.loss(w, y), made.loss(w, y))
    coarse = make_formulation(Frame.from_arrays(arrays.coarsened(2), "float64"), problem)
    direct = formulation_on(problem, 2)
    w = w[:, : direct.frame.frame_size]
    torch.testing.assert_close(coarse.loss(w, y), direct.loss(w, y), rtol=1e-12, atol=0)


@pytest.mark.serial
def test_k_that_is_not_positive_is_named_with_its_y():
    problem = varying(1, dirichlet={"left": 0.0}, robin={"right": (lambda x, y: y[..., 0] - 0.5, 1.0)})
    problem = replace(problem, parameters=Uniform((0.6, 0.5, 1.0), (1.0, 1.5, 2.0)))
    made = formulation_on(problem, 2)
    y = torch.tensor([[0.75, 1.0, 1.0], [0.25, 1.0, 1.0]], dtype=torch.float64)
    w = torch.zeros(2, made.frame.frame_size, dtype=torch.float64)
    message = r"k of robin\['right'\] must be positive and finite, but it is -0.25 for y = \(0.25, 1, 1\)"
    for ask in (lambda: made.loss(w, y), lambda: made.check_data(y), lambda: solve(made, y)):
        with pytest.raises(ValueError, match=message):
            ask()
    with pytest.raises(ValueError, match=r"k of robin\['right'\] is -1.0; a positive number"):
        varying(1, robin={"right": (-1.0, 0.0)}, dirichlet={"left": 0.0})


@pytest.mark.serial
def test_pieces_of_the_domain_need_a_dirichlet_or_a_robin_part():
    points, cells = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([[0, 1], [2, 3]])
    mesh = type(cube(1))(points, cells, facets=np.array([[0], [3]]), facet_tags=np.array([1, 2]))
    problem = Problem(mesh, ONE, Uniform((0.0,), (1.0,)), dirichlet={1: 0.0})
    with pytest.raises(
        ValueError, match=r"part of the domain at \[2.0\]: make some of its boundary Dirichlet or Robin"
    ):
        MeshHierarchy.from_problem(problem, 1).fixed_points(problem)
    formulation_on(replace(problem, robin={2: (1.0, 0.0)}), 1)
