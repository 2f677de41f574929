"""Files as a stranger could have made them, each naming Python files that leave a trace if they are executed."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np
from processes import COMMAND, run_program

TRACE = "EXECUTED"
CODE = f"""
from pathlib import Path
(Path(__file__).parent / {TRACE!r}).touch()
from fem_frames import make_problem
problem = make_problem("quarters")
"""


def leave_code(folder):
    """A problem file, and modules named like packages that commands import."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("mine.py", "meshio.py", "scipy.py", "rich.py", "matplotlib.py", "tensorboard.py"):
        (folder / name).write_text(CODE)
    return folder / "mine.py"


def executed(folder):
    """Whether any of the code below the folder has run; forgets it."""
    found = list(Path(folder).rglob(TRACE))
    for trace in found:
        trace.unlink()
    return bool(found)


def members(path):
    """The raw members of a .npz file by name."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_members(path, parts):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return path


def array_bytes(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def header(shape, dtype="<f8", text=None):
    """The beginning of a .npy file that declares a shape, with nothing after it."""
    described = text or str({"descr": dtype, "fortran_order": False, "shape": shape})
    padded = described + " " * (-(len(described) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded.encode()


def with_record(path, target, change):
    """A copy of a file of arrays whose head, a dictionary, was changed."""
    parts = members(path)
    head = json.loads(str(np.load(io.BytesIO(parts["head.npy"]))))
    change(head)
    return write_members(target, {**parts, "head.npy": array_bytes(np.array(json.dumps(head)))})


def run_in(folder, *arguments, timeout=120):
    """`fem-frames` in a process of its own that works in the folder; (exit code, what it says on stderr)."""
    done = run_program(COMMAND, *arguments, cwd=folder, timeout=timeout)
    return done.returncode, done.stderr
