"""The options that name outputs, and the rows that show them: shared by `outputs`, `query`, `evaluate` and others."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fem_frames.commands.shared import numbers_of

COLUMNS = {"sample": "d", "output": ">22s", "value": ".8g", "error_bound": ".2e"}


def declare_outputs(parser: argparse.ArgumentParser, *, adjoint: bool = True) -> None:
    """Declares the options that name outputs; with `adjoint` also the one that corrects them."""
    group = parser.add_argument_group("outputs", "numbers that are wanted of u; of a vector one per component")
    group.add_argument("--point", action="append", default=[], metavar="X1,X2", help="the value of u at a point")
    group.add_argument("--mean", action="append", default=[], metavar="REGION", help="the mean of u; all: everywhere")
    group.add_argument(
        "--through", action="append", default=[], metavar="GROUP", help="the flux through a boundary group; all: all"
    )
    group.add_argument(
        "--field",
        metavar="NAME",
        help="the field of --point, --mean and --through; default: u, or the first",
    )
    group.add_argument(
        "--functional",
        action="append",
        default=[],
        metavar="FILE.py:NAME",
        help="a function of the fields, y, x, dx and ds that returns a UFL form",
    )
    if adjoint:
        group.add_argument(
            "--adjoint", action="store_true", help="correct the outputs by adjoint solves, which sharpens the bounds"
        )


def outputs_of(parsed: argparse.Namespace) -> list[Any]:
    """The outputs that the options name."""
    from fem_frames.outputs import BoundaryFlux, PointValues, RegionMean

    found: list[Any] = []
    field = {} if parsed.field is None else {"field": parsed.field}
    if parsed.point:
        points = [numbers_of(text, "--point") for text in parsed.point]
        if len({len(point) for point in points}) > 1:
            raise ValueError(f"--point {parsed.point[0]}: all points need equally many coordinates")
        found.append(PointValues(points, **field))
    found += [RegionMean(None if name == "all" else _group(name), **field) for name in parsed.mean]
    found += [BoundaryFlux(_group(name), **field) for name in parsed.through]
    if field and not found:
        raise ValueError("--field is that of outputs: name some by --point, --mean or --through")
    found += [_functional(text) for text in parsed.functional]
    if getattr(parsed, "adjoint", False) and not found:
        raise ValueError("--adjoint corrects outputs: name some by --point, --mean, --through or --functional")
    return found


def _functional(text: str) -> Any:
    """The functional of a function in a file; a Functional is taken as it is."""
    from fem_frames.functionals import Functional
    from fem_frames.problem.loading import load_object

    file, _, name = text.rpartition(":")
    if not file.endswith(".py") or not name:
        raise ValueError(f"--functional {text}: FILE.py:NAME is expected, as mine.py:deflection")
    found = load_object(Path(file), name, "a functional")
    return found if isinstance(found, Functional) else Functional(found, name)


def _group(text: str) -> int | str:
    """A tag or a name."""
    return int(text) if text.lstrip("-").isdigit() else text


def output_rows(found: Any, sample: int) -> Iterator[dict[str, Any]]:
    """Label, value and bound of each output of one sample; the bound is None where there is none."""
    for k, label in enumerate(found.labels):
        bound = float(found.error_bound[sample, k]) if found.has_bound[k] else None
        yield {"output": label, "value": float(found.values[sample, k]), "error_bound": bound}


def all_rows(found: Any) -> Iterator[dict[str, Any]]:
    """The rows of all samples, with their numbers."""
    for i in range(len(found.values)):
        yield from ({"sample": i, **row} for row in output_rows(found, i))
