"""The surrogate: saved, loaded without DOLFINx, queried, improved, and handed to other programs."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_runs import call_command, run_command
from test_absence import run_without_dolfinx

from fem_frames import Grid, Pointwise, Problem, Uniform, error_bound, make_problem, solve, solve_reference
from fem_frames.solvers.bounds import certify, norm_of
from fem_frames.solvers.conjugate_gradients import ConvergenceError
from training import Configuration, Surrogate, train
from training.metrics import evaluate
from training.references import reference_solutions

pytestmark = pytest.mark.serial
SAMPLE = np.ones((1, 4))
SMOOTH = dict(optimizer="soap", level_decay=1.0, epochs=150)
RUNS = {
    "1D": dict(problem="quarters", formulation="least-squares", levels=5, **SMOOTH),
    "2D": dict(problem="checkerboard", levels=4, **SMOOTH),
    "nodal": dict(problem="checkerboard", levels=3, loss="nodal", optimizer="soap", epochs=300, net="separate"),
    "prolonged": dict(problem="checkerboard", levels=3, net="separate-frame", start_level=2, **SMOOTH),
    "half": dict(problem="quarters", levels=3, precision="float16", mixed=True, **SMOOTH),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folders of small runs, by name."""
    folder = tmp_path_factory.mktemp("runs")
    made = {}

    def get(name):
        if name not in made:
            train(Configuration(**RUNS[name], test_samples=8), folder / name, quiet=True)
            made[name] = folder / name
        return made[name]

    return get


@pytest.mark.parametrize("name", sorted(set(RUNS) - {"prolonged"}))  # which would take longer
def test_a_surrogate_is_close_to_petsc(trained, name):
    surrogate = Surrogate.load(trained(name))
    y = surrogate.problem.parameters.sample(4, 9)
    c = RUNS[name]
    reference = solve_reference(surrogate.problem, y, c["levels"], c.get("formulation", "energy"))
    values = surrogate(y)
    assert set(values) == set(reference.fields)
    for field, v in values.items():
        assert v.shape == reference.fields[field].shape
        off = np.linalg.norm(v.double().numpy() - reference.fields[field]) / np.linalg.norm(reference.fields[field])
        assert off < 0.2


@pytest.mark.parametrize("name", RUNS)
def test_saving_and_loading_changes_nothing(trained, tmp_path, name):
    surrogate = Surrogate.load(trained(name))
    surrogate.save(tmp_path / "copy")
    assert sorted(p.name for p in (tmp_path / "copy").iterdir()) == ["frame.npz", "surrogate.pt"]
    again = Surrogate.load(tmp_path / "copy")
    y = surrogate.problem.parameters.sample(3, 1)
    for method in ("coefficients", "loss", "error_bound"):
        assert torch.equal(getattr(again, method)(y), getattr(surrogate, method)(y))
    for field, v in surrogate(y).items():
        assert torch.equal(again(y)[field], v)


@pytest.mark.parametrize("name", RUNS)
def test_values_are_those_of_the_coefficients(trained, name):
    surrogate = Surrogate.load(trained(name))
    y = surrogate.problem.parameters.sample(3, 1)
    exact = surrogate.formulation.synthesise(surrogate.coefficients(y))
    for field, v in surrogate(y).items():
        torch.testing.assert_close(v.double(), exact[field], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["1D", "2D"])
def test_the_bound_bounds_and_improvement_reaches_it(trained, name):
    surrogate = Surrogate.load(trained(name))
    problem, exact = surrogate.problem, surrogate.formulation
    y = problem.parameters.sample(1, 2)
    bound = surrogate.error_bound(y)
    samples, w = torch.as_tensor(y), surrogate.coefficients(y)
    solution = solve(exact, samples, 1e-12).w
    error = norm_of(exact, w - solution, samples)
    assert float(error) <= float(bound) < 10 * float(error + error_bound(exact, solution, samples))
    least = error_bound(exact, solution, samples)
    tol = 0.5 * float(bound + least)
    better = surrogate.improve(y, tol)
    assert (better.error_bound <= tol).all()
    assert (better.iterations >= 1).all()
    torch.testing.assert_close(better.error_bound, error_bound(exact, better.w, torch.as_tensor(y)))
    assert better.norm == exact.error_norm()
    torch.testing.assert_close(better.relative, certify(exact, better.w, samples).relative)
    torch.testing.assert_close(better.values["u"], exact.synthesise(better.w)["u"])
    lazy = surrogate.improve(y, 2 * float(bound.max()))
    assert not lazy.iterations.any()
    torch.testing.assert_close(lazy.w, surrogate.coefficients(y))


def test_improvement_from_the_net_needs_fewer_iterations_than_from_nothing(trained):
    from fem_frames import conjugate_gradients

    surrogate = Surrogate.load(trained("2D"))
    exact, y = surrogate.formulation, torch.as_tensor(surrogate.problem.parameters.sample(4, 3))
    tol = 1e-6
    started = surrogate.improve(y, tol)
    cold = conjugate_gradients(exact.stable(y), exact.load(y), 1e-13, until=lambda w: error_bound(exact, w, y) <= tol)
    assert (started.iterations < cold.iterations).all()


def test_a_tolerance_below_the_mesh_is_refused_with_what_was_reached(trained):
    surrogate = Surrogate.load(trained("1D"))
    with pytest.raises(
        ConvergenceError, match="the mesh allows no smaller one: train with more levels than 5"
    ) as error:
        surrogate.improve([1, 1, 1, 1], 1e-9)
    assert float(error.value.reached.error_bound) < float(surrogate.error_bound([1, 1, 1, 1]))
    for tol in (0, -1, float("nan"), "small"):
        with pytest.raises(ValueError, match="a positive bound"):
            surrogate.improve([1, 1, 1, 1], tol)


@pytest.mark.parametrize(
    ("y", "message"), [([1, 1], "4 parameters"), ([9, 1, 1, 1], "outside"), ([1, 1, 1, np.nan], "not finite")]
)
def test_parameters_that_it_was_not_trained_for_are_refused(trained, y, message):
    with pytest.raises(ValueError, match=message):
        Surrogate.load(trained("1D"))(y)


# ---- where there is no DOLFINx, or no problem


@pytest.mark.parametrize("name", ["1D", "nodal", "half"])
def test_a_surrogate_needs_torch_only(trained, tmp_path, name):
    shutil.copytree(trained(name), tmp_path / "run")
    done = run_without_dolfinx(
        f"""
Absent.names.remove("scipy")
from training import Surrogate
s = Surrogate.load("run")
y = s.problem.parameters.sample(2, 0)
s(y), s.coefficients(y), s.loss(y), s.error_bound(y), s.improve(y, 1.01 * float(s.error_bound(y).max()))
assert (s.certify(y, "energy").value > 0).all()
s.export("net.pt2")
try:
    s.write(y[0], "u.xdmf")
except ValueError as error:
    assert "write a .vtu file instead" in str(error)
from fem_frames.commands import main
main(["query", "run", "--y", {",".join(["1"] * 4)!r}, "--json", "--plot", "u.png"])
main(["evaluate", "run", "--samples", "5", "--json"])
main(["plot", "run", "--samples", "1"])
main(["train", "--frame", "run/frame.npz", "--epochs", "3", "--out", "new", "--test-samples", "4"])
""",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    solver = "conjugate gradients" if name == "1D" else "multigrid"
    assert f'"reference": "{solver}"' in done.stdout
    assert (tmp_path / "runs.png").stat().st_size > 10_000


def test_a_problem_made_in_python_is_given_again_for_bounds(tmp_path):
    problem = Problem(Grid((2, 2)), Pointwise(lambda x, y: 1 + y[..., 0] * x[..., 0]), Uniform((0.0,), (1.0,)))
    c = Configuration(problem="mine", levels=2, epochs=20, test_samples=4)
    train(c, tmp_path / "run", problem=problem, quiet=True)
    surrogate = Surrogate.load(tmp_path / "run")
    assert surrogate([0.5])["u"].shape[0] == 1
    with pytest.raises(ValueError, match=r"need the problem 'custom'.*Surrogate.load\(folder, problem"):
        surrogate.loss([0.5])
    other = Problem(Grid((2, 2)), Pointwise(lambda x, y: 1 + y[..., 0] * x[..., 1]), Uniform((0.0,), (1.0,)))
    with pytest.raises(ValueError, match="is not the one that the surrogate was trained for"):
        Surrogate.load(tmp_path / "run", other).loss([0.5])
    assert float(Surrogate.load(tmp_path / "run", problem).error_bound([0.5])) > 0
    with pytest.raises(ValueError, match="does not fit the frame"):
        Surrogate.load(tmp_path / "run", make_problem("quarters"))


def test_a_problem_that_only_has_the_name_of_another_does_not_pass_for_it(tmp_path):
    problem = replace(make_problem("checkerboard"), source=5.0)
    train(
        Configuration(problem="checkerboard", levels=2, epochs=5, test_samples=4),
        tmp_path / "run",
        problem=problem,
        quiet=True,
    )
    with pytest.raises(ValueError, match="its coefficient, source or boundary data are others"):
        Surrogate.load(tmp_path / "run").error_bound([1, 1, 1, 1])
    assert float(Surrogate.load(tmp_path / "run", problem).error_bound([1, 1, 1, 1])) > 0


def test_loading_executes_no_file(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "from fem_frames import make_problem\nprint('executed')\nproblem = make_problem('checkerboard')\n"
    )
    c = Configuration(problem=str(tmp_path / "mine.py"), levels=2, epochs=2, test_samples=4)
    train(c, tmp_path / "run", quiet=True)
    assert "executed" in capsys.readouterr().out
    surrogate = Surrogate.load(tmp_path / "run")
    assert surrogate([1, 1, 1, 1])["u"].shape[0] == surrogate.loss([1, 1, 1, 1]).shape[0] == 1
    assert "executed" not in capsys.readouterr().out
    call_command("evaluate", tmp_path / "run", "--samples", 2, "--problem", tmp_path / "mine.py")


def test_frames_by_dolfinx_s_own_refinement_are_evaluated_on_it(tmp_path):
    c = Configuration(problem="checkerboard", levels=3, refinement="dolfinx", epochs=3, test_samples=2)
    train(c, tmp_path / "run", quiet=True)
    evaluate(
        Surrogate.load(tmp_path / "run"), reference_solutions(Surrogate.load(tmp_path / "run").formulation, SAMPLE)
    )
    c = Configuration(frame=str(tmp_path / "run/frame.npz"), epochs=2, test_samples=2)
    train(c, tmp_path / "again", quiet=True)


# ---- other programs


@pytest.mark.parametrize("name", ["1D", "2D"])
def test_dolfinx_gets_a_function(trained, name):
    surrogate = Surrogate.load(trained(name))
    y = surrogate.problem.parameters.sample(1, 4)[0]
    function = surrogate.to_function(y)
    x = function.function_space.tabulate_dof_coordinates()[:, : surrogate.arrays.dimension]
    place = {tuple(np.round(p, 9)): i for i, p in enumerate(surrogate.arrays.points)}
    order = [place[tuple(np.round(p, 9))] for p in x]
    np.testing.assert_allclose(function.x.array, surrogate(y)["u"][0].numpy()[order], rtol=1e-6)
    with pytest.raises(ValueError, match="there is no field 'p'; the surrogate has u"):
        surrogate.to_function(y, "p")
    with pytest.raises(ValueError, match="one y is expected, not 2"):
        surrogate.to_function([y, y])


@pytest.mark.parametrize("suffix", [".xdmf", ".vtu", ".vtk"])
@pytest.mark.parametrize("name", ["1D", "2D"])
def test_paraview_gets_a_file(trained, tmp_path, name, suffix):
    surrogate = Surrogate.load(trained(name))
    y = surrogate.problem.parameters.sample(1, 4)[0]
    path = tmp_path / f"u{suffix}"
    surrogate.write(y, path)
    if suffix == ".xdmf":
        assert all(f'Name="{field}"' in path.read_text() for field in surrogate(y))
        return
    import meshio

    mesh = meshio.read(path)
    for field, values in surrogate(y).items():
        np.testing.assert_allclose(mesh.point_data[field], values[0].double().numpy(), rtol=1e-6)
    assert len(mesh.cells[0].data) == len(surrogate.arrays.volumes)


@pytest.mark.parametrize("name", RUNS)
def test_the_exported_net_gives_the_same_coefficients(trained, tmp_path, name):
    surrogate = Surrogate.load(trained(name))
    surrogate.export(tmp_path / "net.pt2")
    program = torch.export.load(tmp_path / "net.pt2").module()
    for count in (1, 7):
        y = torch.as_tensor(surrogate.problem.parameters.sample(count, 5)).float()
        torch.testing.assert_close(program(y), surrogate.net(y).detach())


@pytest.mark.parametrize("damage", ["missing", "cut", "other frame", "code"])
def test_damaged_surrogates_are_refused(trained, tmp_path, damage):
    folder = tmp_path / "run"
    shutil.copytree(trained("1D"), folder)
    if damage == "missing":
        (folder / "surrogate.pt").unlink()
    elif damage == "cut":
        content = (folder / "surrogate.pt").read_bytes()
        (folder / "surrogate.pt").write_bytes(content[:-100])
    elif damage == "other frame":
        shutil.copy(trained("2D") / "frame.npz", folder / "frame.npz")
    else:
        torch.save({"format": "surrogate", "version": 1, "net": print}, folder / "surrogate.pt")
    with pytest.raises(ValueError, match=r"holds no surrogate|cut short or damaged|does not fit"):
        Surrogate.load(folder)


# ---- commands


def test_train_evaluate_query_plot_and_export_by_command(tmp_path):
    """The keys that scripts rely on, and files that are written."""
    options = ["--problem", "quarters", "--formulation", "least-squares", "--levels", 4, "--epochs", 60, "--rank", 4]
    made = json.loads(run_command("train", *options, "--out", "run", "--json", "--quiet", cwd=tmp_path).stdout)
    assert set(made) == {"parameters", "steps", "seconds", "loss", "floor", "run"}
    assert made["steps"] == 60
    found = json.loads(call_command("evaluate", "run", "--samples", 20, "--seed", 3, "--json", cwd=tmp_path).stdout)
    assert {"mre", "mse", "loss", "floor", "ratio", "seconds_per_query", "samples"} <= set(found)
    assert (found["norm"], found["against"]) == ("functional", "exact solution")
    assert 0 < found["error_bound_mean"] < found["error_bound_max"]
    assert found["error_bound_max"] == pytest.approx(found["relative_bound_max"])  # as the norm of f = 1 is 1
    assert found["samples"] == 20
    assert found["ratio"] == pytest.approx(found["loss"] / found["floor"])
    y = ["--y", "1,0.8,1.4,0.7"]
    asked = json.loads(call_command("query", "run", *y, "--json", cwd=tmp_path).stdout)
    told = {"error_bound", "relative", "norm", "against", "norm_formula", "loss", "iterations"}
    assert set(asked) == told | {"values", "points"}
    assert (asked["norm"], asked["against"]) == ("functional", "exact solution")
    assert asked["norm_formula"] == "√(L² ‖div τ‖² + ‖τ/a - ∇e‖²)"
    assert asked["relative"] == pytest.approx(asked["error_bound"])
    assert asked["iterations"] == 0
    assert asked["error_bound"] == pytest.approx(asked["loss"] ** 0.5)
    assert {k: len(v) for k, v in asked["values"].items()} == {"u": 17, "sigma": 17}
    files = ["--out", "u.vtu", "--plot", "u.png"]
    better = call_command("query", "run", *y, "--tol", 0.9 * asked["error_bound"], *files, "--json", cwd=tmp_path)
    assert 0 < json.loads(better.stdout)["iterations"] < 20
    assert json.loads(better.stdout)["error_bound"] < 0.9 * asked["error_bound"]
    energy = json.loads(call_command("query", "run", *y, "--norm", "energy", "--json", cwd=tmp_path).stdout)
    assert (energy["norm"], energy["norm_formula"]) == ("energy", "√∫ a |∇e|²")
    assert energy["loss"] == asked["loss"]
    assert 0 < energy["error_bound"] != asked["error_bound"]
    options = ("--norm", "energy", "--tol", 0.9 * energy["error_bound"])
    said = call_command("query", "run", *y, *options, cwd=tmp_path).stdout
    assert re.search(r"error bound +[\d.e-]+ \(energy norm, against the exact solution\)\nrelative +[\d.]+ %\n", said)
    call_command("plot", "run", "--out", "runs.png", "--samples", 2, cwd=tmp_path)
    call_command("export-net", "run", "--out", "net.pt2", cwd=tmp_path)
    for name in ("u.png", "runs.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_a_configuration_file_and_options_over_it(tmp_path):
    (tmp_path / "c.toml").write_text('problem = "checkerboard"\nlevels = 2\nepochs = 3\n[options]\nblocks = 4\n')
    call_command("train", "c.toml", "--epochs", 2, "--out", "run", "--no-map-inputs", "--quiet", cwd=tmp_path)
    saved = Configuration(**Configuration.from_toml(tmp_path / "run/configuration.toml"))
    assert (saved.epochs, saved.options, saved.map_inputs) == (2, {"blocks": 4}, False)
    call_command("train", "run/configuration.toml", "--out", "again", "--quiet", cwd=tmp_path)
