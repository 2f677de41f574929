"""`fem-frames problems`: the built-in problems and their options."""

from __future__ import annotations

import argparse
import inspect
import json
from typing import Any

from fem_frames.commands.shared import declare
from fem_frames.problem.catalogue import PROBLEMS


def add(subparsers: Any) -> None:
    declare(subparsers, "problems", run, "Lists the built-in problems, their parameters and options.")


def run(parsed: argparse.Namespace) -> None:
    rows: list[dict[str, Any]] = []
    for name, make in PROBLEMS.items():
        options = {key: parameter.default for key, parameter in inspect.signature(make).parameters.items()}
        text = (make.__doc__ or "").split("\n")[0]
        rows.append({"name": name, "text": text, "parameters": str(make().parameters), "options": options})
    if parsed.json:
        print(json.dumps({"problems": rows}))
        return
    for row in rows:
        settings = " ".join(f"{key}={value}" for key, value in row["options"].items())
        print(f"{row['name']}\n    {row['text']}\n    y in {row['parameters']}; --set {settings}")
