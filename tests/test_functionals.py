"""Outputs in UFL: closed forms, bounds, derivatives in y, files of programs; outputs of vector fields."""

import json
import sys

import numpy as np
import pytest
import torch
from ufl import Dx, as_vector, cos, dot, exp, grad, inner, sym, tr
from walls import CONDITIONS, cube, formulation_on, linear, samples, varying

from fem_frames import (
    BoundaryFlux,
    Equation,
    Field,
    Frame,
    FrameArrays,
    Functional,
    LinearFunctional,
    OutputMap,
    PointValues,
    Problem,
    RegionMean,
    Uniform,
    certify_outputs,
    differentiable_solve,
    load_outputs,
    make_formulation,
    save_outputs,
    solve,
    tangent_solve,
)
from fem_frames.output_records import read_outputs, record_outputs
from training import OutputNet, OutputNetSettings

pytestmark = pytest.mark.serial
BOX = Uniform((0.5, 0.5, 0.5), (1.5, 1.5, 1.5))


def stored(u, y, x, dx, ds):
    e = sym(grad(u))
    return (y[0] * tr(e) ** 2 / 2 + y[1] * inner(e, e)) * dx


def elastic(u, y, x, dx, ds):
    return stored(u, y, x, dx, ds) + 0.1 * y[2] * u[1] * dx - y[1] * u[0] * ds("right")


def diffusive(u, y, x, dx, ds):
    return (y[0] * (1 + x[0] * y[1]) * inner(grad(u), grad(u)) / 2 - y[2] * u * x[1]) * dx


def reactive(u, y, x, dx, ds):
    return diffusive(u, y, x, dx, ds) + (exp(y[1]) * u**2 / 2) * dx - u * ds("top")


def on_wall(energy, d=2, components=None):
    return Problem(cube(d), Equation(Field("u", components=components), energy=energy), BOX, dirichlet={"left": 0.0})


EQUATIONS = {
    "elasticity": lambda: on_wall(elastic, components=2),
    "diffusion": lambda: on_wall(diffusive),
    "reaction": lambda: on_wall(reactive),
    "in space": lambda: on_wall(elastic, 3, 3),
    "built in": lambda: varying(2, **CONDITIONS["neumann"]),
}


def of(name):
    return formulation_on(EQUATIONS[name](), 1 if name == "in space" else 2)


def functionals(name):
    """Two affine ones, then one that is not."""
    if name in ("elasticity", "in space"):
        return [
            Functional(lambda u, y, x, dx, ds: u[1] * ds("right"), "deflection"),
            Functional(lambda u, y, x, dx, ds: (y[0] * tr(sym(grad(u))) + 2 * y[1] * u[0].dx(0)) * x[1] * dx, "stress"),
            Functional(lambda u, y, x, dx, ds: y[1] ** 2 * inner(sym(grad(u)), sym(grad(u))) * dx, "square of stress"),
        ]
    return [
        Functional(lambda u, y, x, dx, ds: u * cos(x[0]) * ds("right"), "trace"),
        Functional(lambda u, y, x, dx, ds: exp(y[1]) * dot(as_vector([1, x[1]]), grad(u)) * dx + y[2] * dx, "slope"),
        Functional(lambda u, y, x, dx, ds: (1 + y[0] * x[0]) * dot(grad(u), grad(u)) * dx, "heat"),
    ]


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kind", ["energy", "robin", "least-squares"])
def test_functionals_of_linear_solutions_are_exact(d, kind):
    problem, _ = linear(d, robin=kind == "robin")
    made = formulation_on(problem, 2 if d < 3 else 1, "energy" if kind == "robin" else kind)
    y = samples(problem, 3)
    flux = kind == "least-squares"

    def given(function):
        return Functional((lambda u, sigma, y, x, dx, ds: function(u, y, x, dx, ds)) if flux else function)

    outputs = [
        given(lambda u, y, x, dx, ds: u * ds("right")),
        given(lambda u, y, x, dx, ds: u**2 * dx),
        given(lambda u, y, x, dx, ds: y[3] * inner(grad(u), grad(u)) * dx),
        given(lambda u, y, x, dx, ds: u.dx(0) * ds("left") + y[0] * ds("left")),
    ]
    if flux:
        outputs.append(Functional(lambda u, sigma, y, x, dx, ds: sigma[0] * dx))
    c, s = y[:, 0], y[:, 1 : 1 + min(d, 2)]
    middle = c + s.sum(1) / 2
    expected = [middle + s[:, 0] / 2, middle**2 + (s**2).sum(1) / 12, y[:, 3] * (s**2).sum(1), s[:, 0] + c, s[:, 0]]
    found = OutputMap(made, outputs).values(solve(made, y, 1e-12).w, y)
    torch.testing.assert_close(found, torch.stack(expected[: len(outputs)], dim=1), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["elasticity", "reaction", "in space"])
def test_the_energy_as_a_functional_is_the_loss(name):
    made = of(name)
    y = samples(made.problem, 3)
    w = torch.randn(3, made.frame.frame_size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = OutputMap(made, Functional(made.problem.equation.function)).values(w, y)[:, 0]
    torch.testing.assert_close(found, made.loss(w, y), rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", EQUATIONS)
def test_vectors_of_affine_functionals_are_their_derivatives(name):
    made = of(name)
    y = samples(made.problem, 3)
    w = torch.randn(3, made.frame.frame_size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    outputs = OutputMap(made, functionals(name))
    assert outputs.is_affine == (True, True, False)
    dual = outputs.functional(y)
    assert dual.shape == (3, 2, made.frame.frame_size)
    found = (dual * w[:, None]).sum(-1) + outputs.values(0 * w, y)[:, :2]
    torch.testing.assert_close(found, outputs.values(w, y)[:, :2], rtol=1e-11, atol=1e-11)
    assert OutputMap(made, functionals(name)[0]).functional(y).shape[0] == 1  # it does not depend on y


@pytest.mark.parametrize("name", EQUATIONS)
def test_affine_functionals_have_bounds_and_others_say_that_they_have_none(name):
    made = of(name)
    y = samples(made.problem, 20)
    solution = solve(made, y, 1e-12).w
    generator = torch.Generator().manual_seed(0)
    w = solution * (1 + 0.1 * torch.randn(solution.shape, generator=generator, dtype=torch.float64))
    outputs = OutputMap(made, functionals(name))
    truth = outputs.values(solution, y)
    plain, better = (certify_outputs(made, w, y, outputs, adjoint) for adjoint in (False, True))
    for found in (plain, better):
        error = (found.values - truth).abs()
        assert (error[:, :2] <= found.error_bound[:, :2]).all()
        assert torch.isinf(found.error_bound[:, 2]).all()
        assert found.has_bound == (True, True, False)
        assert f"for {outputs.labels[2]}: not affine in the solution" in found.kind
    assert (better.error_bound[:, :2] < 1e-2 * plain.error_bound[:, :2]).all()
    assert torch.equal(plain.values[:, 2], better.values[:, 2])
    alone = certify_outputs(made, w, y, functionals(name)[2])
    assert not alone.bounded
    assert alone.kind.startswith("no bound for")


@pytest.mark.parametrize("name", EQUATIONS)
def test_derivatives_in_y_agree_with_central_differences(name):
    made = of(name)
    outputs = OutputMap(made, [*functionals(name), PointValues([[0.3] * made.frame.arrays.dimension]), RegionMean()])
    y = samples(made.problem, 2)
    weights = torch.linspace(1.0, -2.0, len(outputs), dtype=torch.float64)

    def goal(at):
        return outputs.values(differentiable_solve(made, at, 1e-12), at) @ weights

    free = y.clone().requires_grad_()
    (found,) = torch.autograd.grad(goal(free).sum(), free)
    step, size = 1e-4, max(1.0, float(found.abs().max()))
    for k in range(y.shape[1]):
        shift = torch.zeros_like(y)
        shift[:, k] = step
        expected = (goal(y + shift) - goal(y - shift)) / (2 * step)
        torch.testing.assert_close(found[:, k], expected, rtol=0, atol=1e-6 * size)
    v = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    w, dw = tangent_solve(made, y, v, 1e-12)
    tangent = torch.func.jvp(outputs.values, (w, y), (dw, v))[1] @ weights
    torch.testing.assert_close(tangent, (found * v).sum(1), rtol=0, atol=1e-8 * size)


@pytest.mark.parametrize("name", EQUATIONS)
def test_products_with_the_residual_are_products(name):
    made = of(name)
    y = samples(made.problem, 3)
    generator = torch.Generator().manual_seed(3)
    w, z = (torch.randn(3, made.frame.frame_size, generator=generator, dtype=torch.float64) for _ in range(2))
    expected = (made.residual(w, y) * z).sum(1)
    torch.testing.assert_close(made.residual_product(w, z, y), expected, rtol=1e-11, atol=1e-11)


def test_functionals_see_boundary_data_that_depend_on_y():
    made = formulation_on(varying(2, **CONDITIONS["dirichlet"]), 2)
    y = samples(made.problem, 3)
    w = solve(made, y, 1e-12).w
    whole = OutputMap(made, [Functional(lambda u, y, x, dx, ds: u * dx), RegionMean()]).values(w, y)
    torch.testing.assert_close(whole[:, 0], whole[:, 1], rtol=1e-12, atol=0)


# ---- files


def test_functionals_travel_as_programs_without_their_functions(tmp_path, monkeypatch):
    made = of("elasticity")
    outputs = OutputMap(
        made,
        [
            *functionals("elasticity"),
            PointValues(torch.tensor([[0.5, 0.5]])),
            RegionMean(),
            BoundaryFlux("left"),
            LinearFunctional(np.ones(len(made.frame.arrays.points)), "u[1]", "sum"),
        ],
    )
    made.frame.arrays.save(tmp_path / "frame.npz")
    save_outputs(tmp_path / "outputs.json", outputs)
    monkeypatch.setitem(sys.modules, "fem_frames.fenicsx.weak_forms", None)  # nothing is compiled from UFL again
    arrays = FrameArrays.load(tmp_path / "frame.npz")
    other = make_formulation(Frame.from_arrays(arrays, "float64"), made.problem)
    y = samples(made.problem, 2)
    w = torch.randn(2, made.frame.frame_size, dtype=torch.float64)
    again = OutputMap(other, load_outputs(tmp_path / "outputs.json"))
    assert again.labels == outputs.labels
    assert torch.equal(again.values(w, y), outputs.values(w, y))
    monkeypatch.undo()
    diffusion = of("diffusion")
    with pytest.raises(ValueError, match="was compiled for u\\[0\\] in P1 with values and u\\[1\\]"):
        OutputMap(diffusion, load_outputs(tmp_path / "outputs.json"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.clear(), "not a list of records"),
        (lambda r: r.append({"kind": "code"}), "no output of the kind 'code'"),
        (lambda r: r[0].pop("name"), "not described by name and density"),
        (lambda r: r[0]["density"].update(kind="residual"), "weak form"),
        (lambda r: r[0]["density"]["integrals"][0].update(program="u"), "a program consists of"),
        (lambda r: r[1].update(points="here"), "not described by points and field"),
        (lambda r: r[1].update(points=[[0.5, float("nan")]]), "not described by points and field"),
        (lambda r: r[2].update(region=1.5), "not described by region and field"),
    ],
)
def test_damaged_records_are_refused(change, message, tmp_path):
    made = of("diffusion")
    records = record_outputs(OutputMap(made, [functionals("diffusion")[0], PointValues([[0.5, 0.5]]), RegionMean()]))
    read_outputs(json.loads(json.dumps(records)))
    change(records)
    with pytest.raises(ValueError, match=message):
        read_outputs(records)
    (tmp_path / "file").write_text(json.dumps({"format": "fem-frames outputs", "outputs": records}))
    with pytest.raises(ValueError, match="holds no outputs: "):
        load_outputs(tmp_path / "file")


def test_a_net_for_outputs_keeps_functionals_as_programs(tmp_path):
    made = of("diffusion")
    outputs = [functionals("diffusion")[0], functionals("diffusion")[2]]
    net = OutputNet.train(made, outputs, OutputNetSettings(samples=8, validation=4, steps=2, width=8))
    net.save(tmp_path / "net.pt")
    again = OutputNet.load(tmp_path / "net.pt")
    y = samples(made.problem, 3)
    w = solve(made, y, 1e-10).w
    found = OutputMap(made, again.outputs)
    assert found.labels == again.labels == ("trace", "heat")
    assert torch.equal(found.values(w, y), OutputMap(made, outputs).values(w, y))
    unknown = OutputNet.train(
        made, BoundaryFlux(lambda x: x[:, 0] < 0.1), OutputNetSettings(samples=8, validation=4, steps=2, width=8)
    )
    unknown.save(tmp_path / "net.pt")
    with pytest.raises(ValueError, match="does not hold its outputs"):
        _ = OutputNet.load(tmp_path / "net.pt").outputs


# ---- vector fields


def test_outputs_of_a_vector_field_are_those_of_its_components():
    made = of("elasticity")
    y = samples(made.problem, 2)
    w = torch.randn(2, made.frame.frame_size, dtype=torch.float64)
    vector = torch.randn(len(made.frame.arrays.points), dtype=torch.float64)
    kinds = [
        lambda name: PointValues([[0.3, 0.4], [1.0, 0.7]], name),
        lambda name: RegionMean(None, name),
        lambda name: LinearFunctional(vector, name, "sum"),
        lambda name: BoundaryFlux("left", name),
    ]
    for kind in kinds:
        whole, parts = OutputMap(made, kind("u")), [OutputMap(made, kind(f"u[{k}]")) for k in range(2)]
        expected = torch.stack([part.values(w, y) for part in parts], dim=2).flatten(1)
        assert torch.equal(whole.values(w, y), expected)
        dual = torch.stack([part.functional(y) for part in parts], dim=2).flatten(1, 2)
        torch.testing.assert_close(whole.functional(y), dual, rtol=0, atol=1e-12)
    labels = OutputMap(made, [kind("u") for kind in kinds]).labels
    assert labels == (
        *("u[0](0.3, 0.4)", "u[1](0.3, 0.4)", "u[0](1, 0.7)", "u[1](1, 0.7)", "mean u[0]", "mean u[1]"),
        *("sum of u[0]", "sum of u[1]", "flux of u[0] left", "flux of u[1] left"),
    )


def test_reactions_balance_the_loads():
    """The test functions 1, of each component, give the sum of all forces."""
    for name, loads in (
        ("elasticity", lambda y: [-y[:, 1], 0.1 * y[:, 2]]),
        ("diffusion", lambda y: [-y[:, 2] / 2]),
    ):
        made = of(name)
        y = samples(made.problem, 3)
        w = solve(made, y, 1e-12).w
        outputs = OutputMap(made, [BoundaryFlux("left"), BoundaryFlux("all")])
        found, expected = outputs.values(w, y), torch.stack(loads(y), dim=1)
        torch.testing.assert_close(found, expected.repeat(1, 2), rtol=0, atol=1e-9)
        affine = (outputs.functional(y) * w[:, None]).sum(-1) + outputs.values(0 * w, y)
        torch.testing.assert_close(found, affine, rtol=0, atol=1e-10)
        with pytest.raises(ValueError, match=r"is given nowhere on 'right'.* Functional with ds"):
            OutputMap(made, BoundaryFlux("right"))


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (PointValues([[0.5, 0.5]], "v"), r"no field 'v'; the frame has u\[0\], u\[1\]; u is all components"),
        (RegionMean(None, "u[2]"), r"no field 'u\[2\]'"),
        (BoundaryFlux("left", "p"), "no field 'p'"),
        (
            Functional(lambda u, y, x, dx, ds: u * dx, "q"),
            "the functional q fails.* has the shape|before dx has the shape",
        ),
        (Functional(lambda u, y, x, dx, ds: u[0], "q"), "the functional q returns a .*, not a form"),
        (
            Functional(lambda u, y, x, dx, ds: Dx(u[0].dx(0), 0) * dx, "q"),
            "the functional q cannot .* second derivatives",
        ),
        (Functional(lambda u, y, x, dx, ds: u[0] * ds("inflow"), "q"), "the functional q: .*the group 'inflow'"),
        (Functional(lambda u, y, x, dx, ds: y[7] * u[0] * dx, "q"), "the functional q fails"),
        (Functional(lambda u: u, "q"), r"the functional q fails.* it is called as functional\(u, y, x, dx, ds\)"),
    ],
)
def test_outputs_of_equations_that_do_not_fit_are_refused(output, message):
    with pytest.raises(ValueError, match=message):
        OutputMap(of("elasticity"), output)


def test_functionals_are_functions():
    for wrong, name in ((3.0, "q"), (None, "q"), (lambda u: u, "")):
        with pytest.raises(ValueError, match=r"give a function|a text is expected"):
            Functional(wrong, name)
