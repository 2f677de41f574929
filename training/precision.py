"""Precision, decided in one place: the paper's hyper-parameters for each dtype, and where the weights are stored.

Pure: parameters, activations and the optimizer's state have one dtype, as in the paper. Mixed: forward and backward
run in half precision, master weights and the optimizer in float32, and the loss is scaled so that small gradients do
not vanish.

P parameters of a net.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fem_frames.operators.frame import DTYPES


@dataclass(frozen=True)
class Precision:
    """The settings of "Hyper-parameters for training" in the paper for one floating point format."""

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
    """All parameters of a net as one vector for the optimizer; here it shares the net's memory."""

    scale: float = 1.0
    """Factor of the loss in the backward pass."""
    scales: bool = False
    """Whether it adapts this factor itself."""

    def __init__(self, net: nn.Module) -> None:
        self._net = [p for p in net.parameters() if p.requires_grad]  # those that are frozen stay as they are
        self._own = torch.cat([p.detach().reshape(-1) for p in self._net])
        for p, piece in zip(self._net, self._split(self._own), strict=True):
            p.data = piece
        self.vector = nn.Parameter(self.kept(self._own))
        self.vector.grad = torch.zeros_like(self.vector)
        self._gradients = self._split(self.vector.grad)

    def kept(self, own: Tensor) -> Tensor:
        """(P,) the numbers that the optimizer changes, from those of the net."""
        return own

    @property
    def shapes(self) -> list[torch.Size]:
        """The shapes of the parameters in the vector, in its order."""
        return [p.shape for p in self._net]

    def pieces(self) -> list[nn.Parameter]:
        """The vector in the shapes of the net's parameters, with gradients; all share its memory."""
        made = [nn.Parameter(piece) for piece in self._split(self.vector.detach())]
        for p, gradient in zip(made, self._gradients, strict=True):
            p.grad = gradient
        return made

    def push(self) -> None:
        """Copies the vector to the net before an evaluation."""

    def pull(self, factor: float) -> None:
        """Copies gradients from the net, times the factor; unused parameters have zero gradients."""
        assert self.vector.grad is not None
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._net]
        torch._foreach_copy_(self._gradients, found)
        if factor != 1:
            self.vector.grad.mul_(factor)
        for p in self._net:
            p.grad = None

    def succeeded(self) -> None:
        """Records a step with finite gradients."""

    def failed(self) -> bool:
        """Records a step whose gradients are not finite; returns whether training can go on."""
        return False

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads the result of `state_dict`, after the net has been loaded."""

    def _split(self, vector: Tensor) -> list[Tensor]:
        pieces = vector.split([p.numel() for p in self._net])
        return [piece.view(p.shape) for p, piece in zip(self._net, pieces, strict=True)]


class MasterWeights(Weights):
    """A float32 copy of half-precision parameters, with a loss scale that doubles after many good steps.

    An overflow halves the scale, and the step is skipped.
    """

    scales = True
    FIRST = 2.0**10
    GROWTH_INTERVAL = 500
    LARGEST, SMALLEST = 2.0**24, 2.0**-10

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.scale, self._good = self.FIRST, 0

    def kept(self, own: Tensor) -> Tensor:
        return own.float()

    def push(self) -> None:
        self._own.copy_(self.vector.detach())

    def succeeded(self) -> None:
        self._good += 1
        if self._good % self.GROWTH_INTERVAL == 0:
            self.scale = min(2 * self.scale, self.LARGEST)

    def failed(self) -> bool:
        self.scale, self._good = self.scale / 2, 0
        return self.scale >= self.SMALLEST

    def state_dict(self) -> dict[str, Any]:
        return {"master": self.vector.detach(), "scale": self.scale, "good": self._good}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            self.vector.copy_(state["master"])
        self.scale, self._good = float(state["scale"]), int(state["good"])
        self.push()
