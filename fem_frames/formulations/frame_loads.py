"""The load of source and Neumann data in loss and residual: a vector ℓ on the frame, or states p with Dᵀp = ℓ.

A frame is redundant: F maps coefficients w ≠ 0 to zero, and neither loss nor ⟨ℓ, w⟩ change along them. In half
precision both do. The tables of D are rounded, so D maps other coefficients to zero; ℓ is not orthogonal to those,
even if it is exact, and the loss falls along them without bound. Partial sums of Dᵀ are rounded too, and where the
states that they start from are the same for all y, so are the rounding errors. Both together move the coefficients in
the same direction in all steps of a long training.

So half precision takes the load of the nominal parameters as states, p = ∂ψ/∂s at their solution, ψ the density. All
that enters the residual is then in the range of the rounded Dᵀ, and p is near the states from which it is subtracted.

B samples, K finest cells, m numbers in a cell's state, N nodal values, Nhat frame coefficients.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fem_frames.operators.linear import ExplicitOperator, dot

if TYPE_CHECKING:
    from fem_frames.formulations.formulation import Formulation

TOLERANCE = 1e-8
"""Relative residual of the nominal solution."""
NEGLIGIBLE = 1e-2
"""Size of a part of the load, in units of the rounding error of half precision, that may be left out."""


@dataclass(frozen=True, eq=False)
class SplitLoad:
    """A load ℓ = Dᵀp + r with states p and a vector r on the frame; either of them may be missing."""

    D: ExplicitOperator
    states: Tensor | None = None  # (K, m, 1) p in the wide precision
    on_frame: Tensor | None = None  # (B or 1, Nhat) r
    on_lift: Tensor | float = 0.0  # (B or 1,) ⟨p, states of the lift⟩

    def value(self, w: Tensor, s: Tensor) -> Tensor:
        """(B,) ⟨ℓ, w⟩, for the states s (B, K m) of lift + F w in the wide precision."""
        if self.states is None:
            assert self.on_frame is not None
            return dot(self.on_frame, w)
        value = s @ self.states.flatten() - self.on_lift
        return value if self.on_frame is None else value + dot(self.on_frame, w)

    def taken_from(self, slope: Tensor) -> Tensor:
        """slope - p, for states (B, K m) in any precision."""
        return slope if self.states is None else slope - self.states.flatten().to(slope.dtype)

    def residual(self, difference: Tensor, w: Tensor) -> Tensor:
        """Dᵀ(slope - p) - r in the shape of w, for slope - p (B, K m) in any precision."""
        found = self.D.T(difference.to(self.D.dtype))
        return (found if self.on_frame is None else found - self.on_frame).reshape(w.shape)


@dataclass(frozen=True, eq=False)
class NominalLoad:
    """The load of the nominal parameters as states."""

    states: Tensor  # (K, m, 1) in the wide precision
    functional: Tensor | None  # (1, N) the same load on nodal values; None if the load is the same for all y

    @classmethod
    def of(cls, formulation: Formulation) -> NominalLoad | None:
        """None where the nominal parameters have no solution."""
        with ThreadPoolExecutor(1) as thread:
            # The first call may come from a training step or from torch.func, which would both see what is done here.
            found = thread.submit(cls._of, formulation).result()
        if found is None:
            return None
        device, functional = formulation.frame.device, found.functional
        return cls(found.states.to(device), None if functional is None else functional.to(device))

    @classmethod
    @torch.no_grad()
    def _of(cls, formulation: Formulation) -> NominalLoad | None:
        """The same on the CPU."""
        from fem_frames.solvers.conjugate_gradients import ConvergenceError
        from fem_frames.solvers.solution import solve

        formulation = formulation.to(formulation.frame.dtype, "cpu")
        y = torch.as_tensor(formulation.problem.parameters.nominal).reshape(1, -1)  # (1, p)
        exact, wide = formulation.to(torch.float64), formulation.wide
        try:
            w = solve(exact, y, TOLERANCE).w
        except (ConvergenceError, ValueError):
            return None
        p = exact.state_slope(w, y)  # (1, K m)
        error = (exact.frame.D.T(p) - exact.frame_functional(y)).norm()
        if not float(error) < NEGLIGIBLE * torch.finfo(formulation.frame.dtype).eps * float(p.norm()):
            return None
        formulation.frame_functional(y.to(wide))  # raises if half precision cannot hold it
        formulation.rounded(p, "the load")
        functional = formulation.functional(y.to(wide)) if formulation.load_needs_y else None
        return cls(p.view(len(formulation.frame.arrays.volumes), -1, 1).to(wide), functional)

    def load(self, formulation: Formulation, y: Tensor) -> SplitLoad:
        """The load of y: what differs from that of the nominal parameters is a vector on the frame."""
        rest: Tensor | None = None
        on_lift: Tensor | float = 0.0
        if self.functional is not None:
            rest = formulation.on_frame(formulation.functional(y) - self.functional)
        if formulation.lifted:
            on_lift = formulation.lift(y).to(formulation.wide) @ self.states.flatten()
        return SplitLoad(formulation.frame.D, self.states, rest, on_lift)
