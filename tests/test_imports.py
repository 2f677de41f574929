"""Who imports whom, and what the packages need."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FORBIDDEN = {"fem_frames": {"nets", "training"}, "nets": {"training"}, "training": set()}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("package", FORBIDDEN)
def test_imports_go_one_way(package):
    """fem_frames knows neither nets nor training, nets not training; the command line may import all."""
    for path in (ROOT / package).rglob("*.py"):
        if "commands" not in path.parts:
            assert not FORBIDDEN[package] & {name.split(".")[0] for name in imports(path)}, path


def test_dolfinx_has_one_door():
    """Releases differ in dolfinx, basix and cpp: only the door calls them; the reference states forms."""
    users = {
        p.name
        for p in (ROOT / "fem_frames").rglob("*.py")
        if {"dolfinx", "basix"} & {n.split(".")[0] for n in imports(p)}
    }
    assert users == {"dolfinx_door.py", "reference.py"}


@pytest.mark.serial
def test_packages_import_with_numpy_and_torch_only():
    program = """
import sys

class Absent:
    names = {"dolfinx", "basix", "ufl", "ffcx", "petsc4py", "mpi4py", "scipy", "matplotlib", "rich", "meshio"}
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import fem_frames, nets, training
from fem_frames import FrameArrays, Problem, make_problem
make_problem("quarters").check_parameters([1, 1, 1, 1])
from fem_frames.commands import main
main(["info"])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "dolfinx     absent" in done.stdout


def test_every_public_name_is_there():
    import fem_frames

    for name in dir(fem_frames):
        assert getattr(fem_frames, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        fem_frames.absent  # noqa: B018
