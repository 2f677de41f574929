"""Recipes: settings that go together, by name, for `fem-frames train --preset` and for experiments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HALF = ("float16", "bfloat16")
WITHOUT_FRAME = ("nodal", "supervised-nodal")
FIXED = {"loss": ("supervised", "supervised-nodal"), "optimizer": ("lbfgs", "ngd")}
"""What needs a fixed set of samples."""


def best(given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The settings that were found to train best with the paper's nets; those that are given stay as they are.

    Coefficients that decay with the level as those of smooth solutions do, SOAP, a rate that falls to almost nothing,
    Sobol points; in half precision master weights and the optimizer in float32. The rates are SOAP's, without a frame
    there are no levels, and some losses and optimizers need a fixed set: what does not fit what is given is left out.
    """
    given = given or {}
    settings: dict[str, Any] = {"optimizer": "soap", "epochs": 16_000}
    if given.get("optimizer", "soap") == "soap":
        rate = given.get("rate", 3e-3)
        settings |= {"rate": rate, "minimum_rate": min(3e-7, rate)}
    if given.get("loss") not in WITHOUT_FRAME:
        settings["level_decay"] = 1.5
    if "training_samples" not in given and not any(given.get(name) in kinds for name, kinds in FIXED.items()):
        settings["sampling"] = "sobol"
    if given.get("precision") in HALF:
        settings["mixed"] = True
    return {**settings, **given}


RECIPES = {"best": best}
