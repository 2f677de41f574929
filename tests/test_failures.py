"""What goes wrong around the program: full disks, folders that cannot be written, writes that were killed."""

import fcntl
import os
import re

import pytest
from frames import case
from processes import run_program

from fem_frames import FrameArrays
from fem_frames.files import staging, written_whole
from training import Configuration, train

pytestmark = pytest.mark.serial


def run(folder, *arguments, limit=None, **environment):
    """The command in the folder; `limit` bytes are the most that a file may have, as if the disk was full then."""
    program = "from fem_frames.commands import main\nmain()"
    if limit is not None:
        # MPI writes files of its own when it starts.
        first = "import resource, torch\nfrom mpi4py import MPI\n"
        program = f"{first}resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n{program}"
    return run_program(program, *arguments, cwd=folder, env={**os.environ, **environment}, timeout=120)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    c = Configuration(problem="checkerboard", levels=5, rank=2, blocks=1, epochs=2, test_samples=2)
    train(c, folder / "run", quiet=True)
    return folder


FULL = {
    "export": (["export", "--problem", "checkerboard", "--levels", "5", "--out", "new.npz"], "cannot write new.npz"),
    "sparse": (
        ["export", "--problem", "checkerboard", "--levels", "5", "--out", "new.npz", "--sparse", "s"],
        "cannot write s/D.npz",
    ),
    "reference": (
        ["reference", "--problem", "checkerboard", "--levels", "6", "--samples", "2", "--out", "new.npz"],
        "cannot write .*shard-0000.npz",
    ),
    "train": (["train", "--problem", "checkerboard", "--levels", "5", "--out", "new"], "cannot write new/frame.npz"),
    "export-net": (["export-net", "run", "--out", "net.pt2"], "cannot write net.pt2"),
    "query .xdmf": (["query", "run", "--y", "1,1,1,1", "--out", "u.xdmf"], "cannot write temporary files.*set TMPDIR"),
    "query .vtu": (["query", "run", "--y", "1,1,1,1", "--out", "u.vtu"], "cannot write temporary files.*set TMPDIR"),
    "plot": (["plot", "run", "--samples", "0", "--out", "p.png"], "cannot write p.png"),
}


@pytest.mark.parametrize("case", FULL)
def test_a_full_disk_is_one_line_and_leaves_nothing(trained, case):
    arguments, message = FULL[case]
    before = {p.name for p in trained.iterdir()} - {"s"}
    done = run(trained, *arguments, limit=12_000)
    assert done.returncode == 2, done.stderr
    assert re.search(rf"fem-frames: {message}.*(large|space|room)", done.stderr), done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert {p.name for p in trained.iterdir()} - {"s"} == before  # the folder of sparse matrices is made first


def test_writes_that_were_killed_leave_nothing_after_the_next_one(tmp_path):
    """What another process is still writing is left alone."""
    arrays = case("interval")[1]
    killed, alive = tmp_path / ".f.npz.111.part", tmp_path / ".f.npz.222.part"
    killed.write_text("half")
    with alive.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        arrays.save(tmp_path / "f.npz")
        assert sorted(p.name for p in tmp_path.iterdir()) == [alive.name, "f.npz"]
    arrays.save(tmp_path / "f.npz")
    assert [p.name for p in tmp_path.iterdir()] == ["f.npz"]
    FrameArrays.load(tmp_path / "f.npz")


def test_an_error_while_writing_keeps_the_file_from_before(tmp_path):
    (tmp_path / "f").write_text("before")

    def write():
        with written_whole(tmp_path / "f") as file:
            file.write(b"half")
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        write()
    assert (tmp_path / "f").read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_home_that_cannot_be_written_is_named(tmp_path):
    env = {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null/cache"}
    done = run(
        tmp_path, "reference", "--problem", "quarters", "--levels", "2", "--samples", "1", "--out", "r.npz", **env
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("fem-frames:")]  # MPI may complain too
    assert "FFCx cannot write what it compiles" in line
    assert "XDG_CACHE_HOME" in line


def test_a_temporary_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "absent"))
    with pytest.raises(ValueError, match=r"cannot write temporary files.*set TMPDIR, now .*absent"), staging():
        pass
