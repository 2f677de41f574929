"""Natural gradient descent: Gauss-Newton steps by matrix-free conjugate gradients.

P parameters.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from training.optimizers.line_search import read


class GaussNewtonObjective(Protocol):
    """The argument of `NGD.step` in place of a closure."""

    def __call__(self) -> Tensor:
        """The loss; stores gradients at the parameters."""

    def gradient(self) -> Tensor:
        """(P,) the gradient just stored, in float32 or float64."""

    def gauss_newton(self) -> Callable[[Tensor], Tensor]:
        """(P,) to (P,), the Gauss-Newton matrix at the current parameters."""


class _EnoughError(Exception):
    """The line search has used all its evaluations."""


class NGD(torch.optim.Optimizer):
    """θ ← θ + t d with (G + ε I) d = -∇ for the Gauss-Newton matrix G, and t from a strong Wolfe line search.

    For a functional that is quadratic in the net's output, G is the exact Hessian of the problem linearised in θ.
    See "Hyper-parameters for training" in the paper. `reason` says why the last step ended before its limits, if it
    did; `moved` says whether it changed the parameters. See docs/training.md.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 1.0,
        regularisation: float = 1e-12,
        tolerance: float = 1e-12,
        iterations: int = 20,
        line_search_steps: int = 20,
    ) -> None:
        for name, value in (("lr", lr), ("regularisation", regularisation), ("tolerance", tolerance)):
            if not value > 0:
                raise ValueError(f"{name} is {value}; a positive number is expected")
        defaults = dict(
            lr=lr,
            regularisation=regularisation,
            tolerance=tolerance,
            iterations=iterations,
            line_search_steps=line_search_steps,
        )
        super().__init__(params, defaults)
        if len(self.param_groups) != 1:
            raise ValueError("NGD takes one group of parameters")
        self.reason: str | None = None
        self.moved = True

    @torch.no_grad()
    def step(self, closure: GaussNewtonObjective) -> Tensor:  # type: ignore[override]
        """Takes one step; returns the loss before it."""
        group = self.param_groups[0]
        self.reason, self.moved = None, True
        loss = closure()
        gradient = closure.gradient()
        if not gradient.any():
            self.reason, self.moved = "the gradient is zero", False
            return loss
        direction = self._direction(closure.gauss_newton(), gradient, group)
        slope = float(gradient @ direction)
        if not slope < 0:
            self.reason = "no curvature: the Gauss-Newton direction does not descend, the gradient was used instead"
            direction, slope = -gradient, -float(gradient @ gradient)
        start = [p.clone() for p in group["params"]]
        step = self._line_search(closure, start, direction, slope, float(loss), group)
        self._set(start, direction, step)
        self.moved = any(not torch.equal(p, s) for p, s in zip(group["params"], start, strict=True))
        return loss

    def _direction(self, G: Callable[[Tensor], Tensor], gradient: Tensor, group: dict[str, Any]) -> Tensor:
        """Conjugate gradients for (G + ε I) d = -gradient."""
        d, r = torch.zeros_like(gradient), -gradient
        p, square = r, float(r @ r)
        goal = square * group["tolerance"] ** 2
        for _ in range(group["iterations"]):
            product = G(p) + group["regularisation"] * p
            curvature = float(p @ product)
            if not 0 < curvature < torch.inf:
                self.reason = f"no curvature: conjugate gradients met ⟨p, Gp⟩ = {curvature:.1e}"
                break
            d = d + (square / curvature) * p
            r = r - (square / curvature) * product
            square, before = float(r @ r), square
            if square <= goal:
                break
            p = r + (square / before) * p
        return d

    def _line_search(
        self,
        closure: GaussNewtonObjective,
        start: list[Tensor],
        d: Tensor,
        slope: float,
        loss: float,
        group: dict[str, Any],
    ) -> float:
        """The step length along d, a multiple of lr."""
        from scipy.optimize import line_search

        lr = group["lr"]
        seen: dict[float, tuple[float, float]] = {0.0: (loss, lr * slope)}

        def look(t: float) -> tuple[float, float]:
            if t not in seen:
                if len(seen) > group["line_search_steps"]:
                    raise _EnoughError
                self._set(start, d, lr * t)
                value, slope_there = read(closure(), closure.gradient() @ d)
                slope_there *= lr
                finite = abs(value) < torch.inf and abs(slope_there) < torch.inf
                seen[t] = (value, slope_there) if finite else (torch.inf, 0.0)
            return seen[t]

        found = None
        with warnings.catch_warnings(), contextlib.suppress(_EnoughError):
            warnings.simplefilter("ignore")
            found = line_search(
                lambda t: look(float(t[0]))[0],
                lambda t: np.array([look(float(t[0]))[1]]),
                np.zeros(1),
                np.ones(1),
                gfk=np.array([lr * slope]),
                old_fval=loss,
                maxiter=group["line_search_steps"],
            )[0]
        if found is not None:
            return lr * float(found)
        best = min(seen, key=lambda t: seen[t][0])  # violates the Wolfe conditions, but is not worse than the start
        self.reason = f"the line search failed after {len(seen) - 1} evaluations" + (
            ", the best of them was used" if best else ""
        )
        return lr * best

    def _set(self, start: list[Tensor], d: Tensor, step: float) -> None:
        pieces = d.split([p.numel() for p in start])
        for p, before, piece in zip(self.param_groups[0]["params"], start, pieces, strict=True):
            p.copy_(before + step * piece.view(before.shape) if step else before)
