"""`fem-frames outputs`: numbers that a solution is asked for, with bounds for their errors."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from fem_frames.commands.output_options import COLUMNS, all_rows, declare_outputs, outputs_of
from fem_frames.commands.query import declare_y, given_samples
from fem_frames.commands.shared import declare, declare_run, declare_samples, load_run, progress_bar, show_rows

NET_COLUMNS = {"sample": "d", "output": ">22s", "value": ".8g", "validation_mean": ".2e", "validation_max": ".2e"}
CHECKED = {"bound": "s", "violations": "d", "least": ".3g", "median": ".3g", "most": ".3g", "quantity": "s"}


def add(subparsers: Any) -> None:
    parser = declare(
        subparsers,
        "outputs",
        run,
        "Values at points, means over regions and fluxes through parts of the boundary, each with a bound for its "
        "error against the discrete solution. Without outputs: the regions and boundary groups that there are. With "
        "--check: bounds divided by true errors. With a file of `learn-outputs` instead of a run, its net answers: "
        "without a bound, but with the mean and the largest error that were seen in its validation.",
    )
    declare_run(parser, "folder written by `train`, or file written by `learn-outputs`")
    declare_y(parser)
    declare_samples(parser, 0, "random samples of y instead")
    declare_outputs(parser)
    parser.add_argument(
        "--check",
        action="store_true",
        help="solve for the samples by PETSc too; show violations of the bounds (there must be none) and the least, "
        "median and largest bound divided by its error, for u and all outputs, with and without adjoint solves",
    )


def run(parsed: argparse.Namespace) -> None:
    if parsed.folder.is_file():
        _answer_by_net(parsed)
        return
    outputs = outputs_of(parsed)
    surrogate = load_run(parsed)
    if not outputs and not parsed.check:
        _show_groups(parsed, surrogate)
        return
    if _wants_random(parsed):
        samples = surrogate.problem.parameters.sample(parsed.samples, parsed.seed)
    else:
        samples = given_samples(parsed)
    if parsed.check:
        _show_checked(parsed, surrogate, surrogate.problem.check_parameters(samples), outputs)
        return
    found = surrogate.output(samples, outputs, parsed.adjoint)
    show_rows(all_rows(found), COLUMNS, parsed.json, bound=found.kind)


def _wants_random(parsed: argparse.Namespace) -> bool:
    return parsed.samples > 0 and not parsed.y and parsed.y_file is None


def _answer_by_net(parsed: argparse.Namespace) -> None:
    from training.output_net import OutputNet

    named = {"--point": parsed.point, "--mean": parsed.mean, "--through": parsed.through, "--adjoint": parsed.adjoint}
    named |= {
        "--field": parsed.field,
        "--functional": parsed.functional,
        "--problem": parsed.problem,
        "--set": parsed.set,
        "--check": parsed.check,
    }
    wrong = next((name for name, value in named.items() if value), None)
    if wrong is not None:
        raise ValueError(
            f"{wrong} goes with a run; the net in {parsed.folder} has its outputs already: leave {wrong} out, or give "
            "the folder of a run"
        )
    net = OutputNet.load(parsed.folder)
    random = _wants_random(parsed)
    samples = net.parameters.sample(parsed.samples, parsed.seed) if random else given_samples(parsed)
    values, seen = net(samples), net.validation

    def rows() -> Iterator[dict[str, Any]]:
        for i in range(len(values)):
            for k, label in enumerate(net.labels):
                errors = {"validation_mean": float(seen.mean[k]), "validation_max": float(seen.max[k])}
                yield {"sample": i, "output": label, "value": float(values[i, k]), **errors}

    told = f"mean and largest error seen for {seen.samples} other random y, no bound"
    show_rows(rows(), NET_COLUMNS, parsed.json, validation=told)


def _show_checked(parsed: argparse.Namespace, surrogate: Any, samples: Any, outputs: list[Any]) -> None:
    from training.bound_checks import bound_rows

    with progress_bar("solutions by PETSc", wanted=True) as progress:
        rows = list(bound_rows(surrogate, samples, outputs, progress))
    show_rows(rows, CHECKED, parsed.json, samples=len(samples), against="PETSc, LU")


def _show_groups(parsed: argparse.Namespace, surrogate: Any) -> None:
    from fem_frames.output_groups import boundary_groups, region_groups

    rows = []
    for kind, (names, tags) in (
        ("region", region_groups(surrogate.arrays)),
        ("boundary", boundary_groups(surrogate.arrays)),
    ):
        known = {tag: name for name, tag in names.items()}
        rows += [{"kind": kind, "tag": tag, "name": known.get(tag)} for tag in sorted(tags)]
    show_rows(rows, {"kind": "s", "tag": "d", "name": "s"}, parsed.json)
