"""Saves the problem of a surrogate as tensors, numbers and texts, with a fingerprint to compare problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fem_frames.formulations.formulation import Formulation
from fem_frames.frame.arrays import FrameArrays
from fem_frames.frame.level_matrices import quadrature_points
from fem_frames.operators.checking import unchecked
from fem_frames.problem.catalogue import PROBLEMS
from fem_frames.problem.definition import Problem
from fem_frames.problem.densities import Density
from fem_frames.problem.description import describe_problem, described_problem
from fem_frames.problem.loading import recorded_problem


def problem_content(problem: Problem | None, arrays: FrameArrays) -> dict[str, Any]:
    """The entry of a file for the problem; empty for built-in problems, found by name, and those with functions."""
    if problem is None or arrays.record.get("problem") in PROBLEMS:
        return {}
    description = describe_problem(arrays.with_tags(problem), quadrature_points(arrays), arrays.regions)
    return {} if description is None else {"problem": _converted(description, np.ndarray, _as_tensor)}


def saved_problem(content: dict[str, Any], arrays: FrameArrays) -> Problem | None:
    """The problem of a surrogate, built in or described in its file; None if it is neither.

    Raises a ValueError if the description is damaged.
    """
    if arrays.record.get("problem") not in PROBLEMS and "problem" in content:
        description = _converted(content["problem"], Tensor, _as_array)
        lift = arrays.fields[0].lift[-1]
        return described_problem(description, arrays.record, quadrature_points(arrays), arrays.points, lift)
    try:
        made = recorded_problem(arrays.record)
    except ValueError:  # solutions do not need the problem
        return None
    if made.equation is not None:  # its programs are in the frame, which may be where UFL is not
        made.equation.adopt(Density.from_record(arrays.record.get("equation")))
    return made


SMALLER = 30  # times that coefficients are halved to find a finite energy


def fingerprint(exact: Formulation) -> list[float]:
    """Two losses that distinguish problems of the same name: functions have no other identity."""
    size, device = exact.frame.frame_size, exact.frame.device
    w = torch.linspace(-1, 1, size, dtype=torch.float64, device=device).expand(2, -1)
    y = torch.as_tensor(exact.problem.parameters.sample(2, 0), device=device)
    with unchecked():  # nonlinear energies may be defined for small u alone
        for _ in range(SMALLER):
            found = exact.loss(w, y)
            if bool(torch.isfinite(found).all()):
                break
            w = w / 2
    return [float(value) for value in exact.loss(w, y)]


def check_saved(content: Mapping[str, Any]) -> None:
    """Raises a ValueError unless the record has the types that `save_net` writes."""
    record = content.get("record")
    known = record.get("fingerprint") if isinstance(record, dict) else []
    if not isinstance(record, dict) or not isinstance(known, list | None):
        raise ValueError("its record has other types than a surrogate's")
    if known is not None and not all(isinstance(value, float) for value in known):
        raise ValueError("its fingerprint has no numbers")


def _converted(value: Any, kind: type, convert: Callable[[Any], Any]) -> Any:
    """The same dictionaries, with their arrays converted."""
    if isinstance(value, dict):
        return {key: _converted(entry, kind, convert) for key, entry in value.items()}
    return convert(value) if isinstance(value, kind) else value


def _as_tensor(array: np.ndarray) -> Tensor:
    return torch.as_tensor(np.array(array))  # a copy: arrays of a frame are read-only


def _as_array(tensor: Tensor) -> np.ndarray | None:
    ordinary = tensor.layout == torch.strided and tensor.dtype == torch.float64 and tensor.device.type == "cpu"
    return tensor.detach().numpy() if ordinary else None  # None is refused as a table
