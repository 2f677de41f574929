"""Functions of x and y in compiled code: the values of torch, or none."""

import math

import numpy as np
import pytest
import torch
from frames import samples

from fem_frames import Frame, MeshHierarchy, Multigrid, Problem, Uniform, export_frame, make_formulation, make_problem
from fem_frames.mesh.coarse import Grid
from fem_frames.problem import compiled_functions, compiled_values
from fem_frames.problem.coefficients import Pointwise, namespace
from fem_frames.problem.compiled_functions import compiled_function
from fem_frames.problem.evaluation import batch_last
from fem_frames.problem.recording import recorded

pytestmark = pytest.mark.serial

FUNCTIONS = {
    "arithmetic": lambda x, y: 1.0 + 2 * x[..., 0] * y[..., 0] - x[..., 1] / (3 - y[..., 1]) - (-y[..., 2]),
    "powers": lambda x, y: (
        x[..., 0] ** 2 + (1 + y[..., 0]) ** 3 + (1 + x[..., 1]) ** y[..., 1] + (2 + y[..., 2]) ** -1.5
    ),
    "root of a sum": lambda x, y: (((x - y[..., :2]) ** 2).sum(-1) + 1e-3).sqrt(),
    "kept axis": lambda x, y: ((x * y[..., 1:]).sum(-1, keepdim=True) * y[..., :1])[..., 0],
    "functions": lambda x, y: (
        torch.exp(x[..., 0] * y[..., 0]) + torch.sin(x[..., 1]) * torch.cos(y[..., 1]) + torch.log(2 + y[..., 2])
    ),
    "more functions": lambda x, y: (
        torch.tanh(x[..., 0] - y[..., 0]) + torch.atan2(x[..., 1], 1 + y[..., 1]) + torch.erf(y[..., 2] * x[..., 0])
    ),
    "sigmoid": lambda x, y: (
        torch.sigmoid(20 * (x[..., 0] - y[..., 0])) + torch.rsqrt(1 + y[..., 1]) + abs(x[..., 1] - y[..., 2])
    ),
    "inside": lambda x, y: 1.0 + 9.0 * ((x[..., 0] - y[..., 0]) ** 2 + (x[..., 1] - y[..., 1]) ** 2 < y[..., 2] ** 2),
    "logic": lambda x, y: torch.where(
        (x[..., 0] > y[..., 0]) & ~(x[..., 1] > y[..., 1]) | (y[..., 2] >= 0.9), 1.0, x[..., 0] * y[..., 0]
    ),
    "clipped": lambda x, y: (
        torch.exp((100 * (x[..., 0] - y[..., 0])).clip(-80.0, 10.0))
        + torch.clamp(x[..., 1], y[..., 1], y[..., 1] + 0.1)
    ),
    "least": lambda x, y: torch.minimum(x[..., 0], y[..., 0]) + torch.maximum(x[..., 1], y[..., 1]),
    "stacked": lambda x, y: torch.stack([x[..., 0] * y[..., 0], y[..., 1] + 0 * x[..., 1]], -1).sum(-1),
    "constants": lambda x, y: (torch.tensor([2.0, 3.0]).to(x) * x).sum(-1) * y[..., 0] + float(np.pi),
    "loop": lambda x, y: sum(torch.cos((k + 1) * math.pi * x[..., 0]) * y[..., k] / (k + 1) for k in range(3)),
}
TORCH = {
    "Python's choice": lambda x, y: x[..., 0] * y[..., 0] if bool((y > 0).all()) else x[..., 0] + y[..., 1],
    "random": lambda x, y: x[..., 0] * y[..., 0] + 0 * torch.rand_like(y[..., 1]),
    "all points": lambda x, y: x[..., 0] * y[..., 0] / x.max(),
    "all samples": lambda x, y: x[..., 0] * y[..., 0] / y.mean(),
    "whole numbers": lambda x, y: (10 * x[..., 0]).long() * y[..., 0],
    "x alone": lambda x, y: x[..., 0],
    "y alone": lambda x, y: y[..., 0],
    "a number": lambda x, y: 3.0,
    "table": lambda x, y: x[..., 0] * y[..., torch.tensor([0, 2])].sum(-1),
    "an error": lambda x, y: x[..., 5] * y[..., 0],
    "endless": lambda x, y: sum(x[..., 0] * y[..., 0] + k for k in range(5000)),
}


def points_and_samples(dtype, n, B):
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(*shape, generator=generator, dtype=torch.float64).to(dtype) for shape in ((n, 3, 2), (B, 3))]


def expected(function, x, y):
    return batch_last(function, x, y).permute(1, 2, 0).reshape(-1, len(y)).to(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled_functions_have_the_values_of_torch(name, dtype):
    function = FUNCTIONS[name]
    for n, B in ((150, 1), (150, 7), (41, 64), (20, 300)):
        x, y = points_and_samples(dtype, n, B)
        compiled = compiled_function(function, x, 3)
        assert compiled is not None
        wide = expected(function, x.double(), y.double())
        rounding = 200 * torch.finfo(dtype).eps * wide.abs().max()
        torch.testing.assert_close(compiled(y).double(), wide, rtol=0, atol=float(rounding))


@pytest.mark.parametrize("name", TORCH)
def test_functions_that_do_more_than_arithmetic_are_left_to_torch(name):
    assert recorded(TORCH[name], 2, 3) is None


def test_threads_share_the_points(monkeypatch):
    function = FUNCTIONS["functions"]
    x, y = points_and_samples(torch.float32, 3000, 50)
    whole = compiled_function(function, x, 3)(y)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert torch.equal(compiled_function(function, x, 3)(y), whole)
    torch.testing.assert_close(compiled_values.exponentials(whole.clone()), whole.exp(), rtol=1e-6, atol=0)


def test_what_is_not_a_number_stays_so():
    x, y = points_and_samples(torch.float32, 9, 40)
    y[3], y[5] = math.nan, math.inf
    for name in ("clipped", "least", "functions", "logic"):
        found = compiled_function(FUNCTIONS[name], x, 3)(y)
        wanted = expected(FUNCTIONS[name], x, y)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extremes_are_those_of_torch(dtype):
    values = torch.randn(5000, dtype=dtype)
    assert compiled_values.extremes(values) == (float(values.min()), float(values.max()))
    for bad in (math.nan, math.inf, -math.inf):
        for place in (0, 17, 4999):
            wrong = values.clone()
            wrong[place] = bad
            low, high = compiled_values.extremes(wrong)
            assert math.isnan(low) if math.isnan(bad) else bad in (low, high)


@pytest.mark.parametrize("setting", ["environment", "library"])
def test_without_a_compiler_torch_evaluates(setting, monkeypatch):
    if setting == "environment":
        monkeypatch.setenv("FEM_FRAMES_KERNELS", "torch")
    else:
        monkeypatch.setattr(compiled_functions, "LIBRARIES", ("-lthere-is-no-such-library",))
    assert compiled_function(FUNCTIONS["arithmetic"], torch.rand(9, 3, 2), 3) is None


def formulation(problem, dtype, levels=3):
    return make_formulation(
        Frame.from_arrays(export_frame(MeshHierarchy.from_problem(problem, levels), problem), dtype), problem
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", ["disks", "spot", "waves"])
def test_problems_have_the_coefficients_and_loads_of_torch(name, dtype, monkeypatch):
    problem = make_problem(name)
    made = formulation(problem, dtype)
    y = samples(problem, 20, made.frame.dtype)
    a, b = made.coefficient(y), made.nodal_load(y)
    monkeypatch.setenv("FEM_FRAMES_KERNELS", "torch")
    plain = formulation(problem, dtype)
    eps = torch.finfo(made.wide).eps
    torch.testing.assert_close(a, plain.coefficient(y), rtol=1e3 * eps, atol=1e3 * eps)
    torch.testing.assert_close(
        b, plain.nodal_load(y), rtol=4 * torch.finfo(b.dtype).eps, atol=1e3 * eps * float(b.abs().max())
    )


def own(function):
    return Problem(mesh=Grid((1, 1)), coefficient=Pointwise(function), parameters=Uniform((0.5,) * 2, (1.5,) * 2))


@pytest.mark.filterwarnings("ignore:invalid value encountered in sqrt")
def test_bad_values_of_compiled_functions_are_reported_with_their_place():
    made = formulation(own(lambda x, y: y[..., 0] - 2 * x[..., 0] * y[..., 1]), "float32")
    with pytest.raises(ValueError, match="a_y must be positive and finite, but it is -"):
        made.coefficient(samples(made.problem, 9, torch.float32))
    made = formulation(own(lambda x, y: namespace(y).sqrt(y[..., 0] - 1 + 0 * x[..., 0])), "float32")
    with pytest.raises(ValueError, match="a_y must be positive and finite, but it is nan"):
        made.coefficient(samples(made.problem, 9, torch.float32))


def test_gradients_and_maps_go_through_torch():
    made = formulation(make_problem("disks"), "float64")
    y = samples(made.problem, 5, torch.float64)
    value = made.coefficient(y)
    watched = y.clone().requires_grad_()
    again = made.coefficient(watched)
    assert again.requires_grad
    torch.testing.assert_close(value, again.detach(), rtol=1e-12, atol=1e-12)
    step = 1e-6 * torch.ones_like(y)
    (gradient,) = torch.autograd.grad(again.sum(), watched)
    change = (made.coefficient(y + step) - made.coefficient(y - step)).sum((0, 1)) / 2e-6
    torch.testing.assert_close(gradient.sum(1), change, rtol=1e-6, atol=1e-6)


def test_multigrid_of_an_own_function_agrees_with_torch(monkeypatch):
    problem = own(lambda x, y: 1.0 + y[..., 0] * namespace(y).exp(-x[..., 1] * y[..., 1]))
    made = formulation(problem, "float64")
    y = samples(problem, 12, torch.float64)
    found = Multigrid(made).answer(y, steps=3)
    monkeypatch.setenv("FEM_FRAMES_KERNELS", "torch")
    torch.testing.assert_close(
        found, Multigrid(formulation(problem, "float64")).answer(y, steps=3), rtol=1e-9, atol=1e-12
    )
