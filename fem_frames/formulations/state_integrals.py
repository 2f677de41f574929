"""Integrals of densities over the cells and boundary facets of a frame's finest mesh, as functions of states.

The state of a cell is a Taylor polynomial, so the state at a quadrature point is its Taylor shift, on the boundary too.

B samples, K finest cells, m numbers in a cell's state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fem_frames.formulations.compiled_sums import CompiledSum, compiled_sum
from fem_frames.formulations.places import AsData, Places, Shifts
from fem_frames.formulations.state_sums import PointTensors, Share, StateSum, TorchSum
from fem_frames.frame.arrays import FrameArrays
from fem_frames.operators.checking import is_watched
from fem_frames.problem.densities import FACETS, RESIDUAL, Density
from fem_frames.problem.differentiation import directional, gradient, with_gradient
from fem_frames.problem.programs import NoProgramError, Program, ProgramBuilder, Value

VALUE, SLOPE, PRODUCT, BLOCKS = "value", "s", "product", "blocks"


class StateIntegral:
    """One integral of a density, its derivatives in the states, and its second derivatives.

    Everything is a sum over points. In float32 and float64 on a processor it runs in compiled code; in torch on other
    devices, while torch records gradients, and where nothing compiles C.
    """

    def __init__(self, arrays: FrameArrays, density: Density, number: int, as_data: AsData) -> None:
        self.integral, self._density, self._number = density.integrals[number], density, number
        self.places = Places(arrays, self.integral)
        self._data = PointTensors(self.places, Shifts(arrays, density.parts, self.places), as_data)
        self._known: dict[tuple[str, bool], list[TorchSum | CompiledSum]] = {}

    def value(self, s: Tensor, y: Tensor) -> Tensor:
        """(B,) the integral for states s (K, m, B), scaled, of an energy."""
        return self._value(VALUE, y, {"s": s})

    def add_slope(self, s: Tensor, y: Tensor, slope: Tensor, v: Tensor | None = None, of: str = SLOPE) -> Tensor:
        """Adds the derivative with respect to s or v to `slope` (K, m, B); returns (B,) the integral."""
        return self._value(of, y, {"s": s} if v is None else {"s": s, "v": v}, slope)

    def add_product(self, s: Tensor, z: Tensor, y: Tensor, out: Tensor) -> None:
        """Adds the second derivative at s, times z (K, m, B), to `out` (K, m, B); rows of tests for a weak form."""
        self._evaluate(PRODUCT, y, {"s": s, "z": z}, out)

    def add_blocks(self, blocks: Tensor, y: Tensor, s: Tensor | None = None) -> None:
        """Adds the second derivatives to `blocks` (K, m, m, B): rows of tests, columns of fields for a weak form."""
        K, m, _, B = blocks.shape
        self._evaluate(BLOCKS, y, {} if s is None else {"s": s}, blocks.view(K, m * m, B))

    def _value(self, *arguments: Any) -> Tensor:
        found = self._evaluate(*arguments)
        assert found is not None
        return found

    def _evaluate(self, kind: str, y: Tensor, states: Mapping[str, Tensor], out: Tensor | None = None) -> Tensor | None:
        like, given = self._data.weights, [y, *states.values()]
        is_fast = like.device.type == "cpu" and all(x.dtype == like.dtype and not is_watched(x) for x in given)
        found = None
        for evaluation in self._evaluations(kind, is_fast):
            found = evaluation(y, states, out)
        return found

    def _evaluations(self, kind: str, is_fast: bool) -> list[TorchSum | CompiledSum]:
        """What evaluates sums of this kind: compiled code if it is wanted and can be had, torch otherwise."""
        if (kind, is_fast) not in self._known:
            made: list[TorchSum | CompiledSum] = []
            for wanted in self._sums(kind):
                compilation = compiled_sum(wanted, self._data) if is_fast else None
                made.append(TorchSum(wanted, self._data) if compilation is None else compilation)
            self._known[kind, is_fast] = made
        return self._known[kind, is_fast]

    def _sums(self, kind: str) -> list[StateSum]:
        """The sums that make the value, a derivative in states, its derivative along a direction, or all blocks."""
        density, program = self._density, self.integral.program
        if kind == VALUE:
            return [StateSum(program, (), True)]
        if kind == BLOCKS:
            return _sums_of_blocks(density.hessians[self._number], self._data.shifts, density.kind != RESIDUAL)
        if kind == PRODUCT:
            tested = density.tests if density.kind == RESIDUAL else density.states
            slopes = gradient(directional(program, density.states, "z"), tested)
        else:
            slopes = with_gradient(program, density.states if kind == SLOPE else density.tests)
        first = len(slopes.results) - density.state_size
        shares = (
            Share(first + j, (i,), (factor,))
            for j, terms in enumerate(self._data.shifts.terms)
            for i, factor in terms
            if slopes.results[first + j] != 0.0
        )
        return [StateSum(slopes, tuple(shares), first > 0)]


def _sums_of_blocks(hessian: Sequence[Sequence[Program]], shifts: Shifts, is_symmetric: bool) -> list[StateSum]:
    """All second derivatives, in few programs: they share most of their operations."""
    m, found = len(hessian), list[StateSum]()
    builder, results, shares = ProgramBuilder(), list[Value](), list[Share]()
    for j, row in enumerate(hessian):
        for k in range(j if is_symmetric else 0, m):
            if row[k].result == 0.0:
                continue
            try:
                (result,) = builder.copied(row[k])
            except NoProgramError:  # too many operations for one program
                found.append(StateSum(builder.program(*results), tuple(shares), False))
                builder, results, shares = ProgramBuilder(), [], []
                (result,) = builder.copied(row[k])
            for a, left in shifts.terms[j]:
                for b, right in shifts.terms[k]:
                    mirrored = is_symmetric and j != k
                    entries = (a * m + b, b * m + a) if mirrored else (a * m + b,)
                    shares.append(Share(len(results), entries, (left, right)))
            results.append(result)
    if results:
        found.append(StateSum(builder.program(*results), tuple(shares), False))
    return found


def gradient_at_zero(density: Density, number: int) -> Program:
    """∂ψ/∂s of an integral at s = 0, a program of x and y."""
    slopes = gradient(density.integrals[number].program, density.states)
    builder = ProgramBuilder()
    return builder.program(*builder.copied(slopes, lambda value: 0.0 if value[0] == "s" else value))


def uses_facets(density: Density) -> bool:
    """Whether boundary facets have integrals."""
    return any(integral.kind == FACETS for integral in density.integrals)
