"""Locks: one process at a time, none left by a killed process, and no obstacle where the file system has none."""

import errno
import fcntl
import os
import signal
import subprocess
import sys

import pytest

from fem_frames.files import lock

pytestmark = pytest.mark.serial

HOLDER = """
import sys, time
from fem_frames.files import lock
held = lock(sys.argv[1])
print("held", flush=True)
time.sleep(600)
"""


def test_another_process_is_refused_until_the_holder_is_killed(tmp_path, capfd):
    path = tmp_path / "run" / "lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match=r"another run is at work on .*run: wait for it, or stop it"):
            lock(path, patience=0.0)
        assert not capfd.readouterr().err
        with pytest.raises(ValueError, match="another run is at work"):
            lock(path, patience=0.3)
        assert capfd.readouterr().err.startswith("fem-frames: waiting for another run")
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    lock(path, patience=0.0).release()


def test_a_lock_that_was_removed_with_its_folder_is_taken_anew(tmp_path):
    path = tmp_path / "run" / "lock"
    first = lock(path)
    path.unlink()
    path.parent.rmdir()
    second = lock(path, patience=0.0)
    first.release()
    with pytest.raises(ValueError, match="another run is at work"):
        lock(path, patience=0.0)
    second.release()


def test_a_folder_that_is_missing_or_in_the_way_is_an_error_of_the_system(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file/lock", tmp_path / "no/such/lock"):
        with pytest.raises(OSError, match=r"exists|No such file|Not a directory"):
            lock(path, patience=0.05)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe is no ordinary file: remove it"):
        lock(tmp_path / "pipe")


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_used_without_them(tmp_path, monkeypatch, code):
    def refuse(file, operation):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    held = lock(tmp_path / "lock", patience=0.0)
    assert not held.is_locked
    held.release()
