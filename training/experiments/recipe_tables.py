"""Tables beyond the paper: the best recipe, its parts, levels and starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from training.configuration import Configuration
from training.experiments.presets import WORDS, Preset, Row, Table
from training.recipes import best


def recipe_lines(base: Configuration) -> list[str]:
    """Lines of the protocol."""
    recipe = {**best(), "batch": replace(base, **best()).resolved().batch}
    rates = f"{SINGLE_LEVELS['separate-frame']['rate']:g}, of Adam {ABLATION['Adam']['rate']:g}"
    return [
        "recipe, unless a table says otherwise: " + ", ".join(f"{k} {v}" for k, v in recipe.items()),
        f"first rate of nets with prolongations {rates}",
        "in float16 the net runs in half; master weights and the optimizer are in float32 (mixed)",
    ]


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
