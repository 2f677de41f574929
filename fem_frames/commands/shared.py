"""What subcommands have in common: declaring them, the problem's options, output, progress."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from fem_frames.arrays import FORMULATIONS
from fem_frames.problem import REFINEMENTS, Problem
from fem_frames.problems import PROBLEMS, make_problem


def declare(
    subparsers: Any,
    name: str,
    run: Callable[[argparse.Namespace], None],
    text: str,
    *,
    takes_petsc_options: bool = False,
) -> argparse.ArgumentParser:
    """A subcommand with --json, described by its text."""
    parser = subparsers.add_parser(name, help=text.split(". ")[0].rstrip("."), description=text, allow_abbrev=False)
    parser.set_defaults(run=run, parser=parser, takes_petsc_options=takes_petsc_options)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return parser


def declare_problem(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--problem", required=True, help=f"{', '.join(PROBLEMS)}, or a file.py:name that defines one of your own"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help="an option of the problem, as `problems` lists them",
    )
    parser.add_argument("--levels", type=int, required=True, metavar="J", help="number of uniform refinements")
    parser.add_argument(
        "--refinement",
        choices=REFINEMENTS,
        help="of triangles: into similar ones, or by DOLFINx's rule; default: the problem's",
    )
    parser.add_argument("--formulation", choices=FORMULATIONS, default="energy", help="default: %(default)s")


def problem_of(parsed: argparse.Namespace) -> Problem:
    options = {}
    for setting in parsed.set:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"--set {setting} is not of the form OPTION=VALUE")
        try:
            options[name] = json.loads(text)
        except ValueError:
            options[name] = text
    problem = make_problem(parsed.problem, **options)
    return problem if parsed.refinement is None else replace(problem, refinement=parsed.refinement)


def show(record: Mapping[str, Any], as_json: bool) -> None:
    """The result of a command: JSON for scripts, aligned lines for people."""
    if as_json:
        print(json.dumps(record))
        return
    width = max(len(key) for key in record)
    for key, value in record.items():
        text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
        print(f"{key.replace('_', ' '):{width}}  {text}")


@contextlib.contextmanager
def progress_bar(text: str, wanted: bool) -> Iterator[Callable[[int, int], None]]:
    """A function of (done, all): a bar on a terminal, elsewhere a line now and then; nothing unless wanted."""
    if not wanted:
        yield lambda done, count: None
        return
    if not sys.stderr.isatty():
        yield _lines(text)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn(text), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, count: bar.update(task, completed=done, total=count)


def _lines(text: str, seconds: float = 10.0) -> Callable[[int, int], None]:
    said, last = [-seconds], [-1]

    def line(done: int, count: int) -> None:
        if done != last[0] and (done == count or time.monotonic() - said[0] >= seconds):
            said[0], last[0] = time.monotonic(), done
            print(f"{text}: {done} of {count}", file=sys.stderr, flush=True)

    return line
