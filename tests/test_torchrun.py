"""Several processes started by torchrun take the steps of one, and end together."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from small_runs import result_of, run_command, skip_without_torchrun

from training import Configuration, train
from training.run.checkpoints import Checkpoints
from training.run.log import read_log

pytestmark = pytest.mark.serial
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def torchrun(processes, port):
    skip_without_torchrun()
    launcher = [sys.executable, "-m", "torch.distributed.run"]
    return [*launcher, f"--nproc-per-node={processes}", f"--master-port={port}", "-m", "fem_frames.commands"]


def free_port():
    import socket

    with socket.socket() as s:
        s.bind(("localhost", 0))
        return s.getsockname()[1]


SETTINGS = dict(precision="float64", rank=4, log_every=1, test_samples=0, device="cpu")
RUNS = {
    "adam": dict(optimizer="adam", epochs=30),
    "sgd": dict(optimizer="sgd", epochs=30),
    "soap": dict(optimizer="soap", epochs=12),
    "lbfgs": dict(optimizer="lbfgs", epochs=3, training_samples=33),
    "ngd": dict(optimizer="ngd", epochs=3, training_samples=33),
    "pieces": dict(optimizer="adam", epochs=20, batch=33, micro_batch=7),
}
TOGETHER = """
import json, os, sys, torch.distributed as dist
from training import Configuration, train

calls, reduce = [], dist.all_reduce
dist.all_reduce = lambda *given, **more: calls.append(1) or reduce(*given, **more)
frame, folder, runs = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
dist.init_process_group("gloo")
counts = {}
for name, settings in runs.items():
    calls.clear()
    train(Configuration(frame=frame, **settings), f"{folder}/{name}", quiet=True)
    counts[name] = len(calls)
with open(f"{folder}/{os.environ['RANK']}.json", "w") as file:
    json.dump(counts, file)
"""


def losses_of(folder):
    return np.array([r["loss"] for r in read_log(folder / "log.jsonl") if "loss" in r])


def test_two_processes_take_the_steps_of_one_and_send_one_message_in_each(tmp_path, frame_file):
    """With every optimizer, and with batches in pieces; gradient, loss and the wish to stop are one message."""
    runs = {name: SETTINGS | settings for name, settings in RUNS.items()}
    (tmp_path / "two").mkdir()
    (tmp_path / "together.py").write_text(TOGETHER)
    launcher = [*torchrun(2, free_port())[:-2], str(tmp_path / "together.py")]
    run_command(frame_file, tmp_path / "two", json.dumps(runs), start=launcher, env=ENVIRONMENT)
    for name, settings in runs.items():
        alone = Configuration(frame=str(frame_file), **settings | dict(micro_batch=None))
        train(alone, tmp_path / "one" / name, quiet=True)
        one, two = losses_of(tmp_path / "one" / name), losses_of(tmp_path / "two" / name)
        np.testing.assert_allclose(two, one, rtol=1e-9 if name == "pieces" else 1e-6, err_msg=name)
        assert len(one) == settings["epochs"]
        assert result_of(tmp_path / "two" / name)["processes"] == 2
    for rank in (0, 1):
        counts = json.loads((tmp_path / f"two/{rank}.json").read_text())
        assert {name: counts[name] for name in ("adam", "sgd", "soap", "pieces")} == {
            "adam": 30,
            "sgd": 30,
            "soap": 12,
            "pieces": 20,
        }


def test_the_first_process_alone_prints_the_result(tmp_path, frame_file):
    options = ["train", "--frame", frame_file, "--epochs", 2, "--rank", 2, "--test-samples", 4, "--quiet", "--json"]
    two = run_command(*options, "--out", tmp_path / "two", start=torchrun(2, free_port()), env=ENVIRONMENT)
    assert json.loads(two.stdout)["steps"] == 2
    assert result_of(tmp_path / "two")["processes"] == 2


def test_when_one_process_dies_the_job_ends(tmp_path, frame_file):
    out = tmp_path / "run"
    command = [*torchrun(2, free_port()), "train", "--frame", str(frame_file), "--out", str(out)]
    job = subprocess.Popen(
        [*command, "--epochs", "1000000", "--test-samples", "0", "--log-every", "1", "--checkpoint-every", "20"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    while not Checkpoints(out / "checkpoints").steps():
        assert job.poll() is None, job.communicate()[1]
        time.sleep(0.05)
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(job.pid)], capture_output=True, text=True, check=True)
    workers = [int(pid) for pid in children.stdout.split()]
    os.kill(workers[-1], signal.SIGKILL)
    told = job.communicate(timeout=120)[1]
    assert job.returncode != 0
    (line,) = fem_frames_lines(told)
    assert re.search(r"rank \d: .*another process of the run has ended; saved up to step \d+; .*--resume goes on", line)
    time.sleep(0.2)
    assert not any(os.path.exists(f"/proc/{pid}/exe") for pid in workers)
    assert Checkpoints(out / "checkpoints").steps()


def fem_frames_lines(text):
    return [line for line in text.splitlines() if line.startswith("fem-frames:")]


@pytest.mark.parametrize("when", ["at once", "in a step"])
def test_the_first_process_that_fails_says_its_line_with_its_number(tmp_path, when):
    """The others fail because of it, and do not say so."""
    failing = "raise OSError('the disk of this process\\nis gone')"
    body = f"    if os.environ['RANK'] == '1':\n        {failing}\n"
    (tmp_path / "mine.py").write_text(
        "import os\nfrom fem_frames import Grid, Pointwise, Problem, Uniform\n"
        + ("if True:\n" + body if when == "at once" else "")
        + "steps = []\n"
        "def a(x, y):\n"
        "    steps.append(1)\n"
        + (body.replace("'1'", "'1' and len(steps) > 20") if when == "in a step" else "")
        + "    return 1 + y[..., 0] + 0 * x[..., 0]\n"
        "problem = Problem(Grid((4,)), Pointwise(a), Uniform((0.0,), (1.0,)))\n"
    )
    options = ["train", "--problem", tmp_path / "mine.py", "--levels", 3, "--epochs", 100000, "--test-samples", 0]
    done = run_command(*options, "--out", tmp_path / "run", start=torchrun(2, free_port()), check=False)
    assert done.returncode != 0
    (line,) = fem_frames_lines(done.stderr)
    assert line.startswith("fem-frames: rank 1: ")
    assert "mine.py, line" in line
    assert "OSError: the disk of this process is gone" in line
    if when == "at once":
        assert not (tmp_path / "run").exists(), "what was not set up leaves nothing behind"


def test_processes_that_lose_their_launcher_save_and_end(tmp_path, frame_file):
    out = tmp_path / "run"
    command = [*torchrun(2, free_port()), "train", "--frame", str(frame_file), "--out", str(out)]
    command += ["--epochs", "1000000", "--test-samples", "0", "--checkpoint-every", "20", "--quiet"]
    job = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    while not Checkpoints(out / "checkpoints").steps():
        assert job.poll() is None
        time.sleep(0.05)
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(job.pid)], capture_output=True, text=True, check=True)
    workers = [int(pid) for pid in children.stdout.split()]
    assert len(workers) == 2
    job.kill()
    job.wait()
    until = time.monotonic() + 60
    while any(os.path.exists(f"/proc/{pid}/exe") for pid in workers):
        assert time.monotonic() < until, "they train on without anybody to end them"
        time.sleep(0.1)
    assert Checkpoints(out / "checkpoints").newest(lambda content: None, print)["step"] > 0


def test_a_batch_too_small_for_the_processes_is_refused(tmp_path, frame_file):
    options = ["train", "--frame", frame_file, "--batch", 1, "--out", tmp_path / "run", "--test-samples", 0]
    done = run_command(*options, start=torchrun(2, free_port()), check=False)
    assert done.returncode != 0
    (line,) = fem_frames_lines(done.stderr)
    assert "rank 0: batch is 1, but there are 2 processes" in line or "rank 1: batch is 1" in line
