"""Frames whose functions are normalised in the energy of the nominal parameters instead of H1 and H(div).

Norms that do not see the equation are far from the energy where a reaction is strong, or where a_y differs much between
regions; the frame is then ill conditioned. The energy of one y is near that of all others.

K finest cells, n nodal values of a field on a level, L local nodal values of all fields, d dimension.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy import sparse

from fem_frames.formulations.registry import make_formulation
from fem_frames.frame.arrays import FrameArrays, FrameField
from fem_frames.frame.coarse_space import size_limit
from fem_frames.frame.families import FieldLevel, FrameFamily
from fem_frames.frame.level_matrices import nodal_places
from fem_frames.frame.matrices import nodal_prolongation
from fem_frames.frame.sparse import SparseMatrix
from fem_frames.mesh.simplices import SimplexMesh
from fem_frames.operators.frame import Frame
from fem_frames.problem.definition import Problem


def in_nominal_energy(arrays: FrameArrays, problem: Problem, coarse: str) -> FrameArrays:
    """The frame with functions of energy one for the nominal y, and a coarse level that is found from this energy.

    `arrays` has no coarse level. Fields are treated one by one: the energy of a function is that of its field alone.
    """
    formulation = make_formulation(Frame.from_arrays(arrays, torch.float64), problem)
    y = torch.as_tensor(problem.parameters.nominal)
    local = formulation.energy_matrices(y)[..., 0].numpy()  # (K, L, L)
    families = {family.name: family for family in arrays.families}
    start = 0
    for field in arrays.fields:
        width = nodal_places(arrays, field).shape[1]
        own = local[:, start : start + width, start : start + width]
        for family in _normalised(arrays, field, own, coarse):
            families[family.name] = family
        start += width
    return replace(arrays, families=tuple(families.values()))


def _normalised(arrays: FrameArrays, field: FrameField, local: Any, coarse: str) -> list[FrameFamily]:
    """The families of a field from local matrices (K, L, L) of its energy."""
    places, count = nodal_places(arrays, field), len(field.lift[-1])
    rows, columns = (np.broadcast_to(a, local.shape).ravel() for a in (places[:, :, None], places[:, None]))
    energy = sparse.csr_array((local.ravel(), (rows, columns)), shape=(count, count))
    families = [family for family in arrays.families if family.field == field.name]
    functions: list[list[SparseMatrix]] = [[] for _ in families]
    for index in reversed(range(len(arrays.levels))):
        for found, family in zip(functions, families, strict=True):
            found.insert(0, _scaled(family.functions[index], energy))
        if index:
            P = nodal_prolongation(arrays, field, index)
            energy = sparse.csr_array(P.T @ energy @ P)
    made = [replace(f, functions=tuple(found)) for f, found in zip(families, functions, strict=True)]
    fixed = np.ones(len(field.lift[0]), bool)
    fixed[field.free[0]] = False
    mesh = SimplexMesh(arrays.points[: arrays.point_count(0)], arrays.levels[0].cells)
    level = FieldLevel(mesh, fixed, arrays.length)
    if field.element.norm_matrix(level) is None:  # elements of users need not have a coarse level
        return made
    limit = size_limit(coarse, [family.functions[0] for family in made], energy, level.free)
    if limit is not None:
        made[0] = made[0].with_coarse(field.element.coarse_functions(level, limit, energy))
    return made


def _scaled(functions: SparseMatrix, energy: Any) -> SparseMatrix:
    """The functions divided by the roots of their energies; functions without energy keep their norms."""
    F = functions.to_scipy()
    squares = np.asarray(F.multiply(F @ energy).sum(axis=1)).ravel()
    safe = squares > 1e-14 * squares.max(initial=0.0)
    scale = 1 / np.sqrt(np.where(safe, squares, 1.0))
    weights = functions.weights * np.repeat(scale, np.diff(functions.starts))
    return replace(functions, weights=weights)
