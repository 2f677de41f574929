"""Progress of a run: always a JSONL log, TensorBoard on request, a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fem_frames.files import check_file, written_whole
from fem_frames.messages import option
from fem_frames.progress import terminal_bar
from training.metrics import Metrics

LOG = "log.jsonl"


def read_log(path: str | Path) -> list[dict[str, Any]]:
    """The records of a log; skips invalid lines, such as a truncated last one."""
    found = []
    for line in check_file(path).read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            found.append(json.loads(line))
    return [record for record in found if is_record(record)]


def is_record(record: Any) -> bool:
    """Whether `RunLog` could have written it: a step, with a loss or with the metrics of a test."""
    if not isinstance(record, dict) or type(record.get("step")) is not int:
        return False
    numbers = [record.get(name) for name in ("loss", "rate", "seconds")]
    test = record.get("test")
    if test is not None:
        if not isinstance(test, dict) or not {"loss", "floor"} <= set(test):
            return False
        numbers += test.values()
    return all(isinstance(number, float | int | None) for number in numbers)


class RunLog:
    """The log of one run from `first_step` on; drops later records, which a killed run left."""

    def __init__(self, folder: Path, first_step: int, tensorboard: bool) -> None:
        self._path = folder / LOG
        if self._path.exists():
            kept = [r for r in read_log(self._path) if r.get("step", 0) <= first_step] if first_step else []
            with written_whole(self._path) as file:
                file.write("".join(json.dumps(r) + "\n" for r in kept).encode())
        self._file = self._path.open("a")
        self._events = _event_writer(folder, first_step) if tensorboard else None

    def step(self, step: int, loss: float, rate: float, seconds: float, **more: Any) -> None:
        finite = loss if math.isfinite(loss) else None  # JSON has only finite numbers
        self._write({"step": step, "loss": finite, "rate": rate, "seconds": round(seconds, 3), **more})
        if self._events is not None:
            self._events.add_scalar("training/loss", loss, step)
            self._events.add_scalar("training/rate", rate, step)

    def test(self, step: int, metrics: Metrics, seconds: float) -> None:
        self._write({"step": step, "seconds": round(seconds, 3), "test": metrics.record()})
        if self._events is not None:
            for name in ("mre", "mse", "loss", "ratio"):
                self._events.add_scalar(f"test/{name}", getattr(metrics, name), step)

    def _write(self, record: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        except OSError as error:
            raise ValueError(f"cannot write {self._path}: {error.strerror or error}; is there room?") from error

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        if self._events is not None:
            self._events.close()


def _event_writer(folder: Path, first_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ValueError(
            f"tensorboard is not installed: pip install tensorboard, or leave out {option('tensorboard')}"
        ) from error
    return SummaryWriter(str(folder / "tensorboard"), purge_step=first_step + 1 if first_step else None)


class Display:
    """Shows progress on stderr."""

    def update(self, step: int, loss: float, rate: float) -> None:
        """Shows the current step."""

    def say(self, text: str) -> None:
        """Prints a line that stays."""
        print(text, file=sys.stderr, flush=True)


class SilentDisplay(Display):
    def say(self, text: str) -> None:
        pass


class LineDisplay(Display):
    """Prints a line every ten seconds."""

    def __init__(self, first: int, total: int) -> None:
        self._total, self._first = total, first
        self._start = self._said = time.monotonic()

    def update(self, step: int, loss: float, rate: float) -> None:
        now = time.monotonic()
        if now - self._said >= 10 and step > self._first:
            self._said = now
            speed = (step - self._first) / (now - self._start)
            left = (self._total - step) / speed
            done = f"step {step} of {self._total}  loss {loss:.3e}  rate {rate:.1e}"
            self.say(f"{done}  {speed:.1f} steps/s  {left:.0f} s left")


class BarDisplay(Display):
    """A bar with loss, rate, steps per second and time left."""

    def __init__(self, bar: Any, task: Any, first: int, total: int) -> None:
        self._bar, self._task, self._first = bar, task, first
        self._start = self._said = time.monotonic()

    def update(self, step: int, loss: float, rate: float) -> None:
        now = time.monotonic()
        if now - self._said < 0.1:
            return
        self._said = now
        speed = (step - self._first) / max(now - self._start, 1e-9)
        self._bar.update(self._task, completed=step, loss=f"{loss:.3e}", rate=f"{rate:.1e}", speed=f"{speed:.1f}")

    def say(self, text: str) -> None:
        self._bar.console.print(text, highlight=False)


@contextlib.contextmanager
def display(first: int, total: int, wanted: bool) -> Iterator[Display]:
    """The display that suits stderr: a bar on a terminal, otherwise lines."""
    if not wanted:
        yield SilentDisplay()
        return
    if not sys.stderr.isatty():
        yield LineDisplay(first, total)
        return
    after = "loss {task.fields[loss]}  rate {task.fields[rate]}  {task.fields[speed]} steps/s"
    with terminal_bar(after=after, width=24) as bar:
        task = bar.add_task("", total=total, completed=first, loss="-", rate="-", speed="-")
        yield BarDisplay(bar, task, first, total)
