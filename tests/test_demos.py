"""Demos run to their last assertion, with small settings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.serial
ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("ranks", [1, 2])
def test_demo_hierarchy(tmp_path, ranks):
    start = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    done = subprocess.run(
        [*start, sys.executable, "demos/demo_hierarchy.py", "--out", str(tmp_path), "--refinements", "4"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env=dict(os.environ),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("rates in H1 and L2") == 4
    assert (tmp_path / "hierarchy.png").read_bytes().startswith(b"\x89PNG")
    assert 'Name="u_2"' in (tmp_path / "lshape.xdmf").read_text()
    assert (tmp_path / "lshape.h5").stat().st_size > 10_000


def test_xdmf_holds_the_nodal_values(tmp_path):
    """Read back by DOLFINx's mesh reader: as many cells and points as were written."""
    from dolfinx import io
    from mpi4py import MPI

    from fem_frames import MeshHierarchy, make_problem
    from fem_frames.dolfinx_door import write_xdmf

    problem = make_problem("lshape")
    hierarchy = MeshHierarchy.from_problem(problem, 2)
    write_xdmf(tmp_path / "u.xdmf", hierarchy.points, hierarchy.finest.cells, u=hierarchy.points[:, 0])
    with io.XDMFFile(MPI.COMM_SELF, str(tmp_path / "u.xdmf"), "r") as file:
        mesh = file.read_mesh()
    assert mesh.topology.index_map(2).size_local == len(hierarchy.finest.cells)
    assert len(mesh.geometry.x) == len(hierarchy.points)
