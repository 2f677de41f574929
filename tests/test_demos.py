"""Demos run to their last assertion, with small settings."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from processes import run_program
from test_imports import ABSENT

ROOT = Path(__file__).parent.parent


AS_SCRIPT = """
import runpy, sys
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(program, *arguments, cwd=ROOT):
    """What the program said; it has to succeed."""
    done = run_program(program, *arguments, cwd=cwd, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def is_picture(file):
    return file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.serial
@pytest.mark.parametrize("ranks", [1, 2])
def test_demo_hierarchy(tmp_path, ranks):
    command = ["demos/demo_hierarchy.py", "--out", str(tmp_path), "--refinements", "4"]
    if ranks == 1:
        said = run(AS_SCRIPT, *command)
    else:
        command = ["mpirun", "-n", str(ranks), sys.executable, *command]
        said = subprocess.run(
            command, capture_output=True, text=True, timeout=600, cwd=ROOT, env=dict(os.environ), check=True
        ).stdout
    assert said.count("rates in H1 and L2") == 4
    assert is_picture(tmp_path / "hierarchy.png")
    assert 'Name="u_2"' in (tmp_path / "lshape.xdmf").read_text()
    assert (tmp_path / "lshape.h5").stat().st_size > 10_000


@pytest.mark.serial
@pytest.mark.parametrize(("name", "levels"), [("conditioning", 4), ("rounding", 5)])
def test_demos_of_the_operators_need_dolfinx_for_their_frames_only(tmp_path, name, levels):
    """Run twice: the second time the frames are there, and DOLFINx, PETSc and MPI are not."""
    arguments = ["--out", str(tmp_path), "--levels", str(levels), "--frames", str(tmp_path / "frames")]
    script = f"demos/demo_{name}.py"
    for program in (AS_SCRIPT, f'{ABSENT}\nAbsent.names.remove("scipy")\n{AS_SCRIPT}'):
        run(program, script, *arguments)
        picture = tmp_path / f"{name}.png"
        assert is_picture(picture)
        picture.unlink()


@pytest.mark.serial
def test_demo_training(tmp_path):
    """Six short runs and a longer one; its own claims are asserted in the demo."""
    run(AS_SCRIPT, "demos/demo_training.py", "--out", tmp_path, "--levels", 7, "--epochs", 300)
    assert is_picture(tmp_path / "training.png")
    assert (tmp_path / "training/surrogate/surrogate.pt").exists()


@pytest.mark.serial
@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("hdiv_frame", ["--levels", 4], "with curls:   times 1.96, 1.56, 1.21"),
        ("curved", ["--levels", 3], "fitted rates with the curve: 1.99 and 1.96"),
        ("least_squares_2d", ["--levels", 3, "--epochs", 400], "in float16 1."),
        (
            "separate_frame",
            ["--levels", 6, "--trained", 4, "--epochs", 200, "--samples", 300],
            "J =  6: sums of  6 functions",
        ),
    ],
)
def test_demos_beyond_the_paper(tmp_path, name, arguments, told):
    assert told in run(AS_SCRIPT, f"demos/demo_{name}.py", "--out", tmp_path, *arguments)
    assert is_picture(tmp_path / f"{name}.png")


@pytest.mark.serial
def test_demo_plate(tmp_path):
    said = run(AS_SCRIPT, "demos/demo_plate.py", "--out", tmp_path, "--size", 0.2, "--epochs", 40)
    assert "wall      4" in said
    assert "a ∂u/∂n = 0.5 (1 - u)" in said
    assert is_picture(tmp_path / "plate.png")


@pytest.mark.serial
def test_demo_any_mesh(tmp_path):
    said = run(AS_SCRIPT, "demos/demo_any_mesh.py", "--nodes", 100, "--json", tmp_path / "table.json")
    assert "plate        112 (LS)   2" in said
    assert len(json.loads((tmp_path / "table.json").read_text())) == 6


@pytest.mark.serial
@pytest.mark.parametrize("options", [(), ("--service",)], ids=["direct", "service"])
def test_demo_inverse(tmp_path, options):
    """A short chain: it says that it is too short to tell how many of its states are independent."""
    for name in ("emcee", "umbridge", "aiohttp"):
        pytest.importorskip(name)
    small = ["--levels", 4, "--epochs", 60, "--noise", 0.002, "--walkers", 24, "--steps", 30]
    said = run(AS_SCRIPT, "demos/demo_inverse.py", "--out", tmp_path, *small, *options)
    assert "too few steps to say how many are independent" in said
    assert "independent ones" not in said
    assert ("the service answered" in said) == bool(options)
    assert is_picture(tmp_path / "inverse.png")


@pytest.mark.serial
def test_demo_own_net(tmp_path):
    assert len((ROOT / "demos/demo_own_net.py").read_text().splitlines()) <= 30
    assert "energy error at most" in run(AS_SCRIPT, "demos/demo_own_net.py", "--out", tmp_path)
    assert (tmp_path / "own_net/surrogate.pt").exists()


@pytest.mark.serial
def test_demo_own_equation(tmp_path):
    assert len((ROOT / "demos/demo_own_equation.py").read_text().splitlines()) < 60
    said = run(AS_SCRIPT, "demos/demo_own_equation.py", "--out", tmp_path, "--levels", 3)
    assert "the error in the energy norm is at most 1e-6" in said


@pytest.mark.serial
@pytest.mark.parametrize(
    ("name", "levels", "epochs", "told"),
    [
        ("elasticity", 2, 1000, "bound / error against PETSc"),
        ("nonlinear", 2, 400, "bound / error against PETSc's SNES"),
        ("transport", 3, 800, "times the dual norm, which is no bound"),
    ],
)
def test_demos_of_equations_in_ufl(tmp_path, name, levels, epochs, told):
    """Their bounds, Newton steps and dual norms are asserted in the demos."""
    assert told in run(AS_SCRIPT, f"demos/demo_{name}.py", "--out", tmp_path, "--levels", levels, "--epochs", epochs)
    assert is_picture(tmp_path / f"{name}.png")


def test_nodal_values_find_their_points_in_dolfinx(comm, tmp_path):
    """What XDMF and DOLFINx users get: the function x₀, by its values at the exported points."""
    from dolfinx import io

    from fem_frames import MeshHierarchy, make_problem
    from fem_frames.fenicsx import door

    hierarchy = MeshHierarchy.from_problem(make_problem("lshape"), 2)
    points, cells = hierarchy.points, hierarchy.finest.cells
    function = door.nodal_function(door.create(points, cells, comm), points[:, 0], "u")
    x = function.function_space.tabulate_dof_coordinates()[:, 0]
    np.testing.assert_allclose(function.x.array, x, atol=1e-14)
    door.write_xdmf(tmp_path / "u.xdmf", points, cells, u=points[:, 0])
    with io.XDMFFile(MPI.COMM_SELF, str(tmp_path / "u.xdmf"), "r") as file:
        mesh = file.read_mesh()
    assert mesh.topology.index_map(2).size_local == len(cells)
    assert len(mesh.geometry.x) == len(points)
