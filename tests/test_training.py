"""Runs: they converge, can be killed and resumed to the last bit, stop when they should, and lose nothing."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from frames import case
from small_runs import result_of, run_command

from fem_frames import Frame, make_formulation, make_problem, solve
from fem_frames.commands import main
from training import Configuration, Surrogate, TrainingError, runs, train
from training.checkpoints import Checkpoints
from training.log import read_log

pytestmark = pytest.mark.serial
SMALL = dict(problem="quarters", formulation="least-squares", levels=4, rank=4, blocks=2, test_samples=16)


def weights_of(folder):
    return Surrogate.load(folder).net.state_dict()


def same_weights(one, other):
    a, b = weights_of(one), weights_of(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# ---- convergence


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


# ---- killed and resumed


@pytest.mark.parametrize(
    ("optimizer", "precision", "more"),
    [
        ("adam", "float32", []),
        ("adam", "float16", ["--mixed"]),
        ("adam", "float16", ["--sampling", "sobol"]),
        ("lbfgs", "float32", []),
        ("lbfgs", "float16", ["--sampling", "fresh"]),
        ("soap", "float32", ["--sampling", "fixed", "--training-samples", "100"]),
        ("soap", "float16", []),
        ("ngd", "float32", []),
    ],
)
def test_a_run_that_is_killed_and_resumed_ends_with_the_same_bits(tmp_path, frame_file, optimizer, precision, more):
    searching = optimizer in ("lbfgs", "ngd")
    epochs = 20 if searching else 150
    options = [
        *("train", "--frame", frame_file, "--optimizer", optimizer, "--precision", precision, "--quiet"),
        *("--epochs", epochs, "--checkpoint-every", 4, "--test-samples", 0, "--log-every", 1, "--rank", 4, *more),
    ]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run_command(*options, "--out", whole)
    process = subprocess.Popen(
        [sys.executable, "-m", "fem_frames.commands", *map(str, options), "--out", str(parts)], stderr=subprocess.PIPE
    )
    goal = random.Random(f"{optimizer}{precision}{more}").randint(5, epochs // 2)
    log = parts / "log.jsonl"
    while process.poll() is None and (not log.exists() or len(log.read_text().splitlines()) < goal):
        time.sleep(0.002)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "it must be killed before it ends"
    assert not (parts / "surrogate.pt").exists()
    run_command("train", "--out", parts, "--resume", "--quiet")
    assert same_weights(whole, parts)
    steps = [r["step"] for r in read_log(log) if "loss" in r]
    assert steps == sorted(set(steps)), "no step is logged twice"
    assert result_of(whole)["steps"] == result_of(parts)["steps"] >= epochs


def interrupted_run(tmp_path, frame_file, number, **environment):
    out = tmp_path / "run"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "fem_frames.commands", "train", "--frame", str(frame_file), "--out", str(out)),
            *("--epochs", "100000", "--test-samples", "0", "--log-every", "1"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    while not (out / "log.jsonl").exists() or (out / "log.jsonl").stat().st_size < 500:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    return process.returncode, told, out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_saves_and_ends_cleanly(tmp_path, frame_file, number):
    code, told, out = interrupted_run(tmp_path, frame_file, number)
    assert code == 130
    assert re.search(r"interrupted after step \d+ of 100000; fem-frames train --out .* --resume goes on", told)
    assert "Traceback" not in told
    (step,) = Checkpoints(out / "checkpoints").steps()
    assert f"after step {step} " in told


# ---- checkpoints


def killed_run(tmp_path, steps=40):
    """A run that ended, without its result: as if it was killed right at the end."""
    c = Configuration(**SMALL, epochs=steps, checkpoint_every=10, evaluate_every=20)
    train(c, tmp_path / "run", quiet=True)
    (tmp_path / "run/result.json").unlink()
    return tmp_path / "run", Checkpoints(tmp_path / "run/checkpoints")


def test_the_last_two_checkpoints_and_the_best_are_kept(tmp_path):
    folder, checkpoints = killed_run(tmp_path)
    assert checkpoints.steps() == [30, 40]
    assert sorted(p.name for p in checkpoints.folder.iterdir()) == ["best.pt", "step-000000030.pt", "step-000000040.pt"]
    best = torch.load(checkpoints.best, weights_only=True)
    tests = {r["step"]: r["test"]["loss"] for r in read_log(folder / "log.jsonl") if "test" in r}
    assert tests[best["step"]] == min(tests.values()) == best["best"]
    assert {"net", "optimizer", "random", "configuration", "versions", "weights"} <= set(best)


@pytest.mark.parametrize("damage", ["cut", "flip", "foreign", "pickle"])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_used(tmp_path, capsys, damage):
    folder, checkpoints = killed_run(tmp_path)
    weights = {name: value.clone() for name, value in weights_of(folder).items()}
    newest = checkpoints.path(40)
    content = newest.read_bytes()
    newest.unlink()  # it may have a second name
    if damage == "cut":
        newest.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        place = len(content) // 2
        newest.write_bytes(content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :])
    elif damage == "foreign":
        torch.save({"weights": torch.zeros(3)}, newest)
    else:
        torch.save({"format": "training checkpoint", "call": os.getcwd}, newest)
    (folder / "surrogate.pt").unlink()
    train(None, folder, resume=True)
    assert checkpoints.steps() == [30, 40]  # written anew
    assert newest.with_suffix(".refused").exists()
    told = capsys.readouterr().err
    assert "step-000000040.pt is no training checkpoint" in told
    assert "resumed at step 30 of 40" in told
    assert all(torch.equal(weights[name], value) for name, value in weights_of(folder).items())


def test_when_no_checkpoint_can_be_used_nothing_is_overwritten(tmp_path):
    folder, checkpoints = killed_run(tmp_path)
    for step in checkpoints.steps():
        checkpoints.path(step).write_bytes(b"nothing")
    with pytest.raises(ValueError, match="no checkpoint can be used"):
        train(None, folder, resume=True, quiet=True)
    assert checkpoints.path(40).read_bytes() == b"nothing"


def test_a_full_disk_loses_nothing_that_was_saved(tmp_path, frame_file):
    """The system refuses files beyond a size, as a full disk does, once the first checkpoints are there."""
    folder, checkpoints = killed_run(tmp_path)
    saved = {step: checkpoints.path(step).read_bytes() for step in checkpoints.steps()}
    size = len(saved[40])
    (folder / "surrogate.pt").unlink()
    settings = folder / "configuration.toml"
    settings.write_text(settings.read_text().replace("epochs = 40", "epochs = 80"))
    for step in checkpoints.steps():  # the checkpoints of a run of 80 epochs
        content = torch.load(checkpoints.path(step), weights_only=True)
        content["configuration"]["epochs"] = 80
        torch.save(content, checkpoints.path(step))
        saved[step] = checkpoints.path(step).read_bytes()
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size // 2}, {size // 2}))"
    program = f"{limit}\nfrom fem_frames.commands import main\nmain(['train', '--out', {str(folder)!r}, '--resume'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "cannot write" in done.stderr
    assert "File too large; is there room" in done.stderr
    assert {step: checkpoints.path(step).read_bytes() for step in checkpoints.steps()} == saved
    assert not list(checkpoints.folder.glob(".*"))


def test_runs_are_replaced_only_when_told(tmp_path):
    c = Configuration(**SMALL, epochs=2)
    train(c, tmp_path / "run", quiet=True)
    with pytest.raises(ValueError, match="holds a run: --resume continues it, --force replaces it"):
        train(c, tmp_path / "run", quiet=True)
    train(Configuration(**SMALL, epochs=3), tmp_path / "run", force=True, quiet=True)
    assert result_of(tmp_path / "run")["steps"] == 3
    with pytest.raises(ValueError, match=r"is another run .*epochs 9 instead of 3"):
        train(Configuration(**SMALL, epochs=9), tmp_path / "run", resume=True, quiet=True)
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(ValueError, match="at least 2 refinements are needed"):
        train(Configuration(**(SMALL | dict(levels=1))), tmp_path / "run", force=True, quiet=True)
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.tex").write_text("x")
    with pytest.raises(ValueError, match=r"holds thesis.tex, which is not of a run"):
        train(c, tmp_path / "other", force=True, quiet=True)
    with pytest.raises(ValueError, match="holds no run that could be resumed"):
        train(None, tmp_path / "nothing", resume=True)


def test_a_run_that_was_killed_while_it_replaced_another_gives_it_back(tmp_path):
    """As --force leaves the folder when it is killed before the new run is set up."""
    c = Configuration(**SMALL, epochs=3)
    train(c, tmp_path / "run", quiet=True)
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir() if p.is_file()}
    held = runs.open_run(tmp_path / "run", Configuration(**SMALL, epochs=9).resolved(), resume=False, force=True)
    assert not (tmp_path / "run/surrogate.pt").exists()
    (tmp_path / "run/test.npz").write_text("of the new run")
    held._lock.close()  # nothing else is done any more
    with pytest.raises(ValueError, match="holds a run"):
        train(c, tmp_path / "run", quiet=True)
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir() if p.is_file()} == before


@pytest.mark.parametrize("moved", range(5))
def test_a_run_that_is_interrupted_while_it_is_put_aside_is_put_back(tmp_path, monkeypatch, moved):
    train(Configuration(**SMALL, epochs=3), tmp_path / "run", quiet=True)
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    rename, count = Path.rename, []

    def interrupted(self, target):
        count.append(self)
        if len(count) == moved + 1:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(Configuration(**SMALL, epochs=9), tmp_path / "run", force=True, quiet=True)
    monkeypatch.undo()
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before


def test_settings_that_decide_no_numbers_may_change_on_the_way(tmp_path, monkeypatch):
    """And the very same command, with relative names, may be given again."""
    monkeypatch.chdir(tmp_path)
    case("interval, LS")[1].save(tmp_path / "f.npz")
    command = ["train", "--frame", "f.npz", "--epochs", "3", "--test-samples", "2", "--quiet", "--out", "run"]
    assert main(command) == 0
    (tmp_path / "run/result.json").unlink()
    assert main([*command, "--resume", "--device", "cpu", "--tensorboard"]) == 0
    assert (tmp_path / "run/tensorboard").exists()


def test_a_run_goes_on_when_the_files_it_was_made_from_are_gone(tmp_path, frame_file, monkeypatch):
    (tmp_path / "frames").mkdir()
    (tmp_path / "frames/f.npz").write_bytes(frame_file.read_bytes())
    monkeypatch.chdir(tmp_path / "frames")
    first = train(Configuration(frame="f.npz", epochs=3, test_samples=2), tmp_path / "first", quiet=True)
    c = Configuration(frame="f.npz", epochs=4, test_samples=2, start_from="../first", checkpoint_every=1)
    second = train(c, tmp_path / "second", quiet=True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "frames/f.npz").unlink()
    (tmp_path / "first/surrogate.pt").unlink()
    (tmp_path / "second/result.json").unlink()
    again = train(None, tmp_path / "second", resume=True, quiet=True)
    assert again["loss"] == second["loss"] < first["loss"]


def test_a_run_that_ended_is_reported_again(tmp_path):
    first = train(Configuration(**SMALL, epochs=5), tmp_path / "run", quiet=True)
    shutil.rmtree(tmp_path / "run/checkpoints")  # of no more use
    assert train(None, tmp_path / "run", resume=True, quiet=True) == first


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
