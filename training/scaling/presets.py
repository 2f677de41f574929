"""The cells of the scaling study: what is measured, on which meshes, with how much effort."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

STUDIES = ("levels", "parameters", "contrast", "training", "processes", "work", "memory")
LONG_LEARNT = 7  # on finer meshes learned cycles have a quarter of the steps


@dataclass(frozen=True)
class Cell:
    """One measurement, kept in one JSON file."""

    study: str
    label: str
    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.study}-{self.label}"


@dataclass(frozen=True)
class Preset:
    """Cells of all studies, in the order in which they run."""

    name: str
    text: str
    cells: tuple[Cell, ...]

    def chosen(self, pattern: str = "*") -> list[Cell]:
        """The cells whose names match the pattern."""
        found = [cell for cell in self.cells if fnmatchcase(cell.name, pattern)]
        if not found:
            raise ValueError(f"--cells {pattern}: none has such a name; `fem-frames scale --list` shows all names")
        return found


@dataclass(frozen=True)
class Amount:
    """How much is done in the cells of a preset."""

    J: int
    """Of the parameter and contrast studies."""
    solved: Mapping[str, Sequence[int]]
    """J of solvers by problem."""
    nets: Mapping[str, Sequence[int]]
    """J of frame nets by problem."""
    terms: Sequence[int]
    contrasts: Sequence[float]
    trained: Sequence[int]
    """J of training to an excess."""
    trained_steps: int
    """Of them."""
    steps: int
    """Of frame nets in the other studies."""
    learn: int
    """Of learned cycles."""
    solves: int
    """Snapshots of POD and a net."""
    processes: Sequence[int]
    parallel: Sequence[int]
    """J of steps by several processes."""
    counted: Mapping[str, Sequence[int]]
    """J of steps whose work is counted."""
    memory: Mapping[str, Sequence[int]]
    """J of memory by problem."""
    samples: int
    seconds: float
    """Per timing."""


def _cells(a: Amount) -> Iterator[Cell]:
    shared = {"samples": a.samples, "seconds": a.seconds}
    for contrast in a.contrasts:
        for problem in ("disks", "blocks"):
            given = {"problem": problem, "contrast": contrast, "levels": a.J, "learn": a.learn, **shared}
            yield Cell("contrast", f"{problem}-{contrast:g}", given)
    for problem, levels in a.solved.items():
        for j in levels:
            given = {"problem": problem, "levels": j, **shared}
            learn = a.learn if j <= LONG_LEARNT else a.learn // 4
            yield Cell("levels", f"{problem}-J{j}", given | {"learn": learn})
            if j in a.nets[problem]:
                yield Cell("levels", f"{problem}-J{j}-net", given | {"steps": a.steps})
    for terms in a.terms:
        given = {"terms": terms, "levels": a.J, **shared}
        yield Cell("parameters", f"waves-{terms}", given | {"learn": a.learn})
        yield Cell("parameters", f"waves-{terms}-pod", given | {"solves": a.solves, "steps": 10 * a.steps})
        yield Cell("parameters", f"waves-{terms}-net", given | {"steps": a.steps})
    yield from (Cell("training", f"checkerboard-J{j}", {"levels": j, "steps": a.trained_steps}) for j in a.trained)
    for j in a.parallel:
        for n in a.processes:
            yield Cell("processes", f"disks-J{j}-{n}", {"levels": j, "processes": n, "steps": 40})
    for problem, levels in a.counted.items():
        yield from (Cell("work", f"{problem}-J{j}", {"problem": problem, "levels": j}) for j in levels)
    for problem, levels in a.memory.items():
        yield from (
            Cell("memory", f"{problem}-J{j}-{task}", {"problem": problem, "levels": j, "task": task})
            for j in levels
            for task in ("training", "query")
        )


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "quick",
            "every study on coarse meshes with little effort, in two minutes",
            tuple(
                _cells(
                    Amount(
                        J=3,
                        solved={"disks": (3, 4), "cube": (2,)},
                        nets={"disks": (3,), "cube": ()},
                        terms=(1, 4),
                        contrasts=(1.0, 100.0),
                        trained=(2, 3),
                        trained_steps=40,
                        steps=40,
                        learn=50,
                        solves=200,
                        processes=(1, 2),
                        parallel=(3,),
                        counted={"disks": (3, 4)},
                        memory={"disks": (3, 4)},
                        samples=8,
                        seconds=0.02,
                    )
                )
            ),
        ),
        Preset(
            "full",
            "2D to J = 9, 3D to J = 5, 1 to 256 parameters, contrast to 10 000, in some hours",
            tuple(
                _cells(
                    Amount(
                        J=6,
                        solved={"disks": (4, 5, 6, 7, 8, 9), "cube": (2, 3, 4, 5)},
                        nets={"disks": (4, 5, 6, 7), "cube": (2, 3, 4)},
                        terms=(1, 4, 16, 64, 256),
                        contrasts=(1.0, 10.0, 100.0, 1000.0, 10_000.0),
                        trained=(3, 4, 5, 6, 7),
                        trained_steps=1000,
                        steps=1000,
                        learn=200,
                        solves=2000,
                        processes=(1, 2),
                        parallel=(5, 6, 7),
                        counted={"disks": (5, 6, 7, 8), "cube": (3, 4, 5)},
                        memory={"disks": (5, 6, 7, 8, 9, 10), "cube": (3, 4, 5, 6)},
                        samples=32,
                        seconds=1.0,
                    )
                )
            ),
        ),
    )
}
