"""Processes that torchrun started all stop after the same step."""

import os
import signal
import subprocess
import time

import pytest
from small_runs import call_command, run_command
from test_torchrun import ENVIRONMENT, free_port, torchrun

from training.run.checkpoints import Checkpoints

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
def test_when_one_process_is_told_to_stop_all_save_and_end(tmp_path, frame_file, optimizer):
    out = tmp_path / "run"
    command = [*torchrun(2, free_port()), "train", "--frame", str(frame_file), "--out", str(out)]
    command += ["--optimizer", optimizer, "--batch", "64", "--checkpoint-every", "20", "--test-samples", "0"]
    command += ["--sampling", "fresh", "--rank", "2", "--blocks", "1"]
    job = subprocess.Popen(
        [*command, "--epochs", "1000000"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    while not Checkpoints(out / "checkpoints").steps():
        assert job.poll() is None, job.communicate()[1]
        time.sleep(0.05)
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(job.pid)], capture_output=True, text=True, check=True)
    workers = sorted(int(pid) for pid in children.stdout.split())
    os.kill(workers[-1], signal.SIGINT)  # the second alone: the first learns it with the gradient
    error = job.communicate(timeout=120)[1]
    assert job.returncode != 0
    step = int(error.split("interrupted after step ")[1].split()[0])
    assert error.count("interrupted after step") == error.count(f"interrupted after step {step} of 1000000")
    assert Checkpoints(out / "checkpoints").steps()[-1] == step


def test_a_wrong_sample_of_one_process_stops_all_with_one_message(tmp_path):
    """Each looks at the whole batch then, so that all find the sample that one process finds."""
    (tmp_path / "mine.py").write_text(
        "from fem_frames import Grid, Pointwise, Problem, Uniform\n"
        "a = Pointwise(lambda x, y: y[..., 0] + 0 * x[..., 0])\n"
        "problem = Problem(Grid((4,)), a, Uniform((-2e-3,), (1.0,)))\n"
    )
    options = ["train", "--problem", tmp_path / "mine.py", "--levels", 3, "--batch", 8, "--epochs", 5000]
    options += ["--test-samples", 0, "--log-every", 10000, "--rank", 2, "--blocks", 1, "--out", tmp_path / "run"]
    done = run_command(*options, start=torchrun(2, free_port()), env=ENVIRONMENT, check=False)
    assert done.returncode != 0
    assert done.stderr.count("a_y must be positive and finite") == 1
    alone = call_command(*options, "--force", expect=2)
    message = next(line for line in alone.stderr.splitlines() if "a_y must be" in line)
    assert message.removeprefix("fem-frames: ") in done.stderr
