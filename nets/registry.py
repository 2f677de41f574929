"""The nets by name. The command line can list their names without importing torch."""

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
    """The net with this name and random weights; options are those of `CoefficientNet`. See docs/training.md."""
    net = NETS.find(name)(parameters, level_sizes, **options)
    net.initialise(seed)
    return net
