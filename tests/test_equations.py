"""Equations of users: their formulations against those written by hand, closed forms, and dense second derivatives."""

import numpy as np
import pytest
import torch
from equation_problems import FOUR, PROBLEMS, blocks, left, square
from test_imports import run_without_dolfinx
from ufl import (
    CellDiameter,
    CellVolume,
    Circumradius,
    FacetNormal,
    SpatialCoordinate,
    conditional,
    div,
    grad,
    gt,
    inner,
)

from fem_frames import (
    Energy,
    Equation,
    Field,
    Frame,
    FrameArrays,
    Grid,
    LeastSquares,
    MeshHierarchy,
    Problem,
    Uniform,
    certify,
    export_frame,
    make_formulation,
    make_problem,
    solve,
)
from fem_frames.formulations.equations import DiffusionEquation, QuadraticEquation
from fem_frames.problem.densities import Density
from fem_frames.solvers.conjugate_gradients import ConvergenceError

pytestmark = pytest.mark.serial
LEVELS = {"in space": 1, "interval": 4}


def frame_of(problem, levels, formulation="energy"):
    return export_frame(MeshHierarchy.from_problem(problem, levels), problem, formulation)


def made(name, dtype="float64"):
    problem = PROBLEMS[name]()
    return make_formulation(Frame.from_arrays(frame_of(problem, LEVELS.get(name, 3)), dtype), problem)


def random(formulation, count=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(count, formulation.frame.frame_size, generator=generator, dtype=torch.float64)
    y = torch.as_tensor(formulation.problem.parameters.sample(count, seed))
    return w.to(formulation.frame.dtype), y.to(formulation.wide)


# ---- against formulations written by hand


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_diffusion_is_recognised_and_is_the_energy_formulation(dtype):
    formulation, plain = made("diffusion", dtype), make_problem("checkerboard")
    other = make_formulation(Frame.from_arrays(frame_of(plain, 3), dtype), plain)
    assert isinstance(formulation, DiffusionEquation)
    assert isinstance(formulation, Energy)
    w, y = random(formulation)
    size = 50 * torch.finfo(formulation.wide).eps
    for name in ("loss", "constant", "residual", "functional", "cell_diffusion"):
        given = (w, y) if name in ("loss", "residual") else (y,)
        one, two = (getattr(f, name)(*given) for f in (formulation, other))
        torch.testing.assert_close(one.double().expand(two.shape), two.double(), rtol=size, atol=size)


def test_squares_in_p1_and_rt0_are_the_least_squares_formulation():
    problem = PROBLEMS["least squares"]()
    formulation = make_formulation(Frame.from_arrays(frame_of(problem, 3), "float64"), problem)
    from fem_frames import ByRegion

    plain = Problem(Grid((1, 1)), ByRegion.each(1), Uniform((0.5,), (1.5,)))
    other = make_formulation(Frame.from_arrays(frame_of(plain, 3, "least-squares"), "float64"), plain)
    assert isinstance(formulation, QuadraticEquation)
    assert isinstance(other, LeastSquares)
    w, y = random(formulation)
    torch.testing.assert_close(formulation.loss(w, y), other.loss(w, y), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(formulation.residual(w, y), 2 * other.residual(w, y), rtol=1e-11, atol=1e-11)


def test_losses_of_squares_are_accurate_near_the_solution():
    """In float32 an expanded quadratic form would have an error of 1e-3 here, the loss itself is below it."""

    def energy(u, s, y, x, dx, ds):
        return ((div(s) + 1) ** 2 + inner(s / y[0] - grad(u), s / y[0] - grad(u))) * dx

    problem = Problem(Grid((4,)), Equation(Field("u"), Field("s", "RT0"), energy=energy), Uniform((0.5,), (1.5,)))
    arrays = frame_of(problem, 6)
    exact = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    y = torch.tensor([[1.0]], dtype=torch.float64)
    w = solve(exact, y, 1e-10, solver="frame").w
    floor = float(exact.loss(w, y))
    assert 0 < floor < 1e-4
    single = exact.to("float32")
    assert float(single.loss(w.float(), y.float())) == pytest.approx(floor, rel=1e-2)


# ---- the formulation itself


@pytest.mark.parametrize("name", PROBLEMS)
def test_residual_and_blocks_are_derivatives_of_the_loss(name):
    formulation = made(name)
    w, y = random(formulation, 2)
    w.requires_grad_()
    loss = formulation.loss(w, y)
    (gradient,) = torch.autograd.grad(loss.sum(), w)
    factor = 2 * formulation.factor
    size = float(gradient.abs().max())
    torch.testing.assert_close(factor * formulation.residual(w.detach(), y), gradient, rtol=1e-10, atol=1e-11 * size)
    z = torch.randn_like(w)
    ahead, behind = (formulation.residual(w.detach() + t * z, y) for t in (0.5, -0.5))
    product = formulation.stable(y)(z)
    torch.testing.assert_close(ahead - behind, product, rtol=1e-9, atol=1e-10 * float(product.abs().max()))
    bpx = formulation.bpx(y)(z)
    torch.testing.assert_close(bpx, product, rtol=1e-9, atol=1e-10 * float(product.abs().max()))


@pytest.mark.parametrize("name", ["tensor", "elastic", "in space", "interval"])
def test_solutions_are_minima_with_bounds(name):
    formulation = made(name)
    _, y = random(formulation)
    found = solve(formulation, y, 1e-9)
    assert float(formulation.residual(found.w, y).norm()) < 1e-7 * float(formulation.load(y).norm())
    away = found.w + 0.01 * torch.randn_like(found.w)
    error = formulation.energy_norm(formulation.frame.D(away - found.w), y)
    bound = certify(formulation, away, y)
    assert (bound.value >= error * (1 - 1e-6)).all()
    assert (bound.value <= 30 * error).all()
    excess = formulation.loss(away, y) - formulation.loss(found.w, y)
    torch.testing.assert_close(2 * excess, error**2, rtol=1e-5, atol=1e-12)


def test_given_components_have_their_values():
    formulation = made("elastic")
    y = torch.tensor([[1.0, 1.2, 0.8, 0.7]], dtype=torch.float64)
    fields = formulation.synthesise(solve(formulation, y, 1e-9).w, y)
    x = formulation.frame.arrays.points
    on_left, on_top = np.isclose(x[:, 0], 0), np.isclose(x[:, 1], 1)
    assert (fields["u[0]"][0][on_left] == 0).all()
    torch.testing.assert_close(
        fields["u[1]"][0][on_left & ~on_top], torch.full((int((on_left & ~on_top).sum()),), 0.12).double()
    )
    assert (fields["u[1]"][0][on_top & ~on_left] == 0).all()
    assert float(fields["u[0]"][0][on_top & ~on_left].abs().max()) > 1e-3  # free there


# ---- integrals with closed forms


def value(energy, field=1.0, d=2, mesh=None, quadrature_degree=2):
    """The energy of a constant field, which is given on the left side."""
    problem = Problem(
        mesh or square(d),
        Equation(Field("u"), energy=energy),
        FOUR,
        dirichlet=left,
        dirichlet_value=lambda x: field * left(x),
        quadrature_degree=quadrature_degree,
    )
    formulation = make_formulation(Frame.from_arrays(frame_of(problem, 1), "float64"), problem)
    nodal = torch.full((1, formulation.frame.arrays.nodal_size), field, dtype=torch.float64)
    w = formulation.coordinates.coefficients(nodal)
    return float(formulation.loss(w, torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.float64)))


def with_square(term):
    """The term, and a square of u that makes the energy one with values in its states."""
    return lambda *given: with_gradient(term)(*given) + (given[0] - 1) ** 2 * given[3]


def with_gradient(term):
    """The term as a load, for states without values."""
    return lambda u, y, x, dx, ds: term(u, y, x, dx, ds) + inner(grad(u), grad(u)) * dx


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (lambda u, y, x, dx, ds: y[3] * u * dx, 4.0),
        (lambda u, y, x, dx, ds: y[1] * x[0] * u * dx("east"), 2 * 3 / 8),
        (lambda u, y, x, dx, ds: u * dx("east", "west"), 1.0),
        (lambda u, y, x, dx, ds: u * (dx("east") + dx("west")), 1.0),
        (lambda u, y, x, dx, ds: u * dx(0), 0.5),
        (lambda u, y, x, dx, ds: u * ds, 4.0),
        (lambda u, y, x, dx, ds: y[2] * x[1] * u * ds("right"), 1.5),
        (lambda u, y, x, dx, ds: x[0] * FacetNormal(x.ufl_domain())[0] * u * ds, 1.0),  # divergence theorem
        (lambda u, y, x, dx, ds: CellVolume(x.ufl_domain()) * u * dx, 1 / 32),
        (lambda u, y, x, dx, ds: CellDiameter(x.ufl_domain()) * u * dx, 2**0.5 / 4),
        (lambda u, y, x, dx, ds: Circumradius(x.ufl_domain()) * u * dx, 2**0.5 / 8),
        (lambda u, y, x, dx, ds: conditional(gt(x[0], 0.5), 2.0, 1.0) * u * dx, 1.5),
    ],
)
def test_integrals_have_their_values(term, expected):
    assert value(with_square(term)) == pytest.approx(expected, rel=1e-12)
    assert value(with_gradient(term)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_normals_point_outwards_in_every_dimension(d):
    def energy(u, y, x, dx, ds):
        n = FacetNormal(x.ufl_domain())
        return sum(x[i] * n[i] for i in range(d)) * u * ds + (u - 1) ** 2 * dx

    assert value(energy, d=d) == pytest.approx(d, rel=1e-12)


# ---- files


def test_frames_hold_programs_and_know_another_equation(tmp_path):
    problem = PROBLEMS["elastic"]()
    arrays = frame_of(problem, 2)
    arrays.save(tmp_path / "frame.npz")
    again = FrameArrays.load(tmp_path / "frame.npz")
    assert Density.from_record(again.record["equation"]).integrals == problem.density().integrals
    other = Problem(
        square(),
        Equation(
            Field("u", components=2), energy=lambda u, y, x, dx, ds: (y[0] * inner(grad(u), grad(u)) + div(u) ** 2) * dx
        ),
        FOUR,
        dirichlet=left,
    )
    with pytest.raises(ValueError, match="its equation differs; export it again"):
        make_formulation(Frame.from_arrays(again, "float64"), other)
    with pytest.raises(ValueError, match="the frame has the fields"):
        make_formulation(Frame.from_arrays(again, "float64"), make_problem("checkerboard"))
    scalar = frame_of(PROBLEMS["diffusion"](), 2)
    with pytest.raises(ValueError, match="its equation differs"):
        make_formulation(Frame.from_arrays(scalar, "float64"), make_problem("checkerboard"))


@pytest.mark.parametrize(
    "damage",
    [
        {"kind": "other"},
        {"dimension": 4},
        {"parts": [["u", "P1 with values"]]},
        {"integrals": [{"kind": "cells", "groups": [], "program": {"operations": [["eval", 1.0]], "results": [1.0]}}]},
        {"integrals": [{"kind": "cells", "groups": [1.5], "program": {"operations": [], "results": [1.0]}}]},
        {"integrals": [{"kind": "cells", "groups": [], "program": {"operations": [], "results": [["n", 0]]}}]},
        {"monotonicity": {"operations": [], "results": [["x", 0]]}},
    ],
)
def test_damaged_equations_are_refused(damage):
    record = PROBLEMS["diffusion"]().density().record()
    with pytest.raises(ValueError, match=r"the equation|program|integral|groups"):
        Density.from_record({**record, **damage})


def test_surrogates_answer_with_bounds_where_there_is_no_dolfinx(tmp_path):
    from training import Configuration, train

    problem = PROBLEMS["elastic"]()
    settings = Configuration(levels=2, epochs=3, steps_per_epoch=2, batch=8, rank=3, test_samples=2)
    train(settings, tmp_path / "run", problem=problem, quiet=True)
    y = [[1.0, 0.9, 0.8, 1.1]]
    from training import Surrogate

    here = Surrogate.load(tmp_path / "run", problem)
    assert here(y)["u"].shape == (1, len(here.arrays.points), 2)
    expected = here.certify(y).value.tolist()
    done = run_without_dolfinx(f"""
from training import Surrogate
surrogate = Surrogate.load({str(tmp_path / "run")!r})
print(surrogate.certify({y}).value.tolist(), surrogate.improve({y}, 1e-6).iterations.tolist())
print(surrogate({y})["u"].shape[2], surrogate.at([[0.5, 0.5]], {y})["u"].shape)
""")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    found, iterations = eval(first.replace("] [", "], ["))
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert 0 < iterations[0] < 200
    assert second == "2 torch.Size([1, 1, 2])"


def test_a_coordinate_by_itself_is_data():
    """SpatialCoordinate of x's own domain is the x that is given."""

    def energy(u, y, x, dx, ds):
        again = SpatialCoordinate(x.ufl_domain())
        return inner(grad(u), grad(u)) / 2 * dx - again[0] * u * dx

    assert value(energy) == pytest.approx(-0.5, rel=1e-12)


def test_regions_of_the_problem_are_groups_too():
    problem = Problem(
        Grid((1, 1)),
        Equation(Field("u"), energy=lambda u, y, x, dx, ds: inner(grad(u), grad(u)) / 2 * dx - y[0] * u * dx(3)),
        FOUR,
        regions=blocks,
        dirichlet=left,
    )
    formulation = make_formulation(Frame.from_arrays(frame_of(problem, 2), "float64"), problem)
    load = formulation.functional(torch.tensor([[2.0, 1, 1, 1]], dtype=torch.float64))
    assert float(load.sum()) == pytest.approx(0.5, rel=1e-12)


def test_programs_in_another_order_are_the_same_equation():
    """Releases of UFL order operations differently; a frame of one of them serves the others."""

    def one(u, y, x, dx, ds):
        return (y[0] * inner(grad(u), grad(u)) / 2 + x[0] * u**2) * dx - y[1] * u * ds("right")

    def other(u, y, x, dx, ds):
        return -(u * y[1]) * ds("right") + u * (u * x[0]) * dx + 0.5 * inner(y[0] * grad(u), grad(u)) * dx

    def third(u, y, x, dx, ds):
        return other(u, y, x, dx, ds) + 1e-3 * u**2 * dx

    same, ordered, different = (
        Problem(square(), Equation(Field("u"), energy=energy), FOUR).density() for energy in (one, other, third)
    )
    assert same.record() != ordered.record()
    assert same.agrees(ordered)
    assert not same.agrees(different)


@pytest.mark.parametrize("name", ["heat", "carreau", "elastic"])
def test_built_in_equations_are_loaded_where_there_is_no_ufl(tmp_path, name):
    from training import Configuration, train

    settings = Configuration(problem=name, levels=2, epochs=2, steps_per_epoch=2, batch=8, rank=2, test_samples=2)
    train(settings, tmp_path / "run", quiet=True)
    done = run_without_dolfinx(f"""
from training import Surrogate
surrogate = Surrogate.load({str(tmp_path / "run")!r})
y = surrogate.problem.parameters.sample(2, 0)
print(surrogate.loss(y).tolist())
""")
    assert done.returncode == 0, done.stderr


def sharp(kind):
    from ufl import conditional, max_value, sign

    terms = {
        "abs": lambda u: 50 * abs(u),
        "conditional": lambda u: conditional(gt(u, 0.01), 20.0, 1.0) * inner(grad(u), grad(u)),
        "maximum": lambda u: max_value(u, 0.1),
        "sign": lambda u: sign(u) * u,
    }
    return Problem(
        Grid((1, 1)),
        Equation(
            Field("u"),
            energy=lambda u, y, x, dx, ds: (terms[kind](u) + inner(grad(u), grad(u)) / 2 - 30 * y[0] * u) * dx,
        ),
        Uniform((0.5,), (1.0,)),
    )


@pytest.mark.parametrize("kind", ["abs", "conditional", "maximum", "sign"])
def test_kinks_make_an_equation_nonlinear(kind):
    """Second derivatives do not see kinks: without a look at them a wrong answer would have a bound."""
    problem = sharp(kind)
    density = problem.density()
    assert not density.is_linear
    assert density.diffusion is None
    assert [part.element for part in density.reduced.parts] == ["P1 with values"]
    formulation = make_formulation(Frame.from_arrays(frame_of(problem, 3), "float64"), problem)
    y = torch.tensor([[1.0]], dtype=torch.float64)
    try:
        found = solve(formulation, y)
    except ConvergenceError:
        return  # Newton's method may fail at kinks, and says so
    for step in (0.9, 1.1):
        assert float(formulation.loss(step * found.w, y)) > float(formulation.loss(found.w, y))


def test_derivatives_that_do_not_exist_are_told():
    problem = Problem(
        Grid((1, 1)),
        Equation(Field("u"), energy=lambda u, y, x, dx, ds: (inner(grad(u), grad(u)) ** 0.75 - 50 * y[0] * u) * dx),
        Uniform((0.5,), (1.0,)),
    )
    formulation = make_formulation(Frame.from_arrays(frame_of(problem, 2), "float64"), problem)
    with pytest.raises(ValueError, match=r"derivative of the energy is not finite at u = 0 for y = .*: smooth it"):
        solve(formulation, torch.tensor([[1.0]], dtype=torch.float64))


def test_numbers_beyond_floats_are_refused_in_programs():
    record = PROBLEMS["diffusion"]().density().record()
    record["integrals"][0]["program"]["operations"][0] = ["mul", 10**400, ["y", 0]]
    with pytest.raises(ValueError, match="which does not exist"):
        Density.from_record(record)


def test_claims_and_data_that_do_not_fit_are_refused():
    def energy(u, y, x, dx, ds):
        return (1 + inner(grad(u), grad(u))) ** 1.5 * dx

    with pytest.raises(ValueError, match=r"monotonicity returns values of shape \(4,\); one number is expected"):
        Problem(Grid((1, 1)), Equation(Field("u"), energy=energy, monotonicity=lambda y: y), FOUR).density()
    with pytest.raises(ValueError, match="all fields have one: leave one of them out"):
        Problem(square(), Equation(Field("u", dirichlet={"left": 0.0}), energy=energy), FOUR, dirichlet={"right": 0.0})
