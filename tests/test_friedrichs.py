"""Friedrichs' constant: above the true one, and near it."""

import numpy as np
import pytest
from frames import case, ring
from scipy import sparse

from fem_frames import ByRegion, Grid, MeshHierarchy, Problem, Uniform, export_frame, make_problem
from fem_frames.frame.level_matrices import level_volumes
from fem_frames.mesh.simplices import diameters
from fem_frames.solvers import friedrichs
from fem_frames.solvers.friedrichs import friedrichs_constant, interpolation_constants, is_positive

pytestmark = pytest.mark.serial


def box(lengths, dirichlet="all"):
    return Problem(
        Grid((1,) * len(lengths), upper=lengths), ByRegion.each(1), Uniform((0.5,), (1.5,)), dirichlet=dirichlet
    )


def left(x):
    return np.isclose(x[:, 0], 0)


def on_boxes(*lengths):
    """1/√λ with u = 0 all around."""
    return 1 / (np.pi * np.sqrt(sum(1 / x**2 for x in lengths)))


@pytest.mark.parametrize(
    ("problem", "levels", "exact", "most"),
    [
        (box((1.0,)), 6, on_boxes(1), 1.001),
        (box((3.0,), left), 6, 6 / np.pi, 1.001),
        (box((1.0, 1.0)), 5, on_boxes(1, 1), 1.005),
        (box((1000.0, 500.0)), 5, on_boxes(1000, 500), 1.005),
        (box((1.0, 1.0), left), 5, 2 / np.pi, 1.005),
        (make_problem("lshape"), 4, 9.6397238440219**-0.5, 1.02),
        (box((1.0, 1.0, 1.0)), 2, on_boxes(1, 1, 1), 1.3),
        (box((1.0, 1.0, 1.0)), 3, on_boxes(1, 1, 1), 1.08),
        (box((1.0, 1.0, 1.0), left), 3, 2 / np.pi, 1.01),
    ],
)
def test_it_is_above_the_true_constant_and_near_it(problem, levels, exact, most):
    arrays = export_frame(MeshHierarchy.from_problem(problem, levels), problem, "least-squares")
    assert exact < friedrichs_constant(arrays) < most * exact


def test_it_falls_from_level_to_level():
    problem = ring()
    arrays = export_frame(MeshHierarchy.from_problem(problem, 4), problem, "least-squares")
    found = [friedrichs_constant(arrays.coarsened(level)) for level in range(5)]
    steps = -np.diff(found)
    assert (steps > 0).all()
    assert (steps[1:] < 0.5 * steps[:-1]).all()


def test_fine_meshes_take_a_coarser_one(monkeypatch):
    problem = make_problem("checkerboard")
    arrays = export_frame(MeshHierarchy.from_problem(problem, 4), problem, "least-squares")
    monkeypatch.setattr(friedrichs, "CELLS", 128)
    assert friedrichs_constant(arrays) == pytest.approx(friedrichs_constant(arrays.coarsened(3)), rel=1e-9)


def test_it_is_computed_once_for_each_frame(monkeypatch):
    _, arrays = case("square, LS")
    first = friedrichs_constant(arrays)
    monkeypatch.setattr(friedrichs, "_least_eigenvalue", None)
    assert friedrichs_constant(arrays) == first


def test_frames_without_a_flux_are_refused():
    with pytest.raises(ValueError, match="does not tell on which facets u is given; export one for least squares"):
        friedrichs_constant(case("square")[1])


def test_another_eigenvalue_is_not_taken_for_the_first(monkeypatch):
    """The eigensolver may miss the first; then a value is taken below which there is none."""
    from scipy.sparse import linalg

    matrix = sparse.csc_array(sparse.diags(np.arange(3.0, 40.0)))
    one = sparse.csc_array(sparse.identity(37))
    assert friedrichs._least_eigenvalue(matrix, one) == pytest.approx(3, rel=2e-4)
    monkeypatch.setattr(linalg, "eigsh", lambda *a, **k: np.array([10.0]))
    assert 1 < friedrichs._least_eigenvalue(matrix, one) < 3


@pytest.mark.parametrize("name", ["interval, LS", "square, LS", "cube, LS"])
def test_positive_matrices_are_told_from_others(name):
    """On both sides of an eigenvalue that a dense matrix has."""
    _, arrays = case(name)
    stiffness, mass = friedrichs._matrices(arrays, len(arrays.levels) - 1)
    least = np.linalg.eigvals(np.linalg.solve(mass.toarray(), stiffness.toarray())).real.min()
    assert is_positive(stiffness - (1 - 1e-8) * least * mass)
    assert not is_positive(stiffness - (1 + 1e-8) * least * mass)
    assert friedrichs._least_eigenvalue(stiffness, mass) == pytest.approx(least, rel=2e-4)


@pytest.mark.parametrize("name", ["interval, LS", "square, LS", "cube, LS"])
def test_crouzeix_raviart_interpolation_is_as_good_as_its_constant_says(name):
    """For x_i² on a cell: v - Πv is x_i² - its interpolant, by a quadrature that is exact for it."""
    from fem_frames.fenicsx import door

    _, arrays = case(name)
    index, d = len(arrays.levels) - 1, arrays.dimension
    hats, weights = door.barycentric_quadrature(d, 6)
    corners = arrays.points[arrays.levels[index].cells]
    x = np.einsum("qn,knd->kqd", hats, corners)
    facet_hats, facet_weights = (np.ones((1, 1)), np.ones(1)) if d == 1 else door.barycentric_quadrature(d - 1, 6)
    volumes, bound = level_volumes(arrays, index), interpolation_constants(arrays, index)
    for i in range(d):
        off, slope = x[..., i] ** 2, 2 * x[..., i, None] * np.eye(d)[i]
        for opposite in range(d + 1):  # the function of the facet opposite this corner
            facet = np.delete(corners, opposite, axis=1)
            mean = np.einsum("q,kq->k", facet_weights, np.einsum("qn,kn->kq", facet_hats, facet[..., i]) ** 2)
            off = off - mean[:, None] * (1 - d * hats[:, opposite])
            slope = slope + d * mean[:, None, None] * arrays.levels[index].gradients[:, None, opposite]
        squares = [np.einsum("k,q,kq->k", volumes, weights, v) for v in (off**2, (slope**2).sum(-1))]
        used = squares[1] > 1e-12 * squares[1].max()
        assert (squares[0][used] <= bound[used] * squares[1][used]).all()
        assert (bound[used] * squares[1][used] < 30 * squares[0][used]).any()
    assert (bound <= (0.35 * diameters(arrays.points, arrays.levels[index].cells)) ** 2).all()
