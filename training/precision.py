"""Precision, decided in one place: the paper's hyper-parameters for every dtype, and where weights are kept.

Pure: parameters, activations and the optimizer's state in one dtype, as in the paper. Mixed: forward and backward in
half, master weights and the optimizer in float32, the loss scaled so that small gradients do not vanish in half.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fem_frames.frame import DTYPES


@dataclass(frozen=True)
class Precision:
    """What "Hyper-parameters for training" in the paper sets for one floating point format."""

    adam_epsilon: float
    minimum_rate: float
    """Of the cosine schedule."""
    tolerance: float
    """Of L-BFGS, for gradients and for changes of the parameters."""
    natural_gradient: float
    """Tolerance of the inner conjugate gradients, and regularisation."""


PRECISIONS = {
    "float16": Precision(1e-4, 1e-4, 1e-4, 1e-9),
    "bfloat16": Precision(1e-4, 1e-4, 1e-4, 1e-9),  # not in the paper: like float16
    "float32": Precision(1e-8, 1e-6, 1e-8, 1e-12),
    "float64": Precision(1e-16, 1e-10, 1e-12, 1e-14),
}
assert set(PRECISIONS) == set(DTYPES)


class Weights:
    """The parameters that an optimizer changes: here the net's own."""

    scale: float = 1.0
    """Factor of the loss in the backward pass."""

    def __init__(self, net: nn.Module) -> None:
        self.parameters = list(net.parameters())

    def push(self) -> None:
        """To the net, before it is evaluated."""

    def pull(self, factor: float) -> None:
        """Gradients from the net, times the factor."""
        if factor != 1:
            torch._foreach_mul_([p.grad for p in self.parameters if p.grad is not None], factor)

    def succeeded(self) -> None:
        """A step had finite gradients."""

    def failed(self) -> bool:
        """A step had gradients that are not finite; whether it makes sense to go on."""
        return False

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.push()


class MasterWeights(Weights):
    """Copies in float32 of parameters in half, and a loss scale that doubles while all goes well.

    Overflow halves it, and the step is skipped.
    """

    GROWTH_INTERVAL = 500
    LARGEST, SMALLEST = 2.0**24, 2.0**-10

    def __init__(self, net: nn.Module) -> None:
        self._net = list(net.parameters())
        self.parameters = [nn.Parameter(p.detach().float()) for p in self._net]
        for p in self.parameters:
            p.grad = torch.zeros_like(p)
        self.scale, self._good = 2.0**10, 0

    def push(self) -> None:
        torch._foreach_copy_([p.data for p in self._net], [p.data for p in self.parameters])

    def pull(self, factor: float) -> None:
        mine: list[Tensor] = [p.grad for p in self.parameters if p.grad is not None]
        theirs: list[Tensor] = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self._net]
        torch._foreach_copy_(mine, theirs)
        torch._foreach_mul_(mine, factor)
        for p in self._net:
            p.grad = None

    def succeeded(self) -> None:
        self._good += 1
        if self._good % self.GROWTH_INTERVAL == 0:
            self.scale = min(2 * self.scale, self.LARGEST)

    def failed(self) -> bool:
        self.scale, self._good = self.scale / 2, 0
        return self.scale >= self.SMALLEST

    def state_dict(self) -> dict[str, Any]:
        masters = [p.detach() for p in self.parameters]
        return {"masters": masters, "scale": self.scale, "good": self._good}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for p, saved in zip(self.parameters, state["masters"], strict=True):
                p.copy_(saved)
        self.scale, self._good = float(state["scale"]), int(state["good"])
        self.push()
