"""Training against the mesh: steps and seconds to an excess, the steps of several processes, and the work of one step.

B samples of a batch.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fem_frames.compiling import VARIABLE
from fem_frames.formulations.registry import make_formulation
from fem_frames.frame.arrays import FrameArrays
from fem_frames.operators.frame import Frame
from fem_frames.problem.definition import Problem
from fem_frames.problem.loading import make_problem
from fem_frames.studies.levels import cached_frame
from training.comparison.yardstick import least_time
from training.configuration import Configuration
from training.description import describe_net
from training.losses import make_loss
from training.objective import Objective
from training.optimizers.steppers import Stepper, make_stepper
from training.precision import Weights
from training.recipes import best
from training.run.log import LOG, read_log
from training.run.trainer import train
from training.samples import FreshSamples
from training.surrogate import FRAME

Settings = Mapping[str, Any]
TESTS = 50  # of a run
RECIPE = {"net": "full", "level_decay": 1.0}  # with the best recipe; in 2D and 3D solutions decay less than in 1D
BATCH = 64
FIRST = 5  # steps of a run that are not timed
WINDOW = 5  # successive steps whose mean is taken
ROUNDS = 10  # steps between new bases of SOAP: their mean has the work of a step


def training(settings: Settings, out: Path, name: str) -> dict[str, Any]:
    """The excess of the loss over its floor, relative to it, after each test, and the time of a step."""
    steps = settings["steps"]
    given = {"problem": "checkerboard", "levels": settings["levels"], "epochs": steps, "test_samples": 32}
    c = Configuration(**best({**RECIPE, **given, "evaluate_every": max(1, steps // TESTS)}))
    folder = out / "runs" / name
    result = train(c, folder, resume=(folder / LOG).exists(), quiet=True)
    seen = [(r["step"], r["test"]) for r in read_log(folder / LOG) if "test" in r]
    curve = [(step, (test["loss"] - test["floor"]) / abs(test["floor"])) for step, test in seen]
    arrays = FrameArrays.load(folder / FRAME)
    facts = {"unknowns": arrays.nodal_size, "weights": result["parameters"], "excess": curve[-1][1]}
    step_ms = least_time(TrainingStep(arrays, make_problem(c.problem), BATCH), 1.0)
    return {"facts": facts, "steps": result["steps"], "step_ms": step_ms, "curve": curve}


# ---- several processes


def processes(settings: Settings, out: Path, name: str) -> dict[str, Any]:
    """The time of a step of `BATCH` samples shared by processes that torchrun starts, one thread each."""
    count, run = settings["processes"], out / "runs" / name
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    given = {"problem": "disks", "levels": settings["levels"], "epochs": FIRST + settings["steps"], "batch": BATCH}
    given |= {"test-samples": 0, "log-every": 1, "optimizer": "soap", "level-decay": 1, "device": "cpu", "out": run}
    words = [word for key, value in given.items() for word in (f"--{key}", str(value))]
    command = [sys.executable, *launcher, "-m", "fem_frames.commands", "train", *words, "--force", "--quiet"]
    done = subprocess.run(
        command,
        # Installed modules take precedence over those in the working directory: like -P, for all that torchrun starts.
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ValueError(f"torchrun failed with {count} processes: {done.stderr.strip()[-400:]}")
    times = [record["seconds"] for record in read_log(run / LOG) if "rate" in record][FIRST:]
    # The log has milliseconds, and other programs may disturb: the least mean of some successive steps.
    means = [(later - before) / WINDOW for before, later in zip(times, times[WINDOW:], strict=False)]
    return {"facts": {"processes": count}, "step_ms": 1e3 * min(means), "median_ms": 1e3 * statistics.median(means)}


# ---- the work of a step


class Work(TorchDispatchMode):
    """Counts operations of torch: their number, floating point operations, and bytes that they read and write.

    Products of matrices are counted as torch does it, sparse ones as two operations for each entry and sample, all
    others as one for each number that they write. Nothing is fused: every operation reads its inputs from memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.flops, self.bytes = 0, 0.0, 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        read, written = list(_tensors((args, kwargs))), list(_tensors(made))
        if not written or _only_looks(func, read, written):
            return made
        self.calls += 1
        self.bytes += sum(tensor.nbytes for tensor in (*read, *written))
        packet = func.overloadpacket
        if packet in flop_registry:
            self.flops += float(flop_registry[packet](*args, **kwargs, out_val=made))
        elif "embedding_bag" in str(packet):
            self.flops += 2.0 * args[1].numel() * args[0].shape[1]
        else:
            self.flops += float(sum(tensor.numel() for tensor in written))
        return made


def _only_looks(func: Any, read: list[torch.Tensor], written: list[torch.Tensor]) -> bool:
    """Whether the results are views of what was read, which take no traffic."""
    known = {tensor.untyped_storage().data_ptr() for tensor in read}
    return not func._schema.is_mutable and all(t.untyped_storage().data_ptr() in known for t in written)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def work(settings: Settings, out: Path, name: str) -> dict[str, Any]:
    """What a step does for each sample and besides, counted as it runs in torch, and the rates of this processor."""
    problem = make_problem(settings["problem"])
    arrays = cached_frame(problem, settings["levels"], "energy", folder=out / "frames")
    given = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "torch"  # compiled functions cannot be counted
    try:
        small, large = (_counted(arrays, problem, count) for count in (BATCH // 2, BATCH))
    finally:
        if given is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = given
    per_sample = {key: (large[key] - small[key]) / (BATCH - BATCH // 2) for key in ("flops", "bytes")}
    step = TrainingStep(arrays, problem, BATCH)
    return {
        "facts": {"unknowns": arrays.nodal_size, "weights": step.net.parameter_count(), "cells": len(arrays.volumes)},
        "per_sample": per_sample,
        "per_step": {key: large[key] - BATCH * own for key, own in per_sample.items()},
        "calls": large["calls"],
        "message": step.message_bytes,
        "step_ms": least_time(step, 1.0),
        "rates": rates(),
    }


class TrainingStep:
    """A step of the best recipe with new samples."""

    def __init__(self, arrays: FrameArrays, problem: Problem, batch: int) -> None:
        given = {"problem": problem.name, "levels": arrays.finest_level, "batch": batch, "sampling": "fresh"}
        c = Configuration(**best({**RECIPE, **given})).resolved()
        frame = Frame.from_arrays(arrays, c.precision)
        loss = make_loss(c.loss, make_formulation(frame, problem))
        self.net = describe_net(c, problem).build(arrays, frame.device)
        weights = Weights(self.net)
        self._stepper: Stepper = make_stepper(c.optimizer, weights, c.dtype_settings, c.rate)
        self._stepper.set_rate(c.rate)
        self._loss, self._objective = loss, Objective(self.net, loss, weights)
        self._samples, self._batch, self._count = FreshSamples(problem.parameters, batch, 1, 0), batch, 0
        self.message_bytes = (self.net.parameter_count() + 2) * torch.float32.itemsize
        """Of the sum over processes in every step: the gradient, the loss and a wish to stop."""

    def __call__(self) -> None:
        y = self._samples.batch(self._count)[0]
        self._count += 1
        self._objective.take(self._loss.batch(y), self._batch)
        self._stepper(self._objective)


def _counted(arrays: FrameArrays, problem: Problem, batch: int) -> dict[str, float]:
    """The means of `ROUNDS` steps, after one that makes the optimizer's state."""
    step, counted = TrainingStep(arrays, problem, batch), Work()
    step()
    with counted:
        for _ in range(ROUNDS):
            step()
    found = {"calls": counted.calls, "flops": counted.flops, "bytes": counted.bytes}
    return {key: value / ROUNDS for key, value in found.items()}


def rates() -> dict[str, float]:
    """Of this processor: operations per second of matrix products, bytes per second of copies, seconds per call."""
    n = 1024
    a, b = torch.randn(n, n), torch.randn(n, n)
    source, target = torch.randn(2**24), torch.empty(2**24)
    tiny = torch.zeros(1)
    return {
        "flops": 2.0 * n**3 / (1e-3 * least_time(lambda: a @ b, 0.3)),
        "bytes": 2.0 * source.nbytes / (1e-3 * least_time(lambda: target.copy_(source), 0.3)),
        "call": 1e-3 * least_time(lambda: [tiny + 1 for _ in range(1000)], 0.1) / 1000,
    }
