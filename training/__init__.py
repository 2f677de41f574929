"""Trains nets over frames: losses, optimizers, precision, checkpoints, and the surrogate. Needs no DOLFINx."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Names are imported on first use: the settings of a run can be read without torch.
_HOMES = {
    "Configuration": "configuration",
    "NGD": "optimizers.natural_gradient",
    "OutputNet": "output_net",
    "OutputNetSettings": "output_net",
    "OutputSamples": "output_samples",
    "Surrogate": "surrogate",
    "TrainingError": "run.trainer",
    "ValidationErrors": "output_net",
    "solve_outputs": "output_samples",
    "train": "run.trainer",
}
__all__ = [
    "NGD",
    "Configuration",
    "OutputNet",
    "OutputNetSettings",
    "OutputSamples",
    "Surrogate",
    "TrainingError",
    "ValidationErrors",
    "solve_outputs",
    "train",
]

if TYPE_CHECKING:
    from training.configuration import Configuration
    from training.optimizers.natural_gradient import NGD
    from training.output_net import OutputNet, OutputNetSettings, ValidationErrors
    from training.output_samples import OutputSamples, solve_outputs
    from training.run.trainer import TrainingError, train
    from training.surrogate import Surrogate
else:  # type checkers would conclude that every name exists

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module training has no attribute {name!r}")
        return getattr(importlib.import_module(f"training.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
