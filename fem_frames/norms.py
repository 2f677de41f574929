"""Errors of nodal values against functions, by quadrature.

K cells, N points, Q quadrature points, d dimension.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fem_frames import dolfinx_door as door
from fem_frames.export import p1_gradients
from fem_frames.mesh import Floats, Ints


def error_norms(
    points: Floats,
    cells: Ints,
    values: Floats,
    exact: Callable[[Floats], npt.ArrayLike],
    gradient: Callable[[Floats], npt.ArrayLike],
    degree: int = 6,
) -> tuple[float, float]:
    """(H1 seminorm, L2 norm) of the difference of the P1 function with nodal values (N,) and an exact one.

    `exact` and `gradient` take x (K, Q, d) and give (K, Q) and (K, Q, d).
    """
    hats, weights = door.barycentric_quadrature(points.shape[1], degree)  # (Q, d+1), (Q,)
    x = np.einsum("qn,knd->kqd", hats, points[cells])
    gradients, volumes = p1_gradients(points, cells)
    weight = volumes[:, None] * weights  # (K, Q)
    slope = np.einsum("knd,kn->kd", gradients, values[cells])
    h1 = (weight * ((np.asarray(gradient(x)) - slope[:, None]) ** 2).sum(axis=-1)).sum()
    l2 = (weight * (np.asarray(exact(x)) - np.einsum("qn,kn->kq", hats, values[cells])) ** 2).sum()
    return float(np.sqrt(h1)), float(np.sqrt(l2))
