"""`fem-frames outputs`: numbers that a solution is asked for, with bounds for their errors."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fem_frames.commands.query import given_samples
from fem_frames.commands.shared import (
    declare,
    declare_run,
    declare_samples,
    load_run,
    parameters_of,
    progress_bar,
    show_rows,
)

COLUMNS = {"sample": "d", "output": "s", "value": ".8g", "error_bound": ".2e"}
CHECKED = {"bound": "s", "violations": "d", "least": ".3g", "median": ".3g", "most": ".3g", "quantity": "s"}


def add(subparsers: Any) -> None:
    parser = declare(
        subparsers,
        "outputs",
        run,
        "Values at points, means over regions and fluxes through parts of the boundary, each with a bound for its "
        "error against the discrete solution. Without outputs: the regions and boundary groups that there are. With "
        "--check: bounds divided by true errors.",
    )
    declare_run(parser)
    parser.add_argument("--y", action="append", default=[], metavar="Y1,Y2,…", help="parameters; may be repeated")
    parser.add_argument("--y-file", type=Path, metavar="FILE", help="samples from a .npy or .csv file")
    declare_samples(parser, 0, "random samples of y instead")
    declare_outputs(parser)
    parser.add_argument(
        "--adjoint", action="store_true", help="correct the outputs by adjoint solves, which sharpens the bounds"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="solve for the samples by PETSc too; show violations of the bounds (there must be none) and the least, "
        "median and largest bound divided by its error, for u and all outputs, with and without adjoint solves",
    )


def declare_outputs(parser: argparse.ArgumentParser) -> None:
    """Declares the options that name outputs."""
    parser.add_argument("--point", action="append", default=[], metavar="X1,X2", help="the value of u at a point")
    parser.add_argument("--mean", action="append", default=[], metavar="REGION", help="the mean of u; all: everywhere")
    parser.add_argument(
        "--through", action="append", default=[], metavar="GROUP", help="the flux through a boundary group; all: all"
    )


def outputs_of(parsed: argparse.Namespace) -> list[Any]:
    """The outputs that the options name."""
    from fem_frames.outputs import BoundaryFlux, PointValues, RegionMean

    found: list[Any] = []
    if parsed.point:
        found.append(PointValues([parameters_of(text) for text in parsed.point]))
    found += [RegionMean(None if name == "all" else _group(name)) for name in parsed.mean]
    return found + [BoundaryFlux(_group(name)) for name in parsed.through]


def _group(text: str) -> int | str:
    """A tag or a name."""
    return int(text) if text.lstrip("-").isdigit() else text


def run(parsed: argparse.Namespace) -> None:
    outputs = outputs_of(parsed)
    surrogate = load_run(parsed)
    if not outputs and not parsed.check:
        _show_groups(parsed, surrogate)
        return
    if parsed.samples > 0 and not parsed.y and parsed.y_file is None:
        samples = surrogate.problem.parameters.sample(parsed.samples, parsed.seed)
    else:
        samples = given_samples(parsed)
    if parsed.check:
        _show_checked(parsed, surrogate, surrogate.problem.check_parameters(samples), outputs)
        return
    found = surrogate.output(samples, outputs, parsed.adjoint)
    rows = (
        {
            "sample": i,
            "output": label,
            "value": float(found.values[i, k]),
            "error_bound": float(found.error_bound[i, k]),
        }
        for i in range(len(found.values))
        for k, label in enumerate(found.labels)
    )
    show_rows(rows, COLUMNS, parsed.json, bound=found.kind)


def _show_checked(parsed: argparse.Namespace, surrogate: Any, samples: Any, outputs: list[Any]) -> None:
    from training.bound_checks import bound_rows

    with progress_bar("solutions by PETSc", wanted=True) as progress:
        rows = list(bound_rows(surrogate, samples, outputs, progress))
    show_rows(rows, CHECKED, parsed.json, samples=len(samples), against="PETSc, LU")


def _show_groups(parsed: argparse.Namespace, surrogate: Any) -> None:
    from fem_frames.outputs import boundary_groups, region_groups

    rows = []
    for kind, (names, tags) in (
        ("region", region_groups(surrogate.arrays)),
        ("boundary", boundary_groups(surrogate.arrays)),
    ):
        known = {tag: name for name, tag in names.items()}
        rows += [{"kind": kind, "tag": tag, "name": known.get(tag)} for tag in sorted(tags)]
    show_rows(rows, {"kind": "s", "tag": "d", "name": "s"}, parsed.json)
