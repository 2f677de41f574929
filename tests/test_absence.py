"""Without FEniCSx, or without its PETSc: what works still does, what does not says in one line what to do."""

import pytest
from processes import run_program
from small_runs import call_command
from test_imports import ABSENT, ROOT

pytestmark = pytest.mark.serial
NEED_DOLFINX = ("export_frame", "error_norms", "flux_error_norms")
NEED_PETSC = ("ReferenceSolver", "solve_reference", "Sweep", "run_sweep")
REMEDY = "conda env create -f environment.yml), by apt (python3-dolfinx) or with the container image"
QUARTERS = ["--problem", "quarters", "--levels", "3"]


def run_without_dolfinx(program, cwd=ROOT):
    return run_program(ABSENT + program, cwd=cwd)


def test_names_that_need_fenicsx_say_so():
    done = run_without_dolfinx(f"""
import fem_frames

for name in {(*NEED_DOLFINX, *NEED_PETSC)}:
    try:
        getattr(fem_frames, name)
    except ImportError as error:
        text = str(error)
        assert "FEniCSx is needed" in text and {REMEDY!r} in text and "FrameArrays.load" in text, text
        assert "--frame" not in text and len(text.splitlines()) == 1, text
    else:
        raise AssertionError(name)
try:
    fem_frames.MeshHierarchy.from_problem(fem_frames.make_problem("quarters"), 3)
except ImportError as error:
    assert "FEniCSx is needed" in str(error)
else:
    raise AssertionError("refined without DOLFINx")
""")
    assert done.returncode == 0, done.stderr


def test_star_import_takes_what_can_be_had():
    done = run_without_dolfinx(f"""
import warnings

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from fem_frames import *
assert solve and Frame and FrameArrays and make_problem
assert not set({(*NEED_DOLFINX, *NEED_PETSC)}) & set(globals())
text = str(caught[0].message)
assert "export_frame" in text and {REMEDY!r} in text, text
""")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", *QUARTERS, "--out", "run"],
        ["export", *QUARTERS, "--out", "frame.npz"],
        ["reference", *QUARTERS, "--samples", "2", "--out", "reference.npz"],
        ["condition", *QUARTERS],
        ["iterations", *QUARTERS],
        ["rounding", *QUARTERS],
        ["bench", *QUARTERS, "--seconds", "0"],
    ],
)
def test_commands_that_need_fenicsx_say_so(tmp_path, arguments):
    done = run_without_dolfinx(
        f"Absent.names -= {{'scipy', 'rich'}}\nfrom fem_frames.commands import main\nmain({arguments})", cwd=tmp_path
    )
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "FEniCSx is needed" in done.stderr
    assert REMEDY in done.stderr
    assert "--frame" in done.stderr
    assert not list(tmp_path.iterdir())


def test_functions_of_surrogates_need_fenicsx(tmp_path):
    options = ("--epochs", 1, "--rank", 2, "--test-samples", 0, "--out", "run", "--quiet")
    call_command("train", *QUARTERS, *options, cwd=tmp_path)
    done = run_without_dolfinx(
        """
Absent.names.remove("scipy")
from training import Surrogate

Surrogate.load("run").to_function([1, 1, 1, 1])
""",
        cwd=tmp_path,
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "FEniCSx is needed" in last
    assert REMEDY in last


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("import dolfinx; dolfinx.__version__ = '0.7.3'", "DOLFINx 0.7.3 is not supported, 0.5 and 0.9 or newer are"),
        (  # new releases have a name for their scalars, old ones have PETSc's
            "import dolfinx\nfrom petsc4py import PETSc\n"
            "if hasattr(dolfinx, 'default_scalar_type'):\n    dolfinx.default_scalar_type = complex\n"
            "else:\n    PETSc.ScalarType = complex",
            "this DOLFINx has complex scalars",
        ),
    ],
)
def test_builds_that_cannot_be_used_are_told_from_absent_ones(change, reason):
    program = f"{change}\nfrom fem_frames.commands import main\nmain(['condition', *{QUARTERS}])"
    done = run_program(program)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert reason in done.stderr
    assert REMEDY in done.stderr


# DOLFINx with PETSc hidden. 0.5 cannot be imported without petsc4py; there it is hidden from our packages alone.
WITHOUT_PETSC = (
    ABSENT
    + """
import builtins

Absent.names = {"petsc4py"}
try:
    import dolfinx.fem
except ImportError:
    Absent.names = set()
    real_import = builtins.__import__

    def without_petsc(name, globals=None, locals=None, fromlist=(), level=0):
        ours = (globals or {}).get("__name__", "").split(".")[0] in ("fem_frames", "nets", "training")
        of_dolfinx = name.startswith("dolfinx") and "petsc" in (*name.split("."), *(fromlist or ()))
        if ours and (name.startswith("petsc4py") or of_dolfinx):
            raise ModuleNotFoundError("No module named 'petsc4py'", name="petsc4py")
        return real_import(name, globals, locals, fromlist, level)

    builtins.__import__ = without_petsc
"""
)


def run_without_petsc(program, cwd=ROOT):
    return run_program(WITHOUT_PETSC + program, cwd=cwd)


def test_frames_are_made_and_trained_on_without_petsc(tmp_path):
    """The test set is solved by multigrid, which nothing checks then."""
    done = run_without_petsc(
        """
from fem_frames import MeshHierarchy, export_frame, make_problem
from fem_frames.commands import main
from training import Configuration, train
from training.references import has_petsc
import json, sys

problem = make_problem("checkerboard")
arrays = export_frame(MeshHierarchy.from_problem(problem, 3), problem)
arrays.save("frame.npz")
assert arrays.frame_size == 59, arrays.frame_size
assert not has_petsc() and "fem_frames.fenicsx.petsc" not in sys.modules
settings = Configuration(problem="checkerboard", levels=3, epochs=1, rank=2, test_samples=4)
assert train(settings, "run", quiet=True)["test"]["mre"] > 0
main(["evaluate", "run", "--samples", "2", "--json"])
main(["info", "--json"])
""",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert '"reference": "multigrid", "checked_by_petsc": 0' in done.stdout
    assert '"petsc": "absent (No module named \'petsc4py\')"' in done.stdout
    assert '"dolfinx": "0.' in done.stdout


def test_reference_solutions_say_that_they_need_petsc(tmp_path):
    done = run_without_petsc(
        f"""
import fem_frames

for name in {NEED_PETSC}:
    try:
        getattr(fem_frames, name)
    except ImportError as error:
        assert "need PETSc" in str(error) and {REMEDY!r} in str(error), error
    else:
        raise AssertionError(name)
from fem_frames.commands import main
main(["reference", *{QUARTERS}, "--samples", "2", "--out", "r.npz"])
""",
        cwd=tmp_path,
    )
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "reference solutions need PETSc" in done.stderr
    assert REMEDY in done.stderr
