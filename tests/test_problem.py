"""Problems: parameters, coefficients in NumPy and torch, and what is refused."""

import dataclasses

import numpy as np
import pytest
import torch

from fem_frames import PROBLEMS, Affine, ByRegion, Gaussian, Grid, Pointwise, Problem, Uniform, make_problem, namespace

Y = (1.0, 0.8, 1.4, 0.7)


def square(**changes):
    return dataclasses.replace(Problem(Grid((1, 1)), ByRegion.each(1), Uniform((0.5,), (1.5,))), **changes)


@pytest.mark.parametrize("name", PROBLEMS)
def test_coefficients_agree_in_numpy_and_torch(name):
    problem = make_problem(name)
    rng = np.random.default_rng(0)
    d = len(problem.mesh.shape) if isinstance(problem.mesh, Grid) else problem.mesh.dimension
    x = rng.uniform(0, 1, (20, 3, d))
    regions = np.zeros(20, int) if problem.regions is None else np.asarray(problem.regions(x.mean(axis=1)))
    y = problem.parameters.sample(4, 0)
    tables = problem.coefficient.tabulate(x, regions)
    a = problem.coefficient_values(tables, y, x)
    t = problem.coefficient.evaluate(tuple(torch.from_numpy(table) for table in tables), torch.from_numpy(y))
    np.testing.assert_allclose(np.broadcast_to(t.numpy(), a.shape), a, rtol=1e-14)
    assert a.shape == (4, 20, 3)
    assert (a > 0).all()


def test_quarters_are_the_papers():
    problem = make_problem("quarters")
    x = np.array([0.1, 0.3, 0.6, 0.9])[:, None]
    tables = problem.coefficient.tabulate(x[:, None], problem.regions(x))
    np.testing.assert_array_equal(problem.coefficient_values(tables, np.array([Y]), x[:, None])[0, :, 0], Y)
    assert problem.parameters == Uniform((0.5,) * 4, (1.5,) * 4)


def test_inclusion_moves_with_y():
    problem = make_problem("inclusion", conductivity=7.0)
    x = np.array([[[0.3, 0.3]], [[0.7, 0.7]]])
    y = np.array([[0.3, 0.3, 0.1], [0.7, 0.7, 0.1]])
    a = problem.coefficient_values(problem.coefficient.tabulate(x, np.zeros(2, int)), y, x)
    np.testing.assert_array_equal(a[:, :, 0], [[7, 1], [1, 7]])


def test_affine_and_exponential_expansions():
    x = np.linspace(0, 1, 5).reshape(5, 1, 1)
    y = np.array([[0.5, -0.25]])
    affine = Affine(lambda x: 2 + x[..., 0], lambda x: np.stack([x[..., 0], x[..., 0] ** 2], axis=-1))
    value = affine.evaluate(affine.tabulate(x, np.zeros(5, int)), y)[0, :, 0]
    np.testing.assert_allclose(value, 2 + 1.5 * x[:, 0, 0] - 0.25 * x[:, 0, 0] ** 2)


def test_samples_of_a_seed_are_a_prefix_of_more():
    for parameters in (Uniform((0.0, 1.0), (1.0, 3.0)), Gaussian(2)):
        few, many = parameters.sample(3, 5), parameters.sample(10, 5)
        np.testing.assert_array_equal(few, many[:3])
        assert not parameters.outside(many).any()
        assert not np.array_equal(many, parameters.sample(10, 6))


def test_namespace_is_that_of_the_array():
    assert namespace(np.ones(1)) is np
    assert namespace(torch.ones(1)) is torch


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([1.0, 1.0], r"shape \(2,\), but quarters has p = 4"),
        (np.ones((2, 3, 4)), "p = 4 parameters"),
        ([*Y[:3], np.nan], "sample 0 is not finite"),
        ([Y, (1.0, 1.0, 1.0, 1.6)], r"sample 1 = \(1, 1, 1, 1.6\) is outside the parameters \[0.5, 1.5\]\^4"),
        (["a", "b", "c", "d"], "array of numbers"),
    ],
)
def test_bad_parameters_are_named(y, message):
    with pytest.raises(ValueError, match=message):
        make_problem("quarters").check_parameters(y)


@pytest.mark.parametrize("levels", [0, -1, 1, 2.5, "3", True])
def test_bad_levels_are_refused(levels):
    with pytest.raises(ValueError, match="levels"):
        make_problem("quarters").check_levels(levels)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_problem("nonsense"), "no problem 'nonsense'; choose from quarters"),
        (lambda: make_problem("checkerboard", block=3), "no option 'block'; it has blocks, low, high"),
        (lambda: make_problem("checkerboard", blocks=0), "blocks is 0"),
        (lambda: make_problem("checkerboard", blocks="x"), "blocks is 'x'"),
        (lambda: make_problem("cookies", radius=0.7), "radius"),
        (lambda: make_problem("quarters", low=2.0), "lower must be below upper"),
        (lambda: make_problem("absent.py"), "no file absent.py"),
        (lambda: Uniform((0.0,), (1.0, 2.0)), "as many lower as upper"),
        (lambda: square(dirichlet="left"), "dirichlet is 'left'"),
        (lambda: square(quadrature_degree=1), "at least 2"),
    ],
)
def test_bad_problems_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_values_that_cannot_be_are_named():
    x = np.full((3, 1, 2), 0.5)
    y = np.array([[1.0], [1.2]])
    negative = square(coefficient=Pointwise(lambda x, y: 1.1 - y[..., 0] + 0 * x[..., 0]))
    with pytest.raises(ValueError, match=r"-0.1 for sample 1 in cell 0 at x = \[0.5, 0.5\]"):
        negative.coefficient_values(negative.coefficient.tabulate(x, np.zeros(3, int)), y, x)
    with pytest.raises(ValueError, match="source f has values of shape"):
        square(source=lambda x, y: np.ones(7)).source_values(y, x)
    with pytest.raises(ValueError, match="f is not finite"):
        square(source=lambda x, y: x[..., 0] * np.nan).source_values(y, x)
    with pytest.raises(ValueError, match=r"region tags \[4\].* has values for \[0\]"):
        ByRegion.each(1).tabulate(x, np.array([0, 0, 4]))


def test_problem_of_a_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from fem_frames import ByRegion, Grid, Problem, Uniform\n"
        "problem = Problem(Grid((2, 2)), ByRegion.each(1), Uniform((1.0,), (2.0,)))\n"
        "def made(n=2):\n    return Problem(Grid((n, n)), ByRegion.each(1), Uniform((1.0,), (2.0,)))\n"
        "number = 3\n"
    )
    assert make_problem(str(path)).mesh.shape == (2, 2)
    assert make_problem(f"{path}:made", n=3).mesh.shape == (3, 3)
    for name, options, message in (
        ("number", {}, "neither a Problem nor a function"),
        ("absent", {}, "does not define 'absent'"),
        ("problem", {"n": 1}, "without options"),
    ):
        with pytest.raises(ValueError, match=message):
            make_problem(f"{path}:{name}", **options)
