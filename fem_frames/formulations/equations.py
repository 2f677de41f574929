"""Formulations of the user's equations, made from their densities: no formulation is written by hand for them.

A quadratic energy has blocks C_y and all that follows from them. An energy ½ ∫ a |∇u|² with loads is (E), with its
faster kernels. Others follow their own second derivatives.

B samples, K finest cells, m numbers in a cell's state, L local nodal values, N nodal values, Nhat frame coefficients.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from fem_frames.formulations.dual_norm import DualNorm
from fem_frames.formulations.energy import Energy
from fem_frames.formulations.error_norms import ErrorNorm
from fem_frames.formulations.formulation import Formulation
from fem_frames.formulations.place_values import CellwiseValues, LoadIntegral
from fem_frames.formulations.quadratic import QuadraticFormulation
from fem_frames.formulations.second_derivatives import SecondDerivative
from fem_frames.formulations.state_integrals import StateIntegral
from fem_frames.frame import level_matrices
from fem_frames.frame.elements import element_class
from fem_frames.frame.fields import Field, field_data
from fem_frames.operators.cells import cells_last, flat_first
from fem_frames.operators.checking import is_plain, is_watched, unseen
from fem_frames.operators.frame import Frame, make_synthesis
from fem_frames.operators.linear import LinearOperator, dot
from fem_frames.problem.definition import Problem
from fem_frames.problem.densities import ENERGY, Density
from fem_frames.problem.evaluation import NotFiniteError
from fem_frames.problem.parameters import numbers

_CLASSES: WeakKeyDictionary[Density, type[Formulation]] = WeakKeyDictionary()


def equation_class(problem: Problem) -> type[Formulation]:
    """The class of formulations for the equation of a problem, made from its density."""
    density = problem.density()
    if density not in _CLASSES:
        small = density.reduced
        base: type[Formulation] = QuadraticEquation
        more: dict[str, object] = {}
        if density.kind != ENERGY:
            base = DualNorm
        elif density.diffusion is not None:
            base = DiffusionEquation
        elif not small.is_linear:
            from fem_frames.formulations.nonlinear import NonlinearEquation

            base, more = NonlinearEquation, NonlinearEquation.bounds_of(small)
        fields = tuple(Field(part.name, element_class(part.element), field_data(part.name)) for part in small.parts)
        names = {"fields": fields, "density": small, "__doc__": f"The equation of {problem.name}.", **more}
        _CLASSES[density] = type(f"{base.__name__}OfUser", (base,), names, variant_of=Energy)
    return _CLASSES[density]


class EquationLoads:
    """Loads on nodal values, for fields whose states have none: (B, N) on free values, and on the lift."""

    def __init__(self, formulation: Formulation, density: Density) -> None:
        self._formulation, self._arrays = formulation, formulation.frame.arrays
        made = [(load.field, LoadIntegral(self._arrays, load.integral, formulation._as_data)) for load in density.loads]
        self._varying = [(field, load) for field, load in made if load.depends_on_y]
        exact = [
            (load.field, LoadIntegral(self._arrays, load.integral, lambda a: torch.as_tensor(np.array(a))))
            for load, (_, own) in zip(density.loads, made, strict=True)
            if not own.depends_on_y
        ]
        none = torch.zeros(1, formulation.problem.parameters.dimension, dtype=torch.float64)
        # Data that do not depend on y are computed in float64 and rounded once.
        self._fixed = {name: values[0].numpy() for name, values in self._on_points(exact, none).items()}
        self.depends_on_y = bool(self._varying)

    def _on_points(self, loads: list[tuple[str, LoadIntegral]], y: Tensor) -> dict[str, Tensor]:
        """(B or 1, points) minus the loads on all hats, by field."""
        found: dict[str, Tensor] = {}
        for field, load in loads:
            values = load(y)
            found[field] = found[field] + values if field in found else values
        return found

    @cached_property
    def fixed(self) -> np.ndarray:
        """(N,) the part that does not depend on y, on free nodal values, in float64."""
        parts = []
        for f in self._arrays.fields:
            values = self._fixed.get(f.name)
            parts.append(np.zeros(len(f.free[-1])) if values is None else values[f.free[-1]])
        return np.concatenate(parts)

    def varying(self, y: Tensor) -> Tensor:
        """(B, N) the part that depends on y, on free nodal values."""
        values, parts = self._on_points(self._varying, y), []
        for f in self._arrays.fields:
            free = torch.as_tensor(np.array(f.free[-1]), device=y.device)
            # (N, B): the batch stays last in memory.
            parts.append(values[f.name].T[free] if f.name in values else y.new_zeros(len(free), 1))
        return torch.cat([part.expand(-1, len(y)) for part in parts]).T

    def on_lift(self, y: Tensor) -> Tensor:
        """(B,) all loads, applied to the lift."""
        lifted = [f.name for f in self._arrays.fields if f.lift[-1].any() or f.shapes]
        if not lifted:
            return torch.zeros(len(y), dtype=y.dtype, device=y.device)
        zeros = torch.zeros(len(y), self._arrays.nodal_size, dtype=y.dtype, device=y.device)
        lifts = self._formulation.nodal_fields(zeros, y)
        return self.on_values({name: lifts[name] for name in lifted}, y)

    def on_values(self, fields: Mapping[str, Tensor], y: Tensor) -> Tensor:
        """(B,) all loads, applied to fields with nodal values (B or 1, points)."""
        found, varying = torch.zeros(len(y), dtype=y.dtype, device=y.device), self._on_points(self._varying, y)
        for name, values in fields.items():
            if name in self._fixed:
                found = found + values @ torch.as_tensor(self._fixed[name]).to(y)
            if name in varying:
                found = found + (values * varying[name]).sum(1)
        return found


class EquationParts:
    """What all formulations of equations share: their loads on nodal values."""

    density: ClassVar[Density]
    frame: Any
    wide: torch.dtype

    def _set_up_loads(self) -> None:
        self._own_loads = EquationLoads(self, self.density)  # type: ignore[arg-type]
        fixed = torch.as_tensor(self._own_loads.fixed)[None]  # (1, N)
        if not torch.isfinite(fixed).all():
            raise NotFiniteError("a load of the equation is not finite: change the equation")
        self._fixed = fixed.to(self.wide).to(self.frame.device)
        on_frame = make_synthesis(self.frame.arrays, torch.float64, torch.device("cpu")).T(fixed)
        self._fixed_on_frame = self.rounded(on_frame, "the load").to(self.frame.device)  # type: ignore[attr-defined]

    def functional(self, y: Tensor) -> Tensor:
        """(B or 1, N) the loads on nodal values."""
        y = self.check_parameters(y).to(self.wide)  # type: ignore[attr-defined]
        if not self._own_loads.depends_on_y:
            return self._fixed
        return self._tested(self._fixed + self._own_loads.varying(y), y, "a load")

    def frame_functional(self, y: Tensor) -> Tensor:
        """(B or 1, Nhat) the same loads on the frame."""
        if not self._own_loads.depends_on_y:
            return self._fixed_on_frame
        return Formulation.frame_functional(self, y)  # type: ignore[arg-type]

    @property
    def load_needs_y(self) -> bool:
        return self._own_loads.depends_on_y

    def load_on(self, fields: Mapping[str, Tensor], y: Tensor) -> Tensor:
        """(B,) the loads on nodal values, applied to fields with nodal values (B or 1, points)."""
        return self._own_loads.on_values(fields, y)

    def lift_functional(self, y: Tensor) -> Tensor:
        return self._own_loads.on_lift(self.check_parameters(y).to(self.wide))  # type: ignore[attr-defined]

    def affine_weights(self) -> None:
        return None

    def _tested(self, values: Tensor, y: Tensor, what: str) -> Tensor:
        """The values (B, …), if they are finite; in training steps only a test is kept."""
        tests = unseen(values)
        if tests is not None:
            tests.append(torch.isfinite(values.detach()).all())
        elif is_plain(values) and not torch.isfinite(values).all():
            sample = int((~torch.isfinite(values)).nonzero()[0, 0])
            raise NotFiniteError(
                f"{what} of the equation is not finite for y = "
                f"{numbers(y.reshape(-1, y.shape[-1])[sample].tolist())}: change the equation, or the parameters"
            )
        return values


class StateEquation(EquationParts, Formulation):
    """Energies that are evaluated as integrals over the states of cells."""

    factor = 0.5
    data_of_y = True

    def __init__(self, frame: Frame, problem: Problem) -> None:
        super().__init__(frame, problem)
        self._integrals = [
            StateIntegral(frame.arrays, self.density, number, self._as_data)
            for number in range(len(self.density.integrals))
        ]
        self._set_up_loads()

    def coefficient(self, y: Tensor) -> Tensor:
        raise ValueError(f"the problem {self.problem.name} has an equation of its own, and no coefficient a")

    source = coefficient

    def check_values(self, y: Tensor) -> None:
        self.check_parameters(y)

    def check_data(self, y: Tensor) -> None:
        y = self.check_parameters(y)
        self.C(y)
        self.lift(y)
        self.frame_functional(y)

    def _slope(self, s: Tensor, y: Tensor, less: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B,) the integrals for states s (K, m, B), and (K, m, B) their derivatives, less the states (K, m, 1)."""
        y = self.check_parameters(y).to(self.wide)
        slope = torch.zeros_like(s) if less is None else (-less).expand_as(s).contiguous()
        value = torch.zeros(s.shape[2], dtype=self.wide, device=self.frame.device)
        for integral in self._integrals:
            value = value + integral.add_slope(s, y, slope)
        return value, slope

    def _energy(self, s: Tensor, y: Tensor) -> Tensor:
        y = self.check_parameters(y).to(self.wide)
        return sum((integral.value(s, y) for integral in self._integrals), torch.zeros_like(s[0, 0]))

    def loss(self, w: Tensor, y: Tensor) -> Tensor:
        self.check_coefficients(w, y)
        s = self._cells(w, y)
        found = self._energy(s, y) - self.split_load(y).value(w, flat_first(s, w)) - self.lift_functional(y)
        return self._tested(found, y, "the energy")

    def loss_and_residual(self, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self.check_coefficients(w, y)
        s, load = self._cells(w, y), self.split_load(y)
        value, slope = self._slope(s, y, load.states)
        loss = value - load.value(w, flat_first(s, w)) - self.lift_functional(y)
        return self._tested(loss, y, "the energy"), load.residual(flat_first(slope, w), w)

    def state_slope(self, w: Tensor, y: Tensor) -> Tensor:
        return flat_first(self._slope(self._cells(w, y), y)[1], w)

    def residual_product(self, w: Tensor, z: Tensor, y: Tensor) -> Tensor:
        slope = self._slope(self._cells(w, y), y)[1]
        tested = cells_last(self.frame.D(z), slope.shape[1]).to(self.wide)
        return (slope * tested).sum((0, 1)) - dot(self.frame_functional(y), z)

    def _cells(self, w: Tensor, y: Tensor) -> Tensor:
        """(K, m, B) states of the frame coefficients w in the wide precision."""
        return self._wide_cells(self.states(w, y))

    def _wide_cells(self, states: Tensor) -> Tensor:
        """(K, m, B) states (B, K m) in the wide precision."""
        return cells_last(states, level_matrices.state_size(self.frame.arrays)).to(self.wide)


class QuadraticEquation(StateEquation, QuadraticFormulation):
    """A quadratic energy of the user: C_y is its second derivative, averaged over the points of each cell."""

    norms = (ErrorNorm("energy", "energy norm", "√⟨C_y 𝒟e, 𝒟e⟩", "discrete solution"),)

    def C(self, y: Tensor) -> LinearOperator:
        if is_watched(y):
            return super().C(y)
        wide, (K, m, B) = self.check_parameters(y).to(self.wide), self._sizes(y)
        made = SecondDerivative(self._integrals, wide, (K, m), self.frame.dtype)
        ones = torch.ones(K, m, B, dtype=self.wide, device=self.frame.device)
        sums = self._checked("second derivatives", lambda _: made.cells(ones), y, [(K, m, B)])
        self.rounded(sums, "C_y")
        return made

    def _checked_blocks(self, y: Tensor) -> Tensor:
        """(K, m, m, B) the blocks, finite; second derivatives are symmetric."""
        K, m, B = self._sizes(y)
        return self._checked("second derivatives", self.blocks, y, [(K, m, m, B)])

    def blocks(self, y: Tensor) -> Tensor:
        K, m, B = self._sizes(y)
        blocks = torch.zeros(K, m, m, B, dtype=self.wide, device=self.frame.device)
        for integral in self._integrals:
            integral.add_blocks(blocks, self.check_parameters(y).to(self.wide))
        return blocks

    def state_functional(self, y: Tensor) -> Tensor:
        K, m, B = self._sizes(y)
        zero = torch.zeros(K, m, B, dtype=self.wide, device=self.frame.device)
        return -self._slope(zero, y)[1]

    def state_load(self, y: Tensor) -> Tensor:
        y, sizes = self.check_parameters(y), self._sizes(y)

        def load(y: Tensor) -> Tensor:
            lift = self._wide_cells(self.lift(y).expand(y.shape[0], -1))
            return -self._slope(lift, y)[1]  # in one pass over the cells, without any blocks

        return flat_first(self.rounded(self._checked("first derivatives", load, y, [sizes]), "the load"), y)

    def oscillation(self, y: Tensor) -> Tensor:
        y = self.check_parameters(y)
        return self._energy(torch.zeros(self._sizes(y), dtype=self.wide, device=self.frame.device), y)

    def _checked_load(self, y: Tensor) -> Tensor:
        K, m, B = self._sizes(y)
        return self._checked("first derivatives", self.state_functional, y, [(K, m, B)])


class DiffusionEquation(EquationParts, Energy):
    """An energy ½ ∫ a_y |∇u|² of the user with loads: (E), whose coefficient is a program."""

    def __init__(self, frame: Any, problem: Problem) -> None:
        super().__init__(frame, problem)
        self._set_up_loads()
        diffusion = self.density.diffusion
        assert diffusion is not None
        self._diffusion = CellwiseValues(frame.arrays, diffusion, self._as_data)

    def coefficient(self, y: Tensor) -> Tensor:
        """(K, Q, B) a_y at the quadrature points, or (K, 1, B): the sum over the groups of cells."""
        wide = self.check_parameters(y).to(self.wide)
        a = self._diffusion(wide)
        tests = unseen(a)
        if tests is not None:
            low, high = torch.aminmax(a.detach())
            tests.append((low > 0) & (high < torch.inf))
        elif is_plain(a):
            self._data.check_coefficient(a.permute(2, 0, 1), wide)
        return a
