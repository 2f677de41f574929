"""Shows running and finished cells and the remaining time: a table on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from training.experiments.cells import Cell, State


def expected_seconds(cells: Sequence[Cell], states: Mapping[str, State]) -> dict[str, float | None]:
    """The remaining seconds of each cell, from its own speed or that of the most similar cells; None if unknown.

    Most similar are cells with the same optimizer, precision, loss and net, then without the net, the loss, and so on.
    """
    speeds: dict[tuple[str, ...], list[float]] = {}
    for cell in cells:
        state = states[cell.name]
        if state.step > 0 and state.seconds > 0:
            for key in _likenesses(cell):
                speeds.setdefault(key, []).append(state.seconds / state.step)
    found: dict[str, float | None] = {}
    for cell in cells:
        state, left = states[cell.name], cell.resolved.total_steps - states[cell.name].step
        if state.complete:
            found[cell.name] = 0.0
        elif state.step > 0 and state.seconds > 0:
            found[cell.name] = left * state.seconds / state.step
        else:
            known = next((speeds[key] for key in _likenesses(cell) if key in speeds), None)
            found[cell.name] = left * sum(known) / len(known) if known else None
    return found


def _likenesses(cell: Cell) -> list[tuple[str, ...]]:
    c = cell.configuration
    whole = (str(c.levels), c.optimizer, c.precision, c.loss, c.net)
    return [whole[:n] for n in range(len(whole), -1, -1)]


def duration(seconds: float) -> str:
    """A readable duration: 45 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class Overview:
    """Shows the progress of an experiment on stderr."""

    EVERY = 60.0  # seconds between lines

    def __init__(self, cells: Sequence[Cell], workers: int, wanted: bool = True) -> None:
        self._cells, self._workers, self._wanted = cells, workers, wanted
        self._screen: Any = None
        self._failed: set[str] = set()
        self._told = time.monotonic()

    def __enter__(self) -> Self:
        if self._wanted and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._screen = Live(console=Console(stderr=True), refresh_per_second=2, transient=False)
            self._screen.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._screen is not None:
            self._screen.stop()
            self._screen = None

    def say(self, text: str) -> None:
        if self._screen is not None:
            self._screen.console.print(text, highlight=False)
        elif self._wanted:
            print(text, file=sys.stderr, flush=True)

    def ended(self, cell: Cell) -> None:
        """Reports that a cell is complete."""
        state = cell.state()
        how = "done" if state.status == "done" else "diverged"
        loss = "" if state.loss is None else f", test loss {state.loss:.3e}"
        self.say(f"{cell.name}: {how} at step {state.step} after {duration(state.seconds)}{loss}")

    def failed(self, name: str, reason: str) -> None:
        """Reports that a cell cannot run; the others continue."""
        self._failed.add(name)
        self.say(f"{name}: failed, {reason}")

    def update(self, working: Iterable[str]) -> None:
        """Refreshes the display; may be called often, and reads the cells only now and then."""
        now = time.monotonic()
        if not self._wanted or now - self._told < (1.0 if self._screen is not None else self.EVERY):
            return
        self._told = now
        states = {cell.name: cell.state() for cell in self._cells}
        left = expected_seconds(self._cells, states)
        summary = self._summary(states, left)
        if self._screen is None:
            at_work = "; ".join(self._line(c, states[c.name]) for c in self._cells if c.name in working)
            self.say(f"{summary}; at work: {at_work}" if at_work else summary)
        else:
            self._screen.update(self._table(working, states, left, summary))

    def _summary(self, states: Mapping[str, State], left: Mapping[str, float | None]) -> str:
        complete = sum(state.complete for state in states.values())
        rests = [seconds for name, seconds in left.items() if name not in self._failed]
        known = [seconds for seconds in rests if seconds is not None]
        unknown = len(rests) - len(known)
        time_left = max([sum(known) / self._workers, *known])  # each run occupies one worker
        rest = f"about {duration(time_left)} left" if time_left else "time left not known yet"
        more = f", not counting {unknown} cells unlike any so far" if unknown and time_left else ""
        failed = f", {len(self._failed)} failed" if self._failed else ""
        return f"{complete} of {len(states)} cells complete{failed}, {rest}{more}"

    @staticmethod
    def _line(cell: Cell, state: State) -> str:
        loss = "" if state.loss is None else f", loss {state.loss:.2e}"
        return f"{cell.name} {state.step} of {cell.resolved.total_steps}{loss}"

    def _table(
        self, working: Iterable[str], states: Mapping[str, State], left: Mapping[str, float | None], summary: str
    ) -> Any:
        from rich.table import Table

        table = Table(title=summary, title_justify="left", box=None, pad_edge=False)
        table.add_column("cell")
        for heading in ("step", "loss", "time", "left"):
            table.add_column(heading, justify="right")
        for cell in self._cells:
            if cell.name in working:
                state, rest = states[cell.name], left[cell.name]
                table.add_row(
                    cell.name,
                    f"{state.step} of {cell.resolved.total_steps}",
                    "" if state.loss is None else f"{state.loss:.3e}",
                    duration(state.seconds),
                    "" if rest is None else duration(rest),
                )
        return table
