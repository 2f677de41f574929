"""`fem-frames condition`: condition numbers of A_y, HᵀA_yH, D and C_y on every level."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fem_frames.commands.shared import (
    declare,
    declare_device,
    declare_force,
    declare_problem,
    declare_samples,
    frame_of,
    samples_of,
    show_rows,
)

COLUMNS = {"level": "d", "nodal_size": "d", "cond_A": ".4g", "cond_bpx": ".4g", "cond_D": ".4g", "cond_C": ".4g"}
FLUX = {"cond_flux": ".4g"}


def add(subparsers: Any) -> None:
    parser = declare(
        subparsers,
        "condition",
        run,
        "Condition numbers of A_y, of HᵀA_yH, of D on ker(F)^⊥ and of C_y on the range of D, on every level. "
        "For least squares also of the flux frame in H(div). Computed by Lanczos in float64, without dense matrices.",
    )
    declare_problem(parser, or_frame=True)
    declare_samples(parser, 0, "random samples of y, of which the worst counts; default: 0, the middle")
    declare_device(parser)
    parser.add_argument("--without", metavar="FAMILY", help="leave out a family of the frame: curl")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot them over the levels (.png, .pdf, .svg)")
    declare_force(parser)


def run(parsed: argparse.Namespace) -> None:
    from fem_frames.frame.level_matrices import flux_field
    from fem_frames.operators.frame import check_device
    from fem_frames.studies.conditioning import condition_rows
    from fem_frames.studies.plots import check_plot, plot_conditioning

    check_plot(parsed.plot, parsed.force)
    check_device(parsed.device)
    arrays, problem = frame_of(parsed)
    y = samples_of(parsed, problem)
    if parsed.without is not None:
        arrays = arrays.without(parsed.without)
    families = [family.name for family in arrays.families]
    rows = show_rows(
        condition_rows(arrays, problem, y, device=parsed.device),
        COLUMNS | (FLUX if flux_field(arrays) is not None else {}),
        parsed.json,
        problem=problem.name,
        formulation=arrays.formulation,
        first_level=arrays.first_level,
        families=families if parsed.json else ", ".join(families),
        samples=len(y),
    )
    if parsed.plot is not None:
        plot_conditioning(rows, parsed.plot, f"{problem.name}, {arrays.formulation}")
