"""Problems: parameters, coefficients in NumPy and torch, and what is refused."""

import dataclasses

import numpy as np
import pytest
import torch

from fem_frames import (
    PROBLEMS,
    Affine,
    ByRegion,
    Frame,
    Gaussian,
    Grid,
    MeshHierarchy,
    Pointwise,
    Problem,
    Uniform,
    export_frame,
    make_formulation,
    make_problem,
    namespace,
)
from fem_frames.problem.evaluation import PointData

pytestmark = pytest.mark.serial
Y = (1.0, 0.8, 1.4, 0.7)


def square(**changes):
    return dataclasses.replace(Problem(Grid((1, 1)), ByRegion.each(1), Uniform((0.5,), (1.5,))), **changes)


@pytest.mark.parametrize("name", [name for name in PROBLEMS if make_problem(name).equation is None])
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


def test_disks_are_smooth_bumps_that_add_up():
    problem = make_problem("disks", count=2, conductivity=7.0)
    assert problem.parameters == Uniform((0.2, 0.2, 0.1) * 2, (0.8, 0.8, 0.2) * 2)
    x = np.array([[[0.3, 0.3]], [[0.7, 0.7]], [[0.3, 0.4]]])
    y = np.array([[0.3, 0.3, 0.1, 0.7, 0.7, 0.2], [0.3, 0.3, 0.2, 0.3, 0.3, 0.2]])
    a = problem.coefficient_values(problem.coefficient.tabulate(x, np.zeros(3, int)), y, x)[..., 0]
    distance = np.linalg.norm(x[:, 0] - y.reshape(2, 2, 3)[:, :, None, :2], axis=-1)  # (B, disks, K)
    bumps = 0.5 * (1 + np.tanh(32 * (y.reshape(2, 2, 3)[:, :, 2:] - distance)))
    np.testing.assert_allclose(a, 1 + 6 * bumps.sum(1), rtol=1e-3)  # the root is smoothed at centres
    np.testing.assert_allclose(a[0, 2], 4.0, rtol=1e-3)  # half of the disk's share on its rim


def test_waves_have_the_smallest_frequencies_and_variance_one():
    problem = make_problem("waves", terms=500)
    assert problem.parameters == Uniform((-(3**0.5),) * 500, (3**0.5,) * 500)
    _, modes = problem.coefficient.tabulate(np.zeros((1, 1, 2)), np.zeros(1, int))
    lengths = np.sort([np.hypot(m, n) for m in range(60) for n in range(60)])[1:501]
    np.testing.assert_allclose(modes[0, 0], 0.7 / lengths)


def test_spot_has_a_source_of_integral_one_that_moves_with_the_last_parameters():
    problem = make_problem("spot")
    assert problem.parameters == Uniform((0.5,) * 64 + (0.15,) * 2, (1.5,) * 64 + (0.85,) * 2)
    side = (np.arange(200) + 0.5) / 200
    x = np.stack(np.meshgrid(side, side), axis=-1)  # (200, 200, 2)
    y = problem.parameters.sample(2, 0)
    y[:, 64:] = [[0.5, 0.4], [0.6, 0.7]]
    f = problem.source_values(y, x)
    np.testing.assert_allclose(f.mean((1, 2)), 1.0, rtol=1e-6)
    np.testing.assert_allclose((f[..., None] * x).mean((1, 2)), y[:, 64:], rtol=1e-6)
    spread = (f * ((x - y[:, None, None, 64:]) ** 2).sum(-1)).mean((1, 2))
    np.testing.assert_allclose(spread, 2 / 24**2, rtol=1e-6)


@pytest.mark.parametrize("name", ["disks", "waves", "spot"])
def test_resolved_problems_have_gradients_in_y(name):
    problem = make_problem(name)
    x = torch.rand(6, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    regions = np.zeros(6, int) if problem.regions is None else np.asarray(problem.regions(x.mean(1).numpy()))
    tables = tuple(torch.as_tensor(table) for table in problem.tabulate(x.numpy(), regions))
    data = PointData(problem, x, tables)
    y = torch.tensor(problem.parameters.sample(2, 0), requires_grad=True)
    assert torch.autograd.gradcheck(lambda y: data.coefficient(y) + data.source(y), y)


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


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda x: x + "", "neumann.'rest'. fails in .*test_problem.py, line [0-9]+, in <lambda>: .*Error"),
        (lambda x: x[:, 7], "neumann.'rest'. fails in .*test_problem.py, line .*: IndexError"),
        (lambda x: np.ones(3), r"neumann.'rest'. has values of shape .* x\[:, i\], with n values"),
        (lambda x: np.full(len(x), np.inf), r"neumann.'rest'. is not finite at x = \[0.0, 0.0\]"),
    ],
)
def test_bad_boundary_data_are_named(value, message):
    problem = square(dirichlet=lambda x: x[:, 0] < 0.5, neumann={"rest": value})
    with pytest.raises(ValueError, match=message):
        problem.conditions[1].value.at(np.zeros((4, 2)))


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
        (lambda: make_problem("checkerboard", blocks="x"), "option blocks of checkerboard is 'x'"),
        (lambda: make_problem("cookies", radius=0.7), "radius"),
        (lambda: make_problem("quarters", low=2.0), "lower must be below upper"),
        (lambda: make_problem("disks", count=0), "count is 0; a whole number of at least 1"),
        (lambda: make_problem("disks", count=1.5), "option count of disks is 1.5; a whole number"),
        (lambda: make_problem("disks", conductivity=-1.0), "conductivity is -1.0; a positive number"),
        (lambda: make_problem("disks", count=4, conductivity=0.5), "use a conductivity above 0.75, or fewer disks"),
        (lambda: make_problem("waves", terms=0), "terms is 0"),
        (lambda: make_problem("waves", scale=0.0), "scale is 0.0; a positive number"),
        (lambda: make_problem("spot", blocks=0), "blocks is 0"),
        (lambda: make_problem("spot", low=2.0), "lower must be below upper"),
        (lambda: make_problem("absent.py"), "no file absent.py"),
        (lambda: Uniform((0.0,), (1.0, 2.0)), "as many lower as upper"),
        (lambda: square(dirichlet="left"), "dirichlet is 'left'"),
        (lambda: square(dirichlet=2.5), "dirichlet is 2.5"),
        (lambda: square(dirichlet=()), "at least one facet tag"),
        (lambda: square(neumann={"rest": 1.0}), "name the parts in dirichlet"),
        (lambda: square(neumann_value=1.0), "give neumann by group"),
        (
            lambda: square(dirichlet_value=np.ones(3)),
            "dirichlet_value is .* it must be a number, a Parameter or a function",
        ),
        (lambda: square(options={"a": np.ones(2)}), "recorded as JSON"),
        (lambda: square(quadrature_degree=0), "quadrature_degree is 0; a whole number of at least 1"),
        (lambda: square(quadrature_degree=2.5), "quadrature_degree is 2.5"),
        (lambda: square(quadrature_degree=99), "at most 30 is supported"),
        (lambda: square(first_level=-1), "first_level is -1"),
        (lambda: square(refinement="blue"), "choose from red, dolfinx"),
        (lambda: square(coefficient=1.0), "wrap a function: Pointwise"),
        (lambda: square(parameters=(0, 1)), "Uniform box or Gaussian"),
        (lambda: square(coefficient=ByRegion({0: 7})), "uses parameter 7, but there are p = 1"),
        (lambda: ByRegion({0: -1}), "parameter of region 0 is -1"),
        (lambda: ByRegion({0: 0}, fixed={0: 1.0}), "region 0 has both"),
        (lambda: Gaussian(0), "normal parameters is 0"),
        (lambda: Uniform((0.0,), (np.inf,)), "not bounded"),
        (lambda: make_problem("quarters", low="abc"), "option low of quarters is 'abc'"),
        (lambda: make_problem("lognormal", decay=np.inf), "option decay of lognormal is inf"),
        (lambda: make_problem("cookies", rows=1.5), "option rows of cookies is 1.5"),
    ],
)
def test_bad_problems_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_values_that_cannot_be_are_named():
    x = np.full((3, 1, 2), 0.5)
    y = np.array([[1.0], [1.2]])
    negative = square(coefficient=Pointwise(lambda x, y: 1.1 - y[..., 0] + 0 * x[..., 0]))
    with pytest.raises(ValueError, match=r"-0.1 for y = \(1.2\) in cell 0 at x = \(0.5, 0.5\)"):
        negative.coefficient_values(negative.coefficient.tabulate(x, np.zeros(3, int)), y, x)
    with pytest.raises(ValueError, match="source f has values of shape"):
        square(source=lambda x, y: np.ones(7)).source_values(y, x)
    square(source=lambda x, y: x[..., 0]).source_values(y, x)
    with pytest.raises(ValueError, match=r"source f has values of shape \(3, 2\).* write x\[..., i\]"):
        square(source=lambda x, y: x[:, 0]).source_values(y, x)
    with pytest.raises(ValueError, match=r"f is nan for y = \(1\) at x = \(0.5, 0.5\)"):
        square(source=lambda x, y: x[..., 0] * np.nan).source_values(y, x)
    with pytest.raises(ValueError, match=r"region tags \[4\].* has values for \[0\]"):
        ByRegion.each(1).tabulate(x, np.array([0, 0, 4]))


@pytest.mark.parametrize(
    ("coefficient", "message"),
    [
        (Affine(1.0, lambda x: x[..., :1]), "1 modes for p = 3"),
        (Affine(1.0, lambda x: np.ones((1, 1, 3))), r"modes have shape \(1, 1, 3\)"),
        (Affine(lambda x: np.ones(2), lambda x: x), "the mean has values of shape"),
        (Pointwise(lambda x, y: y[:, 0]), "a has values of shape"),
        (Pointwise(lambda x, y: x[:, 0]), "a has values of shape"),
        (Pointwise(lambda x, y: x[..., :1] + y[..., 0]), "a has values of shape"),
    ],
)
def test_coefficients_that_mix_up_their_axes_are_named(coefficient, message):
    """p = Q = 3: NumPy alone would broadcast some of these."""
    problem = square(coefficient=coefficient, parameters=Uniform((0.5,) * 3, (1.5,) * 3))
    x = np.random.default_rng(0).uniform(size=(3, 3, 2))
    with pytest.raises(ValueError, match=message):
        problem.coefficient_values(problem.tabulate(x, np.zeros(3, int)), np.ones((3, 3)), x)


def test_facet_tags_come_in_many_forms():
    for tags in (3, (3,), [3], {3}, np.array([3])):
        assert square(dirichlet=tags).conditions[0].where == (3,)


def test_functions_of_x_alone_are_named():
    x = np.full((3, 1, 2), 0.5)
    for change in ({"source": lambda x: x[..., 0]}, {"coefficient": Pointwise(lambda x: x[..., 0])}):
        with pytest.raises(ValueError, match=r"fails in .*, line \d+, in <lambda>: TypeError.*functions of x and y"):
            square(**change).tabulate(x, np.zeros(3, int))


def test_numbers_may_be_numpys():
    problem = make_problem("checkerboard", blocks=np.int64(2), low=np.float64(0.1))
    assert problem.options == {"blocks": 2, "low": 0.1}
    assert type(problem.options["blocks"]) is int
    assert type(problem.check_levels(np.int64(3))) is int


def test_problem_of_a_file_of_ones_own(tmp_path):
    folder = tmp_path / "my.pyfiles"
    folder.mkdir()
    path = folder / "mine.py"
    (folder / "beside.py").write_text("high = 2.0\n")
    path.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from beside import high\n"
        "@dataclass\nclass Settings:\n    high: float = high\n"
        "from fem_frames import ByRegion, Grid, Problem, Uniform\n"
        "problem = Problem(Grid((2, 2)), ByRegion.each(1), Uniform((1.0,), (Settings().high,)))\n"
        "def free(**options):\n    return made(**options)\n"
        "def needs(n):\n    return made(n)\n"
        "def made(n=2):\n    return Problem(Grid((n, n)), ByRegion.each(1), Uniform((1.0,), (2.0,)))\n"
        "number = 3\n"
    )
    assert make_problem(str(path)).mesh.shape == (2, 2)
    assert make_problem(f"{path}:made", n=3).mesh.shape == (3, 3)
    assert make_problem(f"{path}:free", n=4).mesh.shape == (4, 4)
    for name, options, message in (
        ("number", {}, "neither a Problem nor a function"),
        ("absent", {}, "does not define 'absent'"),
        ("problem", {"n": 1}, "without options"),
        ("needs", {}, "missing 1 required positional argument"),
    ):
        with pytest.raises(ValueError, match=message):
            make_problem(f"{path}:{name}", **options)


@pytest.mark.parametrize("content", ["def broken(:", "raise SystemExit(0)", "1 / 0", "import absent_module"])
def test_files_that_do_not_load_are_named(tmp_path, content):
    (tmp_path / "bad.py").write_text(content)
    with pytest.raises(ValueError, match=r"loading .*bad\.py (fails|ends the program)"):
        make_problem(str(tmp_path / "bad.py"))


def test_trial_finds_a_bad_source_too():
    problem = square(source=lambda x, y: y[:, 0], parameters=Uniform((0.5,) * 3, (1.5,) * 3))
    with pytest.raises(ValueError, match="source f has values of shape"):
        problem.tabulate(np.full((3, 3, 2), 0.5), np.zeros(3, int))


def largest(x, y):
    return 1 + 3 * x[..., 0] / x[..., 0].max() + 0.1 * y[..., 0]


def test_a_function_of_all_points_is_evaluated_for_all_cells_at_once():
    """Otherwise the number of samples would change its values, since large batches are evaluated in pieces."""
    problem = square(coefficient=Pointwise(largest), parameters=Uniform((-1.0,), (1.0,)), quadrature_degree=1)
    arrays = export_frame(MeshHierarchy.from_problem(problem, 6), problem)
    made = make_formulation(Frame.from_arrays(arrays, "float32"), problem)
    y = torch.as_tensor(problem.parameters.sample(200, 0)).float()
    alone = torch.cat([made.cell_diffusion(one) for one in y[[0, 100, 199]].split(1)], dim=1)
    torch.testing.assert_close(made.cell_diffusion(y)[:, [0, 100, 199]], alone)


@pytest.mark.parametrize("what", ["coefficient", "source"])
def test_a_function_of_all_samples_is_refused(what):
    given = {"coefficient": Pointwise(lambda x, y: 2 + y[..., 0] - y.mean() + 0 * x[..., 0])}
    if what == "source":
        given = {"coefficient": ByRegion({0: 0}), "source": lambda x, y: x[..., 0] + y[..., 0].max()}
    problem = Problem(mesh=Grid((2, 2)), parameters=Uniform((0.5,), (1.0,)), **given)
    arrays = export_frame(MeshHierarchy.from_problem(problem, 2), problem)
    with pytest.raises(ValueError, match=f"the {what} . for one y depends on the other samples"):
        make_formulation(Frame.from_arrays(arrays, "float64"), problem)
