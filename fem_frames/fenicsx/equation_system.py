"""The equation of a user as a discrete system on a distributed mesh, from the function that returns its UFL form.

K cells of this rank, F boundary facets of all ranks, d dimension, p parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fem_frames.fenicsx import door, petsc
from fem_frames.fenicsx.boundary import BoundaryValues
from fem_frames.fenicsx.door import ufl
from fem_frames.fenicsx.field_space import FieldSpace
from fem_frames.fenicsx.newton import LinearStep, NewtonSolver
from fem_frames.fenicsx.parallel import together
from fem_frames.fenicsx.petsc import PETSc
from fem_frames.fenicsx.weak_forms import Arguments, component_count, fields_of
from fem_frames.frame.discretisation import Discretisation
from fem_frames.mesh.checks import group_tags
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.mesh.simplices import find
from fem_frames.messages import either
from fem_frames.problem.definition import Problem
from fem_frames.problem.densities import Group
from fem_frames.problem.equation import Equation, Unknown


def check_form(problem: Problem) -> None:
    """Raises a ValueError if PETSc cannot solve the problem's equation."""
    equation = problem.equation
    if equation is None:
        return
    if not equation.has_function:
        raise ValueError(
            "the equation was read with its frame, without the function that returns its form, which PETSc needs: give "
            f"the problem as {either('--problem FILE.py', 'problem=…, with its Equation')}"
        )


@dataclass(frozen=True, eq=False)
class MeshGroups:
    """The groups of cells and boundary facets of the whole mesh."""

    facets: Ints  # (F, d) points
    facet_tags: Ints  # (F,), -1 without one
    regions: Ints  # (cells of all ranks,)
    facet_names: Mapping[str, int]
    region_names: Mapping[str, int]

    @classmethod
    def of(cls, data: Discretisation) -> MeshGroups:
        if data.groups is None:
            raise ValueError("the frame has no groups of boundary facets: export it again")
        return cls(data.groups.facets, data.groups.tags, data.regions, data.facet_names, data.region_names)


class Integrals:
    """Integrals over groups of cells, "dx", or of boundary facets, "ds", of a distributed mesh, for forms of users."""

    def __init__(self, mesh: Any, groups: MeshGroups, degree: int) -> None:
        """Collective."""
        d, cells = mesh.topology.dim, door.input_cells(mesh)
        facets, place = _own_facets(mesh, groups.facets)
        self._measures = {
            "dx": _Measure("region", groups.regions, groups.region_names),
            "ds": _Measure("boundary facet", groups.facet_tags, groups.facet_names),
        }
        self._measures["dx"].on_mesh("dx", mesh, d, np.arange(len(cells)), cells, degree)
        self._measures["ds"].on_mesh("ds", mesh, d - 1, facets, place, degree)

    def __call__(self, name: str) -> Callable[[Any, tuple[Group, ...]], Any]:
        """Makes integrals by "dx" or "ds" from integrands and groups."""
        chosen = self._measures[name]

        def made(integrand: Any, groups: tuple[Group, ...]) -> Any:
            if name == "dx" and not groups:
                return integrand * chosen.measure
            # In 1D DOLFINx takes points between ranks for boundary too, but these have no tags.
            first, *others = chosen.numbers(groups)
            return sum((integrand * chosen.measure(k) for k in others), integrand * chosen.measure(first))

        return made


class _Measure:
    """A measure with the tags of its groups, numbered 1, 2, … because DOLFINx takes positive ones only."""

    def __init__(self, what: str, tags: Ints, names: Mapping[str, int]) -> None:
        """`tags` are those of the whole mesh."""
        self._what, self._tags, self._names = what, tags, names
        self._known = np.unique(tags)

    def on_mesh(self, name: str, mesh: Any, dimension: int, entities: Ints, place: Ints, degree: int) -> None:
        """Makes the measure from the entities of this rank and their places in the tags of the whole mesh."""
        tags = door.make_tags(mesh, dimension, entities, self._number(self._tags[place]))
        metadata = {"quadrature_degree": degree}
        self.measure = ufl.Measure(name, domain=mesh, subdomain_data=tags, metadata=metadata)

    def _number(self, tags: Ints) -> Ints:
        return 1 + np.searchsorted(self._known, tags)

    def numbers(self, groups: tuple[Group, ...]) -> list[int]:
        """The numbers of groups; of all tags, and of what has none, without groups."""
        tags = group_tags(groups, self._names, self._tags, self._what) if groups else self._known
        return [int(number) for number in np.unique(self._number(np.asarray(tags)))]


def _own_facets(mesh: Any, facets: Ints) -> tuple[Ints, Ints]:
    """The boundary facets that this rank owns, and their places among those (F, d) of the whole mesh. Collective."""
    rows = door.facet_nodes(mesh)
    outer, inside = np.unique(facets), (rows >= 0).all(axis=1)
    rows = door.input_nodes(mesh)[rows]
    near = np.flatnonzero(inside & np.isin(rows, outer).all(axis=1))
    # Numbering boundary points separately keeps the keys of facets within 64 bits.
    place = find(np.searchsorted(outer, rows[near]), np.searchsorted(outer, facets))
    return near[place >= 0], place[place >= 0]


class EquationSystem:
    """Maps y to the solution of the user's equation in a space."""

    def __init__(
        self,
        space: FieldSpace,
        problem: Problem,
        integrals: Integrals,
        boundary: Callable[[Floats], BoundaryValues],
        solver: str,
        petsc_options: Mapping[str, Any],
    ) -> None:
        self._space, self._boundary = space, boundary
        self._y = door.constant(space.mesh, np.zeros(problem.parameters.dimension))
        equation = problem.equation
        assert equation is not None
        residual, jacobian, energy = together(space.comm, lambda: self._forms(equation, integrals))
        self._residual, self._jacobian = door.compile_form(residual), door.compile_form(jacobian)
        self._energy = None if energy is None else door.compile_form(energy)
        self._matrix: PETSc.Mat | None = None
        self._given = np.zeros(0, np.int64)  # dofs of this rank whose values are given
        d = space.mesh.topology.dim
        has_vectors = solver == "cg" and any(_is_displacement(f, d) for f in equation.fields)
        self._modes = list(near_kernel(space, equation)) if has_vectors else []
        kind = LinearStep if problem.density().is_linear else NewtonSolver
        self.solver = kind(space.comm, solver, petsc_options, has_vectors=has_vectors)

    def _forms(self, equation: Equation, integrals: Integrals) -> tuple[Any, Any, Any]:
        """Residual, its derivative, and the energy or None."""
        V, w, d = self._space.V, self._space.solution, self._space.mesh.topology.dim
        v, x = ufl.TestFunction(V), ufl.SpatialCoordinate(self._space.mesh)
        fields, tests = (fields_of(equation, d, _components(f, component_count(equation, d))) for f in (w, v))
        has_energy = equation.residual is None
        form = Arguments(equation, d, fields, [] if has_energy else tests, self._y, x).form(integrals)
        residual = ufl.derivative(form, w, v) if has_energy else form
        return residual, ufl.derivative(residual, w, ufl.TrialFunction(V)), form if has_energy else None

    def solve(self, y: Floats) -> None:
        """Solves for one y (1, p) into the solution of the space. Collective."""
        space = self._space
        given = together(space.comm, lambda: self._boundary(y))
        self._y.value[:] = y[0]
        x = PETSc.Vec().createMPI((space.V.dofmap.index_map.size_local, PETSc.DETERMINE), comm=space.comm)
        # The lift is smooth, so Newton's method starts well; values on the boundary alone would have large gradients.
        space.extend(given.lifts, x.array)
        self._given = space.place(given.lifts, x.array)
        self.solver.find(self, x)
        space.set_solution(x.array_r)
        x.destroy()

    def residual(self, x: PETSc.Vec, into: PETSc.Vec) -> None:
        """The residual at x, zero where values are given. Collective."""
        self._space.set_solution(x.array_r)
        found = petsc.assemble_vector(self._residual)
        values = found.array_r.copy()
        values[self._given] = 0
        into.array[:] = values
        found.destroy()

    def jacobian(self, x: PETSc.Vec) -> PETSc.Mat:
        """Its derivative at x, the identity where values are given. Collective."""
        self._space.set_solution(x.array_r)
        A = self._matrix = petsc.assemble_matrix(self._jacobian, into=self._matrix)
        A.zeroRowsColumns((self._space.first + self._given).astype(PETSc.IntType), 1.0)
        if self._modes:
            A.setNearNullSpace(self._near_null_space(A))
        return A

    def loss(self, fields: Mapping[str, Floats]) -> float:
        """The energy of the solution; zero for weak forms, which have none. Collective."""
        return 0.0 if self._energy is None else door.integral(self._energy, self._space.comm)

    def _near_null_space(self, A: PETSc.Mat) -> PETSc.NullSpace:
        basis: list[PETSc.Vec] = []
        for mode in self._modes:
            vector = A.createVecRight()
            vector.array[:] = mode
            vector.array[self._given] = 0
            for other in basis:
                vector.axpy(-vector.dot(other), other)
            if vector.norm() > 1e-10:
                vector.normalize()
                basis.append(vector)
        return PETSc.NullSpace().create(vectors=basis, comm=self._space.comm)


def _components(function: Any, count: int) -> list[Any]:
    return [function[i] for i in range(count)] if function.ufl_shape else [function]


def _is_displacement(unknown: Unknown, d: int) -> bool:
    """Whether a field may be a displacement, whose energy small rotations leave unchanged."""
    return unknown.element != "RT0" and unknown.components == d > 1


def near_kernel(space: FieldSpace, equation: Equation) -> Iterator[Floats]:
    """Dofs of this rank of rigid body motions for displacements, of constants for other nodal fields."""
    d, x = space.mesh.topology.dim, space.node_points()

    def mode(values: Mapping[str, Floats]) -> Floats:
        found = np.zeros(space.V.dofmap.index_map.size_local)
        space.extend([values.get(f.name, np.zeros(len(f.fixed))) for f in space.fields], found)
        return found

    for unknown in equation.fields:
        names = unknown.names()
        for name in names:
            yield mode({name: np.ones(space.points)})
        if _is_displacement(unknown, d):
            for i in range(d):
                for j in range(i):
                    yield mode({names[i]: x[:, j], names[j]: -x[:, i]})
