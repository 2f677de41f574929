"""The tables of P_j, H and D from FrameArrays, in NumPy and float64.

H and D are one recursion over levels with different tables,

    state_j = M_j [state_{j-1}; w_j],

where the state consists of nodal values for H, and of the states of all cells for D. The transpose runs backwards with
M_jᵀ. The state of a cell joins the states of all fields: m numbers scaled by |T|^{1/2} (`elements.py`).

K_j cells on level j, n_j functions of a family on it, L local nodal values of a field on a cell, m numbers in a cell's
state, c of them for one field, d dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fem_frames.frame.arrays import FrameArrays, FrameField
from fem_frames.frame.curvature import child_offsets, transported
from fem_frames.frame.edge_bubbles import EdgeBubbles
from fem_frames.frame.elements import P1, RT0
from fem_frames.frame.families import FrameFamily
from fem_frames.frame.fields import joined_components
from fem_frames.frame.sparse import SparseMatrix
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.mesh.simplices import Entries, prolongation_entries


@dataclass(frozen=True, eq=False)
class LocalTable:
    """Functions of a family on each cell of one level (K_j, n), padded by -1, and their states (K_j, n, c)."""

    functions: Ints
    states: Floats


def state_slices(arrays: FrameArrays) -> dict[str, slice]:
    """The place of each field in a cell's state."""
    found, start = {}, 0
    for f in arrays.fields:
        found[f.name] = slice(start, start + f.element.state_size)
        start += f.element.state_size
    return found


def state_size(arrays: FrameArrays) -> int:
    """m, the number of entries in a cell's state."""
    return sum(f.element.state_size for f in arrays.fields)


def level_volumes(arrays: FrameArrays, index: int) -> Floats:
    """(K_j,) volumes of all finest cells in each cell of levels[index]; on curved boundaries not of the cell itself."""
    return np.asarray(arrays.volumes.reshape(len(arrays.levels[index].cells), -1).sum(axis=1))


def level_centres(arrays: FrameArrays, index: int) -> Floats:
    """(K_j, d) centres of the cells of levels[index]."""
    return np.asarray(arrays.points[arrays.levels[index].cells].mean(axis=1))


def nodal_states(arrays: FrameArrays, field: FrameField, index: int) -> Floats:
    """(K_j, L, c) states of the nodal basis functions on each cell, not scaled."""
    level = arrays.levels[index]
    return field.element.states(arrays.points, level.cells, level.gradients)


def nodal_places(arrays: FrameArrays, field: FrameField, index: int = -1) -> Ints:
    """(K_j, L) numbers of each cell's nodal values among all nodal values of the level."""
    return arrays.simplices(index % len(arrays.levels), field.degree)[1]


@dataclass(frozen=True, eq=False)
class FamilyStates:
    """States of a family's functions on the cells of their level, not scaled; each pair of cell and function once."""

    cell: Ints  # (E,)
    function: Ints  # (E,)
    states: Floats  # (E, c)


def family_states(arrays: FrameArrays, family: FrameFamily, index: int) -> FamilyStates:
    """The states of a family's functions on levels[index], sorted by cell and function."""
    field = field_of(arrays, family)
    table, places = nodal_states(arrays, field, index), nodal_places(arrays, field, index)
    of_place = family.functions[index].transposed()
    count = np.diff(of_place.starts)[places].ravel()  # (K L,) functions that use this nodal value
    local = np.repeat(np.arange(places.size), count)
    entry = of_place.starts[places.ravel()][local] + np.arange(len(local)) - (np.cumsum(count) - count)[local]
    cell, function = local // places.shape[1], of_place.columns[entry]
    states = table.reshape(places.size, -1)[local] * of_place.weights[entry, None]
    pair, place = np.unique(cell * of_place.shape[1] + function, return_inverse=True)
    summed = np.zeros((len(pair), states.shape[1]))
    np.add.at(summed, place.ravel(), states)
    return FamilyStates(*np.divmod(pair, of_place.shape[1]), summed)


def local_table(arrays: FrameArrays, family: FrameFamily, index: int) -> LocalTable:
    """The functions of levels[index], listed per cell."""
    found, K = family_states(arrays, family, index), len(arrays.levels[index].cells)
    slot = np.arange(len(found.cell)) - np.searchsorted(found.cell, np.arange(K))[found.cell]
    shape = (K, int(slot.max(initial=-1)) + 1)
    table = LocalTable(np.full(shape, -1), np.zeros((*shape, found.states.shape[1])))
    table.functions[found.cell, slot] = found.function
    table.states[found.cell, slot] = found.states
    return table


def field_of(arrays: FrameArrays, family: FrameFamily) -> FrameField:
    return next(f for f in arrays.fields if f.name == family.field)


def prolongation_matrix(arrays: FrameArrays, family: FrameFamily, index: int) -> SparseMatrix:
    """P_j of a family from levels[index - 1] to levels[index]: coefficients of its forms, not normalised.

    For index 0 it maps coefficients of the coarse level to the forms of the first mesh.
    """
    sizes = (family.coarse, family.level_sizes[0] - family.coarse, *family.level_sizes[1:])
    if index == 0:
        functions, place = family.functions[0].part(0, family.coarse), family.free[0]
        count = len(arrays.simplices(0, family.degree)[0])
        columns, row = np.repeat(np.arange(family.coarse), np.diff(functions.starts)), _numbers(place, count)
        return SparseMatrix.from_entries(row[functions.columns], columns, functions.weights, (sizes[1], sizes[0]))
    rows, columns, weights = _prolongation_entries(arrays, family, index)
    return SparseMatrix.from_entries(rows, columns, weights, (sizes[index + 1], sizes[index]))


def nodal_prolongation(arrays: FrameArrays, index: int) -> SparseMatrix:
    """P_j between the free nodal values of all fields, field after field, from levels[index - 1] to levels[index]."""
    parts, shape = [], (0, 0)
    for f in arrays.fields:
        rows, columns, weights = _prolongation_entries(arrays, f, index)
        parts.append((shape[0] + rows, shape[1] + columns, weights))
        shape = (shape[0] + len(f.free[index]), shape[1] + len(f.free[index - 1]))
    rows, columns, weights = (np.concatenate(a) for a in zip(*parts, strict=True))
    return SparseMatrix.from_entries(rows, columns, weights, shape)


def synthesis_matrices(arrays: FrameArrays) -> list[SparseMatrix]:
    """M_j of H: [nodal values of all fields on level j-1; coefficients of level j] to nodal values on level j."""
    found = []
    for index in range(len(arrays.levels)):
        sizes = [len(f.free[index]) for f in arrays.fields]
        before = [len(f.free[index - 1]) if index else 0 for f in arrays.fields]
        own = [family.level_sizes[index] for family in arrays.families]
        parts: list[Entries] = []
        for k, f in enumerate(arrays.fields):
            if index:
                rows, columns, weights = _prolongation_entries(arrays, f, index)
                parts.append((sum(sizes[:k]) + rows, sum(before[:k]) + columns, weights))
            row = _numbers(f.free[index], len(f.lift[index]))
            for i, family in enumerate(arrays.families):
                if family.field == f.name:
                    functions = family.functions[index].transposed()
                    places = np.repeat(row, np.diff(functions.starts))  # of simplices that are free
                    columns = sum(before) + sum(own[:i]) + functions.columns
                    parts.append((sum(sizes[:k]) + places, columns, functions.weights))
        rows, columns, weights = (np.concatenate(a) for a in zip(*parts, strict=True))
        found.append(SparseMatrix.from_entries(rows, columns, weights, (sum(sizes), sum(before) + sum(own))))
    return found


def differential_matrices(arrays: FrameArrays) -> list[SparseMatrix]:
    """M_j of D: [states of the parents; coefficients of level j] to states of the cells of level j."""
    d, m, slices = arrays.dimension, state_size(arrays), state_slices(arrays)
    finest = len(arrays.levels) - 1
    found = []
    for index, level in enumerate(arrays.levels):
        K, sizes = len(level.cells), [family.level_sizes[index] for family in arrays.families]
        before = K * m >> d if index else 0
        # |T|^{1/2} of the finest cells, times a power of two that keeps it near |T_j|^{1/2}: the step from parents to
        # children then multiplies by a power of two, which causes no rounding.
        scale = np.sqrt(level_volumes(arrays, index)) * 2.0 ** (_exponent(d, finest - index) - d * (finest - index) / 2)
        parts = [_injection_entries(arrays, index)] if index else []
        for k, family in enumerate(arrays.families):
            of, components = family_states(arrays, family, index), np.arange(m)[slices[family.field]]
            rows = m * of.cell[:, None] + components
            columns = np.broadcast_to(before + sum(sizes[:k]) + of.function[:, None], rows.shape)
            parts.append((rows.ravel(), columns.ravel(), (of.states * scale[of.cell, None]).ravel()))
        rows, columns, weights = (np.concatenate(a) for a in zip(*parts, strict=True))
        found.append(SparseMatrix.from_entries(rows, columns, weights, (K * m, before + sum(sizes))))
    return found


def localisation_matrix(arrays: FrameArrays) -> SparseMatrix:
    """E: free nodal values to their copies (K, L) on every finest cell, field after field; given values become 0."""
    places = free_numbers(arrays)
    rows = np.arange(places.size).reshape(places.shape)
    return SparseMatrix.from_entries(rows, np.maximum(places, 0), 1.0 * (places >= 0), (places.size, arrays.nodal_size))


def local_states(arrays: FrameArrays) -> Floats:
    """(K, m, L) states of the finest cells, scaled by |T|^{1/2}, from the nodal values in the order of E."""
    tables = [np.swapaxes(nodal_states(arrays, f, len(arrays.levels) - 1), 1, 2) for f in arrays.fields]  # (K, c, L)
    made = np.zeros((len(arrays.volumes), state_size(arrays), sum(table.shape[2] for table in tables)))
    start = 0
    for place, table in zip(state_slices(arrays).values(), tables, strict=True):
        made[:, place, start : start + table.shape[2]] = table
        start += table.shape[2]
    return made * np.sqrt(arrays.volumes)[:, None, None]


def shifted_units(arrays: FrameArrays, field: FrameField, points: Floats) -> Floats:
    """(K, Q, c, c) the unit states of the finest cells (third axis), shifted to points (K, Q, d) of these cells."""
    unit = np.eye(field.element.state_size)
    offsets = (points - arrays.centres[:, None])[:, :, None]  # (K, Q, 1, d)
    return field.element.shift(np.broadcast_to(unit, (*points.shape[:2], *unit.shape)), offsets)


def nodal_differential_matrix(arrays: FrameArrays) -> SparseMatrix:
    """D in the nodal basis of the finest level: free nodal values to states of the finest cells."""
    local, places = local_states(arrays), free_numbers(arrays)[:, None]
    K, m, _ = local.shape
    rows = m * np.arange(K)[:, None, None] + np.arange(m)[:, None]
    weights = np.where(places < 0, 0.0, local)
    return SparseMatrix.from_entries(rows, np.maximum(places, 0), weights, (K * m, arrays.nodal_size))


def free_numbers(arrays: FrameArrays, index: int = -1) -> Ints:
    """(K_j, L) numbers of each cell's nodal values, all fields, among the free ones of the level; -1 for given values.

    The cell has the nodal values of one field after the other, and so do the numbers.
    """
    found, start = [], 0
    for f in arrays.fields:
        number = _numbers(f.free[index], len(f.lift[index]))[nodal_places(arrays, f, index)]
        found.append(np.where(number < 0, -1, start + number))
        start += len(f.free[index])
    return np.concatenate(found, axis=1)


def nodal_functionals(arrays: FrameArrays, values: Floats) -> Floats:
    """(N,) integrals of a function times the finest hats at free points of u, from its values (K, Q) in quadrature."""
    local = np.einsum("k,q,kq,qn->kn", arrays.volumes, arrays.rule_weights, values, arrays.rule_points)
    whole = np.bincount(arrays.levels[-1].cells.ravel(), weights=local.ravel(), minlength=len(arrays.points))
    return np.asarray(whole[arrays.fields[0].free[-1]])


def quadrature_points(arrays: FrameArrays) -> Floats:
    """(K, Q, d) quadrature points of the finest cells."""
    return np.einsum("qn,knd->kqd", arrays.rule_points, arrays.points[arrays.levels[-1].cells])


def flux_field(arrays: FrameArrays) -> FrameField | None:
    """The field in RT0, if there is one."""
    return next((f for f in arrays.fields if isinstance(f.element, RT0)), None)


def bubbles_of(arrays: FrameArrays, field: FrameField) -> FrameField | None:
    """The edge bubbles that complete a field in P1 to P2: the field after it, if that one is in edge bubbles."""
    after = arrays.fields[arrays.fields.index(field) + 1 :][:1]
    found = isinstance(field.element, P1) and after and isinstance(after[0].element, EdgeBubbles)
    return after[0] if found else None


def flux_at_centres(arrays: FrameArrays, fluxes: Floats) -> Floats:
    """(…, K, d) values of σ at the centres of the finest cells, from fluxes (…, F) through all finest facets.

    See docs/surrogates.md.
    """
    flux = flux_field(arrays)
    if flux is None or np.shape(fluxes)[-1:] != flux.lift[-1].shape:
        expected = "a frame for least squares" if flux is None else f"(…, {len(flux.lift[-1])}) fluxes"
        raise ValueError(f"{expected} is expected, but the fluxes have shape {np.shape(fluxes)}")
    return cell_states(arrays, flux, fluxes, slice(0, arrays.dimension))


def cell_states(arrays: FrameArrays, field: FrameField, values: Floats, part: slice = slice(None)) -> Floats:
    """(…, K, c) states of the finest cells, not scaled, from nodal values (…, n); `part` of the c numbers."""
    states = nodal_states(arrays, field, len(arrays.levels) - 1)[..., part]  # (K, L, c)
    return np.einsum("klc,...kl->...kc", states, np.asarray(values)[..., nodal_places(arrays, field)])


def values_of(arrays: FrameArrays, fields: Mapping[str, Floats]) -> dict[str, Floats]:
    """Nodal values of each field to values: unchanged (…, N) for P1, at cell centres (…, K, d) for other elements.

    The components of a vector field are joined, (…, N, d), if there are d of them. Edge bubbles, which vanish at all
    points, are left out.
    """
    found = {}
    for f in arrays.fields:
        if isinstance(f.element, EdgeBubbles):
            continue
        values = fields[f.name]
        in_centres = f.element.cell_values(cell_states(arrays, f, values)) if f.degree else None
        found[f.name] = values if in_centres is None else in_centres
    return joined_components(found, lambda parts: np.stack(parts, axis=-1), arrays.dimension)


def lift_states(arrays: FrameArrays) -> Floats:
    """(K m,) states of the lift, which satisfies the essential boundary data."""
    values = np.concatenate([f.lift[-1][nodal_places(arrays, f)] for f in arrays.fields], axis=1)  # (K, L)
    return np.einsum("kml,kl->km", local_states(arrays), values).ravel()


def _prolongation_entries(arrays: FrameArrays, of: FrameField | FrameFamily, index: int) -> Entries:
    """The free Whitney forms of levels[index - 1] as combinations of the free ones of levels[index]."""
    if not len(of.free[index - 1]):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    coarse, fine = (arrays.simplices(i, of.degree) for i in (index - 1, index))
    level = arrays.levels[index]
    entries = prolongation_entries(coarse, fine, arrays.levels[index - 1].cells, level.ends, 2**arrays.dimension)
    row, column = (_numbers(of.free[i], len(t[0])) for i, t in ((index, fine), (index - 1, coarse)))
    rows, columns, weights = row[entries[0]], column[entries[1]], entries[2]
    kept = (rows >= 0) & (columns >= 0)
    return rows[kept], columns[kept], weights[kept]


def _numbers(free: Ints, count: int) -> Ints:
    """(count,) the place of each simplex in `free`, -1 if it is not free."""
    number = np.full(count, -1)
    number[free] = np.arange(len(free))
    return number


def _injection_entries(arrays: FrameArrays, index: int) -> tuple[Ints, Ints, Floats]:
    """The step from parents to children: the state of a child is the Taylor shift of its parent's state.

    Moved children also transport it from the place where they would be otherwise.
    """
    d, m, slices = arrays.dimension, state_size(arrays), state_slices(arrays)
    K, finest = len(arrays.levels[index].cells), len(arrays.levels) - 1
    child = np.arange(K)
    parent = child >> d
    # The ratio is 1 for children of equal volume, as after uniform refinement.
    ratio = np.sqrt(level_volumes(arrays, index) / level_volumes(arrays, index - 1)[parent] * 2.0**d)
    factor = ratio * 2.0 ** (_exponent(d, finest - index) - _exponent(d, finest - index + 1))
    offset = child_offsets(arrays, index)  # (K, d)
    entries: list[Entries] = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))]
    for f in (f for f in arrays.fields if f.element.nested):  # others have no functions before the finest level
        size, start = f.element.state_size, slices[f.name].start
        unit = factor[:, None, None] * np.eye(size)  # (K, c, c): the unit states of the parent
        shifted = f.element.shift(unit, offset[:, None])  # (K, c of the parent, c of the child)
        shifted = transported(arrays, f.element, index, shifted)
        used, component = (shifted != 0).any(axis=0), start + np.arange(size)
        source, target = (np.broadcast_to(a, used.shape)[used] for a in (component[:, None], component))
        rows, columns = m * child[:, None] + target, m * parent[:, None] + source
        entries.append((rows, columns, shifted[:, used]))
    rows, columns, factors = (np.concatenate([a.ravel() for a in group]) for group in zip(*entries, strict=True))
    return rows, columns, factors


def _exponent(d: int, levels: int) -> int:
    return d * levels // 2
