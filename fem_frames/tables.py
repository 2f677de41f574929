"""From FrameArrays to the tables of P_j, H and D, in NumPy and float64.

H and D are one recursion over levels with different tables,

    state_j = M_j [state_{j-1}; w_j],

the state being nodal values for H and the state of every cell for D. The transpose runs backwards with M_jᵀ.

**State of a cell.** What determines 𝒟u on a cell T: for (E) the gradient g; for (LS) the gradient g, the flux at the
cell's centre τ_c and its divergence q; m numbers, all scaled by |T|^{1/2}. With this scaling the Euclidean norm of the
states is a norm in L2, H1-normalised hats have states of order one on every level and in every dimension, and C_y is
free of |T|, so nothing over- or underflows in half precision.

K_j cells, N_j points, n_j free dofs on level j, L local dofs of a cell, m numbers in a cell's state, d dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fem_frames.arrays import FrameArrays, FrameField
from fem_frames.mesh import Floats, Ints
from fem_frames.rows import Rows


@dataclass(frozen=True, eq=False)
class LocalTable:
    """The hats of one field on the cells of one level: dofs (K_j, L), -1 where fixed, and states (K_j, L, c)."""

    dofs: Ints
    states: Floats


def state_slices(arrays: FrameArrays) -> dict[str, slice]:
    """The place of each field in a cell's state: u has its gradient, sigma its value at the centre and divergence."""
    d = arrays.dimension
    if arrays.formulation == "energy":
        return {"u": slice(0, d)}
    return {"u": slice(0, d), "sigma": slice(d, 2 * d + 1)}


def state_size(arrays: FrameArrays) -> int:
    """m."""
    return max(part.stop for part in state_slices(arrays).values())


def level_volumes(arrays: FrameArrays, index: int) -> Floats:
    """(K_j,) volumes of the cells of levels[index]."""
    return np.asarray(arrays.volumes.reshape(len(arrays.levels[index].cells), -1).sum(axis=1))


def level_centres(arrays: FrameArrays, index: int) -> Floats:
    """(K_j, d)"""
    return np.asarray(arrays.points[arrays.levels[index].cells].mean(axis=1))


def nodal_states(arrays: FrameArrays, field: FrameField, index: int) -> Floats:
    """(K_j, L, c) what the nodal hats contribute to the state of their cell, not scaled.

    Raviart-Thomas elements on triangles enter here: another table of values at the centre and divergences.
    """
    gradients = arrays.levels[index].gradients  # (K_j, d+1, d)
    if field.name == "u":
        return gradients
    assert arrays.dimension == 1  # where the P1 flux has its divergence for gradient
    centre = np.full((*gradients.shape[:2], 1), 1 / (arrays.dimension + 1))
    return np.concatenate([centre, gradients], axis=2)


def local_table(arrays: FrameArrays, field: FrameField, index: int) -> LocalTable:
    """The normalised hats of levels[index]."""
    cells = arrays.levels[index].cells
    dof = np.full(arrays.point_count(index), -1)
    dof[field.free[index]] = np.arange(len(field.free[index]))
    scale = np.zeros(arrays.point_count(index))
    scale[field.free[index]] = field.scale[index]
    return LocalTable(dof[cells], nodal_states(arrays, field, index) * scale[cells][..., None])


def prolongation_rows(arrays: FrameArrays, field: FrameField, index: int) -> Rows:
    """P_j from levels[index - 1] to levels[index]: free dofs to free dofs, weights 1/2 and 1."""
    rows, columns, weights = _prolongation_entries(arrays, field, index)
    return Rows.from_entries(rows, columns, weights, (len(field.free[index]), len(field.free[index - 1])))


def synthesis_rows(arrays: FrameArrays) -> list[Rows]:
    """M_j of H: nodal values of all fields on the level before and the level's coefficients, to nodal values."""
    found = []
    for index in range(len(arrays.levels)):
        sizes = [len(f.free[index]) for f in arrays.fields]
        before = [len(f.free[index - 1]) if index else 0 for f in arrays.fields]
        parts: list[tuple[Ints, Ints, Floats]] = []
        for k, f in enumerate(arrays.fields):
            row = sum(sizes[:k])
            if index:
                rows, columns, weights = _prolongation_entries(arrays, f, index)
                parts.append((row + rows, sum(before[:k]) + columns, weights))
            own = np.arange(sizes[k])
            parts.append((row + own, sum(before) + row + own, f.scale[index]))
        rows, columns, weights = (np.concatenate(a) for a in zip(*parts, strict=True))
        found.append(Rows.from_entries(rows, columns, weights, (sum(sizes), sum(before) + sum(sizes))))
    return found


def differential_rows(arrays: FrameArrays) -> list[Rows]:
    """M_j of D: states of the parents and the level's coefficients, to states of the level's cells."""
    d, m, slices = arrays.dimension, state_size(arrays), state_slices(arrays)
    finest = len(arrays.levels) - 1
    found = []
    for index, level in enumerate(arrays.levels):
        K, sizes = len(level.cells), [len(f.free[index]) for f in arrays.fields]
        before = K * m >> d if index else 0
        # |T|^{1/2} of the finest cells, times a power of two that keeps it near |T_j|^{1/2}: passing a state on to
        # the children then multiplies it by a power of two, which costs no rounding.
        scale = np.sqrt(level_volumes(arrays, index)) * 2.0 ** (_exponent(d, finest - index) - d * (finest - index) / 2)
        parts = [_injection_entries(arrays, index)] if index else []
        for k, f in enumerate(arrays.fields):
            table, components = local_table(arrays, f, index), np.arange(m)[slices[f.name]]
            free = (table.dofs >= 0)[..., None]
            rows = m * np.arange(K)[:, None, None] + components
            columns = before + sum(sizes[:k]) + np.where(free, table.dofs[..., None], 0)
            weights = np.where(free, table.states * scale[:, None, None], 0.0)
            parts.append(tuple(a.ravel() for a in np.broadcast_arrays(rows, columns, weights)))  # type: ignore[arg-type]
        rows, columns, weights = (np.concatenate(a) for a in zip(*parts, strict=True))
        found.append(Rows.from_entries(rows, columns, weights, (K * m, before + sum(sizes))))
    return found


def localisation_rows(arrays: FrameArrays) -> Rows:
    """E: free nodal values to their copies (K, L) on every finest cell, fields one after the other, 0 where fixed."""
    sizes, local = [len(f.free[-1]) for f in arrays.fields], arrays.dimension + 1
    K, L = len(arrays.volumes), local * len(arrays.fields)
    rows, columns, weights = [], [], []
    for k, f in enumerate(arrays.fields):
        dofs = local_table(arrays, f, len(arrays.levels) - 1).dofs
        rows.append(L * np.arange(K)[:, None] + k * local + np.arange(local))
        columns.append(sum(sizes[:k]) + np.maximum(dofs, 0))
        weights.append(1.0 * (dofs >= 0))
    return Rows.from_entries(np.stack(rows), np.stack(columns), np.stack(weights), (K * L, sum(sizes)))


def local_states(arrays: FrameArrays) -> Floats:
    """(K, m, L) states of the finest cells, scaled by |T|^{1/2}, from the nodal values in the order of E."""
    local, finest = arrays.dimension + 1, len(arrays.levels) - 1
    table = np.zeros((len(arrays.volumes), state_size(arrays), local * len(arrays.fields)))
    for k, f in enumerate(arrays.fields):
        states = np.swapaxes(nodal_states(arrays, f, finest), 1, 2)
        table[:, state_slices(arrays)[f.name], k * local : (k + 1) * local] = states
    return table * np.sqrt(arrays.volumes)[:, None, None]


def nodal_differential_rows(arrays: FrameArrays) -> Rows:
    """D in the nodal basis of the finest level: free nodal values to states of the finest cells."""
    sizes, m = [len(f.free[-1]) for f in arrays.fields], state_size(arrays)
    local, L = local_states(arrays), arrays.dimension + 1
    rows = m * np.arange(len(local))[:, None, None] + np.arange(m)[:, None]
    columns, weights = [], []
    for k, f in enumerate(arrays.fields):
        dofs = local_table(arrays, f, len(arrays.levels) - 1).dofs[:, None]
        columns.append(np.broadcast_to(sum(sizes[:k]) + np.maximum(dofs, 0), (len(local), m, L)))
        weights.append(np.where(dofs < 0, 0.0, local[:, :, k * L : (k + 1) * L]))
    return Rows.from_entries(rows, np.stack(columns), np.stack(weights), (len(local) * m, sum(sizes)))


def nodal_functionals(arrays: FrameArrays, values: Floats) -> Floats:
    """(N,) integrals of a function times the finest hats of u at free points, from its values (K, Q) in quadrature."""
    local = np.einsum("k,q,kq,qn->kn", arrays.volumes, arrays.rule_weights, values, arrays.rule_points)
    whole = np.bincount(arrays.levels[-1].cells.ravel(), weights=local.ravel(), minlength=len(arrays.points))
    return np.asarray(whole[arrays.fields[0].free[-1]])


def quadrature_points(arrays: FrameArrays) -> Floats:
    """(K, Q, d) quadrature points of the finest cells."""
    return np.einsum("qn,knd->kqd", arrays.rule_points, arrays.points[arrays.levels[-1].cells])


def lift_states(arrays: FrameArrays) -> Floats:
    """(K m,) states of the functions that take the essential boundary data."""
    cells = arrays.levels[-1].cells
    values = np.concatenate([f.lift[cells] for f in arrays.fields], axis=1)  # (K, L)
    return np.einsum("kml,kl->km", local_states(arrays), values).ravel()


def _prolongation_entries(arrays: FrameArrays, field: FrameField, index: int) -> tuple[Ints, Ints, Floats]:
    before, ends = arrays.point_count(index - 1), arrays.levels[index].ends
    points = np.concatenate([np.arange(before), np.repeat(before + np.arange(len(ends)), 2)])
    sources = np.concatenate([np.arange(before), ends.ravel()])
    weights = np.concatenate([np.ones(before), np.full(ends.size, 0.5)])
    row = np.full(arrays.point_count(index), -1)
    row[field.free[index]] = np.arange(len(field.free[index]))
    column = np.full(before, -1)
    column[field.free[index - 1]] = np.arange(len(field.free[index - 1]))
    kept = (row[points] >= 0) & (column[sources] >= 0)
    return row[points][kept], column[sources][kept], weights[kept]


def _injection_entries(arrays: FrameArrays, index: int) -> tuple[Ints, Ints, Floats]:
    """A field on a child is the restriction of its parent's: g' = g, q' = q, τ_c' = τ_c + (q/d)(x_c' - x_c)."""
    d, m, slices = arrays.dimension, state_size(arrays), state_slices(arrays)
    K, finest = len(arrays.levels[index].cells), len(arrays.levels) - 1
    child = np.arange(K)
    parent = child >> d
    # One for children of equal volume, which uniform refinement makes.
    ratio = np.sqrt(level_volumes(arrays, index) / level_volumes(arrays, index - 1)[parent] * 2.0**d)
    factor = ratio * 2.0 ** (_exponent(d, finest - index) - _exponent(d, finest - index + 1))
    component = np.arange(m)
    rows, columns = m * child[:, None] + component, m * parent[:, None] + component
    entries = [(rows, columns, np.broadcast_to(factor[:, None], rows.shape))]
    if "sigma" in slices:
        part = slices["sigma"]
        centre, divergence = component[part][:-1], component[part][-1]
        offset = level_centres(arrays, index) - level_centres(arrays, index - 1)[parent]  # (K, d)
        rows = m * child[:, None] + centre
        columns = np.broadcast_to(m * parent[:, None] + divergence, rows.shape)
        entries.append((rows, columns, factor[:, None] * offset / d))
    rows, columns, factors = (np.concatenate([a.ravel() for a in group]) for group in zip(*entries, strict=True))
    return rows, columns, factors


def _exponent(d: int, levels: int) -> int:
    return d * levels // 2
