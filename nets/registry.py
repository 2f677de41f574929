"""The nets by name."""

from __future__ import annotations

from typing import Any

from nets.coefficient_net import CoefficientNet, Sizes
from nets.full import FullResNet
from nets.separate import SeparateResNets
from nets.separate_frame import SeparateFrameNets

NETS: dict[str, type[CoefficientNet]] = {net.name: net for net in (FullResNet, SeparateResNets, SeparateFrameNets)}


def make_net(name: str, parameters: int, level_sizes: Sizes, *, seed: int = 0, **options: Any) -> CoefficientNet:
    """The net of this name with random weights; options as those of `CoefficientNet`."""
    if name not in NETS:
        raise ValueError(f"net is {name!r}; choose from {', '.join(NETS)}")
    net = NETS[name](parameters, level_sizes, **options)
    net.initialise(seed)
    return net
