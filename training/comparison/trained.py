"""Methods that learn: frame nets, POD modes with a net or with polynomial chaos, and a net for outputs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fem_frames.files import written_whole
from fem_frames.mesh.geometry import Floats
from fem_frames.solvers.solution import solve
from training.benchmark import training_rows
from training.comparison import chaos
from training.comparison.methods import Method
from training.comparison.yardstick import Yardstick
from training.configuration import Configuration
from training.output_net import OutputNet, OutputNetSettings
from training.recipes import best
from training.rivals.reduced_bases import PodSpace, Snapshots
from training.rivals.regression import PodNet, PolynomialChaos, affordable_degree
from training.run import store
from training.run.records import kept_arrays
from training.run.trainer import train
from training.surrogate import Surrogate

PIECE = 500  # snapshots solved at a time
MOST_VALUES = 160_000_000  # of all snapshots
MOST_BASIS_VALUES = 40_000_000  # of those that modes are made of
TOL = 1e-8  # of snapshots
SEED = 777
HIDDEN = (256, 256)
BATCH = 256
TRIAL = 200  # steps that are timed to know how many fit into the time for training
PAPER: dict[str, Any] = {"optimizer": "adam", "net": "full"}


# ---- frame nets


def paper_net(yard: Yardstick, folder: Path) -> Iterator[Method]:
    yield _frame_net(yard, folder / "run-paper", "frame net, the paper's", PAPER)


def best_net(yard: Yardstick, folder: Path) -> Iterator[Method]:
    """In 2D and 3D a decay of 1 trains as well as the recipe's, which was found in 1D, or better."""
    decay = {} if yard.arrays.dimension == 1 else {"level_decay": 1.0}
    yield _frame_net(yard, folder / "run-best", "frame net, best recipe", best({"net": "full", **decay}))


def _frame_net(yard: Yardstick, run: Path, name: str, settings: dict[str, Any]) -> Method:
    """Trained for the time of the effort, or what is left of it if the run was interrupted."""
    if (run / store.SETTINGS).exists():
        result = train(None, run, problem=yard.problem, resume=True, quiet=True)
    else:
        case = yard.case
        c = {"problem": case.problem, "options": dict(case.options), "levels": case.levels}
        c |= {"formulation": case.formulation}
        timed = {"net": settings["net"], "optimizer": settings["optimizer"]}
        trial = min(1.0, yard.effort.training / 10)
        (row,) = training_rows(yard.arrays, yard.problem, ["float32"], seconds=trial, **timed)
        epochs = max(int(yard.effort.training / row["step_s"]), 10)
        given = Configuration(**{**c, "test_samples": 64, **settings, "epochs": epochs})
        result = train(given, run, problem=yard.problem, quiet=True)
    surrogate = Surrogate.load(run, problem=yard.problem)

    def values(y: Tensor) -> Tensor:
        return yard.exact.frame.H(surrogate.coefficients(y.numpy()).double())

    return Method(
        name,
        name,
        values,
        offline_s=result["seconds"],
        timed=lambda y: surrogate(y.numpy()),
        outputs=lambda y: yard.sensors.values(surrogate.coefficients(y.numpy()).double(), y),
        differentiable=lambda y: surrogate.differentiable_output(y, yard.sensors.outputs),
        remarks={"steps": result["steps"]},
    )


# ---- snapshots


def snapshots(yard: Yardstick, folder: Path, count: int, seconds: float = float("inf")) -> Snapshots:
    """Batched solutions, `count` of them or as many as fit into the time and into memory; kept in the folder."""
    count = min(count, MOST_VALUES // yard.exact.frame.arrays.nodal_size)
    kept = _kept(folder / "snapshots.npz")
    if kept is not None and (len(kept.y) >= count or kept.seconds >= seconds):
        enough = int(len(kept.y) * min(1.0, seconds / kept.seconds))
        return kept.first(min(count, enough))
    y, found = yard.problem.parameters.sample(count, SEED), []
    begin, done = time.perf_counter(), 0
    while done < count and time.perf_counter() - begin < seconds:
        samples = torch.as_tensor(y[done : done + PIECE])
        found.append(yard.exact.frame.H(solve(yard.formulation, samples.float(), TOL).w.double()))
        done += len(samples)
    made = Snapshots(y[:done], torch.cat(found), time.perf_counter() - begin)
    with written_whole(folder / "snapshots.npz") as file:
        np.savez(file, y=made.y, values=made.values.float().numpy(), seconds=made.seconds)
    return made


def basis_size(yard: Yardstick) -> int:
    """The number of snapshots that modes are made of."""
    return min(yard.effort.basis, MOST_BASIS_VALUES // yard.exact.frame.arrays.nodal_size)


def _kept(path: Path) -> Snapshots | None:
    if not path.is_file():
        return None
    y, values, seconds = kept_arrays(path, "y", "values", "seconds")
    return Snapshots(y, torch.as_tensor(values).double(), float(seconds))


# ---- regression on POD modes


def regression(yard: Yardstick, folder: Path) -> Iterator[Method]:
    """Polynomial chaos, by chaospy and batched, and a net for POD modes.

    Snapshots take a third of the time for training at most, the fit of the net takes the rest.
    """
    effort = yard.effort
    data = snapshots(yard, folder, effort.solves, effort.training / 3)
    begin = time.perf_counter()
    whole = PodSpace.build(yard.exact, data.first(min(basis_size(yard), len(data.y))))
    space = whole.first(min(effort.modes[-1], whole.size))
    pod_s = time.perf_counter() - begin
    spent = data.seconds + pod_s
    p = yard.problem.parameters.dimension
    degree = _degree(p, len(data.y), effort.polynomials)

    def made(kind: str, name: str, rival: Any, fit_s: float, **remarks: Any) -> Method:
        rival.space = rival.space.in_float32()
        return Method(
            name,
            kind,
            lambda y: rival.values(y.numpy()),
            solves=len(data.y),
            offline_s=spent + fit_s,
            outputs=_reduced_outputs(yard, rival),
            remarks={"modes": space.size, **remarks},
        )

    polynomials, fit_s = _timed(lambda: PolynomialChaos(yard.problem, space, data, degree))
    yield made("polynomial chaos", f"polynomial chaos, degree {degree}", polynomials, fit_s, degree=degree)
    if chaos.is_there() and (degree := _degree(p, len(data.y), effort.polynomials // 8)) > 0:
        by_chaospy, fit_s = _timed(lambda: chaos.ChaospyRegression(yard.problem, space, data, degree))
        name = f"polynomial chaos by chaospy, degree {degree}"
        yield made("polynomial chaos", name, by_chaospy, fit_s, degree=degree)
    batch = min(BATCH, len(data.y))

    def fitted(steps: int) -> PodNet:
        return PodNet(yard.problem, space, data, HIDDEN, (steps, 0), batch=batch)

    fitted(TRIAL)  # the first steps take longer
    _, trial_s = _timed(lambda: fitted(TRIAL))
    steps = max(int(TRIAL * (effort.training - spent) / trial_s), TRIAL)
    net, fit_s = _timed(lambda: fitted(steps))
    yield made("POD and a net", "POD and a net", net, fit_s, steps=steps)


def _degree(p: int, solves: int, most: int) -> int:
    """The largest total degree with three solves per polynomial and at most this many polynomials."""
    return affordable_degree(p, min(solves, 3 * most))


def _reduced_outputs(yard: Yardstick, rival: Any) -> Callable[[Tensor], Tensor]:
    """Outputs from the coefficients of modes: the modes' own outputs are made once."""
    space, y = rival.space, yard.y[:1]

    def of(nodal: Tensor) -> Tensor:
        return yard.sensors.values(yard.coefficients(nodal), y.expand(len(nodal), -1))

    mean = of(space.mean[None])
    modes = (of(space.mean + space.modes) - mean).float()  # (n, s)
    return lambda y: (rival.coefficients(y.numpy()).float() @ modes).double() + mean


def _timed(run: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.perf_counter()
    return run(), time.perf_counter() - begin


# ---- outputs


def output_net(yard: Yardstick, folder: Path) -> Iterator[Method]:
    """A plain net from y to the outputs, with as many solves as fit into a third of the time for training."""
    file, record = folder / "sensors.pt", folder / "sensors.json"
    if not file.is_file() or not record.is_file():
        count = max(min(_solves_within(yard, yard.effort.training / 3), yard.effort.solves), 100)
        settings = OutputNetSettings(samples=count, validation=max(count // 20, 20), steps=_steps(yard))
        net, seconds = _timed(lambda: OutputNet.train(yard.formulation, yard.sensors.outputs, settings))
        net.save(file)
        with written_whole(record) as out:
            out.write(json.dumps({"seconds": seconds}).encode())
    net, seconds = OutputNet.load(file), json.loads(record.read_text())["seconds"]
    yield Method(
        "a net for the outputs",
        "a net for the outputs",
        None,
        solves=int(net.record["solves"]),
        offline_s=seconds,
        outputs=lambda y: net(y),
        differentiable=lambda y: net(y),
    )


def _solves_within(yard: Yardstick, seconds: float) -> int:
    y: Floats = yard.problem.parameters.sample(128, SEED)
    _, used = _timed(lambda: solve(yard.formulation, torch.as_tensor(y).float(), 1e-6))
    return int(128 * seconds / used)


def _steps(yard: Yardstick) -> int:
    """About a hundred steps per second of the time for training."""
    return max(int(100 * yard.effort.training), 500)
