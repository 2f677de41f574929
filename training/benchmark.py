"""Time of a training step compared with that of the net alone, forward and backward, within one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fem_frames.formulations.registry import make_formulation
from fem_frames.frame.arrays import FrameArrays
from fem_frames.operators.frame import Frame
from fem_frames.problem.definition import Problem
from training.configuration import Configuration
from training.description import describe_net
from training.losses import make_loss
from training.objective import Objective
from training.optimizers.steppers import make_stepper
from training.precision import Weights
from training.samples import FreshSamples


def training_rows(
    arrays: FrameArrays,
    problem: Problem,
    dtypes: Sequence[str],
    batch: int = 64,
    seconds: float = 1.0,
    device: str = "cpu",
    **settings: Any,
) -> Iterator[dict[str, Any]]:
    """One row per dtype: `step_s` for a step with new samples, `net_s` for the net alone with a random gradient.

    The two are measured in turns, so that a machine that slows down affects both.
    """
    first: float | None = None
    for dtype in dtypes:
        c = Configuration(problem=problem.name, levels=arrays.finest_level, precision=dtype, batch=batch, **settings)
        net_run, step_run = _runs(arrays, problem, c.resolved(), device)
        net_s, step_s = _times([net_run, step_run], torch.device(device), seconds)
        first = first or step_s
        yield {
            "levels": arrays.finest_level,
            "dtype": dtype,
            "optimizer": c.optimizer,
            "net": c.net,
            "step_s": step_s,
            "net_s": net_s,
            "ratio": step_s / net_s,
            "over_first": step_s / first,
        }


def _runs(arrays: FrameArrays, problem: Problem, c: Any, device: str) -> tuple[Callable[[], None], Callable[[], None]]:
    frame = Frame.from_arrays(arrays, c.precision, device)
    loss = make_loss(c.loss, make_formulation(frame, problem))
    net = describe_net(c, problem).build(arrays, frame.device)
    weights = Weights(net)
    stepper = make_stepper(c.optimizer, weights, c.dtype_settings, c.rate)
    objective = Objective(net, loss, weights)
    samples = FreshSamples(problem.parameters, c.batch, 1, 0)
    y = loss.batch(samples.batch(0)[0]).y
    gradient = torch.randn(arrays.frame_size, c.batch).to(frame.device, frame.dtype).T  # batch contiguous, as D has it
    parameters = list(net.parameters())
    count = 0

    def net_alone() -> None:
        net(y).backward(gradient)
        for p in parameters:
            p.grad = None

    def step() -> None:
        nonlocal count
        count += 1
        objective.take(loss.batch(samples.batch(count)[0]), c.batch)
        stepper.set_rate(c.rate)
        stepper(objective)

    return net_alone, step


def _times(runs: Sequence[Callable[[], None]], device: torch.device, seconds: float) -> list[float]:
    """Medians of the times of runs that take turns."""
    times: list[list[float]] = [[] for _ in runs]
    until = time.perf_counter() + 2 * seconds
    while len(times[0]) < 5 or time.perf_counter() < until:
        for run, taken in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken[2:]) for taken in times]
