"""Rows and tables of experiments, and presets that make them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from training.configuration import Configuration
from training.experiments.cells import Cell
from training.experiments.paper import Printed
from training.registry import LOSSES

Scaling = Literal["printed", "normalised"]
SCALINGS: dict[Scaling, float] = {"printed": 0.5, "normalised": 0.0}
"""The decay s of the coefficients, by 2^(-s j) on level j, that makes the frame's H1-normalised hats scale so."""
WORDS = {
    "sgd": "SGD",
    "adam": "Adam",
    "soap": "SOAP",
    "lbfgs": "L-BFGS",
    "ngd": "NGD",
    "full": "full",
    "separate": "separate",
    "separate-frame": "separate frame",
}


@dataclass(frozen=True)
class Row:
    """A row of a table: its labels, the cell it comes from, and the paper's values, if any."""

    labels: tuple[str, ...]
    cell: str
    configuration: Configuration
    paper: Printed | None = None


@dataclass(frozen=True)
class Table:
    """A table of an experiment; `columns` are the headings of the labels."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: Sequence[Row]


@dataclass(frozen=True)
class Preset:
    """The part of the protocol that is run."""

    name: str
    text: str
    make: Callable[[Preset], list[Table]]
    base: Configuration
    optimizers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    scaling: Scaling | None = None
    """Of the hats in the paper's tables; None if the recipe chooses the decay."""
    printed_steps: int | None = None
    """Steps per epoch with the printed scaling, if others than with normalised hats."""
    lines: Callable[[Configuration], list[str]] = field(default=lambda base: [])
    """Further lines of the protocol, from the base."""

    def scaled(self, scaling: Scaling | None) -> Preset:
        """The preset with this scaling; None leaves the default."""
        if scaling is None:
            return self
        if self.scaling is None:
            raise ValueError(f"--scaling is for the paper's tables: the recipe of the preset {self.name} has its own")
        return replace(self, scaling=scaling)

    def tables(self, which: str = "all", cells: str = "*") -> list[Table]:
        """The tables of the preset, or the one named `which`, with the rows whose cells match the pattern."""
        made = self.make(self)
        names = [table.name for table in made]
        if which != "all" and which not in names:
            raise ValueError(f"the preset {self.name} has no table {which}; choose from {', '.join(names)}, all")
        chosen = [
            replace(table, rows=[row for row in table.rows if fnmatchcase(row.cell, cells)])
            for table in made
            if which in ("all", table.name)
        ]
        if not any(table.rows for table in chosen):
            raise ValueError(f"--cells {cells}: there is none like that; `fem-frames tables --list` shows their names")
        return [table for table in chosen if table.rows]

    def cells(self, out: Path, which: str = "all", cells: str = "*") -> list[Cell]:
        """The runs that these tables need, without repetition."""
        found: dict[str, Configuration] = {}
        for row in (row for table in self.tables(which, cells) for row in table.rows):
            assert found.setdefault(row.cell, row.configuration) == row.configuration, row.cell
        return [Cell(name, configuration, out) for name, configuration in found.items()]

    def configuration(self, optimizer: str, loss: str, precision: str, net: str = "full") -> Configuration:
        choice: dict[str, Any] = {"optimizer": optimizer, "loss": loss, "precision": precision, "net": net}
        effort = dict(self.optimizers[optimizer])
        if self.scaling is not None and not LOSSES[loss].nodal:  # nodal values have no levels
            choice["level_decay"] = SCALINGS[self.scaling]
        if self.scaling == "printed" and self.printed_steps is not None and "steps_per_epoch" in effort:
            effort["steps_per_epoch"] = self.printed_steps
        return replace(self.base, **choice, **effort)
