"""`fem-frames train`: trains a surrogate, alone or under torchrun; its options are the fields of `Configuration`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from fem_frames.commands.shared import declare, options_of, show
from fem_frames.problem.loading import is_file
from training.configuration import Configuration
from training.recipes import RECIPES
from training.settings import declared

PREFIX = "setting_"
SHOWN = ("parameters", "steps", "seconds", "loss", "floor", "run")


def add(subparsers: Any) -> None:
    parser = declare(
        subparsers,
        "train",
        run,
        "Trains a surrogate for a problem. Settings come from the TOML file, if one is given, and from the options, "
        "which win. Ctrl-C saves and stops; --resume continues the run, also after a crash. Under `torchrun "
        "--nproc-per-node N --no-python fem-frames train …` N processes share every batch.",
    )
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG.toml", help="settings of the run")
    parser.add_argument("--preset", choices=RECIPES, help="settings that train best; settings given explicitly win")
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="folder of the run")
    parser.add_argument("--resume", action="store_true", help="continue the run in the folder")
    parser.add_argument("--force", action="store_true", help="replace an existing run in the folder")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    _declare_settings(parser)


def _declare_settings(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("settings", "as in CONFIG.toml, where names have _ instead of -")
    for name, kind, text, choices, _ in declared(Configuration).values():
        option, text = f"--{name.replace('_', '-')}", text.replace("%", "%%")
        common: dict[str, Any] = {"default": argparse.SUPPRESS, "dest": PREFIX + name, "help": text}
        if kind is dict:
            group.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help=text)
        elif kind is bool:
            group.add_argument(option, action=argparse.BooleanOptionalAction, **common)
        elif choices:
            group.add_argument(option, choices=choices, **common)
        else:
            metavar = {int: "N", float: "X"}.get(kind, "TEXT")
            group.add_argument(option, type=kind, metavar=metavar, **common)


def run(parsed: argparse.Namespace) -> None:
    from training.run.store import RESULT, check_same, read_record, saved_configuration
    from training.run.trainer import train

    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        if int(os.environ.get(name, "1")) > 1:
            raise ValueError("train is not for mpirun: use torchrun --nproc-per-node N --no-python fem-frames train …")
    if parsed.resume and parsed.force:
        raise ValueError("--resume continues a run, --force replaces it: give one of them")
    settings = Configuration.from_toml(parsed.config) if parsed.config is not None else {}
    where, written = str(parsed.config), settings.get("problem", "")
    given = {name.removeprefix(PREFIX): value for name, value in vars(parsed).items() if name.startswith(PREFIX)}
    if parsed.set:
        given["options"] = {**settings.get("options", {}), **options_of(parsed.set)}
    settings |= Configuration.checked(given)
    if parsed.preset is not None and not parsed.resume:  # a resumed run has its settings already
        settings = RECIPES[parsed.preset](settings)
    if parsed.resume:
        saved = saved_configuration(parsed.out).record()
        check_same(saved, settings, str(parsed.out))
        settings = saved | settings
        where, written = str(parsed.out), saved["problem"]
    if is_file(written) and "problem" not in given and read_record(parsed.out / RESULT) is None:
        raise ValueError(
            f"{where} names the problem {written}, and files do not choose code to run: give --problem {written} too"
        )
    configuration = Configuration(**settings)
    result = train(configuration, parsed.out, resume=parsed.resume, force=parsed.force, quiet=parsed.quiet)
    if os.environ.get("RANK", "0") == "0":
        more = {"stopped": result["stopped"]} if result["stopped"] else {}
        if not parsed.json and result["test"]:
            more = {"MRE": result["test"]["mre"], **more}
        show({name: result[name] for name in SHOWN if parsed.json or result[name] is not None} | more, parsed.json)
