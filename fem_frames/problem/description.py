"""A problem as plain data, so that losses and bounds of a saved surrogate need no Python file.

A description covers coefficients of the kinds `ByRegion`, `Affine` and `ExpAffine`, constant sources, and the
parameters; the frame has mesh, regions and boundary data. It holds only numbers, texts and arrays, and is checked
before a problem is made from it: it never chooses code to run.

K cells, Q quadrature points in a cell, N points, d dimension, p parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.messages import either
from fem_frames.problem.boundary_description import (
    describe_conditions,
    read_conditions,
    read_equation_conditions,
)
from fem_frames.problem.coefficients import Affine, ByRegion, Coefficient, ExpAffine, Tabulated
from fem_frames.problem.definition import Problem
from fem_frames.problem.densities import Density
from fem_frames.problem.equation import Equation
from fem_frames.problem.parameters import Gaussian, Uniform

_TABULATED = {"affine": Affine, "exp-affine": ExpAffine}


@dataclass(frozen=True, eq=False)
class RecordedProblem(Problem):
    """A problem from a surrogate's file, usable only with the surrogate's frame: it has no mesh to refine."""

    def check_levels(self, levels: int) -> int:
        raise ValueError(_in_frame_only("mesh"))


@dataclass(frozen=True, eq=False)
class _NodalValues:
    """A function that is known only at the points of a frame."""

    points: Floats  # (N, d)
    values: Floats  # (N,)

    def __call__(self, x: Floats) -> Floats:
        if x.shape != self.points.shape or not np.allclose(x, self.points, rtol=1e-9):
            raise ValueError(_in_frame_only("boundary data"))
        return self.values


def describe_problem(problem: Problem, points: Floats, regions: Ints) -> dict[str, Any] | None:
    """The description of a problem on a frame with the quadrature points (K, Q, d) and the regions (K,).

    None if the problem has functions that a file cannot hold: a `Pointwise` coefficient, a coefficient class of the
    user, a source that is a function, or boundary data that are functions of y or belong to a Robin condition.
    """
    coefficient = _describe_coefficient(problem.coefficient, points, regions)
    boundary = describe_conditions(problem.conditions)
    if coefficient is None or callable(problem.source) or boundary is None:
        return None
    box = problem.parameters
    if isinstance(box, Uniform):
        parameters: dict[str, Any] = {"kind": "uniform", "lower": list(box.lower), "upper": list(box.upper)}
    else:
        parameters = {"kind": "gaussian", "dimension": box.dimension}
    described = {"coefficient": coefficient, "source": float(problem.source), "parameters": parameters}
    return described | ({"boundary": boundary} if boundary else {})


def _describe_coefficient(coefficient: Coefficient | Equation, points: Floats, regions: Ints) -> dict[str, Any] | None:
    if isinstance(coefficient, Equation):  # the frame has its programs
        return {"kind": "equation"}
    # Types are compared exactly: a user's subclass may evaluate something else.
    if type(coefficient) is ByRegion:
        return {
            "kind": "by-region",
            "parameter": {int(tag): int(index) for tag, index in coefficient.parameter.items()},
            "fixed": {int(tag): float(value) for tag, value in coefficient.fixed.items()},
        }
    formula = coefficient.formula if isinstance(coefficient, Tabulated) else coefficient
    kind = next((name for name, known in _TABULATED.items() if type(formula) is known), None)
    if kind is None:
        return None
    mean, modes = coefficient.tabulate(points, regions)
    return {"kind": kind, "mean": mean, "modes": modes}


def described_problem(
    description: Any, record: Mapping[str, Any], quadrature_points: Floats, points: Floats, lift: Floats
) -> Problem:
    """The problem of a description, for the frame with this record, quadrature points (K, Q, d) and points (N, d).

    `lift` (N,) has the Dirichlet data. Raises a ValueError if the description is damaged.
    """
    keys = ("coefficient", "source", "parameters")
    has_boundary = isinstance(description, Mapping) and "boundary" in description
    parts = _mapping(description, "the problem", (*keys, "boundary") if has_boundary else keys)
    parameters = _read_parameters(parts["parameters"])
    if isinstance(parts["coefficient"], Mapping) and parts["coefficient"].get("kind") == "equation":
        return _with_equation(parts, record, parameters)
    in_frame = _NodalValues(points, lift)
    conditions: dict[str, Any] = {"dirichlet": _unknown, "dirichlet_value": in_frame, "neumann": {"rest": _unknown}}
    if has_boundary:
        conditions = read_conditions(parts["boundary"], in_frame, _unknown)
    return RecordedProblem(
        mesh=None,
        coefficient=_read_coefficient(parts["coefficient"], quadrature_points, parameters.dimension),
        parameters=parameters,
        source=_number(parts["source"], "the source"),
        **conditions,
        name=str(record.get("problem")),
        options=dict(record.get("options", {})),
        quadrature_degree=record.get("quadrature_degree", 2),
    )


def _with_equation(parts: Mapping[str, Any], record: Mapping[str, Any], parameters: Uniform | Gaussian) -> Problem:
    """The problem of an equation whose programs are in the frame's record."""
    density = Density.from_record(record.get("equation"))
    if density.parameters != parameters.dimension:
        raise ValueError(f"the equation has {density.parameters} parameters, not {parameters.dimension}")
    made = RecordedProblem(
        mesh=None,
        coefficient=Equation.recorded(density),
        parameters=parameters,
        dirichlet={},
        name=str(record.get("problem")),
        options=dict(record.get("options", {})),
        quadrature_degree=record.get("quadrature_degree", 2),
    )
    if "boundary" in parts:
        object.__setattr__(made, "conditions", read_equation_conditions(parts["boundary"], _unknown))
    return made


def _read_parameters(given: Any) -> Uniform | Gaussian:
    if isinstance(given, Mapping) and given.get("kind") == "uniform":
        box = _mapping(given, "the parameters", ("kind", "lower", "upper"))
        ends = [box["lower"], box["upper"]]
        if not all(isinstance(end, list) for end in ends):
            raise ValueError("the box of the parameters does not consist of lists of numbers")
        return Uniform(*(tuple(_number(value, "a bound of the parameters") for value in end) for end in ends))
    normal = _mapping(given, "the parameters", ("kind", "dimension"))
    if normal["kind"] != "gaussian":
        raise ValueError(f"the parameters are of the kind {normal['kind']!r:.40}, which is unknown")
    return Gaussian(_whole(normal["dimension"], "the number of parameters"))


def _read_coefficient(given: Any, points: Floats, p: int) -> Coefficient:
    kind = given.get("kind") if isinstance(given, Mapping) else None
    if kind == "by-region":
        parts = _mapping(given, "the coefficient", ("kind", "parameter", "fixed"))
        parameter, fixed = (_mapping(parts[name], f"the coefficient's {name}") for name in ("parameter", "fixed"))
        return ByRegion(
            {_whole(tag, "a region tag"): _whole(index, "a parameter") for tag, index in parameter.items()},
            {_whole(tag, "a region tag"): _number(value, "a fixed value") for tag, value in fixed.items()},
        )
    if not isinstance(kind, str) or kind not in _TABULATED:
        raise ValueError(f"the coefficient is of the kind {kind!r:.40}, which is unknown")
    parts = _mapping(given, "the coefficient", ("kind", "mean", "modes"))
    mean = _table(parts["mean"], points.shape[:2], "mean")
    modes = _table(parts["modes"], (*points.shape[:2], p), "modes")
    return Tabulated(_TABULATED[kind](0.0, _unknown), points, mean, modes)


def _mapping(given: Any, what: str, keys: tuple[str, ...] | None = None) -> Mapping[Any, Any]:
    if not isinstance(given, Mapping) or (keys is not None and set(given) != set(keys)):
        raise ValueError(f"{what} is not described by {', '.join(keys) if keys else 'tags and numbers'}")
    return given


def _number(given: Any, what: str) -> float:
    if type(given) not in (int, float) or not math.isfinite(given):
        raise ValueError(f"{what} is {given!r:.40}; a finite number is expected")
    return float(given)


def _whole(given: Any, what: str) -> int:
    if type(given) is not int:
        raise ValueError(f"{what} is {given!r:.40}; a whole number is expected")
    return given


def _table(given: Any, shape: tuple[int, ...], what: str) -> Floats:
    if not isinstance(given, np.ndarray) or given.dtype != np.float64 or given.shape != shape:
        raise ValueError(f"the table {what} of the coefficient is not an array {shape} of float64")
    if not np.isfinite(given).all():
        raise ValueError(f"the table {what} of the coefficient has values that are not finite")
    return given


def _unknown(*_: Any) -> npt.NDArray:
    raise ValueError(_in_frame_only("boundary data"))


def _in_frame_only(what: str) -> str:
    give = either("--problem", "Surrogate.load(folder, problem=…)")
    return f"the {what} of a problem that was read with its surrogate serves only its frame: give the problem as {give}"
