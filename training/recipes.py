"""Recipes: settings that go together, by name, for `fem-frames train --preset` and for experiments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training.registry import LOSSES, OPTIMIZERS

HALF = ("float16", "bfloat16")


def best(given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The settings that were found to train best with the paper's nets; those that are given stay as they are.

    Coefficients that decay with the level as those of smooth solutions do, SOAP, a rate that falls to almost nothing,
    Sobol points; in half precision master weights and the optimizer in float32. The rates are SOAP's, without a frame
    there are no levels, and some losses and optimizers need a fixed set: what does not fit what is given is left out.
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
