"""The command line as users run it: serial, under mpirun, and killed in the middle."""

import json
import os
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from processes import COMMAND, start_program
from small_runs import call_command

from fem_frames import FrameArrays, ReferenceSolutions

pytestmark = pytest.mark.serial
REFERENCE = ["reference", "--problem", "checkerboard", "--levels", "5", "--samples", "8", "--seed", "0"]


def launch(*arguments, ranks=None, cwd=None):
    """The command as a process of its own; `ranks` starts it under mpirun."""
    if not ranks:
        return start_program(COMMAND, *arguments, cwd=cwd)
    start = ["mpirun", "-n", str(ranks), sys.executable, "-m", "fem_frames.commands"]
    # os.environ is as it was before this process initialised MPI: what that added would mislead mpirun.
    streams = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return subprocess.Popen([*start, *map(str, arguments)], text=True, env=dict(os.environ), cwd=cwd, **streams)


def run(*arguments, ranks=None, expect=0, cwd=None):
    process = launch(*arguments, ranks=ranks, cwd=cwd)
    try:
        stdout, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == expect, f"{stdout}\n{stderr}"
    return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    out = tmp_path_factory.mktemp("serial") / "A"
    call_command(*REFERENCE, "--out", out)
    return ReferenceSolutions.load(out)


@pytest.mark.parametrize("distribute", ["samples", "mesh"])
def test_reference_under_mpirun_equals_the_serial_run(tmp_path, serial, distribute):
    ranks = 3  # which share neither samples nor cells evenly
    done = run(*REFERENCE, "--out", tmp_path / "A", "--distribute", distribute, "--json", ranks=ranks)
    record = json.loads(done.stdout.strip().splitlines()[-1])
    assert (record["samples"], record["ranks"]) == (8, ranks)
    assert "reference solutions: 8 of 8" in done.stderr
    parallel = ReferenceSolutions.load(tmp_path / "A")
    np.testing.assert_array_equal(parallel.y, serial.y)
    np.testing.assert_allclose(parallel.u, serial.u, rtol=0, atol=1e-10)


@pytest.mark.parametrize("ranks", [None, 2])
def test_a_killed_run_continues_and_completes(tmp_path, ranks):
    """kill -9 when the first shard is there: no file that loads is left, and the next run ends as if undisturbed."""
    arguments = [a if a != "8" else "60" for a in REFERENCE]
    call_command(*arguments, "--out", tmp_path / "whole")
    out, parts = tmp_path / "A", tmp_path / "A.parts"
    process = launch(*arguments, "--out", out, ranks=ranks)
    try:
        while not list(parts.glob("shard-*")) and process.poll() is None:
            time.sleep(0.005)
    finally:
        process.kill()  # of mpirun's ranks nothing is said: they end by themselves, and the next run waits for them
        process.wait()
    assert parts.exists()
    assert not out.exists()
    done = run(*arguments, "--out", out, ranks=ranks)
    first = int(re.search(r"reference solutions: (\d+) of 60", done.stderr)[1])
    assert 1 <= first < 60
    killed, whole = ReferenceSolutions.load(out), ReferenceSolutions.load(tmp_path / "whole")
    np.testing.assert_array_equal(killed.y, whole.y)
    np.testing.assert_allclose(killed.u, whole.u, rtol=0, atol=1e-10)
    assert not parts.exists()


def test_petsc_options_pass_through(tmp_path):
    done = run(*REFERENCE, "--out", tmp_path / "A", "-ksp_monitor", "-ksp_rtol", "1e-3", "-pc_type", "jacobi")
    assert "KSP Residual norm" in done.stdout
    failed = run(*REFERENCE, "--out", tmp_path / "B", "-ksp_max_it", "1", expect=1)
    assert failed.stderr.count("\n") <= 2
    assert "did not converge in 1 iterations" in failed.stderr


def test_least_squares_reference(tmp_path):
    out = tmp_path / "ls.npz"
    arguments = ["--problem", "quarters", "--formulation", "least-squares", "--levels", 6, "--samples", 3]
    record = json.loads(call_command("reference", *arguments, "--out", out, "--json").stdout)
    assert record["mean_loss"] == pytest.approx(ReferenceSolutions.load(out).loss.mean())


def test_export_writes_arrays_and_sparse_matrices(tmp_path):
    from scipy import sparse

    arguments = ["export", "--problem", "quarters", "--formulation", "least-squares", "--levels", 4]
    said = call_command(*arguments, "--out", tmp_path / "f.npz", "--sparse", tmp_path / "s", "--json").stdout
    record = json.loads(said)
    arrays = FrameArrays.load(tmp_path / "f.npz")
    assert record["frame_size"] == arrays.frame_size == 60
    assert sparse.load_npz(tmp_path / "s" / "H.npz").shape == (arrays.nodal_size, arrays.frame_size)
    assert sparse.load_npz(tmp_path / "s" / "D.npz").shape == (16 * 2 * 3, arrays.frame_size)
    assert sparse.load_npz(tmp_path / "s" / "P_sigma_04.npz").shape == (17, 9)
    with np.load(tmp_path / "s" / "C.npz") as data:
        assert data["weights"].sum() == pytest.approx(1)
    table = call_command(*arguments, "--out", tmp_path / "g.npz", "--first-level", 2, "--set", "low=0.1").stdout
    assert "frame size" in table
    assert FrameArrays.load(tmp_path / "g.npz").record["options"] == {"low": 0.1}


def test_info_and_problems():
    info = json.loads(run("info", "--json").stdout)
    assert {"dolfinx", "petsc", "mpi", "torch", "blas", "devices"} <= set(info)
    names = [row["name"] for row in json.loads(call_command("problems", "--json").stdout)["problems"]]
    first = ["quarters", "checkerboard", "lshape", "ring", "cookies", "lognormal", "inclusion", "cube"]
    assert names == [
        *first,
        "disks",
        "waves",
        "spot",
        "elastic",
        "anisotropic",
        "reaction",
        "carreau",
        "transport",
        "heat",
    ]
    assert "y in [0.5, 1.5]^4" in call_command("problems").stdout


def test_an_error_on_one_rank_ends_all_with_its_message(tmp_path):
    """A problem file that fails on rank 1 only, while rank 0 goes on to communicate."""
    file = tmp_path / "mine.py"
    file.write_text(
        "from mpi4py import MPI\n"
        "from fem_frames import ByRegion, Grid, Problem, Uniform\n"
        "if MPI.COMM_WORLD.rank == 1:\n    raise OSError('the disk of rank 1 is gone')\n"
        "problem = Problem(Grid((1, 1)), ByRegion.each(1), Uniform((1.0,), (2.0,)))\n"
    )
    done = run(
        "reference", "--problem", file, "--levels", 3, "--samples", 4, "--out", "x", ranks=2, expect=2, cwd=tmp_path
    )
    assert "the disk of rank 1 is gone" in done.stderr
