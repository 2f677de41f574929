"""The formulations against PETSc, closed forms and their own derivatives; what they refuse."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from frames import CASES, SIX, case, samples

from fem_frames import (
    Affine,
    ByRegion,
    Energy,
    Frame,
    Grid,
    LeastSquares,
    MeshHierarchy,
    Pointwise,
    Problem,
    Uniform,
    error_norms,
    export_frame,
    make_formulation,
    make_problem,
    solve,
    solve_reference,
)
from fem_frames.problem.evaluation import NotFiniteError

pytestmark = pytest.mark.serial
SPECIAL = ("interval, LS", "square", "square, raised", "square, lognormal", "square, inclusion")
"""Coefficients in closed form and of other kinds, a lift without states."""
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def formulation_of(name, dtype=torch.float64):
    problem, arrays = case(name)
    return make_formulation(Frame.from_arrays(arrays, dtype), problem)


def test_frame_coefficients_are_not_taken_for_nodal_values():
    formulation = formulation_of("square")
    w = torch.zeros(2, formulation.frame.frame_size, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"frame coefficients, such as the w of `solve`, go to `synthesise`"):
        formulation.nodal_fields(w)


@pytest.mark.parametrize("name", CASES)
def test_solutions_and_losses_are_petscs(name):
    formulation = formulation_of(name)
    problem, arrays = case(name)
    y = samples(problem, 3)
    w = solve(formulation, y, 1e-13).w
    reference = solve_reference(problem, y.numpy(), CASES[name][1], arrays.formulation)
    for field, values in formulation.synthesise(w).items():
        np.testing.assert_allclose(values, reference.fields[field], rtol=0, atol=1e-9)
    np.testing.assert_allclose(formulation.loss(w, y), reference.loss, rtol=1e-9, atol=1e-12)
    assert formulation.residual(w, y).abs().max() < 1e-10


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [*SIX, *SPECIAL])
def test_residual_is_the_gradient_of_the_loss(name, dtype):
    """The gradient by autograd, the residual by explicit transposes, and the loss expanded about zero."""
    formulation = formulation_of(name, dtype)
    y = samples(formulation.problem, 3, dtype)
    w = torch.randn(3, formulation.frame.frame_size, generator=torch.Generator().manual_seed(0)).to(dtype)
    leaf = w.clone().requires_grad_()
    loss = formulation.loss(leaf, y)
    assert loss.dtype == formulation.wide
    (gradient,) = torch.autograd.grad(loss.sum(), leaf)
    residual, bound = formulation.residual(w, y).double(), 20 * torch.finfo(dtype).eps
    size = torch.linalg.norm(residual)
    assert torch.linalg.norm(gradient.double() / (2 * formulation.factor) - residual) <= bound * size
    product = formulation.stable(y)(w) - formulation.load(y)
    assert torch.linalg.norm(product.double() - residual) <= bound * size
    expanded = formulation.factor * (formulation.stable(y).quadratic(w) - 2 * (formulation.load(y) * w).sum(-1))
    expanded = expanded.double() + formulation.constant(y).double()
    torch.testing.assert_close(expanded, loss.detach().double(), rtol=bound, atol=bound)
    if dtype == torch.float64:
        nodal = formulation.nodal_loss(formulation.frame.H(w), y)
        torch.testing.assert_close(nodal, loss.detach(), rtol=1e-11, atol=1e-11)
        load = formulation.frame.H.T(formulation.nodal_load(y))
        torch.testing.assert_close(load, formulation.load(y), rtol=1e-11, atol=1e-13)


def test_energy_example_of_the_paper_by_hand():
    """(E) on the interval, J = 2: hats of height 2^(-j/2) in the paper's example, entries of D and C_y by hand.

    The paper prints 2^-j, which would not be normalised. With h = 1/4 and slopes of a hat of unit height ±2^j, the
    full H1 norm of a hat on level j is (2 · 2^j + 2/3 · 2^-j)^(1/2).
    """
    problem = Problem(
        Grid((1,)), ByRegion({0: 0, 1: 1}), Uniform((0.5, 0.5), (1.5, 1.5)), regions=lambda x: 1 * (x[:, 0] > 0.5)
    )
    arrays = export_frame(MeshHierarchy.from_problem(problem, 2), problem)
    formulation = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    s1, s2 = ((2 * 2.0**j + 2 / 3 * 2.0**-j) ** -0.5 for j in (1, 2))
    x = arrays.points[arrays.fields[0].free[1], 0]
    columns = {0.25: [1, -1, 0, 0], 0.5: [0, 1, -1, 0], 0.75: [0, 0, 1, -1]}
    by_hand = np.stack([2 * s1 * np.array([1, 1, -1, -1]), *(4 * s2 * np.array(columns[p]) for p in x)], axis=1)
    order = np.argsort(arrays.centres[:, 0])
    np.testing.assert_allclose(
        formulation.frame.D.to_dense().numpy()[order], 0.5 * by_hand, atol=1e-14
    )  # |T|^1/2 = 1/2
    C = formulation.C(torch.tensor([0.5, 1.5], dtype=torch.float64)).to_dense()[0].numpy()
    np.testing.assert_array_equal(C[order][:, order], np.diag([0.5, 0.5, 1.5, 1.5]))


def test_energy_error_converges_in_two_dimensions():
    def u(x):
        return np.sin(np.pi * x[..., 0]) * np.sin(np.pi * x[..., 1])

    def gradient(x):
        s, c = np.sin(np.pi * x), np.pi * np.cos(np.pi * x)
        return np.stack([c[..., 0] * s[..., 1], s[..., 0] * c[..., 1]], axis=-1)

    problem = Problem(
        Grid((1, 1)),
        Affine(1.0, lambda x: np.zeros((*x.shape[:-1], 1))),
        Uniform((0.0,), (1.0,)),
        source=lambda x, y: (
            2 * np.pi**2 * torch.sin(np.pi * x[..., 0]) * torch.sin(np.pi * x[..., 1]) + 0 * y[..., 0]
            if isinstance(x, torch.Tensor)
            else 2 * np.pi**2 * u(x) + 0 * y[..., 0]
        ),
        quadrature_degree=4,
    )
    arrays = export_frame(MeshHierarchy.from_problem(problem, 5), problem)
    errors = []
    for level in (3, 4, 5):
        coarse = arrays.coarsened(level)
        formulation = make_formulation(Frame.from_arrays(coarse, "float64"), problem)
        values = formulation.synthesise(solve(formulation, torch.zeros(1, 1, dtype=torch.float64)).w)["u"][0]
        errors.append(error_norms(coarse.points, coarse.levels[-1].cells, values.numpy(), u, gradient))
    rates = -np.polyfit(range(3), np.log2(errors), 1)[0]
    np.testing.assert_allclose(rates, [1, 2], atol=0.06)


def test_least_squares_floor_of_the_paper():
    """The loss of the discrete minimiser at J = 10 is 1.05e-7 in the mean: no honest result is lower."""
    problem = make_problem("quarters")
    arrays = export_frame(MeshHierarchy.from_problem(problem, 10), problem, "least-squares")
    formulation = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    y = torch.as_tensor(problem.parameters.sample(200, 0))
    assert float(formulation.loss(solve(formulation, y).w, y).mean()) == pytest.approx(1.05e-7, rel=0.05)
    low = make_formulation(Frame.from_arrays(arrays, "float32"), problem)
    rounded = solve(formulation, y).w.float()
    assert float(low.loss(rounded, y.float()).mean()) == pytest.approx(1.05e-7, rel=0.05)
    assert float(low.nodal_loss(low.frame.H(rounded), y.float()).abs().mean()) > 1e-5


@pytest.mark.parametrize("kind", ["by region", "affine", "pointwise"])
@pytest.mark.parametrize("formulation", ["energy", "least-squares"])
def test_one_coefficient_written_three_ways(kind, formulation):
    """Constant on cells in closed form, and the same values at quadrature points."""
    coefficients = {
        "by region": ByRegion({0: 0, 1: 1}),
        "affine": Affine(0.0, lambda x: np.stack([x[..., 0] < 0.5, x[..., 0] >= 0.5], axis=-1).astype(float)),
        "pointwise": Pointwise(lambda x, y: y[..., 0] * (x[..., 0] < 0.5) + y[..., 1] * (x[..., 0] >= 0.5)),
    }
    problem = Problem(
        Grid((1,)), coefficients[kind], Uniform((0.5, 0.5), (1.5, 1.5)), regions=lambda x: 1 * (x[:, 0] > 0.5)
    )
    arrays = export_frame(MeshHierarchy.from_problem(problem, 4), problem, formulation)
    made = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    y = torch.tensor([[0.5, 1.25], [1.0, 1.0]], dtype=torch.float64)
    assert made.coefficient(y).shape[1] == (1 if kind == "by region" else len(arrays.rule_weights))
    w = torch.linspace(-1, 1, 2 * arrays.frame_size, dtype=torch.float64).reshape(2, -1)
    by_region = Problem(
        Grid((1,)), coefficients["by region"], problem.parameters, regions=lambda x: 1 * (x[:, 0] > 0.5)
    )
    same = make_formulation(Frame.from_arrays(arrays, "float64"), by_region)
    torch.testing.assert_close(made.loss(w, y), same.loss(w, y), rtol=1e-12, atol=1e-12)


def test_gradients_with_respect_to_the_parameters():
    """y may need a gradient: sensitivities of the loss, here against differences."""
    formulation = formulation_of("square, lognormal")
    y = samples(formulation.problem, 2).requires_grad_()
    w = torch.randn(2, formulation.frame.frame_size, dtype=torch.float64)
    torch.autograd.gradcheck(lambda y: formulation.loss(w, y), y, fast_mode=True)


def test_gauss_newton_products_through_torch_func():
    """jvp and vjp through the loss, as natural gradients need them."""
    formulation = formulation_of("interval, LS")
    y = samples(formulation.problem, 2)
    w, v = torch.randn(2, 2, formulation.frame.frame_size, dtype=torch.float64)
    gradient = torch.func.grad(lambda w: formulation.loss(w, y).sum())
    _, product = torch.func.jvp(gradient, (w,), (v,))
    torch.testing.assert_close(product, 2 * formulation.stable(y)(v), rtol=1e-12, atol=1e-12)


# ---- bad input


def test_coefficients_of_the_wrong_length_name_the_cause():
    formulation = formulation_of("square")
    y = samples(formulation.problem, 2)
    with pytest.raises(ValueError, match=r"takes vectors of length 59, but x has shape \(2, 58\); .*level_sizes"):
        formulation.loss(torch.zeros(2, 58, dtype=torch.float64), y)
    with pytest.raises(ValueError, match=r"w has shape \(3, 59\) for 2 samples"):
        formulation.loss(torch.zeros(3, 59, dtype=torch.float64), y)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (
            torch.ones(2, 3, dtype=torch.float64),
            r"y has shape \(2, 3\), but checkerboard has p = 4 .*another problem's",
        ),
        (torch.ones(2, 4), "y is in torch.float32, the frame in torch.float64"),
        (torch.ones(2, 4, dtype=torch.float64, device="meta"), "y is on meta, the frame on cpu"),
        (np.ones((2, 4)), "y must be a torch tensor, not ndarray"),
        (torch.ones(0, 4, dtype=torch.float64), "y is empty"),
        (torch.tensor([[1.0] * 4, [1, 1, torch.nan, 1]], dtype=torch.float64), "y of sample 1 is not finite"),
    ],
)
def test_parameters_that_do_not_fit(y, message):
    formulation = formulation_of("square")
    with pytest.raises(ValueError, match=message):
        formulation.C(y)


@pytest.mark.parametrize("value", [0.0, -0.5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
def test_coefficient_that_is_not_positive_names_sample_and_cell(value, dtype):
    formulation = formulation_of("square", dtype)
    y = torch.ones(3, 4, dtype=dtype)
    y[1, 2] = value
    with pytest.raises(ValueError, match=r"but it is -?0\S* for y = \(1, 1, -?0\S*, 1\) in cell \d+ at x = \("):
        formulation.loss(torch.zeros(3, 59, dtype=dtype), y)


def test_coefficient_that_is_not_finite():
    formulation = formulation_of("square, lognormal", torch.float16)
    with pytest.raises(ValueError, match="positive and finite, but it is inf for y"):
        formulation.C(torch.full((1, 8), 6e4, dtype=torch.float16))


def test_values_that_are_not_finite():
    formulation = formulation_of("square", torch.float16)
    w = torch.zeros(2, 59, dtype=torch.float16)
    w[1, 5] = torch.inf
    with pytest.raises(NotFiniteError, match=r"coefficients of sample 1 are not finite.*torch\.float16"):
        formulation.loss(w, samples(formulation.problem, 2, torch.float16))
    problem = Problem(
        Grid((1, 1)),
        Pointwise(lambda x, y: 1 + 0 * x[..., 0] * y[..., 0]),
        Uniform((0.0,), (1.0,)),
        source=lambda x, y: 1 / (1 - y[..., 0]) + 0 * x[..., 0],
    )
    arrays = export_frame(MeshHierarchy.from_problem(problem, 2), problem)
    made = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    with pytest.raises(NotFiniteError, match=r"f is inf for y = \(1\) at x"):
        made.load(torch.ones(1, 1, dtype=torch.float64))


def test_formulation_that_does_not_fit_the_frame():
    problem, arrays = case("interval, LS")
    with pytest.raises(ValueError, match="exported for 'least-squares', but this is 'energy': export it again"):
        Energy(Frame.from_arrays(arrays), problem)
    with pytest.raises(ValueError, match="exported for 'energy', but this is 'least-squares'"):
        LeastSquares(Frame.from_arrays(case("interval")[1]), problem)


def _others():
    board = make_problem("checkerboard")
    return {
        "its options are {'blocks': 4}": make_problem("checkerboard", blocks=4),
        "2-dimensional, the problem 1-dimensional": make_problem("quarters"),
        r"the problem in \[\[-1": make_problem("lshape"),
        "its regions differ": make_problem("cookies"),
        "its quadrature_degree is 4, not 2": make_problem("inclusion"),
        "its Dirichlet data differ": replace(board, dirichlet_value=5.0),
        "cells carry the region tags": replace(board, coefficient=ByRegion({7: 0}), parameters=Uniform((0.5,), (1.5,))),
        "a Frame and a Problem are expected, not Frame and str": "checkerboard",
    }


@pytest.mark.parametrize("message", _others())
def test_problem_that_does_not_fit_the_frame(message):
    with pytest.raises(ValueError, match=message):
        make_formulation(Frame.from_arrays(case("square")[1]), _others()[message])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            dict(coefficient=ByRegion({}, fixed=dict.fromkeys(range(4), 1e5))),
            "coefficient a has values up to 1e.05, too large",
        ),
        (
            dict(coefficient=ByRegion({}, fixed=dict.fromkeys(range(4), 1e-9))),
            "values down to 1e-09, which are zero in torch",
        ),
        (dict(source=1e7), "the load has values up to .*too large for torch.float16: scale the problem"),
        (dict(source=lambda x, y: 1e7 + 0 * x[..., 0] * y[..., 0]), "the load has values up to .*too large"),
    ],
)
def test_data_that_half_precision_cannot_hold(change, message):
    problem, arrays = case("square")

    def evaluate():
        made = make_formulation(Frame.from_arrays(arrays, "float16"), replace(problem, **change))
        made.loss(torch.zeros(1, 59, dtype=torch.float16), torch.ones(1, 4, dtype=torch.float16))

    with pytest.raises(ValueError, match=message):
        evaluate()


def test_a_function_that_only_numpy_evaluates():
    problem, arrays = case("square")
    changed = replace(problem, source=lambda x, y: np.exp(x[..., 0]).astype(float) + 0 * y[..., 0])
    made = make_formulation(Frame.from_arrays(arrays, "float64"), changed)
    with pytest.raises(ValueError, match=r"source fails in .*, line \d+, in <lambda>: Attr.*namespace"):
        made.load(samples(problem, 2))


def test_a_source_that_does_not_depend_on_x():
    problem, arrays = case("square")
    made = make_formulation(
        Frame.from_arrays(arrays, "float64"), replace(problem, source=lambda x, y: 1 + 0 * y[..., 0])
    )
    constant, y = formulation_of("square"), samples(problem, 2)
    torch.testing.assert_close(made.load(y), constant.load(y), rtol=1e-12, atol=1e-14)


def test_one_sample_without_a_batch():
    for name in ("square, mixed", "interval, LS"):
        formulation = formulation_of(name)
        y, w = samples(formulation.problem, 1)[0], torch.ones(formulation.frame.frame_size, dtype=torch.float64)
        assert formulation.residual(w, y).shape == w.shape
        assert formulation.stable(y)(w).shape == w.shape
        assert formulation.loss(w, y).shape == (1,)


def test_vmap_over_samples():
    formulation = formulation_of("square, lognormal")
    y, w = samples(formulation.problem, 3), torch.randn(3, formulation.frame.frame_size, dtype=torch.float64)
    found = torch.vmap(lambda w, y: formulation.loss(w, y)[0])(w, y)
    torch.testing.assert_close(found, formulation.loss(w, y), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["disks", "spot"])
@pytest.mark.parametrize("degree", [1, 2])
def test_functions_are_evaluated_batch_last_and_solutions_are_petscs(name, degree):
    problem = replace(make_problem(name), quadrature_degree=degree)
    arrays = export_frame(MeshHierarchy.from_problem(problem, 3), problem)
    formulation = make_formulation(Frame.from_arrays(arrays, torch.float64), problem)
    y = samples(problem, 3)
    values = formulation.coefficient(y) if name == "disks" else formulation.source(y)
    assert values.shape == (len(arrays.volumes), 1 if degree == 1 else 3, 3)
    assert values.is_contiguous()
    reference = solve_reference(problem, y.numpy(), 3)
    u = formulation.synthesise(solve(formulation, y, 1e-13).w)["u"]
    np.testing.assert_allclose(u, reference.u, rtol=0, atol=1e-9)


def test_functions_that_rely_on_the_axes_of_x_and_y_keep_them():
    def a(x, y):
        assert x.ndim == 3
        return 1 + y[:, :, :, 0] * x[:, :, 0]

    problem = Problem(Grid((1, 1)), Pointwise(a), Uniform((0.0,), (1.0,)))
    arrays = export_frame(MeshHierarchy.from_problem(problem, 2), problem)
    formulation = make_formulation(Frame.from_arrays(arrays, torch.float64), problem)
    y = samples(problem, 3)
    plain = replace(problem, coefficient=Pointwise(lambda x, y: 1 + y[..., 0] * x[..., 0]))
    other = make_formulation(Frame.from_arrays(arrays, torch.float64), plain)
    torch.testing.assert_close(formulation.coefficient(y), other.coefficient(y))


def test_one_quadrature_point_has_the_load_of_the_general_route():
    problem = make_problem("spot", blocks=2)
    arrays = export_frame(MeshHierarchy.from_problem(problem, 4), problem)
    made = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    y = torch.as_tensor(problem.parameters.sample(3, 1))
    local = torch.einsum("kql,kqb->klb", made._hats, made.source(y))
    expected = made.localisation.T(local.flatten(0, 1).T)
    torch.testing.assert_close(made.nodal_load(y), expected, rtol=1e-13, atol=1e-16)
