"""The energy formulation (E), in one to three dimensions.

B samples, K finest cells, Q quadrature points in a cell, L local dofs, N nodal values, Nhat frame coefficients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fem_frames.formulations.formulation import ErrorNorm, Formulation
from fem_frames.frame import level_matrices
from fem_frames.frame.elements import P1
from fem_frames.frame.fields import Field
from fem_frames.frame.sparse import SparseMatrix
from fem_frames.mesh.geometry import Floats
from fem_frames.operators.cells import CellScalars, cells_last, flat_first
from fem_frames.operators.checking import is_plain, unseen
from fem_frames.operators.frame import Frame, make_synthesis
from fem_frames.operators.linear import dot
from fem_frames.operators.recursion import SparseOperator
from fem_frames.problem.coefficients import Affine, ByRegion
from fem_frames.problem.definition import Problem


class Energy(Formulation):
    """(E): minimise ½ ⟨a_y ∇u, ∇u⟩ - ⟨f_y, u⟩ - ⟨h, u⟩ on the Neumann boundary. See docs/formulations.md."""

    name = "energy"
    symbol = "(E)"
    fields = (Field("u", P1),)
    is_diffusion = True
    data_of_y = True
    factor = 0.5
    norms = (ErrorNorm("energy", "energy norm", "√∫ a |∇e|²", "discrete solution"),)

    def __init__(self, frame: Frame, problem: Problem) -> None:
        super().__init__(frame, problem)
        arrays = frame.arrays
        free, lift = arrays.fields[0].free[-1], arrays.fields[0].lift[-1]
        # Data that do not depend on y are computed in float64 and rounded once.
        nodal, on_lift = arrays.neumann_load[free], float(arrays.neumann_load @ lift)
        if not callable(problem.source):
            f = np.full(self._points.shape[:2], float(problem.source))
            nodal = nodal + level_matrices.nodal_functionals(arrays, f)
            on_lift += float(np.einsum("k,q,kq,kq->", arrays.volumes, arrays.rule_weights, f, self._lift_values()))
        self._fixed = torch.as_tensor(nodal)[None].to(self.wide).to(frame.device)  # (1, N)
        exact = make_synthesis(arrays, torch.float64, torch.device("cpu"))
        on_frame = self.rounded(exact.T(torch.as_tensor(nodal)[None]), "the load")
        self._fixed_on_frame = on_frame.to(frame.device)  # (1, Nhat)
        self._on_lift = on_lift

    @classmethod
    def variant(cls, problem: Problem) -> type[Formulation]:
        if cls is Energy and getattr(problem, "equation", None) is not None:
            from fem_frames.formulations.equations import equation_class

            return equation_class(problem)
        if cls is Energy and any(c.kind == "robin" for c in getattr(problem, "conditions", ())):
            from fem_frames.formulations.robin import RobinEnergy

            return RobinEnergy
        return super().variant(problem)

    @classmethod
    def reference_solvers(cls, dimension: int) -> tuple[str, ...]:
        return ("cg", "lu")

    @staticmethod
    def forms(V: Any, w: Any, a: Any, f: Any, y: Any, dx: Any) -> tuple[Any, Any, Any]:
        from fem_frames.fenicsx.door import ufl

        u, v = ufl.TrialFunction(V), ufl.TestFunction(V)
        bilinear = a * ufl.inner(ufl.grad(u), ufl.grad(v)) * dx
        return bilinear, f * v * dx, (0.5 * a * ufl.inner(ufl.grad(w), ufl.grad(w)) - f * w) * dx

    def coercivity(self, y: Tensor) -> Tensor:
        return self.mean(self.coefficient(y)).amin(0)

    def flux(self, w: Tensor, y: Tensor) -> Tensor:
        """(B, K, d) a_y ∇u with the mean of a_y over each cell."""
        arrays = self.frame.arrays
        gradient = self.states(w, y).reshape(len(w), len(arrays.volumes), arrays.dimension)
        roots = torch.as_tensor(np.sqrt(arrays.volumes)).to(gradient)[:, None]
        return self.mean(self.coefficient(y)).T[..., None] * (gradient / roots)

    def energy_norm(self, states: Tensor, y: Tensor) -> Tensor:
        return self.gradient_norm(states, y)

    def affine_weights(self) -> Callable[[Floats], Floats] | None:
        # The energy is linear in a, and these coefficients are affine in y; ExpAffine is not.
        if callable(self.problem.source) or type(self.problem.coefficient) not in (ByRegion, Affine):
            return None
        if self.boundary is not None:  # a product of a_y and boundary data is not linear in y
            return None
        return lambda y: np.concatenate([np.ones((len(y), 1)), y], axis=1)

    def C(self, y: Tensor) -> CellScalars:
        # The gradient is constant on cells, so only the mean of a_y enters; it is exact if a_y is constant on cells.
        a = self.mean(self.coefficient(y))
        rounded = self.rounded(a, "the coefficient a")
        tests = unseen(rounded)
        if tests is not None and self.wide != self.frame.dtype:
            tests.append((rounded > 0).all())
        if is_plain(a) and self.wide != self.frame.dtype and not (rounded > 0).all():
            raise ValueError(
                f"a_y has values down to {float(a.min()):.2g}, which are zero in {self.frame.dtype}: "
                "scale the problem, or use bfloat16 or float32"
            )
        return CellScalars(rounded, self.frame.arrays.dimension)

    def cell_diffusion(self, y: Tensor) -> Tensor:
        return self.mean(self.coefficient(y))

    def local_matrices(self, y: Tensor) -> Tensor:
        return self._laplacians[..., None] * self.mean(self.coefficient(y))[:, None, None]

    def functional(self, y: Tensor) -> Tensor:
        load = self._fixed
        if callable(self.problem.source):
            like = y if y.ndim == 2 else y[None]
            if len(self.frame.arrays.rule_weights) == 1:
                load = self._loads(flat_first(self.source(y), like)) + self._fixed
            else:  # several points are summed within their cell first
                local = torch.einsum("kql,kqb->klb", self._hats, self.source(y))
                load = self._wide_localisation.T(flat_first(local, like)) + self._fixed
        if self.boundary is not None and self.boundary.loads:
            load = load + self.boundary.nodal_load(self.check_parameters(y).to(self.wide))
        return load

    def nodal_load(self, y: Tensor) -> Tensor:
        if self.lifted:
            return super().nodal_load(y)
        return self.functional(y).to(self.frame.dtype).expand(self.check_parameters(y).shape[0], -1)

    def state_load(self, y: Tensor) -> Tensor:
        return -self.C(y)(self.lift(y).expand(self.check_parameters(y).shape[0], -1)) if self.lifted else 0 * self._lift

    def constant(self, y: Tensor) -> Tensor:
        value = -self.lift_functional(y)
        if self.lifted:
            lift = self.lift(y).expand(self.check_parameters(y).shape[0], -1)
            value = value + 0.5 * dot(self.C(y)(lift), lift)
        return value.expand(self.check_parameters(y).shape[0])

    def loss(self, w: Tensor, y: Tensor) -> Tensor:
        self.check_coefficients(w, y)
        states = self.states(w, y)
        wide = states.to(self.wide)
        return 0.5 * dot(self.C(y)(states), wide) - self.split_load(y).value(w, wide) - self.lift_functional(y)

    def loss_and_residual(self, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self.check_coefficients(w, y)
        states, load = self.states(w, y), self.split_load(y)
        product, wide = self.C(y)(states), states.to(self.wide)
        energy = 0.5 * dot(product, wide) - load.value(w, wide) - self.lift_functional(y)
        return energy, load.residual(load.taken_from(product), w)

    def residual_product(self, w: Tensor, z: Tensor, y: Tensor) -> Tensor:
        d = self.frame.arrays.dimension
        states, tested = (cells_last(s, d).to(self.wide) for s in (self.states(w, y), self.frame.D(z)))
        energy = (self.cell_diffusion(y) * (states * tested).sum(1)).sum(0)
        return energy - dot(self.functional(y).to(self.wide), self.frame.H(z).to(self.wide))

    def frame_functional(self, y: Tensor) -> Tensor:
        return super().frame_functional(y) if self.load_needs_y else self._fixed_on_frame

    @property
    def load_needs_y(self) -> bool:
        return callable(self.problem.source) or (self.boundary is not None and self.boundary.loads)

    def lift_functional(self, y: Tensor) -> Tensor:
        """(B or 1,) ⟨f_y, lift⟩ + ⟨h, lift⟩."""
        if self.boundary is not None:
            return self.boundary.on_lift(self.check_parameters(y).to(self.wide), self.source(y))
        value = torch.full((1,), self._on_lift, dtype=self.wide, device=self.frame.device)
        if not callable(self.problem.source) or not self.frame.arrays.fields[0].lift[-1].any():
            return value
        return value + (self.source(y) * self._weighted_lift[..., None]).sum((0, 1))

    def _lift_values(self) -> np.ndarray:
        """(K, Q) the lift at the quadrature points."""
        arrays = self.frame.arrays
        return arrays.fields[0].lift[-1][arrays.levels[-1].cells] @ arrays.rule_points.T

    @cached_property
    def _laplacians(self) -> Tensor:
        """(K, L, L) local matrices for a = 1."""
        local = level_matrices.local_states(self.frame.arrays)  # (K, m, L)
        return self._as_data(np.einsum("kml,kmn->kln", local, local))

    @cached_property
    def _hats(self) -> Tensor:
        """(K, Q, L) values of the hats at the quadrature points, times the quadrature weights."""
        arrays = self.frame.arrays
        return self._as_data(np.einsum("k,q,ql->kql", arrays.volumes, arrays.rule_weights, arrays.rule_points))

    @cached_property
    def _loads(self) -> SparseOperator:
        """(N, K) values of the source at the only quadrature point of each cell to the load on the free hats."""
        arrays = self.frame.arrays
        local = level_matrices.localisation_matrix(arrays)  # (K L, N), rows of given nodes are empty
        corner = np.repeat(np.arange(len(local.starts) - 1), np.diff(local.starts))
        K, L = arrays.levels[-1].cells.shape
        hats = (arrays.volumes[:, None] * arrays.rule_weights * arrays.rule_points).reshape(-1)  # (K L,)
        matrix = SparseMatrix.from_entries(local.columns, corner // L, hats[corner], (local.shape[1], K))
        return SparseOperator(matrix, self.wide, self.frame.device)

    @cached_property
    def _weighted_lift(self) -> Tensor:
        """(K, Q) the lift at the quadrature points, times the quadrature weights."""
        arrays = self.frame.arrays
        return self._as_data(np.einsum("k,q,kq->kq", arrays.volumes, arrays.rule_weights, self._lift_values()))

    @cached_property
    def _wide_localisation(self) -> SparseOperator:
        return SparseOperator(level_matrices.localisation_matrix(self.frame.arrays), self.wide, self.frame.device)
