"""The energy formulation (E) of problems with Robin conditions: the trace of u is a function of states with values.

B samples, K finest cells, d dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fem_frames.formulations.energy import Energy
from fem_frames.formulations.error_norms import ErrorNorm
from fem_frames.formulations.quadratic import QuadraticFormulation
from fem_frames.frame.elements import P1Values
from fem_frames.frame.fields import Field


class RobinEnergy(QuadraticFormulation, variant_of=Energy):
    """(E) plus ½ ∫ k u² - ∫ k u_outside u over the parts of the boundary where a_y ∂u/∂n = k (u_outside - u).

    `make_formulation` chooses it for problems with Robin conditions. See docs/formulations.md.
    """

    fields = (Field("u", P1Values),)
    source_at_points = True
    robin = True
    is_robin_diffusion = True
    norms = (ErrorNorm("energy", "energy norm", "√(∫ a |∇e|² + ∫ k e² on the Robin part)", "discrete solution"),)

    @classmethod
    def reference_solvers(cls, dimension: int) -> tuple[str, ...]:
        return Energy.reference_solvers(dimension)

    @staticmethod
    def forms(V: Any, w: Any, a: Any, f: Any, y: Any, dx: Any) -> tuple[Any, Any, Any]:
        return Energy.forms(V, w, a, f, y, dx)

    def cell_diffusion(self, y: Tensor) -> Tensor:
        return self.mean(self.coefficient(y))

    def nodal_load(self, y: Tensor) -> Tensor:
        if self.lifted:
            return super().nodal_load(y)
        return self.functional(y).to(self.frame.dtype).expand(self.check_parameters(y).shape[0], -1)

    def blocks(self, y: Tensor) -> Tensor:
        a = self.mean(self.coefficient(y))  # (K, B)
        weights = torch.ones(1 + self.frame.arrays.dimension, dtype=self.wide, device=self.frame.device)
        weights[0] = 0.0  # the value has no energy inside
        return torch.diag(weights)[None, :, :, None] * a[:, None, None]

    def flux(self, w: Tensor, y: Tensor) -> Tensor:
        """(B, K, d) a_y ∇u with the mean of a_y over each cell."""
        states = self.states(w, y).unflatten(-1, (len(self.frame.arrays.volumes), -1))
        return self.mean(self.coefficient(y)).T[..., None] * (states[..., 1:] / self.volume_roots[:, None])

    def coercivity(self, y: Tensor) -> Tensor:
        """Zero: inside the domain the value of u has no energy. Bounds use `relative_coercivity`."""
        return torch.zeros(len(self.check_parameters(y)), dtype=self.wide, device=self.frame.device)

    def relative_coercivity(self, y: Tensor, nominal: Tensor) -> Tensor:
        """min a_y / a_{y0} over cells and k_y / k_{y0} over the quadrature points of Robin facets."""
        assert self.boundary is not None
        y, nominal = self.check_parameters(y), self.check_parameters(nominal)
        a = self.mean(self.coefficient(y)) / self.mean(self.coefficient(nominal))  # (K, B)
        if not self.boundary.has_robin:  # no facet of the mesh has the condition
            return a.amin(0)
        k = self.boundary.transfer(y.to(self.wide)) / self.boundary.transfer(nominal.to(self.wide))  # (B, F, Q)
        return torch.minimum(a.amin(0), k.amin((1, 2)))
