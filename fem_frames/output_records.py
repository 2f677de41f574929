"""Outputs as data: lists of names, numbers and programs, which files hold without any code of the user."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fem_frames.files import check_file, written_whole
from fem_frames.functionals import Functional
from fem_frames.outputs import BoundaryFlux, LinearFunctional, Output, OutputMap, PointValues, RegionMean
from fem_frames.problem.densities import ENERGY, Density

FORMAT = "fem-frames outputs"


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_group(value: Any) -> bool:
    return _is_name(value) or type(value) is int


def _is_table(value: Any) -> bool:
    try:
        found = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        return False
    return isinstance(value, list) and found.ndim in (1, 2) and bool(np.isfinite(found).all())


KINDS: dict[str, tuple[type[Output], dict[str, Callable[[Any], bool]]]] = {
    "points": (PointValues, {"points": _is_table, "field": _is_name}),
    "mean": (RegionMean, {"region": lambda v: v is None or _is_group(v), "field": _is_name}),
    "flux": (BoundaryFlux, {"group": _is_group, "field": lambda v: v is None or _is_name(v)}),
    "vector": (LinearFunctional, {"vector": _is_table, "field": _is_name, "label": _is_name}),
}
"""The outputs that consist of names and numbers, with what these must be."""


def record_outputs(outputs: OutputMap) -> list[dict[str, Any]]:
    """The outputs as lists, numbers and texts; functionals as their programs. See docs/surrogates.md."""
    return [_recorded(output, outputs) for output in outputs.outputs]


def _recorded(output: Output, outputs: OutputMap) -> dict[str, Any]:
    if isinstance(output, Functional):
        density = output.compiled(outputs.formulation)
        return {"kind": "functional", "name": output.name, "density": density.record()}
    for kind, (of, parts) in KINDS.items():
        if type(output) is of:
            values = {name: _plain(getattr(output, name)) for name in parts}
            if callable(values.get("group")):
                raise ValueError(
                    "a BoundaryFlux is given by a function, which files do not hold: name the group of its facets"
                )
            return {"kind": kind, **values}
    raise ValueError(f"files do not hold outputs of the class {type(output).__name__}: use a LinearFunctional")


def _plain(value: Any) -> Any:
    if isinstance(value, str | int | None) or callable(value):
        return value
    return np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value, np.float64).tolist()


def read_outputs(records: Any) -> list[Output]:
    """The outputs of `record_outputs`; raises a ValueError if the records are damaged."""
    if not isinstance(records, list) or not records:
        raise ValueError("outputs are not a list of records")
    return [_read(record) for record in records]


def _read(record: Any) -> Output:
    kind = record.get("kind") if isinstance(record, Mapping) else None
    if kind == "functional":
        if set(record) != {"kind", "name", "density"} or not _is_name(record["name"]):
            raise ValueError("a functional is not described by name and density")
        density = Density.from_record(record["density"])
        if density.kind != ENERGY:
            raise ValueError(f"the functional {record['name']} is a weak form, which has test functions")
        return Functional(None, record["name"], density)
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"there is no output of the kind {kind!r:.40}; there are {', '.join(KINDS)} and functional")
    of, parts = KINDS[kind]
    given = {name: record[name] for name in record if name != "kind"}
    if set(given) != set(parts) or not all(fits(given[name]) for name, fits in parts.items()):
        raise ValueError(f"an output of the kind {kind} is not described by {' and '.join(parts)}")
    return of(**given)


def save_outputs(path: str | Path, outputs: OutputMap) -> None:
    """Writes outputs as a file of JSON, completely or not at all. See docs/surrogates.md."""
    content = {"format": FORMAT, "outputs": record_outputs(outputs)}
    with written_whole(path) as file:
        file.write(json.dumps(content).encode())


def load_outputs(path: str | Path) -> list[Output]:
    """Reads a file of `save_outputs`; nothing in it is executed. See docs/surrogates.md."""
    path = check_file(path)
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict) or set(content) != {"format", "outputs"} or content["format"] != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        return read_outputs(content["outputs"])
    except (ValueError, RecursionError) as error:  # JSON's errors and those of texts that are not UTF-8 too
        raise ValueError(f"{path} holds no outputs: {error}") from error
