"""The error for failed training, with advice on the settings."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from fem_frames.messages import option
from training.configuration import Configuration

BOTTOMLESS = 1e4
"""A loss that falls by this factor of its first size falls without bound."""


class TrainingError(RuntimeError):
    """Training cannot continue; saved checkpoints are kept. See docs/training.md."""


class LossFall:
    """The first and the last finite loss of a run, as tensors: nothing waits for the device before they are read."""

    def __init__(self) -> None:
        self._first: Tensor | None = None
        self._last: Tensor | None = None

    def note(self, loss: Tensor) -> None:
        self._first, self._last = loss if self._first is None else self._first, loss

    def hint(self) -> str:
        """Says that the loss fell without bound, if it did."""
        if self._first is None or self._last is None:
            return ""
        first, last = float(self._first), float(self._last)
        if not first - last > BOTTOMLESS * (1 + abs(first)):
            return ""
        return f"; before, the loss fell without bound, from {first:.3g} to {last:.3g}: the energy may have no minimum"


def diverged(
    c: Configuration, step: int, loss: float, kept: Path | None, *, tested: bool = False, hint: str = ""
) -> TrainingError:
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
        f"try {' or '.join(part for part in (', '.join(advice[:-1]), advice[-1]) if part)}{hint}{saved}"
    )
