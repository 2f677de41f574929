"""Cells of an experiment: one training run each, whose state can always be read from its folder."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fem_frames.files import lock
from training.configuration import Configuration, Resolved
from training.run import store
from training.run.log import LOG, is_record, read_log

Status = Literal["new", "partial", "done", "diverged"]


@dataclass(frozen=True)
class State:
    """The progress of a cell."""

    status: Status
    step: int = 0
    seconds: float = 0.0
    loss: float | None = None
    """Of the last batch while training, of the test set at the end."""

    @property
    def complete(self) -> bool:
        """Whether running the cell again would change nothing."""
        return self.status in ("done", "diverged")


@dataclass(frozen=True)
class Cell:
    """A run of an experiment: `name` is the name of its folder; its settings are in a TOML file next to it."""

    name: str
    configuration: Configuration
    out: Path

    @property
    def folder(self) -> Path:
        return self.out / self.name

    @property
    def settings(self) -> Path:
        return self.out / f"{self.name}.toml"

    @property
    def output(self) -> Path:
        """The file with the messages of the run."""
        return self.out / f"{self.name}.log"

    @property
    def resolved(self) -> Resolved:
        return self.configuration.resolved()

    def state(self) -> State:
        result, failure = self.read(store.RESULT), self.read(store.FAILURE)
        if result is not None:
            return State("done", result["steps"], result["seconds"], result["loss"])
        if failure is not None:
            return State("diverged", failure["step"], failure["seconds"])
        if not (self.folder / store.SETTINGS).exists():
            return State("new")
        last = last_record(self.folder / LOG)
        return State("partial", last.get("step", 0), last.get("seconds") or 0.0, last.get("loss"))

    def read(self, name: str) -> dict[str, Any] | None:
        """A JSON file of the run, or None if it does not exist."""
        return store.read_record(self.folder / name)

    def records(self) -> list[dict[str, Any]]:
        """The log of the run."""
        return read_log(self.folder / LOG) if (self.folder / LOG).is_file() else []

    def busy(self) -> bool:
        """Whether a process is working on the cell."""
        if not (self.folder / store.LOCK).is_file():
            return False
        try:
            lock(self.folder / store.LOCK, patience=0.0).release()
        except ValueError:
            return True
        except OSError:  # a folder of another user, in which no process of ours can work
            return False
        return False

    def check_settings(self) -> None:
        """Raises a ValueError if the folder holds a run with other settings."""
        if (self.folder / store.SETTINGS).exists():
            saved = store.saved_configuration(self.folder).record()
            store.check_same(saved, self.resolved.record(), str(self.folder))


def last_record(path: Path, tail: int = 4096) -> Mapping[str, Any]:
    """The last line of a log that records a training step."""
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - tail))
        lines = file.read().decode(errors="replace").splitlines()
    for line in reversed(lines):
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            if is_record(record) and "rate" in record:
                return dict(record)
    return {}
