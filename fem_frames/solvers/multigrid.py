"""Batched multigrid over the meshes of a frame.

A_y acts on the free nodal values of all fields. All samples of a batch go through a cycle together, with the batch
last. The smoother is Jacobi's iteration with weights from Chebyshev polynomials, by blocks of the unknowns at the same
point; where a frame's first mesh is fine, algebraic levels lie below it. Compiled code runs the cycles on processors,
torch operations do elsewhere, and wherever gradients are recorded.

B samples, N free nodal values, E weights of the finest level, K cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from fem_frames.formulations.boundary_terms import BoundaryTerms
from fem_frames.formulations.formulation import Formulation
from fem_frames.formulations.formulation_checks import check_quadratic
from fem_frames.frame.elements import P1, P1Values
from fem_frames.frame.graphs import graph_hierarchy
from fem_frames.operators.checking import is_watched
from fem_frames.problem.definition import whole_number
from fem_frames.solvers.compiled_cycles import CompiledMultigrids, kernels
from fem_frames.solvers.cycle_plans import Cycle
from fem_frames.solvers.sample_multigrid import SampleMultigrid
from fem_frames.solvers.torch_cycles import TorchLevel, TorchLevels, TorchMultigrid


def has_multigrid(formulation: Formulation) -> bool:
    """Whether the formulation has a multigrid: a matrix A_y, and all its fields have their values at points."""
    arrays = formulation.frame.arrays
    nodal = all(isinstance(field.element, P1 | P1Values) for field in arrays.fields)
    return formulation.is_assembled and nodal and arrays.nodal_size > 0


def trusts_multigrid(formulation: Formulation) -> bool:
    """Whether multigrid is the solver by default: cycles need matrices that are positive definite.

    Those of energies that are not known to be convex may be indefinite on the way to a minimum.
    """
    return has_multigrid(formulation) and (formulation.is_quadratic or bool(formulation.norms))


def robin_terms(formulation: Formulation) -> BoundaryTerms | None:
    """The Robin facets whose masses A_y has, apart from diffusion in the cells."""
    boundary = formulation.boundary
    return boundary if formulation.is_robin_diffusion and boundary is not None and boundary.has_robin else None


def matrix_data(formulation: Formulation, y: Tensor, w: Tensor | None = None) -> Tensor:
    """(n, B) the numbers that the weights of A_y are linear in.

    They are those of cells, of cells and facets, blocks on the states of cells, or local matrices.
    """
    if not (formulation.is_diffusion or formulation.is_robin_diffusion):
        if formulation.has_blocks:
            return formulation.curvature_blocks(y, w).flatten(0, 2)
        local = formulation.local_matrices(y) if w is None else formulation.local_curvature(w, y)  # (K, L, L, B)
        return local.flatten(0, 2)
    cells, robin = formulation.cell_diffusion(y), robin_terms(formulation)
    if robin is None:
        return cells
    return torch.cat([cells.expand(-1, y.shape[0]), robin.robin_masses(y.to(formulation.wide)).flatten(0, 2)])


class Multigrid:
    """The levels of a formulation's multigrid, from coarse to fine; `at(y)` sets them up for samples.

    With several fields it works in float32 where the frame is in half precision. See docs/queries.md.
    """

    def __init__(self, formulation: Formulation) -> None:
        if not isinstance(formulation, Formulation):
            raise ValueError(
                f"Multigrid takes a formulation, not {type(formulation).__name__}: make_formulation(frame, problem) "
                "makes one"
            )
        if not formulation.is_assembled:
            raise ValueError(
                "multigrid is for energies, but this is a weak form: solve it in the frame, solve(…, solver='frame')"
            )
        if not has_multigrid(formulation):
            names = " and ".join(field.name for field in formulation.frame.arrays.fields)
            raise ValueError(
                f"multigrid is for fields with values at points, but {formulation.name} has {names}: "
                "solve it in the frame, solve(…, solver='frame')"
            )
        if len(formulation.frame.arrays.fields) > 1 and formulation.frame.dtype != formulation.wide:
            # Differences between values of two fields are not small, and their sums cancel: half precision loses these.
            formulation = formulation.to(formulation.wide)
        self.formulation = formulation
        self.dtype, self.device, self.wide = formulation.frame.dtype, formulation.frame.device, formulation.wide
        robin = robin_terms(formulation)
        diffusion = formulation.is_diffusion or (formulation.is_robin_diffusion and robin is None)
        facets = None if robin is None else robin.robin_nodes
        blocks = formulation.has_blocks and not (diffusion or formulation.is_robin_diffusion)
        self._tables = graph_hierarchy(formulation.frame.arrays, diffusion, facets, blocks)
        has_kernels = kernels(self.dtype, self.device) is not None
        self._compiled = CompiledMultigrids(self._tables, self.dtype, self.device) if has_kernels else None

    @property
    def kernels(self) -> str:
        """What runs the cycles: compiled or torch."""
        return "torch" if self._compiled is None else "compiled"

    @cached_property
    def _in_torch(self) -> TorchLevels:
        return TorchLevels(self._tables, self.dtype, self.device)

    @property
    def levels(self) -> list[TorchLevel]:
        """The products of all levels in torch."""
        return self._in_torch.levels

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of unknowns on each level."""
        return tuple(level.graph.size for level in self._tables.levels)

    def at(self, y: Tensor, w: Tensor | None = None) -> SampleMultigrid:
        """The matrices of all levels for y (B, p): compiled where possible, in torch while torch watches y.

        For nonlinear energies they are second derivatives at w (B, Nhat), by default at zero.
        """
        data = self._data(y, w)
        if self._compiled is None or is_watched(data):
            return self._in_torch.at(data)
        return self._compiled.at(data.detach())

    def recorded(self, y: Tensor) -> TorchMultigrid:
        """The same in torch operations, for gradients through right-hand sides or the weights of a plan.

        There are none in y: `differentiable_solve` has them.
        """
        return self._in_torch.at(self._data(y))

    def _data(self, y: Tensor, w: Tensor | None = None) -> Tensor:
        """(n, B) the data of the finest level, in the wide precision."""
        return matrix_data(self.formulation, self.formulation.check_parameters(y), w)

    def answer(self, y: Tensor, steps: int = 1, cycle: Cycle = Cycle()) -> Tensor:  # noqa: B008 (frozen)
        """(B, N) free nodal values of the solutions by full multigrid and `steps` of conjugate gradients.

        This is the fast way to many answers. `solve` goes on until a tolerance is met, and scales what leaves the range
        of half precision.
        """
        steps = whole_number(steps, "steps", least=0)
        if not isinstance(cycle, Cycle):
            raise ValueError(f"cycle is {cycle!r}; a Cycle is expected, such as Cycle(pre=2, post=2)")
        check_quadratic(self.formulation, "answer")
        found = [self.at(y).answer(self.formulation.nodal_load(y), steps, cycle) for y in self._parts(y)]
        return found[0] if len(found) == 1 else torch.cat([v.T for v in found], dim=1).T

    def _parts(self, y: Tensor) -> Sequence[Tensor]:
        """Samples that go together: the matrices of more would take longer, in memory that is new in every call."""
        if self._compiled is None or not isinstance(y, Tensor) or y.ndim != 2:
            return (y,)
        return y.split(self._compiled.together)
