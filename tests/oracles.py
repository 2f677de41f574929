"""Numbers from other routes: DOLFINx's own assembly, manufactured solutions."""

import numpy as np
import ufl
from dolfinx import fem
from mpi4py import MPI
from scipy import sparse

from fem_frames import Grid, Pointwise, Problem, Uniform
from fem_frames.fenicsx import door, petsc
from fem_frames.fenicsx.dofs import node_dofs


def stiffness(points, cells, a):
    """(N, N) DOLFINx's P1 stiffness matrix, a (K,) constant on cells, in the numbering of the arrays."""
    mesh = door.create(points, cells, MPI.COMM_SELF)
    V = door.space(mesh, "P")
    at_points = door.quadrature_space(mesh, 2)
    coefficient = fem.Function(at_points)
    coefficient.x.array[door.dofs(at_points)] = a[door.input_cells(mesh)][:, None]
    u, v = ufl.TrialFunction(V), ufl.TestFunction(V)
    dx = ufl.Measure("dx", domain=mesh, metadata={"quadrature_degree": 2})
    A = petsc.assemble_matrix(door.compile_form(coefficient * ufl.inner(ufl.grad(u), ufl.grad(v)) * dx))
    indptr, indices, data = A.getValuesCSR()
    owned, node = node_dofs(V, V)
    place = np.empty_like(node)
    place[owned] = node
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return sparse.csr_array((data, (place[rows], place[indices])), shape=A.getSize())


class Assembly:
    """Forms on P1 over the finest mesh of a frame, assembled by DOLFINx, in the numbering of the frame's points."""

    def __init__(self, arrays):
        self.mesh = door.create(arrays.points, arrays.levels[-1].cells, MPI.COMM_SELF)
        self.V = door.space(self.mesh, "P")
        owned, node = node_dofs(self.V, self.V)
        self.place = np.empty_like(node)
        self.place[owned] = node

    def matrix(self, form):
        starts, columns, entries = petsc.assemble_matrix(door.compile_form(form)).getValuesCSR()
        rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        return sparse.csr_matrix((entries, (self.place[rows], self.place[columns]))).toarray()

    def vector(self, form):
        found = np.zeros(len(self.place))
        found[self.place] = petsc.assemble_vector(door.compile_form(form)).array
        return found


def sine_problem(d):
    """(problem, u, ∇u): a = 1 + y x₀, u = Π sin(π x_i) whatever y."""

    def u(x):
        return np.prod(np.sin(np.pi * x), axis=-1)

    def gradient(x):
        s, c = np.sin(np.pi * x), np.pi * np.cos(np.pi * x)
        return np.stack([c[..., i] * np.prod(np.delete(s, i, axis=-1), axis=-1) for i in range(d)], axis=-1)

    def source(x, y):
        return (1 + y[..., 0] * x[..., 0]) * d * np.pi**2 * u(x) - y[..., 0] * gradient(x)[..., 0]

    problem = Problem(
        mesh=Grid((1,) * d),
        coefficient=Pointwise(lambda x, y: 1 + y[..., 0] * x[..., 0]),
        parameters=Uniform((0.0,), (1.0,)),
        source=source,
        quadrature_degree=4,
    )
    return problem, u, gradient


def slope(values):
    """Fitted rate of convergence, in powers of 1/2 a level."""
    return -np.polyfit(np.arange(len(values)), np.log2(values), 1)[0]
