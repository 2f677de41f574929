"""Frame: the torch operators of one multilevel frame, rounded once to a dtype and moved once to a device."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fem_frames.frame import level_matrices
from fem_frames.frame.arrays import FrameArrays
from fem_frames.operators.differentials import GatherDifferential, SparseDifferential
from fem_frames.operators.linear import ExplicitOperator
from fem_frames.operators.recursion import FrameDifferential, FrameSynthesis, Prolongation, SparseOperator
from fem_frames.problem.definition import whole_number

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


def _recursive(arrays: FrameArrays, dtype: torch.dtype, device: torch.device) -> FrameDifferential:
    return FrameDifferential(level_matrices.differential_matrices(arrays), _sizes(arrays), dtype, device)


REALISATIONS: dict[str, Callable[..., ExplicitOperator]] = {
    "recursive": _recursive,
    "gather": GatherDifferential,
    "sparse": SparseDifferential,
}


@dataclass(frozen=True, eq=False)
class Frame:
    """P_j, H and D of one frame. See docs/formulations.md."""

    arrays: FrameArrays
    dtype: torch.dtype
    device: torch.device
    H: FrameSynthesis
    """Frame coefficients (Nhat) to nodal values (N)."""
    D: ExplicitOperator
    """Frame coefficients (Nhat) to the state of every finest cell (K m)."""

    @classmethod
    def from_arrays(
        cls,
        arrays: FrameArrays,
        dtype: torch.dtype | str = torch.float32,
        device: torch.device | str = "cpu",
        differential: str = "recursive",
        **options: Any,
    ) -> Frame:
        """The frame in float16, bfloat16, float32 or float64.

        `differential` chooses the realisation of D: "recursive", "gather" (options `accumulate`) or "sparse" (options
        `layout`, `accumulate`). All give the same numbers up to rounding.
        """
        if not isinstance(arrays, FrameArrays):
            raise ValueError(f"FrameArrays are expected, not {type(arrays).__name__}; FrameArrays.load reads a file")
        dtype, device = check_dtype(dtype), check_device(device)
        _check_range(arrays, dtype)
        H = make_synthesis(arrays, dtype, device)
        return cls(arrays, dtype, device, H, make_differential(arrays, dtype, device, differential, **options))

    def with_differential(self, name: str, **options: Any) -> Frame:
        """The same frame with another realisation of D."""
        return replace(self, D=make_differential(self.arrays, self.dtype, self.device, name, **options))

    def to(self, dtype: torch.dtype | str | None = None, device: torch.device | str | None = None) -> Frame:
        """The frame with recursive D in another precision or on another device, made from the float64 arrays."""
        return Frame.from_arrays(self.arrays, self.dtype if dtype is None else dtype, device or self.device)

    def __repr__(self) -> str:
        return f"Frame({self.arrays!r}, {self.dtype}, {self.device}, {type(self.D).__name__})"

    @property
    def level_sizes(self) -> dict[str, tuple[int, ...]]:
        """The number of frame coefficients of each family on every level, from coarse to fine."""
        return self.arrays.level_sizes

    @property
    def frame_size(self) -> int:
        """Nhat, the length of the vector of frame coefficients, ordered by family, then by level."""
        return self.arrays.frame_size

    def P(self, level: int, family: str = "u") -> Prolongation:
        """P_j for j = `level`; for u it maps nodal values at free points of level j-1 to level j.

        From the coarse level, which has no mesh, it maps coefficients to nodal values of the first mesh.
        """
        level = whole_number(level, "level", least=None)
        first, last = self.arrays.lowest_level + 1, self.arrays.finest_level
        if not first <= level <= last:
            raise ValueError(f"there is no prolongation to level {level}; the frame has those to {first}, …, {last}")
        found = next((f for f in self.arrays.families if f.name == family), None)
        if found is None:
            raise ValueError(f"there is no family {family!r}; the frame has {', '.join(self.level_sizes)}")
        rows = level_matrices.prolongation_matrix(self.arrays, found, level - self.arrays.first_level)
        return Prolongation(rows, self.dtype, self.device)

    def localisation(self) -> SparseOperator:
        """E: nodal values to their copies on every finest cell; its transpose sums the contributions of cells."""
        return SparseOperator(level_matrices.localisation_matrix(self.arrays), self.dtype, self.device)


def make_synthesis(arrays: FrameArrays, dtype: torch.dtype, device: torch.device) -> FrameSynthesis:
    return FrameSynthesis(level_matrices.synthesis_matrices(arrays), _sizes(arrays), dtype, device)


def make_differential(
    arrays: FrameArrays, dtype: torch.dtype, device: torch.device, name: str, **options: Any
) -> ExplicitOperator:
    if name not in REALISATIONS:
        raise ValueError(f"differential is {name!r}; choose from {', '.join(REALISATIONS)}")
    unknown = sorted(set(options) - set(inspect.signature(REALISATIONS[name]).parameters))
    if unknown:
        raise ValueError(f"the differential {name} has no option {unknown[0]!r}")
    if options.get("accumulate") is not None:
        options["accumulate"] = check_dtype(options["accumulate"])
    return REALISATIONS[name](arrays, dtype, device, **options)


def check_dtype(dtype: torch.dtype | str) -> torch.dtype:
    found = DTYPES.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise ValueError(f"dtype is {dtype!r}; choose from {', '.join(DTYPES)}")
    return found


def check_device(device: torch.device | str) -> torch.device:
    """The device with its index, if it has one, so that it equals the device of tensors on it."""
    try:
        found = torch.ones(1, device=device)
        found.sum().item()
        return found.device
    except (RuntimeError, AssertionError, ValueError, NotImplementedError) as error:
        raise ValueError(f"device {device!r} cannot be used: {str(error).splitlines()[0]}; try 'cpu'") from error


def _check_range(arrays: FrameArrays, dtype: torch.dtype) -> None:
    """Raises a ValueError if normalised functions overflow: on large domains they may exceed half precision."""
    rows = [functions.weights for family in arrays.families for functions in family.functions]
    largest = max((float(np.abs(weights).max()) for weights in rows if len(weights)), default=0.0)
    if largest > torch.finfo(dtype).max:
        raise ValueError(f"normalised hats of size {largest:.2g} are too large for {dtype}: use float32 or bfloat16")


def _sizes(arrays: FrameArrays) -> list[tuple[int, ...]]:
    return [family.level_sizes for family in arrays.families]
