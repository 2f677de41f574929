"""Iterations of conjugate gradients on all levels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from fem_frames.formulations.formulation_checks import check_quadratic
from fem_frames.frame.arrays import FrameArrays
from fem_frames.mesh.geometry import Floats
from fem_frames.operators.linear import dot
from fem_frames.problem.definition import Problem
from fem_frames.solvers.conjugate_gradients import PATIENCE, conjugate_gradients
from fem_frames.studies.levels import Row, formulations


def iteration_rows(
    arrays: FrameArrays,
    problem: Problem,
    y: Floats,
    tol: float,
    dtypes: Sequence[str],
    limit: int = 5000,
    device: torch.device | str = "cpu",
) -> Iterator[Row]:
    """Iterations of conjugate gradients for the nodal system, HᵀA_yH and DᵀC_yD: the maximum over the samples y.

    Each row also has the final relative residual, evaluated in float64 because the recurrence is unreliable in low
    precision. Iterations are None if the limit, or rounding in the frame's systems, ends them before the tolerance.
    """
    for dtype in dtypes:
        for level, exact in formulations(arrays, problem, device=device):
            check_quadratic(exact, "this study")
            formulation = exact if dtype == "float64" else exact.to(dtype)
            samples = torch.as_tensor(y).to(formulation.frame.device, formulation.frame.dtype)
            y64 = samples.double()
            nodal, load = formulation.nodal_load(samples), formulation.load(samples)
            nodal_true, load_true = exact.nodal_load(y64), exact.load(y64)
            cases = {
                "nodal": (formulation.A(samples), nodal, exact.A(y64), nodal_true),
                "bpx": (formulation.bpx(samples), load, exact.stable(y64), load_true),
                "stable": (formulation.stable(samples), load, exact.stable(y64), load_true),
            }
            row: Row = {"level": level, "dtype": dtype, "nodal_size": exact.frame.arrays.nodal_size}
            for name, (operator, b, true_operator, true_b) in cases.items():
                found = conjugate_gradients(operator, b, tol, limit, None if name == "nodal" else PATIENCE)
                reached = bool((found.residual <= tol).all())
                rest = true_b - true_operator(found.x.double())
                row[f"{name}_iterations"] = int(found.iterations.max()) if reached else None
                size = dot(true_b, true_b)
                row[f"{name}_residual"] = float(torch.where(size > 0, dot(rest, rest) / size, 0.0).sqrt().max())
            yield row
