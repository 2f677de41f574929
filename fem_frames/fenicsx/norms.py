"""Errors of nodal values and fluxes against exact functions, by quadrature.

K cells, N points, Q quadrature points, d dimension.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fem_frames.fenicsx import door
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.mesh.simplices import facet_states, p1_gradients, simplices


def error_norms(
    points: Floats,
    cells: Ints,
    values: Floats,
    exact: Callable[[Floats], npt.ArrayLike],
    gradient: Callable[[Floats], npt.ArrayLike],
    degree: int = 6,
) -> tuple[float, float]:
    """(H1 seminorm, L2 norm) of the error of the P1 function with nodal values (N,).

    `exact` and `gradient` take x (K, Q, d) and give (K, Q) and (K, Q, d). See docs/problems.md.
    """
    hats, weights = door.barycentric_quadrature(points.shape[1], degree)  # (Q, d+1), (Q,)
    x = np.einsum("qn,knd->kqd", hats, points[cells])
    gradients, volumes = p1_gradients(points, cells)
    weight = volumes[:, None] * weights  # (K, Q)
    slope = np.einsum("knd,kn->kd", gradients, values[cells])
    h1 = (weight * ((np.asarray(gradient(x)) - slope[:, None]) ** 2).sum(axis=-1)).sum()
    l2 = (weight * (np.asarray(exact(x)) - np.einsum("qn,kn->kq", hats, values[cells])) ** 2).sum()
    return float(np.sqrt(h1)), float(np.sqrt(l2))


def flux_error_norms(
    points: Floats,
    cells: Ints,
    fluxes: Floats,
    exact: Callable[[Floats], npt.ArrayLike],
    divergence: Callable[[Floats], npt.ArrayLike],
    degree: int = 6,
) -> tuple[float, float]:
    """(L2 norm, L2 norm of the divergence) of the error of the RT0 field with fluxes (F,).

    `exact` and `divergence` take x (K, Q, d) and give (K, Q, d) and (K, Q). See docs/problems.md.
    """
    d = points.shape[1]
    hats, weights = door.barycentric_quadrature(d, degree)  # (Q, d+1), (Q,)
    x = np.einsum("qn,knd->kqd", hats, points[cells])
    states = np.einsum("kns,kn->ks", facet_states(points, cells), fluxes[simplices(cells, d - 1)[1]])
    centre, q = states[:, None, :d], states[:, None, d]
    off = x - points[cells].mean(axis=1)[:, None]
    weight = p1_gradients(points, cells)[1][:, None] * weights  # (K, Q)
    l2 = (weight * ((np.asarray(exact(x)) - centre - q[..., None] * off / d) ** 2).sum(axis=-1)).sum()
    div = (weight * (np.asarray(divergence(x)) - q) ** 2).sum()
    return float(np.sqrt(l2)), float(np.sqrt(div))
