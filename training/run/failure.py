"""The error for failed training, with advice on the settings."""

from __future__ import annotations

from pathlib import Path

from fem_frames.messages import option
from training.configuration import Configuration


class TrainingError(RuntimeError):
    """Training cannot continue; saved checkpoints are kept. See docs/training.md."""


def diverged(c: Configuration, step: int, loss: float, kept: Path | None, *, tested: bool = False) -> TrainingError:
    """The error for numbers that are not finite at a step, with advice on the settings; `kept` has checkpoints."""
    half = c.precision in ("float16", "bfloat16")
    advice = ["the stable loss"] if c.loss in ("bpx", "nodal") else []
    advice += [f"mixed precision ({option('mixed')})"] if half and not c.mixed else []
    advice += [f"a smaller rate than {c.rate:g}"]
    advice += [] if c.precision == "float64" else ["float32" if half else "float64"]
    what = "the test loss" if tested else "loss or gradient"
    taken = "" if tested else ": no step was taken"
    saved = "" if kept is None else f"; checkpoints are kept in {kept}"
    return TrainingError(
        f"{what} is not finite at step {step} in {c.precision} (loss {loss:.3g}){taken}; "
        f"try {' or '.join(part for part in (', '.join(advice[:-1]), advice[-1]) if part)}{saved}"
    )
