"""The nets by name. Their names are known without torch, so that the command line can list them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fem_frames.registry import Registry

if TYPE_CHECKING:
    from nets.coefficient_net import CoefficientNet, Sizes

NETS: Registry[type[CoefficientNet]] = Registry(
    "net",
    {
        "full": "nets.full.FullResNet",
        "separate": "nets.separate.SeparateResNets",
        "separate-frame": "nets.separate_frame.SeparateFrameNets",
    },
)


def make_net(name: str, parameters: int, level_sizes: Sizes, *, seed: int = 0, **options: Any) -> CoefficientNet:
    """The net of this name with random weights; options as those of `CoefficientNet`. See docs/training.md."""
    net = NETS.find(name)(parameters, level_sizes, **options)
    net.initialise(seed)
    return net
