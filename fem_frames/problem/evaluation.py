"""Evaluates a_y and f_y at the quadrature points of cells for a batch of y, in NumPy or torch.

B samples, K cells, Q points in a cell, d dimension, p parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fem_frames.files import one_line
from fem_frames.problem.callbacks import called
from fem_frames.problem.coefficients import HOW, Array, namespace
from fem_frames.problem.parameters import numbers

if TYPE_CHECKING:
    from fem_frames.problem.definition import Problem


class NotFiniteError(ValueError):
    """Values are not finite although they must be."""


class PointData:
    """Maps y (B, p) to a_y and f_y at points (K, Q, d); points, tables and y are all NumPy arrays or all tensors."""

    def __init__(self, problem: Problem, points: Array, tables: tuple[Array, ...]) -> None:
        """`tables` come from `Problem.tabulate` for the points."""
        self.problem, self.points, self._tables = problem, points, tables

    def coefficient(self, y: Array) -> Array:
        """(B, K, Q) values of a_y, or (B, K, 1) if constant on cells; not checked to be positive."""
        coefficient = self.problem.coefficient
        function = getattr(coefficient, "function", None)
        values = called("the coefficient", function, HOW, coefficient.evaluate, self._tables, y)
        return spread(values, y, (len(y), *self.points.shape[:2]), "the coefficient a")

    def source(self, y: Array) -> Array:
        """(B, K, Q) values of f_y, or (B, K, 1); not checked to be finite."""
        function = self.problem.source
        if callable(function):
            values = called("the source", function, HOW, function, self.points, y[:, None, None, :])
        else:
            values = function
        return spread(values, y, (len(y), *self.points.shape[:2]), "the source f")

    def check_coefficient(self, a: Array, y: Array) -> None:
        """Raises a ValueError unless the values (B, K, ·) are positive and finite."""
        low, high = (a.min(), a.max()) if isinstance(a, np.ndarray) else a.aminmax()
        if low > 0 and high < np.inf:  # NaN fails this test too
            return
        sample, cell, q = _first(~((a > 0) & (a < np.inf)))
        raise ValueError(
            f"a_y must be positive and finite, but it is {float(a[sample, cell, q]):.3g} for y = "
            f"{numbers(y[sample].tolist())} in cell {cell} at x = {numbers(self.points[cell, q].tolist())}; "
            f"fix the coefficient or choose y inside the parameters {self.problem.parameters}"
        )

    def check_source(self, f: Array, y: Array) -> None:
        """Raises a NotFiniteError unless the values (B, K, ·) are finite."""
        finite = namespace(f).isfinite(f)
        if finite.all():
            return
        sample, cell, q = _first(~finite)
        raise NotFiniteError(
            f"f is {float(f[sample, cell, q])} for y = {numbers(y[sample].tolist())} at x = "
            f"{numbers(self.points[cell, q].tolist())}: fix the source"
        )


def spread(found: Any, like: Array, shape: tuple[int, int, int], what: str) -> Array:
    """The values of a user's function as (B, K, Q), or (B, K, 1) if they are constant on cells.

    The function may return a number, (K, Q), or all three axes, each of full length or 1. Plain broadcasting would
    accept more, such as one value per parameter if there are as many parameters as points.
    """
    values, (B, K, Q) = _as_array(found, like, what, shape), shape
    if values.ndim not in (0, 3) and tuple(values.shape) != (K, Q):
        fits = False
    else:
        fits = all(n in (1, m) for n, m in zip(tuple(values.shape)[::-1], (Q, K, B), strict=False))
    if not fits:
        raise _misfit(what, values.shape, shape)
    whole = (B, K, values.shape[-1] if values.ndim and values.shape[-1] == 1 else Q)
    return np.broadcast_to(values, whole) if isinstance(values, np.ndarray) else values.expand(*whole)


def _as_array(found: Any, like: Array, what: str, shape: tuple[int, ...]) -> Array:
    """The values as a real array or tensor in the precision of `like`."""
    if found is None:
        raise ValueError(f"{what} is None: return real numbers")
    if isinstance(like, np.ndarray):
        if np.iscomplexobj(found):
            raise ValueError(f"{what} is complex: return real numbers")
        try:
            return np.asarray(found, np.float64)
        except (TypeError, ValueError) as error:
            raise _misfit(what, np.shape(found), shape) from error
    import torch

    try:
        values = torch.as_tensor(found, device=like.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{what} is a {type(found).__name__}, not a tensor: {one_line(error)}; {HOW}") from error
    if values.is_complex():
        raise ValueError(f"{what} is complex: return real numbers")
    return values.to(like.dtype)


def _misfit(what: str, found: Any, expected: tuple[int, ...]) -> ValueError:
    return ValueError(
        f"{what} has values of shape {tuple(found)}, which do not fit {expected}; "
        "functions of x and y write x[..., i] and y[..., k]"
    )


def _first(wrong: Array) -> tuple[int, ...]:
    """The indices of the first entry that is true."""
    found = np.argwhere(wrong) if isinstance(wrong, np.ndarray) else wrong.nonzero()
    return tuple(int(i) for i in found[0])
