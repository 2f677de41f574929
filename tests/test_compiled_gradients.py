"""Derivatives in y of compiled functions: those of torch, in one pass of compiled code, or torch's own."""

import math

import pytest
import torch
from frames import case
from test_compiled_functions import FUNCTIONS, points_and_samples
from walls import samples

from fem_frames import (
    Frame,
    Grid,
    MeshHierarchy,
    Pointwise,
    Problem,
    Uniform,
    export_frame,
    make_formulation,
    namespace,
)
from fem_frames.problem import compiled_gradients
from fem_frames.problem.compiled_functions import compiled_function
from fem_frames.problem.compiled_gradients import DifferentiableFunction
from fem_frames.problem.evaluation import batch_last

pytestmark = pytest.mark.serial
MORE = {
    "one derivative": lambda x, y: torch.exp(x[..., 0] * x[..., 1]) + x[..., 1] * y[..., 1],
    "of y alone": lambda x, y: x[..., 0] + y[..., 0] ** 3 + torch.sin(y[..., 2]),
    "of x alone": lambda x, y: y[..., 0] * torch.cos(x[..., 0]) + y[..., 2] * x[..., 1],
    "constant": lambda x, y: x[..., 0] + 3 * y[..., 0],
}
ALL = FUNCTIONS | MORE


def torch_gradient(function, x, y, weights):
    free = y.clone().requires_grad_()
    values = batch_last(function, x, free).permute(1, 2, 0).reshape(-1, len(y)).to(x)
    if not values.requires_grad:
        return torch.zeros_like(y)
    found = torch.autograd.grad(values, free, weights, allow_unused=True)[0]
    return torch.zeros_like(y) if found is None else found


def differentiable(function, x):
    compiled = compiled_function(function, x, 3)
    assert compiled is not None
    return DifferentiableFunction(compiled)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ALL)
def test_compiled_gradients_are_those_of_torch(name, dtype):
    for n, B in ((900, 1), (150, 7), (41, 64), (20, 300)):
        x, y = points_and_samples(dtype, n, B)
        weights = torch.randn(3 * n, B, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(dtype)
        free = y.clone().requires_grad_()
        values = differentiable(ALL[name], x)(free)
        (found,) = torch.autograd.grad(values, free, weights)
        wanted = torch_gradient(ALL[name], x.double(), y.double(), weights.double())
        size = torch_gradient(ALL[name], x.double(), y.double(), weights.double().abs()).abs().amax()
        rounding = 500 * torch.finfo(dtype).eps * max(1.0, float(size))
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=rounding)


def test_the_gradient_runs_in_compiled_code_alone(monkeypatch):
    """Neither the user's function nor torch's operations take part once the function is known."""
    calls = []

    def a(x, y):
        calls.append(len(x))
        return 1 + namespace(y).exp(x[..., 0] * y[..., 0]) + y[..., 1] * x[..., 1]

    problem = Problem(Grid((1, 1)), Pointwise(a), Uniform((0.5, 0.5), (1.5, 1.5)))
    arrays = export_frame(MeshHierarchy.from_problem(problem, 3), problem)
    made = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    y = samples(problem, 20).requires_grad_()
    weights = torch.randn(made.coefficient(y).shape, dtype=torch.float64)
    (expected,) = torch.autograd.grad((made.coefficient(y) * weights).sum(), y)
    calls.clear()
    torched = []
    real = DifferentiableFunction._in_torch
    monkeypatch.setattr(DifferentiableFunction, "_in_torch", lambda *given: (torched.append(1), real(*given))[1])
    (found,) = torch.autograd.grad((made.coefficient(y) * weights).sum(), y)
    assert torch.equal(found, expected)
    assert not calls
    assert not torched
    wanted = torch_gradient(a, made._points, y.detach(), weights.flatten(0, 1))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_second_derivatives_and_transformations_are_left_to_torch():
    function = FUNCTIONS["functions"]
    x, y = points_and_samples(torch.float64, 30, 12)
    made, weights = differentiable(function, x), torch.linspace(1, 2, 90, dtype=torch.float64)[:, None]

    def compiled(at):
        return (weights * made(at) ** 2).sum()

    def plain(at):
        return (weights * batch_last(function, x, at).permute(1, 2, 0).reshape(90, -1) ** 2).sum()

    found, wanted = (torch.autograd.functional.hessian(goal, y) for goal in (compiled, plain))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    free = y.clone().requires_grad_()
    each = [made(free)[:3].sum(1), batch_last(function, x, free).permute(1, 2, 0).reshape(90, -1)[:3].sum(1)]
    rows = torch.eye(3, dtype=torch.float64)
    batched = [torch.autograd.grad(values, free, rows, is_grads_batched=True)[0] for values in each]
    torch.testing.assert_close(*batched, rtol=1e-10, atol=1e-10)
    torch.autograd.gradcheck(made, (y[:2].clone().requires_grad_(),))
    torch.autograd.gradgradcheck(made, (y[:2].clone().requires_grad_(),))


def test_gradients_that_a_function_stops_are_stopped():
    def a(x, y):
        first = y[..., 0].detach() if isinstance(y, torch.Tensor) else y[..., 0]
        return 1 + first**2 * x[..., 0] + y[..., 1] * x[..., 1]

    problem = Problem(Grid((1, 1)), Pointwise(a), Uniform((0.5, 0.5), (1.5, 1.5)))
    arrays = export_frame(MeshHierarchy.from_problem(problem, 2), problem)
    made = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    y = samples(problem, 10).requires_grad_()
    (found,) = torch.autograd.grad(made.coefficient(y).sum(), y)
    assert (found[:, 0] == 0).all()
    assert (found[:, 1] > 0).all()


def test_many_parameters_have_gradients():
    def waves(x, y):
        return torch.exp(sum(y[..., k] * torch.cos((k + 1) * x[..., 0]) / (k + 1) for k in range(64)))

    generator = torch.Generator().manual_seed(1)
    x, y = (torch.rand(*shape, generator=generator, dtype=torch.float64) for shape in ((50, 3, 2), (40, 64)))
    weights = torch.rand(150, 40, generator=generator, dtype=torch.float64)
    compiled = compiled_function(waves, x, 64)
    assert compiled_gradients.compiled_slopes(compiled) is not None
    free = y.clone().requires_grad_()
    (found,) = torch.autograd.grad(DifferentiableFunction(compiled)(free), free, weights)
    torch.testing.assert_close(found, torch_gradient(waves, x, y, weights), rtol=1e-11, atol=1e-11)


def test_gradients_with_too_many_operations_are_left_to_torch():
    def long(x, y):
        sin = namespace(y).sin
        return 1 + sum(sin(y[..., k % 3] * x[..., 0] + k) ** 2 * y[..., 2] ** 4 for k in range(500))

    x, y = points_and_samples(torch.float64, 5, 4)
    made = differentiable(long, x)
    assert not made.is_compiled
    weights = torch.rand(15, 4, dtype=torch.float64)
    torch.testing.assert_close(made.slopes(y, weights), torch_gradient(long, x, y, weights))
    problem = Problem(Grid((1, 1)), Pointwise(long), Uniform((0.5,) * 3, (1.5,) * 3))
    arrays = export_frame(MeshHierarchy.from_problem(problem, 1), problem)
    data = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    free = samples(problem, 3).requires_grad_()
    (found,) = torch.autograd.grad(data.coefficient(free).sum(), free)
    whole = torch.ones(data._points[..., 0].numel(), 3, dtype=torch.float64)
    torch.testing.assert_close(found, torch_gradient(long, data._points, free.detach(), whole))


def test_threads_share_the_points(monkeypatch):
    x, y = points_and_samples(torch.float32, 3000, 50)
    weights = torch.randn(9000, 50, generator=torch.Generator().manual_seed(2))
    slopes = differentiable(FUNCTIONS["functions"], x)._slopes
    whole = slopes(y, weights)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    torch.testing.assert_close(slopes(y, weights), whole, rtol=1e-4, atol=1e-3)


def test_what_is_not_a_number_stays_so():
    x, y = points_and_samples(torch.float64, 9, 40)
    y[3], y[5] = math.nan, math.inf
    weights = torch.ones(27, 40, dtype=torch.float64)
    for name in ("functions", "arithmetic"):
        found = differentiable(FUNCTIONS[name], x).slopes(y, weights)
        assert torch.equal(torch.isnan(found), torch.isnan(torch_gradient(FUNCTIONS[name], x, y, weights)))


@pytest.mark.parametrize("name", ["square", "square, mixed", "square, lognormal", "interval, LS"])
def test_products_with_the_residual_are_products(name):
    problem, arrays = case(name)
    made = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    y = samples(problem, 4)
    generator = torch.Generator().manual_seed(3)
    w, z = (torch.randn(4, made.frame.frame_size, generator=generator, dtype=torch.float64) for _ in range(2))
    expected = (made.residual(w, y) * z).sum(1)
    torch.testing.assert_close(made.residual_product(w, z, y), expected, rtol=1e-12, atol=1e-12)
