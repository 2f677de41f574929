"""`fem-frames outputs`: numbers that a solution is asked for, with bounds for their errors."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from fem_frames.commands.output_options import COLUMNS, all_rows, declare_outputs, outputs_of
from fem_frames.commands.query import declare_y, given_samples
from fem_frames.commands.shared import declare, declare_run, declare_samples, load_run, show_rows

NET_COLUMNS = {"sample": "d", "output": ">22s", "value": ".8g", "validation_mean": ".2e", "validation_max": ".2e"}


def add(subparsers: Any) -> None:
    parser = declare(
        subparsers,
        "outputs",
        run,
        "Values at points, means over regions and fluxes through parts of the boundary, each with a bound for its "
        "error against the discrete solution. Without outputs: the regions and boundary groups that there are. "
        "With a file of `learn-outputs` instead of a run, its net answers; then there is no bound, but the mean and "
        "the largest error that were seen in its validation.",
    )
    declare_run(parser, "folder written by `train`, or file written by `learn-outputs`")
    declare_y(parser)
    declare_samples(parser, 0, "random samples of y instead")
    declare_outputs(parser)


def run(parsed: argparse.Namespace) -> None:
    if parsed.folder.is_file():
        _answer_by_net(parsed)
        return
    outputs = outputs_of(parsed)
    surrogate = load_run(parsed)
    if not outputs:
        _show_groups(parsed, surrogate)
        return
    if _wants_random(parsed):
        samples = surrogate.problem.parameters.sample(parsed.samples, parsed.seed)
    else:
        samples = given_samples(parsed)
    found = surrogate.output(samples, outputs, parsed.adjoint)
    show_rows(all_rows(found), COLUMNS, parsed.json, bound=found.kind)


def _wants_random(parsed: argparse.Namespace) -> bool:
    return parsed.samples > 0 and not parsed.y and parsed.y_file is None


def _answer_by_net(parsed: argparse.Namespace) -> None:
    from training.output_net import OutputNet

    named = {"--point": parsed.point, "--mean": parsed.mean, "--through": parsed.through, "--adjoint": parsed.adjoint}
    named |= {"--problem": parsed.problem, "--set": parsed.set}
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
