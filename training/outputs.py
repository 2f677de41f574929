"""Outputs of a surrogate that are differentiable in y, through the net and through a_y and boundary data.

B samples, s outputs, p parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fem_frames.outputs import Output, OutputMap
from fem_frames.solvers.differentiable import differentiable_solve
from nets.multigrid import MultigridNet

if TYPE_CHECKING:
    from training.surrogate import Surrogate

Outputs = Output | Sequence[Output] | OutputMap


def differentiable_output(surrogate: Surrogate, y: Tensor, outputs: Outputs) -> Tensor:
    """(B, s) outputs for y (B, p) or (p,), with gradients in y. Unlike other queries this records operations."""
    if not isinstance(y, Tensor):
        raise ValueError(f"y is a {type(y).__name__}; gradients need a tensor: torch.tensor(y, requires_grad=True)")
    formulation = surrogate.formulation
    made = outputs.on(formulation) if isinstance(outputs, OutputMap) else OutputMap(formulation, outputs)
    samples = y if y.ndim == 2 else y[None]
    if isinstance(surrogate.net, MultigridNet):  # a solver: the gradient of the solution, by one adjoint solve
        exact = samples.to(formulation.frame.device, torch.float64)
        w = differentiable_solve(formulation, exact, 1e-9, surrogate.coefficients(samples))
        return made.values(w, exact)
    narrow = torch.float32 if surrogate.device.type == "mps" else torch.float64  # mps has no float64
    raw = surrogate.net(samples.to(surrogate.device, narrow)).to(formulation.frame.device, torch.float64)
    w = formulation.coordinates.coefficients(raw) if surrogate.description.nodal else raw
    return made.values(w, samples.to(formulation.frame.device, torch.float64))
