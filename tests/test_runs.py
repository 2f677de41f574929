"""The folders of runs: killed and resumed to the last bit, damaged, replaced, moved; nothing is lost."""

import os
import random
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from frames import case
from processes import COMMAND, run_program, start_program
from small_runs import call_command, result_of

from fem_frames.commands import main
from training import Configuration, Surrogate, train
from training.run import store
from training.run.checkpoints import Checkpoints
from training.run.log import RunLog, read_log

pytestmark = pytest.mark.serial
SMALL = dict(problem="quarters", formulation="least-squares", levels=4, rank=4, blocks=2, test_samples=16)


def weights_of(folder):
    return Surrogate.load(folder).net.state_dict()


def same_weights(one, other):
    a, b = weights_of(one), weights_of(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# ---- killed and resumed


class KilledError(BaseException):
    """Ends a run where it is: nothing in it expects this, so nothing more is saved."""


def options_of(frame_file, optimizer, precision, more):
    """(command, epochs)"""
    epochs = 20 if optimizer in ("lbfgs", "ngd") else 200
    return [
        *("train", "--frame", frame_file, "--optimizer", optimizer, "--precision", precision, "--quiet"),
        *("--epochs", epochs, "--checkpoint-every", 4, "--test-samples", 0, "--log-every", 1, "--rank", 4, *more),
    ], epochs


def check_resumed(options, epochs, whole, parts):
    """The run in `parts`, which has no end, goes on to the bits of one in `whole` that is not disturbed."""
    assert not (parts / "surrogate.pt").exists()
    assert Checkpoints(parts / "checkpoints").steps()[-1] < epochs
    call_command("train", "--out", parts, "--resume", "--quiet")
    call_command(*options, "--out", whole)
    assert same_weights(whole, parts)
    steps = [r["step"] for r in read_log(parts / "log.jsonl") if "loss" in r]
    assert steps == sorted(set(steps)), "no step is logged twice"
    assert result_of(whole)["steps"] == result_of(parts)["steps"] >= epochs


@pytest.mark.parametrize(
    ("optimizer", "precision", "more"),
    [
        ("adam", "float32", []),
        ("adam", "float16", ["--sampling", "sobol"]),
        ("lbfgs", "float16", ["--sampling", "fresh"]),
        ("soap", "float16", []),
    ],
)
def test_a_run_that_ends_in_a_step_is_resumed_to_the_same_bits(
    tmp_path, frame_file, monkeypatch, optimizer, precision, more
):
    options, epochs = options_of(frame_file, optimizer, precision, more)
    goal = random.Random(f"{optimizer}{precision}{more}").randint(5, min(epochs // 2, 50))
    written = RunLog.step

    def last(log, step, *values, **others):
        written(log, step, *values, **others)
        if step == goal:
            raise KilledError

    monkeypatch.setattr(RunLog, "step", last)
    with pytest.raises(KilledError):
        call_command(*options, "--out", tmp_path / "parts")
    monkeypatch.undo()
    check_resumed(options, epochs, tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize(
    ("optimizer", "precision", "more"),
    [
        ("adam", "float16", ["--mixed"]),
        ("lbfgs", "float32", []),
        ("soap", "float32", ["--sampling", "fixed", "--training-samples", "100"]),
        ("ngd", "float32", []),
    ],
)
def test_a_run_that_is_killed_and_resumed_ends_with_the_same_bits(tmp_path, frame_file, optimizer, precision, more):
    """kill -9 of a process of its own, at whatever it is doing then."""
    options, epochs = options_of(frame_file, optimizer, precision, more)
    parts = tmp_path / "parts"
    process = start_program(COMMAND, *options, "--out", parts)
    goal = random.Random(f"{optimizer}{precision}{more}").randint(5, min(epochs // 2, 50))
    log = parts / "log.jsonl"
    while process.poll() is None and (not log.exists() or len(log.read_text().splitlines()) < goal):
        time.sleep(0.002)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "it must be killed before it ends"
    check_resumed(options, epochs, tmp_path / "whole", parts)


def interrupted_run(tmp_path, frame_file, number):
    out = tmp_path / "run"
    options = ("--epochs", "100000", "--test-samples", "0", "--log-every", "1")
    process = start_program(COMMAND, "train", "--frame", frame_file, "--out", out, *options)
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
    done = run_program(program)
    assert done.returncode == 2
    assert "cannot write" in done.stderr
    assert "File too large; is there room" in done.stderr
    assert {step: checkpoints.path(step).read_bytes() for step in checkpoints.steps()} == saved
    assert not list(checkpoints.folder.glob(".*"))


def test_runs_are_replaced_only_when_told(tmp_path):
    c = Configuration(**SMALL, epochs=2)
    train(c, tmp_path / "run", quiet=True)
    with pytest.raises(ValueError, match="holds a run: resume=True continues it, force=True replaces it"):
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
    held = store.open_run(tmp_path / "run", Configuration(**SMALL, epochs=9).resolved(), resume=False, force=True)
    assert not (tmp_path / "run/surrogate.pt").exists()
    (tmp_path / "run/test.npz").write_text("of the new run")
    held._lock.release()  # nothing else is done any more
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
