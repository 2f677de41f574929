"""Shared parts of the subcommands: declarations, the problem's options, output, progress."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fem_frames.formulations.registry import formulation_names
from fem_frames.frame.arrays import FrameArrays
from fem_frames.mesh.geometry import Floats
from fem_frames.problem.catalogue import PROBLEMS
from fem_frames.problem.definition import COARSE, REFINEMENTS, Problem
from fem_frames.problem.loading import make_problem, recorded_problem
from fem_frames.progress import terminal_bar


def declare(
    subparsers: Any,
    name: str,
    run: Callable[[argparse.Namespace], None],
    text: str,
    *,
    takes_petsc_options: bool = False,
) -> argparse.ArgumentParser:
    """Declares a subcommand with --json, described by the text."""
    parser = subparsers.add_parser(name, help=text.split(". ")[0].rstrip("."), description=text, allow_abbrev=False)
    parser.set_defaults(run=run, parser=parser, takes_petsc_options=takes_petsc_options)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return parser


def declare_problem(parser: argparse.ArgumentParser, *, or_frame: bool = False) -> None:
    """Declares the options that name a problem and its mesh; with `or_frame` an exported file may replace them."""
    if or_frame:
        parser.add_argument(
            "--frame",
            type=Path,
            metavar="FILE",
            help="a file written by `export`, instead of a problem; needs no DOLFINx",
        )
    parser.add_argument(
        "--problem",
        required=not or_frame,
        help=f"{', '.join(PROBLEMS)}, or file.py:name of your own problem",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help="an option of the problem, as `problems` lists them",
    )
    parser.add_argument("--levels", type=int, required=not or_frame, metavar="J", help="number of uniform refinements")
    parser.add_argument(
        "--refinement",
        choices=REFINEMENTS,
        help="red: similar triangles, tetrahedra by Bey's rule; dolfinx: DOLFINx's rule; default: the problem's",
    )
    text = f"{', '.join(formulation_names())}, or one that the problem's file defines; default: energy"
    text += ", or that of the file" if or_frame else ""
    parser.add_argument("--formulation", default=None if or_frame else "energy", help=text)
    if or_frame:
        declare_first_level(parser)


def declare_first_level(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--first-level", type=int, metavar="J0", help="coarsest level of the frame; default: the problem's"
    )
    parser.add_argument(
        "--coarse",
        choices=COARSE,
        help="the coarse level below the first mesh: auto where it is needed, none, dense (orthonormal functions), "
        "algebraic (by aggregation); default: the problem's",
    )


def declare_samples(parser: argparse.ArgumentParser, default: int, text: str) -> None:
    parser.add_argument("--samples", type=_natural, default=default, metavar="N", help=text)
    parser.add_argument(
        "--seed", type=_natural, default=0, metavar="S", help="seed of the samples; default: %(default)s"
    )


def _natural(text: str) -> int:
    """A whole number that is not negative; the parser words what int refuses."""
    if int(text) < 0:
        raise argparse.ArgumentTypeError(f"it is {text}, but should not be negative")
    return int(text)


def declare_dtypes(parser: argparse.ArgumentParser, *default: str) -> None:
    choices = ("float16", "bfloat16", "float32", "float64")
    text = f"default: {' '.join(default)}"
    parser.add_argument("--dtypes", nargs="+", choices=choices, default=list(default), help=text)


def declare_force(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="replace an existing file")


def declare_cells(parser: argparse.ArgumentParser) -> None:
    text = "only cells of an experiment with matching names, like '*-adam-*'"
    parser.add_argument("--cells", default="*", metavar="PATTERN", help=text)


def declare_run(parser: argparse.ArgumentParser, text: str = "folder written by `train`") -> None:
    parser.add_argument("folder", type=Path, metavar="RUN", help=text)
    declare_problem_file(parser)


def declare_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, …; default: %(default)s")


def declare_problem_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--problem", help="file.py:name of the problem, if it moved or was made in Python")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="an option of that problem")


def declare_references(parser: argparse.ArgumentParser) -> None:
    from training.registry import REFERENCES

    parser.add_argument(
        "--references",
        choices=REFERENCES,
        default="auto",
        help="solves for the reference: batched multigrid, checked against PETSc for two samples; PETSc for every "
        "sample; or auto, the default: multigrid where the formulation has one, otherwise PETSc",
    )


def declare_norm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--norm",
        help="the norm of error bounds. Energy formulation: energy, against the discrete solution. Least squares: "
        "functional, the default, or energy, both against the exact solution",
    )


def check_norm(parsed: argparse.Namespace, surrogate: Any) -> None:
    """Raises a ValueError if the surrogate has no bounds in the requested norm."""
    kind = type(surrogate.formulation)
    if parsed.norm is not None and not kind.norms:
        kind.error_norm()  # raises and says why there is no bound
    if parsed.norm not in (None, *(norm.name for norm in kind.norms)):
        raise ValueError(
            f"--norm {parsed.norm}: a surrogate of the formulation {kind.name} has error bounds in the norm "
            f"{', '.join(norm.name for norm in kind.norms)}"
        )


def load_run(parsed: argparse.Namespace) -> Any:
    """Loads the surrogate of a run."""
    from training.surrogate import FRAME, Surrogate

    if parsed.set and parsed.problem is None:
        raise ValueError("--set goes with --problem; the problem of a run has the options it was trained with")
    device = getattr(parsed, "device", "cpu")
    if parsed.problem is None:
        return Surrogate.load(parsed.folder, device=device)
    # The problem first: its file may define the element or the formulation of the frame.
    frame = parsed.folder / FRAME
    record = FrameArrays.record_of(frame) if frame.is_file() else {}
    options = options_of(parsed.set) if parsed.set else None
    return Surrogate.load(parsed.folder, recorded_problem(record, parsed.problem, options), device)


def numbers_of(text: str, option: str) -> list[float]:
    """Numbers from a comma-separated list that an option was given."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        shown = text if text.strip() else repr(text)
        raise ValueError(f"{option} {shown}: numbers with commas between them are expected, like 1,0.8,1.4") from None
    for part, number in zip(text.split(","), found, strict=True):
        if not math.isfinite(number):
            raise ValueError(f"{option} {text}: {part.strip()} is not finite")
    return found


def samples_of(parsed: argparse.Namespace, problem: Problem) -> Floats:
    """(N, p) random parameters; with --samples 0 the middle of the parameters."""
    from fem_frames.studies.levels import nominal_parameters

    if parsed.samples < 0 or parsed.seed < 0:
        raise ValueError(f"--samples {parsed.samples} --seed {parsed.seed}: give numbers that are not negative")
    return problem.parameters.sample(parsed.samples, parsed.seed) if parsed.samples else nominal_parameters(problem)


def frame_from_file(parsed: argparse.Namespace) -> FrameArrays:
    """Loads the frame from the file given as --frame."""
    for name in ("levels", "refinement", "first_level", "coarse"):
        if getattr(parsed, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} is decided by the file given as --frame: leave it out")
    arrays = FrameArrays.load(parsed.frame)
    if parsed.formulation not in (None, arrays.formulation):
        raise ValueError(f"{parsed.frame} is a frame for {arrays.formulation}, not for {parsed.formulation}")
    if parsed.problem is None and parsed.set:
        raise ValueError("--set goes with --problem; the problem of a --frame has the options it was made with")
    return arrays


def frame_of(parsed: argparse.Namespace) -> tuple[FrameArrays, Problem]:
    """The frame and its problem, from a file or made by DOLFINx."""
    if parsed.frame is not None:
        if parsed.problem is None:
            arrays = frame_from_file(parsed)
            return arrays, _recorded_problem(parsed.frame, arrays)
        problem = problem_of(parsed)  # before the frame: its file may define the frame's element
        arrays = frame_from_file(parsed)
        arrays.check_problem(problem)
        return arrays, problem
    if parsed.problem is not None and parsed.levels is None:
        raise ValueError("--problem goes with --levels J, the number of refinements: give it too")
    if parsed.problem is None or parsed.levels is None:
        raise ValueError("give --problem and --levels, or --frame with a file written by `fem-frames export`")
    from fem_frames.frame.export import export_frame
    from fem_frames.mesh.hierarchy import MeshHierarchy

    problem = problem_of(parsed)
    hierarchy = MeshHierarchy.from_problem(problem, parsed.levels)
    formulation = parsed.formulation or "energy"
    return export_frame(hierarchy, problem, formulation, parsed.first_level, parsed.coarse), problem


def _recorded_problem(path: Path, arrays: FrameArrays) -> Problem:
    try:
        return recorded_problem(arrays.record)
    except ValueError as error:
        name = arrays.record.get("problem")
        raise ValueError(f"{path} is a frame of the problem {name!r}, which cannot be made: {error}") from error


def problem_of(parsed: argparse.Namespace) -> Problem:
    problem = make_problem(parsed.problem, **options_of(parsed.set))
    return problem if parsed.refinement is None else replace(problem, refinement=parsed.refinement)


def options_of(settings: Iterable[str]) -> dict[str, Any]:
    """The options of a problem from the arguments of --set."""
    options = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"--set {setting} is not of the form OPTION=VALUE")
        try:
            options[name] = json.loads(text)
        except ValueError:
            options[name] = text
        except RecursionError:
            raise ValueError(f"--set {name}=…: the value is nested too deeply") from None
    return options


def progress(quiet: bool) -> Callable[[str], None]:
    """A function that shows lines of progress beside the results, or nothing."""
    return lambda text: None if quiet else print(text, file=sys.stderr, flush=True)


def show(record: Mapping[str, Any], as_json: bool) -> None:
    """Prints the result of a command: JSON for scripts, or aligned lines for people, without missing values."""
    if as_json:
        print(json.dumps(plain(record), allow_nan=False))
        return
    record = {key: value for key, value in record.items() if value is not None}
    width = max(len(key) for key in record)
    for key, value in record.items():
        text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
        text = f"{value:.6g}" if isinstance(value, float) else text
        print(f"{key.replace('_', ' '):{width}}  {text}")


def plain(value: Any) -> Any:
    """The value in a form that JSON can hold: None for NaN and infinity."""
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show_rows(
    rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str], as_json: bool, **record: Any
) -> list[Mapping[str, Any]]:
    """Prints a table row by row, or one JSON object with `rows` and the record; returns the rows.

    `columns` maps each printed key to its format.
    """
    found: list[Mapping[str, Any]] = []
    for row in rows:
        if not as_json and not found:  # an error in the first row comes before any heading
            for key, value in record.items():
                print(f"{key.replace('_', ' ')}: {f'{value:.4g}' if isinstance(value, float) else value}")
            print("  ".join(f"{key.replace('_', ' '):>{_width(key, form)}}" for key, form in columns.items()))
        found.append(row)
        if not as_json:
            cells = ["-" if row[key] is None else format(row[key], form) for key, form in columns.items()]
            widths = [_width(key, form) for key, form in columns.items()]
            print("  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)), flush=True)
    if as_json:
        print(json.dumps({**record, "rows": [plain(row) for row in found]}, allow_nan=False))
    return found


def _width(key: str, form: str) -> int:
    """The width of a column: that of its heading, or the one that its format begins with."""
    told = form.partition(".")[0].strip("<>sd")
    return max(9, len(key), int(told) if told.isdigit() else 0)


@contextlib.contextmanager
def progress_bar(text: str, wanted: bool) -> Iterator[Callable[[int, int], None]]:
    """Yields a function of (done, total): a bar on a terminal, elsewhere occasional lines; nothing unless wanted."""
    if not wanted:
        yield lambda done, count: None
        return
    if not sys.stderr.isatty():
        yield _lines(text)
        return
    with terminal_bar(text) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, count: bar.update(task, completed=done, total=count)


def _lines(text: str, seconds: float = 10.0) -> Callable[[int, int], None]:
    said, last = [-seconds], [-1]

    def line(done: int, count: int) -> None:
        if done and done != last[0] and (done == count or time.monotonic() - said[0] >= seconds):
            said[0], last[0] = time.monotonic(), done
            print(f"{text}: {done} of {count}", file=sys.stderr, flush=True)

    return line
