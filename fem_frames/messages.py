"""Messages in the language of the caller: options on the command line, arguments in Python.

The command line imports this before anything else, so it imports next to nothing itself.
"""

from __future__ import annotations

from contextvars import ContextVar

_COMMAND = ContextVar("command", default=False)


class on_command_line:  # noqa: N801  a context, entered like a function
    """Inside, remedies are options of `fem-frames`."""

    def __enter__(self) -> None:
        self._token = _COMMAND.set(True)

    def __exit__(self, *error: object) -> None:
        _COMMAND.reset(self._token)


def option(name: str, value: object = True) -> str:
    """`--resume` or `resume=True`; `--out FOLDER` or `out='FOLDER'`."""
    if _COMMAND.get():
        flag = f"--{name.replace('_', '-')}"
        return flag if value is True else f"{flag} {value}"
    return f"{name}={value!r}"


def either(command: str, python: str) -> str:
    """The one for the command line, the other for Python."""
    return command if _COMMAND.get() else python
