"""Files of arrays: .npz with a format name and version, written whole or not at all, read without pickle."""

from __future__ import annotations

import contextlib
import errno
import glob
import io
import json
import math
import os
import stat
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout, lock_descriptor

from fem_frames.memory import check_memory
from fem_frames.messages import option


class _SteadyFile(io.FileIO):
    """A file that accepts every write after the first one that failed, and keeps that failure.

    So the writer of an archive can finish normally: an error in the middle would make zipfile print its own traceback,
    and torch's C++ writer end the whole process.
    """

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        if self.failure is None:
            try:
                return super().write(data)
            except OSError as error:
                self.failure = error
        self.seek(size, os.SEEK_CUR)
        return size


@contextlib.contextmanager
def written_whole(path: str | Path) -> Iterator[IO[bytes]]:
    """Yields a file to write; it replaces `path` only when it is complete and on the disk."""
    with _named(path):
        target, part = _target(path)
        _remove_stale(target)
        raw = _SteadyFile(part, "w")
        try:
            _try_lock(raw)
            with io.BufferedWriter(raw) as file:
                yield file
                file.flush()
                if raw.failure is not None:
                    raise raw.failure
                os.fsync(raw.fileno())
                part.replace(target)
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def _remove_stale(target: Path) -> None:
    """Removes the parts that killed writes left behind; a part that is still being written is locked."""
    for part in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        with contextlib.suppress(OSError), part.open("rb") as file:
            if _try_lock(file):
                part.unlink(missing_ok=True)


def _try_lock(file: Any) -> bool:
    """Whether this process now holds the lock; False if another one does, or the file system has no locks."""
    try:
        return lock_descriptor(file.fileno(), blocking=False)
    except OSError:
        return False


def check_new(path: str | Path, force: bool) -> None:
    """Raises a ValueError if the file exists and may not be replaced."""
    if is_there(Path(path)) and not force:
        raise ValueError(f"{path} is there already: choose another name, or replace it by {option('force')}")


def check_writable(path: str | Path) -> None:
    """Raises a ValueError now, rather than after hours of work, if `path` cannot be written."""
    with _named(path):
        _, part = _target(path)
        part.open("wb").close()
        part.unlink()


def _target(path: str | Path) -> tuple[Path, Path]:
    """The file that `path` stands for, with links followed, and the temporary name under which it is written."""
    try:
        target = Path(path).resolve()
    except RuntimeError as error:  # older releases of Python raise this for circular links
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from error
    if target.is_dir():
        raise ValueError(f"cannot write {path}: it is a folder; give the name of a file in it")
    if target.exists() and not target.is_file():
        raise ValueError(f"cannot write {path}: it is a device or pipe, not an ordinary file")
    return target, target.with_name(f".{target.name}.{os.getpid()}.part")


@contextlib.contextmanager
def _named(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        advice = "is there room, and may you write there?"
        if isinstance(error, FileNotFoundError):
            there = Path(path).parent.is_dir()
            advice = "files cannot be made there" if there else f"make the folder {Path(path).parent} first"
        raise ValueError(f"cannot write {path}: {error.strerror or error}; {advice}") from error


@contextlib.contextmanager
def staging() -> Iterator[Path]:
    """A temporary folder for files that other libraries write; errors there advise to change TMPDIR."""
    try:
        with tempfile.TemporaryDirectory(prefix="fem-frames-") as place:
            yield Path(place)
    except OSError as error:
        where = os.environ.get("TMPDIR", "the default")
        raise ValueError(
            f"cannot write temporary files: {error.strerror or error}; set TMPDIR, now {where}, to a folder with room"
        ) from error


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Hides what libraries write directly to the standard error, bypassing Python."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def lock(path: str | Path, patience: float = 60.0) -> FileLock:
    """Locks `path` against other processes until the returned lock is released or this process ends.

    Makes its folder if need be. Waits at most `patience` seconds for another process; then raises a ValueError.
    """
    path = Path(path)
    if is_there(path) and not path.is_file():
        raise ValueError(f"{path} is no ordinary file: remove it")
    held = FileLock(path, thread_local=False, poll_interval=0.2, fallback_to_soft=False)
    until, told = time.monotonic() + patience, False
    while True:
        try:
            path.parent.mkdir(exist_ok=True)
            held.acquire(timeout=max(until - time.monotonic(), 0.0) if told else 0.0)
        except Timeout:
            if told or patience <= 0:
                raise ValueError(f"another run is at work on {path.parent}: wait for it, or stop it") from None
            print(f"fem-frames: waiting for another run that is at work on {path.parent}", file=sys.stderr, flush=True)
            told = True
        except (FileNotFoundError, FileExistsError):
            # The run that held the folder is removing it this very moment, or something else has its place.
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return held  # not locked: releasing it does nothing
        else:
            return held


# Errors of file systems that have no locks, as some network file systems do.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


def save_arrays(
    path: str | Path, kind: str, version: int, arrays: Mapping[str, npt.NDArray], record: Any, *, compress: bool
) -> None:
    """Writes arrays by name and a JSON record; compression pays for tables of indices, not for solutions."""
    save = np.savez_compressed if compress else np.savez
    head = json.dumps({"format": kind, "version": version, "record": record})
    with written_whole(path) as file:
        save(file, head=np.array(head), **arrays)


def load_arrays(
    path: str | Path, kind: str, version: int, oldest: int | None = None
) -> tuple[dict[str, npt.NDArray], Any]:
    """Reads the arrays and the record that `save_arrays` wrote in this version, or in one from `oldest` on.

    Nothing in the file is executed.
    """
    path = Path(path)
    check_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            claimed = sum(info.file_size for info in archive.infolist())
            check_memory("its content", float(claimed), "was it made to fill the memory?")
            arrays = {info.filename.removesuffix(".npy"): _read_array(archive, info) for info in archive.infolist()}
    # NumPy parses headers with Python's tokenizer and zipfile checks only what it needs, so any exception can occur.
    except Exception as error:
        raise ValueError(
            f"{path} is not a file of fem-frames, or it is cut short or damaged: {one_line(error)}"
        ) from error
    try:
        head = json.loads(str(arrays.pop("head")))
        found, found_version, record = head["format"], head["version"], head["record"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} was not written by fem-frames: it has no head") from error
    if found != kind:
        raise ValueError(f"{path} holds {found}, but {kind} is expected")
    if found_version not in range(version if oldest is None else oldest, version + 1):
        raise ValueError(
            f"{path} has version {found_version} of the format {kind}, this fem-frames reads version {version}; "
            "write it again, or use the release that wrote it"
        )
    return arrays, record


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> npt.NDArray:
    """Reads an array of a .npz file after comparing its declared shape with its size in bytes."""
    # Deflate expands one byte to at most 1032.
    if info.file_size > 1032 * (info.compress_size + 1):
        raise ValueError(f"{info.filename} claims more bytes than it can have")
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        if version not in _HEADERS:
            raise ValueError(f"{info.filename} has the unknown NumPy format {version}")
        shape, _, dtype = _HEADERS[version](member)
        if (
            dtype.hasobject
            or any(n >= 2**48 for n in shape)
            or math.prod(shape) * dtype.itemsize != info.file_size - member.tell()
        ):
            raise ValueError(f"{info.filename} declares {dtype} of shape {shape}, which is not what it holds")
        member.seek(0)
        return np.asarray(np.lib.format.read_array(member, allow_pickle=False))


_HEADERS: dict[tuple[int, int], Callable[[Any], tuple[tuple[int, ...], bool, np.dtype]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def check_file(path: str | Path) -> Path:
    """The path if it is an ordinary file, otherwise a ValueError: reading a pipe would wait for ever."""
    path = Path(path)
    there = is_there(path)
    if there and path.is_file():
        return path
    if there:
        raise ValueError(f"cannot read {path}: it is a folder, a pipe or a device, no ordinary file")
    raise ValueError(f"there is no file {path}")


def is_there(path: Path) -> bool:
    """Whether anything has this name; a ValueError if the name is too long or access is denied."""
    try:
        path.stat()  # `exists` hides some errors, and in new releases of Python all of them
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ValueError(f"cannot use {path}: {error.strerror or error}") from error
    return True


def refuse_links(folder: str | Path, *, deep: bool = True) -> None:
    """Raises a ValueError if the folder (with `deep` also its subfolders) holds anything but files and folders.

    Writing would follow a link out of the folder, or wait for ever for a reader of a pipe.
    """
    for where, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(where, name)
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:  # a run that is at work has just removed it
                continue
            if stat.S_ISLNK(mode):
                raise ValueError(f"{path} is a symbolic link, which could lead anywhere: put the file in its place")
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise ValueError(f"{path} is a pipe or a device, no ordinary file: remove it")
        if not deep:
            return


def one_line(error: BaseException) -> str:
    """The message of an exception in one line; with its class name if it is empty or only a key."""
    text = " ".join(str(error).split())
    return text if text and not isinstance(error, KeyError) else f"{type(error).__name__} {text}".strip()
