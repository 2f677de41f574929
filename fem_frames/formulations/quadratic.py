"""Quadratic densities on states, given by blocks: the base class for formulations of users.

B samples, K finest cells, Q quadrature points in a cell, m numbers in a cell's state, L local dofs, d dimension.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fem_frames.formulations.formulation import ErrorNorm, Formulation
from fem_frames.frame import level_matrices
from fem_frames.frame.elements import P1Values
from fem_frames.mesh.simplices import moments
from fem_frames.operators.cells import CellBlocks, cells_last, flat_first
from fem_frames.operators.checking import is_plain, unseen
from fem_frames.operators.frame import Frame
from fem_frames.operators.linear import LinearOperator, dot
from fem_frames.operators.recursion import SparseOperator
from fem_frames.problem.callbacks import called
from fem_frames.problem.compiled_values import extremes
from fem_frames.problem.definition import Problem
from fem_frames.problem.evaluation import NotFiniteError
from fem_frames.problem.parameters import numbers

KERNEL = 1e-12
"""Eigenvalues of a block that are smaller than this, relative to its largest one, count as zero."""


class QuadraticFormulation(Formulation):
    """Minimise Σ_T ½ sᵀ C_y s - ℓ_yᵀ s - ⟨h, u⟩ over the states s of cells, where h are Neumann data.

    With `robin = True` and a first field on P1Values, Robin conditions add ½ ∫ k u² - ∫ k u_outside u.

    A subclass names its fields and gives `blocks` (C_y), for states that are scaled by |T|^{1/2}: an integral over a
    cell is then a mean over it. The load is `state_functional` (ℓ_y), or that of the source with `source_at_points`.
    Export, loss, solutions, error bounds and training follow; `forms` adds PETSc's reference solutions.
    demos/demo_own_equation.py is an example.
    See docs/formulations.md.
    """

    source_at_points: ClassVar[bool] = False
    """Whether ∫ f_y u enters through the nodal values of the first field, for states without values such as P1's."""
    has_blocks = True
    data_of_y = True
    factor = 0.5
    norms = (ErrorNorm("energy", "energy norm", "√⟨C_y 𝒟e, 𝒟e⟩", "discrete solution"),)

    def __init__(self, frame: Frame, problem: Problem) -> None:
        super().__init__(frame, problem)
        if self.robin and not isinstance(frame.arrays.fields[0].element, P1Values):
            raise ValueError(f"{self.name} declares robin = True, but its first field is not on P1Values: choose that")

    @abstractmethod
    def blocks(self, y: Tensor) -> Tensor:
        """(K, m, m, B) C_y in the wide precision, symmetric; error bounds need it positive definite on every cell."""

    def state_functional(self, y: Tensor) -> Tensor:
        """(K, m, B) or (K, m, 1) ℓ_y in the wide precision; zero unless a subclass gives another."""
        K, m, _ = self._sizes(y)
        return torch.zeros(K, m, 1, dtype=self.wide, device=self.frame.device)

    @classmethod
    def reference_solvers(cls, dimension: int) -> tuple[str, ...]:
        return ("lu", "cg")

    # ---- helpers for densities

    @cached_property
    def moments(self) -> Tensor:
        """(K, d, d) means of (x - x_c)(x - x_c)ᵀ over cells: ∫ u² = |T| (u_c² + gᵀ moments g) for P1."""
        arrays = self.frame.arrays
        return self._as_data(moments(arrays.points, arrays.levels[-1].cells))

    @cached_property
    def volume_roots(self) -> Tensor:
        """(K,) |T|^{1/2}."""
        return self._as_data(np.sqrt(self.frame.arrays.volumes))

    def source_functional(self, y: Tensor) -> Tensor:
        """(K, 1 + d, B) or (K, 1 + d, 1) ℓ with ℓᵀ s = ∫_T f_y u, for states (u_c, g) of P1 with values."""
        f = self._whole_source(y)
        slopes = torch.einsum("q,kqd,kqb->kdb", self._weights, self._offsets, f)
        return self.volume_roots[:, None, None] * torch.cat([self.mean(f)[:, None], slopes], dim=1)

    @cached_property
    def _offsets(self) -> Tensor:
        """(K, Q, d) x - x_c at the quadrature points."""
        arrays = self.frame.arrays
        return self._as_data(level_matrices.quadrature_points(arrays) - arrays.centres[:, None])

    # ---- consequences of blocks and state_functional

    def C(self, y: Tensor) -> LinearOperator:
        return CellBlocks(self.rounded(self._checked_blocks(y), "C_y"))

    def _checked_blocks(self, y: Tensor) -> Tensor:
        """(K, m, m, B) the blocks, checked: symmetric ones make the least eigenvalue, and so the bound, right."""
        K, m, B = self._sizes(y)
        found = self._checked("blocks", self.blocks, y, [(K, m, m, B)])
        if is_plain(found):
            gap = (found - found.transpose(1, 2)).abs().amax((0, 1, 2))
            if (gap > 100 * torch.finfo(self.wide).eps * found.abs().amax((0, 1, 2))).any():
                raise ValueError(f"blocks of {self.name} are not symmetric in their two axes m: give C_y = C_yᵀ")
        if self.boundary is not None and self.boundary.has_robin:
            return self.boundary.added_to(found, self.check_parameters(y).to(self.wide))
        return found

    def _checked_load(self, y: Tensor) -> Tensor:
        """(K, m, B) or (K, m, 1) the load on states, checked."""
        K, m, B = self._sizes(y)
        return self._checked("state_functional", self.state_functional, y, [(K, m, B), (K, m, 1)])

    def _sizes(self, y: Tensor) -> tuple[int, int, int]:
        arrays = self.frame.arrays
        return len(arrays.volumes), level_matrices.state_size(arrays), self.check_parameters(y).shape[0]

    def _checked(self, what: str, make: Callable[[Tensor], Tensor], y: Tensor, shapes: list[tuple[int, ...]]) -> Tensor:
        name = f"{what} of {self.name}"
        found = called(name, make, "", make, y)
        if not isinstance(found, Tensor) or tuple(found.shape) not in shapes:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            axes = "(K, m, m, B)" if len(shapes[0]) == 4 else "(K, m, B)"
            raise ValueError(f"{name} have shape {shape}; {axes} = {shapes[0]} is expected")
        if found.dtype != self.wide:
            raise ValueError(f"{name} are in {found.dtype}; compute them in self.wide, {self.wide}")
        tests = unseen(found)
        if tests is not None:
            tests.append(torch.isfinite(found.detach()).all())
        elif is_plain(found) and not all(math.isfinite(bound) for bound in extremes(found.detach())):
            where = (~torch.isfinite(found)).nonzero()[0]
            cell, sample = int(where[0]), int(where[-1])
            raise NotFiniteError(f"{name} are not finite in cell {cell} for y = {numbers(y[sample].tolist())}")
        return found

    def check_density(self, y: Tensor) -> None:
        y = self.check_parameters(y)
        self._checked_load(y)
        least = self._least_eigenvalues(y)  # (B, K)
        wrong = least < -1e-6 * self._checked_blocks(y).abs().amax((0, 1, 2))[:, None]
        if wrong.any():
            sample, cell = (int(i) for i in wrong.nonzero()[0])
            advice = "give blocks that are not negative" if self.problem.equation is None else "change the equation"
            raise ValueError(
                f"C_y of {self.name} has the eigenvalue {float(least[sample, cell]):.2g} in cell {cell} for y = "
                f"{numbers(y[sample].tolist())}: the functional may have no minimum; {advice}"
            )

    def _least_eigenvalues(self, y: Tensor) -> Tensor:
        """(B, K) the least eigenvalue of C_y in every cell."""
        return torch.linalg.eigvalsh(self._checked_blocks(y).permute(3, 0, 1, 2))[..., 0]

    def curvature_blocks(self, y: Tensor, w: Tensor | None = None) -> Tensor:
        return self._checked_blocks(y)

    def local_matrices(self, y: Tensor) -> Tensor:
        local = self._as_data(level_matrices.local_states(self.frame.arrays))  # (K, m, L)
        return torch.einsum("kml,kmnb,kni->klib", local, self._checked_blocks(y), local)

    def loss(self, w: Tensor, y: Tensor) -> Tensor:
        self.check_coefficients(w, y)
        s = cells_last(self.states(w, y), level_matrices.state_size(self.frame.arrays)).to(self.wide)
        return self._energy(s, y) - self.split_load(y).value(w, flat_first(s, w)) - self.lift_functional(y)

    def _energy(self, s: Tensor, y: Tensor) -> Tensor:
        """(B,) Σ ½ sᵀ C_y s - ℓ_yᵀ s for states (K, m, B)."""
        product = _product(self._checked_blocks(y), s)
        return (s * (0.5 * product - self._checked_load(y))).sum((0, 1))

    def loss_and_residual(self, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self.check_coefficients(w, y)
        s = cells_last(self.states(w, y), level_matrices.state_size(self.frame.arrays)).to(self.wide)
        product, load = _product(self._checked_blocks(y), s), self._checked_load(y)
        on_frame = self.split_load(y)
        loss = (s * (0.5 * product - load)).sum((0, 1)) - on_frame.value(w, flat_first(s, w)) - self.lift_functional(y)
        return loss, on_frame.residual(on_frame.taken_from(flat_first(product - load, w)), w)

    def residual_product(self, w: Tensor, z: Tensor, y: Tensor) -> Tensor:
        size = level_matrices.state_size(self.frame.arrays)
        s, tested = (cells_last(x, size).to(self.wide) for x in (self.states(w, y), self.frame.D(z)))
        density = (tested * (_product(self._checked_blocks(y), s) - self._checked_load(y))).sum((0, 1))
        return density - dot(self.frame_functional(y), z)

    def functional(self, y: Tensor) -> Tensor:
        """(B or 1, N) the load of Neumann data on the first field, and of the source if it acts at points."""
        arrays = self.frame.arrays
        fixed, free = np.zeros(arrays.nodal_size), arrays.fields[0].free[-1]
        fixed[: len(free)] = arrays.neumann_load[free]
        load = self._as_data(fixed)[None]
        if self.boundary is not None and self.boundary.loads:
            load = load + self.boundary.nodal_load(self.check_parameters(y).to(self.wide))
        if not self.source_at_points:
            return load
        local = torch.einsum("kq,ql,kqb->klb", self._point_weights, self._hats, self._whole_source(y))
        others = self._localisation.shape[0] // len(local) - local.shape[1]  # local values of further fields
        local = torch.nn.functional.pad(local, (0, 0, 0, others))
        return load + self._localisation.T(local.flatten(0, 1).T)

    def lift_functional(self, y: Tensor) -> Tensor:
        arrays = self.frame.arrays
        if self.boundary is not None:
            source = self._whole_source(y) if self.source_at_points else None
            return self.boundary.on_lift(self.check_parameters(y).to(self.wide), source)
        lift = arrays.fields[0].lift[-1]
        value = torch.full((1,), float(arrays.neumann_load @ lift), dtype=self.wide, device=self.frame.device)
        if not self.source_at_points or not lift.any():
            return value
        at = self._as_data(lift[arrays.levels[-1].cells]) @ self._hats.T  # (K, Q)
        return value + torch.einsum("kq,kq,kqb->b", self._point_weights, at, self._whole_source(y))

    def _whole_source(self, y: Tensor) -> Tensor:
        """(K, Q, B) or (K, Q, 1) f_y at all quadrature points."""
        f = self.source(y)  # (1, 1, 1) for a number
        return f.expand(len(self.frame.arrays.volumes), len(self._weights), f.shape[2])

    @cached_property
    def _hats(self) -> Tensor:
        """(Q, d + 1) values of the hats at the quadrature points."""
        return self._as_data(self.frame.arrays.rule_points)

    @cached_property
    def _point_weights(self) -> Tensor:
        """(K, Q) weights of the quadrature points."""
        arrays = self.frame.arrays
        return self._as_data(arrays.volumes[:, None] * arrays.rule_weights)

    @cached_property
    def _localisation(self) -> SparseOperator:
        return SparseOperator(level_matrices.localisation_matrix(self.frame.arrays), self.wide, self.frame.device)

    def state_load(self, y: Tensor) -> Tensor:
        y = self.check_parameters(y)
        load = self._checked_load(y)
        if self.lifted:
            size = level_matrices.state_size(self.frame.arrays)
            lift = cells_last(self.lift(y).expand(y.shape[0], -1), size).to(self.wide)
            load = load - _product(self._checked_blocks(y), lift)
        return flat_first(self.rounded(load, "the load"), y)

    def constant(self, y: Tensor) -> Tensor:
        y = self.check_parameters(y)
        lift = cells_last(self.lift(y).expand(y.shape[0], -1), level_matrices.state_size(self.frame.arrays)).to(
            self.wide
        )
        return self._energy(lift, y) - self.lift_functional(y)

    def coercivity(self, y: Tensor) -> Tensor:
        return self._least_eigenvalues(y).amin(1).clamp_min(0)

    def relative_coercivity(self, y: Tensor, nominal: Tensor) -> Tensor | None:
        """(B,) the least α over all cells with C_y ≥ α C_{y0}, from generalised eigenvalues; it sees all of C_y."""
        of_y, of_nominal = (self._checked_blocks(at).permute(3, 0, 1, 2) for at in (y, nominal))  # (B, K, m, m)
        return least_ratios(of_y, of_nominal).amin(1).clamp_min(0)

    def energy_norm(self, states: Tensor, y: Tensor) -> Tensor:
        s = cells_last(states, level_matrices.state_size(self.frame.arrays)).to(self.wide)
        return (s * _product(self._checked_blocks(y), s)).sum((0, 1)).clamp_min(0).sqrt()


def _product(blocks: Tensor, s: Tensor) -> Tensor:
    """(K, m, B) blocks (K, m, m, B) times states (K, m, B), in one pass over memory, unlike einsum."""
    found = blocks[:, :, 0] * s[:, None, 0]
    for i in range(1, s.shape[1]):
        if torch.compiler.is_compiling():  # torch 2.6 cannot convert addcmul to ONNX where B is any number
            found = found + blocks[:, :, i] * s[:, None, i]
        else:
            found = torch.addcmul(found, blocks[:, :, i], s[:, None, i])
    return found


def least_ratios(of_y: Tensor, of_nominal: Tensor) -> Tensor:
    """(B, K) the largest α with C ≥ α C0, for positive semidefinite blocks C (B, K, m, m) and C0 (1, K, m, m).

    If C0 has a kernel, sᵀ C s is first minimised over the kernel: with the projection P onto it this leaves the Schur
    complement C - C P (P C P)⁺ P C, which is compared with C0 on the range of C0.
    """
    size = of_nominal.diagonal(dim1=-2, dim2=-1)
    scale = torch.where(size > 0, size, 1.0).rsqrt()  # so that entries of a state may have different units
    of_y, of_nominal = (scale[..., None] * blocks * scale[..., None, :] for blocks in (of_y, of_nominal))
    values, vectors = torch.linalg.eigh(of_nominal)  # (1, K, m)
    kept = values > KERNEL * values[..., -1:]
    if not kept.all():
        P = (vectors * ~kept[..., None, :]) @ vectors.mT
        coupling, least = of_y @ P, KERNEL * of_y.abs().amax((-1, -2))
        of_y = of_y - coupling @ torch.linalg.pinv(P @ coupling, atol=least, hermitian=True) @ coupling.mT
    root = vectors * torch.where(kept, torch.where(kept, values, 1.0).rsqrt(), 0.0)[..., None, :]
    on_range = root.mT @ of_y @ root
    # The kernel gets the trace as eigenvalue, which is not the least one.
    others = torch.where(kept, 0.0, on_range.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True))
    ratios = torch.linalg.eigvalsh(on_range + torch.diag_embed(others))
    least = torch.where(ratios[..., 0] > KERNEL * ratios[..., -1], ratios[..., 0], 0.0)
    return torch.where(kept.any(-1), least, torch.inf)
