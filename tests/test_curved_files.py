"""Frames on curved boundaries: coarser levels, points, files, problems that do not fit, surrogates, commands."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from curved_meshes import disk_problem, plate_problem
from small_runs import call_command
from test_curved import case

from fem_frames import Circle, Frame, FrameArrays, MeshHierarchy, export_frame, make_formulation
from fem_frames.mesh.location import locate
from fem_frames.mesh.simplices import p1_gradients
from training import Configuration, Surrogate, train

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("formulation", ["energy", "least-squares"])
def test_a_coarsened_frame_is_that_of_the_coarse_hierarchy(formulation):
    problem = plate_problem(neumann={"out": -1.0})
    arrays = export_frame(MeshHierarchy.from_problem(problem, 2), problem, formulation).coarsened(1)
    exact = export_frame(MeshHierarchy.from_problem(problem, 1), problem, formulation)
    for name, table in exact.flat().items():
        np.testing.assert_allclose(arrays.flat()[name], table, rtol=1e-12, atol=1e-14, err_msg=name)


@pytest.mark.parametrize("name", ["ball", "pipe", "plate", "disk, LS"])
def test_points_are_located_between_the_coarse_polygon_and_the_curve(name):
    arrays = case(name)[1]
    cells = arrays.levels[-1].cells
    hats = np.random.default_rng(0).dirichlet(np.ones(cells.shape[1]), len(cells))
    x = np.einsum("kn,knd->kd", hats, arrays.points[cells])
    cell, found = locate(x, arrays.points, arrays.levels, nested=False)
    np.testing.assert_array_equal(cell, np.arange(len(cells)))
    np.testing.assert_allclose(found, hats, atol=1e-9)


def test_nested_search_would_lose_points():
    arrays = case("disk, LS")[1]
    with pytest.raises(ValueError, match="lies outside the domain"):
        locate(arrays.points, arrays.points, arrays.levels)
    locate(arrays.points, arrays.points, arrays.levels, nested=False)


def test_a_frame_file_needs_no_curves(tmp_path):
    problem, arrays = case("plate, LS")
    arrays.save(tmp_path / "frame.npz")
    found = FrameArrays.load(tmp_path / "frame.npz")
    assert found.curved
    assert found.record["curved"] == ["left", "right"]
    D, exact = (Frame.from_arrays(a, "float64").D.to_dense() for a in (found, arrays))
    assert torch.equal(D, exact)
    make_formulation(Frame.from_arrays(found, "float64"), problem)


def test_plain_frames_do_not_record_curves():
    problem = plate_problem(False)
    assert "curved" not in export_frame(MeshHierarchy.from_problem(problem, 1), problem).record


def test_inverted_cells_in_a_file_are_refused(tmp_path):
    arrays = case("plate")[1]
    points = arrays.points.copy()
    cells = arrays.levels[-1].cells
    corner = next(p for p in cells[0] if p >= arrays.point_count(len(arrays.levels) - 2))
    others = [p for p in cells[0] if p != corner]
    points[corner] = 1.1 * points[others].mean(axis=0) - 0.1 * points[corner]  # beyond the opposite facet
    gradients, volumes = p1_gradients(points, cells)
    levels = (*arrays.levels[:-1], replace(arrays.levels[-1], gradients=gradients))
    centres = points[cells].mean(axis=1)
    replace(arrays, points=points, levels=levels, volumes=volumes, centres=centres).save(tmp_path / "frame.npz")
    with pytest.raises(ValueError, match="a cell of level 2 is inverted: the file is damaged"):
        FrameArrays.load(tmp_path / "frame.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"curved": {}}, r"its boundary is curved on \[\], that of the frame on \['left', 'right'\]; export it again"),
        ({"curved": {"left": Circle((0.6, 0.5), 0.25)}}, r"curved on \['left'\], that of the frame on"),
        (
            {"curved": {"left": Circle((0.6, 0.5), 0.25), "right": Circle((1.5, 0.45), 0.21)}},
            "boundary points of the frame do not lie on its curves",
        ),
    ],
)
def test_a_problem_with_other_curves_does_not_fit_the_frame(change, message):
    problem, arrays = case("plate")
    other = replace(problem, **change)
    with pytest.raises(ValueError, match=message):
        make_formulation(Frame.from_arrays(arrays, "float64"), other)
    with pytest.raises(ValueError, match="the hierarchy does not follow the curves of custom"):
        export_frame(MeshHierarchy.from_problem(problem, 1), other)


def test_a_surrogate_works_without_the_curves(tmp_path):
    """Only its frame knows of them; its bound and values at points near the curve come from there."""
    problem = disk_problem()
    arrays = export_frame(MeshHierarchy.from_problem(problem, 3), problem, "least-squares")
    arrays.save(tmp_path / "frame.npz")
    settings = Configuration(frame=str(tmp_path / "frame.npz"), epochs=3, test_samples=4, batch=8)
    train(settings, tmp_path / "run", problem=problem)
    surrogate = Surrogate.load(tmp_path / "run")
    y = np.array([[1.5]])
    assert surrogate.arrays.curved
    assert torch.isfinite(surrogate.certify(y).value).all()
    nodes = arrays.levels[-1].cells[0].tolist()
    outside = 0.99 * np.array([[np.cos(np.pi / 8), np.sin(np.pi / 8)]])  # of the octagon, in the disk
    values = surrogate.at(np.concatenate([arrays.points[nodes], outside]), y)["u"]
    torch.testing.assert_close(values[:, :3], surrogate(y)["u"][:, nodes])
    with pytest.raises(ValueError, match="lies outside the domain"):
        surrogate.at(1.1 * outside, y)


FILE = """
import numpy as np
from fem_frames import ByRegion, Circle, MeshArrays, Problem, Uniform

k = np.arange(8)
points = np.concatenate([[[0, 0]], np.stack([np.cos(np.pi * k / 4), np.sin(np.pi * k / 4)], axis=1)])
mesh = MeshArrays(points, np.stack([0 * k, 1 + k, 1 + (k + 1) % 8], axis=1))
problem = Problem(mesh, ByRegion.each(1), Uniform((0.5,), (2.0,)), curved={"all": Circle((0, 0), 1)})
"""


def test_commands_follow_the_curves_of_a_problem_file(tmp_path):
    """Export, reference, training against it, and a query of the surrogate."""
    (tmp_path / "disk.py").write_text(FILE)
    common = ["--problem", "disk.py", "--formulation", "energy", "--levels", 3]
    call_command("export", *common, "--out", "frame.npz", cwd=tmp_path)
    assert FrameArrays.load(tmp_path / "frame.npz").volumes.sum() == pytest.approx(32 * np.sin(np.pi / 32))
    call_command("reference", *common, "--samples", 3, "--seed", 7, "--out", "A.npz", cwd=tmp_path)
    call_command("train", *common, "--epochs", 4, "--test-samples", 3, "--out", "run", cwd=tmp_path)
    said = call_command("query", "run", "--y", "1", "--tol", "1e-6", "--json", cwd=tmp_path).stdout
    assert json.loads(said.strip().splitlines()[-1])
