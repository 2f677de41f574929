"""Error bounds divided by true errors, on all levels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fem_frames.formulations.registry import formulation_for, make_formulation
from fem_frames.frame.arrays import FrameArrays
from fem_frames.mesh.geometry import Floats
from fem_frames.operators.frame import Frame
from fem_frames.operators.linear import dot
from fem_frames.problem.definition import Problem
from fem_frames.solvers.bounds import ErrorBound, certify, norm_of
from fem_frames.solvers.solution import solve
from fem_frames.studies.levels import Row, embedded, formulations


def efficiency_rows(
    arrays: FrameArrays,
    problem: Problem,
    y: Floats,
    sizes: Sequence[float] = (1e-1, 1e-3),
    seed: int = 0,
    norm: str | None = None,
) -> Iterator[Row]:
    """Error bounds divided by true errors in the same norm over the samples y, and relative bounds, on each level.

    (E) compares with the discrete solution, perturbed by random coefficients of the given relative sizes.
    (LS) compares with the discrete solution two levels finer, so the finest two levels have no row.
    """
    if formulation_for(arrays.formulation, problem).error_norm(norm).against == "exact solution":
        yield from _efficiency_on_finer_meshes(arrays, problem, y, norm)
        return
    generator = torch.Generator().manual_seed(seed)
    samples = torch.as_tensor(y)
    for level, formulation in formulations(arrays, problem):
        solution = solve(formulation, samples, 1e-12).w
        bounds, errors = [], []
        for size in sizes:
            noise = torch.randn(solution.shape, dtype=torch.float64, generator=generator)
            noise = size * noise * (dot(solution, solution) / dot(noise, noise)).sqrt()[:, None]
            bounds.append(certify(formulation, solution + noise, samples, norm))
            errors.append(norm_of(formulation, noise, samples, norm))
        yield {"level": level, **_efficiency(bounds, errors)}


def _efficiency_on_finer_meshes(arrays: FrameArrays, problem: Problem, y: Floats, norm: str | None) -> Iterator[Row]:
    samples = torch.as_tensor(y)
    fine = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    reference = solve(fine, samples, 1e-12).w
    for level, formulation in formulations(arrays, problem):
        if level > arrays.finest_level - 2:
            return
        solution = solve(formulation, samples, 1e-12).w
        whole = embedded(solution, formulation.frame.arrays, arrays)
        error = norm_of(fine, whole - reference, samples, norm)
        yield {"level": level, **_efficiency([certify(formulation, solution, samples, norm)], [error])}


def _efficiency(bounds: list[ErrorBound], errors: list[Tensor]) -> Row:
    ratios = torch.cat([bound.value / error for bound, error in zip(bounds, errors, strict=True)])
    return {
        "norm": bounds[0].norm.name,
        "against": bounds[0].norm.against,
        "efficiency_least": float(ratios.min()),
        "efficiency_mean": float(ratios.mean()),
        "efficiency_most": float(ratios.max()),
        "relative_most": max(float(bound.relative.max()) for bound in bounds),
    }
