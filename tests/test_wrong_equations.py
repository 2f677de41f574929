"""Mistakes in equations, each with one message that says what came and what to do, before anything is trained."""

import math

import numpy as np
import pytest
import torch
import ufl
from mpi4py import MPI
from small_runs import call_command
from ufl import (
    FacetNormal,
    as_ufl,
    as_vector,
    avg,
    bessel_J,
    conditional,
    div,
    dot,
    dS,
    exp,
    grad,
    gt,
    imag,
    inner,
    jump,
    ln,
    lt,
    sin,
)

from fem_frames import (
    Equation,
    Field,
    Frame,
    MeshHierarchy,
    Problem,
    Uniform,
    certify,
    export_frame,
    make_formulation,
    solve,
)
from fem_frames.fenicsx import door
from fem_frames.fenicsx.door import fem
from fem_frames.problem.blocks import unit_cube
from training import Configuration, train

pytestmark = pytest.mark.serial
MESH = unit_cube(2, 1)
SCALAR, VECTOR = (Field("u"),), (Field("u", components=2),)


def dirichlet_energy(u):
    return inner(grad(u), grad(u)) / 2


def problem(energy, fields=SCALAR, p=3, **changes):
    """The problem with this energy, on the square with named sides."""
    return Problem(MESH, Equation(*fields, energy=energy), Uniform((0.5,) * p, (1.5,) * p), **changes)


def exported(made, levels=2):
    return export_frame(MeshHierarchy.from_problem(made, levels), made)


def own_space():
    mesh = door.create(np.array(MESH.points), np.array(MESH.cells), MPI.COMM_SELF)
    return mesh, door.space(mesh, "P")


# ---- the form


FORMS = {
    "a vector for a number": (lambda u, y, x, dx, ds: grad(u) * dx, r"before dx has the shape \(2,\).*use inner, dot"),
    "all parameters": (lambda u, y, x, dx, ds: y * dirichlet_energy(u) * dx, r"before dx has the shape \(3,\)"),
    "vectors added to numbers": (
        lambda u, y, x, dx, ds: (dirichlet_energy(u) + x) * dx,
        r"numbers and vectors do not fit: u is a number, y has 3 entries, y\[0\] to y\[2\], x has 2",
    ),
    "vectors multiplied": (lambda u, y, x, dx, ds: grad(u) * grad(u) * dx, "numbers and vectors do not fit"),
    "a function of a vector": (lambda u, y, x, dx, ds: exp(grad(u)) * dx, "numbers and vectors do not fit"),
    "shapes that differ": (lambda u, y, x, dx, ds: inner(grad(u), u) * dx, "numbers and vectors do not fit"),
    "unknown region": (
        lambda u, y, x, dx, ds: dirichlet_energy(u) * dx("steel"),
        "the equation names the group 'steel', but no region carries it; the mesh has 0",
    ),
    "unknown tag": (lambda u, y, x, dx, ds: dirichlet_energy(u) * dx(5), "the group 5, but no region carries it"),
    "unknown boundary": (
        lambda u, y, x, dx, ds: dirichlet_energy(u) * dx - u * ds("lfet"),
        "the group 'lfet', but no boundary facet carries it; the mesh has 'left', .*did you mean 'left'",
    ),
    "a boundary group in dx": (
        lambda u, y, x, dx, ds: dirichlet_energy(u) * dx - u * dx("left"),
        "the group 'left', but no region carries it",
    ),
    "no group at all": (
        lambda u, y, x, dx, ds: dirichlet_energy(u) * dx(1.5),
        "dx names the group 1.5; a name or a tag",
    ),
    "dS": (
        lambda u, y, x, dx, ds: dirichlet_energy(u) * dx + u * dS,
        r"facets between cells \(dS\), and a cell does not know its neighbours: use dx and ds alone",
    ),
    "jump": (lambda u, y, x, dx, ds: dirichlet_energy(u) * dx + jump(u) ** 2 * dx, "it has a jump, an average or one"),
    "avg": (lambda u, y, x, dx, ds: dirichlet_energy(u) * dx + avg(u) ** 2 * dS, r"between cells \(dS\)"),
    "second derivatives": (
        lambda u, y, x, dx, ds: div(grad(u)) ** 2 * dx,
        "it has second derivatives, which the states of cells do not have: integrate by parts, or make the flux",
    ),
    "a parameter too many": (
        lambda u, y, x, dx, ds: y[7] * dirichlet_energy(u) * dx,
        r"u is a number, y has 3 entries, y\[0\] to y\[2\]",
    ),
    "a coordinate too many": (lambda u, y, x, dx, ds: x[2] * u * dx, r"x has 2 entries, x\[0\] to x\[1\]"),
    "a component of a number": (lambda u, y, x, dx, ds: u[0] * dx, "u is a number"),
    "complex numbers": (lambda u, y, x, dx, ds: 1j * dirichlet_energy(u) * dx, "complex numbers; write real and imag"),
    "imaginary parts": (lambda u, y, x, dx, ds: imag(u) * dx, "complex numbers; write real and imaginary parts as two"),
    "nothing": (lambda u, y, x, dx, ds: None, "the energy returns nothing, not a form: end every term with"),
    "a number": (lambda u, y, x, dx, ds: 3.0, "the energy returns a float, not a form"),
    "no integral": (lambda u, y, x, dx, ds: dirichlet_energy(u), r"not a form: end every term with \* dx or \* ds"),
    "half an integral": (lambda u, y, x, dx, ds: dirichlet_energy(u) * dx - u, r"end every term with \* dx or \* ds"),
    "dx first": (lambda u, y, x, dx, ds: dx * u, r"the integrand comes first: f \* dx"),
    "zero": (lambda u, y, x, dx, ds: 0, "the energy is zero: return a form, such as inner"),
    "a form that is zero": (lambda u, y, x, dx, ds: 0 * u * dx, "the energy is zero: return a form"),
    "an error": (lambda u, y, x, dx, ds: {}["wind"], r"test_wrong_equations.py, line \d+, in <lambda>: KeyError.*wind"),
    "too few arguments": (lambda u, y: u, r"takes 2 .* it is called as energy\(u, y, x, dx, ds\)"),
    "too many arguments": (lambda u, v, y, x, dx, ds: u * dx, r"it is called as energy\(u, y, x, dx, ds\)"),
    "Python's if": (
        lambda u, y, x, dx, ds: (u if y[0] > 1 else 2 * u) * dx,
        r"write conditional\(gt\(a, b\), c, d\) in place of if",
    ),
    "NumPy's exp": (lambda u, y, x, dx, ds: np.exp(y[0]) * u * dx, "take functions such as exp from ufl"),
    "torch's exp": (lambda u, y, x, dx, ds: torch.exp(y[0]) * u * dx, "take functions such as exp from ufl"),
    "exp of math": (lambda u, y, x, dx, ds: math.exp(y[0]) * u * dx, "take functions such as exp from ufl"),
    "options of dx": (
        lambda u, y, x, dx, ds: dirichlet_energy(u) * dx(metadata={"quadrature_degree": 2}),
        "dx takes groups alone, not metadata: quadrature_degree is a setting of Problem",
    ),
    "UFL's dx with a degree": (
        lambda u, y, x, dx, ds: dirichlet_energy(u) * ufl.dx(metadata={"quadrature_degree": 2}),
        "an integral has metadata of its own; quadrature_degree is a setting of Problem",
    ),
    "UFL's dx with a tag": (
        lambda u, y, x, dx, ds: dirichlet_energy(u) * dx + u * ufl.dx(1),
        "an integral over the group 1 has a measure of its own: use the dx and ds that are given",
    ),
    "Bessel functions": (lambda u, y, x, dx, ds: bessel_J(1, u) * dx, "BesselJ is not supported; there are sums"),
    "a logarithm of a negative number": (
        lambda u, y, x, dx, ds: dirichlet_energy(u) * ln(as_ufl(-2.0)) * dx,
        "roots and logarithms of negative numbers do not exist",
    ),
    "the normal inside": (
        lambda u, y, x, dx, ds: dot(FacetNormal(x.ufl_domain()), grad(u)) * dx,
        "it has the normal of facets inside dx: only ds has one",
    ),
    "a field that is left out": (lambda u, y, x, dx, ds: u**2 * ds, "no term over dx has u, so it has no minimum: add"),
    "an energy without minimum": (lambda u, y, x, dx, ds: -u * dx, "it is linear in u inside the domain, so it has no"),
}


@pytest.mark.parametrize("name", FORMS)
def test_wrong_forms_are_explained_before_anything_is_made(name):
    energy, message = FORMS[name]
    with pytest.raises(ValueError, match=message) as caught:
        exported(problem(energy))
    assert "\n" not in str(caught.value)


def test_components_that_do_not_exist_are_explained():
    with pytest.raises(ValueError, match=r"u has 2 entries, u\[0\] to u\[1\], y has 3"):
        exported(problem(lambda u, y, x, dx, ds: (inner(grad(u), grad(u)) - u[2]) * dx, VECTOR))
    with pytest.raises(ValueError, match=r"y has one, y\[0\]"):
        exported(problem(lambda u, y, x, dx, ds: y[1] * u * dx, p=1))


def test_ufl_says_nothing_beside_the_message(capfd, caplog):
    for name in ("vectors multiplied", "a parameter too many", "exp of math"):
        with pytest.raises(ValueError, match="the energy fails"):
            exported(problem(FORMS[name][0]))
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_functions_and_constants_of_another_mesh_are_refused():
    mesh, V = own_space()
    data, number = fem.Function(V), fem.Constant(mesh, 2.0)
    for given, message in (
        (data, "which is no field of the equation: write data as expressions in x and y"),
        (number, "it has the constant .*: write the number itself, or make it a parameter"),
    ):
        with pytest.raises(ValueError, match=message):
            exported(problem(lambda u, y, x, dx, ds, given=given: given * dirichlet_energy(u) * dx))
    with pytest.raises(
        ValueError, match=r"test or trial functions? of its own: give the energy, or use those of resid"
    ):
        exported(problem(lambda u, y, x, dx, ds: inner(grad(u), grad(ufl.TestFunction(V))) * dx))


def test_a_field_beside_the_others_is_missed():
    with pytest.raises(ValueError, match="no term over dx has p, so it has no minimum"):
        exported(problem(lambda u, p, y, x, dx, ds: (dirichlet_energy(u) - u) * dx, (Field("u"), Field("p"))))
    with pytest.raises(ValueError, match=r"it is linear in u\[1\] inside the domain"):
        exported(problem(lambda u, y, x, dx, ds: (dirichlet_energy(u[0]) - u[1]) * dx, VECTOR))


# ---- weak forms


@pytest.mark.parametrize(
    ("residual", "message"),
    [
        (
            lambda u, v, y, x, dx, ds: v**2 * u * dx,
            "the residual .* not linear in the test functions: every term needs",
        ),
        (lambda u, v, y, x, dx, ds: u * dx, "the residual .* not linear in the test functions"),
        (lambda u, v, y, x, dx, ds: (u * v + u) * dx, "not linear in the test functions"),
        (lambda u, v, y, x, dx, ds: v * dx, "no term over dx has u, which is then not determined"),
        (lambda u, v, y, x, dx: v * dx, r"it is called as residual\(u, v, y, x, dx, ds\)"),
        (lambda u, v, y, x, dx, ds: v[1] * dx, "u is a number"),
    ],
)
def test_wrong_weak_forms_are_explained(residual, message):
    made = Problem(MESH, Equation(Field("u"), residual=residual), Uniform((1.0,), (2.0,)))
    with pytest.raises(ValueError, match=message):
        made.density()


# ---- what stands beside the form


def energy(u, y, x, dx, ds):
    return (dirichlet_energy(u) - as_vector([y[0], 0])[0] * (u if u.ufl_shape == () else u[0])) * dx


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Equation(Field("u"), energy=energy, residual=energy),
            "both energy and residual: give one, a function",
        ),
        (lambda: Equation(Field("u")), "neither energy nor residual: give one, a function that returns a UFL form"),
        (lambda: Equation(energy=energy), r"the equation has no fields: write Equation\(Field\('u'\), energy="),
        (lambda: Equation("u", energy=energy), "'u' is no field of an equation"),
        (lambda: Equation(Field("u"), Field("u"), energy=energy), "two fields are called 'u': rename one"),
        (lambda: Equation(Field("u"), energy="grad(u)"), "energy is a str; give a function that returns the form"),
        (lambda: Equation(Field("u"), energy=ufl.dx), "energy is a Measure; give a function that returns the form"),
        (lambda: Field("u", "P3"), "the element of u is 'P3'; choose 'P1', 'P2', 'RT0' for an equation"),
        (lambda: Field("u", components=0), "components of u is 0; give 1 to 20"),
        (lambda: Field("s", "RT0", components=2), "a vector by itself: leave components out"),
        (
            lambda: problem(energy, VECTOR, dirichlet={"left": (0, 0, 0)}),
            r"dirichlet\['left'\] of u has 3 values for 2 components: give one per component, None where it is free",
        ),
        (
            lambda: problem(energy, (Field("u", components=2, dirichlet={"left": (0.0,)}),)),
            r"dirichlet\['left'\] of u has 1 values for 2 components",
        ),
        (lambda: problem(energy, dirichlet={"left": (0, 1)}), "has 2 values for 1 component: give one per component"),
        (lambda: problem(energy, VECTOR, dirichlet_value=(1.0, 0.0)), "values per component go by group, as in"),
        (lambda: problem(energy, dirichlet={"left": 0.0}, dirichlet_value=1.0), "so leave dirichlet_value out"),
        (
            lambda: problem(energy, neumann={"left": 1.0}),
            "neumann is given, but .* an equation of its own: write bound",
        ),
        (lambda: problem(energy, robin={"left": (1.0, 0.0)}), "robin is given, but .* has an equation of its own"),
        (lambda: problem(energy, source=2.0), r"a source is given, but .*: write - f \* u \* dx in it"),
        (lambda: problem(energy, source=lambda x, y: y[..., 0]), "a source is given"),
    ],
)
def test_wrong_settings_are_refused_at_once(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_form_is_not_a_function_that_returns_one():
    _, V = own_space()
    form = inner(grad(fem.Function(V)), grad(fem.Function(V))) * ufl.dx
    with pytest.raises(ValueError, match="energy is a Form; give a function that returns the form, because forms are"):
        Equation(Field("u"), energy=form)


def test_values_per_component_may_leave_some_free():
    made = problem(energy, VECTOR, dirichlet={"left": (0.0, None), "right": 0.0, "top": (None, 1.0)})
    fixed = {f.name: f.free[-1] for f in exported(made).fields}
    points = exported(made).points
    on_top, on_sides = points[:, 1] == 1, (points[:, 0] == 0) | (points[:, 0] == 1)
    np.testing.assert_array_equal(fixed["u[0]"], np.flatnonzero(~on_sides))
    np.testing.assert_array_equal(fixed["u[1]"], np.flatnonzero(~(on_top | (points[:, 0] == 1))))


def test_least_squares_is_no_formulation_of_an_equation():
    made = problem(energy)
    with pytest.raises(ValueError, match=r"has an equation of its own.*use formulation='energy'"):
        export_frame(MeshHierarchy.from_problem(made, 2), made, "least-squares")


def test_fields_that_nothing_fixes_are_refused():
    for dirichlet in (None, {}):
        with pytest.raises(ValueError, match=r"nothing fixes u: .*give dirichlet, or add a term with u itself"):
            exported(problem(energy, dirichlet=dirichlet))
    with pytest.raises(ValueError, match=r"nothing fixes u\[1\]"):
        exported(problem(energy, VECTOR, dirichlet={"left": (0.0, None)}))
    exported(problem(lambda u, y, x, dx, ds: energy(u, y, x, dx, ds) + y[1] * u**2 * ds("left"), dirichlet=None))


# ---- what depends on y


UNBOUNDED = {
    "minus": lambda u, y, x, dx, ds: (-dirichlet_energy(u) - u) * dx,
    "minus for some y": lambda u, y, x, dx, ds: ((y[0] - 1) * dirichlet_energy(u) - u) * dx,
    "reaction": lambda u, y, x, dx, ds: (dirichlet_energy(u) - 100 * u**2 - u) * dx,
    "logarithm": lambda u, y, x, dx, ds: (dirichlet_energy(u) - ln(y[0] - 1) * u) * dx,
    "logarithm of state": lambda u, y, x, dx, ds: (dirichlet_energy(u) + u**2 - ln(y[0] - 1) * u) * dx,
    "constant load": lambda u, y, x, dx, ds: (dirichlet_energy(u) - ln(x[0] - 2) * u) * dx,
}
MESSAGES = {
    "minus": r"a in the energy ½ ∫ a \|∇u\|² must be positive and finite, but it is -1 for y = .*fix the equation",
    "minus for some y": r"a in the energy ½ ∫ a \|∇u\|² must be positive and finite, but it is -",
    "reaction": r"the functional may have no minimum; change the equation",
    "logarithm": "a load of the equation is not finite for y = .*: change the equation, or the parameters",
    "logarithm of state": "first derivatives of energy are not finite in cell 0 for y = ",
    "constant load": "a load of the equation is not finite: change the equation",
}


@pytest.mark.parametrize("name", UNBOUNDED)
def test_energies_without_minimum_are_found_before_training(tmp_path, name):
    with pytest.raises(ValueError, match=MESSAGES[name]):
        train(Configuration(levels=2, epochs=2), tmp_path / "run", problem=problem(UNBOUNDED[name]), quiet=True)
    assert not (tmp_path / "run").exists()


# ---- what is allowed


@pytest.mark.parametrize(
    "energy",
    [
        lambda u, y, x, dx, ds: (dirichlet_energy(u) - inner(grad(sin(x[0]) * y[0]), grad(u))) * dx,
        lambda u, y, x, dx, ds: (conditional(lt(x[0], y[0] - 0.5), y[1], y[2]) * dirichlet_energy(u) - u) * dx,
        lambda u, y, x, dx, ds: (dirichlet_energy(u) - conditional(gt(y[0], 1), 1, -1) * u) * ufl.dx,
    ],
)
def test_derivatives_of_data_and_conditions_are_allowed(energy):
    made = problem(energy)
    formulation = make_formulation(Frame.from_arrays(exported(made), "float64"), made)
    y = torch.as_tensor(made.parameters.sample(2, 0))
    solution = solve(formulation, y, 1e-10, solver="frame")
    assert torch.isfinite(certify(formulation, solution.w, y).value).all()


# ---- commands


FILE = """
from ufl import grad, inner, ln

from fem_frames import Equation, Field, Grid, Problem, Uniform

ENERGIES = {
    "nothing": lambda u, y, x, dx, ds: None,
    "shape": lambda u, y, x, dx, ds: grad(u) * grad(u) * dx,
    "region": lambda u, y, x, dx, ds: inner(grad(u), grad(u)) * dx("steel"),
    "unbounded": lambda u, y, x, dx, ds: (-inner(grad(u), grad(u)) - u) * dx,
    "logarithm": lambda u, y, x, dx, ds: (inner(grad(u), grad(u)) - ln(y[0] - 1) * u) * dx,
}


def problem(kind: str = "nothing"):
    return Problem(Grid((1, 1)), Equation(Field("u"), energy=ENERGIES[kind]), Uniform((0.5,), (1.5,)))
"""
TOLD = {
    "nothing": "the energy returns nothing, not a form: end every term with * dx or * ds",
    "shape": "numbers and vectors do not fit: u is a number, y has one, y[0], x has 2 entries",
    "region": "the equation names the group 'steel', but no region carries it; the mesh has 0",
    "unbounded": "must be positive and finite, but it is -2 for y",
    "logarithm": "a load of the equation is not finite for y",
}


@pytest.mark.parametrize("kind", TOLD)
def test_commands_print_one_line_and_leave_nothing(tmp_path, kind):
    (tmp_path / "wrong.py").write_text(FILE)
    options = ["--problem", "wrong.py", "--set", f"kind={kind}", "--levels", 2]
    run = call_command("train", *options, "--epochs", 2, "--out", "run", "--quiet", expect=2, cwd=tmp_path)
    (line,) = run.stderr.strip().splitlines()
    assert line.startswith("fem-frames: ")
    assert TOLD[kind] in line
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["wrong.py"]
    if kind in ("nothing", "shape", "region"):
        done = call_command("export", *options, "--out", "frame.npz", expect=2, cwd=tmp_path)
        assert TOLD[kind] in done.stderr
        assert not (tmp_path / "frame.npz").exists()
    if kind in ("nothing", "shape"):
        done = call_command("problems", "wrong.py", "--set", f"kind={kind}", expect=2, cwd=tmp_path)
        assert TOLD[kind] in done.stderr
