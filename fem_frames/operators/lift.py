"""The lift of essential boundary data for a batch of y: nodal values, and states of cells.

B samples, n nodal values of a field, K finest cells, L local nodal values of a field, m numbers in a cell's state.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fem_frames.frame import level_matrices
from fem_frames.frame.arrays import FrameArrays, FrameField
from fem_frames.frame.boundary import POINT_RULE, Convert, FieldLift
from fem_frames.mesh.geometry import Floats
from fem_frames.messages import either
from fem_frames.operators.checking import is_plain
from fem_frames.problem.boundary import Parameter
from fem_frames.problem.definition import Problem


def depends_on_y(arrays: FrameArrays) -> bool:
    """Whether essential boundary data of the frame depend on y."""
    return any(f.shapes for f in arrays.fields)


def field_lift(arrays: FrameArrays, field: FrameField, problem: Problem, convert: Convert) -> FieldLift:
    """The lift of one field on the finest mesh."""
    shapes = [(shape.condition, shape.values[-1]) for shape in field.shapes]
    return _lift_of(arrays, field, field.lift[-1], shapes, problem, convert)


def _lift_of(
    arrays: FrameArrays,
    field: FrameField,
    lift: Floats,
    shapes: list[tuple[int, Floats]],
    problem: Problem,
    convert: Convert,
) -> FieldLift:
    simplices = arrays.simplices(len(arrays.levels) - 1, field.degree)[0]
    boundary = arrays.boundary
    rule = field.element.data_rule(POINT_RULE if boundary is None else (boundary.rule_points, boundary.rule_weights))
    return FieldLift(lift, shapes, arrays.points[simplices], rule, problem, convert)


class NodalLift:
    """Maps y (B, p) to the nodal values (B, n) of each field's lift, in one precision on one device."""

    def __init__(self, arrays: FrameArrays, problem: Problem | None, dtype: torch.dtype, device: torch.device) -> None:
        if problem is None:
            raise ValueError(
                "the boundary data depend on y, so solutions need the problem: give it, as "
                + either("--problem", "Surrogate.load(folder, problem=…)")
            )
        self._dtype = dtype
        convert = _converter(dtype, device)
        self._fields = {f.name: field_lift(arrays, f, problem, convert) for f in arrays.fields}

    def __call__(self, y: Tensor) -> dict[str, Tensor]:
        wide = y.to(self._dtype)
        return {name: lift(wide, is_plain(wide)) for name, lift in self._fields.items()}


class StateLift:
    """Maps y (B, p) to the states (B, K m) of the lift, scaled by |T|^{1/2}.

    The states of data that are constant in x come from those of their shapes in float64: differences of nodal values
    would lose digits on fine meshes. Other data are evaluated at nodes in the given precision.
    """

    def __init__(self, arrays: FrameArrays, problem: Problem, dtype: torch.dtype, device: torch.device) -> None:
        convert = _converter(dtype, device)
        self._size = level_matrices.state_size(arrays)
        self._fixed = convert(level_matrices.lift_states(arrays))  # (K m,)
        self._constant: list[tuple[Tensor, Parameter]] = []
        self._varying: list[tuple[FieldLift, Tensor, Tensor, slice]] = []
        roots = np.sqrt(arrays.volumes)
        for f, place in zip(arrays.fields, level_matrices.state_slices(arrays).values(), strict=True):
            varying = []
            for shape in f.shapes:
                given = problem.conditions[shape.condition].value.given
                if not isinstance(given, Parameter):
                    varying.append((shape.condition, shape.values[-1]))
                    continue
                states = np.zeros((len(roots), self._size))
                states[:, place] = roots[:, None] * level_matrices.cell_states(arrays, f, shape.values[-1])
                self._constant.append((convert(states.ravel()), given))
            if varying:
                lift = _lift_of(arrays, f, np.zeros_like(f.lift[-1]), varying, problem, convert)
                table = roots[:, None, None] * level_matrices.nodal_states(arrays, f, len(arrays.levels) - 1)
                places = torch.as_tensor(level_matrices.nodal_places(arrays, f), device=device)
                self._varying.append((lift, convert(table), places, place))

    def __call__(self, y: Tensor) -> Tensor:
        """(B, K m) for y in the precision of the lift."""
        found = self._fixed.expand(y.shape[0], -1)
        for states, given in self._constant:
            found = found + given(states, y)[:, None] * states
        if not self._varying:
            return found
        cells = found.unflatten(1, (-1, self._size))  # (B, K, m)
        parts, start = [], 0
        for part, place in self._states(y):
            parts += [cells[..., start : place.start], cells[..., place] + part]
            start = place.stop
        return torch.cat([*parts, cells[..., start:]], dim=2).flatten(1)

    def _states(self, y: Tensor) -> Iterator[tuple[Tensor, slice]]:
        for lift, table, places, place in self._varying:
            local = lift(y, is_plain(y))[:, places]  # (B, K, L)
            yield torch.einsum("bkl,klc->bkc", local, table), place


def _converter(dtype: torch.dtype, device: torch.device) -> Convert:
    return lambda array: torch.as_tensor(np.array(array)).to(device, dtype)
