"""Who imports whom, and what the packages need."""

import ast
import graphlib
import importlib
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from fem_frames import MeshHierarchy, export_frame, make_problem

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


def test_modules_that_load_import_from_their_layer_and_those_before():
    """The layers are those of docs/layers.png; imports inside functions may go back."""
    drawn = runpy.run_path(str(ROOT / "docs/draw_layers.py"))
    assert drawn["going_back"]() == []
    known = drawn["modules"]()
    graph = {name: {*drawn["imported"](drawn["loading"](tree), known)} - {name} for name, tree in known.items()}
    graphlib.TopologicalSorter(graph).prepare()  # a CycleError names the modules
    assert all(drawn["layer_of"](name) for name in known)


def users(*modules):
    folder = ROOT / "fem_frames"
    found = [p for p in folder.rglob("*.py") if set(modules) & {n.split(".")[0] for n in imports(p)}]
    return {str(p.relative_to(folder)) for p in found}


def test_dolfinx_and_petsc_have_one_door_each():
    """Releases differ in DOLFINx, and it may come without PETSc; `reference` hands its options over before all else."""
    assert users("dolfinx", "basix", "ufl", "mpi4py") == {"fenicsx/door.py", "fenicsx/petsc.py"}
    assert users("petsc4py") == {"fenicsx/petsc.py", "commands/reference.py"}


# The start of a program in an environment with NumPy, torch and matplotlib only.
ABSENT = """
import sys

class Absent:
    names = {"dolfinx", "basix", "ufl", "ffcx", "petsc4py", "mpi4py", "scipy", "rich", "meshio"}
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def run_without_dolfinx(program, cwd=ROOT):
    return subprocess.run(
        [sys.executable, "-c", ABSENT + program], cwd=cwd, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.serial
def test_packages_import_with_numpy_and_torch_only():
    done = run_without_dolfinx("""
import fem_frames, nets, training
from fem_frames import FrameArrays, Problem, make_problem
make_problem("quarters").check_parameters([1, 1, 1, 1])
from fem_frames.commands import main
main(["info"])
""")
    assert done.returncode == 0, done.stderr
    assert "dolfinx     absent" in done.stdout


@pytest.mark.serial
@pytest.mark.parametrize(("problem", "formulation"), [("quarters", "least-squares"), ("cookies", "energy")])
def test_a_saved_frame_does_everything_without_dolfinx(tmp_path, problem, formulation):
    """Operators, losses, solutions, bounds, and all commands that take --frame."""
    made = make_problem(problem)
    export_frame(MeshHierarchy.from_problem(made, 4), made, formulation).save(tmp_path / "frame.npz")
    done = run_without_dolfinx(
        f"""
import torch
from fem_frames import Frame, FrameArrays, error_bound, make_formulation, make_problem, solve
from fem_frames.commands import main

arrays = FrameArrays.load("frame.npz")
problem = make_problem({problem!r})
for dtype in ("float16", "float64"):
    for differential in ("recursive", "gather"):
        formulation = make_formulation(Frame.from_arrays(arrays, dtype, differential=differential), problem)
        y = torch.as_tensor(problem.parameters.sample(2, 0)).to(formulation.frame.dtype)
        w = solve(formulation, y, 1e-8).w.to(formulation.frame.dtype).requires_grad_()
        formulation.loss(w, y).sum().backward()
        assert torch.isfinite(w.grad).all() and (error_bound(formulation, w.detach(), y) >= 0).all()
for command in ("condition", "iterations"):
    main([command, "--frame", "frame.npz"])
""",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Assembled matrices need SciPy, which the package depends on.
    done = run_without_dolfinx(
        """
Absent.names.remove("scipy")
from fem_frames.commands import main
main(["rounding", "--frame", "frame.npz", "--plot", "rounding.png"])
main(["bench", "--frame", "frame.npz", "--seconds", "0"])
""",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "rounding.png").stat().st_size > 10_000


@pytest.mark.serial
@pytest.mark.parametrize(
    "program",
    [
        "import fem_frames.frame.arrays",
        "import fem_frames.frame, fem_frames.frame.elements, fem_frames.frame.fields",
        "import training",
        "from fem_frames.commands.parser import make_parser; make_parser().format_help()",
        "import fem_frames.commands\ntry: fem_frames.commands.main(['train', '--help'])\nexcept SystemExit: pass",
    ],
)
def test_the_border_and_help_need_no_torch(program):
    program += "\nimport sys; assert not {'torch', 'dolfinx', 'petsc4py'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def declared(package):
    """The names that a package's `__init__` imports for type checkers, and those in its `__all__`."""
    tree = ast.parse((ROOT / package / "__init__.py").read_text())
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = {alias.name for node in froms if node.module.startswith(f"{package}.") for alias in node.names}
    (listed,) = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
    ]
    return names, ast.literal_eval(listed)


@pytest.mark.parametrize("package", FORBIDDEN)
def test_type_checkers_see_the_names_that_are_there(package):
    module = importlib.import_module(package)
    names, listed = declared(package)
    assert names == set(listed) == set(getattr(module, "_HOMES", listed))
    assert set(listed) <= set(dir(module))


def test_every_public_name_is_there():
    import fem_frames

    for name in dir(fem_frames):
        assert getattr(fem_frames, name) is not None
    everything = {}
    exec("from fem_frames import *", everything)
    assert {*everything} >= {*dir(fem_frames)} - {"__version__"}
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        fem_frames.absent  # noqa: B018
