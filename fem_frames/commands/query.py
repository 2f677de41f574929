"""`fem-frames query`: solutions for one or several y with error bounds, improved to a tolerance on request."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fem_frames.commands.output_options import COLUMNS, all_rows, declare_outputs, output_rows, outputs_of
from fem_frames.commands.shared import (
    check_norm,
    declare,
    declare_device,
    declare_force,
    declare_norm,
    declare_run,
    load_run,
    numbers_of,
    plain,
    show,
    show_rows,
)
from fem_frames.files import check_file, check_new, one_line
from fem_frames.mesh.geometry import Floats
from fem_frames.studies.plots import check_plot


def add(subparsers: Any) -> None:
    parser = declare(
        subparsers,
        "query",
        run,
        "Prints the surrogate's solution for one or several y, and a bound for its error. With --tol, multigrid or "
        "conjugate gradients improve the solution until the bound is small enough. The bound comes with its norm, and "
        "says whether the error is measured against the discrete or the exact solution; the relative bound is for the "
        "error divided by the norm of that solution. Several y make a table; with --json a list `samples`. Outputs "
        "that options name follow with bounds of their own; with --tol they are those of the improved solution.",
    )
    declare_run(parser)
    declare_device(parser)
    declare_y(parser)
    parser.add_argument("--tol", type=float, metavar="T", help="improve until the error bound is below this")
    parser.add_argument(
        "--max-iterations",
        type=int,
        default=1000,
        metavar="N",
        help="with --tol, at most this many iterations; default: %(default)s",
    )
    declare_norm(parser)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="write the solution: .xdmf, .vtu, .vtk or .pvd; several as a series: .xdmf or .pvd",
    )
    declare_force(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the solution: .png, .pdf or .svg")
    parser.add_argument(
        "--flux", action="store_true", help="also a_y ∇u on cells, unless the flux is a field of the formulation"
    )
    declare_outputs(parser)


def declare_y(parser: argparse.ArgumentParser) -> None:
    """Declares the options that give samples."""
    parser.add_argument(
        "--y",
        action="append",
        default=[],
        metavar="Y1,Y2,…",
        help="the parameters; if the first is negative: --y=-1,2; may be given several times",
    )
    parser.add_argument(
        "--y-file", type=Path, metavar="FILE", help="samples from a .npy file, or a .csv file with one y per line"
    )


def run(parsed: argparse.Namespace) -> None:
    y, outputs = given_samples(parsed), outputs_of(parsed)
    surrogate = load_run(parsed)
    _check_files(parsed, surrogate, len(y))
    samples = surrogate.problem.check_parameters(y)
    check_norm(parsed, surrogate)
    if parsed.max_iterations < 1:
        raise ValueError(f"--max-iterations {parsed.max_iterations}: give at least one")
    found, fields, asked = _answers(parsed, surrogate, samples, outputs)
    _write(parsed, surrogate, samples, fields)
    written = {"written": parsed.out, "drawn": parsed.plot}
    if len(samples) == 1:
        _show_one(parsed, surrogate, found[0], {name: values[0] for name, values in fields.items()}, written)
    else:
        _show_several(parsed, surrogate, samples, found, fields, written)
    if asked is not None and not parsed.json:
        print()
        show_rows(all_rows(asked), COLUMNS, False, bound_of_outputs=asked.kind)


def given_samples(parsed: argparse.Namespace) -> list[list[float]]:
    """The samples of --y, then those of --y-file."""
    given = [numbers_of(text, "--y") for text in parsed.y]
    if parsed.y_file is not None:
        given += read_samples(parsed.y_file)
    if not given:
        raise ValueError("give the parameters by --y Y1,Y2,…, or samples by --y-file FILE")
    for row in given:
        if len(row) != len(given[0]):
            raise ValueError(f"some y have {len(given[0])} numbers, some {len(row)}: give equally many for each")
    return given


def read_samples(path: Path) -> list[list[float]]:
    """Rows of numbers from a .npy file (B, p) or (p,), or from lines of comma-separated numbers."""
    check_file(path)
    try:
        if path.suffix == ".npy":
            rows = np.load(path, allow_pickle=False)
            if not isinstance(rows, np.ndarray) or rows.dtype.kind not in "iuf" or rows.ndim not in (1, 2):
                raise ValueError("it holds no array (B, p) of numbers")
            rows = np.atleast_2d(rows).astype(np.float64)
        else:
            lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
            rows = [[float(part) for part in line.split(",")] for line in lines]
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(
            f"--y-file {path}: {one_line(error)}; a .npy file with an array (B, p) of numbers is expected, or lines of "
            "numbers with commas between them"
        ) from error
    if not len(rows):
        raise ValueError(f"--y-file {path} holds no samples")
    return [[float(value) for value in row] for row in rows]


def _check_files(parsed: argparse.Namespace, surrogate: Any, count: int) -> None:
    """Raises a ValueError before any work if the output files cannot be written or drawn."""
    from fem_frames.studies.solution_plots import check_drawable
    from training.output import check_format, written_files

    check_plot(parsed.plot, parsed.force)
    if parsed.plot is not None:
        check_drawable(surrogate.arrays, count)
    if parsed.out is not None:
        check_format(parsed.out, count)
        for file in written_files(parsed.out, count):
            check_new(file, parsed.force)


def _answers(
    parsed: argparse.Namespace, surrogate: Any, samples: Floats, outputs: list[Any]
) -> tuple[list[dict[str, Any]], dict[str, Floats], Any]:
    """Bounds, loss, iterations and outputs for each y; values of fields at points or on cells; all outputs."""
    import torch

    from fem_frames.frame.level_matrices import values_of
    from fem_frames.solvers.conjugate_gradients import ConvergenceError
    from training.answers import as_arrays, has_flux

    exact = surrogate.formulation
    if parsed.tol is not None and not exact.norms:
        raise ValueError(f"--tol {parsed.tol:g} needs error bounds: {exact.no_bound}; leave out --tol")
    if parsed.tol is None:
        values, w = surrogate.fields(samples), surrogate.coefficients(samples)
        bounds = surrogate.certify(samples, parsed.norm) if exact.norms else None
        iterations, loss = [0] * len(samples), surrogate.loss(samples)
        asked = surrogate.output(samples, outputs, parsed.adjoint) if outputs else None
    else:
        try:
            bounds = surrogate.improve(samples, parsed.tol, parsed.max_iterations, parsed.norm)
        except ConvergenceError as error:
            why = str(error).replace("max_iterations", "--max-iterations")
            raise ValueError(f"--tol {parsed.tol:g}: {why}") from error
        values, w, iterations = bounds.values, bounds.w, bounds.iterations.tolist()
        loss = exact.loss(w, torch.as_tensor(samples).to(w.device))
        asked = bounds.output(outputs, parsed.adjoint) if outputs else None
    fields = values_of(surrogate.arrays, as_arrays(values))
    if parsed.flux and not has_flux(surrogate.arrays):
        flux = exact.flux(w, torch.as_tensor(samples).to(w.device))
        fields["flux"] = flux.cpu().numpy()
    estimate = None if bounds is not None else exact.dual_norm(w, torch.as_tensor(samples).to(w.device))
    found = [
        {
            **_bound_of(bounds, i),
            **({} if estimate is None else {"dual_norm": float(estimate[i])}),
            "loss": float(loss[i]),
            "iterations": int(iterations[i]),
        }
        for i in range(len(samples))
    ]
    if asked is not None:
        for i, row in enumerate(found):
            row |= {"outputs": [plain(one) for one in output_rows(asked, i)], "bound_of_outputs": asked.kind}
    return found, fields, asked


def _bound_of(bounds: Any, i: int) -> dict[str, Any]:
    """The bound of sample i with its norm; None in all places if there is none."""
    if bounds is None:
        return dict.fromkeys(("error_bound", "relative", "norm", "against", "norm_formula"))
    value = bounds.error_bound if hasattr(bounds, "error_bound") else bounds.value
    norm = bounds.norm
    return {
        "error_bound": float(value[i]),
        "relative": float(bounds.relative[i]),
        "norm": norm.name,
        "against": norm.against,
        "norm_formula": norm.formula,
    }


def _write(parsed: argparse.Namespace, surrogate: Any, samples: Floats, fields: Mapping[str, Floats]) -> None:
    if parsed.out is not None:
        from training.output import write_series

        steps = [{name: values[i] for name, values in fields.items()} for i in range(len(samples))]
        write_series(surrogate.arrays, steps, samples, parsed.out)
    if parsed.plot is not None:
        from fem_frames.studies.solution_plots import plot_solutions

        title = surrogate.problem.name
        if len(samples) == 1:
            title += ", y = " + (parsed.y[0] if parsed.y else ", ".join(f"{value:g}" for value in samples[0]))
        plot_solutions(surrogate.arrays, fields, samples, parsed.plot, title)


def _show_one(
    parsed: argparse.Namespace,
    surrogate: Any,
    found: dict[str, Any],
    fields: Mapping[str, Floats],
    written: Mapping[str, Path | None],
) -> None:
    if parsed.json:
        show(found | {"values": _lists(fields)} | _places(surrogate, fields), as_json=True)
        return
    bounds: dict[str, Any] = {"error_bound": surrogate.formulation.no_bound}
    if found["norm"] is not None:
        text = f"{found['error_bound']:.6g} ({surrogate.formulation.error_norm(parsed.norm)})"
        bounds = {"error_bound": text, "relative": in_percent(found["relative"])}
    record = bounds | {name: found[name] for name in ("dual_norm", "loss", "iterations") if name in found}
    for name, value in fields.items():
        size = value if value.ndim == 1 else np.linalg.norm(value, axis=1)
        what = "values" if value.ndim == 1 else "vectors of length"
        record[name] = f"{len(value)} {what} from {size.min():.6g} to {size.max():.6g}"
    show({**record, **written}, as_json=False)


def _show_several(
    parsed: argparse.Namespace,
    surrogate: Any,
    samples: Floats,
    found: list[dict[str, Any]],
    fields: Mapping[str, Floats],
    written: Mapping[str, Path | None],
) -> None:
    if parsed.json:
        each = [
            plain({"y": samples[i].tolist(), **row, "values": _lists({k: v[i] for k, v in fields.items()})})
            for i, row in enumerate(found)
        ]
        show({"samples": each} | _places(surrogate, {k: v[0] for k, v in fields.items()}), as_json=True)
        return
    u = next(iter(fields.values()))
    u = u if u.ndim == 2 else np.linalg.norm(u, axis=2)
    rows = [
        {"sample": i, **row, "relative": row["relative"] if np.isfinite(row["relative"] or 0.0) else None}
        | {"least_u": float(u[i].min()), "largest_u": float(u[i].max())}
        for i, row in enumerate(found)
    ]
    columns = {"sample": "d", "error_bound": ".4g", "relative": ".2%", "dual_norm": ".4g"}
    columns |= {"loss": ".6g", "iterations": "d", "least_u": ".4g", "largest_u": ".4g"}
    columns = {name: form for name, form in columns.items() if name in rows[0]}
    exact = surrogate.formulation
    show_rows(rows, columns, False, norm=exact.error_norm(parsed.norm) if exact.norms else exact.no_bound)
    for what, path in written.items():
        if path is not None:
            print(f"{what}: {path}")


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    """The relative bound of a row, if it has one, or None where it is infinite."""
    return {name: value if np.isfinite(value) else None for name, value in row.items() if name == "relative"}


def _lists(fields: Mapping[str, Floats]) -> dict[str, Any]:
    return {name: value.tolist() for name, value in fields.items()}


def _places(surrogate: Any, fields: Mapping[str, Floats]) -> dict[str, Any]:
    """The points of the values, and the centres of cells if there are vectors on cells."""
    found = {"points": surrogate.arrays.points.tolist()}
    if any(value.ndim == 2 and len(value) == len(surrogate.arrays.centres) for value in fields.values()):
        found["centres"] = surrogate.arrays.centres.tolist()
    return found


def in_percent(relative: float) -> str:
    """A relative bound as text."""
    if not np.isfinite(relative):
        return "no bound: the norm of the solution may be zero"
    return f"{100 * relative:.3g} %"
