"""Small nets, objectives and runs for the tests of training."""

import json
import subprocess
import sys

import torch
from frames import case

from fem_frames import Frame, make_formulation
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


def run_command(*arguments, check=True, cwd=None, env=None, timeout=300, start=()):
    """`fem-frames` in a process of its own, started by `start`, such as torchrun."""
    done = subprocess.run(
        [*(start or [sys.executable, "-m", "fem_frames.commands"]), *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=env,
        timeout=timeout,
        check=False,
    )
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def result_of(folder):
    return json.loads((folder / "result.json").read_text())
