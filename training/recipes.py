"""Recipes: named sets of settings, for `fem-frames train --preset` and for experiments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training.registry import LOSSES, OPTIMIZERS

HALF = ("float16", "bfloat16")


def best(given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The settings that train the paper's nets best, as far as measured; given settings take precedence.

    They are coefficients that decay with the level like those of smooth solutions, SOAP, a rate that falls to almost
    zero, Sobol points, and in half precision master weights and optimizer in float32. Settings that do not fit are
    omitted: the rates are for SOAP, only a frame has levels, and some losses and optimizers need a fixed set.
    """
    given = given or {}
    optimizer = given.get("optimizer", "soap")
    loss, kind = LOSSES.get(given.get("loss", "stable")), OPTIMIZERS.get(optimizer)
    settings: dict[str, Any] = {"optimizer": "soap", "epochs": 16_000}
    if optimizer == "soap":
        rate = given.get("rate", 3e-3)
        settings |= {"rate": rate, "minimum_rate": min(3e-7, rate)}
    if loss is None or not loss.nodal:  # a loss of one's own is one through the frame
        settings["level_decay"] = 1.5
    needs_fixed = (loss is not None and loss.supervised) or (kind is not None and kind.line_search)
    if not needs_fixed and "training_samples" not in given:
        settings["sampling"] = "sobol"
    if given.get("precision") in HALF:
        settings["mixed"] = True
    return {**settings, **given}


RECIPES = {"best": best}
