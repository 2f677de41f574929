"""Bounds that bound: against PETSc on finer meshes, closed forms and manufactured solutions, in the norm they name."""

import gc
import itertools
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from frames import case, samples
from oracles import sine_problem

from fem_frames import (
    ByRegion,
    Frame,
    Grid,
    MeshHierarchy,
    Pointwise,
    Problem,
    Uniform,
    certify,
    error_bound,
    export_frame,
    frame_bounds,
    make_formulation,
    make_problem,
    namespace,
    solve,
    solve_reference,
)
from fem_frames.fenicsx import door
from fem_frames.mesh.simplices import p1_gradients
from fem_frames.solvers.bounds import norm_of
from fem_frames.studies.efficiency import efficiency_rows
from fem_frames.studies.levels import embedded

pytestmark = pytest.mark.serial
LEAST_SQUARES = ["least-squares", "weighted-least-squares"]
CONTRASTS = [1.001, 10.0, 1e2, 1e4]


def formulation_on(problem, levels, name):
    arrays = export_frame(MeshHierarchy.from_problem(problem, levels), problem, name)
    return make_formulation(Frame.from_arrays(arrays, "float64"), problem)


# ---- (E)


@pytest.mark.parametrize("name", ["interval", "square", "square, mixed", "square, lognormal", "cube"])
def test_energy_bound_bounds_and_is_sharp_up_to_the_condition(name):
    problem, arrays = case(name)
    made = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    y = samples(problem, 16)
    w = solve(made, y, 1e-12).w
    lower, upper = frame_bounds(made)
    for size in (1.0, 1e-3):
        noise = size * torch.randn(w.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        ratio = error_bound(made, w + noise, y) / norm_of(made, noise, y)
        a = made.mean(made.coefficient(y))
        assert float(ratio.min()) >= 1
        assert (ratio <= 1.01 * (upper / lower * a.amax(0) / a.amin(0)).sqrt()).all()


def test_energy_efficiency_does_not_grow_with_the_level():
    problem = make_problem("checkerboard")
    arrays = export_frame(MeshHierarchy.from_problem(problem, 6), problem)
    rows = list(efficiency_rows(arrays, problem, problem.parameters.sample(4, 0)))
    assert all((r["norm"], r["against"]) == ("energy", "discrete solution") for r in rows)
    assert all(r["efficiency_least"] >= 1 for r in rows)
    assert rows[-1]["efficiency_most"] < 1.2 * rows[-3]["efficiency_most"] < 5


# ---- (LS), against finer meshes


@pytest.mark.parametrize(("norm", "most"), [("functional", 1.04), ("energy", 1.08)])
def test_least_squares_bounds_are_nearly_the_error_on_a_finer_level(norm, most):
    problem = make_problem("quarters")
    arrays = export_frame(MeshHierarchy.from_problem(problem, 8), problem, "least-squares")
    rows = list(efficiency_rows(arrays, problem, problem.parameters.sample(8, 0), norm=norm))
    assert [r["level"] for r in rows] == [2, 3, 4, 5, 6]
    assert all((r["norm"], r["against"]) == (norm, "exact solution") for r in rows)
    assert all(1 <= r["efficiency_least"] <= r["efficiency_most"] < most for r in rows)
    assert all(fine["relative_most"] < 0.6 * r["relative_most"] for r, fine in itertools.pairwise(rows))


def answers(made, y, levels):
    """PETSc's solution, and such that are off in all coefficients, those of u, and those of σ: by name (B, Nhat)."""
    reference = solve_reference(made.problem, y.numpy(), levels, made.name)
    w = made.coordinates.coefficients(made.coordinates.free(reference.fields, made.frame.device))
    noise = torch.randn(w.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    noise *= (w.norm(dim=1) / noise.norm(dim=1))[:, None]
    of_u = torch.arange(w.shape[1]) < sum(made.frame.arrays.families[0].level_sizes)
    return {"solution": w, "all": w + 0.1 * noise, "u": w + 1e-2 * noise * of_u, "sigma": w + 1e-2 * noise * ~of_u}


def corners(contrast, count, p, seed=0):
    """(count, p) random corners of the box [1, contrast]^p."""
    return torch.as_tensor(np.where(np.random.default_rng(seed).random((count, p)) < 0.5, 1.0, contrast))


class FinerSolution:
    """PETSc's energy solution on a finer mesh, for the energy error of functions on a coarser one.

    Against the exact solution, as that is orthogonal to the finer space: what the finer mesh leaves is known in one
    dimension, Σ h³ f²/(12 a), and is a third of the last step on others where solutions are smooth.
    """

    def __init__(self, problem, y, levels):
        self.hierarchy = MeshHierarchy.from_problem(problem, levels)
        points, cells = self.hierarchy.points, self.hierarchy.finest.cells
        self.gradients, self.volumes = p1_gradients(points, cells)
        centres = self.hierarchy.centres()[:, None]
        tables = problem.tabulate(centres, self.hierarchy.regions(problem))
        self.a = problem.coefficient_values(tables, y.numpy(), centres)[..., 0]  # (B, K)
        found = solve_reference(problem, y.numpy(), levels, solver="lu")
        self.u, self.levels = found.u, levels
        if points.shape[1] == 1:
            self.rest = (self.volumes**3 / (12 * self.a)).sum(1)
        else:
            before = solve_reference(problem, y.numpy(), levels - 1, solver="lu")
            self.rest = 2 * (before.loss - found.loss) / 3

    def error(self, u, level):
        """(B,) of the nodal values (B, N) on a coarser level."""
        for j in range(level + 1, self.levels + 1):
            u = np.concatenate([u, u[:, self.hierarchy.levels[j].ends].mean(axis=2)], axis=1)
        off = (u - self.u)[:, self.hierarchy.finest.cells]
        slope = np.einsum("knd,bkn->bkd", self.gradients, off)
        return np.sqrt((self.volumes * self.a * (slope**2).sum(-1)).sum(1) + self.rest)


@pytest.mark.parametrize("contrast", CONTRASTS)
@pytest.mark.parametrize("name", LEAST_SQUARES)
@pytest.mark.parametrize(("problem", "levels", "finer"), [("quarters", 4, 8), ("checkerboard", 3, 6), ("cube", 1, 3)])
def test_least_squares_bounds_the_energy_error_at_every_contrast(problem, levels, finer, name, contrast):
    """With √loss it is not so: that is a bound in another norm."""
    made = formulation_on(make_problem(problem, low=1.0, high=contrast), levels, name)
    y = corners(contrast, 6, made.problem.parameters.dimension)
    fine = FinerSolution(made.problem, y, finer)
    for kind, w in answers(made, y, levels).items():
        error = fine.error(made.synthesise(w)["u"].numpy(), levels)
        bound = error_bound(made, w, y, "energy").numpy()
        assert (bound >= error).all(), kind
        assert (bound <= (5 if kind == "sigma" else 2.8) * error).all(), kind
        if name == "least-squares" and contrast >= 100 and kind in ("solution", "u"):
            assert (error_bound(made, w, y).numpy() < 0.5 * error).any(), kind


@pytest.mark.parametrize("name", LEAST_SQUARES)
@pytest.mark.parametrize(("d", "levels", "finer"), [(1, 4, 8), (2, 3, 6), (3, 1, 3)])
def test_the_energy_error_is_bounded_with_boundary_data_of_both_kinds(d, levels, finer, name):
    """Data that the mesh has: g linear, h constant. u is given on one side only, so Friedrichs' constant is larger."""
    problem = Problem(
        mesh=Grid((1,) * d),
        coefficient=ByRegion.each(1),
        parameters=Uniform((1.0,), (100.0,)),
        dirichlet=lambda x: np.isclose(x[:, 0], 0),
        dirichlet_value=lambda x: 1 + x[:, -1],
        neumann={"rest": 0.5},
    )
    made = formulation_on(problem, levels, name)
    y = torch.tensor([[1.0], [9.0], [100.0]], dtype=torch.float64)
    fine = FinerSolution(problem, y, finer)
    for kind, w in answers(made, y, levels).items():
        error = fine.error(made.synthesise(w)["u"].numpy(), levels)
        bound = error_bound(made, w, y, "energy").numpy()
        assert (bound >= error).all(), kind
        assert (bound <= (12 if kind == "sigma" else 4) * error).all(), kind


@pytest.mark.parametrize("contrast", CONTRASTS)
@pytest.mark.parametrize("name", LEAST_SQUARES)
@pytest.mark.parametrize(("problem", "levels"), [("quarters", 4), ("checkerboard", 2)])
def test_the_root_of_the_loss_is_the_error_in_the_norm_of_the_functional(problem, levels, name, contrast):
    """The squares of the errors against and of PETSc's finer solution add up to the loss."""
    made = formulation_on(make_problem(problem, low=1.0, high=contrast), levels, name)
    fine = formulation_on(made.problem, levels + 2, name)
    y = corners(contrast, 4, made.problem.parameters.dimension, seed=1)
    reference = solve_reference(made.problem, y.numpy(), levels + 2, name)
    truth = fine.coordinates.coefficients(fine.coordinates.free(reference.fields, fine.frame.device))
    for w in answers(made, y, levels).values():
        error = norm_of(fine, embedded(w, made.frame.arrays, fine.frame.arrays) - truth, y)
        bound = error_bound(made, w, y)
        assert (bound >= error).all()
        torch.testing.assert_close(bound**2, error**2 + torch.as_tensor(reference.loss), rtol=1e-6, atol=0)


# ---- (LS), against exact solutions


def weighted_slope(made, u, y, gradient):
    """(2, B) ‖a^{1/2} ∇(u - exact)‖ and ‖a^{1/2} ∇exact‖ for nodal values u (B, N), by a finer quadrature."""
    arrays = made.frame.arrays
    hats, weights = door.barycentric_quadrature(arrays.dimension, 8)
    x = np.einsum("qn,knd->kqd", hats, arrays.points[arrays.levels[-1].cells])
    a = 1 + y.numpy()[:, 0, None, None] * x[..., 0]  # (B, K, Q)
    slope = np.einsum("knd,bkn->bkd", arrays.levels[-1].gradients, u.numpy()[:, arrays.levels[-1].cells])[:, :, None]
    values = [slope - gradient(x), gradient(x)[None]]
    return [np.sqrt(np.einsum("k,q,bkq->b", arrays.volumes, weights, a * (v**2).sum(-1))) for v in values]


@pytest.mark.parametrize("name", LEAST_SQUARES)
@pytest.mark.parametrize(("d", "levels"), [(1, 5), (2, 3), (3, 2)])
def test_bounds_hold_where_coefficient_and_source_vary_in_cells(d, levels, name):
    given, _, gradient = sine_problem(d)
    problem = replace(given, source=lambda x, y: given.source(np.asarray(x), np.asarray(y)))  # it is one of NumPy's
    made = formulation_on(problem, levels, name)
    y = samples(problem, 4)
    w = solve(made, y, 1e-10).w
    for off in (w, 1.1 * w):
        error, size = weighted_slope(made, made.synthesise(off)["u"], y, gradient)
        found = certify(made, off, y, "energy")
        assert (found.value.numpy() >= error).all()
        assert (found.value.numpy() <= (2 if d < 3 else 4) * error).all()
        assert (found.relative.numpy() >= error / size).all()
        functional = certify(made, off, y)
        f = problem.source_values(y.numpy(), made._points.numpy())
        want = np.sqrt(np.einsum("k,q,bkq->b", made.frame.arrays.volumes, made.frame.arrays.rule_weights, f**2))
        np.testing.assert_allclose((functional.value / functional.relative).numpy(), want, rtol=1e-12)


def test_what_a_source_does_inside_cells_is_bounded_too():
    """f = sin(2π x / h) has the mean zero on every cell: u_h = 0 solves the discrete problem, u = (h/2π)² f."""
    waves = 8
    problem = Problem(
        Grid((1,)),
        Pointwise(lambda x, y: 1 + 0 * x[..., 0] * y[..., 0]),
        Uniform((0.0,), (1.0,)),
        source=lambda x, y: namespace(y).sin(2 * np.pi * waves * x[..., 0]) + 0 * y[..., 0],
        quadrature_degree=20,
    )
    made = formulation_on(problem, 3, "least-squares")
    zero = torch.zeros(1, made.frame.frame_size, dtype=torch.float64)
    found = certify(made, zero, torch.tensor([[0.5]], dtype=torch.float64), "energy")
    error = (1 / 2) ** 0.5 / (2 * np.pi * waves)  # ‖u'‖
    assert float(found.value) == pytest.approx(2 * error, rel=1e-6)
    assert float(found.relative) == np.inf  # of u = 0 nothing is known but that it is nearer to zero than the bound


# ---- names, precisions, memory


@pytest.mark.parametrize(
    ("name", "norms"),
    [
        ("square", {"energy": "discrete solution"}),
        ("square, LS", {"functional": "exact solution", "energy": "exact solution"}),
        ("square, weighted", {"functional": "exact solution", "energy": "exact solution"}),
    ],
)
def test_a_bound_says_its_norm(name, norms):
    problem, arrays = case(name)
    made = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    assert {norm.name: norm.against for norm in made.norms} == norms
    y, w = samples(problem, 2), torch.zeros(2, arrays.frame_size, dtype=torch.float64)
    for norm, against in norms.items():
        found = certify(made, w, y, norm)
        assert (found.norm.name, found.norm.against) == (norm, against)
        assert f"{found.norm}".endswith(f"against the {against}")
        assert torch.equal(found.value, error_bound(made, w, y, norm))
    assert torch.equal(error_bound(made, w, y), error_bound(made, w, y, next(iter(norms))))
    with pytest.raises(ValueError, match=rf"norm is 'L2'; the formulation {made.name} has bounds in the norm '"):
        error_bound(made, w, y, "L2")


@pytest.mark.parametrize("name", ["interval, LS", "square, LS, mixed", "square, weighted, mixed", "cube, LS, mixed"])
def test_bounds_in_float32_are_those_in_float64(name):
    problem, arrays = case(name)
    made, low = (make_formulation(Frame.from_arrays(arrays, dtype), problem) for dtype in ("float64", "float32"))
    y = samples(problem, 3)
    w = 1.05 * solve(made, y, 1e-10).w
    for norm in made.norms:
        exact, found = certify(made, w, y, norm.name), certify(low, w.float(), y.float(), norm.name)
        assert found.value.dtype == torch.float32
        torch.testing.assert_close(found.value.double(), exact.value, rtol=1e-4, atol=0)
        torch.testing.assert_close(found.relative.double(), exact.relative, rtol=1e-3, atol=0)


def test_relative_bounds_are_of_the_solution_and_not_of_the_answer():
    """w = 2 w_h is off by ‖w_h‖, the whole solution: the answer's norm would make it a half."""
    problem, arrays = case("square")
    made = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    y = samples(problem, 4)
    w = solve(made, y, 1e-12).w
    for factor in (1.3, 1.01):
        found = certify(made, factor * w, y)
        assert (found.relative >= (factor - 1)).all()
        assert torch.isfinite(found.relative).all()
    assert (certify(made, 2 * w, y).relative >= 1).all()
    assert torch.isinf(certify(made, 10 * w, y).relative).any()


@pytest.mark.parametrize("name", ["interval", "interval, LS"])
def test_bounds_keep_nothing_alive(name):
    problem, arrays = case(name)
    arrays = arrays.coarsened(arrays.finest_level - 1)
    made = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    alive = [weakref.ref(made), weakref.ref(arrays)]
    y = samples(problem, 1)
    error_bound(made, torch.zeros(1, arrays.frame_size, dtype=torch.float64), y, "energy")
    del made, arrays
    gc.collect()
    assert [ref() for ref in alive] == [None, None]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("kind", "norm"), [("interval", None), ("interval, LS", None), ("interval, LS", "energy")])
def test_bounds_are_those_of_float64_rounded_up(kind, norm, dtype):
    """Evaluated in half precision they would be up to a percent too small."""
    problem, arrays = case(kind)
    low = make_formulation(Frame.from_arrays(arrays, dtype), problem)
    exact = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    y = samples(problem, 4, low.frame.dtype)
    w = solve(low, y, 1e-2).w.to(low.frame.dtype)
    truth = error_bound(exact, w.double(), y.double(), norm)
    for found in (error_bound(low, w, y, norm), certify(low, w, y, norm).value):
        assert found.dtype == low.wide
        assert (found.double() >= truth).all()
        torch.testing.assert_close(found.double(), truth, rtol=1e-6, atol=0)
