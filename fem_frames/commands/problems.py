"""`fem-frames problems`: the built-in problems and their options, or what one problem consists of."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fem_frames.commands.shared import declare, declare_force, options_of, plain
from fem_frames.problem.catalogue import PROBLEMS
from fem_frames.problem.loading import make_problem

if TYPE_CHECKING:
    from fem_frames.studies.overview import ProblemOverview


def add(subparsers: Any) -> None:
    parser = declare(
        subparsers,
        "problems",
        run,
        "Lists the built-in problems, their parameters and options; with a PROBLEM, shows what that one consists of. "
        "That is mesh, regions, boundary groups with their conditions, parameters, and warnings, before anything is "
        "solved.",
    )
    parser.add_argument("problem", nargs="?", metavar="PROBLEM", help="a built-in one, or file.py:name of your own")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="an option of the problem")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw mesh, regions and boundary groups")
    declare_force(parser)


def run(parsed: argparse.Namespace) -> None:
    if parsed.problem is None:
        if parsed.set or parsed.picture:
            raise ValueError("--set and --picture need the name of a PROBLEM: fem-frames problems mine.py")
        _list(parsed.json)
        return
    from fem_frames.studies.plots import check_plot

    check_plot(parsed.picture, parsed.force)
    found = make_problem(parsed.problem, **options_of(parsed.set)).show(parsed.picture)
    if parsed.json:
        picture = {} if parsed.picture is None else {"picture": str(parsed.picture)}
        print(json.dumps(plain({**found.record(), **picture}), allow_nan=False))
        return
    if sys.stdout.isatty():
        _print_tables(found)
    else:
        print(found)
    if parsed.picture is not None:
        print(f"\npicture: {parsed.picture}")


def _list(as_json: bool) -> None:
    rows: list[dict[str, Any]] = []
    for name, make in PROBLEMS.items():
        options = {key: parameter.default for key, parameter in inspect.signature(make).parameters.items()}
        text = (make.__doc__ or "").split("\n")[0]
        rows.append({"name": name, "text": text, "parameters": str(make().parameters), "options": options})
    if as_json:
        print(json.dumps({"problems": rows}))
        return
    for row in rows:
        settings = " ".join(f"{key}={value}" for key, value in row["options"].items())
        print(f"{row['name']}\n    {row['text']}\n    y in {row['parameters']}; --set {settings}")


def _print_tables(found: ProblemOverview) -> None:
    """The same as `str(found)`, with the means of a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    for line in found.head():
        console.print(Text(line))
    for heading, rows in found.tables():
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in heading:
            table.add_column(Text(column))
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        console.print()
        console.print(table)
    for warning in found.warnings:
        console.print(Text(f"warning: {warning}", style="yellow"))
