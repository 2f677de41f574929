"""Files of arrays: .npz with a format name and version, written whole or not at all, read without pickle."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import sys
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt


@contextlib.contextmanager
def written_whole(path: str | Path) -> Iterator[IO[bytes]]:
    """A file to write to that takes the place of `path` only when it is complete and on the disk."""
    with _named(path):
        target, part = _target(path)
        try:
            with part.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(target)
        except Exception as error:
            if isinstance(error, OSError) or shutil.disk_usage(target.parent).free > 2**20:
                raise
            # torch and NumPy speak of positions and closed files when there is no room
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def check_writable(path: str | Path) -> None:
    """A ValueError now, rather than after hours of work, if `path` cannot be written."""
    with _named(path):
        _, part = _target(path)
        part.open("wb").close()
        part.unlink()


def _target(path: str | Path) -> tuple[Path, Path]:
    """The file that `path` stands for, links followed, and the name of its part while it is written."""
    target = Path(path).resolve()
    if target.is_dir():
        raise ValueError(f"cannot write {path}: it is a folder; give the name of a file in it")
    if target.exists() and not target.is_file():
        raise ValueError(f"cannot write {path}: it is a device or the like, no ordinary file")
    return target, target.with_name(f".{target.name}.{os.getpid()}.part")


@contextlib.contextmanager
def _named(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        advice = "is there room, and may you write there?"
        if isinstance(error, FileNotFoundError):
            advice = f"make the folder {Path(path).parent} first"
        raise ValueError(f"cannot write {path}: {error.strerror or error}; {advice}") from error


def lock(path: str | Path, patience: float = 60.0) -> IO[bytes]:
    """Holds `path` against other processes until the returned file is closed or this process ends.

    Makes its folder if need be. Waits while another process holds it, at most `patience` seconds; then a ValueError.
    """
    path = Path(path)
    until, told = time.monotonic() + patience, False
    while True:
        try:
            path.parent.mkdir(exist_ok=True)
            file = path.open("ab")
        except (FileNotFoundError, FileExistsError):
            # The run that held the folder removes it this very moment, or something else has its place.
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            if time.monotonic() > until:
                raise ValueError(f"another run is at work on {path.parent}: wait for it, or stop it") from None
            if not told:
                print(
                    f"fem-frames: waiting for another run that is at work on {path.parent}", file=sys.stderr, flush=True
                )
                told = True
            time.sleep(0.2)
            continue
        except OSError:  # a file system without locks
            return file
        # The run before may have removed the file that this process was waiting for.
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                return file
        file.close()


def save_arrays(
    path: str | Path, kind: str, version: int, arrays: Mapping[str, npt.NDArray], record: Any, *, compress: bool
) -> None:
    """Writes arrays by name and a JSON record; compression pays for tables of indices, not for solutions."""
    save = np.savez_compressed if compress else np.savez
    head = json.dumps({"format": kind, "version": version, "record": record})
    with written_whole(path) as file:
        save(file, head=np.array(head), **arrays)


def load_arrays(path: str | Path, kind: str, version: int) -> tuple[dict[str, npt.NDArray], Any]:
    """What `save_arrays` wrote: the arrays and the record. Nothing in the file is executed."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        content = np.load(path, allow_pickle=False)
        arrays = {}
        if not isinstance(content, np.ndarray):  # a bare .npy file loads too
            with content:
                arrays = {name: content[name] for name in content.files}
    except (OSError, ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a file of fem-frames, or it is cut short or damaged: {error}") from error
    try:
        head = json.loads(str(arrays.pop("head")))
        found, found_version, record = head["format"], head["version"], head["record"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} was not written by fem-frames: it has no head") from error
    if found != kind:
        raise ValueError(f"{path} holds {found}, but {kind} is expected")
    if found_version != version:
        raise ValueError(
            f"{path} has version {found_version} of the format {kind}, this fem-frames reads version {version}; "
            "write it again, or use the release that wrote it"
        )
    return arrays, record
