"""Errors and times of queries against the mesh, the number of parameters and the contrast of the coefficient.

Errors are those of `training.comparison.yardstick`: in the energy norm, against the discrete solution, relative to it.

B samples, p parameters.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fem_frames.mesh.geometry import Floats
from fem_frames.problem.blocks import block_tags
from fem_frames.problem.coefficients import ExpAffine
from fem_frames.problem.definition import Problem, Uniform
from fem_frames.problem.loading import make_problem
from fem_frames.solvers.conjugate_gradients import ConvergenceError
from fem_frames.solvers.solution import solve
from training.comparison.cases import COMPARISONS, Case, Effort
from training.comparison.methods import Method
from training.comparison.solvers import by_multigrid, learned
from training.comparison.trained import BATCH, HIDDEN, snapshots
from training.comparison.yardstick import Yardstick
from training.configuration import Configuration
from training.recipes import best
from training.rivals.reduced_bases import PodSpace
from training.rivals.regression import PodNet
from training.run import store
from training.run.trainer import train
from training.scaling.steps import RECIPE
from training.surrogate import Surrogate

Settings = Mapping[str, Any]
Row = dict[str, Any]
QUERY = 64  # samples asked for at a time
SHOWN = tuple("multigrid (2, 2)" + (f" + {steps}" if steps else "") for steps in range(3))
CYCLE = (2, 2)
MODES = 160
TOL = 1e-8
BLOCKS = 4


@dataclass(frozen=True)
class Blocks(Case):
    """Unit square, log a_y uniform on each of 4 × 4 squares, so that a_y lies between 1 and the contrast."""

    contrast: float = 1.0

    def make(self) -> Problem:
        def modes(x: Floats) -> Floats:
            tags = block_tags(x.reshape(-1, 2), BLOCKS).reshape(x.shape[:-1])
            return np.asarray(log(self.contrast) * (tags[..., None] == np.arange(BLOCKS**2)), np.float64)

        count = BLOCKS**2
        return replace(
            make_problem(self.problem, blocks=BLOCKS),
            coefficient=ExpAffine(0.0, modes),
            parameters=Uniform((0.0,) * count, (1.0,) * count),
        )


def levels(settings: Settings, out: Path, name: str) -> dict[str, Any]:
    """Errors and times of solvers, or of a frame net after some steps, on one mesh."""
    case = Case(name, "", settings["problem"], settings["levels"], finer=1)
    return _measured(case, settings, out, out / "cases" / f"{case.problem}-J{case.levels}")


def parameters(settings: Settings, out: Path, name: str) -> dict[str, Any]:
    """The same for a log a_y of waves with some number of terms, and of POD and a net."""
    terms = {"terms": settings["terms"]}
    return _measured(Case(name, "", "waves", settings["levels"], terms, finer=1), settings, out, None)


def contrast(settings: Settings, out: Path, name: str) -> dict[str, Any]:
    """Iterations to a tolerance, errors of a fixed number of steps, and bounds, for one contrast."""
    value, J = settings["contrast"], settings["levels"]
    if settings["problem"] == "blocks":
        case: Case = Blocks(name, "", "checkerboard", J, finer=1, contrast=value)
    else:
        case = Case(name, "", settings["problem"], J, {"conductivity": value}, finer=1)
    yard = Yardstick(case, _effort(settings))
    found = _solver_rows(yard)
    accurate = next(iter(by_multigrid_steps(yard, SHOWN[-1])))
    assert accurate.values is not None
    bound = yard.bounds(accurate.values(yard.y))
    iterations = {solver: _iterations(yard, solver) for solver in ("multigrid", "frame")}
    return {"facts": {**_facts(yard), "bound": bound, "iterations": iterations}, "rows": list(found)}


def _effort(settings: Settings) -> Effort:
    solves = settings.get("solves", 0)
    given = {key: settings[key] for key in ("samples", "seconds", "learn") if key in settings}
    effort = COMPARISONS["full"].effort
    return replace(effort, fine_samples=4, batches=(QUERY,), solves=solves, basis=solves, modes=(MODES,), **given)


def _measured(case: Case, settings: Settings, out: Path, folder: Path | None) -> dict[str, Any]:
    yard, run = Yardstick(case, _effort(settings), folder), out / "runs" / case.name
    if "learn" in settings:
        rows = _solver_rows(yard)
    elif "solves" in settings:
        rows = (_row(yard, method) for method in _pod_net(yard, run, settings["steps"]))
    else:
        rows = iter([_row(yard, _frame_net(yard, run, settings["steps"]))])
    return {"facts": _facts(yard), "rows": list(rows)}


def _facts(yard: Yardstick) -> dict[str, Any]:
    return {"unknowns": yard.arrays.nodal_size, "parameters": yard.y.shape[1], **yard.mesh_errors()}


def _solver_rows(yard: Yardstick) -> Iterator[Row]:
    for method in by_multigrid_steps(yard, *SHOWN):
        yield _row(yard, method)
    for method in learned(yard, Path(), (CYCLE,)):
        yield _row(yard, method)


def by_multigrid_steps(yard: Yardstick, *names: str) -> Iterator[Method]:
    return (method for method in by_multigrid(yard, Path()) if method.name in names)


def _row(yard: Yardstick, method: Method) -> Row:
    assert method.values is not None
    with torch.no_grad():
        errors = yard.errors(method.values(yard.y))
        ms = yard.time(partial(method.timed or method.values, yard.asked(QUERY)), QUERY)
    return {
        "method": method.name,
        "error": float(errors.mean()),
        "error_most": float(errors.max()),
        "ms": ms,
        "offline_s": method.offline_s,
        "solves": method.solves,
        **method.remarks,
    }


def _frame_net(yard: Yardstick, run: Path, steps: int) -> Method:
    """A net trained by the best recipe for as many steps on every mesh."""
    case = yard.case
    given = {"problem": case.problem, "options": dict(case.options), "levels": case.levels, "epochs": steps}
    c = Configuration(**best({**RECIPE, **given, "test_samples": 64}))
    result = train(c, run, problem=yard.problem, resume=(run / store.SETTINGS).exists(), quiet=True)
    net = Surrogate.load(run, problem=yard.problem)

    def values(y: Tensor) -> Tensor:
        return yard.exact.frame.H(net.coefficients(y.numpy()).double())

    seconds = result["seconds"]
    return Method("frame net", "frame net", values, offline_s=seconds, timed=lambda y: net(y.numpy()))


def _pod_net(yard: Yardstick, folder: Path, steps: int) -> Iterator[Method]:
    """A net for the coefficients of POD modes, from as many snapshots for every number of parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    data = snapshots(yard, folder, yard.effort.solves)
    begin = time.perf_counter()
    space = PodSpace.build(yard.exact, data)
    space = space.first(min(MODES, space.size))
    net = PodNet(yard.problem, space, data, HIDDEN, (steps, 0), batch=min(BATCH, len(data.y)))
    net.space = space.in_float32()

    def values(y: Tensor) -> Tensor:
        return net.values(y.numpy())

    seconds = data.seconds + time.perf_counter() - begin
    remarks = {"steps": steps, "modes": space.size}
    yield Method("POD and a net", "regression", values, solves=len(data.y), offline_s=seconds, remarks=remarks)


def _iterations(yard: Yardstick, solver: str) -> dict[str, float] | None:
    """Mean and most iterations to the tolerance in float64; None if it is not reached."""
    try:
        found = solve(yard.exact, yard.y[:8], TOL, solver=solver, max_iterations=5000).iterations.double()
    except ConvergenceError:
        return None
    return {"mean": float(found.mean()), "most": float(found.max())}
