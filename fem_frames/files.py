"""Files of arrays: .npz with a format name and version, written whole or not at all, read without pickle."""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt


@contextlib.contextmanager
def written_whole(path: str | Path) -> Iterator[IO[bytes]]:
    """A file to write to that takes the place of `path` only when it is complete and on the disk."""
    path = Path(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            with part.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError as error:
            raise ValueError(f"cannot write {path}: {error.strerror or error}; is the folder there, writable, not full?") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def check_writable(path: str | Path) -> None:
    """A ValueError now, rather than after hours of work, if `path` cannot be written."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a folder; give the name of a file in it")
    with written_whole(path.with_name(f".{path.name}.probe")):
        pass
    path.with_name(f".{path.name}.probe").unlink()


def save_arrays(path: str | Path, kind: str, version: int, arrays: Mapping[str, npt.NDArray], record: Any) -> None:
    """Writes arrays by name and a JSON record."""
    head = json.dumps({"format": kind, "version": version, "record": record})
    with written_whole(path) as file:
        np.savez_compressed(file, head=np.array(head), **arrays)  # type: ignore[arg-type]


def load_arrays(path: str | Path, kind: str, version: int) -> tuple[dict[str, npt.NDArray], Any]:
    """What `save_arrays` wrote: the arrays and the record. Nothing in the file is executed."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        with np.load(path, allow_pickle=False) as content:
            # An array file that is not an archive loads too, as a bare array.
            arrays = {name: content[name] for name in content.files} if hasattr(content, "files") else {}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
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
