"""Messages in the language of the caller: options on the command line, arguments in Python.

The command line imports this module first, so it imports almost nothing itself.
"""

from __future__ import annotations

from contextvars import ContextVar

_COMMAND = ContextVar("command", default=False)


class on_command_line:  # noqa: N801  a context manager that is used like a function
    """Inside this context, messages name options of `fem-frames` instead of arguments."""

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
    """The first text on the command line, the second in Python."""
    return command if _COMMAND.get() else python
