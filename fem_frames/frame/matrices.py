"""P_j, H, D and the data of C_y as sparse matrices of SciPy, for use in other programs; `to_torch` converts them.

`quadrature_differential` evaluates basix tables at pulled back quadrature points, level by level. It is independent of
the states of cells, on which `cell_differential` and the torch operators are built.

Nhat frame coefficients, N free nodal values, K finest cells, Q quadrature points, L local nodal values, d dimension.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from fem_frames.frame.arrays import FrameArrays, FrameField
from fem_frames.frame.curvature import extended_corners, unmoved_points
from fem_frames.frame.level_matrices import level_centres, nodal_places, nodal_states, prolongation_matrix
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.mesh.simplices import facet_vectors, p1_gradients


@dataclass(frozen=True, eq=False)
class QuadratureData:
    """The data that determine C_y: weights (K, Q) and positions (K, Q, d) of quadrature points, and regions (K,)."""

    weights: Floats
    points: Floats
    regions: Ints


def quadrature_data(arrays: FrameArrays, degree: int) -> QuadratureData:
    """Quadrature of the given degree on the finest cells, in the order of `quadrature_differential`'s rows."""
    points, weights = _rule(arrays.dimension, degree)
    positions = np.einsum("qn,knd->kqd", points, arrays.points[arrays.levels[-1].cells])
    return QuadratureData(arrays.volumes[:, None] * weights, positions, arrays.regions)


def prolongation(arrays: FrameArrays, index: int, name: str = "u") -> sparse.csr_array:
    """P_j of a family from levels[index - 1] to levels[index]; for u it has the weights 1/2 and 1.

    Index 0 is the map from the coarse level to the first mesh, if there is one.
    """
    least = 0 if arrays.has_coarse else 1
    if not least <= index < len(arrays.levels):
        raise ValueError(f"there is no prolongation to level number {index}; give {least} to {len(arrays.levels) - 1}")
    family = next((f for f in arrays.families if f.name == name), None)
    if family is None:
        raise ValueError(f"there is no family {name!r}; the frame has {', '.join(f.name for f in arrays.families)}")
    return prolongation_matrix(arrays, family, index).to_scipy()


def synthesis(arrays: FrameArrays) -> sparse.csr_array:
    """H (N, Nhat): frame coefficients to free nodal values on the finest level."""
    rows = []
    for field in arrays.fields:
        blocks = []
        for family in arrays.families:
            made: Any = sparse.csr_array((len(field.free[-1]), sum(family.level_sizes)))
            if family.field == field.name:
                made = None
                for index, functions in enumerate(family.functions):
                    own = functions.to_scipy().T
                    made = (
                        own if made is None else sparse.hstack([nodal_prolongation(arrays, field, index) @ made, own])
                    )
                made = sparse.csr_array(made)[field.free[-1]]
            blocks.append(made)
        rows.append(sparse.hstack(blocks))
    return sparse.csr_array(sparse.vstack(rows))


def cell_differential(arrays: FrameArrays) -> sparse.csr_array:
    """D (K m, Nhat): frame coefficients to the state of every finest cell, not scaled by |T|^{1/2}."""

    def table(field: FrameField, index: int) -> Floats:
        return np.swapaxes(_states_on_finest(arrays, field, index), 1, 2)

    return _by_families(arrays, table, 1)


def _states_on_finest(arrays: FrameArrays, field: FrameField, index: int) -> Floats:
    """(K, L, c) states on the finest cells of the nodal basis of levels[index]."""
    if not arrays.curved:
        cell = arrays.ancestors(index)
        offset = arrays.centres - level_centres(arrays, index)[cell]
        return field.element.shift(nodal_states(arrays, field, index)[cell], offset[:, None])
    corners = extended_corners(arrays, index)  # (K, d+1, d)
    points, cells = corners.reshape(-1, arrays.dimension), np.arange(corners[..., 0].size).reshape(len(corners), -1)
    states = field.element.states(points, cells, p1_gradients(points, cells)[0])
    return field.element.shift(states, (arrays.centres - corners.mean(axis=1))[:, None])


def quadrature_differential(arrays: FrameArrays, degree: int) -> sparse.csr_array:
    """D (K Q m, Nhat): frame coefficients to 𝒟u at quadrature points, by basix.

    Rows are ordered by cell, point, component: for (E) the gradient of u, for (LS) then the flux and its divergence.
    See "Matrix-free numerical realization" in the paper.
    """
    positions = quadrature_data(arrays, degree).points  # (K, Q, d)

    def table(field: FrameField, index: int) -> Floats:
        corners = extended_corners(arrays, index)  # (K, d+1, d)
        jacobian = np.swapaxes(corners[:, 1:] - corners[:, :1], 1, 2)
        reference = np.einsum("kij,kqj->kqi", np.linalg.inv(jacobian), positions - corners[:, :1])
        return np.swapaxes(field.element.tabulate(reference, jacobian), 2, 3)

    return _by_families(arrays, table, positions.shape[1])


def to_torch(matrix: Any, layout: str = "csr", dtype: Any = None, device: Any = None) -> Any:
    """A SciPy matrix as a sparse torch tensor, layout "coo" or "csr", rounded once to dtype (default float64)."""
    import torch

    dtype = dtype or torch.float64
    if layout == "coo":
        coo = sparse.coo_array(matrix)
        indices = torch.from_numpy(np.stack([coo.row, coo.col]).astype(np.int64))
        made = torch.sparse_coo_tensor(indices, torch.from_numpy(coo.data), coo.shape, check_invariants=True)
        return made.coalesce().to(dtype=dtype, device=device)
    if layout == "csr":
        csr = sparse.csr_array(matrix, copy=True)
        csr.sum_duplicates()  # also sorts, as torch requires
        rows, columns = (torch.from_numpy(a.astype(np.int64)) for a in (csr.indptr, csr.indices))
        values = torch.from_numpy(csr.data).to(dtype)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            return torch.sparse_csr_tensor(rows, columns, values, csr.shape, check_invariants=True).to(device)
    raise ValueError(f"layout is {layout!r}; choose coo or csr")


def _rule(d: int, degree: int) -> tuple[Floats, Floats]:
    from fem_frames.fenicsx import door

    if degree < 1:
        raise ValueError(f"quadrature degree is {degree}; at least 1 is needed")
    return door.barycentric_quadrature(d, degree)


def nodal_prolongation(arrays: FrameArrays, field: FrameField, index: int) -> sparse.csr_array:
    """Nodal values of a field on levels[index - 1] to levels[index], given values included.

    Zero if functions of one level are none of the next: then the frame has none on levels[index - 1].
    """
    (coarse, _), (fine, of_cells) = (arrays.simplices(i, field.degree) for i in (index - 1, index))
    if not field.element.nested:
        return sparse.csr_array((len(fine), len(coarse)))
    if field.degree == 0:
        before, ends = arrays.point_count(index - 1), arrays.levels[index].ends
        rows = np.concatenate([np.arange(before), np.repeat(before + np.arange(len(ends)), 2)])
        columns = np.concatenate([np.arange(before), ends.ravel()])
        weights = np.concatenate([np.ones(before), np.full(ends.size, 0.5)])
        return sparse.csr_array((weights, (rows, columns)), shape=(len(fine), len(coarse)))
    # The flux through a fine facet is the coarse field at the facet's midpoint times the facet's normal.
    cell = np.zeros(len(fine), np.int64)
    cell[of_cells] = np.arange(len(of_cells))[:, None]
    parent, d = cell >> arrays.dimension, arrays.dimension
    states = nodal_states(arrays, field, index - 1)[parent]  # (F, L, d+1)
    centre = arrays.points[arrays.levels[index - 1].cells].mean(axis=1)[parent]
    points = unmoved_points(arrays, index)  # moving them does not change fluxes
    off = (points[fine].mean(axis=1) - centre)[:, None] / d
    normal = facet_vectors(points, fine)[:, None]
    weights = ((states[..., :d] + states[..., d:] * off) * normal).sum(axis=2)  # (F, L)
    columns = nodal_places(arrays, field, index - 1)[parent]
    rows = np.broadcast_to(np.arange(len(fine))[:, None], columns.shape)
    return sparse.csr_array((weights.ravel(), (rows.ravel(), columns.ravel())), shape=(len(fine), len(coarse)))


def _by_families(arrays: FrameArrays, table: Callable[[FrameField, int], Floats], points: int) -> sparse.csr_array:
    """Rows for every finest cell and its `points`; `table` maps field and level to (K, …, c, L) for the nodal basis."""
    K, blocks, order = len(arrays.volumes), [], []
    for field in arrays.fields:
        families = [family for family in arrays.families if family.field == field.name]
        columns: dict[str, list[Any]] = {family.name: [] for family in families}
        for index in range(len(arrays.levels)):
            nodal = _scatter(arrays, field, index, table(field, index))
            for family in families:
                columns[family.name].append(nodal @ family.functions[index].to_scipy().T)
        blocks.append(sparse.hstack([part for family in families for part in columns[family.name]]))
        order += [family.name for family in families]
    made = _interleave(blocks, K * points)
    sizes = {family.name: sum(family.level_sizes) for family in arrays.families}
    ends = np.cumsum([sizes[name] for name in order])
    places = {name: np.arange(end - sizes[name], end) for name, end in zip(order, ends.tolist(), strict=True)}
    return sparse.csr_array(made[:, np.concatenate([places[family.name] for family in arrays.families])])


def _scatter(arrays: FrameArrays, field: FrameField, index: int, table: Floats) -> sparse.csr_array:
    """Rows for every finest cell and the other axes of `table` (K, …, L); columns for the nodal values of one level."""
    places = nodal_places(arrays, field, index)[arrays.ancestors(index)]  # (K, L)
    places = places.reshape(len(places), *(1,) * (table.ndim - 2), -1)
    rows = np.arange(table.size // table.shape[-1]).reshape(*table.shape[:-1], 1)
    entries = (np.broadcast_to(rows, table.shape).ravel(), np.broadcast_to(places, table.shape).ravel())
    shape = (table.size // table.shape[-1], len(field.lift[index]))
    return sparse.csr_array((table.ravel(), entries), shape=shape)


def _interleave(blocks: list[Any], groups: int) -> sparse.csr_array:
    """The block diagonal of the fields, with all rows of one cell or point next to each other."""
    widths = [block.shape[0] // groups for block in blocks]
    starts = np.concatenate([[0], np.cumsum([block.shape[0] for block in blocks])])
    order = [starts[i] + np.arange(groups * w).reshape(groups, w) for i, w in enumerate(widths)]
    return sparse.csr_array(sparse.block_diag(blocks, format="csr")[np.concatenate(order, axis=1).ravel()])
