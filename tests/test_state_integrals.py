"""Integrals of densities: compiled code and torch agree, and both agree with autograd."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from fem_frames import Grid, MeshHierarchy, Problem, Uniform, export_frame
from fem_frames.formulations.compiled_sums import CompiledSum
from fem_frames.formulations.place_values import CellwiseValues, LoadIntegral
from fem_frames.formulations.state_integrals import BLOCKS, PRODUCT, SLOPE, VALUE, StateIntegral
from fem_frames.frame.elements import element_class
from fem_frames.problem.coefficients import ByRegion
from fem_frames.problem.densities import CELLS, ENERGY, FACETS, RESIDUAL, Density, Integral, Part
from fem_frames.problem.programs import BINARY, CLIPPED, UNARY, ProgramBuilder

pytestmark = pytest.mark.serial

OPERATIONS = sorted(UNARY | BINARY | CLIPPED | {"where"})
PARAMETERS = 3
ELEMENTS = {"P1": ("P1", "P1"), "values": ("P1 with values",), "all": ("P1 with values", "P1", "RT0")}
CASES = [  # dimension, elements, what is integrated over, groups, first operation
    (1, "all", CELLS, (), 0),
    (2, "P1", CELLS, (1, 0), 9),
    (2, "values", FACETS, (), 18),
    (2, "all", CELLS, (1,), 27),
    (2, "all", FACETS, (5, 6), 33),
    (3, "values", CELLS, (), 38),
    (3, "P1", FACETS, (5,), 0),
]
POSITIVE = {"sqrt", "rsqrt", "log", "log2", "log10", "reciprocal", "div", "pow", "atan2"}
SMALL = {"asin", "acos", "tan", "log1p"}


@cache
def arrays(d):
    """Two groups of cells and two of facets, where corner cells have several facets."""
    problem = Problem(
        mesh=Grid((2,) + (1,) * (d - 1)),
        coefficient=ByRegion({0: 0, 1: 1}),
        parameters=Uniform((0.5,) * PARAMETERS, (1.5,) * PARAMETERS),
        regions=lambda x: (x[:, 0] > 0.5).astype(int),
        quadrature_degree=3,
    )
    made = export_frame(MeshHierarchy.from_problem(problem, {1: 4, 2: 3, 3: 1}[d]), problem)
    centres = made.points[made.groups.facets].mean(axis=1)
    return replace(made, groups=replace(made.groups, tags=np.where(centres[:, 0] > 0.4, 5, 6)))


def random_program(inputs, names, tests=()):
    """These operations on random inputs and earlier values, added up; linear in `tests` if there are some."""
    random, b, total = np.random.default_rng(len(inputs)), ProgramBuilder(), 0.0
    values = list(inputs)
    for name in names:

        def argument(name=name):
            value = b.add("tanh", values[random.integers(len(values))])
            if name in POSITIVE:
                return b.add("add", 1.5, value)
            return b.add("mul", 0.4, value) if name in SMALL else value

        first, second, third = argument(), argument(), argument()
        if name in UNARY:
            made = b.add(name, first)
        elif name == "where":
            made = b.add(name, b.add("lt", first, second), third, second)
        else:
            made = b.add(name, first, 0.1 if name in CLIPPED else second)
        values.append(made)
        other = tests[random.integers(len(tests))] if tests else argument("")
        total = b.add("add", total, b.add("mul", made, other))
    # Parts that vary with samples alone, with the place alone, on cells alone, and with nothing.
    x, y, s = inputs[0], next(i for i in inputs if i[0] == "y"), inputs[-1]
    for part in (x, y, b.add("mul", y, y), b.add("sin", x), b.add("mul", s, y), b.add("mul", s, x), 0.7):
        total = b.add("add", total, b.add("mul", part, tests[0]) if tests else part)
    return b.program(total)


def density(case, kind=ENERGY, count=9):
    d, elements, over, groups, first = case
    parts, start = [], 0
    for k, name in enumerate(ELEMENTS[elements]):
        parts.append(Part(f"u{k}", name, start, element_class(name)(d).state_size))
        start += parts[-1].size
    sizes = {"x": d, "h": 3, **({"n": d} if over == FACETS else {}), "y": PARAMETERS, "s": start}
    inputs = [(letter, i) for letter, size in sizes.items() for i in range(size)]
    tests = [("v", i) for i in range(start)] if kind == RESIDUAL else ()
    names = (OPERATIONS * 2)[first : first + count]
    integral = Integral(over, groups, random_program(inputs, names, tests))
    return Density(kind, d, PARAMETERS, tuple(parts), (integral,))


def as_data(dtype):
    return lambda a: torch.as_tensor(np.array(a)).to(dtype)


def both(case, dtype, monkeypatch, kind=ENERGY, count=9):
    """The same integral in compiled code and in torch."""
    made = [StateIntegral(arrays(case[0]), density(case, kind, count), 0, as_data(dtype)) for _ in range(2)]
    evaluations = made[1]._evaluations
    monkeypatch.setattr(made[1], "_evaluations", lambda what, is_fast: evaluations(what, False))
    return made


def given(integral, B, dtype, count=1):
    """States (K, m, B) and y (B, p)."""
    generator = torch.Generator().manual_seed(B)
    K, m = len(arrays(integral._density.dimension).volumes), integral._density.state_size
    y = 0.5 + torch.rand(B, PARAMETERS, generator=generator, dtype=torch.float64)
    states = 0.2 * torch.randn(count, K, m, B, generator=generator, dtype=torch.float64)
    return *(s.to(dtype) for s in states), y.to(dtype)


def agree(found, expected, factor=100):
    """Equal up to rounding, relative to the largest value."""
    size = float(expected.double().abs().amax())
    rounding = factor * torch.finfo(found.dtype).eps * size
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=rounding)


def results(integral, s, z, y):
    """Value, value beside the slope, slope, product with z, and blocks."""
    K, m, B = s.shape
    slope, product, blocks = torch.zeros_like(s), torch.zeros_like(s), s.new_zeros(K, m, m, B)
    value, beside = integral.value(s, y), integral.add_slope(s, y, slope)
    integral.add_product(s, z, y, product)
    integral.add_blocks(blocks, y, s)
    return value, beside, slope, product, blocks


def is_compiled(integral, *kinds):
    return all(isinstance(e, CompiledSum) for kind in kinds for e in integral._evaluations(kind, True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_compiled_integrals_have_the_values_of_torch(case, dtype, monkeypatch):
    fast, slow = both(case, dtype, monkeypatch)
    assert is_compiled(fast, VALUE, SLOPE, PRODUCT, BLOCKS)
    exact = both(case, torch.float64, monkeypatch)[1]
    for B in (1, 7, 64, 300) if dtype == torch.float32 else (7,):
        s, z, y = given(fast, B, dtype, 2)
        wide = results(exact, s.double(), z.double(), y.double())
        for compiled, expected, truth in zip(results(fast, s, z, y), results(slow, s, z, y), wide, strict=True):
            agree(compiled, truth)
            agree(expected, truth)


@pytest.mark.parametrize("over", [CELLS, FACETS])
def test_every_operation_has_the_values_of_torch(over, monkeypatch):
    case = (2, "values", over, (), 0)
    fast, slow = both(case, torch.float64, monkeypatch, count=len(OPERATIONS))
    s, y = given(fast, 20, torch.float64)
    slopes = [torch.zeros_like(s), torch.zeros_like(s)]
    agree(fast.add_slope(s, y, slopes[0]), slow.add_slope(s, y, slopes[1]))
    agree(*slopes)
    assert is_compiled(fast, SLOPE)


@pytest.mark.parametrize("case", CASES[2:4], ids=lambda case: "-".join(map(str, case)))
def test_derivatives_are_those_of_autograd(case, monkeypatch):
    fast, _ = both(case, torch.float64, monkeypatch)
    s, z, y = given(fast, 3, torch.float64, 2)
    leaf = s.clone().requires_grad_()
    value = fast.value(leaf, y)  # recorded, so in torch
    (slope,) = torch.autograd.grad(value.sum(), leaf, create_graph=True)
    (product,) = torch.autograd.grad((slope * z).sum(), leaf)
    found = results(fast, s, z, y)
    agree(found[0], value.detach())
    agree(found[2], slope.detach())
    agree(found[3], product)
    agree((found[4] * z[:, None]).sum(2), product)


@pytest.mark.parametrize("case", CASES[3:5], ids=lambda case: "-".join(map(str, case)))
def test_weak_forms_have_the_values_of_torch(case, monkeypatch):
    fast, slow = both(case, torch.float32, monkeypatch, RESIDUAL)
    s, v, z, y = given(fast, 64, torch.float32, 3)
    K, m, B = s.shape
    for of in ("v", "s"):
        found = [torch.zeros_like(s), torch.zeros_like(s)]
        values = [integral.add_slope(s, y, slope, v, of) for integral, slope in zip((fast, slow), found, strict=True)]
        agree(*values)
        agree(*found)
    products, blocks = [torch.zeros_like(s) for _ in range(2)], [s.new_zeros(K, m, m, B) for _ in range(2)]
    for k, integral in enumerate((fast, slow)):
        integral.add_product(s, z, y, products[k])
        integral.add_blocks(blocks[k], y, s)
    agree(*products)
    agree(*blocks)
    agree((blocks[0] * z[:, None]).sum(2), products[0])
    assert is_compiled(fast, "v", "s", PRODUCT, BLOCKS)


@pytest.mark.parametrize("case", CASES[3:5], ids=lambda case: "-".join(map(str, case)))
def test_threads_share_the_cells(case, monkeypatch):
    fast, _ = both(case, torch.float32, monkeypatch)
    s, z, y = given(fast, 300, torch.float32, 2)
    alone = results(fast, s, z, y)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    cells = fast._evaluations(SLOPE, True)[0]
    shares = cells._shares(10**4)
    own = [set(cells._cells[first:last].tolist()) for first, last in shares]
    assert [len(both) for both in (own, own[0] & own[1], own[1] & own[2])] == [3, 0, 0]
    for found, expected in zip(results(fast, s, z, y)[2:], alone[2:], strict=True):
        assert torch.equal(found, expected)
    agree(fast.value(s, y), alone[0], 2)


def test_values_are_added_up_in_double_precision(monkeypatch):
    """float32 sums of many cells would lose digits."""
    fast, slow = both((2, "values", CELLS, (), 0), torch.float32, monkeypatch)
    s, y = given(fast, 64, torch.float32)
    s = s[:1].expand(len(s), -1, -1).contiguous()
    exact = both((2, "values", CELLS, (), 0), torch.float64, monkeypatch)[1].value(s.double(), y.double())
    agree(fast.value(s, y), exact, 10)
    agree(slow.value(s, y), exact, 100)


def test_memory_in_another_order_is_fine(monkeypatch):
    fast, _ = both(CASES[3], torch.float32, monkeypatch)
    s, _, y = given(fast, 5, torch.float32, 2)
    slope = torch.zeros_like(s)
    value = fast.add_slope(s, y, slope)
    other = torch.zeros(s.shape[::-1]).permute(2, 1, 0)
    assert torch.equal(fast.add_slope(s.permute(2, 1, 0).contiguous().permute(2, 1, 0), y, other), value)
    assert torch.equal(other, slope)


def test_compilation_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("FEM_FRAMES_KERNELS", "torch")
    fast, _ = both(CASES[1], torch.float32, monkeypatch)
    assert not any(isinstance(e, CompiledSum) for e in fast._evaluations(SLOPE, True))


def function_of_place(seed, letters="xhy"):
    inputs = [(letter, i) for letter in letters for i in range({"x": 2, "h": 3, "y": PARAMETERS, "n": 2}[letter])]
    return random_program(inputs, ("exp", "sqrt", "div", "sin")) if len(letters) > 1 else None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_coefficients_and_loads_have_the_values_of_torch(dtype, monkeypatch):
    b = ProgramBuilder()
    varying, of_y, number = function_of_place(0), b.program(("y", 1)), b.program(2.0)
    of_x = b.program(b.add("sin", ("x", 0)))
    y = given_parameters(7, dtype)
    watched = y.clone().requires_grad_()  # so in torch
    for parts in (
        [Integral(CELLS, (), varying)],
        [Integral(CELLS, (0,), of_y), Integral(CELLS, (1,), number)],
        [Integral(CELLS, (0,), varying), Integral(CELLS, (), of_x), Integral(CELLS, (1,), of_y)],
    ):
        values = CellwiseValues(arrays(2), parts, as_data(dtype))
        found = values(y)
        assert found.shape[1] == (1 if parts[-1].program == number else len(arrays(2).rule_weights))
        agree(found, values(watched).detach())
        whole = sum(on_cells(part, y) for part in parts)
        agree(found.expand(whole.shape), whole)
    for kind, program in ((CELLS, varying), (FACETS, function_of_place(0, "xnhy")), (FACETS, of_y), (CELLS, of_x)):
        load = LoadIntegral(arrays(2), Integral(kind, (), program), as_data(dtype))
        found = load(y)
        agree(found, load(watched).detach())
        places = load.values.places
        total = (as_data(dtype)(places.weights)[..., None] * load.values(y)).sum((0, 1))
        agree(found.sum(1), -total)  # hats add up to one


def given_parameters(B, dtype):
    return (0.5 + torch.rand(B, PARAMETERS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).to(dtype)


def on_cells(integral, y):
    """(K, Q, B) the values in the cells of an integral, zero elsewhere."""
    load = LoadIntegral(arrays(2), integral, as_data(y.dtype))
    places = load.values.places
    cells = slice(None) if places.cells is None else torch.as_tensor(places.cells)
    found = y.new_zeros(len(arrays(2).volumes), len(arrays(2).rule_weights), len(y))
    found[cells] = load.values(y).expand(found[cells].shape)
    return found
