"""Frames on curved boundaries: D, H and forms against dense matrices and PETSc, bounds, files, and surrogates."""

import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from curved_meshes import ball_problem, disk_problem, pipe_problem, plate_problem
from frames import dense_forms, samples
from oracles import slope, stiffness
from scipy import sparse
from scipy.sparse import linalg
from test_elements import Reaction

from fem_frames import (
    P1,
    RT0,
    Field,
    Frame,
    MeshHierarchy,
    P1Values,
    ReferenceSolutions,
    certify,
    export_frame,
    frame_bounds,
    friedrichs_constant,
    make_formulation,
    solve,
    solve_reference,
)
from fem_frames.frame import matrices
from fem_frames.frame.curvature import distortion
from fem_frames.frame.level_matrices import nodal_differential_matrix
from fem_frames.mesh.simplices import p1_gradients
from fem_frames.solvers import friedrichs
from fem_frames.solvers.bounds import norm_of

pytestmark = pytest.mark.serial
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
CASES = {
    "plate": (plate_problem, 2, "energy"),
    "plate, values": (plate_problem, 2, Reaction.name),
    "plate, LS": (plate_problem, 1, "least-squares"),
    "disk, LS": (disk_problem, 3, "least-squares"),
    "plate, weighted": (plate_problem, 1, "weighted-least-squares"),
    "plate, dolfinx": (lambda: plate_problem(refinement="dolfinx"), 2, "energy"),
    "plate in millimetres": (lambda: plate_problem(unit=1000.0), 2, "energy"),
    "plate in millimetres, LS": (lambda: plate_problem(unit=1000.0), 1, "least-squares"),
    "pipe": (pipe_problem, 1, "energy"),
    "pipe, values": (pipe_problem, 1, Reaction.name),
    "pipe, LS": (pipe_problem, 1, "least-squares"),
    "ball": (ball_problem, 2, "energy"),
    "ball, LS": (ball_problem, 1, "least-squares"),
}


@cache
def case(name):
    make, levels, formulation = CASES[name]
    problem = make()
    arrays = export_frame(MeshHierarchy.from_problem(problem, levels), problem, formulation)
    assert arrays.curved
    return problem, arrays


@cache
def nodal_route(name):
    """(K m, Nhat) D as states of nodal values on the finest mesh, which knows nothing of coarser cells, times H."""
    arrays = case(name)[1]
    return nodal_differential_matrix(arrays).to_scipy() @ matrices.synthesis(arrays).toarray()


@cache
def nodal_rounding(name):
    """A bound for the rounding of `nodal_route`, whose large terms cancel."""
    arrays = case(name)[1]
    sizes = abs(nodal_differential_matrix(arrays).to_scipy()) @ abs(matrices.synthesis(arrays)).toarray()
    return 4 * np.finfo(np.float64).eps * sizes.max()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_d_is_the_nodal_differential_times_h(name, dtype):
    arrays, exact = case(name)[1], nodal_route(name)
    frame = Frame.from_arrays(arrays, dtype)
    tolerance = 50 * torch.finfo(dtype).eps * np.abs(exact).max() + nodal_rounding(name)
    np.testing.assert_allclose(frame.D.to_dense().double(), exact, rtol=0, atol=tolerance)
    z = torch.randint(-1, 2, (frame.D.shape[0],), generator=torch.Generator().manual_seed(0)).to(dtype)
    back = exact.T @ z.double().numpy()
    np.testing.assert_allclose(frame.D.T(z).double(), back, rtol=0, atol=len(arrays.levels) * 20 * tolerance)


@pytest.mark.parametrize("name", CASES)
def test_all_realisations_of_d_and_h_agree(name):
    """Basix's tables on extended ancestors, their Taylor polynomials, gathered and sparse D share no step with it."""
    arrays, exact = case(name)[1], nodal_route(name)
    close = dict(rtol=0, atol=1e-12 * np.abs(exact).max())
    rows = np.repeat(np.sqrt(arrays.volumes), len(exact) // len(arrays.volumes))[:, None]
    np.testing.assert_allclose(rows * matrices.cell_differential(arrays).toarray(), exact, **close)
    np.testing.assert_allclose(rows * matrices.quadrature_differential(arrays, 1).toarray(), exact, **close)
    for differential in ("gather", "sparse"):
        frame = Frame.from_arrays(arrays, "float64", differential=differential)
        np.testing.assert_allclose(frame.D.to_dense(), exact, **close)
    H = matrices.synthesis(arrays).toarray()
    np.testing.assert_allclose(frame.H.to_dense(), H, rtol=0, atol=1e-12 * np.abs(H).max())


@pytest.mark.parametrize("name", ["plate", "plate, LS", "plate, weighted", "pipe", "ball, LS"])
def test_both_forms_of_the_matrix_are_that_of_basix(name):
    """D has D w exactly at quadrature points too, not only at centres."""
    problem, arrays = case(name)
    formulation = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    y = samples(problem, 2)
    w = torch.randn(2, arrays.frame_size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    exact = np.einsum("bij,bj->bi", dense_forms(problem, arrays, y.numpy()), w)
    close = dict(rtol=0, atol=1e-10 * np.abs(exact).max())
    np.testing.assert_allclose(formulation.stable(y)(w), exact, **close)
    np.testing.assert_allclose(formulation.bpx(y)(w), exact, **close)


def test_the_dense_oracle_is_not_blind():
    """The same frame with its points moved back has another D."""
    flat = export_frame(MeshHierarchy.from_problem(plate_problem(False), 2), plate_problem(False), "energy")
    assert not flat.curved
    difference = np.abs(Frame.from_arrays(flat, "float64").D.to_dense().numpy() - nodal_route("plate")).max()
    assert difference > 0.01


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("disk, LS", "plate in millimetres, LS")])
def test_solutions_are_those_of_petsc(name):
    problem, arrays = case(name)
    formulation = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    y = problem.parameters.sample(2, 0)
    reference = solve_reference(problem, y, arrays.finest_level, arrays.formulation)
    w = solve(formulation, torch.as_tensor(y), 1e-12, max_iterations=5000).w
    for field, values in formulation.synthesise(w).items():
        exact = reference.fields[field]
        np.testing.assert_allclose(values, exact, rtol=0, atol=1e-7 * np.abs(exact).max())
    np.testing.assert_allclose(formulation.loss(w, torch.as_tensor(y)), reference.loss, rtol=1e-7)


@pytest.mark.parametrize("formulation", ["energy", "least-squares"])
@pytest.mark.parametrize(("make", "exact", "finest"), [(disk_problem, np.pi / 8, 5), (ball_problem, 4 * np.pi / 45, 3)])
def test_the_integral_of_u_converges_with_h2_only_if_points_are_moved(make, exact, finest, formulation):
    """-Δu = 1 on the disk and the ball."""
    if make is ball_problem and formulation == "least-squares":
        finest = 2
    errors = {}
    for curves in (True, False):
        problem, found = make(curves), []
        arrays = export_frame(MeshHierarchy.from_problem(problem, finest), problem, formulation)
        for level in range(max(1, arrays.first_level), finest + 1):
            short = arrays.coarsened(level)
            made = make_formulation(Frame.from_arrays(short, "float64"), problem)
            u = made.synthesise(solve(made, torch.ones(1, 1, dtype=torch.float64), 1e-10).w)["u"][0].numpy()
            found.append(abs(short.volumes @ u[short.levels[-1].cells].mean(axis=1) - exact))
        errors[curves] = found
    assert 1.6 < slope(errors[True][-3:]) < 2.3
    assert slope(errors[False][-3:]) < 1
    assert errors[False][-1] > 3 * errors[True][-1]


@pytest.mark.parametrize(("formulation", "finest"), [("energy", 4), ("least-squares", 2)])
def test_frame_bounds_are_those_of_the_polygon_but_for_a_factor(formulation, finest):
    found = {}
    for curves in (True, False):
        problem = plate_problem(curves)
        arrays = export_frame(MeshHierarchy.from_problem(problem, finest), problem, formulation)
        made = [Frame.from_arrays(arrays.coarsened(level), "float64") for level in (finest - 1, finest)]
        bounds = [frame_bounds(make_formulation(frame, problem), 1e-2) for frame in made]
        found[curves] = [upper / lower for lower, upper in bounds]
    growth = {curves: values[1] / values[0] for curves, values in found.items()}
    assert growth[True] < 1.3 * growth[False]
    assert found[True][1] < 2 * found[False][1]


# ---- bounds


@pytest.mark.parametrize("name", ["plate", "plate, LS", "plate, values"])
def test_error_bounds_hold(name):
    problem, arrays = case(name)
    formulation = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    y = torch.as_tensor(problem.parameters.sample(3, 0))
    w = solve(formulation, y, 1e-12, max_iterations=5000).w
    noise = torch.randn(w.shape, dtype=w.dtype, generator=torch.Generator().manual_seed(0))
    bound = certify(formulation, w + 0.01 * noise, y)
    error = norm_of(formulation, 0.01 * noise, y)
    if bound.norm.against == "exact solution":  # for which the discrete solution stands in
        error = error - formulation.loss(w, y).sqrt()
    assert (error <= bound.value).all()


def conforming_constant(arrays):
    """1/√λ for P1 on the finest mesh: Friedrichs' constant from below."""
    cells, free, d = arrays.levels[-1].cells, arrays.fields[0].free[-1], arrays.dimension
    K = stiffness(arrays.points, cells, np.ones(len(cells)))
    local = arrays.volumes[:, None, None] * (1 + np.eye(d + 1)) / ((d + 1) * (d + 2))
    rows, columns = (np.broadcast_to(a, local.shape).ravel() for a in (cells[:, :, None], cells[:, None]))
    M = sparse.csc_array((local.ravel(), (rows, columns)), shape=K.shape)
    parts = (matrix[free][:, free].tocsc() for matrix in (K, M))
    return linalg.eigsh(next(parts), 1, next(parts), sigma=0, return_eigenvectors=False)[0] ** -0.5


def test_friedrichs_constant_from_a_coarse_level_bounds_that_of_the_finest_domain(monkeypatch):
    """That of the disk is 1/j₀₁."""
    problem = disk_problem()
    arrays = export_frame(MeshHierarchy.from_problem(problem, 5), problem, "least-squares")
    least = conforming_constant(arrays)
    for cells, most in ((10**4, 1.001), (600, 1.05), (130, 1.12), (33, 1.28)):
        monkeypatch.setattr(friedrichs, "CELLS", cells)
        found = friedrichs_constant(replace(arrays))  # a copy, for which nothing is remembered
        assert least < found < most / 2.404825557695773


def test_the_distortion_bounds_how_much_the_constant_grows():
    """Both meshes have the same cells, and the map between them takes hats to hats."""
    of_disk, of_polygon = (
        export_frame(MeshHierarchy.from_problem(problem, 4), problem)
        for problem in (disk_problem(), disk_problem(False))
    )
    growth = conforming_constant(of_disk) / conforming_constant(of_polygon)
    assert 1.05 < growth < distortion(of_disk, 0)
    assert distortion(of_disk, 0) > distortion(of_disk, 1) > distortion(of_disk, 4) == 1
    assert distortion(of_polygon, 0) == 1


# ---- elements of one's own


class Bare(P1Values):
    """Other states, with a shift of their own and no word on moved cells."""

    name = "test-bare"

    def shift(self, states, offset):
        return super().shift(states, offset)


class BareReaction(Reaction):
    name = "test-bare-reaction"
    fields = (Field("u", Bare),)


class Told(Bare):
    name = "test-told"

    def transport(self, states, jacobian):
        return P1Values.transport(self, states, jacobian)


class ToldReaction(Reaction):
    name = "test-told-reaction"
    fields = (Field("u", Told),)


def test_elements_without_a_transport_are_refused_on_curved_boundaries_only():
    problem = plate_problem()
    hierarchy = MeshHierarchy.from_problem(problem, 1)
    with pytest.raises(ValueError, match=r"'test-bare' does not say .*define transport\(states, jacobian\), or leave"):
        export_frame(hierarchy, problem, "test-bare-reaction")
    flat = plate_problem(False)
    export_frame(MeshHierarchy.from_problem(flat, 1), flat, "test-bare-reaction")
    found, exact = (export_frame(hierarchy, problem, name) for name in ("test-told-reaction", Reaction.name))
    D, exact = (Frame.from_arrays(a, "float64").D.to_dense() for a in (found, exact))
    assert torch.equal(D, exact)


@pytest.mark.parametrize("kind", [P1, P1Values, RT0])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_transported_states_are_those_on_the_image_of_a_cell(kind, d):
    """Of every nodal function, whose value at points or flux through facets stays one."""
    element, rng = kind(d), np.random.default_rng(0)
    corners = rng.standard_normal((d + 1, d))
    jacobian = np.eye(d) + 0.4 * rng.uniform(-1, 1, (d, d))
    assert np.linalg.det(jacobian) > 0
    cell = np.arange(d + 1)[None]
    before, after = (element.states(x, cell, p1_gradients(x, cell)[0]) for x in (corners, corners @ jacobian.T + 3.0))
    np.testing.assert_allclose(element.transport(before, jacobian), after, atol=1e-12 * np.abs(after).max())


# ---- MPI

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from curved_meshes import pipe_problem, plate_problem
from fem_frames import solve_reference
for name, problem, levels, formulation, distribute in (
    ("plate", plate_problem(), 2, "energy", "mesh"),
    ("flux", plate_problem(), 1, "least-squares", "mesh"),
    ("pipe", pipe_problem(), 1, "energy", "samples"),
):
    y = problem.parameters.sample(2, 0)
    solve_reference(problem, y, levels, formulation, distribute=distribute).save(f"{name}.npz")
"""


def test_reference_solutions_on_two_ranks_equal_those_on_one(tmp_path):
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parent), os.environ.get("PYTHONPATH", "")])}
    command = ["mpirun", "-n", "2", sys.executable, "-c", PROGRAM, str(here)]
    streams = dict(capture_output=True, text=True, timeout=300, check=False)
    done = subprocess.run(command, cwd=tmp_path, env=environment, **streams)
    assert done.returncode == 0, done.stdout + done.stderr
    for name, problem, levels, formulation in (
        ("plate", plate_problem(), 2, "energy"),
        ("flux", plate_problem(), 1, "least-squares"),
        ("pipe", pipe_problem(), 1, "energy"),
    ):
        found = ReferenceSolutions.load(tmp_path / f"{name}.npz")
        alone = solve_reference(problem, found.y, levels, formulation)
        for field, values in alone.fields.items():
            np.testing.assert_allclose(found.fields[field], values, rtol=0, atol=1e-8 * np.abs(values).max())
