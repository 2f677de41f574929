"""One solution in three coordinates: free nodal values, fields, and frame coefficients.

B samples, N free nodal values of all fields, Nhat frame coefficients.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fem_frames.frame.arrays import FrameArrays
from fem_frames.mesh.geometry import Floats
from fem_frames.operators.lift import NodalLift, depends_on_y
from fem_frames.operators.products import accumulation_dtype
from fem_frames.problem.definition import Problem


class Coordinates:
    """Converts between free nodal values (B, N), the nodal values of each field, and frame coefficients (B, Nhat).

    If essential boundary data depend on y, so does the lift between free nodal values and fields: then it needs the
    problem, and `fields` and `free` need y.
    """

    def __init__(self, arrays: FrameArrays, problem: Problem | None = None) -> None:
        self._arrays, self._problem = arrays, problem
        self.need_y = depends_on_y(arrays)
        self._places: dict[tuple[torch.device, torch.dtype], list[tuple[str, Tensor, Tensor]]] = {}
        self._nodal: dict[tuple[torch.dtype, torch.device], NodalLift] = {}

    def fields(self, free: Tensor, y: Tensor | None = None) -> dict[str, Tensor]:
        """All nodal values of each field, given ones included, from the free ones."""
        if free.shape[-1] != self._arrays.nodal_size:
            raise ValueError(
                f"a solution has N = {self._arrays.nodal_size} free nodal values, but {free.shape[-1]} were given; "
                "frame coefficients, such as the w of `solve`, go to `synthesise`"
            )
        if self.need_y:
            return self._lifted_fields(free, y)
        found, start = {}, 0
        for name, places, lift in self._like(free):
            part = free[..., start : start + len(places)]
            found[name] = lift.expand(*free.shape[:-1], -1).index_copy(-1, places, part + lift[places])
            start += len(places)
        return found

    def _lifted_fields(self, free: Tensor, y: Tensor | None) -> dict[str, Tensor]:
        """The same for a lift that depends on y (B, p)."""
        if free.ndim == 1:
            return {name: values[0] for name, values in self._lifted_fields(free[None], y).items()}
        lifts, found, start = self._lifts(y, len(free), accumulation_dtype(free.dtype), free.device), {}, 0
        for name, places, _ in self._like(free):
            lift = lifts[name].expand(len(free), -1)
            part = free[..., start : start + len(places)].to(lift.dtype) + lift[:, places]
            found[name] = lift.index_copy(-1, places, part).to(free.dtype)
            start += len(places)
        return found

    def _lifts(self, y: Tensor | None, samples: int, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
        """(B, n) the nodal values of each field's lift, which depends on y."""
        if y is None:
            raise ValueError("the boundary data depend on y: pass the parameters of the solutions, y (B, p)")
        y = y if y.ndim == 2 else y[None]
        if len(y) not in (1, samples):
            raise ValueError(f"there are {len(y)} samples y for {samples} solutions: pass one y per solution")
        if (dtype, device) not in self._nodal:
            self._nodal[dtype, device] = NodalLift(self._arrays, self._problem, dtype, device)
        return self._nodal[dtype, device](y.to(device))

    def free(
        self, fields: Mapping[str, Floats], device: torch.device | str = "cpu", y: npt.ArrayLike | None = None
    ) -> Tensor:
        """(B, N) the free nodal values of all fields minus the lift, in float64; y (B, p) if the lift depends on it."""
        parts = []
        lifts = {f.name: f.lift[-1] for f in self._arrays.fields}
        if self.need_y:
            count, cpu = len(next(iter(fields.values()), ())), torch.device("cpu")
            given = None if y is None else torch.as_tensor(np.array(y, np.float64))
            lifts = {k: lift.numpy() for k, lift in self._lifts(given, count, torch.float64, cpu).items()}
        for f in self._arrays.fields:
            values = fields.get(f.name, np.empty((0, 0)))
            if values.shape[1] != len(f.lift[-1]):
                raise ValueError(
                    f"the reference solutions have {values.shape[1]} nodal values of {f.name}, "
                    f"but the frame has {len(f.lift[-1])}: solve them again for this problem and level"
                )
            parts.append((values - lifts[f.name])[:, f.free[-1]])
        return torch.as_tensor(np.concatenate(parts, axis=1)).to(device)

    def coefficients(self, free: Tensor) -> Tensor:
        """(B, Nhat) frame coefficients of free nodal values: only the finest nodal functions have nonzero ones."""
        pieces, start = [], 0
        for family in self._arrays.families:
            if family.name != family.field:  # such as curls
                pieces.append(free.new_zeros(len(free), sum(family.level_sizes)))
                continue
            scale = family.scale[-1]
            size = len(scale)
            own = free[:, start : start + size] / torch.as_tensor(np.array(scale)).to(free)
            pieces += [free.new_zeros(len(free), sum(family.level_sizes) - size), own]
            start += size
        return torch.cat(pieces, dim=1)

    def on_nodes(self, b: Tensor) -> Tensor:
        """(B, N) a functional on the nodal basis from its values (B, Nhat) on the frame: the transpose of the above."""
        pieces, start = [], 0
        for family in self._arrays.families:
            start += sum(family.level_sizes)
            if family.name == family.field:
                scale = family.scale[-1]
                pieces.append(b[:, start - len(scale) : start] / torch.as_tensor(np.array(scale)).to(b))
        return torch.cat(pieces, dim=1)

    def _like(self, free: Tensor) -> list[tuple[str, Tensor, Tensor]]:
        """The name, free places and lift of each field, copied once to the device and dtype of the values."""
        key = (free.device, free.dtype)
        if key not in self._places:
            self._places[key] = [
                (
                    f.name,
                    torch.as_tensor(np.array(f.free[-1]), device=free.device),
                    torch.as_tensor(np.array(f.lift[-1])).to(free),
                )
                for f in self._arrays.fields
            ]
        return self._places[key]
