"""Runs commands that write one result each, several at a time, each as a process with its own log.

A job whose result is there is skipped, and a failed one does not stop the others: the same call again does the rest.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from training.run.signals import StopSignals
from training.run.store import cores

POLL = 0.2  # seconds


@dataclass(frozen=True)
class Job:
    """A command of fem-frames that writes `result` as a whole when it ends well."""

    name: str
    arguments: Sequence[str]
    result: Path
    output: Path
    """The file with the messages of the process."""
    again: bool = False
    """Whether it also runs if the result is there."""

    @property
    def done(self) -> bool:
        return self.result.is_file()


def run_jobs(jobs: Sequence[Job], workers: int, say: Callable[[str], None]) -> dict[str, str]:
    """Runs the jobs whose results are missing, in their order; the last messages of those that failed, by name.

    On Ctrl-C and SIGTERM the running ones are told to end.
    """
    waiting = [job for job in jobs if job.again or not job.done]
    total, working, failed = len(waiting), dict[subprocess.Popen[bytes], tuple[Job, int, float]](), dict[str, str]()
    stopping: list[bool] = []
    with StopSignals(lambda: stopping.append(True)):
        try:
            while working or (waiting and not stopping):
                while waiting and len(working) < workers and not stopping:
                    job = waiting.pop(0)
                    process, said = start(job.arguments, job.output, workers)
                    working[process] = job, said, time.monotonic()
                time.sleep(POLL)
                for process in [process for process in working if process.poll() is not None]:
                    job, said, begin = working.pop(process)
                    took, count = time.monotonic() - begin, total - len(waiting) - len(working)
                    if job.done and process.returncode == 0:
                        say(f"{job.name}: done in {took:.0f} s, {count} of {total}")
                    elif not stopping:
                        failed[job.name] = failure(process.returncode, job.output, said)
                        say(f"{job.name}: failed, {failed[job.name]}")
                if stopping:
                    break
        finally:
            for process in working:
                process.send_signal(signal.SIGINT)
            for process in working:
                process.wait()
    if stopping:
        raise KeyboardInterrupt("interrupted; finished cells are kept, the same command does the others")
    return failed


def start(arguments: Sequence[str], output: Path, workers: int) -> tuple[subprocess.Popen[bytes], int]:
    """A process of fem-frames that appends its messages to the file, and the size of the file before it began."""
    # -P: installed modules take precedence over those in the folder where the work was started.
    command = [sys.executable, "-P", "-m", "fem_frames.commands", *arguments]
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, cores() // workers))
    with output.open("ab") as messages:
        said = messages.tell()
        # Its own session, so that Ctrl-C reaches the process only through this one, not also from the terminal.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=messages,
            stderr=messages,
            env={**os.environ, "OMP_NUM_THREADS": threads},
            start_new_session=True,
        )
    return process, said


def failure(code: int, output: Path, said: int) -> str:
    """Why a process failed: its last message in the file after `said` bytes, or the signal that ended it."""
    if code < 0:
        hint = "; was there enough memory?" if code == -signal.SIGKILL else ""
        return f"killed by {signal.Signals(-code).name}{hint} (see {output})"
    with output.open("rb") as file:
        file.seek(said)
        lines = file.read().decode(errors="replace").splitlines()
    told = [line.removeprefix("fem-frames: ") for line in lines if line.startswith("fem-frames: ")]
    return f"{told[-1] if told else f'exit code {code}'} (see {output})"
