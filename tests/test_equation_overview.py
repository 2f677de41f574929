"""`Problem.show` of problems with equations: fields, integrals, given values, parameters, warnings, picture."""

import json
import re

import pytest
from small_runs import call_command
from ufl import FacetNormal, as_vector, div, dot, grad, inner

from fem_frames import Equation, Field, Gaussian, MeshArrays, Parameter, Problem, Uniform, make_problem
from fem_frames.problem.blocks import unit_cube

pytestmark = pytest.mark.serial
BOX = Uniform((0.5,) * 5, (1.5,) * 5)


def two_regions():
    mesh = unit_cube(2, 1)
    names = {"region_names": {"soft": 0, "hard": 1}, "facet_names": dict(mesh.facet_names)}
    return MeshArrays(mesh.points, mesh.cells, [0, 1], mesh.facets, mesh.facet_tags, **names)


def energy(u, p, y, x, dx, ds):
    flow = y[0] * (1 + inner(grad(u), grad(u))) ** 1.5 * dx("soft") + inner(grad(u), grad(u)) * dx("hard")
    return (
        flow
        + inner(grad(p), grad(p)) / 2 * dx
        + x[0] * dot(u, FacetNormal(x.ufl_domain())) * ds
        - y[1] * p * ds("right")
    )


def problem(function=energy, **changes):
    given = {"left": (0.0, Parameter(3)), "right": (1.0, 1.0)}
    fields = Field("u", components=2, dirichlet=given), Field("p", dirichlet={"left": 2.0})
    return Problem(two_regions(), Equation(*fields, energy=function), BOX, name="mine", **changes)


def by_name(rows):
    return {row.name: row for row in rows}


def test_fields_and_integrals_are_listed():
    shown = problem().show()
    equation = shown.equation
    assert equation.kind == "minimises an energy: the equation is nonlinear"
    assert [(f.name, f.element, f.components, f.state) for f in equation.fields] == [
        ("u", "P1", 2, "gradient"),
        ("p", "P1", 1, "gradient"),
    ]
    assert [(i.measure, i.functions, i.degree, i.parameters) for i in equation.integrals] == [
        ("dx('soft')", "∇u", "nonlinear", (0,)),
        ("dx('hard')", "∇u", "quadratic", ()),
        ("dx", "∇p", "quadratic", ()),
        ("ds", "u, x, normal", "linear", ()),
        ("ds('right')", "p", "linear", (1,)),
    ]


def test_regions_and_groups_say_what_holds_there():
    shown = problem().show()
    assert {r.name: r.coefficient for r in shown.regions} == {"soft": "∇u with y[0]; ∇p", "hard": "∇u; ∇p"}
    assert {g.name: g.condition for g in shown.groups} == {
        "left": "u[0] = 0; u[1] = y[3]; p = 2; ∫ u, x, normal",
        "right": "u = 1; ∫ u, x, normal; p with y[1]",
        "bottom": "∫ u, x, normal",
        "top": "∫ u, x, normal",
    }


def test_parameters_have_their_places_and_unused_ones_a_warning():
    shown = problem().show()
    assert [p.role for p in shown.parameters] == [
        "dx('soft')",
        "ds('right')",
        "",
        "dirichlet['left'] of u[1]",
        "",
    ]
    assert list(shown.warnings) == [f"nothing depends on the parameter y[{k}]: leave it out" for k in (2, 4)]


def test_functions_of_y_on_the_boundary_may_use_all_parameters():
    scalar = Equation(Field("u"), energy=lambda u, y, x, dx, ds: inner(grad(u), grad(u)) * dx)
    made = Problem(unit_cube(2, 1), scalar, BOX, dirichlet={"left": lambda x, y: y[..., 2] * x[..., 0]})
    assert made.show().warnings == ()


@pytest.mark.parametrize(
    ("name", "kind", "state"),
    [
        ("anisotropic", "minimises an energy: the equation is linear", "gradient"),
        ("reaction", "minimises an energy: the equation is linear", "value, gradient"),
        ("elastic", "minimises an energy: the equation is linear", "gradient"),
    ],
)
def test_built_in_problems_are_shown_without_warnings(name, kind, state):
    shown = make_problem(name).show()
    assert shown.equation.kind == kind
    assert [f.state for f in shown.equation.fields] == [state]
    assert shown.warnings == ()


def test_diffusion_is_recognised():
    made = Equation(Field("u"), energy=lambda u, y, x, dx, ds: y[0] * inner(grad(u), grad(u)) / 2 * dx - u * ds("left"))
    shown = Problem(unit_cube(2, 1), made, Gaussian(1), dirichlet={"right": 0.0}).show()
    assert "½ ∫ a |∇u|² and loads, which is diffusion" in str(shown)
    assert by_name(shown.groups)["left"].condition == "∫ u"
    assert by_name(shown.groups)["top"].condition == "free"


def test_weak_forms_and_fluxes_have_words():
    def residual(u, s, v, t, y, x, dx, ds):
        return (dot(s, t) / y[0] - dot(grad(u), t) + div(s) * v - u**3 * v - v) * dx

    fields = Field("u"), Field("s", "RT0", dirichlet={"left": 0.0})
    shown = Problem(unit_cube(2, 1), Equation(*fields, residual=residual), Uniform((1.0,), (2.0,))).show()
    assert shown.equation.kind == "solves a weak form: the equation is nonlinear"
    assert [(f.name, f.components, f.state) for f in shown.equation.fields] == [
        ("u", 1, "value, gradient"),
        ("s", 2, "value, divergence"),
    ]
    (integral,) = shown.equation.integrals
    assert set(integral.functions.split(", ")) == {"u", "∇u", "s", "div s", "test of u", "test of s"}
    assert by_name(shown.groups)["left"].condition == "u = 0; s·n = 0"
    assert by_name(shown.groups)["right"].condition == "u = 0"


def test_one_component_in_an_integral_is_named():
    made = make_problem("elastic", load="traction").show()
    assert made.equation.integrals[-1].functions == "u[1]"
    assert by_name(made.groups)["right"].condition == "∫ u[1]"


# ---- warnings


@pytest.mark.parametrize(
    ("term", "message"),
    [
        (lambda u, p, dx, ds: p * dx("steel"), "the equation names the group 'steel', but no region carries it"),
        (lambda u, p, dx, ds: p * ds("rihgt"), "no boundary facet carries it; .*did you mean 'right'"),
        (lambda u, p, dx, ds: p * ds(17), "the equation names the group 17, but no boundary facet carries it"),
    ],
)
def test_groups_that_the_mesh_does_not_have_are_warnings(term, message):
    def changed(u, p, y, x, dx, ds):
        return energy(u, p, y, x, dx, ds) + term(u, p, dx, ds)

    assert [w for w in problem(changed).show().warnings if re.search(message, w)]


def test_regions_without_integrals_and_free_fields_are_warnings():
    def partial(u, p, y, x, dx, ds):
        return (inner(grad(u), grad(u)) + inner(grad(p), grad(p)) + dot(u, as_vector([y[0], y[1]]))) * dx("soft")

    fields = Field("u", components=2, dirichlet={"left": (0.0, None)}), Field("p", dirichlet={"lfet": 0.0})
    shown = Problem(two_regions(), Equation(*fields, energy=partial), Uniform((0.5,) * 2, (1.5,) * 2)).show()
    told = "\n".join(shown.warnings)
    assert "no integral of the equation covers the region 'hard'" in told
    assert "nothing fixes u[1]" in told
    assert "nothing fixes u[0]" not in told
    assert "dirichlet['lfet']: no boundary facet is called 'lfet'" in told
    assert by_name(shown.regions)["hard"].coefficient == "none"


# ---- text, record, picture, command


def test_the_command_shows_an_equation(tmp_path):
    picture = tmp_path / "elastic.png"
    shown = json.loads(call_command("problems", "elastic", "--json", "--picture", picture).stdout)
    assert [row["measure"] for row in shown["equation"]["integrals"]] == ["dx(0)", "dx(1)", "dx(2)", "dx(3)", "dx"]
    assert picture.stat().st_size > 10_000
    text = str(make_problem("elastic").show())
    assert "dx(3)     ∇u    quadratic  y[6], y[7]  22" in text
    assert "left      0    1      1       u = 0" in text


def test_many_integrals_are_cut_short():
    text = str(make_problem("anisotropic", blocks=5).show())
    assert "… 10 more" in text
