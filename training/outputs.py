"""Derivatives in y of a surrogate's answers and outputs, through the net and through a_y and boundary data.

B samples, s outputs, p parameters, Nhat frame coefficients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fem_frames.outputs import Output, OutputMap
from fem_frames.solvers.differentiable import differentiable_solve, tangent_solve
from nets.multigrid import MultigridNet

if TYPE_CHECKING:
    from training.surrogate import Surrogate

Outputs = Output | Sequence[Output] | OutputMap
TOL = 1e-9  # relative residual of adjoint and tangent solves


def differentiable_output(surrogate: Surrogate, y: Tensor, outputs: Outputs) -> Tensor:
    """(B, s) outputs for y (B, p) or (p,), with gradients in y. Unlike other queries this records operations."""
    if not isinstance(y, Tensor):
        raise ValueError(f"y is a {type(y).__name__}; gradients need a tensor: torch.tensor(y, requires_grad=True)")
    formulation = surrogate.formulation
    made = outputs.on(formulation) if isinstance(outputs, OutputMap) else OutputMap(formulation, outputs)
    samples = y if y.ndim == 2 else y[None]
    w = differentiable_coefficients(surrogate, samples)
    return made.values(w, samples.to(formulation.frame.device, torch.float64))


def output_tangent(surrogate: Surrogate, y: Tensor, v: Tensor, outputs: Outputs) -> Tensor:
    """(B, s) derivatives of the outputs for y (B, p) in directions v (B, p)."""
    formulation = surrogate.formulation
    made = outputs.on(formulation) if isinstance(outputs, OutputMap) else OutputMap(formulation, outputs)
    w, dw = coefficient_tangent(surrogate, y, v)
    y, v = (x.to(formulation.frame.device, torch.float64).contiguous() for x in (y, v))
    found: Tensor = torch.func.jvp(made.values, (w, y), (dw, v))[1]
    return found


def as_directions(v: npt.ArrayLike | Tensor, y: Tensor) -> Tensor:
    """(B, p) directions for y (B, p), or a ValueError that says what is wrong with them."""
    given = torch.as_tensor(v).to(y)
    given = given if given.ndim == 2 else given[None]
    if given.shape != y.shape or not bool(torch.isfinite(given).all()):
        raise ValueError(
            f"directions v have shape {tuple(np.shape(v))}; finite numbers of shape {tuple(y.shape)}, one direction "
            "per sample of y, are expected"
        )
    return given


def differentiable_coefficients(surrogate: Surrogate, y: Tensor) -> Tensor:
    """(B, Nhat) frame coefficients in float64 for y (B, p), with gradients in y."""
    if isinstance(surrogate.net, MultigridNet):  # a solver: the gradient of the solution, by one adjoint solve
        exact = y.to(surrogate.formulation.frame.device, torch.float64)
        return differentiable_solve(surrogate.formulation, exact, TOL, surrogate.coefficients(y))
    return _through_net(surrogate, y)


@torch.no_grad()
def coefficient_tangent(surrogate: Surrogate, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(B, Nhat) twice, in float64: frame coefficients for y (B, p), and their derivatives in directions v (B, p)."""
    if isinstance(surrogate.net, MultigridNet):  # the derivative of the solution, by one tangent solve
        device = surrogate.formulation.frame.device
        exact, direction = (x.to(device, torch.float64) for x in (y, v))
        return tangent_solve(surrogate.formulation, exact, direction, TOL, surrogate.coefficients(y))
    found: Any = torch.func.jvp(lambda at: _through_net(surrogate, at), (y.contiguous(),), (v.contiguous(),))
    return found[0], found[1]


def _through_net(surrogate: Surrogate, y: Tensor) -> Tensor:
    narrow = torch.float32 if surrogate.device.type == "mps" else torch.float64  # mps has no float64
    raw = surrogate.net(y.to(surrogate.device, narrow)).to(surrogate.formulation.frame.device, torch.float64)
    return surrogate.formulation.coordinates.coefficients(raw) if surrogate.description.nodal else raw
