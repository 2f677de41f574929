"""The commands condition, iterations, rounding and bench: the keys of their JSON, and their tables."""

import json
import re

import pytest
from small_runs import call_command

pytestmark = pytest.mark.serial
SMALL = ["--problem", "quarters", "--formulation", "least-squares", "--levels", "4"]


def rows_of(*arguments, cwd=None):
    return json.loads(call_command(*arguments, "--json", cwd=cwd).stdout)["rows"]


def test_condition_rows():
    rows = rows_of("condition", *SMALL, "--first-level", 0)
    assert [r["level"] for r in rows] == [2, 3, 4]
    assert all({"level", "cond_A", "cond_bpx", "cond_D", "cond_C"} <= set(r) for r in rows)
    assert rows[-1]["cond_bpx"] == pytest.approx(8.0, rel=0.05)


def test_condition_of_random_samples_is_the_worst():
    one, many = rows_of("condition", *SMALL), rows_of("condition", *SMALL, "--samples", 3, "--seed", 1)
    assert many[-1]["cond_bpx"] > one[-1]["cond_bpx"]


def test_tables_for_people_and_pictures(tmp_path):
    told = call_command("condition", *SMALL, "--plot", "c.png", cwd=tmp_path).stdout
    assert "first level: 1" in told
    assert re.search(r"level +nodal size +cond A +cond bpx +cond D +cond C +cond flux\n +2 ", told)
    told = call_command("iterations", *SMALL, "--dtypes", "float32", cwd=tmp_path).stdout
    assert "stable iterations" in told
    call_command("rounding", *SMALL, "--plot", "r.svg", "--dtypes", "float16", "bfloat16", cwd=tmp_path)
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "r.svg").read_bytes()


def test_curls_can_be_left_out():
    square = ("--problem", "checkerboard", "--formulation", "least-squares", "--levels", "2")
    told = json.loads(call_command("condition", *square, "--without", "curl", "--json").stdout)
    assert told["families"] == ["u", "sigma"]
    whole = json.loads(call_command("condition", *square, "--json").stdout)
    assert told["rows"][-1]["cond_flux"] > 50 * whole["rows"][-1]["cond_flux"]


def test_rounding_rows():
    rows = rows_of("rounding", *SMALL)
    keys = {"level", "dtype", "route", "residual_error", "gradient_error", "loss", "loss_true"}
    assert all(keys == set(r) for r in rows)
    assert len(rows) == 3 * 3 * 4
    assert {r["route"] for r in rows} == {"bpx", "sparse", "gather", "recursive"}
    assert {r["dtype"] for r in rows} == {"float16", "float32", "float64"}


def test_iteration_rows():
    rows = rows_of("iterations", *SMALL, "--tol", "1e-5", "--samples", 2)
    assert {r["dtype"] for r in rows} == {"float64", "float32"}
    assert all(r["stable_iterations"] <= r["nodal_iterations"] for r in rows)


def test_bench_rows():
    rows = rows_of("bench", "--problem", "checkerboard", "--levels", 4, "--seconds", 0, "--batch", 8)
    keys = {"dim", "levels", "dtype", "route", "forward_s", "forward_backward_s", "peak_bytes"}
    assert all(keys <= set(r) for r in rows)
    assert [r["route"] for r in rows[:6]] == ["copy", "recursive", "gather", "csr", "coo", "bpx"]
    assert all(r["forward_s"] > 0 and r["forward_backward_s"] > 0 for r in rows)
    # Input and output are 284 and 1024 numbers for each of 8 samples; a gradient comes with the output at least.
    recursive = rows[1]
    assert recursive["input_output_bytes"] == 4 * 8 * (284 + 1024)
    assert recursive["input_output_bytes"] <= recursive["peak_bytes"] < 6 * recursive["input_output_bytes"]


def test_bench_prints_the_growth_over_the_levels():
    told = call_command("bench", "--dims", "3", "--routes", "copy", "recursive", "--seconds", 0, "--batch", 2).stdout
    assert re.search(r"3D \(E\) +float16 +recursive +J = 3 to 5: \d", told)


def test_a_frame_of_ones_own_problem_wants_its_file(tmp_path):
    """The frame's record names it, but a file does not choose code to run."""
    (tmp_path / "mine.py").write_text(
        "from fem_frames import ByRegion, Grid, Problem, Uniform\n"
        "problem = Problem(Grid((1, 1)), ByRegion.each(1), Uniform((1.0,), (2.0,)))\n"
    )
    call_command("export", "--problem", "mine.py", "--levels", 3, "--out", "f.npz", cwd=tmp_path)
    assert "give --problem mine.py" in call_command("condition", "--frame", "f.npz", expect=2, cwd=tmp_path).stderr
    (tmp_path / "mine.py").rename(tmp_path / "other.py")
    assert len(rows_of("condition", "--frame", "f.npz", "--problem", "other.py", cwd=tmp_path)) == 3
    routes = [row["route"] for row in rows_of("bench", "--frame", "f.npz", "--seconds", 0, "--batch", 2, cwd=tmp_path)]
    assert set(routes) == {"copy", "recursive", "gather", "csr", "coo"}, "all that need no problem"
    done = call_command("condition", "--frame", "f.npz", "--problem", "quarters", expect=2, cwd=tmp_path)
    assert "quarters does not fit the frame, made for mine.py: the frame is 2-dimensional" in done.stderr
