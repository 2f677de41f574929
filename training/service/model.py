"""The model of the service: y to vectors of outputs, with bounds and derivatives, for batches of questions.

B questions, s outputs, p parameters, n entries of an output vector, Nhat frame coefficients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fem_frames.outputs import Output, OutputMap
from fem_frames.solvers.bounds import error_bound
from fem_frames.solvers.differentiable import differentiable_solve, tangent_solve
from fem_frames.solvers.output_bounds import certify_outputs, has_output_bounds
from training.outputs import TOL, coefficient_tangent, differentiable_coefficients
from training.service.requests import EVALUATE, GRADIENT, Question, Settings
from training.surrogate import Surrogate

DUALS = 256  # vectors of frame coefficients that bounds of outputs hold at the same time


class Forward:
    """Answers questions about a surrogate: the outputs, or without any the nodal values of each field.

    With `tol` or `adjoint` the values are those of the discrete solution, up to their bounds, and so are derivatives;
    otherwise derivatives are those of the surrogate's own answers, as in `Surrogate.differentiable_output`.
    """

    def __init__(self, surrogate: Surrogate, outputs: Sequence[Output] = ()) -> None:
        self._surrogate, self._exact = surrogate, surrogate.formulation
        self._outputs = OutputMap(self._exact, outputs) if outputs else None
        self.parameters = surrogate.description.parameters
        self.has_bounds = has_output_bounds(self._exact)
        if self._outputs is not None:
            self._sizes: tuple[int, ...] = (len(self._outputs),)
            self.labels: tuple[str, ...] = self._outputs.labels
        else:
            self._sizes = tuple(len(f.lift[-1]) for f in surrogate.arrays.fields)
            self.labels = tuple(f"nodal values of {f.name}" for f in surrogate.arrays.fields)

    def sizes(self, settings: Settings, kind: str = EVALUATE) -> tuple[int, ...]:
        """Lengths of the output vectors; raises a ValueError if there is no answer of this kind with these settings."""
        if settings.adjoint and self._outputs is None:
            raise ValueError(
                "adjoint corrects outputs, but this service gives nodal values: start it with --point, --mean, "
                "--through or --functional"
            )
        if settings.adjoint and not self._exact.is_quadratic:
            raise ValueError("adjoint does not correct outputs of nonlinear equations: leave it out")
        if settings.bounded and not self.has_bounds:
            raise ValueError(
                f"the formulation {self._exact.name} has no bound in the energy norm against the discrete solution: "
                "leave out tol, bound and adjoint in config, or train with the formulation energy"
            )
        if not settings.bounded:
            return self._sizes
        if kind == EVALUATE and self._outputs is not None and not all(self._outputs.is_affine):
            label = self.labels[self._outputs.is_affine.index(False)]
            raise ValueError(
                f"the output {label} is not affine in the solution and has no bound: leave out tol, bound and adjoint "
                "in config"
            )
        return (*self._sizes, 1 if self._outputs is None else len(self._outputs))

    def check(self, y: Sequence[float]) -> None:
        """Raises a ValueError if y is outside of the parameters."""
        self._surrogate.problem.check_parameters(y)

    def answers(self, questions: Sequence[Question]) -> list[Any]:
        """The answers to questions with the same key: lists of vectors (n,) for values, vectors for derivatives."""
        first = questions[0]
        y, vectors = (
            torch.tensor(rows, dtype=torch.float64, device=self._exact.frame.device)
            for rows in ([q.y for q in questions], [q.vector for q in questions])
        )
        if first.kind == EVALUATE:
            found = [vector.tolist() for vector in self._values(y, first.settings)]
            return [list(rows) for rows in zip(*found, strict=True)]
        derivative = self._gradient if first.kind == GRADIENT else self._tangent
        rows: list[Any] = derivative(y, vectors, first.settings, first.output).tolist()
        return rows

    # ---- for batches: y (B, p)

    @torch.no_grad()
    def _values(self, y: Tensor, settings: Settings) -> list[Tensor]:
        """The output vectors (B, n), with bounds as the last one if they are wanted."""
        if settings.tol is None:
            w, bound = self._surrogate.coefficients(y), None
        else:
            better = self._surrogate.improve(y, settings.tol, norm="energy")
            w, bound = better.w, better.error_bound
        if not settings.bounded:
            return self._vectors(w, y)
        if self._outputs is None:
            bound = error_bound(self._exact, w, y, "energy") if bound is None else bound
            return [*self._vectors(w, y), bound[:, None]]
        few = max(1, DUALS // len(self._outputs))
        parts = [
            certify_outputs(self._exact, w[i : i + few], y[i : i + few], self._outputs, settings.adjoint)
            for i in range(0, len(y), few)
        ]
        return [torch.cat([part.values for part in parts]), torch.cat([part.error_bound for part in parts])]

    def _gradient(self, y: Tensor, weights: Tensor, settings: Settings, output: int) -> Tensor:
        """(B, p) weightsᵀ J for weights (B, n) on one output vector."""
        with torch.enable_grad():
            free = y.clone().requires_grad_()
            if _solved(settings):
                w = differentiable_solve(self._exact, free, TOL)
            else:
                w = differentiable_coefficients(self._surrogate, free)
            goal = (self._vectors(w, free)[output] * weights).sum()
            (found,) = torch.autograd.grad(goal, free)
        return found

    @torch.no_grad()
    def _tangent(self, y: Tensor, v: Tensor, settings: Settings, output: int) -> Tensor:
        """(B, n) J v for directions v (B, p), of one output vector."""
        if _solved(settings):
            w, dw = tangent_solve(self._exact, y, v, TOL)
        else:
            w, dw = coefficient_tangent(self._surrogate, y, v)
        found: Tensor = torch.func.jvp(lambda *at: self._vectors(*at)[output], (w, y), (dw, v))[1]
        return found

    def _vectors(self, w: Tensor, y: Tensor) -> list[Tensor]:
        """The output vectors (B, n) of w (B, Nhat)."""
        if self._outputs is not None:
            return [self._outputs.values(w, y)]
        return list(self._exact.synthesise(w, y).values())


def _solved(settings: Settings) -> bool:
    """Whether answers are those of the discrete solution, up to their bounds."""
    return settings.tol is not None or settings.adjoint
