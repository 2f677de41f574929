"""`Problem.show` and `fem-frames problems`: numbers, words and warnings about a problem, and its picture."""

import json
from dataclasses import replace

import numpy as np
import pytest
from curved_meshes import plate_problem
from gmsh_files import PLATE
from small_runs import call_command

from fem_frames import Affine, ByRegion, ExpAffine, Grid, MeshArrays, Pointwise, Problem, Uniform, make_problem
from fem_frames.mesh.quality import diameters, facet_measures, mean_ratios
from fem_frames.problem.boundary import Parameter

PLATE_PROBLEM = Problem(
    PLATE,
    ByRegion({"steel": 0, "air": 1}, fixed={"glue": 0.3}),
    Uniform((1.0, 0.1, 0.0), (2.0, 0.5, 1.0)),
    dirichlet={"inflow": 1.5},
    neumann={"outflow": Parameter(2, scale=3.0)},
    robin={"holes": (Parameter(2, offset=1.0), lambda x: x[:, 0])},
    name="plate",
)


def by_name(rows):
    return {row.name: row for row in rows}


# ---- sizes and shapes of cells


@pytest.mark.parametrize("d", [1, 2, 3])
def test_mean_ratios_are_one_for_equilateral_cells_whatever_their_size(d):
    corners = {
        1: [[2.0], [5.0]],
        2: [[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]],
        3: [[1.0, 1.0, 1.0], [1.0, -1.0, -1.0], [-1.0, 1.0, -1.0], [-1.0, -1.0, 1.0]],
    }[d]
    for scale in (1e-3, 1.0, 1e3):
        assert mean_ratios(scale * np.array(corners), np.arange(d + 1)[None]) == pytest.approx(1)


def test_shapes_in_closed_form():
    """The triangle (0, 0), (1, 0), (0, h): 4√3 (h/2) / (2 + 2h²); the unit tetrahedron: 12 (1/2)^(2/3) / 9."""
    h = 0.1
    triangle = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, h]])
    assert mean_ratios(triangle, np.array([[0, 1, 2]])) == pytest.approx(np.sqrt(3) * h / (1 + h**2))
    assert diameters(triangle, np.array([[0, 1, 2]])) == pytest.approx(np.sqrt(1 + h**2))
    unit = np.concatenate([np.zeros((1, 3)), np.eye(3)])
    assert mean_ratios(unit, np.arange(4)[None]) == pytest.approx(12 * 0.5 ** (2 / 3) / 9)
    assert facet_measures(unit[None, 1:]) == pytest.approx(np.sqrt(3) / 2)
    assert facet_measures(triangle[None, 1:]) == pytest.approx(np.sqrt(1 + h**2))
    assert facet_measures(np.zeros((2, 1, 1))).tolist() == [1, 1]


# ---- numbers and words


def test_regions_and_groups_of_the_plate():
    shown = PLATE_PROBLEM.show()
    mesh, regions, groups = shown.mesh, by_name(shown.regions), by_name(shown.groups)
    assert (mesh.dimension, mesh.lower, mesh.upper) == (2, (0, 0), (2, 1))
    assert mesh.measure == pytest.approx(sum(r.measure for r in shown.regions))
    assert mesh.cells == sum(r.cells for r in shown.regions)
    assert regions["glue"].measure == pytest.approx(0.1)
    assert {name: row.coefficient for name, row in regions.items()} == {"steel": "y[0]", "glue": "0.3", "air": "y[1]"}
    assert groups["wall"].measure == pytest.approx(4)
    assert {name: row.condition for name, row in groups.items()} == {
        "inflow": "u = 1.5",
        "outflow": "a ∂u/∂n = 3 y[2]",
        "holes": "a ∂u/∂n = (1 + y[2]) (u_outside(x) - u)",
        "wall": "insulated",
    }
    assert [p.role for p in shown.parameters] == [
        "a on steel",
        "a on air",
        "neumann['outflow'], k of robin['holes']",
    ]
    assert shown.warnings == (
        "no condition names the boundary group 'wall': it is insulated; neumann={'wall': 0} says so",
    )
    quiet = replace(PLATE_PROBLEM, neumann={**PLATE_PROBLEM.neumann, "wall": 0})
    assert quiet.show().warnings == ()


def test_printing_shows_tables():
    text = str(PLATE_PROBLEM.show())
    assert text == repr(PLATE_PROBLEM.show())
    assert "278 points, 465 triangles in [0, 2] × [0, 1], area 1.682" in text
    assert "glue    2    32     0.1     0.3" in text
    assert "warning: no condition names the boundary group 'wall'" in text


def test_a_graded_mesh_has_its_ratio_and_its_worst_cell():
    points = np.array([[0.0], [0.001], [1.0]])
    shown = Problem(MeshArrays(points, [[0, 1], [1, 2]]), ByRegion.each(1), Uniform((1.0,), (2.0,))).show()
    assert (shown.mesh.smallest, shown.mesh.largest) == pytest.approx((0.001, 0.999))
    assert "(ratio 999)" in str(shown)
    flat = MeshArrays([[0.0, 0.0], [1.0, 0.0], [0.5, 0.01]], [[0, 1, 2]])
    (warning,) = Problem(flat, ByRegion.each(1), Uniform((1.0,), (2.0,))).show().warnings
    assert "the cell at (0.5, 0.00333333) has quality 0.023" in warning


@pytest.mark.parametrize(
    ("coefficient", "text"),
    [
        (Pointwise(lambda x, y: y[..., 0] + 0 * x[..., 0]), "a(x, y)"),
        (Affine(2.0, lambda x: x), "mean(x) + Σ y[k] modes[k](x)"),
        (ExpAffine(0.0, lambda x: x), "exp(mean(x) + Σ y[k] modes[k](x))"),
    ],
)
def test_coefficients_in_words(coefficient, text):
    def heat(x, y):
        return y[..., 0] + 0 * x[..., 0]

    problem = Problem(Grid((1, 1)), coefficient, Uniform((0.0, 0.0), (1.0, 1.0)), source=heat, dirichlet_value=np.sum)
    shown = problem.show()
    assert [r.coefficient for r in shown.regions] == [text]
    assert shown.source == "heat(x, y)"
    assert [g.condition for g in shown.groups] == ["u = sum(x)"]
    assert shown.groups[0].tag is None
    assert shown.groups[0].measure == pytest.approx(4)
    assert shown.warnings == ()


def test_regions_of_a_function_are_measured_on_fine_cells():
    shown = make_problem("cookies", rows=1, radius=0.25).show()
    assert shown.region_level > 0
    assert shown.regions[0].measure == pytest.approx(np.pi / 16, rel=0.02)
    assert shown.mesh.cells == 2
    assert "measured after" in str(shown)


def test_a_condition_on_part_of_a_group_is_counted():
    left = Problem(Grid((2, 2)), ByRegion.each(1), Uniform((1.0,), (2.0,)), dirichlet=lambda x: np.isclose(x[:, 0], 0))
    assert left.show().groups[0].condition == "insulated on 6 of 8; u = 0 on 2 of 8"


# ---- warnings instead of errors: to see what there is


def test_mistakes_are_warnings_with_all_that_there_is():
    shown = replace(
        PLATE_PROBLEM, dirichlet={"inflwo": 0.0}, coefficient=ByRegion({"steel": 0, 17: 1}, fixed={"glue": 1.0})
    ).show()
    text = "\n".join(shown.warnings)
    assert "no boundary facet is called 'inflwo'" in text
    assert "did you mean 'inflow'?" in text
    assert "the coefficient has no value on the region 'air'" in text
    assert "ByRegion has a value for the region with the tag 17, which has no cells" in text
    assert {name: row.condition for name, row in by_name(shown.groups).items()} == {
        "inflow": "?",
        "outflow": "a ∂u/∂n = 3 y[2]",
        "holes": "a ∂u/∂n = (1 + y[2]) (u_outside(x) - u)",
        "wall": "?",
    }
    assert by_name(shown.regions)["air"].coefficient == "?"
    unknown = replace(PLATE_PROBLEM, coefficient=ByRegion({"stahl": 0})).show()
    assert any("no region is called 'stahl'" in warning for warning in unknown.warnings)
    assert {r.coefficient for r in unknown.regions} == {"?"}
    two = replace(PLATE_PROBLEM, dirichlet={"a": 0.0}, neumann={"b": 0.0, "outflow": 1.0}).show()
    assert [w.split(":")[0] for w in two.warnings if "no boundary facet" in w] == ["dirichlet['a']", "neumann['b']"]


def test_conditions_that_overlap_are_a_warning():
    shown = replace(PLATE_PROBLEM, neumann={"outflow": Parameter(2), 1: 1.0}).show()
    assert "dirichlet['inflow'] and neumann[1] both hold on the boundary facet" in shown.warnings[0]


def test_empty_and_inner_groups_and_idle_parameters_are_shown():
    mesh = MeshArrays(
        [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]],
        [[0, 1, 2], [0, 2, 3]],
        facets=[[0, 1], [0, 2], [2, 3], [1, 2], [0, 2]],
        facet_tags=[1, 2, 1, 3, 3],
        facet_names={"wall": 1, "middle": 2, "nothing": 9},
        region_names={"all": 0, "void": 5},
    )
    problem = Problem(mesh, ByRegion({"all": 1}), Uniform((1.0, 1.0), (2.0, 2.0)), dirichlet={"wall": 0.0})
    shown = problem.show()
    groups = by_name(shown.groups)
    assert groups["middle"].condition == "none: its facets lie inside the domain"
    assert groups["nothing"].condition == "none: the group is empty"
    assert by_name(shown.regions)["void"].cells == 0
    text = "\n".join(shown.warnings)
    assert "nothing depends on the parameter y[0]: leave it out" in text
    assert "some facets of the group with the tag 3 lie inside the domain" in text
    assert "u is given" not in text
    nowhere = replace(problem, dirichlet={}, neumann={"rest": 1.0}).show()
    assert "u is given on no facet of the boundary" in nowhere.warnings[0]


# ---- pictures


@pytest.mark.serial
@pytest.mark.parametrize("name", ["quarters", "lshape", "cookies", "cube"])
def test_pictures_are_saved(tmp_path, name):
    make_problem(name).show(tmp_path / "mesh.png")
    assert (tmp_path / "mesh.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.serial
def test_the_picture_has_all_groups_and_regions_in_their_places():
    """Every boundary edge is drawn once, in the colour of its group."""
    shown = PLATE_PROBLEM.show()
    (axes,) = shown.plot().axes
    texts = {text.get_text() for text in axes.texts}
    assert {"steel", "glue", "air"} <= texts
    labels = " ".join(text.get_text() for text in axes.get_legend().get_texts())
    for expected in ("inflow: u = 1.5", "wall: insulated", "steel: a = y[0]", "glue: a = 0.3"):
        assert expected in labels
    lines = {tuple(c.get_color()[0]): c.get_segments() for c in axes.collections if hasattr(c, "get_segments")}
    assert sorted(map(len, lines.values())) == sorted(g.facets for g in shown.groups)
    inflow = next(segments for segments in lines.values() if np.abs(np.array(segments)[..., 0]).max() == 0)
    assert len(inflow) == by_name(shown.groups)["inflow"].facets


def test_bad_names_of_pictures_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.png, \.pdf or \.svg"):
        make_problem("quarters").show(tmp_path / "mesh.txt")


# ---- the command


@pytest.mark.serial
def test_the_command_shows_a_problem(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from fem_frames import ByRegion, Problem, Uniform\n"
        f"def plate(high=2.0):\n    return Problem({str(PLATE)!r}, ByRegion({{'steel': 0, 'air': 0, 'glue': 0}}),\n"
        "        Uniform((1.0,), (high,)), dirichlet={'inflow': 0.0})\n"
    )
    picture = tmp_path / "plate.png"
    arguments = ["problems", f"{file}:plate", "--set", "high=3", "--picture", picture]
    text = call_command(*arguments).stdout
    assert "y[0]       uniform in [1, 3]  a on steel, a on air, a on glue" in text
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "is there already" in call_command(*arguments, expect=2).stderr
    record = json.loads(call_command(*arguments, "--force", "--json").stdout)
    assert record["mesh"]["cells"] == 465
    assert [g["name"] for g in record["groups"]] == ["inflow", "outflow", "holes", "wall"]
    assert len(record["warnings"]) == 3


@pytest.mark.serial
def test_the_command_shows_built_in_problems_and_refuses_the_rest():
    assert "lshape: -div(a ∇u) = 1" in call_command("problems", "lshape").stdout
    assert "there is no problem 'absent'" in call_command("problems", "absent", expect=2).stderr
    assert "need the name of a PROBLEM" in call_command("problems", "--picture", "x.png", expect=2).stderr


def test_parts_that_only_touch_are_warned_of():
    """As gmsh makes them where the geometry was not fragmented."""
    points = np.array([[0, 0], [1, 0], [1, 1], [0, 1], [1, 0], [2, 0], [2, 1], [1, 1]], float)
    cells = np.array([[0, 1, 2], [0, 2, 3], [4, 5, 6], [4, 6, 7]])
    apart = Problem(MeshArrays(points, cells), ByRegion({0: 0}), Uniform((0.5,), (1.5,)))
    assert any("2 pairs of points coincide, such as at (1, 0)" in warning for warning in apart.show().warnings)


def test_curved_groups_are_shown():
    problem = plate_problem(True)
    shown = str(problem.show())
    assert "curved: refinement follows it" in shown
    assert "curved" not in str(plate_problem(False).show())
