"""Answers of a surrogate other than nodal values: a summary in words, values at points, fluxes on cells.

B samples, N points of the mesh, n query points, K finest cells, d dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fem_frames.frame.arrays import FrameArrays
from fem_frames.frame.level_matrices import bubbles_of, flux_field, nodal_places, nodal_states
from fem_frames.mesh.geometry import Floats
from fem_frames.mesh.location import locate
from fem_frames.problem.definition import Problem
from fem_frames.problem.parameters import Uniform

if TYPE_CHECKING:
    from training.surrogate import Surrogate


def summary(surrogate: Surrogate, problem: Problem | None) -> str:
    """Describes problem, frame, parameters, net and test error in a few lines."""
    arrays, net = surrogate.arrays, surrogate.description
    levels = arrays.level_text
    domain = f"p = {net.parameters}"
    if problem is not None:
        domain = f"{problem.parameters}"
    elif net.box is not None:
        domain = f"{Uniform(*net.box)}"
    size = sum(weights.numel() for weights in surrogate.net.parameters())
    lines = [
        f"Surrogate of {arrays.record.get('problem')} ({arrays.formulation}, {arrays.dimension}D, {levels})",
        f"y in {domain}" if domain[0] != "p" else f"y with {domain}",
        f"net {net.name} of {size} parameters in {net.precision}, Nhat = {arrays.frame_size}",
    ]
    result = surrogate.record.get("result")
    test = result.get("test") if isinstance(result, dict) else None
    mre = test.get("mre") if isinstance(test, dict) else None
    if isinstance(mre, float):
        lines.append(f"mean relative error {mre:.2e} on its test set")
    return "\n  ".join(lines)


def values_at(arrays: FrameArrays, fields: Mapping[str, Tensor], points: npt.ArrayLike) -> dict[str, Tensor]:
    """Values of each field at points (n, d) from nodal values: (B, n) for P1 and P2, (B, n, d) for RT0."""
    cell, hats = locate(points, arrays.points, arrays.levels, nested=not arrays.curved)
    x = np.einsum("nl,nld->nd", hats, arrays.points[arrays.levels[-1].cells[cell]])
    completes = {bubbles.name: f.name for f in arrays.fields if (bubbles := bubbles_of(arrays, f)) is not None}
    found: dict[str, Tensor] = {}
    for f in arrays.fields:
        values = fields[f.name]
        local = values[:, torch.as_tensor(nodal_places(arrays, f)[cell], device=values.device)]  # (B, n, L)
        if f.degree == 0:
            found[f.name] = (local * torch.as_tensor(hats).to(values)).sum(-1)
            continue
        states = nodal_states(arrays, f, len(arrays.levels) - 1)[cell]  # (n, L, c)
        states = f.element.shift(states, (x - arrays.centres[cell])[:, None])
        if f.name in completes:
            found[completes[f.name]] += torch.einsum("bnl,nl->bn", local, torch.as_tensor(states[..., 0]).to(values))
            continue
        basis = f.element.cell_values(states)  # (n, L, d)
        found[f.name] = torch.einsum("bnl,nld->bnd", local, torch.as_tensor(basis).to(values))
    return found


def has_flux(arrays: FrameArrays) -> bool:
    """Whether the flux is a field of the frame."""
    return flux_field(arrays) is not None


def as_arrays(fields: Mapping[str, Tensor]) -> dict[str, Floats]:
    """The fields in NumPy and float64."""
    return {name: value.double().cpu().numpy() for name, value in fields.items()}
