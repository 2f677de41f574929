"""Outputs on the command line: beside queries and evaluations, and learned by a net."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_runs import call_command

from fem_frames import BoundaryFlux, OutputMap, PointValues, RegionMean, certify_outputs, solve
from training import Configuration, OutputNet, OutputNetSettings, Surrogate, metrics, train
from training.metrics import output_errors
from training.references import reference_solutions

pytestmark = pytest.mark.serial
NAMED = ["--point", "0.5,0.5", "--mean", "all", "--through", "all"]
OUTPUTS = [PointValues([[0.5, 0.5]]), RegionMean(), BoundaryFlux("all")]
Y = ["--y", "0.3,0.4,0.15", "--y", "0.6,0.5,0.12"]
SAMPLES = [[0.3, 0.4, 0.15], [0.6, 0.5, 0.12]]
SETTINGS = dict(samples=300, validation=50, width=16, depth=2, steps=200, batch=64, rate=0.02, seed=3)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    settings = Configuration(problem="disks", levels=3, net="multigrid", epochs=5, test_samples=0)
    train(settings, folder / "run", quiet=True)
    settings = Configuration(problem="quarters", formulation="least-squares", levels=3, epochs=2, test_samples=0)
    train(settings, folder / "ls", quiet=True)
    return folder / "run"


def told(*arguments):
    return json.loads(call_command(*arguments, "--json").stdout)


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("tol", [None, 1e-3])
def test_query_shows_the_outputs_that_python_gives(run, adjoint, tol):
    surrogate = Surrogate.load(run)
    more = [*(["--adjoint"] if adjoint else []), *(["--tol", tol] if tol else [])]
    answer = surrogate.improve(SAMPLES, tol).output if tol else lambda *asked: surrogate.output(SAMPLES, *asked)
    expected = answer(OUTPUTS, adjoint)
    exact, y = surrogate.formulation, torch.tensor(SAMPLES, dtype=torch.float64)
    truth = OutputMap(exact, OUTPUTS).values(solve(exact, y, 1e-13).w, y)
    assert ((expected.values - truth).abs() <= expected.error_bound).all()
    found = told("query", run, *Y, *NAMED, *more)["samples"]
    for i, sample in enumerate(found):
        assert [row["output"] for row in sample["outputs"]] == list(expected.labels)
        np.testing.assert_allclose([row["value"] for row in sample["outputs"]], expected.values[i], rtol=1e-12)
        bounds = [row["error_bound"] for row in sample["outputs"]]
        np.testing.assert_allclose(bounds, expected.error_bound[i], rtol=1e-3)
        assert sample["bound_of_outputs"] == expected.kind
    one = told("query", run, *Y[:2], *NAMED, *more)
    assert [row["output"] for row in one["outputs"]] == list(expected.labels)
    text = call_command("query", run, *Y, *NAMED, *more).stdout
    assert f"bound of outputs: {expected.kind}" in text
    assert text.count("mean u") == 2


def test_improved_answers_have_smaller_bounds_for_outputs(run):
    surrogate = Surrogate.load(run)
    before = surrogate.output(SAMPLES, OUTPUTS)
    after = surrogate.improve(SAMPLES, 1e-5).output(OUTPUTS)
    assert (after.error_bound < 0.1 * before.error_bound).all()


@pytest.mark.parametrize("adjoint", [[], ["--adjoint"]])
def test_evaluate_shows_errors_below_bounds(run, adjoint):
    found = told("evaluate", run, "--samples", 12, "--seed", 5, *NAMED, *adjoint)
    surrogate = Surrogate.load(run)
    reference = reference_solutions(surrogate.formulation, surrogate.problem.parameters.sample(12, 5))
    expected, kind = output_errors(surrogate, reference, OUTPUTS, bool(adjoint))
    assert found["bound_of_outputs"] == kind
    assert [row["output"] for row in found["outputs"]] == [row.output for row in expected]
    for row in found["outputs"]:
        assert row["violations"] == 0
        assert row["error_mean"] <= row["error_max"]
        if not adjoint:  # with adjoint solves the error is that of the reference
            assert 0 < row["error_max"] <= row["bound_max"]
            assert row["error_mean"] <= row["bound_mean"] <= row["bound_max"]
    text = call_command("evaluate", run, "--samples", 3, *NAMED, *adjoint).stdout
    assert "violated bounds: none of 9" in text


class Fixed:
    """Answers that are given, whatever y is."""

    def __init__(self, formulation, w):
        self.formulation, self.w = formulation, w

    def coefficients(self, y):
        return self.w


def test_bounds_hold_for_wrong_answers_and_wrong_references(run):
    surrogate = Surrogate.load(run)
    exact, right = surrogate.formulation, surrogate.improve(SAMPLES, 1e-9).w
    reference = reference_solutions(exact, np.array(SAMPLES))
    swapped = replace(reference, fields={"u": reference.u[::-1].copy()})
    for answer, truth in ((right.flip(0), reference), (right, swapped)):
        rows, _ = output_errors(Fixed(exact, answer), truth, OUTPUTS)
        assert rows[0].error_max > 1e-4
        assert [row.violations for row in rows] == [0, 0, 0]


def test_violations_are_counted(run, monkeypatch):
    """With bounds that are made too small, because true ones are never violated."""

    def too_small(*asked):
        found = certify_outputs(*asked)
        return replace(found, error_bound=1e-9 * found.error_bound)

    surrogate = Surrogate.load(run)
    reference = reference_solutions(surrogate.formulation, np.array(SAMPLES))
    monkeypatch.setattr(metrics, "certify_outputs", too_small)
    rows, _ = output_errors(surrogate, reference, OUTPUTS)
    assert [row.violations for row in rows] == [2, 2, 2]


def test_least_squares_has_outputs_without_bounds(run):
    ls = run.parent / "ls"
    found = told("query", ls, "--y", "1,1,1,1", "--point", 0.3)
    assert found["outputs"][0]["error_bound"] is None
    assert "no bound" in found["bound_of_outputs"]
    found = told("evaluate", ls, "--samples", 2, "--point", 0.3)
    assert [found["outputs"][0][name] for name in ("bound_mean", "bound_max", "violations")] == [None] * 3
    assert found["outputs"][0]["error_max"] > 0
    text = call_command("evaluate", ls, "--samples", 2, "--point", 0.3).stdout
    assert "no bound" in text
    assert "violated" not in text
    assert told("outputs", ls, "--y", "1,1,1,1", "--point", 0.3)["rows"][0]["error_bound"] is None


# ---- learned outputs


def learn(run, out, *more, expect=0):
    options = [word for name, value in SETTINGS.items() for word in (f"--{name}", value)]
    return call_command("learn-outputs", run, *NAMED, *options, "--out", out, *more, expect=expect)


def test_outputs_are_learned_and_asked(run, tmp_path):
    said = learn(run, tmp_path / "sensors.pt", "--json")
    found, net = json.loads(said.stdout), OutputNet.load(tmp_path / "sensors.pt")
    assert found["solves"] == 350
    assert "steps: 200 of 200" in said.stderr
    for k, row in enumerate(found["rows"]):
        assert row["mean_error"] == float(net.validation.mean[k])
        assert row["max_of_rms"] == float(net.validation.relative("max", "rms")[k])
    assert found["rows"][2]["mean_of_deviation"] is None, "the flux through the whole boundary is a constant"
    again = OutputNet.train(Surrogate.load(run), OUTPUTS, OutputNetSettings(**SETTINGS))
    assert torch.equal(again(SAMPLES), net(SAMPLES)), "Python gives the same net"
    asked = told("outputs", tmp_path / "sensors.pt", *Y)
    np.testing.assert_array_equal([row["value"] for row in asked["rows"]], net(SAMPLES).flatten())
    assert asked["rows"][0]["validation_max"] == float(net.validation.max[0])
    assert "error_bound" not in asked["rows"][0]
    assert "no bound" in asked["validation"]
    assert len(told("outputs", tmp_path / "sensors.pt", "--samples", 3)["rows"]) == 9
    assert "validation mean" in call_command("outputs", tmp_path / "sensors.pt", *Y).stdout


def test_files_that_are_there_are_kept(run, tmp_path):
    (tmp_path / "sensors.pt").write_text("precious")
    assert (
        "is there already: choose another name, or replace it by --force"
        in learn(run, tmp_path / "sensors.pt", expect=2).stderr
    )
    assert (tmp_path / "sensors.pt").read_text() == "precious"
    assert "validation errors" in learn(run, tmp_path / "sensors.pt", "--force").stdout
    assert OutputNet.load(tmp_path / "sensors.pt").labels == ("u(0.5, 0.5)", "mean u", "flux all")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--samples", "1"], "samples is 1; a whole number of at least 2"),
        (["--width", "10000000"], "use a smaller width or depth"),
        (["--rate", "7"], "rate is 7.0; a number between 0 and 1"),
        (["--point", "9,9"], "outside the domain"),
        (["--point", "0.1"], "all points need equally many coordinates"),
        (["--point", "a,b"], "--point a,b: numbers with commas"),
        (["--mean", "steel"], "there is no region 'steel'"),
    ],
)
def test_bad_options_leave_no_file(run, tmp_path, more, message):
    assert message in learn(run, tmp_path / "sensors.pt", *more, expect=2).stderr
    assert not [*tmp_path.iterdir()]


def test_options_that_do_not_go_with_a_net_are_refused(run, tmp_path):
    learn(run, tmp_path / "sensors.pt")
    for words, message in (
        (["--point", "0.5,0.5", *Y], "--point goes with a run"),
        (["--adjoint", *Y], "--adjoint goes with a run"),
        ([], "give the parameters by --y"),
        (["--y", "9,9,9"], "is outside the parameters"),
    ):
        assert message in call_command("outputs", tmp_path / "sensors.pt", *words, expect=2).stderr
    assert "name some by --point" in call_command("query", run, *Y, "--adjoint", expect=2).stderr
    assert "name the outputs by --point" in call_command("learn-outputs", run, "--out", "x.pt", expect=2).stderr
