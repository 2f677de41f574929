"""Runs the cells of an experiment, several at a time, each as a process `fem-frames train` with its own log.

Complete cells are skipped, unfinished ones continue, and a failed cell does not stop the others. The folder of a cell
holds everything about it: an experiment may be killed at any time, and several processes may share the folder.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fem_frames.files import check_writable, written_whole
from fem_frames.problem.loading import is_file
from training.experiments.cells import Cell
from training.experiments.overview import Overview
from training.experiments.presets import Preset, Scaling
from training.experiments.protocol import BEFORE_SCALINGS, PRESETS, known_preset
from training.run import store
from training.run.jobs import failure, start
from training.run.records import new_folder, read_mark
from training.run.signals import StopSignals

MARK = "experiment.json"
POLL = 0.2  # seconds


@dataclass
class CellOutcomes:
    """The names of the cells by how they ended."""

    done: list[str] = field(default_factory=list)
    diverged: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Each with the last message of its run."""


def claim(out: Path, preset: str, scaling: Scaling | None = None) -> Preset:
    """Creates the folder of an experiment, or checks that it holds one with the same preset and scaling.

    Without a scaling it is that of the folder, or the preset's default in a new one.
    """
    wanted = PRESETS[preset].scaled(scaling)
    if new_folder(out, MARK, {"preset": preset, "scaling": wanted.scaling}):
        return wanted
    found = preset_of(out)
    if found.name != preset:
        raise ValueError(f"{out} holds cells of the preset {found.name}: choose another --out for {preset}")
    if scaling is not None and found.scaling != scaling:
        raise ValueError(f"{out} holds cells with {found.scaling} hats: choose another --out for {scaling} ones")
    return found


def preset_of(out: Path) -> Preset:
    """The preset and scaling with which the experiment in this folder was started."""
    record = read_mark(out / MARK)
    if "preset" not in record:
        raise ValueError(f"{out} holds no experiment of `fem-frames tables`: there is no {MARK} of one in it")
    name, scaling = str(record["preset"]), record.get("scaling", BEFORE_SCALINGS)
    found = known_preset(name, scaling)
    if found is None:
        raise ValueError(f"{out / MARK} names the preset {name}, which this fem-frames does not have")
    return found


def run_cells(cells: Sequence[Cell], workers: int, overview: Overview) -> CellOutcomes:
    """Runs all incomplete cells; on Ctrl-C and SIGTERM the running ones save and end."""
    for cell in cells:
        cell.check_settings()
    check_writable(cells[0].settings)
    return _Runner(cells, workers, overview).run()


@dataclass(frozen=True)
class _Work:
    """A cell on which one of our processes works."""

    cell: Cell
    process: subprocess.Popen[bytes]
    said: int
    """Size of the cell's output when the process started."""


class _Runner:
    def __init__(self, cells: Sequence[Cell], workers: int, overview: Overview) -> None:
        self._overview, self._workers = overview, workers
        self._waiting = [cell for cell in cells if not cell.state().complete]
        self._working: dict[str, _Work] = {}
        self._elsewhere: set[str] = set()  # cells on which other processes work
        self._cells = cells
        self._outcomes = CellOutcomes()
        self._stopping = 0  # the number of requests to stop
        self._told: dict[str, int] = {}
        for cell in cells:
            _tidy(cell)

    def run(self) -> CellOutcomes:
        with StopSignals(self._stop), self._overview:
            try:
                self._loop()
            finally:  # whatever went wrong here, the runs save before they end
                self._stopping = self._stopping or bool(self._working)
                self._pass_on()
                for work in self._working.values():
                    work.process.wait()
        if self._stopping:
            others = f"; other processes go on with {', '.join(sorted(self._elsewhere))}" if self._elsewhere else ""
            raise KeyboardInterrupt(f"interrupted; cells at work have saved, the same command goes on{others}")
        for cell in self._cells:
            status = cell.state().status
            if status == "done":
                self._outcomes.done.append(cell.name)
            elif status == "diverged":
                self._outcomes.diverged.append(cell.name)
        return self._outcomes

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
            if len(self._working) + len(self._elsewhere) >= self._workers or self._stopping:
                return
            if cell.name in self._elsewhere:
                continue
            if cell.busy():  # held by another experiment on this folder, or by a run that outlived its experiment
                self._elsewhere.add(cell.name)
                self._overview.say(f"{cell.name}: another process is at work on it")
                continue
            self._waiting.remove(cell)
            state = cell.state()  # after `busy`: another process may have ended in between
            if not state.complete:
                try:
                    self._working[cell.name] = _start(cell, self._workers)
                except (OSError, ValueError) as error:
                    self._failed(cell.name, str(error))
                else:
                    self._overview.say(f"{cell.name}: {'goes on' if state.step else 'begins'}")

    def _look_at_cells(self) -> None:
        self._elsewhere = {cell.name for cell in self._waiting if cell.name in self._elsewhere and cell.busy()}
        for name, work in list(self._working.items()):
            code = work.process.poll()
            if code is None:
                continue
            del self._working[name]
            _tidy(work.cell)
            if work.cell.state().complete:
                self._overview.ended(work.cell)
            elif work.cell.busy():
                self._waiting.append(work.cell)  # another process was faster
            elif not self._stopping:
                self._failed(name, failure(code, work.cell.output, work.said))

    def _failed(self, name: str, reason: str) -> None:
        self._outcomes.failed[name] = reason
        self._overview.failed(name, reason)

    def _stop(self) -> None:
        self._stopping += 1

    def _pass_on(self) -> None:
        """Passes requests to stop on to the runs: at the first they save, at the second they end at once."""
        for name, work in self._working.items():
            if self._told.get(name, 0) < self._stopping:
                self._told[name] = self._stopping
                work.process.send_signal(signal.SIGINT)
                if self._stopping == 1:
                    self._overview.say(f"{name}: saves and ends; once more to end at once")


def _tidy(cell: Cell) -> None:
    """Removes the checkpoints of a finished cell, which are large and no longer needed."""
    if (cell.folder / store.CHECKPOINTS).exists() and cell.state().status == "done" and not cell.busy():
        shutil.rmtree(cell.folder / store.CHECKPOINTS, ignore_errors=True)


def _start(cell: Cell, workers: int) -> _Work:
    resume = (cell.folder / store.SETTINGS).exists()
    if not resume:  # the settings of a removed run may follow another protocol
        with written_whole(cell.settings) as file:
            file.write(cell.resolved.to_toml().encode())
    command = ["train", str(cell.settings), "--out", str(cell.folder)]
    if is_file(cell.resolved.problem):  # the user who starts the experiment chooses code, not the settings
        command += ["--problem", cell.resolved.problem]
    process, said = start([*command, "--resume"] if resume else command, cell.output, workers)
    return _Work(cell, process, said)
