"""OwnNet makes a net from a user's module."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fem_frames.problem.callbacks import called
from nets.frame_net import FrameNet, Sizes


class OwnNet(FrameNet):
    """Maps y (B, p) to frame coefficients (B, Nhat) by any module that maps x (B, p) to (B, Nhat).

    x is y mapped to [-1, 1]^p by the box, or y itself without a box, in the precision of the net. The module's answers
    are scaled by levels like those of other nets.
    """

    def __init__(self, module: nn.Module, parameters: int, level_sizes: Sizes, **options: Any) -> None:
        super().__init__(parameters, level_sizes, **options)
        self.module = module

    @property
    def module_name(self) -> str:
        return own_name(self.module)

    def coefficients(self, x: Tensor) -> Tensor:
        found = called(f"your net {self.module_name}", None, "", self.module, x.T)
        shape = (x.shape[1], len(self.decay))
        if not isinstance(found, Tensor) or found.shape != shape:
            came = f"the shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
            raise ValueError(
                f"your net {self.module_name} gives {came} for y of shape {tuple(x.T.shape)}; a tensor of shape "
                f"{shape} is expected, as there are Nhat = {shape[1]} coefficients"
            )
        return found.to(self.decay.dtype).T


def own_name(thing: Any) -> str:
    """The name of a class or function, or of an object's class, without enclosing functions."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return str(named.__qualname__).rpartition("<locals>.")[2]
