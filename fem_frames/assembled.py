"""The frame as sparse matrices, for use elsewhere: P_j, H, D and the data of C_y. SciPy, or torch by `to_torch`.

`quadrature_differential` evaluates basix's tables at pulled back quadrature points, level by level;
`cell_differential` needs the cell-wise gradients only. They are two independent routes to D.

Nhat frame coefficients, N free nodal values, K finest cells, Q quadrature points, d dimension.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from fem_frames.arrays import FrameArrays, FrameField
from fem_frames.mesh import Floats, Ints


@dataclass(frozen=True, eq=False)
class QuadratureData:
    """What C_y is made of: at every quadrature point its weight (K, Q) and place (K, Q, d); the regions (K,)."""

    weights: Floats
    points: Floats
    regions: Ints


def quadrature_data(arrays: FrameArrays, degree: int) -> QuadratureData:
    """Quadrature of the given degree on the finest cells, in the order of `quadrature_differential`'s rows."""
    points, weights = _rule(arrays.dimension, degree)
    positions = np.einsum("qn,knd->kqd", points, arrays.points[arrays.levels[-1].cells])
    return QuadratureData(arrays.volumes[:, None] * weights, positions, arrays.regions)


def prolongation(arrays: FrameArrays, index: int, name: str = "u") -> sparse.csr_array:
    """P_j from levels[index - 1] to levels[index]: nodal values at free points, weights 1/2 and 1."""
    if not 1 <= index < len(arrays.levels):
        raise ValueError(f"there is no prolongation to level number {index}; give 1 to {len(arrays.levels) - 1}")
    field = next((f for f in arrays.fields if f.name == name), None)
    if field is None:
        raise ValueError(f"there is no field {name!r}; the frame has {', '.join(f.name for f in arrays.fields)}")
    return _prolongation(arrays, index)[field.free[index]][:, field.free[index - 1]]


def synthesis(arrays: FrameArrays) -> sparse.csr_array:
    """H (N, Nhat): frame coefficients to free nodal values on the finest level."""
    return sparse.csr_array(sparse.block_diag([_field_synthesis(arrays, f) for f in arrays.fields]))


def cell_differential(arrays: FrameArrays) -> sparse.csr_array:
    """D (K m, Nhat): frame coefficients to the state of every finest cell.

    The state is the gradient of u (m = d), and for (LS) also the flux at the cell's centre and its divergence
    (m = 2d + 1).
    """
    blocks = []
    for name, field in _by_name(arrays).items():
        columns = []
        for index, level in enumerate(arrays.levels):
            cell = arrays.ancestors(index)
            gradient = level.gradients[cell]  # (K, d+1, d)
            table = np.swapaxes(gradient, 1, 2)
            if name == "sigma":
                corners = arrays.points[level.cells[cell]]
                # Hats are affine on their cell: value 1/(d+1) at its centre, and the gradient from there.
                offset = arrays.centres - corners.mean(axis=1)
                centre = 1 / (arrays.dimension + 1) + np.einsum("knd,kd->kn", gradient, offset)
                table = np.concatenate([centre[:, None], table], axis=1)
            columns.append(_scatter(arrays, field, index, table))
        blocks.append(sparse.hstack(columns))
    return _interleave(blocks, len(arrays.volumes))


def quadrature_differential(arrays: FrameArrays, degree: int) -> sparse.csr_array:
    """D (K Q m, Nhat): frame coefficients to 𝒟u at quadrature points, by basix.

    Rows are ordered by cell, point, component: the gradient of u, for (LS) then the flux and its divergence.
    See "Matrix-free numerical realization" in the paper.
    """
    from fem_frames import dolfinx_door as door

    d, K = arrays.dimension, len(arrays.volumes)
    positions = quadrature_data(arrays, degree).points  # (K, Q, d)
    Q = positions.shape[1]
    blocks = []
    for name, field in _by_name(arrays).items():
        columns = []
        for index, level in enumerate(arrays.levels):
            corners = arrays.points[level.cells[arrays.ancestors(index)]]  # (K, d+1, d)
            inverse = np.linalg.inv(np.swapaxes(corners[:, 1:] - corners[:, :1], 1, 2))
            reference = np.einsum("kij,kqj->kqi", inverse, positions - corners[:, :1])
            values, derivatives = door.tabulate(d, reference.reshape(-1, d))
            gradient = np.einsum("kqni,kij->kqnj", derivatives.reshape(K, Q, d + 1, d), inverse)
            table = np.swapaxes(gradient, 2, 3)  # (K, Q, d, d+1)
            if name == "sigma":
                table = np.concatenate([values.reshape(K, Q, 1, d + 1), table], axis=2)
            columns.append(_scatter(arrays, field, index, table))
        blocks.append(sparse.hstack(columns))
    return _interleave(blocks, K * Q)


def to_torch(matrix: Any, layout: str = "csr", dtype: Any = None, device: Any = None) -> Any:
    """A SciPy matrix as torch sparse tensor, layout "coo" or "csr", rounded once to dtype (default float64)."""
    import torch

    dtype = dtype or torch.float64
    if layout == "coo":
        coo = sparse.coo_array(matrix)
        indices = torch.from_numpy(np.stack([coo.row, coo.col]).astype(np.int64))
        made = torch.sparse_coo_tensor(indices, torch.from_numpy(coo.data), coo.shape, check_invariants=True)
        return made.coalesce().to(dtype=dtype, device=device)
    if layout == "csr":
        csr = sparse.csr_array(matrix, copy=True)
        csr.sum_duplicates()  # sorts too, which torch insists on
        rows, columns = (torch.from_numpy(a.astype(np.int64)) for a in (csr.indptr, csr.indices))
        values = torch.from_numpy(csr.data).to(dtype)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            return torch.sparse_csr_tensor(rows, columns, values, csr.shape, check_invariants=True).to(device)
    raise ValueError(f"layout is {layout!r}; choose coo or csr")


def _by_name(arrays: FrameArrays) -> dict[str, FrameField]:
    return {f.name: f for f in arrays.fields}


def _rule(d: int, degree: int) -> tuple[Floats, Floats]:
    from fem_frames import dolfinx_door as door

    if degree < 1:
        raise ValueError(f"quadrature degree is {degree}; at least 1 is needed")
    return door.barycentric_quadrature(d, degree)


def _prolongation(arrays: FrameArrays, index: int) -> sparse.csr_array:
    """Nodal values at all points of levels[index - 1] to those of levels[index]."""
    before, ends = arrays.point_count(index - 1), arrays.levels[index].ends
    rows = np.concatenate([np.arange(before), np.repeat(before + np.arange(len(ends)), 2)])
    columns = np.concatenate([np.arange(before), ends.ravel()])
    weights = np.concatenate([np.ones(before), np.full(ends.size, 0.5)])
    return sparse.csr_array((weights, (rows, columns)), shape=(before + len(ends), before))


def _field_synthesis(arrays: FrameArrays, field: FrameField) -> sparse.csr_array:
    hats: Any = None
    for index in range(len(arrays.levels)):
        own = _columns(arrays, field, index)
        hats = own if hats is None else sparse.hstack([_prolongation(arrays, index) @ hats, own])
    return sparse.csr_array(hats)[field.free[-1]]


def _columns(arrays: FrameArrays, field: FrameField, index: int) -> sparse.csr_array:
    """(N_j, n_j) nodal values of the normalised hats of one level on that level."""
    free, scale = field.free[index], field.scale[index]
    return sparse.csr_array((scale, (free, np.arange(len(free)))), shape=(arrays.point_count(index), len(free)))


def _scatter(arrays: FrameArrays, field: FrameField, index: int, table: Floats) -> sparse.csr_array:
    """Rows for every finest cell and further axes of `table` (K, …, d+1), columns for the hats of one level."""
    nodes = arrays.levels[index].cells[arrays.ancestors(index)]  # (K, d+1)
    nodes = nodes.reshape(len(nodes), *(1,) * (table.ndim - 2), -1)
    rows = np.arange(table.size // table.shape[-1]).reshape(*table.shape[:-1], 1)
    place = (np.broadcast_to(rows, table.shape).ravel(), np.broadcast_to(nodes, table.shape).ravel())
    shape = (table.size // table.shape[-1], arrays.point_count(index))
    return sparse.csr_array(sparse.csr_array((table.ravel(), place), shape=shape) @ _columns(arrays, field, index))


def _interleave(blocks: list[Any], groups: int) -> sparse.csr_array:
    """Block diagonal of the fields, rows reordered so that those of one cell or point stand together."""
    widths = [block.shape[0] // groups for block in blocks]
    starts = np.concatenate([[0], np.cumsum([block.shape[0] for block in blocks])])
    order = [starts[i] + np.arange(groups * w).reshape(groups, w) for i, w in enumerate(widths)]
    return sparse.csr_array(sparse.block_diag(blocks, format="csr")[np.concatenate(order, axis=1).ravel()])
