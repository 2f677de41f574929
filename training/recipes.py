"""Recipes: settings that go together, by name, for `fem-frames train --preset` and for experiments."""

from __future__ import annotations

from typing import Any

HALF = ("float16", "bfloat16")


def best(precision: str = "float32") -> dict[str, Any]:
    """The settings that were found to train best, of those with the paper's nets; see docs/results.

    Coefficients that decay with the level as those of smooth solutions do, SOAP, a rate that falls to almost nothing;
    in half precision master weights and the optimizer in float32.
    """
    settings: dict[str, Any] = {
        "optimizer": "soap",
        "level_decay": 1.5,
        "rate": 3e-3,
        "minimum_rate": 3e-7,
        "epochs": 16_000,
        "precision": precision,
    }
    return settings | ({"mixed": True} if precision in HALF else {})


RECIPES = {"best": best}
