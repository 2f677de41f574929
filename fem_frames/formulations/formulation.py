"""The interface of the variational formulations: C_y, A_y, load, loss and residual for batches of y.

u = lift + F w: the frame represents the free part, the lift satisfies the essential boundary data. For a batch of y the
data have the batch last, like states.

B samples, K finest cells, Q quadrature points in a cell, m numbers in a cell's state, L local dofs, d dimension.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fem_frames.formulations.bound_parts import BoundParts
from fem_frames.formulations.boundary_terms import BoundaryTerms
from fem_frames.formulations.error_norms import ErrorNorm
from fem_frames.formulations.formulation_checks import (
    check_boundary,
    check_class,
    check_coefficients,
    check_fields,
    check_variant,
    checked_parameters,
)
from fem_frames.formulations.frame_loads import NominalLoad, SplitLoad
from fem_frames.formulations.registry import register
from fem_frames.frame import level_matrices
from fem_frames.frame.fields import Field
from fem_frames.operators.cells import CellBlocks, Congruent, PointSum
from fem_frames.operators.checking import is_plain, unchecked, unseen
from fem_frames.operators.coordinates import Coordinates
from fem_frames.operators.frame import Frame, make_synthesis
from fem_frames.operators.linear import LinearOperator, dot
from fem_frames.operators.products import accumulation_dtype
from fem_frames.operators.recursion import FrameSynthesis, SparseOperator
from fem_frames.problem.definition import Problem
from fem_frames.problem.evaluation import NotFiniteError, PointData


class Formulation(BoundParts):
    """A variational formulation of a problem over one frame: its fields, and a density on the states of cells.

    Subclasses with a name are registered: commands and solvers find them by it. See docs/formulations.md.
    """

    name: ClassVar[str]
    symbol: ClassVar[str] = ""
    """Short name for tables, such as (E)."""
    fields: ClassVar[tuple[Field, ...]]
    """The unknown functions, with their elements and essential boundary data."""
    neumann_is_load: ClassVar[bool] = True
    """Whether Neumann data are a load on the first field; otherwise they are essential for another field."""
    norms: ClassVar[tuple[ErrorNorm, ...]]
    """The norms of `fem_frames.error_bound`; the first is the default. There may be none."""
    no_bound: ClassVar[str] = "no bound: the formulation has none"
    """Why errors have no bounds, if `norms` is empty."""
    robin: ClassVar[bool] = False
    """Whether problems may have Robin conditions; others are refused."""

    is_quadratic: ClassVar[bool] = True
    """Whether the loss is quadratic in w, with the matrix `stable(y)` for all w; otherwise C_y, A_y, `stable` and
    `bpx` are those at w = 0."""
    is_assembled: ClassVar[bool] = True
    """Whether A_y is the sum of `local_matrices`: multigrid and reduced bases need it."""
    has_blocks: ClassVar[bool] = False
    """Whether local matrices come from blocks on the states of cells, `curvature_blocks`."""
    is_diffusion: ClassVar[bool] = False
    """Whether C_y is one number per cell times the identity on gradients, `cell_diffusion`."""
    is_robin_diffusion: ClassVar[bool] = False
    """Whether A_y consists of `cell_diffusion` and the masses of Robin facets."""
    data_of_y: ClassVar[bool] = False
    """Whether boundary data may depend on y; `loss` and the loads must then use `lift(y)` and `boundary`."""

    def __init_subclass__(cls, variant_of: type[Formulation] | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if variant_of is not None:  # another realisation of a formulation, found by `variant` and not by name
            cls.name, cls.symbol = variant_of.name, variant_of.symbol
        elif "name" in vars(cls):
            check_class(cls)
            register(cls)

    @classmethod
    def variant(cls, problem: Problem) -> type[Formulation]:
        """The class that realises this formulation for a problem; raises a ValueError if it has none."""
        check_variant(cls, problem)
        return cls

    @classmethod
    def error_norm(cls, name: str | None = None) -> ErrorNorm:
        """The norm with this name, by default the first; raises a ValueError that lists the norms."""
        if not cls.norms:
            raise ValueError(cls.no_bound)
        found = [norm for norm in cls.norms if name in (None, norm.name)]
        if not found:
            names = " and ".join(repr(norm.name) for norm in cls.norms)
            raise ValueError(f"norm is {name!r}; the formulation {cls.name} has bounds in the norm {names}")
        return found[0]

    def __init__(self, frame: Frame, problem: Problem) -> None:
        if not isinstance(frame, Frame) or not isinstance(problem, Problem):
            kinds = f"{type(frame).__name__} and {type(problem).__name__}"
            raise ValueError(f"a Frame and a Problem are expected, not {kinds}; use Frame.from_arrays and make_problem")
        arrays = frame.arrays
        if arrays.formulation != self.name:
            raise ValueError(
                f"the frame was exported for {arrays.formulation!r}, but this is {self.name!r}: "
                f"export it again with formulation={self.name!r}, or use make_formulation(frame, problem)"
            )
        if type(self).variant(problem) is not type(self):
            raise ValueError(f"{type(self).__name__} has no Robin conditions: use make_formulation(frame, problem)")
        check_fields(arrays, type(self))
        arrays.check_problem(problem)
        check_boundary(arrays, type(self), problem)
        problem = arrays.with_tags(problem)
        self.frame, self.problem = frame, problem
        self.wide = accumulation_dtype(frame.dtype)
        """The precision of coefficients, sources and sums over cells: float32 if the frame is in half precision."""
        points = level_matrices.quadrature_points(arrays)
        try:
            coefficient_tables = problem.tabulate(points, arrays.regions)
        except (ValueError, IndexError) as error:
            raise ValueError(f"problem {problem.name} does not fit the frame: {error}") from error
        self._points = self._as_data(points)  # (K, Q, d)
        self._data = self._point_data(tuple(self._as_data(table) for table in coefficient_tables))
        self._weights = self._as_data(arrays.rule_weights)  # (Q,)
        self._sum_points = PointSum(self._weights)
        lift = self._as_data(level_matrices.lift_states(arrays))[None]  # (1, K m)
        self._lift = self.rounded(lift, "the Dirichlet data")
        self.derived: dict[str, Any] = {}
        """What solvers make of the formulation once, such as the levels of multigrid."""
        self.boundary: BoundaryTerms | None = None
        """Boundary data that are evaluated for each y; None if there are none."""
        if arrays.boundary is not None:
            self.boundary = BoundaryTerms(arrays, problem, self.wide, frame.device)
        self.lifted = bool((self._lift != 0).any()) or self.lift_needs_y
        """Whether the lift has nonzero states; a constant lift of P1 has none."""

    def _point_data(self, tables: tuple[Tensor, ...]) -> PointData:
        """What evaluates a_y and f_y; `tables` come from `Problem.tabulate`."""
        return PointData(self.problem, self._points, tables)

    @property
    def lift_needs_y(self) -> bool:
        """Whether essential boundary data, and so the lift, depend on y."""
        return self.boundary is not None and self.boundary.lifts

    # ---- data for a batch of y

    def check_parameters(self, y: Tensor) -> Tensor:
        """y as (B, p); raises a ValueError if y does not fit the problem."""
        return checked_parameters(self, y)

    def coefficient(self, y: Tensor) -> Tensor:
        """(K, Q, B) positive values of a_y at the quadrature points, or (K, 1, B) if a_y is constant on cells."""
        wide = self.check_parameters(y).to(self.wide)
        a = self._data.coefficient(wide).permute(1, 2, 0)
        tests = unseen(a)
        if tests is not None:
            low, high = torch.aminmax(a.detach())
            tests.append((low > 0) & (high < torch.inf))
        elif is_plain(a):
            self._data.check_coefficient(a.permute(2, 0, 1), wide)
        return a

    def source(self, y: Tensor) -> Tensor:
        """(K, Q, B) finite values of f_y at the quadrature points, or (1, 1, 1) for a number."""
        if not callable(self.problem.source):
            return torch.full((1, 1, 1), float(self.problem.source), dtype=self.wide, device=self.frame.device)
        wide = self.check_parameters(y).to(self.wide)
        f = self._data.source(wide)
        if is_plain(f):
            self._data.check_source(f, wide)
        return f.permute(1, 2, 0)

    def check_values(self, y: Tensor) -> None:
        """Raises a ValueError if a_y is not positive and finite; in training steps only a test is kept."""
        self.coefficient(y)

    def check_data(self, y: Tensor) -> None:
        """Raises a ValueError if a_y is not positive, f_y is not finite, or the precision is too low for them."""
        y = self.check_parameters(y)
        with unchecked():
            a, f = self.coefficient(y), self.source(y)
        self._data.check_coefficient(a.permute(2, 0, 1), y)
        self._data.check_source(f.permute(2, 0, 1), y)
        self.C(y)
        self.lift(y)
        self.frame_functional(y)

    def mean(self, values: Tensor) -> Tensor:
        """(K, B) means over cells of values (K, Q, B) at quadrature points, or (K, 1, B) constant on cells."""
        return (values[:, 0] if values.shape[1] == 1 else self._sum_points(values)).contiguous()

    def rounded(self, values: Tensor, what: str) -> Tensor:
        """The values in the frame's dtype; raises a ValueError if they exceed its range."""
        made = values.to(self.frame.dtype)
        if is_plain(made) and self.wide != self.frame.dtype and not torch.isfinite(made).all():
            raise NotFiniteError(
                f"{what} has values up to {float(values.abs().max()):.2g}, too large for {self.frame.dtype}: "
                "scale the problem, or use bfloat16 or float32"
            )
        return made

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

    def curvature_blocks(self, y: Tensor, w: Tensor | None = None) -> Tensor:
        """(K, m, m, B) symmetric blocks on states that local matrices come from, at frame coefficients w or at 0."""
        raise ValueError(f"the formulation {self.name} has no blocks: use local_matrices")

    def energy_matrices(self, y: Tensor) -> Tensor:
        """(K, L, L, B) local matrices of the energy that `normalisation="energy"` means."""
        return self.local_matrices(y)

    def cell_diffusion(self, y: Tensor) -> Tensor:
        """(K, B) the number per cell that C_y consists of, in the wide precision, for formulations of diffusion."""
        raise ValueError(f"the formulation {self.name} is not of diffusion: its C_y is not one number per cell")

    def A(self, y: Tensor) -> Congruent:
        """A_y on free nodal values, without a global matrix: gathers to cells, applies local matrices, and sums.

        See "Matrix-free numerical realization" in the paper.
        """
        return Congruent(self.localisation, CellBlocks(self.local_matrices(y).to(self.frame.dtype)))

    def stable(self, y: Tensor) -> Congruent:
        """DᵀC_yD."""
        return Congruent(self.frame.D, self.C(y))

    def bpx(self, y: Tensor) -> Congruent:
        """HᵀA_yH, the same matrix by another route."""
        return Congruent(self.frame.H, self.A(y))

    def curvature(self, w: Tensor, y: Tensor) -> LinearOperator:
        """The second derivative of the loss at w, divided by 2 · factor: DᵀC_yD for all w if the loss is quadratic."""
        return self.stable(y)

    def nodal_curvature(self, v: Tensor, y: Tensor) -> LinearOperator:
        """The same in the nodal basis at nodal values v = H w: A_y for all v if the loss is quadratic."""
        return self.A(y)

    def local_curvature(self, w: Tensor, y: Tensor) -> Tensor:
        """(K, L, L, B) the local matrices that `nodal_curvature` consists of, at frame coefficients w."""
        return self.local_matrices(y)

    def lift(self, y: Tensor | None) -> Tensor:
        """(B or 1, K m) states of the lift; y is needed if they depend on it."""
        if self.boundary is None or not self.boundary.lifts:
            return self._lift
        if y is None:
            raise ValueError("the boundary data depend on y: pass y (B, p) too")
        states = self.boundary.lift_states(self.check_parameters(y).to(self.wide))
        return self.rounded(states, "the lift of the boundary data")

    def states(self, w: Tensor, y: Tensor | None = None) -> Tensor:
        """(B, K m) states of u = lift + F w; y is needed if boundary data depend on it."""
        return self.frame.D(w) + self.lift(y) if self.lifted else self.frame.D(w)

    def synthesise(self, w: Tensor, y: Tensor | None = None) -> dict[str, Tensor]:
        """Nodal values of lift + F w on the finest mesh for each field: (B, points), for σ (B, facets).

        y (B, p) is needed if the lift depends on it, as `lift_needs_y` says.
        """
        return self.nodal_fields(self.frame.H(w), y)

    def nodal_fields(self, nodal: Tensor, y: Tensor | None = None) -> dict[str, Tensor]:
        """All nodal values of each field from the free ones (B, N) of all fields."""
        return self.coordinates.fields(nodal, y)

    # ---- loss and residual

    factor: ClassVar[float]
    """The loss is factor · ⟨M w, w⟩ - 2 factor · ⟨load, w⟩ + constant."""

    @abstractmethod
    def loss(self, w: Tensor, y: Tensor) -> Tensor:
        """(B,) the functional that the solution minimises, at u = lift + F w, from the states of the cells."""

    @abstractmethod
    def loss_and_residual(self, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) the loss and (B, Nhat) the residual from the same states, for a training step."""

    def residual(self, w: Tensor, y: Tensor) -> Tensor:
        """(B, Nhat) DᵀC_yD w - load, computed from the states: the gradient of the loss divided by 2 · factor."""
        return self.loss_and_residual(w, y)[1]

    def residual_product(self, w: Tensor, z: Tensor, y: Tensor) -> Tensor:
        """(B,) ⟨residual, z⟩ for z (B, Nhat), whose derivative in y is what adjoint solves need."""
        return dot(self.residual(w, y), z)

    @abstractmethod
    def functional(self, y: Tensor) -> Tensor:
        """(B or 1, N) load of source and Neumann data on the nodal basis, in the wide precision."""

    @abstractmethod
    def state_load(self, y: Tensor) -> Tensor:
        """(B or 1, K m) load on states: from the lift, and for (LS) also from the source."""

    @abstractmethod
    def constant(self, y: Tensor) -> Tensor:
        """(B,) the loss at w = 0."""

    def lift_functional(self, y: Tensor) -> Tensor:
        """(B or 1,) the load of source and Neumann data, applied to the lift."""
        return torch.zeros(1, dtype=self.wide, device=self.frame.device)

    def load(self, y: Tensor) -> Tensor:
        """(B, Nhat) right-hand side of DᵀC_yD w = load."""
        self.check_values(y)
        load = self.frame.D.T(self.state_load(y)) + self.frame_functional(y)
        return load.expand(self.check_parameters(y).shape[0], -1)

    def nodal_load(self, y: Tensor) -> Tensor:
        """(B, N) right-hand side of A_y v = load, where v are the free nodal values of u - lift."""
        load = self.nodal_differential.T(self.state_load(y)) + self.functional(y).to(self.frame.dtype)
        return load.expand(self.check_parameters(y).shape[0], -1)

    def nodal_loss(self, v: Tensor, y: Tensor) -> Tensor:
        """(B,) the loss as an expanded quadratic form in nodal values v = H w: unstable if it is small, to compare."""
        quadratic = self.A(y).quadratic(v) - 2 * dot(self.nodal_load(y), v)
        return self.factor * quadratic + self.constant(y)

    def to(self, dtype: torch.dtype | str | None = None, device: torch.device | str | None = None) -> Formulation:
        """The formulation on the same frame in another precision or on another device."""
        return type(self)(self.frame.to(dtype, device), self.problem)

    def check_coefficients(self, w: Tensor, y: Tensor) -> None:
        """Raises a ValueError unless w (B, Nhat) and y fit the formulation and each other."""
        check_coefficients(self, w, y)

    def frame_functional(self, y: Tensor) -> Tensor:
        """(B or 1, Nhat) load of source and Neumann data on the frame."""
        return self.on_frame(self.functional(y))

    def on_frame(self, functional: Tensor) -> Tensor:
        """(B or 1, Nhat) a functional on the frame, from the nodal basis (B or 1, N) in the wide precision."""
        return self.rounded(self._wide_synthesis.T(functional), "the load")

    @property
    def load_needs_y(self) -> bool:
        """Whether `functional` may depend on y."""
        return True

    def split_load(self, y: Tensor) -> SplitLoad:
        """The load of `frame_functional` in the form that loss and residual need: in half precision, as states."""
        nominal = None if self.wide == self.frame.dtype else self._nominal_load()
        return SplitLoad(self.frame.D, on_frame=self.frame_functional(y)) if nominal is None else nominal.load(self, y)

    def with_load_on_frame(self) -> Formulation:
        """The same with the load on the frame in half precision too, as a plain implementation has it."""
        made = type(self)(self.frame, self.problem)
        made.derived["nominal load"] = None
        return made

    def _nominal_load(self) -> NominalLoad | None:
        if "nominal load" not in self.derived:
            self.derived["nominal load"] = NominalLoad.of(self)
        found: NominalLoad | None = self.derived["nominal load"]
        return found

    def state_slope(self, w: Tensor, y: Tensor) -> Tensor:
        """(B, K m) the derivative of the density at the states of lift + F w: Dᵀ maps it to residual + load."""
        return self.C(y)(self.frame.D(w)) - self.state_load(y)

    @property
    def point_values(self) -> int:
        """Numbers per quadrature point that an evaluation holds at the same time, roughly."""
        return 1

    # Made when first needed: training needs none of them.
    @cached_property
    def coordinates(self) -> Coordinates:
        """Converts between free nodal values, fields and frame coefficients."""
        return Coordinates(self.frame.arrays, self.problem)

    @cached_property
    def localisation(self) -> SparseOperator:
        """E: free nodal values to their copies on every cell."""
        return self.frame.localisation()

    @cached_property
    def nodal_differential(self) -> SparseOperator:
        """D in the nodal basis: free nodal values to states."""
        matrix = level_matrices.nodal_differential_matrix(self.frame.arrays)
        return SparseOperator(matrix, self.frame.dtype, self.frame.device)

    @cached_property
    def _wide_synthesis(self) -> FrameSynthesis:
        return make_synthesis(self.frame.arrays, self.wide, self.frame.device)
