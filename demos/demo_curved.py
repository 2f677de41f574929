"""Boundaries that are curves: a refinement that follows them, the accuracy that this gains, and its small price.

    python demos/demo_curved.py [--out FOLDER] [--levels 5] [--poor]

The refinements of a mesh cover the polygon of the coarse mesh, however fine they are, so the error of a domain with
round holes does not fall below that of the polygon. With `Problem(..., curved={"hole": Circle(centre, radius)})` the
new points on the boundary of the hole are moved onto the circle. Prolongation, and with it H, does not change; D takes
states to moved cells by a small matrix per cell, and is exact.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from scipy.spatial import Delaunay

from fem_frames import (
    ByRegion,
    Circle,
    Frame,
    MeshArrays,
    MeshHierarchy,
    Problem,
    Uniform,
    export_frame,
    frame_bounds,
    make_formulation,
    solve,
    solve_reference,
)
from fem_frames.mesh.geometry import boundary_facets, orient
from fem_frames.studies.plots import new_figure, save

parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
parser.add_argument("--out", type=Path, default=Path("results"), help="folder for the picture; default: results")
parser.add_argument("--levels", type=int, default=5, help="finest level; default: 5")
parser.add_argument("--poor", action="store_true", help="take a poor coarse mesh of the plate")
arguments = parser.parse_args()
if arguments.levels < 3:
    parser.error("a rate needs at least --levels 3")
J = arguments.levels

# ---- 1. A disk, where everything is known --------------------------------------------------------------
#
# −Δu = 1 on the unit disk with u = 0 on its rim: u = (1 - |x|²)/4, ∫ u = ∫ |∇u|² = π/8. The coarse mesh is an octagon
# of eight triangles.


def tagged(points, cells, curves):
    """The mesh with its boundary facets in groups: one for each curve, and "outside"."""
    cells = orient(points, cells)
    facets = boundary_facets(cells)
    tags = np.full(len(facets), len(curves) + 1)
    for tag, curve in enumerate(curves.values(), start=1):
        off = [np.linalg.norm(curve(points[column]) - points[column], axis=1) for column in facets.T]
        tags[np.max(off, axis=0) < 1e-9] = tag
    names = {name: tag for tag, name in enumerate(curves, start=1)}
    return MeshArrays(points, cells, facets=facets, facet_tags=tags, facet_names=names | {"outside": len(curves) + 1})


def around(circle, count, first=0.1):
    angle = first + 2 * np.pi * np.arange(count) / count
    return np.array(circle.centre) + circle.radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)


rim = {"rim": Circle((0, 0), 1)}
octagon = np.concatenate([[[0.0, 0.0]], around(rim["rim"], 8)])
k = np.arange(8)
disk = tagged(octagon, np.stack([0 * k, 1 + k, 1 + (k + 1) % 8], axis=1), rim)
data = (ByRegion.each(1), Uniform((0.5,), (2.0,)))
one = torch.ones(1, 1, dtype=torch.float64)

print("−Δu = 1 on the unit disk: errors of its area, π, and of ∫ u, π/8")
print("  level    area, polygon   area, curved   ∫ u, polygon   ∫ u, curved")
rows = []
for level in range(1, J + 1):
    row = []
    for curves in ({}, rim):
        problem = Problem(disk, *data, curved=curves)
        arrays = export_frame(MeshHierarchy.from_problem(problem, level), problem)
        energy = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
        u = energy.synthesise(solve(energy, one, 1e-10).w)["u"][0].numpy()
        integral = arrays.volumes @ u[arrays.levels[-1].cells].mean(axis=1)
        row.append((abs(arrays.volumes.sum() - np.pi), abs(integral - np.pi / 8)))
    rows.append(row)
    (area, value), (curved_area, curved_value) = row
    print(f"  {level:5}         {area:.2e}       {curved_area:.2e}       {value:.2e}      {curved_value:.2e}")
errors = np.array(rows)  # (levels, polygon or curved, area or ∫ u)
rates = -np.polyfit(range(3), np.log2(errors[-3:, 1]), 1)[0]
print(f"  fitted rates with the curve: {rates[0]:.2f} and {rates[1]:.2f}; the polygon's errors stay.\n")
assert (np.abs(rates - 2) < 0.15).all(), "both converge with h²"
assert (errors[-1, 0] > 0.5 * errors[0, 0]).all(), "the polygon remains a polygon"

# ---- 2. A plate with two holes -------------------------------------------------------------------------
#
# With a good coarse mesh the curve costs nothing: condition numbers of HᵀA_yH for a = 1, and iterations of conjugate
# gradients to a relative residual of 1e-8 for four random y. With --poor the coarse mesh has eight points per hole and
# flat triangles beside them, which the circle flattens further.

holes = {"left": Circle((0.6, 0.5), 0.25), "right": Circle((1.5, 0.45), 0.2)}
count, steps, clear = (8, 4, 1.35) if arguments.poor else (12, 5, 1.9)
grid = np.stack(
    np.meshgrid(np.linspace(0, 2, 2 * steps + 1), np.linspace(0, 1, steps + 1), indexing="ij"), axis=-1
).reshape(-1, 2)
parts = []
for hole in holes.values():
    far = np.linalg.norm(grid - np.array(hole.centre), axis=1) > clear * hole.radius
    grid = grid[far | (not arguments.poor) & ((grid % (2, 1) == 0).any(axis=1))]  # the outer boundary stays
    parts.append(around(hole, count))
    if not arguments.poor:
        parts.append(around(Circle(hole.centre, 1.47 * hole.radius), count, 0.1 + np.pi / count))
points = np.concatenate([grid, *parts])
cells = Delaunay(points).simplices.astype(np.int64)
for hole in holes.values():
    cells = cells[np.linalg.norm(points[cells].mean(axis=1) - np.array(hole.centre), axis=1) > 0.95 * hole.radius]
plate = tagged(points, cells, holes)

print(f"A plate with two holes, {len(cells)} coarse cells")
print("cond(HᵀA_yH) of (E) for a = 1, and iterations to 1e-8 of (E) and (LS)")
print("  level   Nhat of (E)   cond, polygon   cond, curved   (E), polygon, curved   (LS), polygon, curved")
for level in range(1, J + 1):
    conditions, iterations = [], []
    for curves in ({}, holes):
        problem = Problem(plate, *data, dirichlet={"outside": 0.0}, curved=curves)
        hierarchy = MeshHierarchy.from_problem(problem, level)
        y = torch.as_tensor(problem.parameters.sample(4, seed=0))
        for name in ("energy", "least-squares"):
            frame = Frame.from_arrays(export_frame(hierarchy, problem, name), "float64")
            formulation = make_formulation(frame, problem)
            if name == "energy":
                lower, upper = frame_bounds(formulation, 1e-2)
                conditions.append(upper / lower)
                size = frame.frame_size
            iterations.append(int(solve(formulation, y, 1e-8, max_iterations=2000).iterations.max()))
    energy_steps, flux_steps = iterations[::2], iterations[1::2]  # polygon, curved
    told = f"{conditions[0]:13.0f} {conditions[1]:14.0f} {energy_steps[0]:15} {energy_steps[1]:7}"
    print(f"  {level:5}   {size:11}   {told} {flux_steps[0]:15} {flux_steps[1]:7}", flush=True)
if not arguments.poor:
    assert conditions[1] < 1.1 * conditions[0], "the curve must cost nothing"
    assert flux_steps[1] < 1.1 * flux_steps[0]

# ---- 3. The recursion is exact -------------------------------------------------------------------------

problem = Problem(plate, *data, dirichlet={"outside": 0.0}, curved=holes)
hierarchy = MeshHierarchy.from_problem(problem, 3)
arrays = export_frame(hierarchy, problem, "least-squares")
formulation = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
w = solve(formulation, one, 1e-12, max_iterations=2000).w
by_petsc = solve_reference(problem, [1.0], 3, "least-squares")
difference = np.abs(formulation.synthesise(w)["u"][0].numpy() - by_petsc.u[0]).max() / np.abs(by_petsc.u).max()
print(f"\n(LS) on level 3, frame and PETSc: u differs by {difference:.1e} of its maximum.")
assert difference < 1e-8

# ---- 4. The picture ------------------------------------------------------------------------------------


def draw(path):
    figure = new_figure(12.5, 6.6)
    panels = figure.subplots(2, 2, width_ratios=(1.5, 1))
    flat = MeshHierarchy.refine(plate, 2)
    for axes, (title, mesh, level) in zip(
        panels.ravel(),
        (
            ("the coarse mesh", hierarchy, 0),
            ("level 2 at the left hole: the polygon", flat, 2),
            ("level 2, with curved={'left': …, 'right': …}", hierarchy, 2),
            ("level 2 at the left hole: the circle", hierarchy, 2),
        ),
        strict=True,
    ):
        x, y = mesh.level_points(level).T
        axes.triplot(x, y, mesh.levels[level].cells, color="tab:blue", linewidth=1.0 if level == 0 else 0.6)
        for hole in holes.values():
            line = np.concatenate([around(hole, 200), around(hole, 200)[:1]])
            axes.plot(*line.T, color="tab:red", linewidth=1.0)
        if "left hole" in title:
            axes.set(xlim=(0.28, 0.92), ylim=(0.2, 0.8))
        axes.set_title(title, fontsize=11)
        axes.set_aspect("equal")
        axes.set_axis_off()
    save(figure, path)


arguments.out.mkdir(parents=True, exist_ok=True)
draw(arguments.out / "curved.png")
print(f"Picture: {arguments.out / 'curved.png'}")
