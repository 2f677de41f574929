"""The error that few quadrature points make: solutions with several degrees against a high one.

B samples, N free nodal values.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fem_frames.formulations.formulation import Formulation
from fem_frames.formulations.registry import make_formulation
from fem_frames.frame.export import export_frame
from fem_frames.mesh.geometry import Floats
from fem_frames.mesh.hierarchy import MeshHierarchy
from fem_frames.operators.frame import Frame
from fem_frames.problem.definition import Problem
from fem_frames.solvers.solution import solve

EXACT = 6
"""The degree that the others are compared with."""


def quadrature_rows(problem: Problem, levels: int, y: Floats, degrees: Sequence[int] = (1, 2, 4)) -> Iterator[dict]:
    """One row per degree: mean and maximum over y (B, p) of the relative change of u in the energy norm.

    `ms` is the time per sample of evaluating a_y and the load, in float32.
    """
    hierarchy = MeshHierarchy.from_problem(problem, levels)
    samples = torch.as_tensor(y)
    exact = _formulation(problem, hierarchy, EXACT)
    truth = _nodal(exact, samples)
    A: Any = exact.A(samples)
    size = (truth * A(truth)).sum(1).sqrt()
    for degree in degrees:
        made = _formulation(problem, hierarchy, degree)
        off = _nodal(made, samples) - truth
        change = (off * A(off)).sum(1).clamp_min(0).sqrt() / size
        points = len(made.frame.arrays.rule_weights)
        yield {
            "degree": degree,
            "points": points,
            "mean": float(change.mean()),
            "max": float(change.max()),
            "ms": _milliseconds(made.to(torch.float32), samples.float()),
        }


def _formulation(problem: Problem, hierarchy: MeshHierarchy, degree: int) -> Formulation:
    changed = replace(problem, quadrature_degree=degree)
    return make_formulation(Frame.from_arrays(export_frame(hierarchy, changed), torch.float64), changed)


def _nodal(formulation: Formulation, y: Tensor) -> Tensor:
    """(B, N) free nodal values of the solutions without the lift."""
    return formulation.frame.H(solve(formulation, y, 1e-10).w)


def _milliseconds(formulation: Formulation, y: Tensor) -> float:
    times = []
    for _ in range(7):
        start = time.perf_counter()
        formulation.mean(formulation.coefficient(y))
        formulation.functional(y)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[1:]) / len(y)
