"""An upper bound for Friedrichs' constant: ‖v‖ ≤ C ‖∇v‖ for all v in H1 that vanish where u is given.

C² = 1/λ for the first eigenvalue λ of the Laplacian with these boundary conditions. Conforming elements overestimate
eigenvalues and would make C too small. Crouzeix-Raviart elements, with one value per facet, bound it from the right
side: let Πv have the means of v over the facets. Then ∇Πv has the means of ∇v over the cells, so
‖∇v‖² = ‖∇Πv‖² + ‖∇(v - Πv)‖² on each cell, and w = v - Πv has mean zero on all facets. This implies
‖w‖² ≤ κ_T² ‖∇w‖² on a cell T with

    κ_T² = diam(T)²/π² + s_T/d²,  where s_T is the mean of |x - x_c|² over T with centre x_c:

Payne and Weinberger bound w minus its mean, and this mean is -1/(d |T|) ∫ (x - x_c) · ∇w. In one dimension w vanishes
at the ends, and the first summand suffices. Together C² ≤ 1/λ_CR + max κ_T² with the first Crouzeix-Raviart
eigenvalue λ_CR. The argument is that of C. Carstensen and J. Gedicke, Guaranteed lower bounds for eigenvalues, Math.
Comp. 83 (2014) 2605-2629, and X. Liu, A framework of verified eigenvalue bounds for self-adjoint differential
operators, Appl. Math. Comput. 267 (2015) 341-355, with other values of κ_T.

On curved boundaries a coarse mesh covers another domain than the finest one. A map between them that is affine on the
finest cells bounds the constant of the finest domain by that of the coarse one (`curvature.distortion`).

K cells, F facets, d dimension.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from fem_frames.frame.arrays import FrameArrays
from fem_frames.frame.curvature import distortion
from fem_frames.frame.level_matrices import flux_field, level_volumes
from fem_frames.mesh.geometry import Floats, signed_volumes
from fem_frames.mesh.simplices import diameters, spreads

CELLS = 10_000  # λ_CR is computed on the finest level with at most this many cells; finer levels hardly change it
_MARGIN = 1e-4
_CONSTANTS: WeakKeyDictionary[FrameArrays, float] = WeakKeyDictionary()


def friedrichs_constant(arrays: FrameArrays) -> float:
    """C with ‖v‖ ≤ C ‖∇v‖ for all v in H1 that vanish where u is given; computed once per frame.

    The frame must have a flux, because its free facets show where u is given. See docs/formulations.md.
    """
    if arrays not in _CONSTANTS:
        index = max((j for j, level in enumerate(arrays.levels) if len(level.cells) <= CELLS), default=0)
        least = _least_eigenvalue(*_matrices(arrays, index))
        of_level = float(np.sqrt(1 / least + interpolation_constants(arrays, index).max()))
        _CONSTANTS[arrays] = of_level * distortion(arrays, index)
    return _CONSTANTS[arrays]


def interpolation_constants(arrays: FrameArrays, index: int) -> Floats:
    """(K_j,) κ_T² of the cells of levels[index]."""
    first = (diameters(arrays.points, arrays.levels[index].cells) / np.pi) ** 2
    if arrays.dimension == 1:
        return first
    return np.asarray(first + spreads(arrays.points, arrays.levels[index].cells) / arrays.dimension**2)


def _matrices(arrays: FrameArrays, index: int) -> tuple[Any, Any]:
    """∫ ∇v·∇w and ∫ v w for the Crouzeix-Raviart functions of levels[index] that vanish where u is given."""
    from scipy import sparse

    d, level = arrays.dimension, arrays.levels[index]
    # On curved boundaries the volumes of the descendants have another sum.
    volumes = np.abs(signed_volumes(arrays.points, level.cells)) if arrays.curved else level_volumes(arrays, index)
    facets, of_cells = arrays.simplices(index, d - 1)
    # The function of the facet opposite corner i is 1 - d λ_i; the first facet is opposite the last corner.
    gradients = -d * level.gradients[:, ::-1]  # (K, d+1, d)
    stiffness = np.einsum("k,kid,kjd->kij", volumes, gradients, gradients)
    mass = volumes[:, None, None] * (1 - 2 * d / (d + 1) + d**2 * (1 + np.eye(d + 1)) / ((d + 1) * (d + 2)))
    rows, columns = (np.broadcast_to(x, stiffness.shape).ravel() for x in (of_cells[:, :, None], of_cells[:, None]))
    free = np.flatnonzero(~_dirichlet_facets(arrays, index))

    def on_free(local: Floats) -> Any:
        whole = sparse.csc_array((local.ravel(), (rows, columns)), shape=(len(facets), len(facets)))
        return whole[free][:, free].tocsc()

    return on_free(stiffness), on_free(mass)


def _dirichlet_facets(arrays: FrameArrays, index: int) -> npt.NDArray[np.bool_]:
    """(F,) boundary facets where u is given, which are those with free flux."""
    flux = flux_field(arrays)
    if flux is None:
        raise ValueError(
            f"a frame for {arrays.formulation} does not tell on which facets u is given; export one for least squares"
        )
    facets, of_cells = arrays.simplices(index, arrays.dimension - 1)
    outside = np.bincount(of_cells.ravel(), minlength=len(facets)) == 1
    free = np.zeros(len(facets), bool)
    free[flux.free[index]] = True
    return outside & free


def _least_eigenvalue(stiffness: Any, mass: Any) -> float:
    """A μ below all eigenvalues of stiffness v = λ mass v: stiffness - μ mass is positive definite, up to rounding."""
    from scipy.sparse import linalg

    if stiffness.shape[0] == 1:
        return float(stiffness[0, 0] / mass[0, 0])
    inverse = linalg.LinearOperator(stiffness.shape, _factors(stiffness).solve)
    start = np.ones(stiffness.shape[0])
    found = linalg.eigsh(
        stiffness, 1, mass, sigma=0.0, OPinv=inverse, v0=start, tol=0.1 * _MARGIN, return_eigenvectors=False
    )
    value = (1 - _MARGIN) * float(found[0])
    for _ in range(20):
        if is_positive(stiffness - value * mass):
            return value
        value *= 0.5  # the iteration found a higher eigenvalue
    raise RuntimeError("no lower bound for the first eigenvalue was found; does the mesh have flat cells?")


def _factors(matrix: Any) -> Any:
    """L U of a symmetric matrix with diagonal pivots, in an order that keeps the factors sparse."""
    from scipy.sparse import linalg

    return linalg.splu(
        matrix.tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}
    )


def is_positive(matrix: Any) -> bool:
    """Whether a sparse symmetric matrix is positive definite: all pivots are positive (Sylvester's law of inertia)."""
    try:
        factors = _factors(matrix)
    except RuntimeError:  # exactly singular
        return False
    return bool((factors.perm_r == factors.perm_c).all() and (factors.U.diagonal() > 0).all())
