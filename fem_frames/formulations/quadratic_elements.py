"""The energy formulation in quadratic elements (P2): diffusion, and a reaction in subclasses.

A P2 function is the sum of a field in P1 and of edge bubbles, so its value and its gradient at a point are sums of the
shifted states of both fields.

B samples, K finest cells, Q quadrature points in a cell, m numbers in a cell's state, d dimension.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fem_frames.formulations.energy import Energy
from fem_frames.formulations.formulation import ErrorNorm, Formulation
from fem_frames.formulations.quadratic import QuadraticFormulation
from fem_frames.frame import level_matrices
from fem_frames.frame.edge_bubbles import EdgeBubbles
from fem_frames.frame.elements import P1Values
from fem_frames.frame.fields import Field, bubble_values
from fem_frames.mesh.geometry import Floats
from fem_frames.problem.definition import Problem


class P2Energy(QuadraticFormulation):
    """Minimise ½ ∫ a_y |∇u|² + ½ ∫ r_y u² - ∫ f_y u over u in P2, with essential data or an insulated boundary.

    r_y = 0 unless a subclass has a `reaction`. See docs/formulations.md.
    """

    name = "energy-p2"
    symbol = "(E), P2"
    fields = (Field("u", P1Values), Field("u bubbles", EdgeBubbles, bubble_values))
    norms = (ErrorNorm("energy", "energy norm", "√∫ (a |∇e|² + r e²)", "discrete solution"),)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "reaction" in vars(cls) and "forms" not in vars(cls):  # those of diffusion lack the reaction
            cls.forms = Formulation.forms  # type: ignore[method-assign]

    @classmethod
    def variant(cls, problem: Problem) -> type[Formulation]:
        for condition in getattr(problem, "conditions", ()):
            if condition.kind == "neumann" and not condition.value.is_zero:
                raise ValueError(
                    f"{condition.text} is not zero: the formulation {cls.name} has no load on edge bubbles at the "
                    "boundary; write an Equation(Field('u', 'P2'), energy=…) with an integral over ds"
                )
        return super().variant(problem)

    @classmethod
    def reference_solvers(cls, dimension: int) -> tuple[str, ...]:
        return Energy.reference_solvers(dimension)

    @staticmethod
    def forms(V: Any, w: Any, a: Any, f: Any, y: Any, dx: Any) -> tuple[Any, Any, Any]:
        return Energy.forms(V, w, a, f, y, dx)

    def reaction(self, y: Tensor) -> Tensor | None:
        """(K, Q, B) r_y at the quadrature points, or (K, 1, B) constant on cells, in the wide precision; None for 0."""
        return None

    def blocks(self, y: Tensor) -> Tensor:
        a, r = self.coefficient(y), self.reaction(y)
        pairs = self._stiffness[:, None] if a.shape[1] == 1 else self._pairs_of_gradients
        found = torch.einsum("kqij,kqb->kijb", pairs, a)
        if r is not None:
            mass = self._pairs_of_values
            found = found + torch.einsum("kqij,kqb->kijb", mass.sum(1, keepdim=True) if r.shape[1] == 1 else mass, r)
        return found

    def state_functional(self, y: Tensor) -> Tensor:
        return torch.einsum("kqm,kqb->kmb", self._load, self._whole_source(y))

    def coercivity(self, y: Tensor) -> Tensor:
        """Zero: states of both fields whose sum is constant have no energy. Bounds use `relative_coercivity`."""
        return torch.zeros(len(self.check_parameters(y)), dtype=self.wide, device=self.frame.device)

    def relative_coercivity(self, y: Tensor, nominal: Tensor) -> Tensor:
        """min a_y / a_{y0} and r_y / r_{y0} over the quadrature points."""
        least = _least_ratios(self.coefficient(y), self.coefficient(nominal))
        r, r0 = self.reaction(y), self.reaction(nominal)
        return least if r is None or r0 is None else torch.minimum(least, _least_ratios(r, r0))

    def flux(self, w: Tensor, y: Tensor) -> Tensor:
        """(B, K, d) a_y ∇u at the centres of the cells, with the mean of a_y over each cell."""
        arrays = self.frame.arrays
        states = self.states(w, y).unflatten(-1, (len(arrays.volumes), -1))
        d, places = arrays.dimension, level_matrices.state_slices(arrays).values()
        gradient = sum(states[..., place.start + 1 : place.start + 1 + d] for place in places)
        return self.mean(self.coefficient(y)).T[..., None] * (gradient / self.volume_roots[:, None])

    # ---- tables

    def _at(self, barycentric: Floats) -> Floats:
        """(K, Q, 1 + d, m) value and gradient of u at points of the cells, from states that are not scaled."""
        arrays = self.frame.arrays
        points = np.einsum("qn,knd->kqd", barycentric, arrays.points[arrays.levels[-1].cells])
        parts = [level_matrices.shifted_units(arrays, f, points) for f in arrays.fields]  # (K, Q, c, c)
        return np.concatenate([np.swapaxes(part[..., : 1 + arrays.dimension], 2, 3) for part in parts], axis=3)

    @cached_property
    def _stiffness(self) -> Tensor:
        """(K, m, m) means of ∇u · ∇u over cells, exactly: the rule has the moments of cells up to degree 2."""
        d = self.frame.arrays.dimension
        points = np.concatenate([np.full((1, d + 1), 1 / (d + 1)), np.eye(d + 1)])
        weights = np.concatenate([[(d + 1) / (d + 2)], np.full(d + 1, 1 / ((d + 1) * (d + 2)))])
        gradients = self._at(points)[:, :, 1:]
        return self._as_data(np.einsum("q,kqni,kqnj->kij", weights, gradients, gradients, optimize=True))

    @cached_property
    def _pairs_of_gradients(self) -> Tensor:
        """(K, Q, m, m) ∇u · ∇u at the quadrature points, times their weights."""
        arrays = self.frame.arrays
        gradients = self._at(arrays.rule_points)[:, :, 1:]
        return self._as_data(np.einsum("q,kqni,kqnj->kqij", arrays.rule_weights, gradients, gradients, optimize=True))

    @cached_property
    def _pairs_of_values(self) -> Tensor:
        """(K, Q, m, m) u² at the quadrature points, times their weights."""
        arrays = self.frame.arrays
        values = self._at(arrays.rule_points)[:, :, 0]
        return self._as_data(np.einsum("q,kqi,kqj->kqij", arrays.rule_weights, values, values))

    @cached_property
    def _load(self) -> Tensor:
        """(K, Q, m) u at the quadrature points, times their weights and |T|^{1/2}."""
        arrays = self.frame.arrays
        weights = np.sqrt(arrays.volumes)[:, None] * arrays.rule_weights
        return self._as_data(weights[..., None] * self._at(arrays.rule_points)[:, :, 0])


def _least_ratios(of_y: Tensor, of_nominal: Tensor) -> Tensor:
    """(B,) the least ratio where the second one is positive; both (K, Q or 1, ·)."""
    return torch.where(of_nominal > 0, of_y / of_nominal, torch.inf).amin((0, 1))
