"""Nets from parameters y to frame coefficients, as in "Network structures" of the paper. They need torch only."""

from nets.coefficient_net import CoefficientNet
from nets.full import FullResNet
from nets.registry import NETS, make_net
from nets.separate import SeparateResNets
from nets.separate_frame import SeparateFrameNets

__all__ = ["NETS", "CoefficientNet", "FullResNet", "SeparateFrameNets", "SeparateResNets", "make_net"]
