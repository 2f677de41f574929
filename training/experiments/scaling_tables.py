"""What the scaling of the hats does: steps per epoch that fit the paper, and losses against the decay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from training.configuration import Configuration
from training.experiments.paper import TABLE_2
from training.experiments.presets import SCALINGS, WORDS, Preset, Row, Table

DECAY = "decay"  # the name of the table of losses against s
EPOCHS, STEPS_PER_EPOCH = 6000, (1, 2, 3, 4)
DECAYS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
DECAY_EPOCHS, DECAY_STEPS = 1500, 4
RATES = {"adam": 1e-3, "soap": 3e-3}


def scaling_lines(base: Configuration) -> list[str]:
    """Lines of the protocol."""
    rates = ", ".join(f"{WORDS[name]} {rate:g}" for name, rate in RATES.items())
    return [
        f"Table steps: {EPOCHS} epochs of as many steps as it says, with batches of {base.batch} fresh samples",
        f"Table decay: {DECAY_EPOCHS} epochs of {DECAY_STEPS} steps; first rates {rates}",
        "float32, loss through D; hats normalised in H1 are s = 0, those that the paper prints s = 0.5",
    ]


def scaling_tables(preset: Preset) -> list[Table]:
    return [
        Table(
            "steps",
            "steps per epoch with printed hats, stable loss in float32",
            ("optimizer", "steps per epoch"),
            list(_steps_rows(preset)),
        ),
        Table(
            DECAY,
            f"coefficients of level j scaled by 2^(-s j), {DECAY_EPOCHS * DECAY_STEPS} steps in float32",
            ("optimizer", "s"),
            list(_decay_rows(preset)),
        ),
    ]


def _steps_rows(preset: Preset) -> Iterator[Row]:
    for optimizer in ("sgd", "adam"):
        for steps in STEPS_PER_EPOCH:
            configuration = replace(
                preset.base,
                optimizer=optimizer,
                precision="float32",
                level_decay=SCALINGS["printed"],
                epochs=EPOCHS,
                steps_per_epoch=steps,
                evaluate_every=150,
            )
            labels = WORDS[optimizer], str(steps)
            yield Row(labels, f"steps-{optimizer}-{steps}", configuration, TABLE_2[optimizer, "float32"])


def _decay_rows(preset: Preset) -> Iterator[Row]:
    for optimizer, rate in RATES.items():
        for decay in DECAYS:
            configuration = replace(
                preset.base,
                optimizer=optimizer,
                rate=rate,
                precision="float32",
                level_decay=decay,
                epochs=DECAY_EPOCHS,
                steps_per_epoch=DECAY_STEPS,
                evaluate_every=50,
            )
            yield Row((WORDS[optimizer], f"{decay:g}"), f"decay-{optimizer}-{decay:g}", configuration)
