"""The paper's three tables."""

from __future__ import annotations

from dataclasses import replace

from training.experiments.paper import TABLE_1, TABLE_2, TABLE_3, Printed
from training.experiments.presets import WORDS, Preset, Row, Table

OPTIMIZERS = ("sgd", "adam", "lbfgs", "ngd")


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
