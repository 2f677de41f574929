"""Recipes: settings that go together, by name, for `fem-frames train --preset` and for experiments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HALF = ("float16", "bfloat16")


def best(given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The settings that were found to train best with the paper's nets; those that are given stay as they are.

    Coefficients that decay with the level as those of smooth solutions do, SOAP, a rate that falls to almost nothing,
    Sobol points; in half precision master weights and the optimizer in float32. The rates are SOAP's, without a frame
    there are no levels, and some losses and optimizers need a fixed set: what does not fit what is given is left out.
    """
    from training.losses import LOSSES
    from training.optimizers.steppers import LINE_SEARCH

    given = given or {}
    optimizer, loss = given.get("optimizer", "soap"), LOSSES.get(given.get("loss", "stable"))
    settings: dict[str, Any] = {"optimizer": "soap", "epochs": 16_000}
    if optimizer == "soap":
        rate = given.get("rate", 3e-3)
        settings |= {"rate": rate, "minimum_rate": min(3e-7, rate)}
    if loss is not None and not loss.nodal:
        settings["level_decay"] = 1.5
    if loss is not None and not loss.supervised and optimizer not in LINE_SEARCH and "training_samples" not in given:
        settings["sampling"] = "sobol"
    if given.get("precision") in HALF:
        settings["mixed"] = True
    return {**settings, **given}


RECIPES = {"best": best}
