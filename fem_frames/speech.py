"""Messages in the language of the caller: options on the command line, arguments in Python."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

_COMMAND = ContextVar("command", default=False)


@contextlib.contextmanager
def on_command_line() -> Iterator[None]:
    """Inside, remedies are options of `fem-frames`."""
    token = _COMMAND.set(True)
    try:
        yield
    finally:
        _COMMAND.reset(token)


def option(name: str, value: Any = True) -> str:
    """`--resume` or `resume=True`; `--out FOLDER` or `out='FOLDER'`."""
    if _COMMAND.get():
        flag = f"--{name.replace('_', '-')}"
        return flag if value is True else f"{flag} {value}"
    return f"{name}={value!r}"


def either(command: str, python: str) -> str:
    """The one for the command line, the other for Python."""
    return command if _COMMAND.get() else python
