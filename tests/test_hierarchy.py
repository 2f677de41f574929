"""Nested meshes: children, points, regions and boundary parts."""

import dataclasses
import hashlib

import numpy as np
import pytest

from fem_frames import ByRegion, Grid, MeshArrays, MeshHierarchy, Problem, Uniform, make_problem
from fem_frames.fenicsx.refinement import coarse_mesh
from fem_frames.mesh.geometry import signed_volumes

SKEW = MeshArrays(
    np.array([[0.0, 0.0], [1.1, 0.1], [2.3, -0.2], [0.2, 0.9], [1.3, 1.2], [2.1, 0.8]]),
    np.array([[0, 1, 4], [0, 4, 3], [1, 2, 5], [1, 5, 4]]),
    regions=[3, 3, 8, 8],
    facets=[[0, 3], [2, 5]],
    facet_tags=[1, 2],
)
CASES = {
    "interval": (lambda: coarse_mesh(Grid((3,))), 5),
    "grid": (lambda: coarse_mesh(Grid((2, 1))), 4),
    "skew": (lambda: SKEW, 4),
    "skew-dolfinx": (lambda: SKEW, 4),
    "cube": (lambda: coarse_mesh(Grid((1, 2, 1), upper=(1.0, 2.0, 0.7))), 3),
}


@pytest.fixture(params=CASES, scope="module")
def hierarchy(request):
    make, levels = CASES[request.param]
    return MeshHierarchy.refine(make(), levels, "dolfinx" if "dolfinx" in request.param else "red")


def volumes(hierarchy, j):
    return np.abs(signed_volumes(hierarchy.points, hierarchy.levels[j].cells))


def test_children_are_contiguous_and_tile_their_parent(hierarchy):
    d = hierarchy.dimension
    for j in range(1, len(hierarchy.levels)):
        parents, children = volumes(hierarchy, j - 1), volumes(hierarchy, j)
        np.testing.assert_allclose(children.reshape(-1, 2**d).sum(axis=1), parents, rtol=1e-13)
        np.testing.assert_allclose(children, np.repeat(parents, 2**d) / 2**d, rtol=1e-10)


def test_child_midpoints_lie_in_their_parents(hierarchy):
    d = hierarchy.dimension
    for j in range(1, len(hierarchy.levels)):
        corners = hierarchy.points[np.repeat(hierarchy.levels[j - 1].cells, 2**d, axis=0)]
        lifted = np.concatenate([np.swapaxes(corners, 1, 2), np.ones((len(corners), 1, d + 1))], axis=1)
        middle = np.concatenate([hierarchy.centres(j), np.ones((len(corners), 1))], axis=1)
        barycentric = np.linalg.solve(lifted, middle[..., None])[..., 0]
        assert barycentric.min() > 0.01


def test_points_of_a_level_come_first_and_new_ones_halve_edges(hierarchy):
    count = len(hierarchy.level_points(0))
    for level in hierarchy.levels[1:]:
        middle = hierarchy.points[level.ends].mean(axis=1)
        np.testing.assert_array_equal(hierarchy.points[count : level.point_count], middle)
        assert (level.ends[:, 0] < level.ends[:, 1]).all()
        assert level.ends.max() < count
        count = level.point_count
    assert count == len(hierarchy.points)
    assert len(np.unique(hierarchy.points.round(9), axis=0)) == count


def test_meshes_conform(hierarchy):
    for j, level in enumerate(hierarchy.levels):
        cells = level.cells.copy()
        inverted = signed_volumes(hierarchy.points, cells) < 0
        cells[inverted, :2] = cells[inverted, 1::-1]
        MeshArrays(hierarchy.level_points(j), cells)  # checks every facet


def test_shapes_do_not_degenerate(hierarchy):
    def quality(j):
        corners = hierarchy.points[hierarchy.levels[j].cells]
        edges = np.linalg.norm(corners[:, :, None] - corners[:, None], axis=-1).max(axis=(1, 2))
        return (volumes(hierarchy, j) / edges**hierarchy.dimension).min()

    assert quality(-1) > 0.5 * quality(min(2, len(hierarchy.levels) - 1))


def test_boundary_facets_stay_in_the_facet_they_come_from(hierarchy):
    coarse = hierarchy.points[hierarchy.levels[0].facets]  # (F, d, d)
    origin = coarse[hierarchy.finest.facet_origin]
    middle = hierarchy.points[hierarchy.finest.facets].mean(axis=1)
    inside = np.concatenate([np.swapaxes(origin, 1, 2), np.ones((len(origin), 1, hierarchy.dimension))], axis=1)
    target = np.concatenate([middle, np.ones((len(middle), 1))], axis=1)
    for matrix, point in zip(inside[::7], target[::7], strict=True):
        weights, *_ = np.linalg.lstsq(matrix, point, rcond=None)
        np.testing.assert_allclose(matrix @ weights, point, atol=1e-12)
        assert weights.min() > -1e-12


def test_regions_and_boundary_parts_are_inherited():
    problem = Problem(SKEW, ByRegion({3: 0, 8: 1}), Uniform((1.0, 1.0), (2.0, 2.0)), dirichlet=(2,))
    hierarchy = MeshHierarchy.from_problem(problem, 3)
    np.testing.assert_array_equal(hierarchy.regions(problem), np.repeat([3, 3, 8, 8], 4**3))
    for j, fixed in enumerate(hierarchy.fixed_points(problem)):
        start, end = SKEW.points[2], SKEW.points[5]
        offset = hierarchy.level_points(j) - start
        on_edge = np.abs(offset @ np.array([-(end - start)[1], (end - start)[0]])) < 1e-9
        np.testing.assert_array_equal(fixed, on_edge)
        assert fixed.sum() == 2**j + 1


def test_dirichlet_part_by_a_function_of_x():
    problem = Problem(
        Grid((1, 1)),
        ByRegion.each(1),
        Uniform((1.0,), (2.0,)),
        dirichlet=lambda x: np.isclose(x[:, 0] * (1 - x[:, 1]), 0),
    )
    hierarchy = MeshHierarchy.from_problem(problem, 3)
    x = hierarchy.points
    np.testing.assert_array_equal(hierarchy.fixed_points(problem)[-1], (x[:, 0] == 0) | (x[:, 1] == 1))


@pytest.mark.parametrize(
    ("dirichlet", "message"),
    [
        ((4,), r"no boundary facet carries the tag 4; the mesh has 1, 2"),
        (lambda x: x[:, 0] < -5, "u is given on no facet"),
        (lambda x: x[:, 0] < 0.95, "ends inside the boundary facet"),
        (lambda x: (x[:, 0] < 0.3) & (x[:, 1] < 0.1), "ends inside the boundary facet"),
        (lambda x: x, r"values of shape \(\d+, 2\) for x"),
        ((-1,), "no boundary facet carries the tag -1"),
    ],
)
def test_bad_boundary_parts_are_named(dirichlet, message):
    problem = Problem(SKEW, ByRegion({3: 0, 8: 1}), Uniform((1.0, 1.0), (2.0, 2.0)), dirichlet=dirichlet)
    with pytest.raises(ValueError, match=message):
        MeshHierarchy.from_problem(problem, 1).fixed_points(problem)


def test_a_hierarchy_of_another_mesh_is_told_apart():
    problem = Problem(SKEW, ByRegion({3: 0, 8: 1}), Uniform((1.0, 1.0), (2.0, 2.0)))
    hierarchy = MeshHierarchy.from_problem(problem, 1)
    hierarchy.check_problem(dataclasses.replace(problem, source=2.0))
    other = MeshArrays(SKEW.points, SKEW.cells, regions=[8, 8, 3, 3])
    for change in ({"mesh": other}, {"mesh": Grid((1, 1))}, {"refinement": "dolfinx"}):
        with pytest.raises(ValueError, match="not of the mesh of custom"):
            hierarchy.check_problem(dataclasses.replace(problem, **change))


def test_every_part_of_the_domain_needs_dirichlet_data():
    points = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    apart = MeshArrays(np.concatenate([points, points + 5]), [[0, 1, 2], [3, 4, 5]])
    problem = Problem(apart, ByRegion.each(1), Uniform((1.0,), (2.0,)), dirichlet=lambda x: x[:, 0] < 2)
    with pytest.raises(ValueError, match=r"nowhere on the part of the domain at \[5.0, 5.0\]"):
        MeshHierarchy.from_problem(problem, 1).fixed_points(problem)


def test_bad_meshes_and_regions_are_named():
    for source in (3, [], None):
        with pytest.raises(ValueError, match="cannot be made from"):
            coarse_mesh(source)
    for levels, refinement, message in (
        (-1, "red", "levels is -1"),
        (1, "blue", "choose from"),
        (40, "red", "more than"),
    ):
        with pytest.raises(ValueError, match=message):
            MeshHierarchy.refine(SKEW, levels, refinement)
    problem = dataclasses.replace(make_problem("checkerboard"), regions=lambda x: 0.7 * np.ones(len(x)))
    with pytest.raises(ValueError, match="not whole numbers"):
        MeshHierarchy.from_problem(problem, 2).regions(problem)
    problem = dataclasses.replace(make_problem("checkerboard"), regions=lambda x: np.zeros(3))
    with pytest.raises(ValueError, match=r"tags of shape \(3,\) for 32 cells"):
        MeshHierarchy.from_problem(problem, 2).regions(problem)


def test_numbering_is_known():
    """Depends on no release: the same small numbers everywhere."""
    hierarchy = MeshHierarchy.refine(MeshArrays([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [[0, 1, 2]]), 1)
    assert hierarchy.finest.ends.tolist() == [[0, 1], [0, 2], [1, 2]]
    assert hierarchy.finest.cells.tolist() == [[0, 3, 4], [1, 3, 5], [2, 4, 5], [3, 4, 5]]


@pytest.mark.parametrize(
    ("shape", "levels", "refinement", "digest"),
    [
        ((3,), 3, "red", "9aae2a9a13"),
        ((3, 2), 3, "red", "a9d693604f"),
        ((3, 2), 3, "dolfinx", "11fcf24907"),
        ((1, 1, 1), 3, "red", "2212aaba39"),
        ((2, 3, 1), 2, "red", "4a867bc6b9"),
        ((1, 1, 1), 3, "dolfinx", "ac11cd1780"),
        ((2, 3, 1), 2, "dolfinx", "37091aaaec"),
    ],
)
def test_numbering_depends_on_no_release(shape, levels, refinement, digest):
    """All tables of the hierarchy, as DOLFINx 0.5.2 gave them."""
    hierarchy = MeshHierarchy.refine(coarse_mesh(Grid(shape)), levels, refinement)
    content = hashlib.sha256()
    for level in hierarchy.levels:
        for table in (level.cells, level.ends, level.facets, level.facet_origin):
            content.update(table.tobytes())
    content.update(np.round(hierarchy.points, 9).tobytes())
    assert content.hexdigest()[:10] == digest


def test_red_triangles_are_similar_to_their_parents():
    hierarchy = MeshHierarchy.refine(SKEW, 3)

    def edge_lengths(j):
        corners = hierarchy.points[hierarchy.levels[j].cells]
        return np.sort(np.linalg.norm(corners - np.roll(corners, 1, axis=1), axis=-1), axis=1)

    np.testing.assert_allclose(edge_lengths(3), np.repeat(edge_lengths(0), 4**3, axis=0) / 2**3, rtol=1e-10)


def test_red_tetrahedra_have_at_most_three_shapes():
    """Bey's refinement: as many shapes as on the first level come from any tetrahedron, whatever the level."""
    coarse = MeshArrays(
        np.array([[0.0, 0, 0], [1.1, 0.2, 0], [0.3, 0.9, 0.1], [0.2, 0.3, 1.3]]), np.array([[0, 1, 2, 3]])
    )
    hierarchy = MeshHierarchy.refine(coarse, 4)
    for level in (1, 4):
        corners = hierarchy.points[hierarchy.levels[level].cells]
        pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
        lengths = np.sort(np.stack([np.linalg.norm(corners[:, i] - corners[:, j], axis=1) for i, j in pairs], axis=1))
        assert len(np.unique(np.round(lengths * 2**level, 9), axis=0)) <= 3


def test_red_cubes_stay_as_they_are_cut():
    """Every inner point of a refined cube has 24 tetrahedra around it, as on a grid; DOLFINx's rule gives 16 or 48."""
    for refinement, expected in (("red", {24}), ("dolfinx", {16, 48})):
        hierarchy = MeshHierarchy.refine(coarse_mesh(Grid((1, 1, 1))), 3, refinement)
        inner = np.setdiff1d(np.arange(len(hierarchy.points)), hierarchy.finest.facets)
        assert set(np.bincount(hierarchy.finest.cells.ravel())[inner].tolist()) == expected
