"""A stable multilevel frame for Raviart-Thomas elements: facet functions and curls of hats on every level.

    python demos/demo_hdiv_frame.py [--out FOLDER] [--levels 7]

The paper treats least squares in one dimension only: a uniformly stable frame for the flux on triangles "remains open".
This demo measures one. With the facet functions of all levels alone the condition number in H(div) grows fourfold per
level, as if there were no frame. With the curls of the hats of all levels it stays bounded: on squares, next to
re-entrant corners, in space, and around holes if the few harmonic fields of the coarsest mesh are added.
"""

import argparse
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from fem_frames import (
    Frame,
    MeshHierarchy,
    export_frame,
    flux_at_centres,
    flux_bounds,
    make_formulation,
    make_problem,
)
from fem_frames.studies.plots import new_figure, save

parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
parser.add_argument("--out", type=Path, default=Path("results"), help="folder for the picture; default: results")
parser.add_argument("--levels", type=int, default=7, help="finest level on the square; default: 7")
arguments = parser.parse_args()
if arguments.levels < 4:
    parser.error("growth over the levels needs at least --levels 4")
J = arguments.levels


# ---- 1. Condition numbers in H(div) --------------------------------------------------------------------
#
# All functions have norm one. The condition number is that of their Gram matrix in H(div) without its kernel: C/c in
#
#     c ‖v‖² ≤ ‖Σ v_k φ_k‖² in H(div) ≤ C ‖v‖²    for v orthogonal to all v that give zero,
#
# computed by Lanczos on the finest level. A divergence-free field has a small norm, but facet functions all have
# divergences of order 1/h, so they need large cancelling coefficients to represent it. Curls are divergence-free.


def conditions(problem, levels, change=lambda arrays: arrays):
    arrays = change(export_frame(MeshHierarchy.from_problem(problem, levels), problem, "least-squares"))
    found = []
    for level in range(1, levels + 1):
        low, high = flux_bounds(make_formulation(Frame.from_arrays(arrays.coarsened(level), "float64"), problem))
        found.append(high / low)
    return found


def without_harmonic_fields(arrays):
    """The harmonic fields are the last functions of the curls on the first level."""
    *others, curl = arrays.families
    hats = curl.functions[0].part(0, len(curl.free[0]))
    return replace(arrays, families=(*others, replace(curl, functions=(hats, *curl.functions[1:]))))


# The families alone, without a coarse level: on the ring it would hide what the harmonic field does.
square, ring = make_problem("checkerboard"), replace(make_problem("ring"), coarse="none")
curves = {
    "square, facets alone": conditions(square, min(J, 4), lambda arrays: arrays.without("curl")),
    "square, facets and curls": conditions(square, J),
    "L-shape, facets and curls": conditions(make_problem("lshape"), J - 1),
    "cube, facets and curls of edges": conditions(make_problem("cube"), J - 3),
    "ring, without the harmonic field": conditions(ring, J - 2, without_harmonic_fields),
    "ring, with it": conditions(ring, J - 2),
}
print("condition number in H(div) of the multilevel frame of σ, on the levels 1, 2, …")
for label, values in curves.items():
    print(f"  {label:34}" + "".join(f"{v:10.4g}" for v in values))

alone, frame = curves["square, facets alone"], curves["square, facets and curls"]
cube = curves["cube, facets and curls of edges"]
print(f"facets alone: times {', '.join(f'{b / a:.1f}' for a, b in pairwise(alone))} from level to level")
print(f"with curls:   times {', '.join(f'{b / a:.2f}' for a, b in pairwise(frame))}")
assert all(3.5 < b / a < 5 for a, b in pairwise(alone))
assert frame[-1] < 22
assert all(curves[label][-1] < 1.35 * curves[label][-2] for label in curves if label.endswith(("curls", "with it")))
assert all(b - a < 0.85 * (a - before) for before, a, b in zip(*(cube[i:] for i in range(3)), strict=False))
assert curves["ring, without the harmonic field"][-1] > 5 * curves["ring, with it"][-1]


# ---- 2. The picture ------------------------------------------------------------------------------------

arguments.out.mkdir(parents=True, exist_ok=True)
figure = new_figure(12, 5)
left, right = figure.subplots(1, 2, width_ratios=(1.6, 1))
styles = ("s--", "o-", "^-", "D-", "v--", "v-")
colors = ("tab:red", "tab:blue", "tab:green", "tab:purple", "tab:orange", "tab:brown")
for (label, values), style, color in zip(curves.items(), styles, colors, strict=True):
    left.semilogy(range(1, len(values) + 1), values, style, color=color, label=label)
left.set(xlabel="level J", ylabel="condition number in H(div)", title="Frames for Raviart-Thomas elements")
left.grid(alpha=0.3, which="both")
left.legend(fontsize=8)

arrays = export_frame(MeshHierarchy.from_problem(ring, 1), ring, "least-squares", 0).coarsened(0)
harmonic = arrays.families[-1].functions[0].part(len(arrays.families[-1].free[0]), arrays.families[-1].level_sizes[0])
fluxes = np.zeros(len(arrays.fields[1].lift[0]))
fluxes[harmonic.columns] = harmonic.weights
vectors = flux_at_centres(arrays, fluxes)
x, cells = arrays.points, arrays.levels[0].cells
drawn = right.tripcolor(x[:, 0], x[:, 1], cells, facecolors=np.linalg.norm(vectors, axis=1), cmap="Blues")
right.triplot(x[:, 0], x[:, 1], cells, color="gray", linewidth=0.5)
right.quiver(*arrays.centres.T, *vectors.T, pivot="middle", color="black", width=0.006)
right.set_aspect("equal")
right.set_axis_off()
right.set_title("The harmonic field of the ring: no divergence,\nbut a net flux across its rim, unlike any curl")
save(figure, arguments.out / "hdiv_frame.png")
print(f"picture: {arguments.out / 'hdiv_frame.png'}")
