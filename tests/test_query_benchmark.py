"""The benchmark of queries: its rows, ratios, rivals, growth and picture, and its options."""

import json

import pytest
from small_runs import call_command

from fem_frames import Grid, Pointwise, Problem, Uniform, make_problem
from fem_frames.commands import main
from fem_frames.studies.levels import cached_frame
from fem_frames.studies.query_plots import plot_queries
from training import Configuration, Surrogate, train
from training.query_benchmark import Queries, query_rows, ratios
from training.rival_benchmark import error_ratios, rival_rows

pytestmark = pytest.mark.serial


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("queries") / "run"
    train(Configuration(problem="disks", levels=4, net="multigrid", epochs=20, test_samples=4), folder, quiet=True)
    return folder


def test_benchmark_of_queries(trained):
    surrogate = Surrogate.load(trained)
    queries = Queries(surrogate.arrays, surrogate.problem, 8, 0.0)
    rows = [*query_rows(queries, petsc=2, learn=3), *rival_rows(queries, 150, 5, [trained])]
    by_name = {row["method"]: row for row in rows}
    assert by_name["multigrid (2, 2), 4 steps"]["error"] < 1e-5
    assert by_name["PETSc lu"]["error"] < 1e-8
    assert by_name["learned (2, 2)"]["error"] < 0.1
    assert all(row["ms"] > 0 for row in rows)
    found = ratios(rows)
    fastest = min(row["ms"] for row in rows if row["kind"] == "multigrid" and row["error"] <= 1e-3)
    assert found["multigrid / D"] == fastest / by_name["D forward and backward"]["ms"]
    assert all(value is None or value > 0 for value in found.values())
    rivals = [row for row in rows if row["kind"] == "rival"]
    assert [row["solves"] for row in rivals] == [150, 150, 150, 0]
    assert rivals[0]["error"] < 0.3  # 149 modes of a reduced basis
    assert len(error_ratios(rows)) == 4


def test_the_benchmark_knows_boundary_data_of_y():
    problem = Problem(
        mesh=Grid((2, 2)),
        coefficient=Pointwise(lambda x, y: 2 + y[..., 0] * x[..., 0]),
        parameters=Uniform((-1.0,), (1.0,)),
        dirichlet="all",
        dirichlet_value=lambda x, y: 1 + y[..., 0] * x[..., 0],
    )
    queries = Queries(cached_frame(problem, 3, "energy"), problem, 4, 0.0)
    errors = {row["method"].split(",")[0]: row["error"] for row in queries.petsc(2)}
    assert errors["PETSc lu"] < 1e-8
    assert max(errors.values()) < 1e-3


def test_the_benchmark_knows_equations_with_several_fields():
    problem = make_problem("elastic")
    queries = Queries(cached_frame(problem, 2, "energy"), problem, 4, 0.0)
    errors = {row["method"].split(",")[0]: row["error"] for row in queries.petsc(2)}
    assert {"PETSc lu", "PETSc cg hypre", "PETSc cg icc"} == set(errors)
    assert errors["PETSc lu"] < 1e-8
    assert max(errors.values()) < 1e-3


@pytest.mark.parametrize("name", ["carreau", "transport"])
def test_the_benchmark_refuses_what_multigrid_does_not_answer_at_once(name):
    problem = make_problem(name)
    with pytest.raises(ValueError, match=f"queries of {name} cannot be compared"):
        Queries(cached_frame(problem, 2, "energy"), problem, 2, 0.0)


def test_rivals_of_another_problem_are_refused(trained):
    problem = make_problem("disks", count=2)
    queries = Queries(cached_frame(problem, 3, "energy"), problem, 2, 0.0)
    with pytest.raises(ValueError, match="is a surrogate of disks with 225 unknowns, but disks with 49 is measured"):
        list(rival_rows(queries, 150, 1, [trained]))


def test_the_picture_of_queries_shows_the_fastest_multigrid_of_each_accuracy(tmp_path):
    times_and_errors = ((1.0, 0.1), (2.0, 0.2), (3.0, 0.01), (3.5, 0.01), (4.0, 0.001))
    rows = [{"kind": "multigrid", "method": "m", "ms": ms, "error": error} for ms, error in times_and_errors]
    rows += [
        {"kind": kind, "method": kind, "ms": 9.0, "error": 1e-4} for kind in ("learned", "rival", "frame", "PETSc")
    ]
    rows.append({"kind": "D", "method": "D", "ms": 0.1, "error": None})
    figure = plot_queries(rows, tmp_path / "queries.png")
    assert (tmp_path / "queries.png").stat().st_size > 10_000
    assert figure.axes[0].lines[0].get_xydata().tolist() == [[1.0, 0.1], [3.0, 0.01], [4.0, 0.001]]


def test_growth_of_queries_by_command(capsys):
    main(["bench", "--queries", "--growth", "3", "4", "--batch", "4", "--seconds", "0", "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["levels"], row["unknowns"]) for row in rows] == [(3, 49), (4, 225)]
    assert rows[0]["over_first"] == 1.0
    assert {row["method"] for row in rows} == {"multigrid (2, 2), 2 steps"}
    assert all(row["error"] <= 1e-3 for row in rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--growth", "3", "--levels", "3", "--problem", "disks"], "leave out --frame, --levels, --rivals and --plot"),
        (["--rivals", "7"], "at least 100 solves"),
        (["--run", "somewhere"], "--run goes with --rivals"),
        (["--learn", "-1"], "0 for no learned cycles"),
    ],
)
def test_wrong_options_of_the_benchmark_are_refused(options, message):
    assert message in call_command("bench", "--queries", *options, expect=2).stderr
