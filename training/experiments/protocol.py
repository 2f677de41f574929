"""The protocol of the experiments: what the paper fixes, what it leaves open, and which cells are run.

The paper ("Experimental settings") fixes the problem, J = 10, the nets, the optimizers with their settings for each
precision, the metrics and 6000 epochs. These are the defaults of `Configuration` and of `training.precision`.

It contradicts itself about the scaling of the hats: normalised in H1 by its text, 2^-j by the formula that it prints
for its example, which in 1D decays faster by 2^(-j/2). `SCALINGS` has both, as the decay of coefficients over
levels.

It leaves open the samples and steps per epoch, the batch size, the number of test samples, and the seeds. Here

- SGD and Adam draw new samples: `STEPS` steps of `BATCH` samples per epoch, fewer in the shorter presets, and
  `FITTING_STEPS` in the preset `cpu` with the printed scaling, with which losses come closest to the paper's;
- L-BFGS and NGD need the same function at all points of a line search, so they use a fixed set of `FIXED` samples and
  take one step of at most 20 iterations per epoch;
- the test set has `TEST` samples with its own seed, the same for all cells;
- the seed of net and samples is 0.

A preset chooses how much of this is run. Only `quick` uses a smaller J.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from training.configuration import Configuration
from training.experiments.cells import Cell
from training.experiments.paper import TABLE_1, TABLE_2, TABLE_3, Printed
from training.recipes import best
from training.registry import LOSSES

STEPS, FITTING_STEPS, BATCH, FIXED, TEST = 6, 3, 64, 256, 1000
Scaling = Literal["printed", "normalised"]
SCALINGS: dict[Scaling, float] = {"printed": 0.5, "normalised": 0.0}
"""The decay s of the coefficients, by 2^(-s j) on level j, that makes the frame's H1-normalised hats scale so."""
OPTIMIZERS = ("sgd", "adam", "lbfgs", "ngd")
WORDS = {
    "sgd": "SGD",
    "adam": "Adam",
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


# ---- the paper's tables


def paper_tables(preset: Preset) -> list[Table]:
    return [
        Table(
            "1",
            "with and without preconditioning",
            ("optimizer", "loss", "precision"),
            [
                _row(preset, (optimizer, loss, precision), TABLE_1.get((optimizer, loss, precision)))
                for optimizer in OPTIMIZERS
                for loss, precision in (
                    *(("nodal", "float32"), ("nodal", "float64")),
                    *(("bpx", "float16"), ("bpx", "float32"), ("bpx", "float64")),
                )
            ]
            + [_slow_sgd(preset)],
        ),
        Table(
            "2",
            "stable preconditioning, by optimizer",
            ("optimizer", "loss", "precision"),
            [
                _row(preset, (optimizer, "stable", precision), TABLE_2[optimizer, precision])
                for optimizer in OPTIMIZERS
                for precision in ("float16", "float32", "float64")
            ],
        ),
        Table(
            "3",
            "stable preconditioning, by net",
            ("net", "precision"),
            [
                _row(preset, ("adam", "stable", precision), printed, net)
                for (net, precision), printed in TABLE_3.items()
            ],
        ),
    ]


def _row(preset: Preset, choice: tuple[str, str, str], printed: Printed | None, net: str | None = None) -> Row:
    optimizer, loss, precision = choice
    configuration = preset.configuration(optimizer, loss, precision, net or "full")
    labels = (WORDS[optimizer], loss, precision) if net is None else (WORDS[net], precision)
    return Row(labels, f"{net or 'full'}-{optimizer}-{loss}-{precision}", configuration, printed)


STABLE_RATE = 1e-5


def _slow_sgd(preset: Preset) -> Row:
    """SGD without a frame, at a rate for which it does not diverge.

    The biases alone move the output by about 9 times its gradient in every direction, and the largest eigenvalue of
    2 A_y is about 8/h: at the paper's rate of 1e-3 the fastest error grows for J ≥ 5, at J = 10 by 70 per step.
    """
    configuration = replace(preset.configuration("sgd", "nodal", "float32"), rate=STABLE_RATE)
    labels = (f"SGD, rate {STABLE_RATE:g}", "nodal", "float32")
    return Row(labels, "full-sgd-nodal-float32-slow", configuration)


# ---- beyond the paper


def best_tables(preset: Preset) -> list[Table]:
    return [
        Table("best", "the recipe", ("net", "precision", "seed"), list(_recipe_rows(preset))),
        Table(
            "ablation",
            f"what each part contributes, in {ABLATION_EPOCHS} epochs",
            ("recipe", "seed"),
            list(_ablation_rows(preset)),
        ),
        Table(
            "levels",
            f"does training see the mesh? {LEVEL_EPOCHS} epochs, {LEVEL_TEST} test samples",
            ("loss", "levels"),
            list(_level_rows(preset)),
        ),
        Table(
            "start",
            f"separate frame nets by the level that they start on, in {START_EPOCHS} epochs",
            ("net",),
            list(_start_rows(preset)),
        ),
    ]


SINGLE_LEVELS: dict[str, dict[str, Any]] = {
    "separate": {"net": "separate", "epochs": 6000},
    "separate-frame": {"net": "separate-frame", "epochs": 12000, "rate": 1e-2},
    "separate-frame-4": {"net": "separate-frame", "epochs": 6000, "rate": 1e-2, "start_level": 4},
}
"""Changes for nets of single levels, by the names of their cells. Nets with prolongations tolerate a larger rate;
those that start on the coarsest level train slowly."""


def _recipe_rows(preset: Preset) -> Iterator[Row]:
    for precision in ("float32", "float16"):
        for seed in (0, 1):
            configuration = replace(preset.base, **{**best({"precision": precision}), "seed": seed})
            yield Row((WORDS["full"], precision, str(seed)), f"full-{precision}-{seed}", configuration)
    for name, change in SINGLE_LEVELS.items():
        c = replace(preset.base, **{**best(), **change})
        words = WORDS[c.net] + ("" if c.start_level is None else f" from level {c.start_level}")
        yield Row((words, c.precision, str(c.seed)), f"{name}-{c.precision}-{c.seed}", c)


START_LEVELS = range(1, 7)
START_EPOCHS = 3000


def _start_rows(preset: Preset) -> Iterator[Row]:
    for start in START_LEVELS:
        change = {**SINGLE_LEVELS["separate-frame"], "epochs": START_EPOCHS, "start_level": start}
        configuration = replace(preset.base, **{**best(), **change})
        yield Row((f"from level {start}",), f"start-{start}", configuration)


ABLATION: dict[str, dict[str, Any]] = {
    "all of it": {},
    "level decay 1": {"level_decay": 1.0},
    "no level decay": {"level_decay": 0.0},
    "Adam": {"optimizer": "adam", "rate": 1e-3},
    "inputs not mapped": {"map_inputs": False},
    "rate falls to 3e-5 only": {"minimum_rate": 3e-5},
    "random points": {"sampling": "fresh"},
    "batches of 16": {"batch": 16},
    "nodal basis": {"loss": "nodal", "level_decay": 0.0},
}
ABLATION_EPOCHS = 4000


def _ablation_rows(preset: Preset) -> Iterator[Row]:
    for number, (text, change) in enumerate(ABLATION.items()):
        for seed in (0, 1):
            settings = {**best(), "epochs": ABLATION_EPOCHS, "seed": seed, **change}
            yield Row((text, str(seed)), f"ablation-{number}-{seed}", replace(preset.base, **settings))


LEVELS = range(4, 13)
LEVEL_EPOCHS, LEVEL_TEST = 2000, 250


def _level_rows(preset: Preset) -> Iterator[Row]:
    for loss, change in (("stable", {}), ("nodal", {"level_decay": 0.0})):
        for levels in LEVELS:
            settings = {**best(), "epochs": LEVEL_EPOCHS, "evaluate_every": 25, "test_samples": LEVEL_TEST, **change}
            configuration = replace(preset.base, **{**settings, "levels": levels, "loss": loss})
            yield Row((loss, str(levels)), f"levels-{loss}-{levels}", configuration)


# ---- presets


def _efforts(first_order: int, lbfgs: int, ngd: int, steps: int = STEPS) -> dict[str, dict[str, Any]]:
    """Settings by optimizer for these numbers of epochs."""
    plain = {"epochs": first_order, "batch": BATCH, "steps_per_epoch": steps, "evaluate_every": first_order // 40}
    return {
        "sgd": plain,
        "adam": plain,
        "lbfgs": {"epochs": lbfgs, "training_samples": FIXED},
        "ngd": {"epochs": ngd, "training_samples": FIXED},
    }


PAPER_LEVELS = 10
_PAPER = Configuration(problem="quarters", formulation="least-squares", levels=PAPER_LEVELS, test_samples=TEST)

PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "quick",
            "the pattern of the tables at smaller J, in a quarter of an hour on two cores",
            paper_tables,
            replace(_PAPER, levels=7, test_samples=200),
            _efforts(1000, 40, 20, 2),
            "printed",
        ),
        Preset(
            "cpu",
            "all cells at J = 10 in a few hours on two cores; L-BFGS and NGD have fewer epochs than in the paper",
            paper_tables,
            _PAPER,
            _efforts(6000, 200, 150, 4),
            "printed",
            FITTING_STEPS,
        ),
        Preset(
            "paper", "6000 epochs for all optimizers; days", paper_tables, _PAPER, _efforts(6000, 6000, 6000), "printed"
        ),
        Preset("best", "the best recipe, what its parts contribute, J = 4 to 12, later starts", best_tables, _PAPER),
    )
}

BEFORE_SCALINGS = "normalised"
"""The scaling of experiments and reports that do not name one: they are older than the choice."""


def known_preset(name: object, scaling: object) -> Preset | None:
    """The preset of this name and scaling in a file, or None if there is none; `best` ignores the scaling."""
    preset = PRESETS.get(name) if isinstance(name, str) else None
    if preset is None or preset.scaling is None:
        return preset
    return preset.scaled(scaling) if isinstance(scaling, str) and scaling in SCALINGS else None
