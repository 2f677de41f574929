"""Evaluates a_y and f_y at the quadrature points of cells for a batch of y, in NumPy or torch.

Tensors have the batch last in memory, as operators want it, if there are few points in a cell: strides of (K, Q, B).

B samples, K cells, Q points in a cell, d dimension, p parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from fem_frames.files import one_line
from fem_frames.problem.callbacks import called
from fem_frames.problem.coefficients import HOW, Array, Pointwise, namespace
from fem_frames.problem.compiled_functions import CompiledFunction, compiled_function
from fem_frames.problem.compiled_values import extremes
from fem_frames.problem.parameters import numbers

if TYPE_CHECKING:
    from fem_frames.problem.compiled_gradients import DifferentiableFunction
    from fem_frames.problem.definition import Problem


MOST_POINTS = 4
"""Sums over more points than this round differently with the batch last, so functions keep the batch first there."""


PIECE = 2**19
"""Numbers that a user's function is evaluated for at a time, so that its temporaries stay in the cache."""


class NotFiniteError(ValueError):
    """Values are not finite although they must be."""


class PointData:
    """Maps y (B, p) to a_y and f_y at points (K, Q, d); points, tables and y are all NumPy arrays or all tensors."""

    def __init__(self, problem: Problem, points: Array, tables: tuple[Array, ...]) -> None:
        """`tables` come from `Problem.tabulate` for the points."""
        self.problem, self.points, self._tables = problem, points, tables
        coefficient = problem.coefficient
        self._last_coefficient = (
            isinstance(coefficient, Pointwise)
            and type(coefficient).evaluate is Pointwise.evaluate
            and _acts_pointwise(coefficient.function, problem, points)
        )
        self._last_source = callable(problem.source) and _acts_pointwise(problem.source, problem, points)
        self._compiled: dict[Callable[[Array, Array], Array], CompiledFunction | None] = {}
        self._differentiable: dict[Callable[[Array, Array], Array], DifferentiableFunction | None] = {}
        if not isinstance(points, np.ndarray) and len(points):
            if isinstance(coefficient, Pointwise):
                check_samples(coefficient.function, problem, points, "the coefficient a")
            if callable(problem.source):
                check_samples(problem.source, problem, points, "the source f")

    def coefficient(self, y: Array) -> Array:
        """(B, K, Q) values of a_y, or (B, K, 1) if constant on cells; not checked to be positive."""
        coefficient: Any = self.problem.coefficient  # of a problem without an equation of its own
        shape = (y.shape[0], *self.points.shape[:2])
        function = getattr(coefficient, "function", None)
        if self._last_coefficient:
            values = called("the coefficient", function, HOW, self._batch_last, function, y)
            return spread(values, y, shape, "the coefficient a")
        values = called("the coefficient", function, HOW, coefficient.evaluate, self._tables, y)
        return spread(values, y, shape, "the coefficient a")

    def source(self, y: Array) -> Array:
        """(B, K, Q) values of f_y, or (B, K, 1); not checked to be finite."""
        function = self.problem.source
        if self._last_source:
            values = called("the source", function, HOW, self._batch_last, function, y)
        elif callable(function):
            values = called("the source", function, HOW, function, self.points, y[:, None, None, :])
        else:
            values = function
        return spread(values, y, (y.shape[0], *self.points.shape[:2]), "the source f")

    def _batch_last(self, function: Callable[[Array, Array], Array], y: Array) -> Any:
        """`batch_last` for these points, in compiled code where that is possible and torch does not transform y."""
        from fem_frames.operators.checking import is_traced, is_transforming, is_watched

        if not is_traced(y) and not is_transforming():
            if function not in self._compiled:
                self._compiled[function] = _checked_compilation(function, self.problem, self.points)
            plain = self._compiled[function]
            compilation: Callable[[Array], Array] | None = plain
            if plain is not None and is_watched(y):
                if function not in self._differentiable:
                    self._differentiable[function] = _checked_gradients(function, plain, self.problem, self.points)
                compilation = self._differentiable[function]
            if compilation is not None:
                return compilation(y).reshape(*self.points.shape[:2], len(y)).permute(2, 0, 1)
        return batch_last(function, self.points, y)

    def check_coefficient(self, a: Array, y: Array) -> None:
        """Raises a ValueError unless the values (B, K, ·) are positive and finite."""
        low, high = _range(a)
        if low > 0 and high < np.inf:  # NaN fails this test too
            return
        sample, cell, q = _first(~((a > 0) & (a < np.inf)))
        own = self.problem.equation is not None
        raise ValueError(
            f"{'a in the energy ½ ∫ a |∇u|²' if own else 'a_y'} must be positive and finite, but it is "
            f"{float(a[sample, cell, q]):.3g} for y = "
            f"{numbers(y[sample].tolist())} in cell {cell} at x = {numbers(self.points[cell, q].tolist())}; "
            f"fix the {'equation' if own else 'coefficient'} or choose y inside the parameters "
            f"{self.problem.parameters}"
        )

    def check_source(self, f: Array, y: Array) -> None:
        """Raises a NotFiniteError unless the values (B, K, ·) are finite."""
        low, high = _range(f)
        if low > -np.inf and high < np.inf:  # NaN fails this test too
            return
        sample, cell, q = _first(~namespace(f).isfinite(f))
        raise NotFiniteError(
            f"f is {float(f[sample, cell, q])} for y = {numbers(y[sample].tolist())} at x = "
            f"{numbers(self.points[cell, q].tolist())}: fix the source"
        )


def batch_last(function: Callable[[Array, Array], Array], points: Array, y: Array) -> Any:
    """The values (B, K, Q) of a function of x and y with strides of (K, Q, B), or what else it returns.

    The function sees x (K, Q, 1, d) and y (1, 1, B, p), so that plain broadcasting makes tensors with the batch last,
    for as many cells at a time as `PIECE` allows.
    """
    from fem_frames.operators.checking import is_watched

    x, y = points[:, :, None], y.T.contiguous().T[None, None]
    values = function(x, y) if is_watched(y) else _in_pieces(function, x, y)
    return values.permute(2, 0, 1) if getattr(values, "ndim", 0) == 3 else values


def _in_pieces(function: Callable[[Array, Array], Array], x: Array, y: Array) -> Any:
    """function(x, y) for some cells of x (K, Q, 1, d) at a time."""
    K, Q, B = len(x), x.shape[1], y.shape[2]
    few = max(1, PIECE // (Q * B))
    values = function(x[:few], y)
    if few >= K:
        return values
    if tuple(getattr(values, "shape", ())) != (few, Q, B):  # numbers, or values that do not depend on everything
        return function(x, y)
    joined = values.new_empty(K, Q, B)
    joined[:few] = values
    for start in range(few, K, few):
        joined[start : start + few] = function(x[start : start + few], y)
    return joined


def _acts_pointwise(function: Callable[[Array, Array], Array], problem: Problem, points: Array) -> bool:
    """Whether a user's function has the same values if x and y have the axes of `batch_last`.

    Functions that write x[..., i] and y[..., k] do. Others may rely on x (K, Q, d) and y (B, 1, 1, p), or on all cells
    at once, which a trial detects, with lengths of axes that differ from each other. Only tensors have a choice of
    memory layout.
    """
    if isinstance(points, np.ndarray) or len(points) == 0 or points.shape[1] > MOST_POINTS:
        return False
    import torch

    y, x = _trial(problem, points)
    K, Q, B = x.shape[0], x.shape[1], y.shape[0]
    try:
        with torch.no_grad():
            plain = spread(function(x.clone(), y.clone()[:, None, None, :]), y, (B, K, Q), "")
            other = batch_last(function, x.clone(), y)
            made = spread(other, y, (B, K, Q), "")
            parts = [spread(batch_last(function, part, y), y, (B, len(part), Q), "") for part in (x[:2], x[2:])]
            pieces = torch.cat([part.expand(-1, -1, made.shape[2]) for part in parts], dim=1)
    except (Exception, SystemExit):  # evaluating it in earnest reports the error
        return False
    rounding = 100 * torch.finfo(y.dtype).eps * plain.abs().amax().nan_to_num(0.0, 0.0, 0.0)
    fits = getattr(other, "ndim", 0) in (0, 3) and made.shape == plain.shape
    return fits and all(
        torch.allclose(found, plain, rtol=0.0, atol=float(rounding), equal_nan=True) for found in (made, pieces)
    )


def _checked_compilation(
    function: Callable[[Array, Array], Array], problem: Problem, points: Array
) -> CompiledFunction | None:
    """A user's function in compiled code; None if that cannot be had, or gives other values in a trial."""
    import torch

    compilation = compiled_function(function, points, problem.parameters.dimension)
    if compilation is None:
        return None
    y, x = _trial(problem, points)
    with torch.no_grad():
        expected = batch_last(function, x.clone(), y).permute(1, 2, 0).to(y.dtype)  # (K, Q, B)
    found = compilation.at(x)(y).reshape(expected.shape)
    rounding = float(1e3 * torch.finfo(y.dtype).eps * expected.abs().amax().nan_to_num(0.0, 0.0, 0.0))
    return compilation if torch.allclose(found, expected, rtol=0.0, atol=rounding, equal_nan=True) else None


def _checked_gradients(
    function: Callable[[Array, Array], Array], compilation: CompiledFunction, problem: Problem, points: Array
) -> DifferentiableFunction | None:
    """A compiled function with compiled derivatives in y; None if it has none, or torch others, as after `detach`."""
    import torch

    from fem_frames.problem.compiled_gradients import DifferentiableFunction

    made, (y, x) = DifferentiableFunction(compilation), _trial(problem, points)
    if not made.is_compiled:
        return None
    with torch.enable_grad():
        free = y.clone().requires_grad_()
        expected = batch_last(function, x.clone(), free).permute(1, 2, 0).to(y.dtype).flatten(0, 1)  # (n, B)
        weights = torch.linspace(1.0, 2.0, expected.numel()).to(expected).reshape(expected.shape)
        found = torch.autograd.grad(made.at(x)(free), free, weights)[0]
        wanted = torch.autograd.grad(expected, free, weights, allow_unused=True)[0] if expected.requires_grad else None
    wanted = torch.zeros_like(y) if wanted is None else wanted
    rounding = float(1e4 * torch.finfo(y.dtype).eps * wanted.abs().amax().nan_to_num(0.0, 0.0, 0.0))
    return made if torch.allclose(found, wanted, rtol=0.0, atol=rounding, equal_nan=True) else None


def _trial(problem: Problem, points: Array) -> tuple[Array, Array]:
    """A few y (B, p) and x (K, Q, d) from all over the mesh, with lengths of axes that differ from each other."""
    import torch

    p, d = problem.parameters.dimension, points.shape[-1]
    K, Q, B = [n for n in range(5, 10) if n not in (p, d)][:3]
    y = torch.as_tensor(problem.parameters.sample(B, 0)).to(points)
    whole = points.reshape(-1, d)
    some = torch.linspace(0, len(whole) - 1, K * Q, device=points.device).long()
    return y, whole[some].reshape(K, Q, d)


def check_samples(function: Callable[[Array, Array], Array], problem: Problem, points: Array, what: str) -> None:
    """Raises a ValueError if the values for one y depend on the other samples of its batch, as by y.mean()."""
    import torch

    y, x = _trial(problem, points)

    def values(y: Array) -> Array:
        return spread(function(x.clone(), y.clone()[:, None, None, :]), y, (len(y), *x.shape[:2]), "")

    try:
        with torch.no_grad():
            whole, alone = values(y), torch.cat([values(one) for one in y.split(1)])
    except (Exception, SystemExit):  # evaluating it in earnest reports the error
        return
    rounding = float(1e4 * torch.finfo(y.dtype).eps * whole.abs().amax().nan_to_num(0.0, 0.0, 0.0))
    if not torch.allclose(alone, whole, rtol=0.0, atol=rounding, equal_nan=True):
        raise ValueError(
            f"{what} for one y depends on the other samples of its batch: write y[..., k], without means or largest "
            "values"
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
        # m first: torch.export knows that B is B, and must not ask whether it is 1.
        fits = all(n in (m, 1) for n, m in zip(tuple(values.shape)[::-1], (Q, K, B), strict=False))
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


def _range(values: Array) -> tuple[float, float]:
    """The least and the greatest of values (B, K, ·), NaN if one of them is."""
    if isinstance(values, np.ndarray):
        return float(values.min()), float(values.max())
    return extremes(values.detach().permute(1, 2, 0))  # contiguous like this


def _first(wrong: Array) -> tuple[int, ...]:
    """The indices of the first entry that is true."""
    found = np.argwhere(wrong) if isinstance(wrong, np.ndarray) else wrong.nonzero()
    return tuple(int(i) for i in found[0])
