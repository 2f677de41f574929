"""What error bounds, studies and PETSc ask of a formulation, with the answers of those that have nothing special.

B samples, K finest cells, m numbers in a cell's state, d dimension.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from fem_frames.formulations.error_norms import MissingFormsError
from fem_frames.mesh.geometry import Floats
from fem_frames.operators.cells import cells_last
from fem_frames.operators.frame import Frame
from fem_frames.operators.linear import LinearOperator


class BoundParts(ABC):
    """The parts of `Formulation` that training does not need."""

    name: ClassVar[str]
    frame: Frame
    wide: torch.dtype

    @abstractmethod
    def C(self, y: Tensor) -> LinearOperator:
        """C_y, a small symmetric block on every finest cell, for states scaled by |T|^{1/2}."""

    @abstractmethod
    def check_parameters(self, y: Tensor) -> Tensor:
        """y as (B, p); raises a ValueError if y does not fit the problem."""

    @abstractmethod
    def coefficient(self, y: Tensor) -> Tensor:
        """(K, Q, B) positive values of a_y at the quadrature points, or (K, 1, B) if a_y is constant on cells."""

    @abstractmethod
    def mean(self, values: Tensor) -> Tensor:
        """(K, B) means over cells of values (K, Q, B) at quadrature points, or (K, 1, B) constant on cells."""

    # ---- parts of error bounds

    def coercivity(self, y: Tensor) -> Tensor:
        """(B,) the least eigenvalue of C_y over all cells, or a lower bound for it."""
        raise ValueError(f"the formulation {self.name} has no lower bound for C_y, which this error bound needs")

    def relative_coercivity(self, y: Tensor, nominal: Tensor) -> Tensor | None:
        """(B,) numbers α with C_y ≥ α C_{y0} on every cell, for one nominal y0 (1, p).

        None leaves error bounds to `coercivity`, which needs C_y to be positive definite on every cell.
        """
        return None

    def norm_blocks(self, y: Tensor) -> LinearOperator:
        """C on states in the norm called "energy" against the discrete solution, √⟨C 𝒟e, 𝒟e⟩: C_y unless overridden."""
        return self.C(y)

    def monotonicity(self, y: Tensor) -> Tensor:
        """(B,) numbers α: the second derivative is at least α times that of the norm for all w; 0 if none is known."""
        return torch.ones(self.check_parameters(y).shape[0], dtype=self.wide, device=self.frame.device)

    def check_density(self, y: Tensor) -> None:
        """Raises a ValueError if the functional has no minimum for a sample; solvers and training runs ask first."""
        self.check_parameters(y)

    def flux(self, w: Tensor, y: Tensor) -> Tensor:
        """(B, K, d) the flux of u = lift + F w on every finest cell, for equations that have one."""
        raise ValueError(f"the formulation {self.name} defines no flux: give it a method flux(w, y)")

    @abstractmethod
    def energy_norm(self, states: Tensor, y: Tensor) -> Tensor:
        """(B,) the norm called "energy", from states (B, K m)."""

    def dual_norm(self, w: Tensor, y: Tensor) -> Tensor | None:
        """(B,) the dual norm of the residual of a weak form, an estimate of the error; None for other formulations."""
        return None

    def solution_norm(self, y: Tensor) -> Tensor:
        """(B or 1,) the norm called "functional" of the exact solution."""
        raise ValueError(f"the formulation {self.name} has no norm of the functional")

    def gradient_norm(self, states: Tensor, y: Tensor) -> Tensor:
        """(B,) ‖a_y^{1/2} ∇u‖ from states whose first entries are the gradient of u."""
        a = self.mean(self.coefficient(y))  # (K, B)
        gradient = cells_last(states, states.shape[-1] // len(a))[:, : self.frame.arrays.dimension]
        return (a * gradient.to(self.wide).square().sum(1)).sum(0).sqrt()

    def squares(self, y: Tensor) -> tuple[Tensor, Tensor] | None:
        """(K, r, m, B) and (K, r, B): blocks R and offsets r of a loss Σ |R s + r|²; None for other densities."""
        return None

    def weak_blocks(self, y: Tensor) -> tuple[Tensor, Tensor] | None:
        """(K, m, m, B) C and (K, m, B) ℓ of a loss |Dᵀ(C s - ℓ)|²; None for other losses."""
        return None

    def oscillation(self, y: Tensor) -> Tensor:
        """(B or 1,) the part of a loss of squares, or of an equation, that no discrete function can change."""
        return torch.zeros(1, dtype=self.wide, device=self.frame.device)

    def state_functional(self, y: Tensor) -> Tensor | None:
        """(K, m, B) a load on the states of u; None if the formulation has none."""
        return None

    def affine_weights(self) -> Callable[[Floats], Floats] | None:
        """Maps y (B, p) to few weights (B, Q) in which A_y and the load are linear; None if none are known."""
        return None

    # ---- PETSc's part; `ufl` comes from `fem_frames.fenicsx.door`

    @classmethod
    def reference_solvers(cls, dimension: int) -> tuple[str, ...]:
        """The PETSc solvers for reference solutions in this dimension; the first is the default."""
        return ("lu",)

    @staticmethod
    def forms(V: Any, w: Any, a: Any, f: Any, y: Any, dx: Any) -> tuple[Any, Any, Any]:
        """Bilinear form, linear form and loss of w in UFL; a and f are a_y and f_y at points, y (p,) is a constant.

        A formulation whose `forms` has an argument `length` gets L, the unit of lengths in its functional. Without
        `forms`, test sets are solved without PETSc.
        """
        raise MissingFormsError

    @classmethod
    def has_forms(cls) -> bool:
        """Whether PETSc can solve this formulation."""
        return cls.forms is not BoundParts.forms
