"""`fem-frames query`: the solution for one y, with an error bound, and if wished to a tolerance."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from fem_frames.commands.shared import (
    check_norm,
    declare,
    declare_device,
    declare_force,
    declare_norm,
    declare_run,
    load_run,
    parameters_of,
    show,
)
from fem_frames.files import check_new
from fem_frames.studies.plots import check_plot


def add(subparsers: Any) -> None:
    parser = declare(
        subparsers,
        "query",
        run,
        "The surrogate's solution for one y and a bound for its error. With --tol conjugate gradients start from it "
        "and go on until the bound is small enough. The norm of the bound is printed with it, and whether the error is "
        "measured against the discrete or the exact solution; the relative bound is one for the error divided by the "
        "norm of that solution.",
    )
    declare_run(parser)
    declare_device(parser)
    parser.add_argument("--y", required=True, metavar="Y1,Y2,…", help="the parameters; with a minus first: --y=-1,2")
    parser.add_argument("--tol", type=float, metavar="T", help="improve until the error bound is below this")
    parser.add_argument(
        "--max-iterations",
        type=int,
        default=1000,
        metavar="N",
        help="with --tol, at most this many iterations; default: %(default)s",
    )
    declare_norm(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the solution: .xdmf, .vtu or .vtk")
    declare_force(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the solution: .png, .pdf or .svg")


def run(parsed: argparse.Namespace) -> None:
    y = parameters_of(parsed.y)
    surrogate = load_run(parsed)
    from fem_frames.frame.level_matrices import values_of
    from fem_frames.solvers.conjugate_gradients import ConvergenceError
    from training.output import check_format, write_fields

    check_plot(parsed.plot, parsed.force)
    if parsed.plot is not None and surrogate.arrays.dimension == 3:
        raise ValueError("solutions in space are not drawn: leave out --plot, write with --out u.xdmf for ParaView")
    if parsed.out is not None:
        check_format(parsed.out)
        check_new(parsed.out, parsed.force)
        if parsed.out.suffix == ".xdmf":
            check_new(parsed.out.with_suffix(".h5"), parsed.force)
    samples = surrogate.problem.check_parameters(y)
    check_norm(parsed, surrogate)
    if parsed.max_iterations < 1:
        raise ValueError(f"--max-iterations {parsed.max_iterations}: give at least one")
    if parsed.tol is None:
        values, iterations = surrogate(samples), 0
        found, loss = surrogate.certify(samples, parsed.norm), surrogate.loss(samples)
        bound = found.value
    else:
        try:
            found = surrogate.improve(samples, parsed.tol, parsed.max_iterations, parsed.norm)
        except ConvergenceError as error:
            why = str(error).replace("max_iterations", "--max-iterations")
            raise ValueError(f"--tol {parsed.tol:g}: {why}") from error
        values, bound, iterations = found.values, found.error_bound, int(found.iterations[0])
        import torch

        loss = surrogate.formulation.loss(found.w, torch.as_tensor(samples).to(found.w.device))
    fields = values_of(surrogate.arrays, {name: value[0].double().cpu().numpy() for name, value in values.items()})
    if parsed.out is not None:
        write_fields(surrogate.arrays, fields, parsed.out)
    if parsed.plot is not None:
        from fem_frames.studies.solution_plots import plot_solution

        plot_solution(surrogate.arrays, fields, parsed.plot, title=f"{surrogate.problem.name}, y = {parsed.y}")
    record: dict[str, Any] = {"error_bound": float(bound[0]), "relative": float(found.relative[0])}
    if parsed.json:
        record |= {"norm": found.norm.name, "against": found.norm.against, "norm_formula": found.norm.formula}
    else:
        record["error_bound"] = f"{record['error_bound']:.6g} ({found.norm})"
        record["relative"] = in_percent(record["relative"])
    record |= {"loss": float(loss[0]), "iterations": iterations}
    if parsed.json:
        record["values"] = {name: value.tolist() for name, value in fields.items()}
        record["points"] = surrogate.arrays.points.tolist()
        if any(value.ndim == 2 for value in fields.values()):
            record["centres"] = surrogate.arrays.centres.tolist()
    else:
        for name, value in fields.items():
            size = value if value.ndim == 1 else np.linalg.norm(value, axis=1)
            what = "values" if value.ndim == 1 else "vectors of length"
            record[name] = f"{len(value)} {what} from {size.min():.6g} to {size.max():.6g}"
        for path in (parsed.out, parsed.plot):
            if path is not None:
                record["written" if path is parsed.out else "drawn"] = path
    show(record, parsed.json)


def in_percent(relative: float) -> str:
    """A relative bound in words."""
    if not np.isfinite(relative):
        return "no bound: for all that is known, the norm of the solution may be zero"
    return f"{100 * relative:.3g} %"
