"""Coarse meshes: arrays, gmsh files and everything that can be wrong with them."""

import numpy as np
import pytest
from mpi4py import MPI

from fem_frames import Grid, MeshArrays, read_gmsh
from fem_frames.mesh.geometry import boundary_facets, orient, signed_volumes

SQUARE = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
TWO = np.array([[0, 1, 2], [0, 2, 3]])


HANGING = np.array([*SQUARE, [2.0, 0.5], [1.0, 0.5]])


def test_arrays_are_checked_copies():
    points = SQUARE.copy()
    mesh = MeshArrays(points, TWO)
    points[:] = 0
    assert mesh.points.max() == 1
    assert mesh.regions.tolist() == [0, 0]
    with pytest.raises(ValueError, match="read-only"):
        mesh.points[0] = 1


def nan_points():
    points = SQUARE.copy()
    points[2, 1] = np.nan
    return points


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(points=nan_points(), cells=TWO), "point 2 has a NaN"),
        (dict(points=SQUARE, cells=[[0, 1, 2], [0, 2, 4]]), "cell 1 refers to the points .* numbered 0 to 3"),
        (dict(points=SQUARE, cells=[[0, 1, -1]]), "cell 0 refers"),
        (dict(points=SQUARE, cells=[[0, 1, 1], [0, 2, 3]]), "cell 0 .* degenerate"),
        (dict(points=SQUARE, cells=[[0, 1, 2], [0, 3, 2]]), "cell 1 .* is inverted: .* positive order"),
        (dict(points=SQUARE, cells=[[0, 1, 2], [0, 1, 2], [0, 2, 3]]), "overlap|more than two"),
        (dict(points=[*SQUARE[:3], [0.9, 0.4]], cells=[[0, 1, 2], [0, 3, 2]]), "cells 0 and 1 .* overlap"),
        (dict(points=[*SQUARE, [2.0, 2.0]], cells=TWO), "point 4 belongs to no cell"),
        (
            dict(points=HANGING, cells=[[0, 1, 2], [0, 2, 3], [1, 4, 5], [5, 4, 2]]),
            r"point 5 lies on the facet \[1, 2\]",
        ),
        (dict(points=SQUARE, cells=TWO, facets=[[0, 1, 2]], facet_tags=[1]), "facets have 3 points each"),
        (dict(points=SQUARE, cells=TWO, facets=[[0.0, 1.7]], facet_tags=[1]), "facets must be whole numbers"),
        (dict(points=SQUARE, cells=[[0, 1, 2, 3]]), "only triangles"),
        (dict(points=SQUARE, cells=np.zeros((0, 3), int)), "at least one cell"),
        (dict(points=SQUARE, cells=TWO.astype(float)), "whole numbers"),
        (dict(points=SQUARE.ravel(), cells=TWO), "2 axes"),
        (dict(points=np.zeros((4, 4)), cells=TWO), "dimension 1, 2 or 3"),
        (dict(points=[["a", "b"]], cells=TWO), "must be numbers"),
        (dict(points=SQUARE, cells=TWO, regions=[1]), "1 region tags were given for 2 cells"),
        (dict(points=SQUARE, cells=TWO, facets=[[0, 9]], facet_tags=[1]), "facet 0 refers"),
        (dict(points=SQUARE, cells=TWO, facets=[[0, 1]], facet_tags=[1, 2]), "2 facet tags"),
    ],
)
def test_bad_arrays_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        MeshArrays(**arguments)


@pytest.mark.parametrize("shape", [(), (0,), (1, 1, 1, 1), (2, -1), (1.5, 1), 2.5, "ab"])
def test_bad_grids_are_refused(shape):
    with pytest.raises(ValueError, match="Grid shape"):
        Grid(shape)
    for upper in ((1.0, 0.0), (np.nan, 1.0), (np.inf, 1.0)):
        with pytest.raises(ValueError, match="empty"):
            Grid((1, 1), (0.0, 0.0), upper)
    assert Grid(2, upper=np.array([3.0])) == Grid((2,), (0.0,), (3.0,))


@pytest.mark.parametrize("d", [1, 2, 3])
def test_orient_mends_every_inverted_cell(d):
    points = np.concatenate([np.zeros((1, d)), np.eye(d)])
    cells = np.arange(d + 1)[None, ::-1]
    fixed = orient(points, cells)
    assert (signed_volumes(points, fixed) > 0).all()
    assert set(fixed[0]) == set(cells[0])
    MeshArrays(points, fixed)


def test_boundary_facets_are_those_of_one_cell():
    assert sorted(map(tuple, boundary_facets(TWO).tolist())) == [(0, 1), (0, 3), (1, 2), (2, 3)]


GMSH_2 = """$MeshFormat
2.2 0 8
$EndMeshFormat
$Nodes
5
1 0 0 0
2 1 0 0
3 1 1 0
4 0 1 0
5 9 9 0
$EndNodes
$Elements
4
1 1 2 7 1 1 2
2 1 2 8 2 3 4
3 2 2 5 1 1 2 3
4 2 2 6 2 1 4 3
$EndElements
"""


def test_gmsh_file_brings_tags_and_drops_unused_points(tmp_path):
    path = tmp_path / "square.msh"
    path.write_text(GMSH_2)
    mesh = read_gmsh(path)
    assert mesh.points.shape == (4, 2)
    assert mesh.regions.tolist() == [5, 6]
    assert (signed_volumes(mesh.points, mesh.cells) > 0).all()
    assert dict(zip(map(tuple, mesh.facets.tolist()), mesh.facet_tags.tolist(), strict=True)) == {(0, 1): 7, (2, 3): 8}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not a mesh", "cannot be read as a gmsh mesh"),
        (GMSH_2[:120], "cannot be read as a gmsh mesh|holds cells"),
        (
            GMSH_2.replace("3 2 2 5 1 1 2 3\n4 2 2 6 2 1 4 3", "3 3 2 5 1 1 2 3 4\n4 15 2 6 2 1"),
            "only first-order simplices",
        ),
        (GMSH_2.replace("3 1 1 0", "3 1 1 0.5"), "surface or curve in space"),
    ],
)
def test_bad_gmsh_files_are_refused(tmp_path, content, message):
    path = tmp_path / "bad.msh"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        read_gmsh(path)


def test_missing_gmsh_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no mesh file .*absent\.msh"):
        read_gmsh(tmp_path / "absent.msh")


def test_dolfinx_mesh_is_gathered_alike_on_any_number_of_ranks(comm):
    from dolfinx import mesh as dmesh

    from fem_frames.fenicsx import door

    whole = door.arrays_of(dmesh.create_unit_square(MPI.COMM_SELF, 3, 2))
    parts = door.arrays_of(dmesh.create_unit_square(comm, 3, 2))
    np.testing.assert_array_equal(whole.cells, parts.cells)
    np.testing.assert_allclose(whole.points, parts.points, atol=1e-15)
    assert len(whole.points) == 12
    assert signed_volumes(parts.points, parts.cells).sum() == pytest.approx(1)


def test_tags_of_a_dolfinx_mesh_come_along(comm):
    from dolfinx import mesh as dmesh

    from fem_frames.fenicsx import door

    mesh = dmesh.create_unit_square(comm, 4, 4)
    cells = np.sort(dmesh.locate_entities(mesh, 2, lambda x: x[0] <= 0.5)).astype(np.int32)
    facets = np.sort(dmesh.locate_entities_boundary(mesh, 1, lambda x: np.isclose(x[0], 0))).astype(np.int32)
    cell_tags = dmesh.meshtags(mesh, 2, cells, np.full(len(cells), 3, np.int32))
    facet_tags = dmesh.meshtags(mesh, 1, facets, np.full(len(facets), 9, np.int32))
    arrays = door.arrays_of(mesh, cell_tags, facet_tags)
    left = arrays.points[arrays.cells].mean(axis=1)[:, 0] < 0.5
    np.testing.assert_array_equal(arrays.regions, np.where(left, 3, 0))
    assert len(arrays.facets) == 4
    assert (arrays.facet_tags == 9).all()
    assert np.abs(arrays.points[arrays.facets][..., 0]).max() == 0


def test_tags_of_the_wrong_dimension_are_refused():
    from dolfinx import mesh as dmesh

    from fem_frames.fenicsx import door

    mesh = dmesh.create_unit_square(MPI.COMM_SELF, 2, 2)
    facets = np.sort(dmesh.locate_entities_boundary(mesh, 1, lambda x: np.isclose(x[0], 0))).astype(np.int32)
    tags = dmesh.meshtags(mesh, 1, facets, np.full(len(facets), 9, np.int32))
    with pytest.raises(ValueError, match="dimension 1 were given where dimension 2 is expected"):
        door.arrays_of(mesh, tags)
    assert len(door.arrays_of(mesh, None, tags).facets) == 2


def test_a_slit_in_a_dolfinx_mesh_stays():
    """Two triangles that only touch, each with points of its own."""
    from fem_frames.fenicsx import door

    points = np.concatenate([SQUARE[[0, 1, 2]], SQUARE[[0, 2, 3]]])
    mesh = door.create(points, np.arange(6).reshape(2, 3), MPI.COMM_SELF)
    assert len(door.arrays_of(mesh).points) == 6


def test_quadrilaterals_are_refused():
    from dolfinx import mesh as dmesh

    from fem_frames.fenicsx import door

    with pytest.raises(ValueError, match="straight intervals, triangles or tetrahedra"):
        door.arrays_of(dmesh.create_unit_square(MPI.COMM_SELF, 2, 2, dmesh.CellType.quadrilateral))
