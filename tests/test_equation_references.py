"""PETSc reference solutions of users' equations: forms against programs, solvers against each other, serial and MPI."""

import numpy as np
import pytest
import torch
from equation_cases import (
    BOX,
    ENERGIES,
    LEVELS,
    NONLINEAR,
    RESIDUALS,
    InTorch,
    frame_of,
    has,
    named_mesh,
    problem_of,
)
from mpi4py import MPI
from petsc4py import PETSc
from ufl import grad, inner, sym, tr

from fem_frames import (
    Frame,
    MeshHierarchy,
    Parameter,
    Problem,
    ReferenceSolver,
    export_frame,
    make_formulation,
    solve,
    solve_reference,
)
from fem_frames.frame.fields import Field
from fem_frames.problem.equation import Equation

CASES = [(name, d) for name in (*ENERGIES, *RESIDUALS) for d in (1, 2, 3) if has(name, d)]


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


# ---- solutions


@pytest.mark.serial
@pytest.mark.parametrize(("name", "d"), CASES)
def test_frame_and_petsc_agree(name, d):
    problem = problem_of(name, d)
    arrays = export_frame(MeshHierarchy.from_problem(problem, LEVELS[d]), problem)
    made, y = make_formulation(Frame.from_arrays(arrays, "float64"), problem), samples(problem)
    reference = solve_reference(problem, y, LEVELS[d])
    on_frame = ReferenceSolver.on_frame(arrays, problem)
    w = solve(made, torch.as_tensor(y), 1e-12, solver="frame").w
    found = made.synthesise(w, torch.as_tensor(y))
    assert list(reference.fields) == list(found)
    for field, values in found.items():
        np.testing.assert_allclose(values, reference.fields[field], rtol=0, atol=1e-8)
        np.testing.assert_allclose(on_frame(y[0])[0][field], reference.fields[field][0], rtol=0, atol=1e-10)
    np.testing.assert_allclose(made.loss(w, torch.as_tensor(y)), reference.loss, rtol=1e-9, atol=1e-18)


@pytest.mark.parametrize(("name", "d"), [(name, d) for name, d in CASES if name in NONLINEAR or name in RESIDUALS])
def test_derivatives_in_torch_vanish_at_solutions(name, d, comm):
    """Of energies in all free nodal values; for weak forms the residual, for random test functions."""
    problem, arrays = problem_of(name, d), frame_of(name, d)
    y, in_torch = samples(problem, 1), InTorch(arrays, problem)
    solver = ReferenceSolver.on_frame(arrays, problem, comm=comm)
    found, loss = solver(y[0])
    fields = {key: torch.as_tensor(values).requires_grad_() for key, values in found.items()}
    free = {f.name: torch.as_tensor(np.array(f.free[-1])) for f in arrays.fields}
    assert max(float(values.detach().abs().max()) for values in fields.values()) > 0.01
    if name in ENERGIES:
        energy = in_torch.energy(fields, torch.as_tensor(y))
        assert loss == pytest.approx(float(energy.detach()), rel=1e-12)
        slopes = torch.autograd.grad(energy, list(fields.values()))
        for key, slope in zip(fields, slopes, strict=True):
            assert float(slope[free[key]].abs().max()) < 1e-12
    else:
        assert loss == 0.0
        tests = random_fields(arrays, 3)
        inner = {key: torch.zeros_like(v).index_copy(0, free[key], v[free[key]]) for key, v in tests.items()}
        plain = {key: values.detach() for key, values in fields.items()}
        assert abs(in_torch.residual(plain, inner, torch.as_tensor(y))) < 1e-12


@pytest.mark.parametrize(("name", "d"), [case for case in CASES if case[1] < 3 or case[0] in ("elasticity", "carreau")])
def test_distributed_meshes_give_the_same_solutions(name, d, comm):
    problem, arrays = problem_of(name, d), frame_of(name, d)
    alone, shared = (ReferenceSolver.on_frame(arrays, problem, comm=c) for c in (MPI.COMM_SELF, comm))
    for sample in samples(problem):
        expected, loss = alone(sample)
        found, other = shared(sample)
        for field, values in expected.items():
            np.testing.assert_allclose(found[field], values, rtol=0, atol=1e-10)
        assert other == pytest.approx(loss, rel=1e-9, abs=1e-14)


@pytest.mark.parametrize(
    ("name", "d"), [("tensor", 1), ("elasticity", 2), ("least squares", 2), ("carreau", 2), ("advection", 2)]
)
def test_ways_of_distribution_agree(name, d):
    problem = problem_of(name, d)
    y = samples(problem, 3)
    expected = solve_reference(problem, y, LEVELS[d], comm=MPI.COMM_SELF)
    for distribute in ("mesh", "samples"):
        found = solve_reference(problem, y, LEVELS[d], distribute=distribute)
        for field, values in expected.fields.items():
            np.testing.assert_allclose(found.fields[field], values, rtol=0, atol=1e-10)
        np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-9, atol=1e-18)


def test_data_of_components_depend_on_y():
    """A displacement that is linear in x, with the second component free on the right."""
    field = Field(
        "u",
        components=2,
        dirichlet={"left": (0.0, 0.0), "right": (Parameter(3, scale=0.1), None), 9: (None, lambda x, y: 0 * x[..., 0])},
    )

    def energy(u, y, x, dx, ds):
        return (y[0] * tr(sym(grad(u))) ** 2 / 2 + y[1] * inner(sym(grad(u)), sym(grad(u)))) * dx

    problem = Problem(named_mesh(2), Equation(field, energy=energy), BOX)
    points, y = MeshHierarchy.from_problem(problem, 2).points, samples(problem)
    found = solve_reference(problem, y, 2)
    np.testing.assert_allclose(found.fields["u[0]"], 0.1 * y[:, 3:] * points[:, 0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.fields["u[1]"], 0, atol=1e-12)


# ---- solvers


@pytest.mark.parametrize("preconditioner", [None, "gamg"])
@pytest.mark.parametrize(
    ("name", "d", "levels"),
    [("tensor", 2, (3, 5)), ("elasticity", 2, (3, 5)), ("elasticity, P2", 2, (2, 4)), ("elasticity", 3, (2, 3))],
)
def test_conjugate_gradients_agree_with_lu_in_a_number_of_steps_that_hardly_grows(name, d, levels, preconditioner):
    problem, steps = problem_of(name, d), []
    y = samples(problem, 1)
    for level in levels:
        options = {} if preconditioner is None else {"pc_type": preconditioner}
        solve_by = ReferenceSolver(problem, level, solver="cg", petsc_options=options)
        found, _ = solve_by(y[0])
        steps.append(solve_by._system.solver.ksp.getIterationNumber())
        expected = solve_reference(problem, y, level, solver="lu")
        for field, values in expected.fields.items():
            np.testing.assert_allclose(found[field], values[0], rtol=0, atol=1e-9)
    assert steps[1] < 1.6 * steps[0]
