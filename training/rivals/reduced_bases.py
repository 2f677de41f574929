"""Alternatives to neural nets: direct solves, and Galerkin solutions in the span of a few modes.

A rival maps parameters y (B, p) to free nodal values (B, N) of all fields, in float64 on the CPU, and knows how many
solves it was built from. A_y is symmetric and positive definite in both formulations, so one reduced system,
VᵀA_y(v̄ + Vc) = Vᵀb_y, is Galerkin's for (E) and that of least squares for (LS). Rivals that are fitted to solutions
are in `regression.py`. Dense products use torch, because NumPy's BLAS may be much slower.

B samples, p parameters, S snapshots, n modes, N free nodal values, K finest cells, L local dofs per cell, Q terms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
import numpy.typing as npt
import torch
from scipy import linalg, sparse
from scipy.sparse.csgraph import reverse_cuthill_mckee
from scipy.sparse.linalg import splu
from torch import Tensor

from fem_frames.formulations.formulation import Formulation
from fem_frames.formulations.formulation_checks import check_quadratic
from fem_frames.frame import level_matrices
from fem_frames.frame.solutions import ReferenceSolutions
from fem_frames.mesh.geometry import Floats
from fem_frames.problem.definition import Problem, whole_number
from fem_frames.solvers.multigrid import has_multigrid
from training.references import CHUNK, reference_solutions

TermWeights = Callable[[Floats], Floats]
"""y (B, p) to the weights (B, Q) of the terms of an affine system."""


class Rival(ABC):
    """Parameters (B, p) to free nodal values (B, N)."""

    name: str
    solves: int
    """Number of full solves it was built from."""
    problem: Problem

    def __call__(self, y: npt.ArrayLike) -> Tensor:
        return self.values(self.problem.check_parameters(y))

    @abstractmethod
    def values(self, y: Floats) -> Tensor:
        """(B, N) for checked y (B, p)."""


# ---- full systems ---------------------------------------------------------------------------------------


class NodalSystem:
    """y to A_y and b_y on free nodal values; the sparse matrices share one pattern, sorted by rows."""

    def __init__(self, formulation: Formulation) -> None:
        check_quadratic(formulation, "this rival")
        frame = formulation.frame
        if frame.dtype != torch.float64 or frame.device.type != "cpu":
            raise ValueError(
                f"the formulation is in {frame.dtype} on {frame.device}, but SciPy solves in float64 on the CPU: "
                "pass formulation.to('float64', 'cpu')"
            )
        if not formulation.is_assembled:
            raise ValueError(
                "direct solves and reduced bases need a symmetric A_y that is a sum over cells, but this is a weak "
                "form: use solve(formulation, y), or train a net"
            )
        self.formulation = formulation
        E = level_matrices.localisation_matrix(frame.arrays)
        self.size = E.shape[1]
        dofs = np.full(E.shape[0], -1)
        dofs[np.diff(E.starts) == 1] = E.columns
        dofs = dofs.reshape(len(frame.arrays.volumes), -1)  # (K, L)
        rows, columns = (a.ravel() for a in np.broadcast_arrays(dofs[:, :, None], dofs[:, None]))
        free = np.flatnonzero((rows >= 0) & (columns >= 0))
        keys, place = np.unique(rows[free] * self.size + columns[free], return_inverse=True)
        self.rows, self.columns = np.divmod(keys, self.size)  # (entries,)
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(self.rows, minlength=self.size))])
        self._sum = sparse.csr_matrix((np.ones(len(free)), (place, free)), shape=(len(keys), len(rows)))

    def entries(self, y: Floats) -> Floats:
        """(B, entries) of A_y."""
        local = self.formulation.local_matrices(torch.as_tensor(y))  # (K, L, L, B)
        return np.ascontiguousarray((self._sum @ local.reshape(-1, len(y)).numpy()).T)

    def loads(self, y: Floats) -> Floats:
        """(B, N) b_y: the solution of A_y v = b_y has the nodal values of u - lift."""
        return self.formulation.nodal_load(torch.as_tensor(y)).numpy()

    def matrix(self, entries: Floats) -> sparse.csr_matrix:
        """(N, N) from its entries (entries,)."""
        return sparse.csr_matrix((entries, self.columns, self._starts), shape=(self.size, self.size))


class AffineSystem(NodalSystem):
    """A_y = Σ_q θ_q(y) A_q and b_y = Σ_q θ_q(y) b_q: the cells are visited once, not for every y."""

    def __init__(self, formulation: Formulation, weights: TermWeights) -> None:
        super().__init__(formulation)
        self.weights = weights
        parameters = formulation.problem.parameters
        # The terms are fitted to A_y and b_y for several times as many y as there are terms.
        y = parameters.sample(4 * weights(parameters.sample(1, 0)).shape[1], 0)
        theta = weights(y)
        entries = np.concatenate([NodalSystem.entries(self, part) for part in chunks(y)])
        self.terms = np.linalg.lstsq(theta, entries, rcond=None)[0]  # (Q, entries)
        self.load_terms = np.linalg.lstsq(theta, super().loads(y), rcond=None)[0]  # (Q, N)

    def entries(self, y: Floats) -> Floats:
        return (torch.as_tensor(self.weights(y)) @ torch.as_tensor(self.terms)).numpy()

    def loads(self, y: Floats) -> Floats:
        return (torch.as_tensor(self.weights(y)) @ torch.as_tensor(self.load_terms)).numpy()


def full_system(formulation: Formulation) -> NodalSystem:
    """The system, in affine form if it has one."""
    weights = formulation.affine_weights()
    return NodalSystem(formulation) if weights is None else AffineSystem(formulation, weights)


# ---- direct solves --------------------------------------------------------------------------------------


class DirectSolves(Rival):
    """Solves for each y: no error beyond that of the mesh."""

    name, solves = "direct solves", 0

    def __init__(self, system: NodalSystem) -> None:
        self.system, self.problem = system, system.formulation.problem

    def values(self, y: Floats) -> Tensor:
        parts = [self._solved(self.system.entries(part), self.system.loads(part)) for part in chunks(y)]
        return torch.as_tensor(np.concatenate(parts))

    @abstractmethod
    def _solved(self, entries: Floats, loads: Floats) -> Floats:
        """(B, N) from (B, entries) and (B, N)."""


class BandedSolves(DirectSolves):
    """Banded Cholesky in Cuthill-McKee order, which no sparse LU beats on intervals and squares of this size."""

    def __init__(self, system: NodalSystem) -> None:
        super().__init__(system)
        pattern = system.matrix(np.ones(len(system.rows)))
        self._order = reverse_cuthill_mckee(pattern, symmetric_mode=True)
        place = np.argsort(self._order)
        rows, columns = place[system.rows], place[system.columns]
        self._lower = np.flatnonzero(rows >= columns)
        self._band = (rows - columns)[self._lower], columns[self._lower]
        self.bandwidth = int(self._band[0].max())

    def _solved(self, entries: Floats, loads: Floats) -> Floats:
        found = np.empty_like(loads)
        for own, load, v in zip(entries[:, self._lower], loads[:, self._order], found, strict=True):
            band = np.zeros((self.bandwidth + 1, self.system.size))
            band[self._band] = own
            v[self._order] = linalg.solveh_banded(band, load, overwrite_ab=True, lower=True, check_finite=False)
        return found


class SparseSolves(DirectSolves):
    """Sparse LU, for cubes, whose matrices have wide bands."""

    def _solved(self, entries: Floats, loads: Floats) -> Floats:
        matrices = (self.system.matrix(own).T for own in entries)  # symmetric; SuperLU needs columns
        return np.stack([splu(A_y).solve(load) for A_y, load in zip(matrices, loads, strict=True)])


def direct_solves(system: NodalSystem) -> DirectSolves:
    return (SparseSolves if system.formulation.frame.arrays.dimension == 3 else BandedSolves)(system)


@dataclass(frozen=True, eq=False)
class Snapshots:
    """Solutions from which rivals are built, and the time they took."""

    y: Floats  # (S, p)
    values: Tensor  # (S, N)
    seconds: float

    @classmethod
    def solve(cls, direct: DirectSolves, y: Floats) -> Snapshots:
        start = perf_counter()
        values = direct(y)
        return cls(y, values, perf_counter() - start)

    @classmethod
    def from_references(cls, exact: Formulation, y: Floats, references: str = "auto") -> Snapshots:
        """Solved as test sets are, see `reference_solutions`."""
        start = perf_counter()
        found = reference_solutions(exact, y, references=references)
        seconds = perf_counter() - start
        return cls(y, exact.coordinates.free(found.fields, "cpu", y), seconds)

    def first(self, count: int) -> Snapshots:
        """The first snapshots, with their share of the time."""
        count = whole_number(count, "the number of snapshots")
        if count > len(self.y):
            raise ValueError(f"{count} snapshots are wanted, but there are {len(self.y)}: solve for more samples")
        return Snapshots(self.y[:count], self.values[:count], self.seconds * count / len(self.y))


def solve_snapshots(direct: DirectSolves, y: Floats, references: str = "auto") -> Snapshots:
    """By multigrid where the formulation has one, otherwise by direct solves, or by PETSc if it is asked for."""
    exact = direct.system.formulation
    if references == "auto" and not has_multigrid(exact):
        return Snapshots.solve(direct, y)
    return Snapshots.from_references(exact, y, references)


# ---- few modes ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PodSpace:
    """v̄ + span V: the mean of the snapshots, and the modes that approximate them best in the mean square.

    The norm is that of the cell states: ‖∇u‖ for (E); for (LS) also the flux at the centres and its divergence.
    """

    mean: Tensor  # (N,)
    modes: Tensor  # (n, N) orthonormal
    dual: Tensor  # (N, n) the coefficients of v - v̄ are (v - v̄) @ dual
    spectrum: Tensor  # (S,) singular values of the snapshots minus their mean
    solves: int

    @classmethod
    def build(cls, formulation: Formulation, snapshots: Snapshots, count: int | None = None) -> PodSpace:
        """The space of `count` modes; None: of as many as the snapshots have."""
        states, mean = formulation.nodal_differential, snapshots.values.mean(0)
        off = snapshots.values - mean
        # The Gram matrix of the snapshots would lose half the digits.
        triangle = torch.linalg.qr(states(off).T, mode="r").R  # (S, S), or (K m, S) if there are more snapshots
        left, spectrum, _ = torch.linalg.svd(triangle.T, full_matrices=False)
        rank = int((spectrum > 1e-10 * spectrum[0]).sum())  # smaller values are rounding errors
        modes = (left[:, :rank] / spectrum[:rank]).T @ off
        dual = states.T(states(modes)).T
        whole = cls(mean, modes, dual.contiguous(), spectrum, len(snapshots.y))
        return whole if count is None else whole.first(count)

    @property
    def size(self) -> int:
        return len(self.modes)

    def first(self, count: int) -> PodSpace:
        """The space of the first modes."""
        count = whole_number(count, "the number of modes")
        if count > self.size:
            raise ValueError(
                f"{count} modes are wanted, but {self.solves} snapshots have {self.size} around their mean: "
                "take fewer modes or more snapshots"
            )
        return replace(self, modes=self.modes[:count], dual=self.dual[:, :count].contiguous())

    def coefficients(self, values: Tensor) -> Tensor:
        """(B, n) coefficients of the projections of nodal values (B, N)."""
        return (values - self.mean) @ self.dual

    def synthesise(self, c: Tensor) -> Tensor:
        """(B, N) nodal values from coefficients (B, n)."""
        return torch.addmm(self.mean, c.to(self.modes.dtype), self.modes)

    def in_float32(self) -> PodSpace:
        """The same space, whose results take half the time and memory."""
        return replace(self, mean=self.mean.float(), modes=self.modes.float(), dual=self.dual.float())

    def project(self, values: Tensor) -> Tensor:
        """(B, N) best approximations of nodal values (B, N): no rival with these modes can do better."""
        return self.synthesise(self.coefficients(values))


class ReducedBasis(Rival):
    """VᵀA_yV c = Vᵀ(b_y - A_y v̄): the best approximation by the modes in the energy norm of y, without full solves."""

    def __init__(self, system: NodalSystem, space: PodSpace) -> None:
        self.problem, self.space, self.solves = system.formulation.problem, space, space.solves
        kind = "Galerkin" if system.formulation.factor == 0.5 else "least-squares"  # of an energy, of squares
        self.name = f"{kind} reduced basis, {space.size} modes"
        self.system, self.V = system, space.modes.T.contiguous()  # (N, n)
        self._with_mean = torch.cat([self.V, space.mean[:, None]], dim=1).numpy()  # (N, n + 1)

    @abstractmethod
    def systems(self, y: Floats) -> tuple[Tensor, Tensor]:
        """(B, n, n) VᵀA_yV and (B, n) Vᵀ(b_y - A_y v̄)."""

    def values(self, y: Floats) -> Tensor:
        matrices, loads = self.systems(y)
        return self.space.synthesise(torch.cholesky_solve(loads[..., None], torch.linalg.cholesky(matrices))[..., 0])

    def reduced(self, entries: Floats) -> Tensor:
        """(n, n + 1) VᵀA(V, v̄) from the entries of A; zero entries cost nothing."""
        kept = np.flatnonzero(entries)
        rows, starts = np.unique(self.system.rows[kept], return_index=True)  # already sorted, as the row format needs
        table = (entries[kept], self.system.columns[kept], np.append(starts, len(kept)))
        A = sparse.csr_matrix(table, shape=(len(rows), self.system.size))
        return self.V[rows].T @ torch.as_tensor(A @ self._with_mean)


class AffineReducedBasis(ReducedBasis):
    """Reduces the terms of an affine system once: a query touches the mesh only to write its result."""

    def __init__(self, system: AffineSystem, space: PodSpace) -> None:
        super().__init__(system, space)
        self._weights = system.weights
        terms = torch.stack([self.reduced(term) for term in system.terms])  # (Q, n, n + 1)
        self._terms = terms[..., :-1].flatten(1)
        self._load_terms = torch.as_tensor(system.load_terms) @ self.V - terms[..., -1]  # (Q, n)

    def systems(self, y: Floats) -> tuple[Tensor, Tensor]:
        weights = torch.as_tensor(self._weights(y))  # (B, Q)
        return (weights @ self._terms).unflatten(1, (self.space.size, -1)), weights @ self._load_terms


class AssembledReducedBasis(ReducedBasis):
    """Assembles A_y for every y and then reduces it, for coefficients that are not affine in y.

    The median entries are reduced once, so that a coefficient that changes in few cells costs less.
    """

    def __init__(self, system: NodalSystem, space: PodSpace) -> None:
        super().__init__(system, space)
        self._usual = np.median(system.entries(self.problem.parameters.sample(65, 0)), axis=0)  # (entries,)
        self._reduced = self.reduced(self._usual)

    def systems(self, y: Floats) -> tuple[Tensor, Tensor]:
        made = torch.stack([self.reduced(off) for part in chunks(y) for off in self.system.entries(part) - self._usual])
        made += self._reduced  # (B, n, n + 1)
        return made[..., :-1], torch.as_tensor(self.system.loads(y)) @ self.V - made[..., -1]


def reduced_basis(system: NodalSystem, space: PodSpace) -> ReducedBasis:
    if isinstance(system, AffineSystem):
        return AffineReducedBasis(system, space)
    return AssembledReducedBasis(system, space)


# ---- how good they are ----------------------------------------------------------------------------------


class RivalAnswers:
    """A rival in the form that `evaluate` and `query_seconds` take."""

    def __init__(self, formulation: Formulation, rival: Rival) -> None:
        self.formulation, self.rival = formulation, rival

    def __call__(self, y: npt.ArrayLike) -> dict[str, Tensor]:
        return self.formulation.nodal_fields(self.rival(y), torch.as_tensor(np.asarray(y, np.float64)))

    def coefficients(self, y: Tensor) -> Tensor:
        return self.formulation.coordinates.coefficients(self.rival(y.numpy()))


def gradient_errors(exact: Formulation, w: Tensor, reference: ReferenceSolutions) -> Tensor:
    """(B,) ‖∇(u - u_ref)‖ / ‖∇u_ref‖ of u = lift + F w."""
    arrays = exact.frame.arrays
    y = torch.as_tensor(reference.y, device=exact.frame.device)
    free = exact.coordinates.free(reference.fields, exact.frame.device, reference.y)
    target = exact.states(exact.coordinates.coefficients(free), y)
    stop = level_matrices.state_slices(arrays)[arrays.fields[0].name].stop
    part = slice(stop - arrays.dimension, stop)  # the gradient ends the state of u

    def size(states: Tensor) -> Tensor:
        return states.unflatten(-1, (len(arrays.volumes), -1))[..., part].square().sum((1, 2)).sqrt()

    return size(exact.states(w, y) - target) / size(target)


def chunks(y: Floats) -> Iterator[Floats]:
    """Batches whose matrices fit into memory."""
    return (y[start : start + CHUNK] for start in range(0, len(y), CHUNK))
