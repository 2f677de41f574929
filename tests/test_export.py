"""The exported frame: prolongations, normalisation, D by two routes, the identity of the two forms, files."""

import dataclasses
import errno
import itertools
import os

import numpy as np
import oracles
import pytest
import torch
from scipy import sparse

from fem_frames import FrameArrays, MeshHierarchy, error_norms, export_frame, make_problem
from fem_frames.frame.matrices import (
    cell_differential,
    prolongation,
    quadrature_data,
    quadrature_differential,
    synthesis,
    to_torch,
)

CASES = {
    "quarters": ("quarters", 5, "energy"),
    "quarters-ls": ("quarters", 5, "least-squares"),
    "checkerboard": ("checkerboard", 4, "energy"),
    "lshape": ("lshape", 3, "energy"),
    "cube": ("cube", 2, "energy"),
    "checkerboard-ls": ("checkerboard", 3, "least-squares"),
    "cube-ls": ("cube", 1, "least-squares"),
}


@pytest.fixture(params=CASES, scope="module")
def case(request):
    name, levels, formulation = CASES[request.param]
    problem = make_problem(name)
    hierarchy = MeshHierarchy.from_problem(problem, levels)
    return problem, hierarchy, export_frame(hierarchy, problem, formulation)


def test_prolongation_reproduces_every_coarse_function(case):
    """Values on the coarse mesh, prolonged and evaluated in the middle of coarse cells, are those of the function."""
    _, _, arrays = case
    rng = np.random.default_rng(0)
    nodal = [f for f in arrays.fields if f.degree == 0]  # fluxes through facets: test_flux
    for f, index in itertools.product(nodal, range(1, len(arrays.levels))):
        coarse = np.zeros(arrays.point_count(index - 1))
        coarse[f.free[index - 1]] = rng.standard_normal(len(f.free[index - 1]))
        fine = np.zeros(arrays.point_count(index))
        fine[f.free[index]] = prolongation(arrays, index, f.name) @ coarse[f.free[index - 1]]
        d = arrays.dimension
        on_coarse = np.einsum("knd,kn->kd", arrays.levels[index - 1].gradients, coarse[arrays.levels[index - 1].cells])
        on_fine = np.einsum("knd,kn->kd", arrays.levels[index].gradients, fine[arrays.levels[index].cells])
        np.testing.assert_allclose(on_fine, np.repeat(on_coarse, 2**d, axis=0), atol=1e-11)
        np.testing.assert_array_equal(fine[: len(coarse)], coarse)


def test_prolongation_weights_are_halves_and_ones(case):
    _, _, arrays = case
    for index in range(1, len(arrays.levels)):
        assert set(np.unique(prolongation(arrays, index).data)) <= {0.5, 1.0}


def test_galerkin_identity(case):
    """P_jᵀ A_j P_j = A_{j-1} with DOLFINx's matrices, a constant on coarse cells."""
    _, hierarchy, arrays = case
    d, first = hierarchy.dimension, arrays.first_level
    rng = np.random.default_rng(1)
    a = rng.uniform(0.5, 1.5, len(hierarchy.levels[first].cells))
    free = arrays.fields[0].free
    matrices = []
    for j in range(first, first + len(arrays.levels)):
        values = np.repeat(a, 2 ** (d * (j - first)))
        A = oracles.stiffness(hierarchy.level_points(j), hierarchy.levels[j].cells, values)
        matrices.append(A[free[j - first]][:, free[j - first]])
    for index in range(1, len(matrices)):
        P = prolongation(arrays, index)
        np.testing.assert_allclose((P.T @ matrices[index] @ P).toarray(), matrices[index - 1].toarray(), atol=1e-12)


def test_hats_have_unit_h1_norm(case):
    """By quadrature of DOLFINx's scheme, not by the closed form of the export."""
    _, _, arrays = case
    f = [family for family in arrays.families if family.degree == 0 and family.name != "curl"][-1]
    for index, level in list(enumerate(arrays.levels))[:3]:
        points = arrays.points[: arrays.point_count(index)]
        for dof in range(0, len(f.free[index]), 5):
            hat = np.zeros(len(points))
            hat[f.free[index][dof]] = f.scale[index][dof]
            h1, l2 = error_norms(points, level.cells, hat, lambda x: 0 * x[..., 0], lambda x: 0 * x, degree=2)
            assert h1**2 + (l2 / arrays.length) ** 2 == pytest.approx(1, rel=1e-12)


def test_interval_hats_scale_as_they_should():
    problem = make_problem("quarters")
    arrays = export_frame(MeshHierarchy.from_problem(problem, 6), problem)
    for j, scale in enumerate(arrays.families[0].scale, start=1):
        h = 2.0**-j
        np.testing.assert_allclose(scale, 1 / np.sqrt(2 / h + 2 * h / 3), rtol=1e-13)


def test_frame_of_the_paper_has_its_size():
    problem = make_problem("quarters")
    arrays = export_frame(MeshHierarchy.from_problem(problem, 10), problem, "least-squares")
    assert arrays.families[0].level_sizes == tuple(2**j - 1 for j in range(1, 11))
    assert arrays.families[1].level_sizes == tuple(2**j + 1 for j in range(1, 11))
    assert (arrays.frame_size, arrays.nodal_size) == (4092, 1023 + 1025)


def test_two_routes_to_the_differential_agree(case):
    """Values at quadrature points by basix are those of the cell-wise state, injected to the points."""
    _, _, arrays = case
    for degree in (1, 2, 3):
        at_points = quadrature_differential(arrays, degree)
        state = cell_differential(arrays).toarray().reshape(len(arrays.volumes), -1, arrays.frame_size)
        data = quadrature_data(arrays, degree)
        K, Q, d = data.points.shape
        expected = np.repeat(state[:, None], Q, axis=1)  # (K, Q, m, Nhat)
        if arrays.formulation == "least-squares":
            offset = data.points - arrays.centres[:, None]
            expected[:, :, d : 2 * d] += offset[..., None] / d * state[:, None, 2 * d :]
        actual = at_points.toarray().reshape(K, Q, -1, arrays.frame_size)
        scale = np.abs(expected).max()
        np.testing.assert_allclose(actual, expected, atol=1e-13 * scale)


@pytest.mark.parametrize(("name", "levels"), [("quarters", 5), ("checkerboard", 4), ("lshape", 3), ("cube", 2)])
def test_stable_and_bpx_forms_are_the_same_matrix(name, levels):
    """HᵀA_yH = DᵀC_yD, A_y by DOLFINx and C_y from the exported quadrature data."""
    problem = make_problem(name)
    arrays = export_frame(MeshHierarchy.from_problem(problem, levels), problem)
    y = problem.parameters.sample(1, 3)
    data = quadrature_data(arrays, 2)
    tables = problem.coefficient.tabulate(data.points, data.regions)
    a = problem.coefficient_values(tables, y, data.points)[0]
    D = quadrature_differential(arrays, 2)
    C = sparse.diags(np.repeat((a * data.weights).ravel(), arrays.dimension))
    A = oracles.stiffness(arrays.points, arrays.levels[-1].cells, a[:, 0])
    free = arrays.fields[0].free[-1]
    H = synthesis(arrays)
    np.testing.assert_allclose((D.T @ C @ D).toarray(), (H.T @ A[free][:, free] @ H).toarray(), atol=1e-12)


def condition(name, levels, refinement="red"):
    """cond HᵀAH on the complement of its kernel, a = 1: its nonzero spectrum is that of H Hᵀ A."""
    problem = dataclasses.replace(make_problem(name), refinement=refinement)
    arrays = export_frame(MeshHierarchy.from_problem(problem, levels), problem)
    free, H = arrays.fields[0].free[-1], synthesis(arrays)
    A = oracles.stiffness(arrays.points, arrays.levels[-1].cells, np.ones(len(arrays.volumes)))[free][:, free]
    spectrum = np.sort(np.linalg.eigvals((H @ H.T @ A).toarray()).real)
    D, weights = cell_differential(arrays), np.repeat(arrays.volumes, arrays.dimension)
    top = sparse.linalg.eigsh(D.T @ sparse.diags(weights) @ D, k=1, return_eigenvectors=False)[0]
    assert top == pytest.approx(spectrum[-1], rel=1e-6)
    return spectrum[-1] / spectrum[0]


@pytest.mark.serial
def test_frames_are_uniformly_conditioned():
    """cond A grows like 4^J: 103 at J = 4, 415 at J = 5 on the square."""
    square = [condition("checkerboard", levels) for levels in (3, 4, 5)]
    assert square[1] == pytest.approx(7.1, rel=0.05)
    assert max(square) < 9
    assert condition("cube", 3) == pytest.approx(8.1, rel=0.05)


@pytest.mark.serial
def test_similar_triangles_condition_frames_better():
    """On the L-shape, J = 4, HᵀAH has condition 8.4; by DOLFINx's refinement 12.5."""
    assert condition("lshape", 4, "red") == pytest.approx(8.4, rel=0.02)
    assert condition("lshape", 4, "dolfinx") == pytest.approx(12.5, rel=0.02)


@pytest.mark.serial
@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_torch_matrices_are_the_scipy_ones(layout, dtype):
    problem = make_problem("checkerboard")
    D = cell_differential(export_frame(MeshHierarchy.from_problem(problem, 3), problem))
    w = np.random.default_rng(0).standard_normal(D.shape[1])
    made = to_torch(D, layout, dtype)
    assert made.dtype == dtype
    product = (made @ torch.from_numpy(w).to(dtype)[:, None])[:, 0]
    np.testing.assert_allclose(product.numpy(), D @ w, rtol=0, atol=100 * torch.finfo(dtype).eps * np.abs(w).max())
    with pytest.raises(ValueError, match="coo or csr"):
        to_torch(D, "dense")


def test_levels_without_free_dofs_are_left_out():
    problem = make_problem("lshape")
    hierarchy = MeshHierarchy.from_problem(problem, 3)
    assert export_frame(hierarchy, problem).first_level == 1
    assert export_frame(hierarchy, problem, first_level=2).first_level == 2
    natural = dataclasses.replace(problem, dirichlet=lambda x: np.isclose(x[:, 0], -1))
    assert export_frame(hierarchy, natural).first_level == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda h, p: export_frame(h, make_problem("lshape")), "not of the mesh of lshape"),
        (lambda h, p: export_frame(h, p, "mixed"), "choose from energy, least-squares"),
        (lambda h, p: export_frame(h, p, first_level=9), "first_level is 9; the hierarchy has the levels 0 to 2"),
        (
            lambda h, p: export_frame(h, dataclasses.replace(p, regions=lambda x: 7 * np.ones(len(x), int))),
            r"region tags \[7\]",
        ),
        (lambda h, p: prolongation(export_frame(h, p), 0), "no prolongation to level number 0"),
        (lambda h, p: prolongation(export_frame(h, p), 1, "sigma"), "no family 'sigma'; the frame has u"),
        (lambda h, p: quadrature_data(export_frame(h, p), 0), "degree is 0"),
    ],
)
def test_bad_exports_are_named(call, message):
    problem = make_problem("checkerboard")
    with pytest.raises(ValueError, match=message):
        call(MeshHierarchy.from_problem(problem, 2), problem)


# ---- files ----------------------------------------------------------------------------------------------


@pytest.mark.serial
def test_saved_arrays_come_back_whole(case, tmp_path):
    _, _, arrays = case
    arrays.save(tmp_path / "frame.npz")
    loaded = FrameArrays.load(tmp_path / "frame.npz")
    for name, array in arrays.flat().items():
        np.testing.assert_array_equal(loaded.flat()[name], array)
    assert loaded.record == arrays.record
    assert [p.name for p in tmp_path.iterdir()] == ["frame.npz"]


@pytest.fixture
def saved(tmp_path):
    problem = make_problem("quarters")
    arrays = export_frame(MeshHierarchy.from_problem(problem, 3), problem)
    arrays.save(tmp_path / "frame.npz")
    return tmp_path / "frame.npz"


def rewritten(path, change):
    with np.load(path) as content:
        arrays = dict(content)
    change(arrays)
    np.savez(path, **arrays)
    return path


@pytest.mark.serial
@pytest.mark.parametrize("keep", [0, 10, 0.5, -1])
def test_truncated_files_are_refused(saved, keep):
    content = saved.read_bytes()
    saved.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    with pytest.raises(ValueError, match="cut short or damaged"):
        FrameArrays.load(saved)


@pytest.mark.serial
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("head"), "not written by fem-frames"),
        (lambda a: a.pop("volumes"), "lacks 'volumes'"),
        (lambda a: a.pop("level1.cells"), "lacks 'level1.cells'"),
        (lambda a: a.update(volumes=a["volumes"][1:]), "volumes has shape"),
        (lambda a: a.update(volumes=a["volumes"] * np.nan), "volumes has values that are not finite"),
        (lambda a: a.update(volumes=a["volumes"].astype(np.float32)), "volumes has dtype float32"),
        (lambda a: a.update({"level1.cells": a["level1.cells"] + 100}), "refers to points that do not exist"),
        (
            lambda a: a.update(head=np.array(str(a["head"]).replace('"version": 4', '"version": 99'))),
            "version 99 .* reads version 4",
        ),
        (lambda a: a.update(head=np.array(str(a["head"]).replace("frame arrays", "a cake"))), "holds a cake"),
        (lambda a: a.update(head=np.array([{}], object)), "cut short or damaged|not written"),
    ],
)
def test_foreign_and_damaged_files_are_refused(saved, change, message):
    with pytest.raises(ValueError, match=message):
        FrameArrays.load(rewritten(saved, change))


@pytest.mark.serial
def test_files_that_are_not_there_or_no_archives_are_named(tmp_path):
    with pytest.raises(ValueError, match="there is no file"):
        FrameArrays.load(tmp_path / "absent.npz")
    np.save(tmp_path / "bare.npy", np.ones(3))
    with pytest.raises(ValueError, match="not a file of fem-frames"):
        FrameArrays.load(tmp_path / "bare.npy")


@pytest.mark.serial
def test_unwritable_places_are_named_and_nothing_is_left(saved, tmp_path):
    arrays = FrameArrays.load(saved)
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "absent" / "x.npz", tmp_path / "frame.npz" / "x.npz", tmp_path, tmp_path / "pipe"):
        with pytest.raises(ValueError, match="cannot write"):
            arrays.save(place)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["frame.npz", "pipe"]
    assert not (tmp_path / "pipe").is_file()


@pytest.mark.serial
def test_links_are_followed(saved, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.npz").symlink_to("folder/real.npz")
    FrameArrays.load(saved).save(tmp_path / "link.npz")
    assert (tmp_path / "link.npz").is_symlink()
    FrameArrays.load(tmp_path / "folder" / "real.npz")


@pytest.mark.serial
def test_a_full_disk_loses_nothing(saved, monkeypatch):
    """The write fails half way: the file from before stays, no rest is left."""
    before = saved.read_bytes()
    arrays = FrameArrays.load(saved)

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ValueError, match=r"cannot write .*No space left"):
        arrays.save(saved)
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == ["frame.npz"]
