"""Declares settings that pydantic checks, with one-line messages for wrong values."""

from __future__ import annotations

import difflib
import functools
import typing
from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
from pydantic import ConfigDict, Field, ValidationError

STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
LARGE = 2**31
_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a number",
    "bool_type": "true or false",
    "string_type": "a text",
    "dict_type": "a table",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
}
C = TypeVar("C", bound=type)

MULTIGRID = "multigrid"
"""The net that is a solver: it needs the problem, not only the sizes of the levels."""
OWN = "own"
"""Stands for a net, loss or optimizer that is given to `train` as an object."""
Count = Annotated[int, Field(ge=1, lt=LARGE)]
Size = Annotated[int, Field(ge=0, lt=LARGE)]
Positive = Annotated[float, Field(gt=0)]


def setting(default: Any, text: str, *, choices: Iterable[str] = (), own: bool = False, **options: Any) -> Any:
    """A field with its help text and choices; `own` also allows OWN, which the command line does not offer.

    If the default is a type, it is called.
    """
    given = {"default_factory": default} if isinstance(default, type) else {"default": default}
    extra: Any = {"choices": list(choices), "own": own}
    return Field(**given, description=text, json_schema_extra=extra, **options)


class Setting(NamedTuple):
    """A setting as the command line offers it."""

    name: str
    kind: type
    text: str
    choices: list[str]
    own: bool

    def chosen(self, value: Any) -> Any:
        """The value; raises a ValueError if it is not one of the choices."""
        if not self.choices or value is None or value in self.choices or (self.own and value == OWN):
            return value
        raise ValueError(f"{self.name} is {value!r}; choose from {', '.join(self.choices)}")


@functools.cache
def declared(cls: Any) -> dict[str, Setting]:
    """The settings that a class declares, by name."""
    found = {}
    for name, field in cls.__pydantic_fields__.items():
        parts = typing.get_args(field.annotation) if type(None) in typing.get_args(field.annotation) else ()
        (kind,) = [part for part in parts if part is not type(None)] or [field.annotation]
        kind = getattr(kind, "__origin__", kind)  # of Annotated and of dict[str, Any]
        found[name] = Setting(name, kind, field.description, **field.json_schema_extra)
    return found


def one_line_errors(cls: C) -> C:
    """The class with a constructor that reports errors in one line instead of pydantic's many."""
    construct = cls.__init__  # type: ignore[misc]

    @functools.wraps(construct)
    def checked(self: Any, **settings: Any) -> None:
        try:
            construct(self, **{n: v.item() if isinstance(v, np.generic) else v for n, v in settings.items()})
        except ValidationError as error:
            raise ValueError(_said(error, list(cls.__pydantic_fields__))) from None  # type: ignore[attr-defined]

    cls.__init__ = checked  # type: ignore[misc]
    return cls


def _said(error: ValidationError, known: list[str]) -> str:
    """The message for the first error: the setting, its value and the expected kind of value."""
    first = error.errors(include_url=False)[0]
    name, kind, context = ".".join(map(str, first["loc"])).removesuffix(".[key]"), first["type"], first.get("ctx", {})
    if kind == "unexpected_keyword_argument":
        close = difflib.get_close_matches(name, known, 1)
        return f"unknown setting {name!r}" + (f"; do you mean {close[0]}?" if close else "")
    if kind == "value_error":  # from the validators of Configuration, which give the whole message
        return str(context["error"])
    expected = first["msg"]
    if kind in _EXPECTED:
        bounds = {bound: "2^31" if value == LARGE else f"{value:g}" for bound, value in context.items()}
        expected = f"{_EXPECTED[kind].format(**bounds)} is expected"
    return f"{name} is {first['input']!r}; {expected}"
