"""Energies that some motion of their fields leaves unchanged, which boundary values do not prevent: they are refused.

C v = 0 on every cell for the states v of the motion, with the second derivative C of the energy. C is evaluated for
several y, and for nonlinear energies at several states: u⁴ has no second derivative at u = 0, and yet holds u.

K finest cells, m numbers in a cell's state, r motions, d dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fem_frames.formulations.registry import formulation_for
from fem_frames.formulations.state_integrals import StateIntegral
from fem_frames.frame.arrays import FrameArrays
from fem_frames.frame.discretisation import Discretisation
from fem_frames.frame.elements import P1, P1Values
from fem_frames.frame.level_matrices import state_size, state_slices
from fem_frames.frame.motions import Motions, motions_left_free
from fem_frames.mesh.geometry import Floats
from fem_frames.problem.definition import Problem

SAMPLES = 2  # random y beside the nominal one
SIZE = 0.1  # of random states
UNSEEN = 1e-11  # of what the energy of a cell sees of other states


def check_motions(arrays: FrameArrays, problem: Problem) -> None:
    """Raises a ValueError that names the motions which change neither given values nor the energy of an equation."""
    kind = formulation_for(arrays.formulation, problem)
    density = getattr(kind, "density", None)
    if density is None or not kind.is_assembled:
        return
    motions = motions_left_free(arrays.points, Discretisation.from_frame(arrays).fields, arrays.length)
    if not len(motions):
        return
    integrals = [StateIntegral(arrays, density, number, _as_data) for number in range(len(density.integrals))]
    rows = [np.linalg.qr(response, mode="r") for response in _responses(integrals, arrays, problem, motions)]
    if not rows:
        return
    left = motions.unseen(np.concatenate(rows), UNSEEN)
    if len(left):
        raise ValueError(
            f"the energy has no unique minimum: {'; '.join(left.texts())}; neither the energy nor given values prevent "
            "this: give more values by dirichlet, or add a term that sees it, such as a spring on some boundary"
        )


def _responses(
    integrals: list[StateIntegral], arrays: FrameArrays, problem: Problem, motions: Motions
) -> Iterator[Floats]:
    """(K m, r) C v for each y and one state, relative to C times random states on the same cell."""
    parameters, generator = problem.parameters, np.random.default_rng(0)
    units, moved = _units(arrays), _states(arrays, motions)  # (m,), (K, m, r)
    K, m, r = moved.shape
    roots = np.sqrt(arrays.volumes)[:, None, None]
    for y in np.concatenate([np.atleast_2d(parameters.nominal), parameters.sample(SAMPLES, 0)]):
        s, other = (roots * units[:, None] * generator.standard_normal((K, m, 1)) for _ in range(2))
        z = torch.as_tensor(np.concatenate([moved, other], axis=2))
        found = torch.zeros_like(z)
        at, rows = (torch.as_tensor(a) for a in (SIZE * np.repeat(s, r + 1, axis=2), np.tile(y, (r + 1, 1))))
        for integral in integrals:
            integral.add_product(at, z, rows, found)
        product = units[:, None] * found.numpy()
        size = np.sqrt((product[..., r:] ** 2).sum(axis=1, keepdims=True))  # (K, 1, 1)
        response = np.divide(product[..., :r], size, out=np.zeros((K, m, r)), where=size > 0)
        if np.isfinite(product).all():
            yield response.reshape(K * m, r)


def _units(arrays: FrameArrays) -> Floats:
    """(m,) one for values, the inverse of the length for gradients."""
    units, slices = np.ones(state_size(arrays)), state_slices(arrays)
    for f in arrays.fields:
        if isinstance(f.element, P1):
            units[slices[f.name].stop - arrays.dimension : slices[f.name].stop] = 1 / arrays.length
    return units


def _states(arrays: FrameArrays, motions: Motions) -> Floats:
    """(K, m, r) states of the motions on all cells, scaled; those of other fields are zero."""
    roots, slices = np.sqrt(arrays.volumes)[:, None], state_slices(arrays)
    found = np.zeros((len(roots), state_size(arrays), len(motions)))
    for f in arrays.fields:
        if f.name not in motions.constants:
            continue
        own = slices[f.name]
        found[:, own.stop - arrays.dimension : own.stop] = roots[..., None] * motions.gradient(f.name).T
        if isinstance(f.element, P1Values):
            found[:, own.start] = roots * motions.at(f.name, arrays.centres).T
    return found


def _as_data(table: Any) -> Tensor:
    return torch.as_tensor(np.array(table))
