"""What the variational formulations (E) and (LS) have in common: C_y, A_y, load, loss and residual for batches of y.

u = lift + F w: the frame carries what is free, the lift the essential boundary data. For a batch of y the data are held
with the batch last, like the states they meet.

B samples, K finest cells, Q quadrature points in a cell, m numbers in a cell's state, L local dofs, d dimension.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fem_frames.files import one_line
from fem_frames.formulations.registry import register
from fem_frames.frame import level_matrices
from fem_frames.operators.cells import CellBlocks, Congruent
from fem_frames.operators.checking import NotFiniteError, is_plain, unchecked, unseen
from fem_frames.operators.frame import Frame, make_synthesis
from fem_frames.operators.linear import LinearOperator, dot
from fem_frames.operators.products import accumulation_dtype
from fem_frames.operators.recursion import FrameSynthesis, SparseOperator
from fem_frames.problem.callbacks import called
from fem_frames.problem.coefficients import HOW
from fem_frames.problem.definition import Problem
from fem_frames.problem.parameters import numbers


@dataclass(frozen=True)
class ErrorNorm:
    """A norm in which errors have bounds, and the solution that they are measured against."""

    name: str
    text: str
    """The name in words."""
    formula: str
    """e is the error of u, τ that of σ."""
    against: str
    """"discrete solution", that of the frame's finest mesh, or "exact solution"."""

    def __str__(self) -> str:
        return f"{self.text}, against the {self.against}"


class Formulation(ABC):
    """−div(a_y ∇u) = f_y over one frame."""

    name: ClassVar[str]
    norms: ClassVar[tuple[ErrorNorm, ...]]
    """Those in which `fem_frames.error_bound` has bounds; the first is the default."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" in vars(cls):
            register(cls)

    @classmethod
    def error_norm(cls, name: str | None = None) -> ErrorNorm:
        """The norm of this name, by default the first, or a ValueError that says which there are."""
        found = [norm for norm in cls.norms if name in (None, norm.name)]
        if not found:
            names = " and ".join(repr(norm.name) for norm in cls.norms)
            raise ValueError(f"norm is {name!r}; the formulation {cls.name} has bounds in the norm {names}")
        return found[0]

    def __init__(self, frame: Frame, problem: Problem) -> None:
        if not isinstance(frame, Frame) or not isinstance(problem, Problem):
            raise ValueError(
                f"a Frame and a Problem are expected, not {type(frame).__name__} and {type(problem).__name__}; "
                "make them by Frame.from_arrays and make_problem"
            )
        arrays = frame.arrays
        if arrays.formulation != self.name:
            raise ValueError(
                f"the frame was exported for {arrays.formulation!r}, but this is {self.name!r}: "
                f"export it again with formulation={self.name!r}, or use make_formulation(frame, problem)"
            )
        arrays.check_problem(problem)
        self.frame, self.problem = frame, problem
        self.wide = accumulation_dtype(frame.dtype)
        """Coefficients, sources and sums over cells are computed in this precision: float32 for half."""
        points = level_matrices.quadrature_points(arrays)
        try:
            coefficient_tables = problem.tabulate(points, arrays.regions)
        except (ValueError, IndexError) as error:
            raise ValueError(f"problem {problem.name} does not fit the frame: {error}") from error
        self._tables = tuple(self._as_data(table) for table in coefficient_tables)
        self._points = self._as_data(points)  # (K, Q, d)
        self._weights = self._as_data(arrays.rule_weights)  # (Q,)
        self._lift = self.rounded(
            self._as_data(level_matrices.lift_states(arrays))[None], "the Dirichlet data"
        )  # (1, K m)
        self.lifted = bool((self._lift != 0).any())
        """Whether the lift has states: one that is constant has none."""

    # ---- data for a batch of y

    def check_parameters(self, y: Tensor) -> Tensor:
        """y as (B, p), or a ValueError that says what is wrong with it."""
        p = self.problem.parameters.dimension
        if not isinstance(y, Tensor):
            raise ValueError(f"y must be a torch tensor, not {type(y).__name__}: use torch.as_tensor(y, dtype=…)")
        if y.ndim not in (1, 2) or y.shape[-1] != p:
            raise ValueError(
                f"y has shape {tuple(y.shape)}, but {self.problem.name} has p = {p} parameters: "
                f"pass (B, {p}) or ({p},); is it another problem's y?"
            )
        if y.dtype not in (self.frame.dtype, self.wide):  # it is widened before it is used
            raise ValueError(f"y is in {y.dtype}, the frame in {self.frame.dtype}: pass y.to({self.frame.dtype})")
        if y.device != self.frame.device:
            raise ValueError(f"y is on {y.device}, the frame on {self.frame.device}: move one of them")
        if y.numel() == 0:
            raise ValueError("y is empty: pass at least one sample")
        y = y if y.ndim == 2 else y[None]
        if is_plain(y) and not torch.isfinite(y).all():
            sample = int((~torch.isfinite(y)).any(1).nonzero()[0, 0])
            raise NotFiniteError(f"y of sample {sample} is not finite: {y[sample].tolist()}")
        return y

    def coefficient(self, y: Tensor) -> Tensor:
        """(K, Q, B) values of a_y at the quadrature points, (K, 1, B) where constant on cells; positive."""
        wide = self.check_parameters(y).to(self.wide)
        coefficient = self.problem.coefficient
        function = getattr(coefficient, "function", None)
        values = called("the coefficient", function, HOW, coefficient.evaluate, self._tables, wide)
        a = self._spread(values, y, "the coefficient a")
        tests = unseen(a)
        if tests is not None:
            low, high = torch.aminmax(a.detach())
            tests.append((low > 0) & (high < torch.inf))
        elif is_plain(a):
            self._check_coefficient(a, wide)
        return a

    def source(self, y: Tensor) -> Tensor:
        """(K, Q, B) values of f_y at the quadrature points, (1, 1, 1) for a number; finite."""
        function = self.problem.source
        if not callable(function):
            return torch.full((1, 1, 1), float(function), dtype=self.wide, device=self.frame.device)
        wide = self.check_parameters(y).to(self.wide)[:, None, None, :]
        values = called("the source", function, HOW, function, self._points, wide)
        f = self._spread(values, y, "the source f")
        if is_plain(f):
            self._check_source(f, wide[:, 0, 0])
        return f

    def check_data(self, y: Tensor) -> None:
        """A ValueError if a_y or f_y are wrong, or do not fit the precision."""
        with unchecked():
            a, f = self.coefficient(y), self.source(y)
        self._check_coefficient(a, self.check_parameters(y))
        self._check_source(f, self.check_parameters(y))
        self.C(y)
        self.frame_functional(y)

    def _check_coefficient(self, a: Tensor, y: Tensor) -> None:
        low, high = torch.aminmax(a)
        if not (low > 0 and high < torch.inf):  # false for NaN too
            wrong = (~((a > 0) & (a < torch.inf))).nonzero()[0]
            cell, q, sample = (int(i) for i in wrong)
            raise ValueError(
                f"a_y must be positive and finite, but it is {float(a[cell, q, sample]):.3g} for y = "
                f"{numbers(y[sample].tolist())} in cell {cell} at x = {numbers(self._points[cell, q].tolist())}; "
                f"fix the coefficient or choose y inside the parameters {self.problem.parameters}"
            )

    def _check_source(self, f: Tensor, y: Tensor) -> None:
        if not torch.isfinite(f).all():
            cell, q, sample = (int(i) for i in (~torch.isfinite(f)).nonzero()[0])
            raise NotFiniteError(
                f"f is {float(f[cell, q, sample])} for y = {numbers(y[sample].tolist())} at x = "
                f"{numbers(self._points[cell, q].tolist())}: fix the source"
            )

    def mean(self, values: Tensor) -> Tensor:
        """(K, B) means over the cells of values (K, Q, B) at quadrature points, or (K, 1, B) of constants."""
        return (values[:, 0] if values.shape[1] == 1 else (self._weights[:, None] * values).sum(1)).contiguous()

    def rounded(self, values: Tensor, what: str) -> Tensor:
        """The values in the frame's dtype, or a ValueError if its range is too small for them."""
        made = values.to(self.frame.dtype)
        if is_plain(made) and self.wide != self.frame.dtype and not torch.isfinite(made).all():
            raise NotFiniteError(
                f"{what} has values up to {float(values.abs().max()):.2g}, too large for {self.frame.dtype}: "
                "scale the problem, or use bfloat16 or float32"
            )
        return made

    def _spread(self, found: Any, y: Tensor, what: str) -> Tensor:
        """The values of a function, (B, K, Q), (B, K, 1), (K, Q) or one number, as (K, Q, B) or (K, 1, B)."""
        B, (K, Q) = y.shape[0] if y.ndim == 2 else 1, self._points.shape[:2]
        try:
            values = torch.as_tensor(found, device=self.frame.device)
            values = values if values.is_complex() else values.to(self.wide)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{what} is a {type(found).__name__}, not a tensor: {one_line(error)}; {HOW}") from error
        if values.is_complex():
            raise ValueError(f"{what} is complex: return real numbers")
        if values.ndim not in (0, 3) and values.shape != (K, Q):
            fits = False
        else:
            fits = all(n in (1, m) for n, m in zip(values.shape[::-1], (Q, K, B), strict=False))
        if not fits:
            raise ValueError(
                f"{what} has values of shape {tuple(values.shape)}, which do not fit {(B, K, Q)}; "
                "functions of x and y write x[..., i] and y[..., k]"
            )
        return values.expand(B, K, values.shape[-1] if values.ndim and values.shape[-1] == 1 else Q).permute(1, 2, 0)

    def _as_data(self, table: np.ndarray) -> Tensor:
        tensor = torch.as_tensor(np.array(table))  # a copy: the arrays are read-only
        return tensor.to(self.frame.device, self.wide if tensor.is_floating_point() else tensor.dtype)

    # ---- operators

    @abstractmethod
    def C(self, y: Tensor) -> LinearOperator:
        """C_y, a small symmetric block on every finest cell, for states scaled by |T|^{1/2}."""

    @abstractmethod
    def local_matrices(self, y: Tensor) -> Tensor:
        """(K, L, L, B) local stiffness matrices."""

    def A(self, y: Tensor) -> Congruent:
        """A_y on nodal values at free points: gathered to the cells, times local matrices, added up; no global matrix.

        See "Matrix-free numerical realization" in the paper.
        """
        return Congruent(self.localisation, CellBlocks(self.local_matrices(y).to(self.frame.dtype)))

    def stable(self, y: Tensor) -> Congruent:
        """DᵀC_yD."""
        return Congruent(self.frame.D, self.C(y))

    def bpx(self, y: Tensor) -> Congruent:
        """HᵀA_yH, the same matrix by another route."""
        return Congruent(self.frame.H, self.A(y))

    def states(self, w: Tensor) -> Tensor:
        """(B, K m) states of u = lift + F w."""
        return self.frame.D(w) + self._lift if self.lifted else self.frame.D(w)

    def synthesise(self, w: Tensor) -> dict[str, Tensor]:
        """Of each field, the nodal values of lift + F w on the finest mesh: (B, points), for σ (B, facets)."""
        return self.nodal_fields(self.frame.H(w))

    def nodal_fields(self, nodal: Tensor) -> dict[str, Tensor]:
        """Of each field, all nodal values from the free ones (B, N) of all fields."""
        found, start = {}, 0
        for f in self.frame.arrays.fields:
            free = torch.as_tensor(np.array(f.free[-1]), device=nodal.device)
            lift = torch.as_tensor(np.array(f.lift[-1])).to(nodal)
            part = nodal[..., start : start + len(free)]
            found[f.name] = lift.expand(*nodal.shape[:-1], -1).index_copy(-1, free, part + lift[free])
            start += len(free)
        return found

    # ---- loss and residual

    factor: ClassVar[float]
    """The loss is factor · ⟨M w, w⟩ - 2 factor · ⟨load, w⟩ + constant."""

    @abstractmethod
    def loss(self, w: Tensor, y: Tensor) -> Tensor:
        """(B,) the functional that the solution minimises, at u = lift + F w, from the states of the cells."""

    @abstractmethod
    def loss_and_residual(self, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) the loss and (B, Nhat) the residual, from the same states: what a training step needs."""

    def residual(self, w: Tensor, y: Tensor) -> Tensor:
        """(B, Nhat) DᵀC_yD w - load, from the states: the gradient of the loss, divided by 2 · factor."""
        return self.loss_and_residual(w, y)[1]

    @abstractmethod
    def functional(self, y: Tensor) -> Tensor:
        """(B or 1, N) load of source and Neumann data on the nodal basis, in the wide precision."""

    @abstractmethod
    def state_load(self, y: Tensor) -> Tensor:
        """(B or 1, K m) load that acts on states: from the lift, and for (LS) from the source."""

    @abstractmethod
    def constant(self, y: Tensor) -> Tensor:
        """(B,) the loss at w = 0."""

    def lift_functional(self, y: Tensor) -> Tensor:
        """(B or 1,) the loads of source and Neumann data on the lift."""
        return torch.zeros(1, dtype=self.wide, device=self.frame.device)

    def load(self, y: Tensor) -> Tensor:
        """(B, Nhat) right-hand side of DᵀC_yD w = load."""
        self.coefficient(y)  # what is wrong with a_y shall be found here too
        load = self.frame.D.T(self.state_load(y)) + self.frame_functional(y)
        return load.expand(self.check_parameters(y).shape[0], -1)

    def nodal_load(self, y: Tensor) -> Tensor:
        """(B, N) right-hand side of A_y v = load, v the free nodal values of u - lift."""
        load = self.nodal_differential.T(self.state_load(y)) + self.functional(y).to(self.frame.dtype)
        return load.expand(self.check_parameters(y).shape[0], -1)

    def nodal_loss(self, v: Tensor, y: Tensor) -> Tensor:
        """(B,) the loss as an expanded quadratic form in nodal values v = H w, without the stable representation.

        For comparison: it loses all digits where the loss is small.
        """
        quadratic = self.A(y).quadratic(v) - 2 * dot(self.nodal_load(y), v)
        return self.factor * quadratic + self.constant(y)

    def to(self, dtype: torch.dtype | str | None = None, device: torch.device | str | None = None) -> Formulation:
        """The formulation on the same frame in another precision or on another device."""
        return type(self)(self.frame.to(dtype, device), self.problem)

    def check_coefficients(self, w: Tensor, y: Tensor) -> None:
        self.check_parameters(y)
        self.frame.D.check(w, self.frame.frame_size)
        rows, samples = (w.shape[0] if w.ndim == 2 else 1), (y.shape[0] if y.ndim == 2 else 1)
        if w.ndim > 2 or (rows != samples and samples != 1):
            raise ValueError(
                f"w has shape {tuple(w.shape)} for {samples} samples y: pass (B, Nhat) = ({samples}, {w.shape[-1]})"
            )
        if is_plain(w) and not torch.isfinite(w).all():
            sample = int((~torch.isfinite(w.reshape(-1, w.shape[-1]))).any(1).nonzero()[0, 0])
            raise NotFiniteError(
                f"frame coefficients of sample {sample} are not finite: the net or solver overflowed in "
                f"{w.dtype}; try a smaller rate or a wider dtype"
            )

    def frame_functional(self, y: Tensor) -> Tensor:
        """(B or 1, Nhat) load of source and Neumann data on the frame."""
        return self.rounded(self._wide_synthesis.T(self.functional(y)), "the load")

    # Made when first needed: training needs none of them.

    @cached_property
    def localisation(self) -> SparseOperator:
        """E: free nodal values to their copies on every cell."""
        return self.frame.localisation()

    @cached_property
    def nodal_differential(self) -> SparseOperator:
        """D in the nodal basis: free nodal values to states."""
        return SparseOperator(
            level_matrices.nodal_differential_matrix(self.frame.arrays), self.frame.dtype, self.frame.device
        )

    @cached_property
    def _wide_synthesis(self) -> FrameSynthesis:
        return make_synthesis(self.frame.arrays, self.wide, self.frame.device)
