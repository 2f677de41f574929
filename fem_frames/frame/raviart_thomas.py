"""The flux σ in Raviart-Thomas elements of lowest order (RT0) on nested meshes: its boundary data and frame functions.

Facet functions alone, normalised in H(div), have no level-independent frame constants: divergence-free fields need
large cancelling coefficients. Curls of hats (of edge functions on tetrahedra), normalised in L2 on every level, fix
this. A domain with holes also has divergence-free fields that are not curls; the few harmonic fields of the coarsest
level represent them.

In one dimension RT0 is P1, only constants are divergence-free, and facet functions alone suffice.

K cells, F facets, d dimension, j a level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import linalg

from fem_frames.fenicsx import door
from fem_frames.frame.boundary import LiftShape
from fem_frames.frame.elements import RT0
from fem_frames.frame.families import FieldLevel, FrameFamily
from fem_frames.frame.fields import EssentialData
from fem_frames.frame.sparse import SparseMatrix
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.mesh.hierarchy import MeshHierarchy
from fem_frames.mesh.simplices import (
    boundary_entries,
    facet_states,
    facet_vectors,
    find,
    local_simplices,
    prolongation_entries,
    signed_volumes,
)
from fem_frames.problem.boundary import BoundaryValue
from fem_frames.problem.definition import Problem

CURL = "curl"  # the name of the family, in files too
DENSE = 1500  # facets up to which harmonic fields are found by dense matrices
ZERO = 1e-9  # smaller eigenvalues count as zero: all others are at least of order (cells across the domain)^-2


class FluxLevel(FieldLevel):
    """RT0 on one mesh; `fixed` (F,) are the facets whose flux is given."""

    @property
    def facets(self) -> Ints:
        """(F, d)"""
        return self.mesh.simplices(self.mesh.dimension - 1)[0]

    @property
    def faces(self) -> Ints:
        """Points for d = 2, edges for d = 3; their Whitney forms give the curls."""
        return self.mesh.simplices(self.mesh.dimension - 2)[0]

    @cached_property
    def states(self) -> tuple[sparse.csr_array, Floats]:
        """S maps fluxes (F,) to values at centres and divergences; ω are weights with ‖σ‖² = ω · (S σ)² in H(div)."""
        mesh, d = self.mesh, self.mesh.dimension
        table, of_cells = facet_states(mesh.points, mesh.cells), mesh.simplices(d - 1)[1]
        K = len(mesh.cells)
        rows = (d + 1) * np.arange(K)[:, None, None] + np.arange(d + 1)
        place = [np.broadcast_to(a, table.shape).ravel() for a in (rows, of_cells[..., None])]
        S = sparse.csr_array((table.ravel(), tuple(place)), shape=(K * (d + 1), len(self.facets)))
        weights = RT0(d).norm_weights(mesh.points, mesh.cells, self.length)
        return S, (np.abs(signed_volumes(mesh.points, mesh.cells))[:, None] * weights).ravel()

    def norm_matrix(self) -> sparse.csr_array:
        """(F, F) the matrix of the H(div) norm."""
        S, weights = self.states
        return sparse.csr_array(S.T @ sparse.diags(weights) @ S)

    def norms(self, functions: sparse.csr_array) -> Floats:
        """(n,) H(div) norms of functions (n, F) given by their fluxes."""
        S, weights = self.states
        return np.sqrt((S @ functions.T).power(2).T @ weights)

    def facet_functions(self) -> SparseMatrix:
        """The normalised functions of the free facets."""
        count, free = len(self.facets), self.free
        unit = sparse.csr_array((np.ones(len(free)), (np.arange(len(free)), free)), shape=(len(free), count))
        return self._normalised(unit)

    def curls(self) -> tuple[Ints, SparseMatrix]:
        """The points (edges for d = 3) whose curls do not change given fluxes, and these curls."""
        free = self.free_faces()
        return free, self._normalised(self.curl_matrix()[:, free].T)

    def harmonic_fields(self) -> SparseMatrix:
        """Divergence-free fields orthogonal to the curls; their number is the dimension of H₁(Ω, Γ_D).

        There is one per component of Γ_D after the first, and on tetrahedra one per loop that cannot be moved into Γ_D.
        """
        free, cells = self.free, self.mesh.cells
        divergence = _matrix(boundary_entries(cells, self.facets), (len(cells), len(self.facets)))[:, free]
        curl = self.curl_matrix()[free][:, self.free_faces()]
        found = _kernel(sparse.csr_array(divergence.T @ divergence + curl @ curl.T))
        fields = np.zeros((found.shape[1], len(self.facets)))
        fields[:, free] = found.T
        fields[np.abs(fields) < ZERO * np.abs(fields).max(initial=0.0)] = 0.0
        return self._normalised(sparse.csr_array(fields))

    def free_faces(self) -> Ints:
        """The faces that lie on no facet with a given flux."""
        return np.setdiff1d(np.arange(len(self.faces)), find(_sides(self.facets[self.fixed]), self.faces))

    def curl_matrix(self) -> sparse.csr_array:
        """(F, faces) fluxes of the curls of the forms of faces."""
        return _matrix(boundary_entries(self.facets, self.faces), (len(self.facets), len(self.faces)))

    def _normalised(self, functions: Any) -> SparseMatrix:
        scaled = sparse.csr_array(sparse.diags(1 / self.norms(functions)) @ functions)
        return SparseMatrix.from_scipy(scaled)


def flux_families(field: str, levels: Sequence[FieldLevel]) -> list[FrameFamily]:
    """Facet functions and, for d > 1, curls; the harmonic fields join the curls of the first level."""
    of_flux = [FluxLevel(level.mesh, level.fixed, level.length) for level in levels]
    d = levels[0].mesh.dimension
    free = tuple(level.free for level in of_flux)
    found = [FrameFamily(field, field, d - 1, free, tuple(level.facet_functions() for level in of_flux))]
    if d > 1:
        faces, functions = zip(*(level.curls() for level in of_flux), strict=True)
        coarsest = SparseMatrix.stacked(functions[0], of_flux[0].harmonic_fields())
        found.append(FrameFamily(CURL, field, d - 2, faces, (coarsest, *functions[1:])))
    return found


def given_fluxes(hierarchy: MeshHierarchy, problem: Problem) -> EssentialData:
    """σ·n is given where u is not."""
    levels = _flux_levels(hierarchy, problem)
    shapes = tuple(
        LiftShape(i, flux_lift(hierarchy, problem, levels, unit=i))
        for i, condition in enumerate(problem.conditions)
        if condition.kind == "neumann" and condition.value.depends_on_y
    )
    return EssentialData(tuple(level.fixed for level in levels), flux_lift(hierarchy, problem, levels), shapes)


def _flux_levels(hierarchy: MeshHierarchy, problem: Problem) -> list[FluxLevel]:
    natural, found = ~hierarchy.dirichlet_facets(problem), []
    for mesh, level in zip(hierarchy.meshes, hierarchy.levels, strict=True):
        facets = mesh.simplices(hierarchy.dimension - 1)[0]
        fixed = np.zeros(len(facets), bool)
        fixed[find(level.facets[natural[level.facet_origin]], facets)] = True
        found.append(FluxLevel(mesh, fixed, hierarchy.length(problem)))
    return found


def flux_lift(
    hierarchy: MeshHierarchy, problem: Problem, levels: list[FluxLevel], unit: int | None = None
) -> tuple[Floats, ...]:
    """For every level, fluxes (F,) that agree with the given ones that do not depend on y.

    With `unit`, they agree with σ·n = 1 where this condition holds, and σ·n = 0 where others do.

    The coarsest lift has the least H(div) norm; each finer one is its prolongation, corrected on the given facets. No
    level changes much, so the lift is as smooth as the data allow and loses no digits in half precision.
    """
    given = {i: c.value for i, c in enumerate(problem.conditions) if c.kind == "neumann" and not c.value.depends_on_y}
    if unit is not None:
        given = {unit: BoundaryValue(1.0, "one")}
    if not levels[0].fixed.any() or all(value.is_zero for value in given.values()):
        return tuple(np.zeros(len(level.facets)) for level in levels)
    lifts: list[Floats] = []
    for j, level in enumerate(levels):
        fluxes = _facet_fluxes(given, problem.quadrature_degree, level, _conditions(hierarchy, problem, j, level))
        if j:
            values = _prolongation(levels[j - 1], level, hierarchy.levels[j].ends) @ lifts[-1]
            values[level.fixed] = fluxes
        else:
            M = sparse.csc_array(level.norm_matrix())
            values, free = np.zeros(len(level.facets)), level.free
            values[level.fixed] = fluxes
            if len(free):
                values[free] = linalg.spsolve(M[free][:, free].tocsc(), -(M @ values)[free])
        lifts.append(values)
    return tuple(lifts)


def _conditions(hierarchy: MeshHierarchy, problem: Problem, j: int, level: FluxLevel) -> Ints:
    """For each fixed facet of level j the number of its condition, -1 if it is insulated."""
    found, of_level = np.full(len(level.facets), -1), hierarchy.levels[j]
    found[find(of_level.facets, level.facets)] = hierarchy.condition_facets(problem)[of_level.facet_origin]
    return np.asarray(found[level.fixed])


def _facet_fluxes(given: Mapping[int, BoundaryValue], degree: int, level: FluxLevel, part: Ints) -> Floats:
    """∫ h over the facets where σ·n = h is given, as fluxes towards the positive side of each facet."""
    points, cells, d = level.mesh.points, level.mesh.cells, level.mesh.dimension
    facets = level.facets[level.fixed]
    normal = facet_vectors(points, facets)
    of_cells = level.mesh.simplices(d - 1)[1]
    owner = np.zeros(len(level.facets), np.int64)
    owner[of_cells] = np.arange(len(cells))[:, None]
    inside = points[cells[owner[level.fixed]]].mean(axis=1)
    outward = np.sign((normal * (points[facets].mean(axis=1) - inside)).sum(axis=1))
    found = np.zeros(len(facets))
    for number, value in given.items():
        own = part == number
        if own.any():
            found[own] = _facet_means(value, points[facets[own]], degree)
    size = np.ones(len(facets)) if d == 1 else np.linalg.norm(normal, axis=1)
    return np.asarray(outward * size * found)


def _facet_means(h: BoundaryValue, corners: Floats, degree: int) -> Floats:
    """(F,) means of h over facets with these corners (F, d, d)."""
    d = corners.shape[2]
    if d == 1:
        return h.at(corners[:, 0])
    hats, weights = door.barycentric_quadrature(d - 1, degree)  # (Q, d), (Q,)
    x = np.einsum("qn,fnd->fqd", hats, corners)
    return np.asarray(h.at(x.reshape(-1, d)).reshape(x.shape[:2]) @ weights)


def _prolongation(coarse: FluxLevel, fine: FluxLevel, ends: Ints) -> sparse.csr_array:
    d = coarse.mesh.dimension
    tables = [level.mesh.simplices(d - 1) for level in (coarse, fine)]
    entries = prolongation_entries(tables[0], tables[1], coarse.mesh.cells, ends, 2**d)
    return _matrix(entries, (len(fine.facets), len(coarse.facets)))


def _sides(facets: Ints) -> Ints:
    """(n, d-1) all sides of facets (F, d)."""
    return local_simplices(facets, facets.shape[1] - 2).reshape(-1, facets.shape[1] - 1)


def _matrix(entries: tuple[Ints, Ints, Floats], shape: tuple[int, int]) -> sparse.csr_array:
    rows, columns, weights = entries
    return sparse.csr_array((weights, (rows, columns)), shape=shape)


def _kernel(matrix: sparse.csr_array) -> Floats:
    """(n, b) orthonormal basis of the kernel of a positive semidefinite matrix."""
    if matrix.shape[0] <= DENSE:
        values, vectors = np.linalg.eigh(matrix.toarray())
        return np.asarray(vectors[:, values < ZERO])
    count = 4
    while True:
        start = np.random.default_rng(0).standard_normal(matrix.shape[0])
        values, vectors = linalg.eigsh(matrix.tocsc(), count, sigma=-1e-3, v0=start)
        if values.max() > ZERO:
            return np.asarray(vectors[:, values < ZERO])
        count *= 4
