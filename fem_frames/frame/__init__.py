"""The multilevel frame in NumPy: elements, export, `FrameArrays` and its matrices. Imports no torch."""

from fem_frames.frame.arrays import FrameArrays
from fem_frames.frame.elements import P1, RT0, Element, P1Values
from fem_frames.frame.fields import Field

__all__ = ["P1", "RT0", "Element", "Field", "FrameArrays", "P1Values"]
