"""Training converges with every loss, optimizer, net and way of sampling, and stops when it should."""

import json
import re
from dataclasses import replace

import pytest
import torch

from fem_frames import Frame, make_formulation, make_problem, solve
from training import Configuration, Surrogate, TrainingError, train
from training.run.log import read_log

pytestmark = pytest.mark.serial
SMALL = dict(problem="quarters", formulation="least-squares", levels=4, rank=4, blocks=2, test_samples=16)


# ---- convergence


def test_the_relative_error_of_a_solution_that_is_zero_is_infinite(tmp_path):
    """Not a large number: JSON has none for it."""
    problem = replace(make_problem("quarters"), source=0.0)
    settings = Configuration(**SMALL, epochs=1)
    result = train(settings, tmp_path / "run", problem=problem, quiet=True)
    assert result["test"]["mre"] is None
    assert result["test"]["mse"] > 0


def test_the_default_recipe_comes_close_to_the_floor(tmp_path):
    c = Configuration(**(SMALL | dict(rank=8, blocks=8)), optimizer="soap", level_decay=1.0, epochs=600)
    result = train(c, tmp_path / "run", quiet=True)
    assert result["loss"] < 1.5 * result["floor"]
    records = read_log(tmp_path / "run/log.jsonl")
    assert [r["step"] for r in records if "test" in r] == list(range(0, 601, 30))
    assert {"mre", "mse", "loss", "floor", "ratio", "excess", "samples"} == set(records[-1]["test"])
    assert records[-1]["test"] == result["test"]


@pytest.mark.parametrize("loss", ["stable", "bpx", "nodal", "supervised", "supervised-nodal"])
@pytest.mark.parametrize("formulation", ["energy", "least-squares"])
def test_every_loss_trains_both_formulations(tmp_path, loss, formulation):
    more = dict(training_samples=64, batch=32) if loss.startswith("supervised") else {}
    settings = SMALL | dict(formulation=formulation, loss=loss, epochs=80, levels=3, rate=1e-2, **more)
    train(Configuration(**settings), tmp_path / "run", quiet=True)
    tests = [r["test"] for r in read_log(tmp_path / "run/log.jsonl") if "test" in r]
    assert tests[-1]["excess"] < 0.5 * tests[0]["excess"]
    assert tests[-1]["excess"] >= -1e-12  # nothing is below the floor


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "lbfgs", "ngd", "soap"])
@pytest.mark.parametrize("net", ["full", "separate", "separate-frame"])
def test_every_optimizer_trains_every_net(tmp_path, optimizer, net):
    epochs = {"lbfgs": 5, "ngd": 5}.get(optimizer, 60)
    rate = {"lbfgs": None, "ngd": None, "sgd": 0.03}.get(optimizer, 1e-2)
    c = Configuration(**SMALL, optimizer=optimizer, net=net, epochs=epochs, rate=rate, evaluate_every=1)
    train(c, tmp_path / "run", quiet=True)
    tests = [r["test"]["loss"] for r in read_log(tmp_path / "run/log.jsonl") if "test" in r]
    assert tests[-1] < 0.5 * tests[0]


@pytest.mark.parametrize("sampling", ["fresh", "fixed", "sobol"])
def test_every_way_of_sampling_trains_in_two_dimensions(tmp_path, sampling):
    c = Configuration(problem="checkerboard", levels=3, sampling=sampling, epochs=40, rate=1e-2, test_samples=8, rank=4)
    result = train(c, tmp_path / "run", quiet=True)
    assert result["test"]["mre"] < 0.3


def test_test_losses_are_those_of_the_functional_in_float64(tmp_path):
    """Against PETSc's solutions and a formulation made afresh, for a net in float16."""
    c = Configuration(**SMALL, epochs=20, precision="float16")
    result = train(c, tmp_path / "run", quiet=True)
    problem = make_problem("quarters")
    y = problem.parameters.sample(16, 1_000_000)
    surrogate = Surrogate.load(tmp_path / "run")
    exact = make_formulation(Frame.from_arrays(surrogate.arrays, "float64"), problem)
    w = surrogate.net(torch.as_tensor(y)).detach().double()
    samples = torch.as_tensor(y)
    assert float(exact.loss(w, samples).mean()) == pytest.approx(result["loss"], rel=1e-12)
    reference = solve(exact, samples, 1e-12).w
    assert float(exact.loss(reference, samples).mean()) == pytest.approx(result["floor"], rel=1e-6)
    off = [(exact.synthesise(w)[f] - exact.synthesise(reference)[f]) for f in ("u", "sigma")]
    size = [exact.synthesise(reference)[f] for f in ("u", "sigma")]
    norms = [torch.cat(parts, dim=1).norm(dim=1) for parts in (off, size)]
    assert float((norms[0] / norms[1]).mean()) == pytest.approx(result["test"]["mre"], rel=1e-6)
    assert float((norms[0] ** 2).mean()) == pytest.approx(result["test"]["mse"], rel=1e-6)


def test_without_epochs_the_run_is_built_saved_and_reported(tmp_path):
    result = train(Configuration(**SMALL, epochs=0), tmp_path / "run", quiet=True)
    assert result["steps"] == 0
    assert result["loss"] > result["floor"] > 0
    assert Surrogate.load(tmp_path / "run")([1, 1, 1, 1])["u"].shape == (1, 17)


def test_a_run_may_start_from_another(tmp_path):
    c = Configuration(**SMALL, epochs=60, rate=1e-2)
    first = train(c, tmp_path / "first", quiet=True)
    settings = SMALL | dict(epochs=0, precision="float16", start_from=str(tmp_path / "first"))
    second = train(Configuration(**settings), tmp_path / "second", quiet=True)
    assert second["loss"] == pytest.approx(first["loss"], rel=0.05)  # rounded to half
    with pytest.raises(ValueError, match=r"is another one \(level_sizes .* instead of .*\): use the settings it has"):
        train(Configuration(**(settings | {"levels": 3})), tmp_path / "third", quiet=True)
    with pytest.raises(ValueError, match=r"is another one \(rank 4 instead of 2\): use"):
        train(Configuration(**(settings | dict(rank=2))), tmp_path / "third", quiet=True)


def test_tensorboard_and_seeds_are_recorded(tmp_path):
    c = Configuration(**SMALL, epochs=4, tensorboard=True, seed=5, sample_seed=6)
    train(c, tmp_path / "run", quiet=True)
    assert list((tmp_path / "run/tensorboard").glob("events.*"))
    saved = Configuration(**Configuration.from_toml(tmp_path / "run/configuration.toml"))
    assert (saved.net_seed, saved.sample_seed, saved.test_seed) == (5, 6, 1_000_000)


# ---- when numbers are not finite, or nothing moves


def test_pure_precision_stops_before_a_bad_step_and_says_what_to_try(tmp_path):
    c = Configuration(**SMALL, precision="float16", loss="bpx", optimizer="sgd", rate=1e3, epochs=50)
    with pytest.raises(
        TrainingError, match=r"is not finite at step \d+ in float16.*try the stable loss, .*, a smaller rate"
    ):
        train(c, tmp_path / "run", quiet=True)


def test_mixed_precision_skips_and_rescales(tmp_path, monkeypatch):
    monkeypatch.setattr("training.precision.MasterWeights.FIRST", 2.0**24)  # too high, so that steps are skipped
    c = Configuration(**SMALL, precision="float16", mixed=True, epochs=60, rate=1e-2)
    result = train(c, tmp_path / "run", quiet=True)
    assert result["test"]["mre"] < 0.5
    assert 2 < result["skipped_steps"] < 20
    wild = Configuration(**SMALL, precision="float16", mixed=True, epochs=60, optimizer="sgd", rate=1e6)
    with pytest.raises(TrainingError, match=r"is not finite at step \d+ in float16"):
        train(wild, tmp_path / "wild", quiet=True)


def test_an_optimizer_that_has_arrived_stops_the_run_and_says_why(tmp_path):
    c = Configuration(**SMALL, optimizer="lbfgs", training_samples=1, precision="float16", mixed=True, epochs=400)
    result = train(c, tmp_path / "run", quiet=True)
    assert result["steps"] < 400
    assert re.search("tolerance|line search|curvature", result["stopped"])
    assert json.loads((tmp_path / "run/result.json").read_text())["stopped"] == result["stopped"]


def test_a_coefficient_that_is_not_positive_is_found(tmp_path):
    from fem_frames import Grid, Pointwise, Problem, Uniform

    problem = Problem(Grid((4,)), Pointwise(lambda x, y: y[..., 0] + 0 * x[..., 0]), Uniform((-1e-3,), (1.0,)))
    c = Configuration(problem="mine", levels=3, epochs=2000, test_samples=0, log_every=1, batch=8)
    with pytest.raises(ValueError, match="a_y must be positive"):
        train(c, tmp_path / "run", problem=problem, quiet=True)
