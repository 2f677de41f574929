"""`fem-frames reference`: PETSc reference solutions for random samples, serial or under mpirun."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import time
from pathlib import Path
from typing import Any

from fem_frames.commands.shared import declare, declare_problem, problem_of, progress_bar, show


def add(subparsers: Any) -> None:
    parser = declare(
        subparsers,
        "reference",
        run,
        "Finite element solutions by PETSc for random samples of y. Runs serially or under mpirun; "
        "started again, a killed run continues. "
        "Options with one dash, like -ksp_monitor, go to PETSc.",
        takes_petsc_options=True,
    )
    declare_problem(parser)
    parser.add_argument("--samples", type=int, required=True, metavar="N", help="number of samples")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the samples; default: %(default)s")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the solutions go (.npz)")
    parser.add_argument(
        "--solver",
        choices=("cg", "lu"),
        help="default: cg for energy, lu for least squares, where cg is for triangles only; for equations lu, "
        "and cg for quadratic energies of nodal fields in 3D",
    )
    parser.add_argument(
        "--distribute",
        choices=("samples", "mesh"),
        default="samples",
        help="under mpirun: each rank solves its own samples, or all ranks share a mesh; default: %(default)s",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file or unfinished run")


def run(parsed: argparse.Namespace) -> None:
    with contextlib.suppress(ModuleNotFoundError):  # the next imports report what is missing
        import petsc4py

        petsc4py.init(["fem-frames", *parsed.petsc_arguments])  # before anything imports PETSc
    from fem_frames.fenicsx.door import MPI
    from fem_frames.fenicsx.sweep import Sweep, run_sweep

    comm = MPI.COMM_WORLD
    start = time.perf_counter()
    options = petsc_options_of([*shlex.split(os.environ.get("PETSC_OPTIONS", "")), *parsed.petsc_arguments])
    sweep = Sweep(
        problem_of(parsed), parsed.levels, parsed.samples, parsed.seed, parsed.formulation, parsed.solver, options
    )
    with progress_bar("reference solutions", wanted=comm.rank == 0) as progress:
        solutions = run_sweep(sweep, parsed.out, distribute=parsed.distribute, force=parsed.force, progress=progress)
    if comm.rank == 0:
        record = {
            "problem": sweep.problem.name,
            "formulation": sweep.formulation,
            "levels": sweep.levels,
            "samples": len(solutions.y),
            "points": solutions.u.shape[1],
            "mean_loss": float(solutions.loss.mean()),
            "ranks": comm.size,
            "seconds": round(time.perf_counter() - start, 3),
            "out": str(parsed.out),
        }
        show(record, parsed.json)


def petsc_options_of(words: list[str]) -> dict[str, str | None]:
    """PETSc options by name, from the words of a command line."""
    options: dict[str, str | None] = {}
    name = ""
    for word in words:
        if word.startswith("-") and not re.fullmatch(r"-[\d.].*", word):
            name = word.lstrip("-")
            options[name] = None
        else:
            options[name] = word
    return options
