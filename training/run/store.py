"""The folder of a training run: configuration, frame, test set, log, checkpoints, and finally the surrogate."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fem_frames import __version__
from fem_frames.files import check_file, is_there, lock, one_line, refuse_links, written_whole
from fem_frames.messages import either, option
from fem_frames.problem.loading import is_file
from training.configuration import Configuration, Resolved
from training.run.devices import describe
from training.run.log import LOG
from training.surrogate import FRAME, NET

SETTINGS, TEST, TRAINING, RESULT, FAILURE, CHECKPOINTS, LOCK = (
    "configuration.toml",
    "test.npz",
    "training.npz",
    "result.json",
    "failure.json",
    "checkpoints",
    "lock",
)
FILES = (SETTINGS, TEST, TRAINING, RESULT, FAILURE, LOG, LOCK, FRAME, NET)
FOLDERS = (CHECKPOINTS, "tensorboard")
ASIDE = ".replaced"  # holds the run that --force replaces until the new one is set up
REMOVED = ".removed"
FREE = ("device", "tensorboard", "micro_batch", "references")
"""Settings that may change when a run is resumed, because they change the steps only by rounding."""


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine(device: torch.device) -> dict[str, Any]:
    """The processor, and for a GPU its name and how it multiplies."""
    return {"architecture": platform.machine(), "cores": cores(), **describe(device)}


def versions() -> dict[str, str]:
    return {
        "fem_frames": __version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def saved_configuration(folder: Path) -> Resolved:
    """The configuration of the run in a folder."""
    refuse_links(folder)
    recover(folder)
    if not (folder / SETTINGS).is_file():
        raise ValueError(f"{folder} holds no run that could be resumed: leave out {option('resume')}")
    return Configuration(**Configuration.from_toml(folder / SETTINGS)).resolved()


def check_same(saved: Mapping[str, Any], given: Mapping[str, Any], where: str) -> None:
    """Raises a ValueError if the settings differ from those of the run to be resumed."""
    moved = all(is_file(str(settings.get("problem"))) for settings in (saved, given))
    free = (*FREE, "problem") if moved else FREE  # a file may have moved; its fingerprint is checked
    differ = [
        f"{name} {given[name]!r} instead of {value!r}"
        for name, value in saved.items()
        if name in given and given[name] != value and name not in free
    ]
    if differ:
        raise ValueError(
            f"{where} is another run ({', '.join(differ)}): resume it with the settings it has, "
            "or choose another folder"
        )


class HeldRun:
    """The folder of a run, locked against other processes until it is closed.

    A run to be replaced is moved aside until the new one begins: if that cannot be set up, the old run returns.
    """

    def __init__(self, folder: Path, made: Sequence[Path]) -> None:
        """`made` are the folders created for it, innermost first."""
        self._folder, self._made, self._begun = folder, made, False
        self._lock = lock(folder / LOCK, patience=2.0)

    def put_aside(self) -> None:
        """Moves the existing run aside; moving its settings last marks the move as complete."""
        (self._folder / ASIDE).mkdir()
        for name in (*FOLDERS, *(n for n in FILES if n not in (LOCK, SETTINGS)), SETTINGS):
            if (self._folder / name).exists():
                (self._folder / name).rename(self._folder / ASIDE / name)

    def begin(self) -> None:
        """Marks the run as set up, and removes the one it replaces."""
        self._begun = True
        (self._folder / FAILURE).unlink(missing_ok=True)  # left by the previous attempt
        if (self._folder / ASIDE).is_dir():
            (self._folder / ASIDE).rename(self._folder / REMOVED)  # from here on it is not restored
        shutil.rmtree(self._folder / REMOVED, ignore_errors=True)

    def keep(self) -> None:
        """Marks that the folder already holds a run, which stays whatever happens."""
        self._begun = True

    def close(self) -> None:
        if not self._begun and (self._folder / ASIDE).is_dir():
            _put_back(self._folder)
        elif not self._begun:
            _clear(self._folder)
            (self._folder / LOCK).unlink(missing_ok=True)
            _remove_empty(self._made)
        self._lock.release()


def recover(folder: Path) -> None:
    """Restores the old run if its replacement died before starting."""
    if not (folder / ASIDE).is_dir():
        return
    held = lock(folder / LOCK, patience=2.0)
    try:
        if (folder / ASIDE).is_dir():
            _put_back(folder)
    finally:
        held.release()


def _put_back(folder: Path) -> None:
    if (folder / ASIDE / SETTINGS).exists():  # the move was complete, so these files belong to the new run
        _clear(folder)
    for entry in (folder / ASIDE).iterdir():
        entry.rename(folder / entry.name)
    (folder / ASIDE).rmdir()


def open_run(folder: Path, configuration: Configuration, resume: bool, force: bool) -> HeldRun:
    """Prepares the folder for the run and locks it."""
    if is_there(folder) and not folder.is_dir():
        raise ValueError(f"{folder} is a file: give a folder as {either('--out', 'out')}")
    refuse_links(folder)
    recover(folder)
    known = folder.is_dir() and (folder / SETTINGS).exists()
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    if not made:
        foreign = sorted(p.name for p in folder.iterdir() if p.name not in (LOCK, REMOVED) and not _is_rest(p))
        if foreign and not known:
            raise ValueError(f"{folder} holds {foreign[0]}, which is not of a run: choose another folder")
        if known and not resume and not force:
            raise ValueError(f"{folder} holds a run: {option('resume')} continues it, {option('force')} replaces it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = HeldRun(folder, made)
    except OSError as error:
        _remove_empty(made)
        raise ValueError(f"cannot write to {folder}: {error.strerror or error}") from error
    try:
        if resume:
            held.keep()
        elif known:
            held.put_aside()
        for rest in [p for p in (*folder.iterdir(), *(folder / CHECKPOINTS).glob(".*")) if _is_rest(p)]:
            rest.unlink()  # left by a killed write
        if not resume:
            with written_whole(folder / SETTINGS) as file:
                file.write(configuration.to_toml().encode())
    except BaseException:
        held.close()
        raise
    return held


def write_record(path: Path, result: Mapping[str, Any]) -> None:
    with written_whole(path) as file:
        file.write(json.dumps(result, indent=2, allow_nan=False).encode())


def read_record(path: Path) -> dict[str, Any] | None:
    """The result.json or failure.json that `write_record` wrote, or None if there is none."""
    try:
        if not path.exists():
            return None
        record = json.loads(check_file(path).read_text())
        _check_record(record, _RESULT if path.name == RESULT else _FAILURE)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged or cannot be read ({one_line(error)}): remove it and run again") from error
    return dict(record)


_NUMBER, _TEXT, _TABLE = (int, float), (str, type(None)), (dict, type(None))
_CIRCUMSTANCES: dict[str, Any] = {
    "seconds": _NUMBER,
    "test": _TABLE,
    "machine": _TABLE,
    "versions": _TABLE,
    "device": _TEXT,
    "precision": _TEXT,
    "threads": (int, type(None)),
    "parameters": (int, type(None)),
}
_RESULT = _CIRCUMSTANCES | {
    "steps": int,
    "run": str,
    "parameters": int,
    "stopped": _TEXT,
    **{name: (*_NUMBER, type(None)) for name in ("loss", "floor")},
}
_FAILURE = _CIRCUMSTANCES | {"step": int, "steps": int, "reason": str}
_LATER = ("machine", "versions", "device", "precision", "threads")  # runs of earlier versions lack some of these
_METRICS = ("mre", "mse", "loss", "floor", "ratio", "excess")


def _check_record(record: Any, kinds: Mapping[str, Any]) -> None:
    """Raises a ValueError unless every used entry of a record exists and has its type."""
    if not isinstance(record, dict):
        raise ValueError("it is no JSON object")
    for name, kind in kinds.items():
        if name not in record and name not in _LATER:
            raise ValueError(f"it has no {name}")
        if not isinstance(record.get(name), kind) or isinstance(record.get(name), bool):
            raise ValueError(f"{name} is {record.get(name)!r}")
    if record["test"] is not None and not {"mre", "loss", "floor"} <= set(record["test"]):
        raise ValueError("its test lacks mre, loss or floor")
    for name in _METRICS if record["test"] is not None else ():
        if not isinstance(record["test"].get(name), (*_NUMBER, type(None))):
            raise ValueError(f"{name} of its test is {record['test'].get(name)!r}")


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _is_rest(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith(".part") and path.is_file()


def _clear(folder: Path) -> None:
    for name in FILES:
        if name != LOCK:
            (folder / name).unlink(missing_ok=True)
    for name in FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)
