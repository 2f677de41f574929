"""The command line of `fem-frames` with all subcommands. Imports neither torch nor DOLFINx, so help is quick."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NoReturn

from fem_frames import __version__
from fem_frames.commands import (
    bench,
    compare,
    condition,
    evaluate,
    export,
    export_net,
    info,
    iterations,
    learn_outputs,
    outputs,
    plot,
    problems,
    quadrature,
    query,
    reference,
    report,
    rounding,
    scale,
    serve,
    tables,
    train,
)

COMMANDS = (
    *(info, problems, export, reference, condition, iterations, rounding, quadrature, bench),
    *(train, evaluate, query, outputs, learn_outputs, serve, plot, export_net, tables, compare, scale, report),
)


class _Parser(argparse.ArgumentParser):
    """Reports errors in one line instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())}; {self.prog} --help says more\n")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Like argparse, but refuses `--option=--`, of which it would make an empty list."""
        if arg_strings == ["--"] and action.option_strings and action.nargs is None:
            raise argparse.ArgumentError(action, "its value is --: give another one")
        return super()._get_values(action, arg_strings)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Like argparse, but without hiding errors: help that cannot be written is not a success."""
        if message:
            (file or sys.stderr).write(message)


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="fem-frames",
        description="Neural surrogates for parametric PDEs on FEniCSx, preconditioned and stable by multilevel frames.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"fem-frames {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(subparsers)
    return parser


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments by name, with the subcommand's function as `run` and PETSc's words as `petsc_arguments`."""
    words = list(sys.argv[1:] if arguments is None else map(str, arguments))
    parsed, rest = make_parser().parse_known_args(words)
    for before, word in pairwise(words):
        if not word and before.startswith("--"):  # an empty path would be the working directory
            parsed.parser.error(f"{before} is empty: give a value, or leave it out")
    strangers = [word for word in rest if word.startswith("--")] if parsed.takes_petsc_options else rest
    if strangers or (rest and not rest[0].startswith("-")):
        parsed.parser.error(f"unknown argument {(strangers or rest)[0]}")
    parsed.petsc_arguments = rest
    return parsed
