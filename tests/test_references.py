"""Test sets, supervised training sets and snapshots by batched multigrid or PETSc; one checks the other."""

import json
import shutil

import numpy as np
import pytest
import torch
from curved_meshes import pipe_problem, plate_problem
from frames import case, fine_square
from small_runs import call_command
from walls import ROBIN, formulation_on, varying

from fem_frames import Frame, make_formulation, make_problem
from fem_frames.formulations.formulation import Formulation
from fem_frames.frame.solutions import ReferenceSolutions
from fem_frames.operators.products import SparseProduct
from fem_frames.solvers.conjugate_gradients import ConvergenceError
from training import Configuration, Surrogate, train
from training import references as module
from training.metrics import evaluate
from training.references import chunk_size, described, reference_solutions
from training.registry import REFERENCES
from training.rivals.reduced_bases import PodSpace, direct_solves, full_system, reduced_basis, solve_snapshots
from training.rivals.regression import PodNet, PolynomialChaos

pytestmark = pytest.mark.serial
SMALL = dict(problem="checkerboard", levels=3, epochs=4, batch=8, rank=2, blocks=1, test_samples=6, device="cpu")


def exact(name):
    problem, arrays = case(name)
    return make_formulation(Frame.from_arrays(arrays, "float64"), problem)


OWN = {
    "robin, interval": lambda: formulation_on(varying(1, **ROBIN["one wall"]), 3),
    "robin, square": lambda: formulation_on(varying(2, **ROBIN["pure"]), 2),
    "robin, cube": lambda: formulation_on(varying(3, **ROBIN["corner"]), 1),
    "curved, plane": lambda: formulation_on(plate_problem(), 2),
    "curved, space": lambda: formulation_on(pipe_problem(), 1),
    "own mesh": lambda: formulation_on(fine_square(12), 1),
}
PLAIN = ("interval", "interval, mixed", "square", "square, mixed", "square, inclusion", "L-shape", "cube")


@pytest.fixture(scope="module")
def square():
    return exact("square")


# ---- the sets


@pytest.mark.parametrize("name", [*PLAIN, *OWN])
def test_sets_by_multigrid_are_those_by_petsc(name):
    made = OWN[name]() if name in OWN else exact(name)
    y = made.problem.parameters.sample(5, 3)
    found, truth = (reference_solutions(made, y, references=kind) for kind in ("auto", "petsc"))
    assert found.record == {"reference": "multigrid", "tolerance": 1e-12, "checked_by_petsc": 2}
    assert truth.record == {"reference": "PETSc"}
    assert found.fields.keys() == truth.fields.keys()
    np.testing.assert_allclose(found.u, truth.u, rtol=0, atol=1e-9 * np.abs(truth.u).max())
    np.testing.assert_allclose(found.loss, truth.loss, rtol=1e-9, atol=1e-11)


def test_chunks_change_nothing_and_progress_is_told(square, monkeypatch):
    y, told = square.problem.parameters.sample(7, 1), []
    whole = reference_solutions(square, y)
    monkeypatch.setattr(module, "CHUNK", 3)
    parts = reference_solutions(square, y, lambda done, count: told.append((done, count)))
    np.testing.assert_allclose(parts.u, whole.u, rtol=0, atol=1e-13)
    assert told == [(0, 7), (3, 7), (6, 7), (7, 7)]


def test_chunks_of_large_meshes_fit_into_memory(square, monkeypatch):
    assert chunk_size(square) == module.CHUNK
    monkeypatch.setattr(module, "CHUNK_BYTES", 2**17)
    assert 1 <= chunk_size(square) < 10
    monkeypatch.setattr(module, "CHUNK_BYTES", 1)
    assert chunk_size(square) == 1
    assert reference_solutions(square, square.problem.parameters.sample(2, 1)).u.shape == (2, 81)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_sets_of_few_samples(square, count):
    found = reference_solutions(square, square.problem.parameters.sample(2, 1)[:count], references="multigrid")
    assert found.record["checked_by_petsc"] == count == len(found.loss)


# ---- which solver


def test_formulations_without_multigrid_go_to_petsc():
    made = exact("interval, LS")
    y = made.problem.parameters.sample(2, 1)
    assert reference_solutions(made, y).record["reference"] == "PETSc"
    with pytest.raises(ValueError, match=r"but least-squares has u and sigma: leave out references='multigrid'"):
        reference_solutions(made, y, references="multigrid")


def test_without_petsc_nothing_is_checked(square, monkeypatch):
    y = square.problem.parameters.sample(2, 1)
    monkeypatch.setattr(module, "has_petsc", lambda: False)
    assert reference_solutions(square, y).record["checked_by_petsc"] == 0
    made = exact("interval, LS")
    assert reference_solutions(made, y).record["reference"] == "conjugate gradients"
    with pytest.raises(ValueError, match=r"it is not installed; leave out references='petsc'"):
        reference_solutions(square, y, references="petsc")


def test_unknown_names_are_answered_with_those_that_there_are(square):
    with pytest.raises(ValueError, match=r"references is 'mumps'; choose from auto, multigrid, petsc"):
        reference_solutions(square, np.ones((1, 4)), references="mumps")
    with pytest.raises(ValueError, match=r"references is 'mumps'; choose from auto, multigrid, petsc"):
        Configuration(**SMALL, references="mumps")
    assert all(issubclass(kind, module.ReferenceSource) for kind in REFERENCES.values())


def test_descriptions_of_records():
    assert described({"reference": "multigrid", "checked_by_petsc": 2}) == "multigrid, 2 checked by PETSc,"
    assert described({"reference": "multigrid", "checked_by_petsc": 0}) == "multigrid"
    assert described({"reference": "PETSc"}) == "PETSc"


# ---- a multigrid that is wrong


def test_a_wrong_coefficient_is_found_by_petsc(square, monkeypatch):
    right = Formulation.coefficient
    monkeypatch.setattr(Formulation, "coefficient", lambda self, y: right(self, y) * (1 + 1e-6))
    y = square.problem.parameters.sample(4, 1)
    for kind in ("auto", "multigrid"):
        with pytest.raises(ValueError, match=r"multigrid and PETSc disagree for sample 0: .* references='petsc'"):
            reference_solutions(square, y, references=kind)


def test_a_wrong_solution_is_found_by_petsc(square, monkeypatch):
    right = module.solve

    def wrong(formulation, y, *arguments, **options):
        found = right(formulation, y, *arguments, **options)
        found.w[-1] *= 1 + 1e-7
        return found

    monkeypatch.setattr(module, "solve", wrong)
    with pytest.raises(ValueError, match="multigrid and PETSc disagree for sample 3"):
        reference_solutions(square, square.problem.parameters.sample(4, 1))


def test_a_wrong_loss_is_found_by_petsc(square, monkeypatch):
    """The solutions agree then."""
    right = type(square).loss
    monkeypatch.setattr(type(square), "loss", lambda self, w, y: right(self, w, y) + 1e-3)
    with pytest.raises(ValueError, match="reference solutions do not fit the frame"):
        reference_solutions(square, square.problem.parameters.sample(4, 1))


def test_a_wrong_level_does_not_reach_the_tolerance(monkeypatch):
    """Residuals are those of the formulation, so multigrid with a wrong level fails; auto leaves the set to PETSc."""
    made = exact("square, inclusion")
    right = SparseProduct.__call__

    def wrong(self, x):
        return right(self, x) * (-1.0 if self.shape in shapes else 1.0)

    reference_solutions(made, made.problem.parameters.sample(1, 1))  # makes the levels
    levels = made.derived["multigrid"].multigrid.levels
    shapes = {levels[-1].P.shape}
    monkeypatch.setattr(SparseProduct, "__call__", wrong)
    y = made.problem.parameters.sample(3, 1)
    with pytest.raises(ConvergenceError, match="stays at a relative residual"):
        reference_solutions(made, y, references="multigrid")
    monkeypatch.undo()
    truth = reference_solutions(made, y, references="petsc")
    monkeypatch.setattr(module, "solve", fail)
    found = reference_solutions(made, y)
    assert (found.record["reference"], found.record["multigrid"]) == ("PETSc", "stays")
    assert np.array_equal(found.u, truth.u)
    monkeypatch.setattr(module, "has_petsc", lambda: False)
    with pytest.raises(ConvergenceError, match="stays"):
        reference_solutions(made, y)


def fail(*arguments, **options):
    raise ConvergenceError("stays")


# ---- runs


@pytest.mark.parametrize("loss", ["stable", "supervised", "supervised-nodal"])
@pytest.mark.parametrize(("kind", "solver"), [("auto", "multigrid"), ("multigrid", "multigrid"), ("petsc", "PETSc")])
def test_runs_solve_their_sets_as_they_are_told(tmp_path, kind, solver, loss):
    more = {} if loss == "stable" else dict(training_samples=16)
    result = train(Configuration(**SMALL, loss=loss, references=kind, **more), tmp_path / "run", quiet=True)
    files = ["test.npz"] if loss == "stable" else ["test.npz", "training.npz"]
    for file in files:
        assert ReferenceSolutions.load(tmp_path / "run" / file).record["reference"] == solver
    assert f'references = "{kind}"' in (tmp_path / "run" / "configuration.toml").read_text()
    assert result["test"]["mre"] > 0


def test_the_solver_changes_a_supervised_run_by_rounding_only(tmp_path):
    settings = dict(SMALL, loss="supervised", training_samples=16, precision="float64")
    one, other = (
        train(Configuration(**settings, references=kind), tmp_path / kind, quiet=True) for kind in ("auto", "petsc")
    )
    assert one["test"]["mre"] == pytest.approx(other["test"]["mre"], rel=1e-9)


def test_commands_take_the_option_and_say_what_solved(tmp_path):
    arguments = ["--problem", "checkerboard", "--levels", 3, "--epochs", 2, "--rank", 2, "--test-samples", 5]
    shown = call_command("train", *arguments, "--out", tmp_path / "run")
    assert "test set: 5 reference solutions by multigrid, 2 checked by PETSc, in" in shown.stdout + shown.stderr
    shown = call_command("train", *arguments, "--references", "petsc", "--out", tmp_path / "other")
    assert "test set: 5 reference solutions by PETSc in" in shown.stdout + shown.stderr
    found = {}
    for kind in ("auto", "multigrid", "petsc"):
        asked = ["evaluate", tmp_path / "run", "--samples", 6, "--references", kind, "--json"]
        found[kind] = json.loads(call_command(*asked).stdout)
    assert [found[kind]["reference"] for kind in found] == ["multigrid", "multigrid", "PETSc"]
    assert [found[kind].get("checked_by_petsc") for kind in found] == [2, 2, None]
    for kind in ("auto", "multigrid"):
        assert found[kind]["mre"] == pytest.approx(found["petsc"]["mre"], rel=1e-9)
        assert found[kind]["energy_error"] == pytest.approx(found["petsc"]["energy_error"], rel=1e-9)
    call_command("plot", tmp_path / "run", "--samples", 1, "--references", "petsc", "--out", tmp_path / "p.png")


def test_commands_say_where_there_is_no_such_solver(tmp_path):
    arguments = ["--problem", "quarters", "--levels", 3, "--epochs", 2, "--out", tmp_path / "run"]
    arguments += ["--formulation", "least-squares", "--references", "multigrid"]
    shown = call_command("train", *arguments, expect=2)
    assert "least-squares has u and sigma: leave out --references multigrid" in shown.stderr
    assert not (tmp_path / "run").exists()


# ---- runs of earlier versions


def as_before(folder):
    """Makes the run in the folder one of a version without this setting, stopped after half of its steps."""
    file = folder / "configuration.toml"
    lines = file.read_text().split("\n")
    place = next(i for i, line in enumerate(lines) if line.startswith("references = "))
    file.write_text("\n".join(lines[: place - 1] + lines[place + 1 :]))
    for name in ("result.json", "surrogate.pt", "checkpoints/best.pt", "checkpoints/step-000000008.pt"):
        (folder / name).unlink(missing_ok=True)


def test_a_run_of_an_earlier_version_resumes_with_the_sets_it_has(tmp_path):
    settings = {**SMALL, "loss": "supervised", "training_samples": 8, "epochs": 8, "checkpoint_every": 4}
    before = train(Configuration(**settings, references="petsc"), tmp_path / "run", quiet=True)
    as_before(tmp_path / "run")
    files = [tmp_path / "run" / name for name in ("test.npz", "training.npz")]
    old = [file.read_bytes() for file in files]
    for name, given in (("alone", None), ("asked", Configuration(**settings, references="petsc"))):
        shutil.copytree(tmp_path / "run", tmp_path / name)
        again = train(given, tmp_path / name, resume=True, quiet=True)
        assert again["test"] == before["test"]
        assert [(tmp_path / name / file.name).read_bytes() for file in files] == old
        Surrogate.load(tmp_path / name)


def test_a_surrogate_of_an_earlier_version_is_evaluated(tmp_path):
    train(Configuration(**SMALL), tmp_path / "run", quiet=True)
    content = torch.load(tmp_path / "run" / "surrogate.pt", weights_only=True)
    del content["record"]["configuration"]["references"]
    torch.save(content, tmp_path / "run" / "surrogate.pt")
    surrogate = Surrogate.load(tmp_path / "run")
    y = surrogate.problem.parameters.sample(4, 1)
    one, other = (
        evaluate(surrogate, reference_solutions(surrogate.formulation, y, references=k)) for k in ("auto", "petsc")
    )
    assert one.mre == pytest.approx(other.mre, rel=1e-9)


# ---- rivals


@pytest.mark.parametrize("name", ["square", "square, inclusion", "cube"])
def test_snapshots_are_solved_like_test_sets(name):
    made = exact(name)
    direct, y = direct_solves(full_system(made)), made.problem.parameters.sample(12, 1)
    found = {kind: solve_snapshots(direct, y, kind) for kind in ("auto", "multigrid", "petsc")}
    truth = direct(y)
    for snapshots in found.values():
        assert snapshots.seconds > 0
        torch.testing.assert_close(snapshots.values, truth, rtol=0, atol=1e-9 * float(truth.abs().max()))


def test_snapshots_without_multigrid_are_direct_solves():
    made = exact("interval, LS")
    direct, y = direct_solves(full_system(made)), made.problem.parameters.sample(4, 1)
    assert torch.equal(solve_snapshots(direct, y).values, direct(y))
    by_petsc = solve_snapshots(direct, y, "petsc").values
    torch.testing.assert_close(by_petsc, direct(y), rtol=0, atol=1e-9 * float(by_petsc.abs().max()))


def test_rivals_are_the_same_from_both():
    problem = make_problem("checkerboard")
    made = exact("square")
    system, y = full_system(made), problem.parameters.sample(40, 1)
    new, answers = problem.parameters.sample(5, 9), []
    for kind in ("multigrid", "petsc"):
        snapshots = solve_snapshots(direct_solves(system), y, kind)
        space = PodSpace.build(made, snapshots, 6)
        rivals = reduced_basis(system, space), PolynomialChaos(problem, space, snapshots, 2)
        answers.append([rival(new) for rival in (*rivals, PodNet(problem, space, snapshots, (8,), (5, 0)))])
    for one, other, tolerance in zip(*answers, (1e-8, 1e-8, 1e-3), strict=True):  # the net is in float32
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance * float(other.abs().max()))
