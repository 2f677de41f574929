"""Recipes: named sets of settings, for `fem-frames train --preset` and for experiments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HALF = ("float16", "bfloat16")


def best(given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The settings that train the paper's nets best, as far as measured; given settings take precedence.

    They are coefficients that decay with the level like those of smooth solutions, SOAP, a rate that falls to almost
    zero, Sobol points, and in half precision master weights and optimizer in float32. Settings that do not fit are
    omitted: the rates are for SOAP, only a frame has levels, and some losses and optimizers need a fixed set.
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
