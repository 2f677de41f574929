"""Requests of the protocol UM-Bridge 1.0: bodies in JSON to checked questions, or an error of the protocol.

p parameters, n entries of an output vector.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

from fem_frames.files import one_line

NAME = "forward"  # of the one model
EVALUATE, GRADIENT, JACOBIAN, HESSIAN = "Evaluate", "Gradient", "ApplyJacobian", "ApplyHessian"
SUPPORT = {EVALUATE: True, GRADIENT: True, JACOBIAN: True, HESSIAN: False}
INVALID, NOT_FOUND, UNSUPPORTED = "InvalidInput", "ModelNotFound", "UnsupportedFeature"
SHOWN = 80  # characters of a wrong value in a message


class RequestError(Exception):
    """An error of the protocol: its type, its message and the status of the HTTP reply."""

    def __init__(self, message: str, kind: str = INVALID, status: int = 400) -> None:
        super().__init__(message)
        self.kind, self.status = kind, status

    @property
    def record(self) -> dict[str, Any]:
        """The JSON of the reply."""
        return {"error": {"type": self.kind, "message": str(self)}}


@dataclass(frozen=True)
class Settings:
    """The configuration of a request. Requests are answered together if theirs are equal."""

    tol: float | None = None
    """Improve the answer until its bound in the energy norm is below this."""
    bound: bool = False
    """One more output vector: bounds for the errors."""
    adjoint: bool = False
    """Correct the outputs by adjoint solves."""

    @property
    def bounded(self) -> bool:
        """Whether there are bounds in the reply."""
        return self.bound or self.adjoint or self.tol is not None

    def __str__(self) -> str:
        return json.dumps({f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default})


@dataclass(frozen=True, eq=False)
class Question:
    """A checked request for values or derivatives."""

    kind: str
    settings: Settings
    y: tuple[float, ...]  # (p,)
    output: int = 0  # which output vector is differentiated
    vector: tuple[float, ...] = ()  # (n,) of Gradient, (p,) of ApplyJacobian

    @property
    def key(self) -> tuple[Any, ...]:
        """Questions with equal keys are answered together."""
        return self.kind, self.settings, self.output


class Model(Protocol):
    """What requests are checked against."""

    parameters: int

    def sizes(self, settings: Settings, kind: str = EVALUATE) -> tuple[int, ...]:
        """Lengths of the output vectors; raises a ValueError if there is no answer of this kind with these settings."""

    def check(self, y: Sequence[float]) -> None:
        """Raises a ValueError if y is outside of the parameters."""


def read_body(body: bytes) -> dict[str, Any]:
    """The JSON object of a request that names the model."""
    try:
        found = json.loads(body, parse_constant=_refuse)
    except RecursionError:
        raise RequestError("the body is nested too deeply; a JSON object is expected") from None
    except ValueError as error:  # UnicodeDecodeError too
        raise RequestError(f"the body is no JSON: {error}; a JSON object is expected") from None
    if not isinstance(found, dict):
        raise RequestError(f"the body is {_shown(found)}; a JSON object is expected")
    if found.get("name") != NAME:
        what = f"there is no model {_shown(found['name'])}" if "name" in found else "the key name is missing"
        raise RequestError(f"{what}; the model is called {NAME!r}", NOT_FOUND if "name" in found else INVALID)
    return found


def read_settings(body: Mapping[str, Any]) -> Settings:
    """The settings under the key config; without it, or with null, all defaults."""
    given = body.get("config")
    if given is None:
        return Settings()
    if not isinstance(given, dict):
        raise RequestError(f"config is {_shown(given)}; a JSON object is expected")
    known = [f.name for f in fields(Settings)]
    for key in given:
        if key not in known:
            raise RequestError(f"config has the unknown key {_shown(key)}; the known ones are {', '.join(known)}")
    for key in ("bound", "adjoint"):
        if not isinstance(given.get(key, False), bool):
            raise RequestError(f"{key} in config is {_shown(given[key])}; true or false is expected")
    tol = None
    if given.get("tol") is not None:
        tol = _number(given["tol"], "tol in config")
        if tol <= 0:
            raise RequestError(f"tol in config is {tol:g}; a positive bound for the error is expected")
    settings = Settings(tol, given.get("bound", False), given.get("adjoint", False))
    if settings.bounded and given.get("bound") is False:
        raise RequestError("answers with tol or adjoint come with bounds: leave out bound in config")
    return settings


def read_sizes(body: Mapping[str, Any], model: Model, kind: str = EVALUATE) -> tuple[Settings, tuple[int, ...]]:
    """The settings of a request, and the lengths of the output vectors with them."""
    settings = read_settings(body)
    try:
        return settings, model.sizes(settings, kind)
    except ValueError as error:
        raise RequestError(str(error)) from None


def read_question(kind: str, body: Mapping[str, Any], model: Model) -> Question:
    """The question in the body of a request for values or derivatives."""
    settings, sizes = read_sizes(body, model, kind)
    given = _key(body, "input")
    if not isinstance(given, list) or len(given) != 1:
        what = f"{len(given)} vectors" if isinstance(given, list) else _shown(given)
        raise RequestError(f"input is {what}; a list with one vector of {model.parameters} parameters is expected")
    y = _vector(given[0], "the vector in input", model.parameters)
    try:
        model.check(y)
    except ValueError as error:
        raise RequestError(of_one_sample(error)) from None
    if kind == EVALUATE:
        return Question(kind, settings, y)
    _index(body, "inWrt", 1)
    output = _index(body, "outWrt", len(sizes))
    if settings.bounded and output == len(sizes) - 1:
        raise RequestError(f"outWrt is {output}, the vector of bounds, which has no derivatives: choose another vector")
    if kind == GRADIENT:
        return Question(kind, settings, y, output, _vector(_key(body, "sens"), "sens", sizes[output]))
    return Question(kind, settings, y, output, _vector(_key(body, "vec"), "vec", model.parameters))


def of_one_sample(error: Exception) -> str:
    """The message of an error about a batch of one sample, as the caller sees no batch."""
    return one_line(error).replace(" of sample 0", "")


def _key(body: Mapping[str, Any], name: str) -> Any:
    if name not in body:
        raise RequestError(f"the key {name} is missing; the body has {', '.join(map(_shown, body))}")
    return body[name]


def _index(body: Mapping[str, Any], name: str, count: int) -> int:
    given = _key(body, name)
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < count:
        raise RequestError(f"{name} is {_shown(given)}; a whole number from 0 to {count - 1} is expected")
    return given


def _vector(given: Any, what: str, length: int) -> tuple[float, ...]:
    if not isinstance(given, list):
        raise RequestError(f"{what} is {_shown(given)}; a list of {length} numbers is expected")
    if len(given) != length:
        raise RequestError(f"{what} has {len(given)} entries; {length} are expected")
    return tuple(_number(value, f"entry {i} of {what}") for i, value in enumerate(given))


def _number(given: Any, what: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise RequestError(f"{what} is {_shown(given)}; a number is expected")
    try:
        value = float(given)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise RequestError(f"{what} is too large: a number that float64 can hold is expected")
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON")


def _shown(value: Any) -> str:
    """A value as text for messages, cut if it is long."""
    text = repr(value) if not isinstance(value, dict | list) else f"a {type(value).__name__} of {len(value)} entries"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
