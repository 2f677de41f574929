"""Rounding errors of residual and gradient on all levels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fem_frames.formulations.formulation import Formulation
from fem_frames.formulations.registry import make_formulation
from fem_frames.frame.arrays import FrameArrays
from fem_frames.mesh.geometry import Floats
from fem_frames.operators.frame import Frame, check_dtype
from fem_frames.operators.linear import dot
from fem_frames.problem.definition import Problem
from fem_frames.solvers.solution import solve
from fem_frames.studies.extended_precision import ExtendedForm
from fem_frames.studies.levels import Row, formulations

ROUTES = ("bpx", "sparse", "gather", "recursive")


def rounding_rows(
    arrays: FrameArrays,
    problem: Problem,
    y: Floats,
    dtypes: Sequence[str] = ("float16", "float32", "float64"),
    routes: Sequence[str] = ROUTES,
    *,
    working_sums: bool = True,
    levels: Iterable[int] | None = None,
) -> Iterator[Row]:
    """Errors of residual and gradient near the solution, relative to their size at w = 0, and the computed loss.

    They are measured at the discrete solution, rounded to the dtype, against extended precision at the same point.
    With `working_sums` the routes sparse and gather sum in the dtype itself and have the load on the frame, as a plain
    implementation would.
    Errors are the largest and losses the means over the samples y.
    """
    # Rounded to bfloat16, which every dtype represents exactly, so that all solve the same problems.
    samples = torch.as_tensor(y).bfloat16().double()
    for level, exact in formulations(arrays, problem, levels):
        solution = solve(exact, samples, 1e-12, solver="frame").w
        extended = ExtendedForm(exact)
        load = dot(exact.load(samples), exact.load(samples)).sqrt()
        if not (load > 0).all():
            raise ValueError(f"the load of {problem.name} is zero for some y: errors relative to it are not defined")
        for dtype in dtypes:
            w = solution.to(check_dtype(dtype))
            truth = [extended(x, s) for x, s in zip(w.double(), samples, strict=True)]
            for route in routes:
                row = {"level": level, "dtype": dtype, "route": route}
                yield row | _rounding_errors(exact, route, w, samples, truth, load, working_sums)


def _rounding_errors(
    exact: Formulation, route: str, w: Tensor, y: Tensor, truth: list[Any], load: Tensor, working_sums: bool
) -> Row:
    options: dict[str, Any] = {}
    plain = route in ("sparse", "gather") and working_sums
    if plain:
        options["accumulate"] = w.dtype
        if route == "sparse" and w.dtype in (torch.float16, torch.bfloat16):
            options["layout"] = "coo"
    differential = "recursive" if route == "bpx" else route
    frame = Frame.from_arrays(exact.frame.arrays, w.dtype, "cpu", differential, **options)
    formulation, y = make_formulation(frame, exact.problem), y.to(w.dtype)
    if plain:
        formulation = formulation.with_load_on_frame()
    point = w.clone().requires_grad_()
    if route == "bpx":
        residual = formulation.bpx(y)(w) - formulation.load(y)
        loss = formulation.nodal_loss(frame.H(point), y)
    else:
        residual, loss = formulation.residual(w, y), formulation.loss(point, y)
    (gradient,) = torch.autograd.grad(loss.sum(), point)
    errors = {"residual_error": residual, "gradient_error": gradient / (2 * formulation.factor)}
    row: Row = {}
    for name, value in errors.items():
        off = [v.double().numpy() - t for v, (t, _) in zip(value, truth, strict=True)]
        relative = [float(np.sqrt((e**2).sum())) / float(size) for e, size in zip(off, load, strict=True)]
        row[name] = max(relative)
    return row | {
        "loss": float(loss.detach().double().mean()),
        "loss_true": float(np.mean([float(t) for _, t in truth])),
    }
