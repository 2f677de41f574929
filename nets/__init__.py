"""Nets from parameters y to frame coefficients, as in "Network structures" of the paper. They need torch only."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Found when first used: the names of nets can be listed without torch.
_HOMES = {
    "NETS": "registry",
    "CoefficientNet": "coefficient_net",
    "FullResNet": "full",
    "SeparateFrameNets": "separate_frame",
    "SeparateResNets": "separate",
    "make_net": "registry",
}
__all__ = ["NETS", "CoefficientNet", "FullResNet", "SeparateFrameNets", "SeparateResNets", "make_net"]

if TYPE_CHECKING:
    from nets.coefficient_net import CoefficientNet
    from nets.full import FullResNet
    from nets.registry import NETS, make_net
    from nets.separate import SeparateResNets
    from nets.separate_frame import SeparateFrameNets
else:  # type checkers would take it to mean that there is every name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module nets has no attribute {name!r}")
        return getattr(importlib.import_module(f"nets.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
