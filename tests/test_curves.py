"""Curves of the boundary, hierarchies whose new points lie on them, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from curved_meshes import (
    HOLES,
    PIPE,
    arc,
    ball_problem,
    disk,
    disk_problem,
    pipe_problem,
    plate,
    plate_problem,
    tagged,
)
from oracles import slope

from fem_frames import ByRegion, Circle, Cylinder, Grid, MeshArrays, MeshHierarchy, Problem, Sphere, Uniform
from fem_frames.mesh.geometry import signed_volumes
from fem_frames.mesh.simplices import diameters

pytestmark = pytest.mark.serial
RNG = np.random.default_rng(0)


# ---- curves


@pytest.mark.parametrize("curve", [Circle((0.3, -2.0), 0.7), Sphere((1.0, 2.0, 3.0), 0.4)])
def test_circle_and_sphere_give_the_nearest_point(curve):
    """At the right distance from the centre, on the ray through x."""
    centre = np.array(curve.centre)
    x = RNG.standard_normal((50, len(centre)))
    found = curve(x)
    np.testing.assert_allclose(np.linalg.norm(found - centre, axis=1), curve.radius)
    away = np.abs(np.linalg.norm(x - centre, axis=1) - curve.radius)
    np.testing.assert_allclose(np.linalg.norm(found - x, axis=1), away, atol=1e-12)
    np.testing.assert_allclose(curve(found), found, atol=1e-14)


def test_a_cylinder_gives_the_nearest_point():
    """In coordinates turned so that the axis is the third one, it is a circle at the same height."""
    turn = np.linalg.qr(RNG.standard_normal((3, 3)))[0]
    point, x = RNG.standard_normal(3), RNG.standard_normal((50, 3))
    found = (Cylinder(point, -7 * turn[:, 2], 0.6)(x) - point) @ turn
    local = (x - point) @ turn
    np.testing.assert_allclose(found[:, :2], Circle((0, 0), 0.6)(local[:, :2]))
    np.testing.assert_allclose(found[:, 2], local[:, 2], atol=1e-13)


def test_equal_curves_are_equal():
    assert Circle([0, 1], 2) == Circle(np.array([0.0, 1.0]), 2.0)
    assert Circle((0, 1), 2) != Circle((0, 1), 3)
    assert len({Sphere((0, 0, 0), 1), Sphere((0.0, 0.0, 0.0), 1.0)}) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Circle((0, 0, 0), 1), r"the centre of a Circle is \(0, 0, 0\); 2 finite coordinates are expected"),
        (lambda: Circle((0, np.nan), 1), "2 finite coordinates are expected"),
        (lambda: Circle("here", 1), "2 finite coordinates are expected"),
        (lambda: Circle((0, 0), 0), "the radius of a Circle is 0; a positive number is expected"),
        (lambda: Circle((0, 0), np.inf), "a positive number is expected"),
        (lambda: Sphere((0, 0), 1), "the centre of a Sphere"),
        (lambda: Sphere((0, 0, 0), "1"), "the radius of a Sphere is '1'; a positive number is expected"),
        (lambda: Cylinder((0, 0, 0), (0, 0), 1), "the axis of a Cylinder"),
        (lambda: Cylinder((0, 0, 0), (0, 0, 0), 1), r"the axis of a Cylinder is \(0, 0, 0\); a direction is expected"),
        (lambda: Circle((0, 0), 1)(np.zeros((4, 3))), "points with 2 coordinates, but .* 3: use Cylinder or Sphere"),
        (lambda: Sphere((0, 0, 0), 1)(np.zeros((4, 2))), "points with 3 coordinates, but .* 2: use Circle"),
    ],
)
def test_bad_curves_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# ---- hierarchies


def volume(hierarchy, level):
    return np.abs(signed_volumes(hierarchy.points, hierarchy.levels[level].cells)).sum()


CASES = {
    "plate": (plate_problem, 4, 2 - np.pi * (0.25**2 + 0.2**2)),
    "plate, dolfinx": (lambda *a: plate_problem(*a, refinement="dolfinx"), 4, 2 - np.pi * (0.25**2 + 0.2**2)),
    "disk": (disk_problem, 5, np.pi),
    "pipe": (pipe_problem, 3, 0.75 * np.pi),
    "ball": (ball_problem, 3, 4 / 3 * np.pi),
}


@pytest.mark.parametrize("name", CASES)
def test_volumes_converge_with_h2_only_if_points_are_moved(name):
    make, finest, exact = CASES[name]
    found = {curves: MeshHierarchy.from_problem(make(curves), finest) for curves in (True, False)}
    errors = [abs(volume(found[True], j) - exact) for j in range(finest + 1)]
    assert 1.8 < slope(errors[1:]) < 2.1
    np.testing.assert_allclose(volume(found[False], finest), volume(found[True], 0))


@pytest.mark.parametrize("name", CASES)
def test_new_points_of_curved_groups_lie_on_their_curves_and_others_halve_edges(name):
    make, finest, _ = CASES[name]
    problem = make(True)
    hierarchy = MeshHierarchy.from_problem(problem, finest - 1)
    on_curve = np.zeros(len(hierarchy.points), bool)
    for group, curve in problem.curved.items():
        tags = hierarchy.coarse_facet_tags[hierarchy.finest.facet_origin]
        points = np.unique(hierarchy.finest.facets[tags == problem.mesh.facet_names[group]])
        on_curve[points] = True
        x = hierarchy.points[points]
        np.testing.assert_allclose(curve(x), x, atol=1e-12)
    count = len(hierarchy.level_points(0))
    for level in hierarchy.levels[1:]:
        middle = hierarchy.points[level.ends].mean(axis=1)
        moved = (hierarchy.points[count : level.point_count] != middle).any(axis=1)
        assert not moved[~on_curve[count : level.point_count]].any()
        assert moved.any()
        count = level.point_count
    np.testing.assert_array_equal(hierarchy.level_points(0), problem.mesh.points)


@pytest.mark.parametrize("name", CASES)
def test_meshes_conform_and_keep_their_topology_and_shapes(name):
    make, finest, _ = CASES[name]
    curved, flat = (MeshHierarchy.from_problem(make(curves), finest - 1) for curves in (True, False))
    for j, (level, other) in enumerate(zip(curved.levels, flat.levels, strict=True)):
        cells = level.cells.copy()
        inverted = signed_volumes(curved.points, cells) < 0
        cells[inverted, :2] = cells[inverted, 1::-1]
        MeshArrays(curved.level_points(j), cells)  # checks every facet
        if "dolfinx" not in name:  # its rule depends on lengths
            np.testing.assert_array_equal(level.cells, other.cells)
            np.testing.assert_array_equal(level.ends, other.ends)
            np.testing.assert_array_equal(level.facet_origin, other.facet_origin)
    shapes = [
        (np.abs(signed_volumes(h.points, h.finest.cells)) / diameters(h.points, h.finest.cells) ** h.dimension).min()
        for h in (curved, flat)
    ]
    assert shapes[0] > 0.2 * shapes[1]


@pytest.mark.parametrize("unit", [1e-6, 1e3])
def test_units_do_not_matter(unit):
    found, exact = (MeshHierarchy.from_problem(plate_problem(unit=u), 3) for u in (unit, 1.0))
    np.testing.assert_allclose(found.points / unit, exact.points, atol=1e-12)


def test_several_curves_of_one_group_and_functions_and_tags():
    """The nearest curve counts; a function may stand for a curve, a tag for a name."""
    exact = MeshHierarchy.from_problem(plate_problem(), 2)
    mesh = plate()
    tags = np.where(mesh.facet_tags == 2, 1, mesh.facet_tags)
    joined = MeshArrays(mesh.points, mesh.cells, mesh.regions, mesh.facets, tags, facet_names={"holes": 1})
    left, right = HOLES.values()
    for given, of in (
        ({"holes": [left, right]}, joined),
        ({"holes": (right, lambda x: left(x))}, joined),
        ({1: left, 2: right}, mesh),
        ({"left": lambda x: left(x), 2: lambda x: right(x).tolist()}, mesh),
    ):
        found = MeshHierarchy.refine(of, 2, curved=given)
        np.testing.assert_array_equal(found.points, exact.points)


def test_the_whole_boundary_may_be_one_curve():
    mesh = disk()
    bare = MeshArrays(mesh.points, mesh.cells)
    found = MeshHierarchy.refine(bare, 3, curved={"all": Circle((0, 0), 1)})
    np.testing.assert_array_equal(found.points, MeshHierarchy.from_problem(disk_problem(), 3).points)


def test_points_between_two_curved_groups_lie_on_both():
    """A sphere cut by a plane: the points of the circle between them."""
    top = Sphere((0, 0, 0), 1)
    angle = np.arange(6) * np.pi / 3
    ring = 0.8 * np.stack([np.cos(angle), np.sin(angle), np.zeros(6)], axis=1) + [0, 0, 0.6]
    points = np.concatenate([[[0, 0, 0.8], [0, 0, 1.0], [0, 0, 0.6]], ring])
    cells = [[0, base, 3 + k, 3 + (k + 1) % 6] for base in (1, 2) for k in range(6)]
    mesh = tagged(
        points, np.array(cells), lambda c: np.where((c[..., 2] == 0.6).all(axis=1), 2, 1), {"cap": 1, "plane": 2}
    )

    def onto_plane(x):
        return np.stack([x[:, 0], x[:, 1], np.full(len(x), 0.6)], axis=1)

    found = MeshHierarchy.refine(mesh, 2, curved={"cap": top, "plane": onto_plane})
    tags = found.coarse_facet_tags[found.finest.facet_origin]
    both = np.intersect1d(*(found.finest.facets[tags == tag] for tag in (1, 2)))
    assert len(both) == 24
    np.testing.assert_allclose(np.linalg.norm(found.points[both, :2], axis=1), 0.8, atol=1e-9)
    np.testing.assert_allclose(found.points[both, 2], 0.6, atol=1e-9)


# ---- refusals


def triangle_in_circle():
    """One cell whose three sides are all on the circle: its corners open to 180°."""
    points = arc(Circle((0, 0), 1), 3)
    return tagged(points, np.array([[0, 1, 2]]), lambda c: np.ones(len(c), np.int64), {"rim": 1})


def thin_ring():
    """Four points on the inner circle: its midpoints move beyond the outer square's sides."""
    points = np.concatenate([arc(Circle((0, 0), 1), 4, 0.0), 1.1 * arc(Circle((0, 0), 1), 4, 0.0)])
    k = np.arange(4)
    cells = np.concatenate(
        [np.stack([k, (k + 1) % 4, 4 + k], axis=1), np.stack([(k + 1) % 4, 4 + (k + 1) % 4, 4 + k], axis=1)]
    )

    def tag(corners):
        return np.where((np.linalg.norm(corners, axis=2) < 1.05).all(axis=1), 1, 2)

    return tagged(points, cells, tag, {"inside": 1, "outside": 2})


def broken(x):
    return x[:, 7]


@pytest.mark.parametrize(
    ("mesh", "curved", "message"),
    [
        (disk, {"rim": Circle((0, 0), 1.2)}, r"the mesh's points of 'rim' are up to 0.2 away from curved\['rim'\], as"),
        (disk, {"rim": Circle((0, 0), 1000)}, "give the curve in the coordinates and units of the mesh"),
        (disk, {"hub": Circle((0, 0), 1)}, r"curved\['hub'\]: no boundary facet is called 'hub'; the mesh has 'rim'"),
        (disk, {7: Circle((0, 0), 1)}, "no boundary facet carries the tag 7"),
        (disk, {-1: Circle((0, 0), 1)}, "no boundary facet carries the tag -1"),
        (disk, {"rim": Sphere((0, 0, 0), 1)}, "a Sphere has points with 3 coordinates, .* use Circle in the plane"),
        (disk, {"rim": lambda x: x[:, 0]}, r"gave an array of shape \(8,\) for x of shape \(8, 2\); it is a function"),
        (disk, {"rim": lambda x: x * np.nan}, r"curved\['rim'\] is not finite at x = "),
        (disk, {"rim": broken}, r"curved\['rim'\] fails in .*test_curves.py, line \d+, in broken: IndexError"),
        (disk, {"rim": lambda x: 1.1 * x}, "up to 0.1 away"),
        (disk, {"rim": lambda x: x + 0.1 * (1 - (x**2).sum(1, keepdims=True)) * x}, "moves its own result for x ="),
        (triangle_in_circle, {"rim": Circle((0, 0), 1)}, r"flattens a cell at x = .*at most one side on the curve"),
        (
            thin_ring,
            {"inside": Circle((0, 0), 1)},
            r"onto curved\['inside'\] inverts a cell at x = .*finer coarse mesh",
        ),
    ],
)
def test_bad_projections_are_refused(mesh, curved, message):
    with pytest.raises(ValueError, match=message):
        MeshHierarchy.refine(mesh(), 6, curved=curved)


@pytest.mark.parametrize(
    ("curved", "message"),
    [
        (Circle((0, 0), 1), r"curved is Circle.*; give a curve by group, \{'hole': Circle"),
        ({"rim": 3.0}, r"curved\['rim'\] is 3.0; give a Circle, Cylinder or Sphere, a function"),
        ({"rim": []}, r"curved\['rim'\] is \[\]; give"),
        ({"rim": [Circle((0, 0), 1), None]}, "give a Circle, Cylinder or Sphere"),
        ({None: Circle((0, 0), 1)}, "curved names the group None; a name or a tag is expected"),
        ({True: Circle((0, 0), 1)}, "curved names the group True"),
    ],
)
def test_bad_options_are_refused_by_the_problem(curved, message):
    with pytest.raises(ValueError, match=message):
        replace(disk_problem(), curved=curved)


def test_intervals_have_no_curves():
    problem = Problem(Grid((2,)), ByRegion({0: 0}), Uniform((1.0,), (2.0,)), curved={"all": lambda x: x})
    with pytest.raises(ValueError, match="the boundary of an interval consists of points: leave it out"):
        MeshHierarchy.from_problem(problem, 2)


def test_groups_without_a_common_point_are_refused():
    def avoiding(x):
        """The bottom, which leaves the inner cylinder between the points of the coarse mesh."""
        radius, angle = np.linalg.norm(x[:, :2], axis=1), np.arctan2(x[:, 1], x[:, 0]) / (np.pi / 4)
        between = (radius < 0.549) & (np.abs(angle - np.rint(angle)) > 0.1)
        return x * np.where(between[:, None], 0.55 / radius[:, None], 1.0)

    curved = {"inside": PIPE["inside"], "bottom": avoiding}
    with pytest.raises(ValueError, match=r"curved\['inside'\] and curved\['bottom'\] meet at x = .* lies on both"):
        MeshHierarchy.refine(pipe_problem().mesh, 1, curved=curved)
