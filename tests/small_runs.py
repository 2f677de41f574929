"""Small nets, objectives and runs for the tests of training."""

import contextlib
import io
import json
import subprocess

import pytest
import torch
from frames import case
from processes import COMMAND, run_program

from fem_frames import Frame, make_formulation
from fem_frames.commands import main
from nets import make_net
from training.losses import make_loss
from training.net_outputs import level_sizes, prolongations
from training.objective import Objective
from training.precision import MasterWeights, Weights


def small_objective(
    kind="interval, LS", loss="stable", dtype="float64", *, mixed=False, count=4, net="full", **options
):
    """(objective, net): a few samples on a small frame; the net has rank 2 and one block unless told."""
    problem, arrays = case(kind)
    made = make_loss(loss, make_formulation(Frame.from_arrays(arrays, dtype), problem))
    frame = made.formulation.frame
    steps = prolongations(arrays, made.nodal, frame.dtype, frame.device)
    options = {"rank": 2, "blocks": 1, "prolongations": steps, **options}
    net = make_net(net, problem.parameters.dimension, level_sizes(arrays, made.nodal), seed=1, **options)
    net = net.to(frame.dtype)
    objective = Objective(net, made, (MasterWeights if mixed else Weights)(net))
    objective.take(made.batch(problem.parameters.sample(count, 0)), count)
    return objective, net


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def call_command(*arguments, expect=0, cwd=None):
    """`fem-frames` in this process, with what it says."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.chdir(cwd or "."), contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        try:
            code = main([*map(str, arguments)])
        except SystemExit as end:
            code = end.code
    assert code == expect, stdout.getvalue() + stderr.getvalue()
    return subprocess.CompletedProcess(arguments, code, stdout.getvalue(), stderr.getvalue())


def run_command(*arguments, check=True, cwd=None, env=None, timeout=300, start=()):
    """`fem-frames` in a process of its own, started by `start`, such as torchrun."""
    if start:
        command = [*start, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=timeout, check=False)
    else:
        done = run_program(COMMAND, *arguments, cwd=cwd, env=env, timeout=timeout)
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


def skip_without_torchrun():
    try:
        torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False, use_libuv=True)
    except RuntimeError as error:  # as Debian 13 packages torch
        pytest.skip(f"torchrun does not work here: {error}")
