"""What PETSc's reference solutions of equations refuse and report, and sets and sweeps of them; serial and MPI."""

from dataclasses import replace

import numpy as np
import pytest
from equation_cases import BOX, LEVELS, U, frame_of, named_mesh, problem_of
from mpi4py import MPI
from ufl import exp, grad, inner, ln

from fem_frames import (
    Frame,
    MeshHierarchy,
    Problem,
    ReferenceSolver,
    Sweep,
    export_frame,
    make_formulation,
    run_sweep,
    solve_reference,
)
from fem_frames.fenicsx.sweep import problem_digest
from fem_frames.frame.fields import Field
from fem_frames.problem.equation import Equation
from training.references import petsc_lacks, reference_solutions


def with_energy(energy, field=U, d=2, **changes):
    return Problem(named_mesh(d), Equation(field, energy=energy), BOX, **changes)


# ---- what is refused, on every rank


@pytest.mark.parametrize(
    ("integral", "message"),
    [
        (lambda u, dx, ds: u**2 * dx("sotf"), r"the group 'sotf', but no region carries it; .*did you mean 'soft'\?"),
        (
            lambda u, dx, ds: u * ds("top"),
            "the group 'top', but no boundary facet carries it; the mesh has 'left', 'right'",
        ),
        (lambda u, dx, ds: u * ds(5), "the group 5, but no boundary facet carries it"),
    ],
)
@pytest.mark.parametrize("distribute", ["mesh", "samples"])
def test_groups_that_the_mesh_does_not_have_are_named(integral, message, distribute):
    problem = with_energy(lambda u, y, x, dx, ds: inner(grad(u), grad(u)) * dx + integral(u, dx, ds))
    with pytest.raises(ValueError, match=message):
        solve_reference(problem, np.ones(4), 1, distribute=distribute)


def test_another_formulation_is_refused():
    with pytest.raises(ValueError, match=r"has an equation of its own.*use formulation='energy'"):
        solve_reference(problem_of("tensor", 2), np.ones(4), 1, "least-squares")


@pytest.mark.parametrize(
    ("name", "message"),
    [("least squares", "a field in RT0"), ("advection", "a weak form, which need not be symmetric")],
)
def test_equations_without_conjugate_gradients_are_named(name, message):
    with pytest.raises(ValueError, match=f"the equation has {message}.*use solver='lu'"):
        ReferenceSolver.on_frame(frame_of(name, 2), problem_of(name, 2), solver="cg")
    with pytest.raises(ValueError, match="choose from cg, lu"):
        ReferenceSolver.on_frame(frame_of(name, 2), problem_of(name, 2), solver="magic")


def test_an_equation_that_was_read_has_no_function(tmp_path):
    problem, arrays = problem_of("tensor", 2), frame_of("tensor", 2)
    read = replace(problem, coefficient=Equation(problem.equation.fields, density=problem.density()))
    with pytest.raises(ValueError, match=r"read with its frame, without the function.*give the problem as problem="):
        ReferenceSolver.on_frame(arrays, read)
    arrays = export_frame(MeshHierarchy.from_problem(problem, 1), problem)
    assert petsc_lacks(make_formulation(Frame.from_arrays(arrays, "float64"), problem)) is None
    lack = petsc_lacks(make_formulation(Frame.from_arrays(arrays, "float64"), read))
    assert "the problem was read" in lack


def test_an_error_on_one_rank_is_raised_on_all(comm):
    def energy(u, y, x, dx, ds):
        if comm.rank == comm.size - 1 and len(u.ufl_shape) == 0 and energy.ready:
            raise KeyError("wind")
        return inner(grad(u), grad(u)) * dx

    energy.ready = False
    problem = with_energy(energy)
    problem.density()
    energy.ready = True
    with pytest.raises(ValueError, match=r"KeyError.*wind"):
        ReferenceSolver(problem, 1)


@pytest.mark.serial
def test_a_frame_with_another_flux_is_refused():
    problem = problem_of("least squares", 2)
    sigma = Field("sigma", "RT0", dirichlet={"right": 0.3, 9: 0.0})
    other = replace(problem, coefficient=Equation(U, sigma, energy=problem.equation.energy))
    arrays = export_frame(MeshHierarchy.from_problem(other, 1), other)
    with pytest.raises(ValueError, match=r"neumann\['right'\] of sigma differs"):
        make_formulation(Frame.from_arrays(arrays, "float64"), problem)


# ---- solves that fail


def test_an_equation_with_many_solutions_is_reported():
    problem = with_energy(lambda u, y, x, dx, ds: inner(grad(u), grad(u)) * dx - u * dx, dirichlet={})
    with pytest.raises(ValueError, match="nothing fixes u: the equation has only its derivatives"):
        solve_reference(problem, np.ones(4), 2)
    weak = Equation(U, residual=lambda u, v, y, x, dx, ds: inner(grad(u), grad(v)) * dx - v * dx)
    with pytest.raises(RuntimeError, match="singular"):
        solve_reference(Problem(named_mesh(2), weak, BOX, dirichlet={}), np.ones(4), 2)


def test_values_that_are_not_finite_are_reported():
    problem = with_energy(lambda u, y, x, dx, ds: inner(grad(u), grad(u)) * dx - ln(x[0] - y[0]) * u * dx)
    with pytest.raises(ValueError, match="residual of the equation is not finite"):
        solve_reference(problem, np.ones(4), 2)


def solver_of(name, **options):
    return ReferenceSolver.on_frame(frame_of(name, 2), problem_of(name, 2), comm=MPI.COMM_WORLD, **options)


def test_newtons_method_says_why_it_stops():
    with pytest.raises(
        RuntimeError, match=r"Newton method did not converge: DIVERGED_MAX_IT after 1 steps.*-snes_max_it"
    ):
        solver_of("carreau", petsc_options={"snes_max_it": 1})(np.ones(4))
    with pytest.raises(RuntimeError, match=r"DIVERGED_LINEAR_SOLVE after 0 steps: PETSc did not converge in 1 iter"):
        solver_of("carreau", solver="cg", petsc_options={"ksp_max_it": 1})(np.ones(4))


def test_an_equation_without_solution_is_reported():
    """−Δu = 100 exp(u) has none."""
    problem = with_energy(lambda u, y, x, dx, ds: inner(grad(u), grad(u)) / 2 * dx - 100 * exp(u) * dx)
    solver = ReferenceSolver.on_frame(frame_of("carreau", 2), problem, comm=MPI.COMM_WORLD)
    with pytest.raises(
        RuntimeError, match=r"Newton method did not converge: DIVERGED_\w+ .*has the equation a solution"
    ):
        solver(np.ones(4))


def test_options_reach_newtons_method():
    solver = solver_of("carreau", petsc_options={"snes_linesearch_type": "cp", "snes_rtol": 1e-3})
    assert solver._system.solver.snes.getTolerances()[0] == 1e-3
    solver(np.ones(4))
    with pytest.raises(ValueError, match=r"PETSc refuses the options .*nonsense"):
        solver_of("carreau", petsc_options={"snes_type": "nonsense"})


@pytest.mark.parametrize("name", ["carreau", "hyperelastic"])
def test_newtons_method_with_conjugate_gradients_agrees_with_lu(name):
    y = problem_of(name, 2).parameters.sample(2, 0)
    by_lu, by_cg = solver_of(name), solver_of(name, solver="cg")
    for sample in y:
        expected, found = by_lu(sample), by_cg(sample)
        for field, values in expected[0].items():
            np.testing.assert_allclose(found[0][field], values, rtol=0, atol=1e-10)
        assert found[1] == pytest.approx(expected[1], rel=1e-12)


# ---- sets and sweeps


@pytest.mark.serial
@pytest.mark.parametrize("name", ["diffusion", "elasticity", "least squares"])
def test_sets_come_from_petsc_or_are_checked_by_it(name):
    problem = problem_of(name, 2)
    arrays = export_frame(MeshHierarchy.from_problem(problem, LEVELS[2]), problem)
    made, y = make_formulation(Frame.from_arrays(arrays, "float64"), problem), problem.parameters.sample(3, 0)
    expected = reference_solutions(made, y, references="petsc")
    found = reference_solutions(made, y)
    assert found.record["reference"] == ("PETSc" if name == "least squares" else "multigrid")
    assert found.record.get("checked_by_petsc", 2) == 2
    for field, values in expected.fields.items():
        np.testing.assert_allclose(found.fields[field], values, rtol=0, atol=1e-8)


@pytest.mark.parametrize("distribute", ["samples", "mesh"])
def test_a_sweep_of_an_equation_is_the_batch_of_its_samples(shared_path, distribute):
    problem = problem_of("elasticity", 2)
    sweep = Sweep(problem, 2, 5, seed=1)
    done = run_sweep(sweep, shared_path / "r.npz", distribute=distribute)
    expected = solve_reference(problem, problem.parameters.sample(5, 1), 2)
    for field, values in expected.fields.items():
        np.testing.assert_allclose(done.fields[field], values, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(run_sweep(sweep, shared_path / "r.npz").u, done.u)
    other = replace(problem, coefficient=replace_energy(problem, 2.0))
    with pytest.raises(ValueError, match=r"holds another sweep .*digest"):
        run_sweep(Sweep(other, 2, 5, seed=1), shared_path / "r.npz")


def replace_energy(problem, factor):
    own = problem.equation
    return Equation(own.fields, energy=lambda *arguments: factor * own.energy(*arguments))


@pytest.mark.serial
def test_digests_of_equations_are_those_of_their_values():
    problem = problem_of("tensor", 2)
    digest = problem_digest(problem, 1, "energy")
    again = replace(problem, coefficient=replace_energy(problem, 1.0))
    assert problem_digest(again, 1, "energy") == digest
    assert problem_digest(replace(problem, coefficient=replace_energy(problem, 1.01)), 1, "energy") != digest
    elsewhere = with_energy(lambda u, y, x, dx, ds: inner(grad(u), grad(u)) * dx("soft") - u * dx)
    here = with_energy(lambda u, y, x, dx, ds: inner(grad(u), grad(u)) * dx("hard") - u * dx)
    assert problem_digest(here, 1, "energy") != problem_digest(elsewhere, 1, "energy")
