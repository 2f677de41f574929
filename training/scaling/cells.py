"""Runs the cells of a scaling study one after the other; each is one JSON file in the folder of the study."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from fem_frames.files import check_file, is_there, lock
from training.run import store
from training.run.records import new_folder, read_mark, strict_json, write_record
from training.scaling.presets import PRESETS, Cell, Preset

MARK = "scale.json"
VERSION = 1


def claim(out: Path, name: str) -> Preset:
    """Makes the folder of a study, or checks that it holds this one."""
    if new_folder(out, MARK, {"scale": name}):
        return PRESETS[name]
    if not is_scale_folder(out):
        raise ValueError(f"{out} holds other files: give an empty folder, or a new one, as --out")
    found = preset_of(out)
    if found.name != name:
        raise ValueError(f"{out} holds the preset {found.name}: choose another --out for {name}")
    return found


def is_scale_folder(out: Path) -> bool:
    """Whether the folder was made by `fem-frames scale`."""
    return "scale" in read_mark(out / MARK)


def preset_of(out: Path) -> Preset:
    """The preset that was started in this folder."""
    if not is_scale_folder(out):
        raise ValueError(f"{out} holds no study of `fem-frames scale`: there is no {MARK} of one in it")
    name = str(read_mark(out / MARK)["scale"])
    if name not in PRESETS:
        raise ValueError(f"{out / MARK} names the preset {name}, which this fem-frames does not have")
    return PRESETS[name]


def read_cell(cell: Cell, out: Path) -> dict[str, Any] | None:
    """What was measured, or None if the cell has not been run to its end."""
    path = out / f"{cell.name}.json"
    if not is_there(path):
        return None
    try:
        found = dict(strict_json(check_file(path).read_text()))
        if found["version"] != VERSION or found["settings"] != dict(cell.settings):
            raise ValueError("another version, or other settings")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is no cell of this fem-frames: remove it to run it again") from error
    return found


def run_cells(cells: list[Cell], out: Path, again: bool, say: Callable[[str], None]) -> dict[str, str]:
    """Runs the cells whose results are missing, or all; why some failed, by name."""
    failed: dict[str, str] = {}
    waiting = [cell for cell in cells if again or read_cell(cell, out) is None]
    try:
        held = lock(out / ".lock", patience=0.0)
    except ValueError:
        raise ValueError(f"another process is at work on {out}: wait for it, or end it") from None
    try:
        for number, cell in enumerate(waiting, 1):
            begin, used = time.perf_counter(), _cpu_seconds()
            try:
                found = _studies()[cell.study](cell.settings, out, cell.name)
            except (ValueError, RuntimeError, MemoryError) as error:  # the others may still work
                failed[cell.name] = f"{type(error).__name__}: {error}"
                say(f"{cell.name}: failed, {failed[cell.name]}")
                continue
            seconds = time.perf_counter() - begin
            write_record(out / f"{cell.name}.json", _record(cell, found, seconds, _cpu_seconds() - used))
            say(f"{cell.name}: done in {seconds:.0f} s, {number} of {len(waiting)}")
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; finished cells are kept, the same command does the others") from None
    finally:
        held.release()
    return failed


def _studies() -> Mapping[str, Callable[..., dict[str, Any]]]:
    from training.scaling import memory, queries, steps

    return {
        "levels": queries.levels,
        "parameters": queries.parameters,
        "contrast": queries.contrast,
        "training": steps.training,
        "processes": steps.processes,
        "work": steps.work,
        "memory": memory.memory,
    }


def _cpu_seconds() -> float:
    """The time of processors that this process and those that it started have used."""
    return sum(os.times()[:4])


def _record(cell: Cell, found: Mapping[str, Any], seconds: float, cpu_seconds: float) -> dict[str, Any]:
    return {
        "version": VERSION,
        "study": cell.study,
        "settings": dict(cell.settings),
        **found,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "threads": torch.get_num_threads(),
        "machine": store.machine(torch.device("cpu")),
        "versions": store.versions(),
    }
