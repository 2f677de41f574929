"""Where digits are lost: residual, gradient and loss near the solution, by four routes in three precisions.

    python demos/demo_rounding.py [--out FOLDER] [--levels 7] [--frames FOLDER]

HᵀA_yH and DᵀC_yD are the same well-conditioned matrix. Evaluated as the first product it loses digits with every
level, because H and A_y are ill conditioned; evaluated as the second it need not. How D is evaluated matters too: the
recursion over levels keeps all sums short, so that float16 suffices. With --frames the exported frames are saved in a
folder, or loaded from it, which needs no DOLFINx.
"""

import argparse
from pathlib import Path

from fem_frames import make_problem
from fem_frames.studies.levels import cached_frame
from fem_frames.studies.plots import ROUTE_STYLES, new_figure, save
from fem_frames.studies.rounding import rounding_rows

parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
parser.add_argument("--out", type=Path, default=Path("results"), help="folder for the picture; default: results")
parser.add_argument("--levels", type=int, default=7, help="finest level in two dimensions; default: 7")
parser.add_argument("--frames", type=Path, help="folder for exported frames, made if missing")
arguments = parser.parse_args()
if arguments.levels < 4:
    parser.error("growth over the levels needs at least --levels 4")
J = arguments.levels
DTYPES = ("float16", "float32", "float64")


def frame_arrays(name, levels, formulation):
    problem = make_problem(name)
    return problem, cached_frame(problem, levels, formulation, None, arguments.frames)


# ---- 1. Errors near the solution -----------------------------------------------------------------------
#
# The discrete solution for random y is rounded to each precision. There the residual DᵀC_yD w - load is tiny compared
# with its two terms, and so is the true loss of (LS). The true values at the rounded solution are computed in extended
# precision; errors are relative to the load.

cases = {
    "(LS), interval": frame_arrays("quarters", J + 3, "least-squares"),
    "(E), square": frame_arrays("checkerboard", J, "energy"),
}
tables = {}
for title, (problem, arrays) in cases.items():
    rows = tables[title] = list(rounding_rows(arrays, problem, problem.parameters.sample(4, seed=0)))
    levels = sorted({r["level"] for r in rows})
    shown = slice(0, None, (len(levels) - 1) // 2)
    print(f"{title}: error of the gradient on the levels {levels[shown]}")
    for dtype in DTYPES:
        for route, (label, _, _) in ROUTE_STYLES.items():
            errors = [r["gradient_error"] for r in rows if (r["dtype"], r["route"]) == (dtype, route)]
            print(f"  {dtype}  {label:22}" + "".join(f"  {e:.0e}" for e in errors[shown]))
    print()


def finest(title, dtype, route):
    return next(r for r in tables[title][::-1] if (r["dtype"], r["route"]) == (dtype, route))


# ---- 2. Consequences for the loss ----------------------------------------------------------------------
#
# The least-squares loss is an error estimate if it can be computed. As a sum of squared residuals of the states it can,
# even in float16; as a quadratic form in nodal values it is noise, often negative.

print("(LS) loss of the discrete solution, on the finest level")
print("  dtype        true value   DᵀC_yD, recursive       HᵀA_yH")
for dtype in DTYPES:
    good, bad = finest("(LS), interval", dtype, "recursive"), finest("(LS), interval", dtype, "bpx")
    print(f"  {dtype}   {good['loss_true']:12.3e}   {good['loss']:17.3e} {bad['loss']:12.3e}")

# ---- 3. The claims -------------------------------------------------------------------------------------

unit = {"float16": 2**-11, "float32": 2**-24, "float64": 2**-53}
for title in cases:
    for dtype in DTYPES:
        errors = [r["gradient_error"] for r in tables[title] if (r["dtype"], r["route"]) == (dtype, "recursive")]
        assert max(errors) < 4 * unit[dtype], f"{title}, {dtype}: the recursion must not lose digits"
    coarse, fine = (
        [r["gradient_error"] for r in tables[title] if (r["dtype"], r["route"]) == ("float32", "bpx")][i]
        for i in (2, -1)
    )
    assert fine > 2 * coarse, f"{title}: HᵀA_yH must lose digits with the level"
good, bad = finest("(LS), interval", "float16", "recursive"), finest("(LS), interval", "float16", "bpx")
assert 0.1 < good["loss"] / good["loss_true"] < 10
assert abs(bad["loss"]) > 100 * bad["loss_true"]

# ---- 4. The picture ------------------------------------------------------------------------------------


def draw(path):
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(12, 7.2)
    panels = figure.subplots(2, 3, sharex="row")
    for row, title in zip(panels, cases, strict=True):
        for axes, dtype in zip(row, DTYPES, strict=True):
            for route, (label, color, marker) in ROUTE_STYLES.items():
                mine = [r for r in tables[title] if (r["dtype"], r["route"]) == (dtype, route)]
                levels, errors = [r["level"] for r in mine], [r["gradient_error"] or float("nan") for r in mine]
                axes.semilogy(levels, errors, color=color, marker=marker, markersize=4, label=label)
            axes.axhline(unit[dtype], color="black", linewidth=0.8, linestyle=":")
            axes.set(title=f"{title}, {dtype}", xlabel="level J")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.grid(alpha=0.3)
        row[0].set_ylabel("relative error of the gradient")
    panels[0, 1].legend(fontsize=9)
    figure.suptitle("Rounding errors near the solution; dotted: the unit roundoff")
    save(figure, path)


arguments.out.mkdir(parents=True, exist_ok=True)
draw(arguments.out / "rounding.png")
print(f"\nPicture: {arguments.out / 'rounding.png'}")
