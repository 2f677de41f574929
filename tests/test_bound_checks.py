"""Bounds of u and of outputs against solutions by PETSc's LU, for learned multigrid and a frame net."""

import json

import numpy as np
import pytest
import torch
from small_runs import call_command

from fem_frames import BoundaryFlux, OutputMap, PointValues, RegionMean, solve_reference
from fem_frames.mesh.location import locate
from training import Configuration, Surrogate, train
from training import bound_checks as module
from training.bound_checks import bound_rows

pytestmark = pytest.mark.serial
SAMPLES = 48  # `fem-frames outputs RUN --samples 1000 … --check` takes more
POINTS = [[0.5, 0.5], [0.21, 0.83]]
OUTPUTS = [PointValues(POINTS), RegionMean(), BoundaryFlux("all")]
NETS = {
    "multigrid": dict(net="multigrid", epochs=100, batch=16),
    "full": dict(net="full", optimizer="soap", level_decay=1.0, epochs=150),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folders of short runs, by problem and net."""
    folder, made = tmp_path_factory.mktemp("bounds"), {}

    def get(problem, net):
        name = f"{problem}-{net}"
        if name not in made:
            made[name] = folder / name
            train(Configuration(problem=problem, levels=5, test_samples=0, **NETS[net]), made[name], quiet=True)
        return made[name]

    return get


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("problem", ["disks", "checkerboard"])
def test_no_error_exceeds_its_bound(trained, problem, net):
    surrogate = Surrogate.load(trained(problem, net))
    rows = list(bound_rows(surrogate, surrogate.problem.parameters.sample(SAMPLES, 2026), OUTPUTS))
    assert [row["bound"] for row in rows] == ["residual"] + 4 * ["plain"] + 4 * ["adjoint"]
    assert all(row["violations"] == 0 for row in rows), rows
    assert all(1 <= row["least"] <= row["median"] <= row["most"] for row in rows)
    assert rows[0]["median"] < 3  # of u in the energy norm
    for plain, adjoint in zip(rows[1:5], rows[5:], strict=True):
        assert plain["quantity"] == adjoint["quantity"]
        assert adjoint["median_error"] < 1e-3 * plain["median_error"]


def test_outputs_of_solutions_by_petsc_are_those_of_plain_formulas(trained):
    """Interpolation at points, the integral of hats, and the whole source, which leaves through the boundary."""
    surrogate = Surrogate.load(trained("disks", "multigrid"))
    exact, arrays, y = surrogate.formulation, surrogate.arrays, surrogate.problem.parameters.sample(3, 1)
    u = solve_reference(surrogate.problem, y, 5, solver="lu").u
    cells = arrays.levels[-1].cells
    cell, hats = locate(POINTS, arrays.points, arrays.levels)
    at_points = np.einsum("bnl,nl->bn", u[:, cells[cell]], hats)
    mean = (u[:, cells].mean(2) * arrays.volumes).sum(1) / arrays.volumes.sum()
    expected = np.column_stack([at_points, mean, -np.ones(3)])  # f = 1 on the unit square
    w = module._by_lu(surrogate, y, None)
    found = OutputMap(exact, OUTPUTS).values(w, torch.as_tensor(y))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_bounds_that_are_too_small_are_counted(trained, monkeypatch):
    surrogate = Surrogate.load(trained("disks", "multigrid"))
    right = module.error_bound
    monkeypatch.setattr(module, "error_bound", lambda *given: 0.1 * right(*given))
    (row,) = bound_rows(surrogate, surrogate.problem.parameters.sample(8, 1))
    assert row["violations"] == 8
    assert row["most"] < 1


def test_the_command_shows_it(trained):
    asked = ["--samples", 6, "--point", "0.5,0.5", "--mean", "all", "--through", "all", "--check"]
    folder = trained("checkerboard", "full")
    shown = call_command("outputs", folder, *asked)
    assert "violations" in shown.stdout
    assert "u in the energy norm" in shown.stdout
    found = json.loads(call_command("outputs", folder, *asked, "--json").stdout)
    assert (found["samples"], found["against"], len(found["rows"])) == (6, "PETSc, LU", 7)
    assert sum(row["violations"] for row in found["rows"]) == 0
    alone = json.loads(call_command("outputs", folder, "--samples", 2, "--check", "--json").stdout)
    assert len(alone["rows"]) == 1


def test_what_cannot_be_compared(trained, tmp_path, monkeypatch):
    train(
        Configuration(problem="quarters", formulation="least-squares", levels=3, epochs=1, test_samples=0),
        tmp_path / "run",
        quiet=True,
    )
    shown = call_command("outputs", tmp_path / "run", "--samples", 2, "--check", expect=2)
    assert "least-squares has no bounds against the discrete solution" in shown.stderr
    monkeypatch.setattr("training.references.has_petsc", lambda: False)
    with pytest.raises(ValueError, match="PETSc cannot check these bounds: it is not installed"):
        list(bound_rows(Surrogate.load(trained("disks", "multigrid")), np.zeros((1, 3))))
