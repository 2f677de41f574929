"""Helpers of the studies: formulations on every level, cached frames, nominal parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fem_frames.formulations.formulation import Formulation
from fem_frames.formulations.registry import make_formulation
from fem_frames.frame.arrays import FrameArrays
from fem_frames.mesh.geometry import Floats
from fem_frames.operators.frame import Frame
from fem_frames.problem.definition import Problem

Row = dict[str, Any]


def nominal_parameters(problem: Problem) -> Floats:
    """(1, p) the middle of the parameter domain: the centre of the box, or zero."""
    return problem.parameters.nominal


def formulations(
    arrays: FrameArrays,
    problem: Problem,
    levels: Iterable[int] | None = None,
    dtype: str = "float64",
    device: torch.device | str = "cpu",
) -> Iterator[tuple[int, Formulation]]:
    """The formulation on each level, starting with the coarsest level that resolves the problem."""
    # A coarse mesh without a coarse level below it is too small to be interesting.
    least = 0 if arrays.has_coarse else min(1, arrays.finest_level)
    first = max(arrays.first_level, problem.resolved_from, least)
    for level in range(first, arrays.finest_level + 1) if levels is None else levels:
        frame = Frame.from_arrays(arrays.coarsened(level, problem.regions), dtype, device)
        yield level, make_formulation(frame, problem)


def cached_frame(
    problem: Problem, levels: int, formulation: str, first_level: int | None = None, folder: Path | None = None
) -> FrameArrays:
    """Loads the frame from the folder, which needs no DOLFINx; if it is not there, makes it and saves it there."""
    first = problem.first_level if first_level is None else first_level
    options = "".join(f"-{key}={value}" for key, value in sorted(problem.options.items()))
    path = None if folder is None else folder / f"{problem.name}{options}-{formulation}-{first}-{levels}.npz"
    if path is not None and path.exists():
        return FrameArrays.load(path)
    from fem_frames.frame.export import export_frame
    from fem_frames.mesh.hierarchy import MeshHierarchy

    arrays = export_frame(MeshHierarchy.from_problem(problem, levels), problem, formulation, first_level)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays.save(path)
    return arrays


def embedded(w: Tensor, coarse: FrameArrays, fine: FrameArrays) -> Tensor:
    """(B, Nhat) coefficients in a frame with more fine levels: w comes first in each family, then zeros."""
    other = next((f for f in coarse.fields if not f.element.nested), None)
    if other is not None and len(coarse.levels) < len(fine.levels):
        raise ValueError(f"{other.name} in {other.element.name} has no coefficients on the levels of a finer frame")
    parts = []
    for part, short, long in zip(
        w.split([sum(f.level_sizes) for f in coarse.families], dim=1), coarse.families, fine.families, strict=True
    ):
        parts.append(torch.nn.functional.pad(part, (0, sum(long.level_sizes) - sum(short.level_sizes))))
    return torch.cat(parts, dim=1)
