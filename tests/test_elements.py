"""Elements against basix and PETSc, and formulations of one's own, for equations with u itself."""

import json

import numpy as np
import pytest
import torch
from small_runs import call_command, run_command

from fem_frames import (
    P1,
    RT0,
    EdgeBubbles,
    Field,
    Frame,
    FrameArrays,
    Grid,
    MeshHierarchy,
    P1Values,
    Pointwise,
    Problem,
    QuadraticFormulation,
    Uniform,
    certify,
    export_frame,
    make_formulation,
    solve,
    solve_reference,
)
from fem_frames.fenicsx import refinement
from fem_frames.frame import matrices
from fem_frames.mesh.simplices import SimplexMesh
from fem_frames.solvers.bounds import norm_of
from training import Configuration, Surrogate, train
from training.metrics import query_seconds
from training.references import reference_solutions

pytestmark = pytest.mark.serial
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


class Reaction(QuadraticFormulation):
    """Minimise ∫ ½ a_y |∇u|² + ½ r_y u² - f_y u - h u over the Neumann part, r_y = y[1] + 1."""

    name = "test-reaction"
    fields = (Field("u", P1Values),)

    def blocks(self, y):
        a, r = self.mean(self.coefficient(y)), 1 + self.check_parameters(y)[:, 1].to(self.wide)
        d = self.moments.shape[1]
        C = torch.zeros(len(a), 1 + d, 1 + d, len(r)).to(a)
        C[:, 0, 0] = r
        C[:, 1:, 1:] = torch.eye(d).to(a)[..., None] * a[:, None, None] + r * self.moments[..., None]
        return C

    def state_functional(self, y):
        return self.source_functional(y)

    @staticmethod
    def forms(V, w, a, f, y, dx):
        from ufl import TestFunction, TrialFunction, grad, inner

        def energy(u, v):
            return (a * inner(grad(u), grad(v)) + (1 + y[1]) * u * v) * dx

        return energy(TrialFunction(V), TestFunction(V)), f * TestFunction(V) * dx, 0.5 * energy(w, w) - f * w * dx


class WithoutForms(Reaction):
    """The same, but PETSc does not know it."""

    name = "test-reaction-without-forms"
    forms = QuadraticFormulation.forms


def problem(d):
    """Essential and natural boundary data that are not zero; a is linear in x, which one point integrates exactly."""
    return Problem(
        mesh=Grid((1,) * d, (0.1,) * d, (0.9, 0.7, 1.3)[:d]),
        coefficient=Pointwise(lambda x, y: 1 + y[..., 0] * x[..., 0]),
        parameters=Uniform((0.0, 0.0), (1.0, 3.0)),
        source=lambda x, y: 1 + y[..., 1] * x[..., 0],
        dirichlet=lambda x: np.isclose(x[:, 0], 0.1),
        dirichlet_value=lambda x: 1 + x[:, 0] + x[:, -1],
        neumann={"rest": lambda x: 0.5 + x[:, -1]},
        quadrature_degree=4,
    )


def arrays_of(d, formulation="test-reaction", levels=None):
    made = problem(d)
    return made, export_frame(MeshHierarchy.from_problem(made, levels or (4, 3, 2)[d - 1]), made, formulation)


# ---- elements


@pytest.mark.parametrize("kind", [P1, P1Values, EdgeBubbles, RT0])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_states_are_taylor_polynomials_at_the_centre(kind, d):
    """Those of the nodal basis, and shifted to any other point, against basix's tables there."""
    rng = np.random.default_rng(0)
    hierarchy = MeshHierarchy.from_problem(problem(d), 1)
    mesh = SimplexMesh(hierarchy.points, hierarchy.finest.cells)
    element = kind.for_mesh(d, mesh.hats[1])
    states = element.states(mesh.points, mesh.cells, mesh.hats[0])  # (K, L, c)
    assert states.shape == (len(mesh.cells), len(element_simplices(mesh, element)), element.state_size)
    corners = mesh.points[mesh.cells]
    jacobian = np.swapaxes(corners[:, 1:] - corners[:, :1], 1, 2)
    hats = rng.dirichlet(np.ones(d + 1), len(mesh.cells))  # barycentric coordinates of a point in each cell
    for weights in (np.full_like(hats, 1 / (d + 1)), hats):
        x = np.einsum("kn,knd->kd", weights, corners)
        shifted = element.shift(states, (x - corners.mean(axis=1))[:, None])
        np.testing.assert_allclose(shifted, element.tabulate(weights[:, None, 1:], jacobian)[:, 0], atol=1e-10)


def element_simplices(mesh, element):
    return mesh.simplices(element.degree)[1][0]


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_d_of_p1_with_values_is_that_of_basix(d, dtype):
    """All levels through the recursion, against values and gradients at the centroids."""
    arrays = arrays_of(d)[1]
    frame = Frame.from_arrays(arrays, dtype)
    exact = matrices.quadrature_differential(arrays, 1).toarray()  # (K (1 + d), Nhat)
    exact *= np.repeat(np.sqrt(arrays.volumes), 1 + d)[:, None]
    tolerance = 50 * torch.finfo(dtype).eps * np.abs(exact).max()
    np.testing.assert_allclose(frame.D.to_dense().double(), exact, atol=tolerance)
    z = torch.ones(frame.D.shape[0], dtype=dtype)
    np.testing.assert_allclose(frame.D.T(z).double(), exact.sum(axis=0), atol=len(arrays.levels) * 20 * tolerance)


def test_elements_are_recorded_and_come_back(tmp_path):
    arrays = arrays_of(2)[1]
    arrays.save(tmp_path / "frame.npz")
    found = FrameArrays.load(tmp_path / "frame.npz")
    assert [f.element for f in found.fields] == [P1Values(2)]
    assert found.formulation == "test-reaction"


# ---- a formulation of one's own


@pytest.mark.parametrize("d", [1, 2, 3])
def test_solutions_of_an_own_formulation_are_those_of_petsc(d):
    made, arrays = arrays_of(d)
    formulation = make_formulation(Frame.from_arrays(arrays, "float64"), made)
    y = made.parameters.sample(3, 0)
    reference = solve_reference(made, y, arrays.finest_level, "test-reaction")
    w = solve(formulation, torch.as_tensor(y), 1e-12).w
    np.testing.assert_allclose(formulation.synthesise(w)["u"], reference.u, atol=1e-9)
    np.testing.assert_allclose(formulation.loss(w, torch.as_tensor(y)), reference.loss, rtol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
def test_losses_and_residuals_agree_with_autograd_and_the_expanded_form(dtype):
    made, arrays = arrays_of(2)
    formulation = make_formulation(Frame.from_arrays(arrays, dtype), made)
    y = torch.as_tensor(made.parameters.sample(2, 0)).bfloat16().to(dtype)
    generator = torch.Generator().manual_seed(0)
    w = 0.1 * torch.randn(2, arrays.frame_size, generator=generator, dtype=torch.float64)
    w = w.to(dtype).requires_grad_()
    loss, residual = formulation.loss_and_residual(w.detach(), y)
    (gradient,) = torch.autograd.grad(formulation.loss(w, y).sum(), w)
    tolerance = 50 * torch.finfo(dtype).eps
    torch.testing.assert_close(residual, gradient, rtol=tolerance, atol=tolerance * float(gradient.abs().max()))
    expanded = formulation.nodal_loss(formulation.frame.H(w.detach()), y)
    torch.testing.assert_close(loss, expanded, rtol=4 * tolerance, atol=4 * tolerance)
    load = formulation.load(y)
    stable = formulation.stable(y)(w.detach()) - load
    torch.testing.assert_close(residual, stable, rtol=tolerance, atol=10 * tolerance * float(load.abs().max()))


@pytest.mark.parametrize("d", [1, 2, 3])
def test_the_bound_of_an_own_formulation_is_one(d):
    made, arrays = arrays_of(d)
    formulation = make_formulation(Frame.from_arrays(arrays, "float64"), made)
    y = torch.as_tensor(made.parameters.sample(8, 1))
    solution = solve(formulation, y, 1e-12).w
    noise = 0.01 * torch.randn(solution.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bound, error = certify(formulation, solution + noise, y).value, norm_of(formulation, noise, y)
    assert (bound >= error).all()
    assert (bound <= 10 * error).all()


def test_blocks_of_a_wrong_shape_are_named():
    made, arrays = arrays_of(2)

    class Wrong(Reaction):
        name = "test-wrong"

        def blocks(self, y):
            return super().blocks(y)[:, :2]

    formulation = make_formulation(Frame.from_arrays(arrays_of(2, "test-wrong")[1], "float64"), made)
    with pytest.raises(ValueError, match=r"blocks of test-wrong have shape \(\d+, 2, 3, 1\); \(K, m, m, B\) = "):
        formulation.C(torch.zeros(1, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match="exported for 'test-reaction', but this is 'test-wrong'"):
        Wrong(Frame.from_arrays(arrays, "float64"), made)
    with pytest.raises(ValueError, match="the name 'energy' belongs to a formulation of fem-frames"):
        type("Energy", (Reaction,), {"name": "energy"})


class Tensor(QuadraticFormulation):
    """Anisotropic diffusion with P1: the gradient alone, and the source at points."""

    name = "test-tensor"
    fields = (Field("temperature", P1),)
    source_at_points = True

    def blocks(self, y):
        y = self.check_parameters(y).to(self.wide)
        K = torch.tensor([[2.0, 0.5], [0.5, 1.0]]).to(y)
        return (K[..., None] * (1 + y[:, 0])).expand(len(self.volume_roots), -1, -1, -1)

    @staticmethod
    def forms(V, w, a, f, y, dx):
        from ufl import TestFunction, TrialFunction, as_matrix, dot, grad

        def energy(u, v):
            return (1 + y[0]) * dot(as_matrix([[2.0, 0.5], [0.5, 1.0]]) * grad(u), grad(v)) * dx

        return energy(TrialFunction(V), TestFunction(V)), f * TestFunction(V) * dx, 0.5 * energy(w, w) - f * w * dx


def test_a_source_acts_at_points_where_states_have_no_values(tmp_path):
    """Against PETSc, with a lift, Neumann data and a field that is not called u; trained and asked by all means."""
    made, arrays = arrays_of(2, "test-tensor")
    formulation = make_formulation(Frame.from_arrays(arrays, "float64"), made)
    y = made.parameters.sample(3, 0)
    reference = solve_reference(made, y, arrays.finest_level, "test-tensor")
    w = solve(formulation, torch.as_tensor(y), 1e-12).w
    np.testing.assert_allclose(formulation.synthesise(w)["temperature"], reference.u, atol=1e-9)
    np.testing.assert_allclose(formulation.loss(w, torch.as_tensor(y)), reference.loss, rtol=1e-9)
    expanded = formulation.nodal_loss(formulation.frame.H(w), torch.as_tensor(y))
    np.testing.assert_allclose(expanded, reference.loss, rtol=1e-9)
    settings = Configuration(formulation="test-tensor", levels=2, epochs=2, test_samples=3, rank=2)
    train(settings, tmp_path / "run", problem=made, quiet=True)
    surrogate = Surrogate.load(tmp_path / "run", made)
    assert surrogate.to_function(y[0]).name == "temperature"
    assert query_seconds(surrogate, y) > 0


def wrong(**members):
    return type("Wrong", (Reaction,), {"name": "test-wrong-density", **members})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda C: C + torch.triu(torch.ones(3, 3), 1).to(C)[..., None], "are not symmetric"),
        (lambda C: -C, r"has the eigenvalue -.* in cell 0 for y = \(.*the functional may have no minimum"),
        (lambda C: C * torch.nan, r"blocks of test-wrong-density are not finite in cell 0 for y = \("),
        (lambda C: C.float(), "are in torch.float32; compute them in self.wide, torch.float64"),
        (lambda C: C / nothing, r"blocks of test-wrong-density fails in .*test_elements.py, line \d+.* NameError"),  # noqa: F821
        (lambda C: None, "have shape NoneType"),
    ],
)
def test_densities_that_are_none_are_refused_before_anything_is_solved(change, message):
    made = problem(2)
    wrong(blocks=lambda self, y: change(Reaction.blocks(self, y)))
    arrays = arrays_of(2, "test-wrong-density")[1]
    formulation = make_formulation(Frame.from_arrays(arrays, "float64"), made)
    with pytest.raises(ValueError, match=message):
        solve(formulation, torch.as_tensor(made.parameters.sample(2, 0)))


def test_loads_of_a_wrong_shape_are_named():
    made = problem(2)
    wrong(state_functional=lambda self, y: Reaction.state_functional(self, y)[:, :2])
    formulation = make_formulation(Frame.from_arrays(arrays_of(2, "test-wrong-density")[1], "float64"), made)
    with pytest.raises(ValueError, match=r"of test-wrong-density have shape \(\d+, 2, 1\); \(K, m, B\)"):
        solve(formulation, torch.as_tensor(made.parameters.sample(1, 0)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: type("A", (Reaction,), {"name": ""}), "the name of A is ''; a text is expected"),
        (lambda: type("A", (QuadraticFormulation,), {"name": "test-a"}), r"the fields of A are None; a tuple"),
        (lambda: type("A", (Reaction,), {"name": "test-a", "fields": ()}), r"the fields of A are \(\); a tuple"),
        (
            lambda: type("A", (Reaction,), {"name": "test-a", "fields": (Field("u", P1), Field("u", P1))}),
            "two fields of A are called 'u'",
        ),
        (lambda: Field("u", P1(2)), "the element of u is P1.*; choose .* for an equation, or a class"),
        (lambda: Field("", P1), "the name of a field is ''"),
        (lambda: type("Other", (Reaction,), {"name": "test-tensor"}), "Tensor is called 'test-tensor' already"),
        (lambda: type("Bad", (P1,), {"name": "P1"}), "there is an element 'P1' already: choose another name for Bad"),
    ],
)
def test_classes_that_cannot_be_used_are_refused_when_they_are_defined(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", ["test-reaction", "test-reaction-without-forms"])
def test_an_own_formulation_is_trained(tmp_path, name):
    """With a test set by multigrid, which PETSc checks where the formulation has forms."""
    made = problem(2)
    options = dict(levels=2, optimizer="soap", rate=1e-2, epochs=120, test_samples=8, rank=4, blocks=2)
    result = train(Configuration(formulation=name, **options), tmp_path / "run", problem=made, quiet=True)
    assert result["test"]["mre"] < 0.02
    surrogate = Surrogate.load(tmp_path / "run", made)
    reference = reference_solutions(surrogate.formulation, made.parameters.sample(1, 0))
    assert reference.record["reference"] == "multigrid"
    assert reference.record["checked_by_petsc"] == int(name == "test-reaction")
    y = made.parameters.sample(4, 1)
    assert (surrogate.improve(y, 1e-8).error_bound <= 1e-8).all()
    with pytest.raises(ValueError, match=f"the formulation {name} defines no flux: give it a method"):
        surrogate.flux(y)


MINE = """
import torch
from fem_frames import ByRegion, Field, Grid, P1Values, Problem, QuadraticFormulation, Uniform

class Mine(QuadraticFormulation):
    name = "mine"
    fields = (Field("u", P1Values),)

    def blocks(self, y):
        a = self.mean(self.coefficient(y))
        C = torch.zeros(len(a), 3, 3, a.shape[1]).to(a)
        C[:, 0, 0] = 1.0
        C[:, 1:, 1:] = torch.eye(2).to(a)[..., None] * a[:, None, None] + self.moments[..., None]
        return C

    def state_functional(self, y):
        return self.source_functional(y)

problem = Problem(Grid((1, 1)), ByRegion({0: 0}), Uniform((0.5,), (1.5,)))
"""


def test_commands_execute_the_problems_file_once_and_before_they_read_its_frame(tmp_path):
    """The frame has an element that only that file defines; what a file computes is computed once."""
    own = MINE.replace("P1Values),)", "Own),)").replace('"mine"', '"mine-once"')
    define = "class Own(P1Values):\n    name = 'own-once'\n\nopen('executed', 'a').write('x')\n\nclass Mine"
    (tmp_path / "once.py").write_text(own.replace("class Mine", define))
    given = ["--problem", "once.py"]
    train = ["--levels", 2, "--formulation", "mine-once", "--epochs", 2, "--test-samples", 0, "--rank", 2, "--quiet"]
    ask = ["--y", "1"]
    for arguments in (
        ["train", *given, *train, "--out", "run"],
        ["query", "run", *given, *ask],
        ["condition", "--frame", "run/frame.npz", *given],
        ["train", *given, "--frame", "run/frame.npz", *train[4:], "--out", "again"],
    ):
        (tmp_path / "executed").unlink(missing_ok=True)
        run_command(*arguments, cwd=tmp_path)
        assert (tmp_path / "executed").read_text() == "x", arguments


def test_commands_know_a_formulation_that_the_problems_file_defines(tmp_path):
    """And refuse names that nothing defines, with those that there are."""
    (tmp_path / "mine.py").write_text(MINE)
    given = ["--problem", "mine.py", "--levels", 2, "--formulation", "mine"]
    call_command("export", *given, "--out", "frame.npz", cwd=tmp_path)
    rows = json.loads(call_command("condition", *given, "--json", cwd=tmp_path).stdout)["rows"]
    assert 1 < rows[-1]["cond_bpx"] < 20
    call_command("iterations", "--frame", "frame.npz", "--problem", "mine.py", cwd=tmp_path)
    call_command("rounding", *given, "--dtypes", "float32", cwd=tmp_path)
    train = ["--epochs", 3, "--test-samples", 2, "--rank", 2, "--quiet", "--out", "run"]
    call_command("train", *given, *train, cwd=tmp_path)
    said = call_command("query", "run", "--problem", "mine.py", "--y", "1", "--tol", "1e-6", cwd=tmp_path).stdout
    assert "discrete solution" in said
    call_command("evaluate", "run", "--problem", "mine.py", "--samples", 2, cwd=tmp_path)
    wrong = call_command("export", *given[:-1], "absent", "--out", "other.npz", cwd=tmp_path, expect=2)
    assert "formulation is 'absent'; choose from energy, least-squares, weighted-least-squares" in wrong.stderr


# ---- one refinement


def test_a_training_run_refines_its_mesh_once(tmp_path, monkeypatch):
    """Frame, test set and the training set of a supervised loss share it; a run that is resumed needs none."""
    calls, refine = [], refinement.refine
    monkeypatch.setattr(refinement, "refine", lambda *given: calls.append(given) or refine(*given))
    options = dict(problem="checkerboard", levels=2, loss="supervised", training_samples=8, test_samples=4, rank=2)
    train(Configuration(**options, epochs=2), tmp_path / "run", quiet=True)
    assert len(calls) == 1
    train(None, tmp_path / "run", resume=True, quiet=True)
    assert len(calls) == 1
