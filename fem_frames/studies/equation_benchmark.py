"""Time of loss and residual for equations of users, per number of the state, compared with the built-in (E).

Absolute times depend on the machine; only the ratios within one run matter.

B samples, K finest cells, m numbers in a cell's state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fem_frames.formulations.formulation import Formulation
from fem_frames.formulations.registry import make_formulation
from fem_frames.frame import level_matrices
from fem_frames.frame.export import export_frame
from fem_frames.frame.fields import Field
from fem_frames.mesh.coarse import Grid
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.mesh.hierarchy import MeshHierarchy
from fem_frames.operators.frame import Frame
from fem_frames.problem.catalogue import checkerboard
from fem_frames.problem.coefficients import Pointwise, namespace
from fem_frames.problem.definition import Problem, Uniform
from fem_frames.problem.equation import Equation

LEVELS = 6
Step = Callable[[], object]


def equation_rows(dtypes: Sequence[str], levels: int, batch: int, seconds: float) -> Iterator[dict[str, Any]]:
    """One row per dtype and equation on the unit square; all equations of a dtype are measured in turns."""
    for dtype in dtypes:
        cases = [(name, *make(dtype, levels, batch)) for name, make in CASES.items()]
        times = _times([step for _, _, step in cases], seconds)
        first = times[0] / _numbers(cases[0][1], batch)
        for (name, formulation, _), seconds_per_step in zip(cases, times, strict=True):
            per_number = seconds_per_step / _numbers(formulation, batch)
            yield {
                "equation": name,
                "dtype": dtype,
                "cells": len(formulation.frame.arrays.volumes),
                "m": level_matrices.state_size(formulation.frame.arrays),
                "ms": 1e3 * seconds_per_step,
                "ns": 1e9 * per_number,
                "over_E": per_number / first,
            }


def _numbers(formulation: Formulation, batch: int) -> int:
    """K m B"""
    return int(formulation.frame.D.shape[0]) * batch


def _times(steps: Sequence[Step], seconds: float) -> list[float]:
    """The least times of at least five rounds: what else runs on the machine only adds to them."""
    for step in steps:
        step()  # compiles code and touches new memory
    found: list[list[float]] = [[] for _ in steps]
    until = time.perf_counter() + seconds * len(steps)
    while len(found[0]) < 5 or (time.perf_counter() < until and len(found[0]) < 500):
        for own, step in zip(found, steps, strict=True):
            start = time.perf_counter()
            step()
            own.append(time.perf_counter() - start)
    return [min(own) for own in found]


def _step(problem: Problem, formulation: str = "energy") -> Callable[[str, int, int], tuple[Formulation, Step]]:
    """Loss and residual of a formulation."""

    def make(dtype: str, levels: int, batch: int) -> tuple[Formulation, Step]:
        made, w, y = _made(problem, formulation, dtype, levels, batch)
        return made, torch.no_grad()(lambda: made.loss_and_residual(w, y))

    return make


def _made(problem: Problem, name: str, dtype: str, levels: int, batch: int) -> tuple[Formulation, Tensor, Tensor]:
    arrays = export_frame(MeshHierarchy.from_problem(problem, levels), problem, name)
    made = make_formulation(Frame.from_arrays(arrays, dtype), problem)
    w = torch.randn(made.frame.frame_size, batch).to(made.frame.dtype).T  # the batch is last in memory
    return made, 0.1 * w, torch.as_tensor(problem.parameters.sample(batch, 0)).to(made.frame.dtype)


def _problem(coefficient: Pointwise | Equation, p: int, **options: Any) -> Problem:
    """A problem on the unit square with four regions."""
    parameters = Uniform((0.5,) * p, (1.5,) * p)
    return Problem(Grid((1, 1)), coefficient, parameters, regions=_quarters, resolved_from=1, **options)


def _equation(energy: Callable[..., Any], components: int | None = None) -> Equation:
    return Equation(Field("u", components=components), energy=energy)


def _quarters(x: Floats) -> Ints:
    return (x[:, 0] > 0.5).astype(np.int64) + 2 * (x[:, 1] > 0.5)


def _diffusion(u: Any, y: Any, x: Any, dx: Any, ds: Any) -> Any:
    from fem_frames.fenicsx.door import ufl

    return sum(y[k] * ufl.inner(ufl.grad(u), ufl.grad(u)) / 2 * dx(k) for k in range(4)) - u * dx


def _wave(x: Any, y: Any) -> Any:
    return 1 + 0.5 * y[..., 0] * namespace(y).sin(3 * x[..., 0] * y[..., 1])


def _wave_diffusion(u: Any, y: Any, x: Any, dx: Any, ds: Any) -> Any:
    from fem_frames.fenicsx.door import ufl

    return (1 + 0.5 * y[0] * ufl.sin(3 * x[0] * y[1])) * ufl.inner(ufl.grad(u), ufl.grad(u)) / 2 * dx - u * dx


def _elasticity(u: Any, y: Any, x: Any, dx: Any, ds: Any) -> Any:
    from fem_frames.fenicsx.door import ufl

    e = ufl.sym(ufl.grad(u))
    stored = sum((y[2 * k] * ufl.tr(e) ** 2 / 2 + y[2 * k + 1] * ufl.inner(e, e)) * dx(k) for k in range(4))
    return stored + 0.1 * u[1] * dx


def _reaction(u: Any, y: Any, x: Any, dx: Any, ds: Any) -> Any:
    from fem_frames.fenicsx.door import ufl

    return (ufl.inner(ufl.grad(u), ufl.grad(u)) / 2 + y[0] * u**2 / 2 - u) * dx


def _carreau(u: Any, y: Any, x: Any, dx: Any, ds: Any) -> Any:
    from fem_frames.fenicsx.door import ufl

    g = ufl.inner(ufl.grad(u), ufl.grad(u))
    return sum(y[k] * (1 + g) ** 1.5 / 3 * dx(k) for k in range(4)) + (y[4] * u**4 / 4 - y[5] * u) * dx


CASES = {
    "(E)": _step(checkerboard()),
    "(E) in UFL": _step(_problem(_equation(_diffusion), 4)),
    "(E), a(x, y)": _step(_problem(Pointwise(_wave), 2)),
    "(E), a(x, y) in UFL": _step(_problem(_equation(_wave_diffusion), 2)),
    "(LS)": _step(checkerboard(), "least-squares"),
    "elasticity": _step(_problem(_equation(_elasticity, 2), 8, dirichlet=lambda x: np.isclose(x[:, 0], 0))),
    "reaction": _step(_problem(_equation(_reaction), 6)),
    "carreau": _step(_problem(_equation(_carreau), 6, quadrature_degree=4)),
}
