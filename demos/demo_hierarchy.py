"""Nested meshes, the multilevel frame on them, and reference solutions that converge with the expected rates.

    python demos/demo_hierarchy.py [--out FOLDER] [--refinements 5]
    mpirun -n 2 python demos/demo_hierarchy.py

Everything in fem-frames builds on a hierarchy of nested meshes T_0, …, T_J. Each carries the P1 hats φ_{j,k};
normalised in H1, the hats of all levels together form a frame of the finest space, with constants that do not
depend on J. This demo builds such hierarchies in one, two and three dimensions, draws them, solves on every level
with PETSc, and checks that the errors decay with the theoretical rates.
"""

import argparse
from pathlib import Path

import numpy as np
from mpi4py import MPI

from fem_frames import (
    ByRegion,
    Grid,
    MeshHierarchy,
    Problem,
    Uniform,
    error_norms,
    export_frame,
    make_problem,
    solve_reference,
)
from fem_frames.fenicsx.door import write_xdmf
from fem_frames.studies.plots import new_figure, save

parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
parser.add_argument("--out", type=Path, default=Path("results"), help="folder for picture and XDMF; default: results")
parser.add_argument("--refinements", type=int, default=5, help="of the L-shape; other meshes follow; default: 5")
arguments = parser.parse_args()
if arguments.refinements < 3:
    parser.error("a rate needs at least --refinements 3")
J = arguments.refinements
root = MPI.COMM_WORLD.rank == 0


def say(*words: object) -> None:
    if root:
        print(*words, flush=True)


# ---- 1. Your own problem, in a few lines ---------------------------------------------------------------
#
# −div(y ∇u) = f on the unit interval, square or cube with u = Π x_i (1 - x_i), and the Laplace equation on the
# L-shape with u = r^{2/3} sin(2θ/3), whose gradient is infinite at the re-entrant corner, so that uniform refinement
# converges in H1 only with rate 2/3.


def bubble(x):
    return np.prod(x * (1 - x), axis=-1)


def bubble_gradient(x):
    d = x.shape[-1]
    rest = [np.prod(np.delete(x * (1 - x), i, axis=-1), axis=-1) for i in range(d)]
    return np.stack([(1 - 2 * x[..., i]) * rest[i] for i in range(d)], axis=-1)


def bubble_source(x, y):
    d = x.shape[-1]
    return 2 * y[..., 0] * sum(np.prod(np.delete(x * (1 - x), i, axis=-1), axis=-1) for i in range(d))


def box(d):
    return Problem(Grid((1,) * d), ByRegion.each(1), Uniform((0.5,), (1.5,)), source=bubble_source, quadrature_degree=4)


def polar(x):
    angle = np.arctan2(x[..., 1], x[..., 0])
    return np.hypot(x[..., 0], x[..., 1]), np.where(angle < -1e-9, angle + 2 * np.pi, angle)


def corner(x):
    r, angle = polar(x)
    return r ** (2 / 3) * np.sin(2 / 3 * np.maximum(angle, 0))


def corner_gradient(x):
    r, angle = polar(x)
    return 2 / 3 * r[..., None] ** (-1 / 3) * np.stack([-np.sin(angle / 3), np.cos(angle / 3)], axis=-1)


lshape = make_problem("lshape")
singular = Problem(
    lshape.mesh, ByRegion({}, fixed={0: 1.0, 1: 1.0, 2: 1.0}), lshape.parameters, source=0.0, dirichlet_value=corner
)

# ---- 2. Hierarchies and rates --------------------------------------------------------------------------

cases = {
    "interval": (box(1), [1.0], bubble, bubble_gradient, J + 3, 1.0),
    "square": (box(2), [1.0], bubble, bubble_gradient, J + 1, 1.0),
    "L-shape, singular": (singular, [1.0] * 3, corner, corner_gradient, J + 1, 2 / 3),
    "cube": (box(3), [1.0], bubble, bubble_gradient, max(4, J - 1), 1.0),
}
curves = {}
say("Reference solutions on nested meshes: errors and rates (fitted over the last three levels)\n")
for name, (problem, y, exact, gradient, finest, expected) in cases.items():
    hierarchy = MeshHierarchy.from_problem(problem, finest)
    say(f"{name}\n  level   points    cells   H1 error   L2 error")
    rows = []
    for level in range(finest - 2, finest + 1):
        u = solve_reference(problem, y, level).u[0]
        cells = hierarchy.levels[level].cells
        rows.append(error_norms(hierarchy.level_points(level), cells, u, exact, gradient))
        say(f"  {level:5} {len(u):8} {len(cells):8}   {rows[-1][0]:.2e}   {rows[-1][1]:.2e}")
    curves[name] = np.array(rows), finest
    rates = -np.polyfit(range(3), np.log2(rows), 1)[0]
    say(f"  rates in H1 and L2: {rates[0]:.2f} and {rates[1]:.2f}, expected {expected:.2f} and {2 * expected:.2f}\n")
    assert abs(rates[0] - expected) < 0.08, f"H1 rate {rates[0]:.3f} on {name}"
    assert abs(rates[1] - 2 * expected) < 0.2, f"L2 rate {rates[1]:.3f} on {name}"

# ---- 3. The frame ---------------------------------------------------------------------------------------

hierarchy = MeshHierarchy.from_problem(lshape, J)
arrays = export_frame(hierarchy, lshape)
sizes = arrays.families[0].level_sizes
say(f"The frame on the L-shape: {sizes} hats on levels {arrays.first_level} to {arrays.finest_level},")
say(f"together Nhat = {arrays.frame_size} coefficients for N = {arrays.nodal_size} nodal values.\n")
assert sum(sizes) == arrays.frame_size < 4 / 3 * arrays.nodal_size

# ---- 4. Solutions for several y ------------------------------------------------------------------------

samples = np.array([[1.0, 1.0, 1.0], [0.5, 1.5, 1.5], [1.5, 1.5, 0.5]])
solutions = solve_reference(lshape, samples, J, distribute="samples")

if root:
    arguments.out.mkdir(parents=True, exist_ok=True)
    fields = {f"u_{i}": u for i, u in enumerate(solutions.u)}
    write_xdmf(arguments.out / "lshape.xdmf", hierarchy.points, hierarchy.finest.cells, **fields)

# ---- 5. The picture ------------------------------------------------------------------------------------


def draw(path):
    from matplotlib import colormaps

    figure = new_figure(13, 7.6)
    above, below = figure.subfigures(2, 1, height_ratios=(1.1, 1))
    left, right = below.subfigures(1, 2, width_ratios=(1.5, 1))
    colors = colormaps["viridis"](np.linspace(0, 0.85, 4))

    axes = above.add_subplot(1, 3, 1)
    axes.set_title("H1-normalised hats on the interval")
    interval = export_frame(MeshHierarchy.from_problem(box(1), 4), box(1))
    hats = interval.families[0]
    for j, (free, scale) in enumerate(zip(hats.free, hats.scale, strict=True), start=1):
        for point, height in zip(interval.points[free, 0], scale, strict=True):
            tent = [point - 2.0**-j, point, point + 2.0**-j]
            axes.plot(tent, [-0.55 * j, height - 0.55 * j, -0.55 * j], color=colors[j - 1], linewidth=1.4)
        axes.text(-0.02, -0.55 * j, f"level {j}", ha="right", va="center")
    axes.set_axis_off()

    axes = above.add_subplot(1, 3, 2)
    axes.set_title("nested meshes on the L-shape, levels 0 to 3")
    for j in (3, 2, 1, 0):
        cells, points = hierarchy.levels[min(j, J)].cells, hierarchy.points
        axes.triplot(points[:, 0], points[:, 1], cells, color=colors[j], linewidth=2.6 - 0.7 * j)
    axes.set_aspect("equal")
    axes.set_axis_off()

    axes = above.add_subplot(1, 3, 3, projection="3d")
    axes.set_title("surface of the cube, level 2")
    cube = MeshHierarchy.from_problem(make_problem("cube"), 2)
    x, facets = cube.points, cube.finest.facets
    axes.plot_trisurf(*x.T, triangles=facets, color="white", edgecolor=colors[1], linewidth=0.7, shade=False)
    axes.set_box_aspect((1, 1, 1))
    axes.set_axis_off()

    top = solutions.u.max()
    panels = left.subplots(1, 3)
    for axes, y, u in zip(panels, samples, solutions.u, strict=True):
        image = axes.tripcolor(
            *hierarchy.points.T, hierarchy.finest.cells, u, shading="gouraud", vmin=0, vmax=top, cmap="magma"
        )
        axes.tricontour(*hierarchy.points.T, hierarchy.finest.cells, u, levels=8, colors="white", linewidths=0.4)
        axes.set_title("y = (" + ", ".join(f"{v:g}" for v in y) + ")", fontsize=11)
        axes.set_aspect("equal")
        axes.set_axis_off()
    left.colorbar(
        image, ax=panels, location="bottom", shrink=0.5, label="u(y) by PETSc, f = 1, a = y on the three squares"
    )

    axes = right.subplots()
    axes.set_title("errors against the mesh size")
    for color, (name, (rows, finest)) in zip(colormaps["tab10"].colors, curves.items(), strict=False):
        h = 2.0 ** -np.arange(finest - 2, finest + 1)
        axes.loglog(h, rows[:, 0], "o-", color=color, base=2, label=f"{name}, H1")
        axes.loglog(h, rows[:, 1], "s--", color=color, base=2, markerfacecolor="white")
    axes.set_xlabel("h")
    axes.set_yscale("log", base=10)
    axes.plot([], [], "ks--", markerfacecolor="white", label="the same, L2")
    axes.legend(fontsize=9)
    axes.grid(alpha=0.3)
    save(figure, path)


if root:
    draw(arguments.out / "hierarchy.png")
    say(f"Picture: {arguments.out / 'hierarchy.png'}; for ParaView: {arguments.out / 'lshape.xdmf'}")
