"""Condition numbers on all levels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import torch

from fem_frames.frame.arrays import FrameArrays
from fem_frames.mesh.geometry import Floats
from fem_frames.problem.definition import Problem
from fem_frames.solvers.spectra import condition_numbers
from fem_frames.studies.levels import Row, formulations


def condition_rows(
    arrays: FrameArrays, problem: Problem, y: Floats, tol: float = 1e-3, device: torch.device | str = "cpu"
) -> Iterator[Row]:
    """Condition numbers on each level, the largest over the samples y (B, p)."""
    for level, formulation in formulations(arrays, problem, device=device):
        samples = torch.as_tensor(y).to(formulation.frame.device)
        found = [asdict(condition_numbers(formulation, sample, tol)) for sample in samples]
        worst = {name: max(f[name] for f in found) for name in found[0] if found[0][name] is not None}
        sizes = {"nodal_size": formulation.frame.arrays.nodal_size, "frame_size": formulation.frame.frame_size}
        yield {"level": level, **sizes, **worst}
