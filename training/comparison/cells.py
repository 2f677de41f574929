"""Cells of a comparison: one method on one case each, measured in a process of its own and kept in a JSON file."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from fem_frames.files import check_file, is_there, lock
from training.comparison.cases import COMPARISONS, Case, Comparison, Effort, cell_name
from training.run.jobs import Job
from training.run.records import new_folder, read_mark, strict_json, write_record

MARK = "experiment.json"
VERSION = 1
RESULTS = ("facts", "rows", "seconds", "threads", "workers", "versions")


@dataclass(frozen=True)
class Cell:
    """A method on a case; `out` is the folder of the comparison."""

    case: Case
    method: str
    out: Path
    effort: Effort

    @property
    def name(self) -> str:
        return cell_name(self.case, self.method)

    @property
    def result(self) -> Path:
        return self.out / f"{self.name}.json"

    @property
    def folder(self) -> Path:
        """What methods learn from and what they have learned, shared by all cells of the case."""
        return self.out / self.case.name

    def job(self, comparison: str, workers: int, again: bool) -> Job:
        """The process that measures the cell beside others, `again` even if it has been measured."""
        arguments = ["compare", "--preset", comparison, "--out", str(self.out), "--cells", self.name, "--here"]
        arguments += ["--workers", str(workers), *(["--again"] if again else [])]
        return Job(self.name, arguments, self.result, self.out / f"{self.name}.log", again)

    def read(self) -> dict[str, Any] | None:
        """Its measurements, or None if it has not been run to its end."""
        if not is_there(self.result):
            return None
        try:
            found = strict_json(check_file(self.result).read_text())
            missing = {*self.settings(), *RESULTS} - set(found)
            if missing or found["version"] != VERSION:
                raise ValueError(f"without {', '.join(sorted(missing))}")
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{self.result} is no cell of this fem-frames: remove it to run it again") from error
        for key, value in self.settings().items():
            if found[key] != value:
                raise ValueError(
                    f"{self.result} was measured with another {key}, by another version of fem-frames: "
                    "choose another --out, or remove the file and what its case has learned"
                )
        return dict(found)

    def settings(self) -> dict[str, Any]:
        """What a result was measured with, as JSON has it."""
        settings = {"version": VERSION, "case": asdict(self.case), "method": self.method, "effort": asdict(self.effort)}
        return dict(json.loads(json.dumps(settings)))


def claim(out: Path, name: str) -> Comparison:
    """Makes the folder of a comparison, or checks that it holds this one."""
    if new_folder(out, MARK, {"comparison": name}):
        return COMPARISONS[name]
    if not is_comparison_folder(out):
        raise ValueError(f"{out} holds other files: give an empty folder, or a new one, as --out")
    found = comparison_of(out)
    if found.name != name:
        raise ValueError(f"{out} holds the comparison {found.name}: choose another --out for {name}")
    return found


def is_comparison_folder(out: Path) -> bool:
    """Whether the folder was made by `fem-frames compare`."""
    return "comparison" in read_mark(out / MARK)


def comparison_of(out: Path) -> Comparison:
    """The comparison that was started in this folder."""
    if not is_comparison_folder(out):
        raise ValueError(f"{out} holds no comparison of `fem-frames compare`: there is no {MARK} of one in it")
    name = str(read_mark(out / MARK)["comparison"])
    if name not in COMPARISONS:
        raise ValueError(f"{out / MARK} names the comparison {name}, which this fem-frames does not have")
    return COMPARISONS[name]


def cells_of(comparison: Comparison, out: Path, pattern: str = "*") -> Sequence[Cell]:
    return [Cell(case, method, out, comparison.effort) for case, method in comparison.chosen(pattern)]


def run_cell(cell: Cell, workers: int = 1) -> dict[str, Any]:
    """Makes the methods of the cell, measures them beside those of other workers, and writes what was found."""
    from fem_frames.commands.info import collect
    from training.comparison.methods import make_methods, measured
    from training.comparison.yardstick import Yardstick

    begin = time.perf_counter()
    cell.folder.mkdir(parents=True, exist_ok=True)
    try:
        held = lock(cell.out / f".{cell.name}.lock", patience=0.0)
    except ValueError:
        raise ValueError(f"another process is at work on {cell.name}: wait for it, or end it") from None
    try:
        yard = Yardstick(cell.case, cell.effort, cell.folder)
        facts = {"unknowns": yard.exact.A(yard.y[0]).shape[0], "parameters": yard.y.shape[1], **yard.mesh_errors()}
        rows = [measured(yard, method) for method in make_methods(cell.method, yard, cell.folder)]
        record = {
            **cell.settings(),
            "facts": facts,
            "rows": rows,
            "seconds": time.perf_counter() - begin,
            "threads": torch.get_num_threads(),
            "workers": workers,
            "versions": collect() | {name: installed(name) for name in ("pymor", "chaospy")},
        }
        write_record(cell.result, record)
    finally:
        held.release()
    return record


def installed(name: str) -> str:
    """The version of a distribution, or "absent"."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"
