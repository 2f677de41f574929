"""`fem-frames export`: writes the multilevel frame of a problem as arrays and as sparse matrices."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from fem_frames.commands.shared import declare, declare_first_level, declare_problem, problem_of, show


def add(subparsers: Any) -> None:
    parser = declare(
        subparsers,
        "export",
        run,
        "Writes the multilevel frame of a problem as .npz, which needs no DOLFINx to load. "
        "With --sparse also D, H and P_j as SciPy .npz files and the quadrature data of C_y.",
    )
    declare_problem(parser)
    declare_first_level(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the arrays go")
    parser.add_argument("--sparse", type=Path, metavar="FOLDER", help="where the sparse matrices go")
    parser.add_argument("--degree", type=int, help="quadrature degree of the sparse D; default: the problem's")
    parser.add_argument("--force", action="store_true", help="replace existing files")


def run(parsed: argparse.Namespace) -> None:
    from fem_frames.fenicsx.door import MPI
    from fem_frames.fenicsx.refinement import coarse_mesh
    from fem_frames.frame.export import export_frame
    from fem_frames.mesh.hierarchy import MeshHierarchy

    start = time.perf_counter()
    problem = problem_of(parsed)
    if MPI.COMM_WORLD.size > 1:  # all ranks gather a distributed mesh; one rank does the rest
        problem = replace(problem, mesh=coarse_mesh(problem.mesh))
        if MPI.COMM_WORLD.rank > 0:
            return
    problem.check_levels(parsed.levels)
    degree = problem.quadrature_degree if parsed.degree is None else parsed.degree
    _check_places(parsed, degree)
    hierarchy = MeshHierarchy.from_problem(problem, parsed.levels)
    arrays = export_frame(hierarchy, problem, parsed.formulation, parsed.first_level, parsed.coarse)
    seconds = time.perf_counter() - start
    if parsed.sparse is not None:
        write_sparse(arrays, degree, parsed.sparse)
    arrays.save(parsed.out)
    record = {
        "problem": problem.name,
        "formulation": parsed.formulation,
        "dimension": arrays.dimension,
        "levels": [arrays.first_level, arrays.finest_level],
        "coarse_level": arrays.has_coarse,
        "points": len(arrays.points),
        "cells": len(arrays.volumes),
        "nodal_size": arrays.nodal_size,
        "frame_size": arrays.frame_size,
        "level_sizes": {name: list(sizes) for name, sizes in arrays.level_sizes.items()},
        "seconds": round(seconds, 3),
        "out": str(parsed.out),
    }
    show(record | ({"sparse": str(parsed.sparse)} if parsed.sparse else {}), parsed.json)


def _check_places(parsed: argparse.Namespace, degree: int) -> None:
    from fem_frames.files import check_new, check_writable

    if not 1 <= degree <= 30:
        raise ValueError(f"--degree is {degree}; give 1 to 30")
    if parsed.degree is not None and parsed.sparse is None:
        raise ValueError("--degree is for the sparse D: give --sparse too")
    for place in (parsed.out, parsed.sparse):
        if place is not None:
            check_new(place, parsed.force)
    check_writable(parsed.out)
    if parsed.sparse is not None:
        if parsed.sparse.resolve() == parsed.out.resolve():
            raise ValueError(f"--out and --sparse are both {parsed.out}; the one is a file, the other a folder")
        if parsed.sparse.is_file():
            raise ValueError(f"{parsed.sparse} is a file; --sparse needs a folder")
        check_writable(parsed.sparse / "D.npz" if parsed.sparse.is_dir() else parsed.sparse)


def write_sparse(arrays: Any, degree: int, folder: Path) -> None:
    """Writes D.npz, H.npz, P_FAMILY_LEVEL.npz with SciPy, and C.npz with quadrature weights, points and regions."""
    import numpy as np
    from scipy import sparse

    from fem_frames.files import written_whole
    from fem_frames.frame import matrices

    data = matrices.quadrature_data(arrays, degree)
    made = {"D": matrices.quadrature_differential(arrays, degree), "H": matrices.synthesis(arrays)}
    for f in arrays.families:
        for index in range(0 if arrays.has_coarse else 1, len(arrays.levels)):
            made[f"P_{f.name}_{arrays.first_level + index:02d}"] = matrices.prolongation(arrays, index, f.name)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot make the folder {folder}: {error.strerror}") from error
    for old in folder.glob("P_*_[0-9][0-9].npz"):  # left by an export with more levels
        old.unlink()
    for name, matrix in made.items():
        with written_whole(folder / f"{name}.npz") as file:
            sparse.save_npz(file, sparse.csr_matrix(matrix))  # older SciPy can load only matrices, not sparse arrays
    with written_whole(folder / "C.npz") as file:
        np.savez_compressed(file, weights=data.weights, points=data.points, regions=data.regions)
