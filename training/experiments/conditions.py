"""Condition numbers of the frame under other scalings of its functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from fem_frames.formulations.registry import make_formulation
from fem_frames.frame.arrays import FrameArrays
from fem_frames.operators.frame import Frame
from fem_frames.problem.loading import recorded_problem
from training.experiments.initialisation import frame_of_cells
from training.experiments.scaling_tables import DECAY


def conditions_of(report: Mapping[str, Any], experiment: Path) -> dict[str, float] | None:
    """Condition numbers by the decay s of the report's table of decays; None without that table or any run."""
    rows = [row for table in report["tables"] if table["name"] == DECAY for row in table["rows"]]
    arrays = frame_of_cells(experiment) if rows else None
    return None if arrays is None else conditions_by_decay(arrays, sorted({float(row["labels"][-1]) for row in rows}))


def conditions_by_decay(arrays: FrameArrays, decays: Iterable[float]) -> dict[str, float]:
    """cond SHᵀA_yHS without its kernel, for S = diag(2^(-s j)) by s and nominal y.

    Its nonzero eigenvalues are those of LᵀHS²HᵀL with A_y = LLᵀ, which has no kernel. Dense matrices.
    """
    problem = recorded_problem(arrays.record)
    formulation = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    y = torch.as_tensor(problem.parameters.nominal)
    A = formulation.A(y)
    factor = torch.linalg.cholesky(A(torch.eye(arrays.nodal_size, dtype=torch.float64)))
    synthesis = factor.T @ formulation.frame.H.to_dense()  # (N, Nhat)
    depths = torch.cat(
        [
            torch.full((size,), float(depth))
            for sizes in arrays.level_sizes.values()
            for depth, size in zip(arrays.level_depths, sizes, strict=True)
        ]
    )
    found = {}
    for decay in decays:
        scaled = synthesis * 2.0 ** (-decay * depths)
        values = torch.linalg.eigvalsh(scaled @ scaled.T)
        found[f"{decay:g}"] = float(values[-1] / values[0])
    return found
