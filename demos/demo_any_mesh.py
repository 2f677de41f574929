"""Frames on meshes as users bring them: is the condition number small, whatever the coarse mesh?

    python demos/demo_any_mesh.py [--nodes N] [--levels J] [--formulations energy least-squares] [--json FILE]

The frame of the paper starts with the hats of the coarse mesh, so its condition number grows with their number. The
coarse level below the first mesh, found by smoothed aggregation, stops this. For plates with two holes, a mesh whose
cells differ 1000-fold in size, an L-shape and a bracket in three dimensions (meshes.py), and for J = 0, 1, 2, the table
has

- cond: condition number of HᵀA_yH for a = 1; and without the coarse level, on the coarse mesh itself,
- CG: iterations of conjugate gradients on DᵀC_yD to a residual of 1e-6, the most over random y,
- float16: the error of the gradient near the solution, relative to the load, the largest over random y,
- bound: the error bound divided by the true error, the largest over random errors for a = 1, and over random y; for
  least squares against a solution two levels finer,
- D: forward and backward divided by a copy of input and output, in float32 for 64 samples, and the same number for the
  frame without its coarse level,
- seconds to refine the mesh and to export the frame.

The default takes ten minutes; `--nodes 2000` leaves out meshes with more points, and takes two.
"""

import json
import sys
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fem_frames import (
    Frame,
    FrameArrays,
    MeshArrays,
    MeshHierarchy,
    Problem,
    conjugate_gradients,
    export_frame,
    frame_condition,
)
from fem_frames.studies.efficiency import efficiency_rows
from fem_frames.studies.levels import formulations
from fem_frames.studies.rounding import rounding_rows

sys.path.insert(0, str(Path(__file__).parent))
import meshes

CASES = [("plate", 100), ("plate", 1500), ("plate", 20_000), ("graded", 5000), ("corner", 5000), ("bracket", 5000)]
LIMITS = {("energy", 2): 25, ("energy", 3): 40, ("least-squares", 2): 60}  # claims, by formulation and dimension
LONGDOUBLE = 300_000  # cells up to which float16 is compared with extended precision


def copies(arrays: FrameArrays) -> float:
    """D forward and backward, divided by a copy of input and output."""
    D = Frame.from_arrays(arrays, "float32").D
    x = torch.randn(arrays.frame_size, 64).T
    z = D(x)

    def seconds(run: object) -> float:
        found = []
        for _ in range(7):
            start = time.perf_counter()
            run()  # type: ignore[operator]
            found.append(time.perf_counter() - start)
        return min(found)

    return seconds(lambda: (D(x), D.T(z))) / seconds(lambda: (x.T.clone(), z.T.clone()))


def measure(name: str, problem: Problem, formulation: str, levels: int) -> list[dict]:
    assert isinstance(problem.mesh, MeshArrays)
    start = time.perf_counter()
    hierarchy = MeshHierarchy.from_problem(problem, levels)
    refined = time.perf_counter()
    arrays = export_frame(hierarchy, problem, formulation)
    exported = time.perf_counter()
    y = problem.parameters.sample(2, seed=1)
    middle = torch.as_tensor(problem.parameters.nominal[0])
    ones = np.repeat(problem.parameters.nominal, 4, axis=0)
    bounds, others = (
        {row["level"]: row["efficiency_most"] for row in efficiency_rows(arrays, problem, samples)}
        for samples in (ones, y)
    )
    plain = export_frame(MeshHierarchy.from_problem(problem, 0), problem, formulation, coarse="none")
    rows = []
    for level, exact in formulations(arrays, problem):
        row: dict[str, Any] = {"mesh": name, "points": len(problem.mesh.points), "formulation": formulation, "J": level}
        row["Nhat"] = exact.frame.frame_size
        row["cond"] = frame_condition(exact, middle, 1e-2)
        samples = torch.as_tensor(y)
        found = conjugate_gradients(exact.stable(samples), exact.load(samples), 1e-6, 2000)
        row["iterations"] = int(found.iterations.max())
        if len(exact.frame.arrays.volumes) <= LONGDOUBLE:
            (errors,) = rounding_rows(arrays, problem, y, ("float16",), ("recursive",), levels=[level])
            row["float16"] = errors["gradient_error"]
        row["bound"], row["bound_random"] = bounds.get(level), others.get(level)
        row["copies"] = copies(exact.frame.arrays)
        row["copies_plain"] = copies(export_frame(hierarchy, problem, formulation, coarse="none").coarsened(level))
        if level == 0:
            made = next(formulations(plain, problem, levels=[0]))[1]
            row["cond_plain"] = frame_condition(made, middle, 1e-2) if row["points"] < 6000 else None
        if level == levels:
            row["refine_seconds"], row["export_seconds"] = refined - start, exported - refined
        rows.append(row)
    return rows


def text(row: dict, key: str, shape: str) -> str:
    value = row.get(key)
    return "-" if value is None else format(value, shape)


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=20_000, help="leave out meshes with more points")
    parser.add_argument("--meshes", nargs="+", default=[name for name, _ in CASES], help="only these")
    parser.add_argument("--levels", type=int, default=2)
    parser.add_argument("--formulations", nargs="+", default=["energy", "least-squares"])
    parser.add_argument("--json", type=Path, help="write the table to this file too")
    arguments = parser.parse_args()
    print("mesh      points  form  J     Nhat   cond (hats alone)    CG  float16    bound (y)      D (hats)   seconds")
    found = []
    for formulation in arguments.formulations:
        for name, nodes in CASES:
            if (
                nodes > arguments.nodes
                or name not in arguments.meshes
                or (name == "bracket" and formulation != "energy")
            ):
                continue
            problem = getattr(meshes, name)(nodes=nodes)
            for row in measure(name, problem, formulation, arguments.levels):
                found.append(row)
                seconds = ", ".join(text(row, f"{key}_seconds", ".1f") for key in ("refine", "export"))
                print(
                    f"{name:9} {row['points']:6} {'(E)' if formulation == 'energy' else '(LS)':5} {row['J']:2} "
                    f"{row['Nhat']:8} {row['cond']:6.1f} {'(' + text(row, 'cond_plain', '.0f') + ')':>12}  "
                    f"{row['iterations']:6} {text(row, 'float16', '8.1e'):>8} {text(row, 'bound', '5.2f'):>5} "
                    f"{'(' + text(row, 'bound_random', '.2f') + ')':>6} "
                    f"{row['copies']:8.1f} ({row['copies_plain']:4.1f})   {seconds}",
                    flush=True,
                )
                limit = LIMITS[formulation, 3 if name == "bracket" else 2]
                assert row["cond"] <= limit, f"a condition number of {row['cond']:.0f} is larger than {limit}"
                assert row.get("float16", 0) <= 2e-3
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
