"""`fem-frames evaluate`: compares a trained surrogate with reference solutions for new samples."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from fem_frames.commands.output_options import declare_outputs, outputs_of
from fem_frames.commands.shared import (
    check_norm,
    declare,
    declare_device,
    declare_norm,
    declare_references,
    declare_run,
    declare_samples,
    load_run,
    plain,
    progress_bar,
    show,
    show_rows,
)

COLUMNS = {
    "output": ">22s",
    "error_mean": ".2e",
    "error_max": ".2e",
    "bound_mean": ".2e",
    "bound_max": ".2e",
    "violations": "d",
}


def add(subparsers: Any) -> None:
    parser = declare(
        subparsers,
        "evaluate",
        run,
        "Errors and losses of a trained surrogate for random samples, against batched multigrid; for formulations "
        "without it against PETSc, or where PETSc is absent against conjugate gradients in frame coordinates. Also the "
        "mean and maximum of its error bounds, which need no reference, and of these bounds relative to the norm of "
        "the solution. Outputs that options name follow: mean and maximum of their errors and of their bounds, and how "
        "many bounds were violated.",
    )
    declare_run(parser)
    declare_device(parser)
    declare_samples(parser, 1000, "number of samples; default: %(default)s")
    declare_references(parser)
    declare_norm(parser)
    parser.add_argument(
        "--precision",
        choices=("float16", "bfloat16", "float32", "float64"),
        help="round the net to this precision first; default: that of its training",
    )
    declare_outputs(parser)


def run(parsed: argparse.Namespace) -> None:
    if parsed.samples < 1 or parsed.seed < 0:
        raise ValueError(f"--samples {parsed.samples} --seed {parsed.seed}: give at least one sample, no negative seed")
    outputs = outputs_of(parsed)
    surrogate = load_run(parsed)
    if parsed.precision is not None:
        surrogate = surrogate.to(parsed.precision)
    check_norm(parsed, surrogate)
    from training.metrics import bound_record, energy_error, evaluate, output_errors, query_seconds
    from training.references import reference_solutions

    if outputs:
        from fem_frames.outputs import OutputMap

        OutputMap(surrogate.formulation, outputs)  # raises before the solves if an output does not fit
    y = surrogate.problem.parameters.sample(parsed.samples, parsed.seed)
    with progress_bar("reference solutions", wanted=True) as progress:
        reference = reference_solutions(surrogate.formulation, y, progress, parsed.references)
    record = {"precision": surrogate.description.precision, **evaluate(surrogate, reference).record()}
    record["energy_error"] = energy_error(surrogate, reference)
    record |= bound_record(surrogate, y, parsed.norm)
    record["seconds_per_query"] = query_seconds(surrogate, y)
    record |= {name: reference.record[name] for name in ("reference", "checked_by_petsc") if name in reference.record}
    if not outputs:
        show(record if parsed.json else _in_words(record), parsed.json)
        return
    found, kind = output_errors(surrogate, reference, outputs, parsed.adjoint)
    rows = [plain(asdict(row)) for row in found]
    if parsed.json:
        show(record | {"outputs": rows, "bound_of_outputs": kind}, as_json=True)
        return
    show(_in_words(record), as_json=False)
    print()
    show_rows(rows, COLUMNS, False, bound_of_outputs=kind)
    counts = [row.violations for row in found if row.violations is not None]
    if counts:
        print(f"violated bounds: {sum(counts) or 'none'} of {len(y) * len(counts)}")


def _in_words(record: dict[str, Any]) -> dict[str, Any]:
    """The record for people: bounds follow the energy error, and only some of them are relative."""
    return {"relative_energy_error" if name == "energy_error" else name: value for name, value in record.items()}
