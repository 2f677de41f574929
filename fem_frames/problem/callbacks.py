"""Reports errors in functions that users wrote, with their place, in one line."""

from __future__ import annotations

import contextlib
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from fem_frames.files import one_line

T = TypeVar("T")
Advice = str | Callable[[BaseException], str]
_PACKAGES = Path(__file__).parents[2]
_OURS = (*(_PACKAGES / name for name in ("fem_frames", "nets", "training")), Path(sysconfig.get_path("stdlib")))


def called(what: str, function: Any, advice: Advice, make: Callable[..., T], *arguments: Any) -> T:
    """make(*arguments) with the errors of `calling`, which is a context manager that torch.compile cannot trace."""
    try:
        return make(*arguments)
    except (Exception, SystemExit) as error:
        raise _complaint(what, function, advice, error) from error


@contextlib.contextmanager
def calling(what: str, function: Any = None, advice: Advice = "") -> Iterator[None]:
    """Turns any error of a user's function into a ValueError that names file, line and function.

    The advice is a text, or a function of the error.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        raise _complaint(what, function, advice, error) from error


def _complaint(what: str, function: Any, advice: Advice, error: BaseException) -> ValueError:
    where = _place(error)
    if where is None and isinstance(error, ValueError):
        return ValueError(*error.args)  # raised by this package, so its message suffices
    where = where or _definition(function)
    text = f"{what} fails{where}: {type(error).__name__}: {one_line(error)}"
    told = advice(error) if callable(advice) else advice
    return ValueError(f"{text}; {told}" if told else text)


def is_ours(error: BaseException) -> bool:
    """Whether this package raised the error itself, so that its message suffices."""
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, ValueError) and any(folder in Path(frames[-1].filename).parents for folder in _OURS[:3])


def _place(error: BaseException) -> str | None:
    """The place of the innermost traceback frame that belongs neither to this package nor to an installed one."""
    own = [f for f in traceback.extract_tb(error.__traceback__) if _is_users(f)]
    if not own:
        return None
    return f" in {own[-1].filename}, line {own[-1].lineno}, in {own[-1].name}"


def _definition(function: Any) -> str:
    """The place where a function is defined that could not even be called."""
    code = getattr(function, "__code__", None)
    return f" in {code.co_filename}, line {code.co_firstlineno}, in {code.co_name}" if code is not None else ""


def _is_users(frame: traceback.FrameSummary) -> bool:
    path = Path(frame.filename)
    if not path.is_absolute():  # <stdin> belongs to the user, the __init__ of a dataclass does not
        return not path.name.startswith("<frozen") and not frame.name.startswith("__")
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return not installed and not any(folder in path.parents for folder in _OURS)
