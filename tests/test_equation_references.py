"""PETSc reference solutions of users' equations: forms against programs, solvers against each other, serial and MPI."""

import numpy as np
import pytest
import torch
from equation_cases import ENERGIES, LEVELS, NONLINEAR, RESIDUALS, InTorch, frame_of, has, problem_of
from mpi4py import MPI
from petsc4py import PETSc

from fem_frames import Frame, MeshHierarchy, ReferenceSolver, export_frame, make_formulation, solve, solve_reference

CASES = [(name, d) for name in (*ENERGIES, *RESIDUALS) for d in (1, 2, 3) if has(name, d)]
LINEAR = [(name, d) for name, d in CASES if name in ENERGIES and name not in NONLINEAR]


def random_fields(arrays, seed):
    random = np.random.default_rng(seed)
    return {f.name: torch.as_tensor(0.3 * random.standard_normal(len(f.lift[-1]))) for f in arrays.fields}


def samples(problem, count=2):
    return problem.parameters.sample(count, 0)


# ---- forms


@pytest.mark.parametrize(("name", "d"), CASES)
def test_programs_and_assembled_forms_agree_at_random_states(name, d, comm):
    problem, arrays = problem_of(name, d), frame_of(name, d)
    solver = ReferenceSolver.on_frame(arrays, problem, comm=comm)
    system, space = solver._system, solver._space
    in_torch, fields, tests = InTorch(arrays, problem), random_fields(arrays, 0), random_fields(arrays, 1)
    y = samples(problem, 1)
    system._y.value[:] = y[0]
    x, v, b = (
        PETSc.Vec().createMPI((space.V.dofmap.index_map.size_local, PETSc.DETERMINE), comm=comm) for _ in range(3)
    )
    for vector, of in ((x, fields), (v, tests)):
        space.extend([of[f.name].numpy() for f in space.fields], vector.array)
    if name in ENERGIES:
        space.set_solution(x.array_r)
        found, expected = system.loss({}), float(in_torch.energy(fields, torch.as_tensor(y)))
    else:
        system.residual(x, b)
        found, expected = b.dot(v), in_torch.residual(fields, tests, torch.as_tensor(y))
        assert system.loss({}) == 0.0
    assert abs(found - expected) < 1e-13 * max(1.0, abs(expected))
