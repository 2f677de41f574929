"""Nets from parameters y to frame coefficients, as in "Network structures" of the paper. They need torch only."""

from nets.resnets import NETS, CoefficientNet, FullResNet, SeparateFrameNets, SeparateResNets, make_net

__all__ = ["NETS", "CoefficientNet", "FullResNet", "SeparateFrameNets", "SeparateResNets", "make_net"]
