"""The progress bar for commands and runs on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


def terminal_bar(before: str = "", after: str = "", width: int = 40) -> Progress:
    """A bar on stderr with the number of steps, elapsed and remaining time, and optional rich texts around the bar."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns: list[ProgressColumn] = [TextColumn(before)] if before else []
    columns += [BarColumn(bar_width=width), MofNCompleteColumn()]
    columns += [TextColumn(after)] if after else []
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True))
