"""Runs the cells of an experiment, several at a time, each as a process `fem-frames train` with its own log.

What is complete is skipped, what was begun goes on, and what fails does not stop the others. All that is known of a
cell is in its folder: an experiment may be killed at any time, and several may work on the same folder.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fem_frames.files import check_writable, written_whole
from training import runs
from training.experiments.cells import Cell
from training.experiments.overview import Overview
from training.signals import StopSignals

MARK = "experiment.json"
POLL = 0.2  # seconds


@dataclass
class Outcome:
    """What became of the cells, by name."""

    done: list[str] = field(default_factory=list)
    diverged: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """With the last line that the run said."""


def claim(out: Path, preset: str) -> None:
    """Makes the folder of an experiment, or sees that it is one of the same preset."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: give a folder as --out")
    if out.is_dir() and any(out.iterdir()):
        found = preset_of(out)
        if found != preset:
            raise ValueError(f"{out} holds cells of the preset {found}: choose another --out for {preset}")
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write to {out}: {error.strerror or error}") from error
    with written_whole(out / MARK) as file:
        file.write(json.dumps({"preset": preset}).encode())


def preset_of(out: Path) -> str:
    """The preset that the folder of an experiment was made with."""
    try:
        return str(json.loads((out / MARK).read_text())["preset"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"{out} holds no experiment of `fem-frames tables`: there is no {MARK} in it") from None


def run_cells(cells: Sequence[Cell], workers: int, overview: Overview) -> Outcome:
    """Runs all cells that are not complete; Ctrl-C and SIGTERM let those at work save, and end."""
    for cell in cells:
        cell.check_settings()
        check_writable(cell.settings)
    return _Runner(cells, workers, overview).run()


class _Runner:
    def __init__(self, cells: Sequence[Cell], workers: int, overview: Overview) -> None:
        self._overview, self._workers = overview, workers
        self._waiting = [cell for cell in cells if not cell.state().complete]
        self._working: dict[str, tuple[Cell, subprocess.Popen[bytes]]] = {}
        self._cells = cells
        self._outcome = Outcome()
        self._stopping = False
        self._told: set[str] = set()

    def run(self) -> Outcome:
        with StopSignals(self._stop), self._overview:
            try:
                self._loop()
            finally:  # whatever went wrong here, the runs save before they end
                self._pass_on()
                for _, process in self._working.values():
                    process.wait()
        if self._stopping:
            raise KeyboardInterrupt("interrupted; cells that were at work have saved, the same command goes on")
        for cell in self._cells:
            status = cell.state().status
            if status == "done":
                self._outcome.done.append(cell.name)
            elif status == "diverged":
                self._outcome.diverged.append(cell.name)
        return self._outcome

    def _loop(self) -> None:
        while self._working or (self._waiting and not self._stopping):
            self._start_cells()
            time.sleep(POLL)
            if self._stopping:
                self._pass_on()
            self._look_at_cells()
            self._overview.update(set(self._working))

    def _start_cells(self) -> None:
        for cell in list(self._waiting):
            if len(self._working) >= self._workers or self._stopping:
                return
            if cell.state().complete:  # by another process that works on the same experiment
                self._waiting.remove(cell)
            elif not cell.busy():
                self._waiting.remove(cell)
                self._working[cell.name] = cell, _start(cell, self._workers)
                self._overview.say(f"{cell.name}: {'goes on' if cell.state().step else 'begins'}")

    def _look_at_cells(self) -> None:
        for name, (cell, process) in list(self._working.items()):
            if process.poll() is None:
                continue
            del self._working[name]
            state = cell.state()
            if state.status == "done":
                shutil.rmtree(cell.folder / runs.CHECKPOINTS, ignore_errors=True)  # up to gigabytes, of no more use
            if state.complete:
                self._overview.ended(cell)
            elif cell.busy():
                self._waiting.append(cell)  # another process was faster
            elif not self._stopping:
                self._outcome.failed[name] = reason = _last_line(cell.output)
                self._overview.say(f"{name}: failed, {reason}")

    def _stop(self) -> None:
        self._stopping = True

    def _pass_on(self) -> None:
        """Hands the wish to stop on to the runs, to each once: a second time they would not save."""
        for name in set(self._working) - self._told:
            self._told.add(name)
            self._working[name][1].send_signal(signal.SIGINT)


def _start(cell: Cell, workers: int) -> subprocess.Popen[bytes]:
    resume = (cell.folder / runs.SETTINGS).exists()
    if not resume:
        with written_whole(cell.settings) as file:
            file.write(cell.resolved.to_toml().encode())
    command = [sys.executable, "-m", "fem_frames.commands", "train", str(cell.settings), "--out", str(cell.folder)]
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, len(os.sched_getaffinity(0)) // workers))
    with cell.output.open("ab") as output:
        # A session of its own: Ctrl-C comes from here, once, and not from the terminal too.
        return subprocess.Popen(
            [*command, "--resume"] if resume else command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "OMP_NUM_THREADS": threads},
            start_new_session=True,
        )


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    said = [line.strip() for line in lines if line.strip()]
    return f"{said[-1].removeprefix('fem-frames: ')} (see {path})" if said else f"without a word (see {path})"
