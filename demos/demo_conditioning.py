"""A frame conditions the problem alike on every mesh: condition numbers, iterations, and a reliable error bound.

    python demos/demo_conditioning.py [--out FOLDER] [--levels 6] [--frames FOLDER]

In the nodal basis the matrix A_y of −div(a_y ∇u) = f has a condition number that grows like 4^J. In the multilevel
frame it becomes HᵀA_yH = DᵀC_yD, whose condition number on the complement of its kernel is bounded for all J. The
second form is a product of well-conditioned factors. With --frames the exported frames are saved in a folder, or
loaded from it, which needs no DOLFINx.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from fem_frames import Frame, make_formulation, make_problem, solve
from fem_frames.studies.conditioning import condition_rows
from fem_frames.studies.efficiency import efficiency_rows
from fem_frames.studies.iterations import iteration_rows
from fem_frames.studies.levels import cached_frame, nominal_parameters
from fem_frames.studies.plots import new_figure, save

parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
parser.add_argument("--out", type=Path, default=Path("results"), help="folder for the picture; default: results")
parser.add_argument("--levels", type=int, default=6, help="finest level in two dimensions; default: 6")
parser.add_argument("--frames", type=Path, help="folder for exported frames, made if missing")
arguments = parser.parse_args()
if arguments.levels < 4:
    parser.error("growth over the levels needs at least --levels 4")
J = arguments.levels


def frame_arrays(name, levels, formulation, first_level=None):
    problem = make_problem(name)
    return problem, cached_frame(problem, levels, formulation, first_level, arguments.frames)


# ---- 1. The paper's example in one dimension, by hand --------------------------------------------------
#
# On (0, 1) the hats of level j have slopes ±2^j times their height s_j = (2 · 2^j + 2/3 · 2^-j)^(-1/2), which makes
# their H1 norm one. (The paper's example prints heights 2^-j; its theorem needs 2^(-j/2), which equals s_j up to a
# constant.) Du is the slope on each of the 2^J finest intervals; scaled by |T|^(1/2), its Euclidean norm is the L2 norm
# of u', and C_y is the diagonal matrix of the values of a_y.

problem, arrays = frame_arrays("quarters", 3, "energy")
energy = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
y = torch.tensor([0.5, 1.5, 1.0, 0.75], dtype=torch.float64)
x_cell, columns = arrays.centres[:, 0], []
for j, free in enumerate(arrays.fields[0].free, start=arrays.first_level):
    s = (2 * 2.0**j + 2 / 3 * 2.0**-j) ** -0.5
    for x in arrays.points[free, 0]:
        inside = np.abs(x_cell - x) < 2.0**-j
        columns.append(np.where(inside, np.sign(x - x_cell) * 2.0**j * s, 0.0))
D = np.stack(columns, axis=1) * 2 ** (-3 / 2)
C = np.diag(y.numpy()[np.floor(4 * x_cell).astype(int)])
print("The paper's example, J = 3: D by hand and by the recursion,")
print(f"  largest difference {np.abs(D - energy.frame.D.to_dense().numpy()).max():.1e};")
print(f"DᵀC_yD by hand and HᵀA_yH, {np.abs(D.T @ C @ D - energy.bpx(y).to_dense()[0].numpy()).max():.1e}.\n")
assert np.abs(D - energy.frame.D.to_dense().numpy()).max() < 1e-14
assert np.abs(D.T @ C @ D - energy.bpx(y).to_dense()[0].numpy()).max() < 1e-13

# ---- 2. Condition numbers ------------------------------------------------------------------------------
#
# Computed by Lanczos, without dense matrices. In one dimension (LS) has the flux as a second field, from level 0 on.

cases = {
    "(E), square": frame_arrays("checkerboard", J, "energy"),
    "(LS), interval": frame_arrays("quarters", J + 4, "least-squares", 0),
}
conditions = {}
for title, (problem, arrays) in cases.items():
    rows = conditions[title] = list(condition_rows(arrays, problem, nominal_parameters(problem)))
    print(f"{title}, a = 1\n  level       A_y   HᵀA_yH        D      C_y")
    for r in rows:
        print(f"  {r['level']:5} {r['cond_A']:9.3g} {r['cond_bpx']:8.2f} {r['cond_D']:8.2f} {r['cond_C']:8.2f}")
    print()
    assert rows[-1]["cond_A"] > 3.5 * rows[-2]["cond_A"], "A_y must grow fourfold"
    assert rows[-1]["cond_bpx"] < 12, "HᵀA_yH must stay bounded"
    assert rows[-1]["cond_bpx"] - rows[-2]["cond_bpx"] < rows[-2]["cond_bpx"] - rows[-3]["cond_bpx"] + 0.05

# ---- 3. Iterations of conjugate gradients --------------------------------------------------------------
#
# Conjugate gradients for random y, to a relative residual of 1e-6. In float32 both frame forms seem to converge alike,
# but the residual evaluated afterwards in float64 shows that HᵀA_yH lost digits that DᵀC_yD kept.

iterations = {}
for title, (problem, arrays) in cases.items():
    y_random = problem.parameters.sample(4, seed=0)
    rows = iterations[title] = list(iteration_rows(arrays, problem, y_random, 1e-6, ("float64", "float32")))
    print(f"{title}: iterations (true residual)\n  level  dtype             A_y            HᵀA_yH            DᵀC_yD")
    for r in rows:
        told = [(r[f"{k}_iterations"], r[f"{k}_residual"]) for k in ("nodal", "bpx", "stable")]
        print(f"  {r['level']:5}  {r['dtype']}  " + "  ".join(f"{n or '>5000':>6} ({e:.0e})" for n, e in told))
    print()
    nodal, stable = ([r[f"{k}_iterations"] for r in rows if r["dtype"] == "float64"] for k in ("nodal", "stable"))
    assert nodal[-1] > 1.8 * nodal[-2], "without a frame they double with every level"
    assert stable[-1] - stable[-2] <= max(2, 0.8 * (stable[-2] - stable[-3])), "with the frame they level off"
    assert rows[-1]["stable_residual"] < 2e-6, "DᵀC_yD must keep its digits in float32"

# ---- 4. From float16 to full accuracy ------------------------------------------------------------------

problem, arrays = cases["(E), square"]
y_half = torch.as_tensor(problem.parameters.sample(4, seed=0)).half()
solution = solve(make_formulation(Frame.from_arrays(arrays, "float16"), problem), y_half, 1e-12)
print(f"Conjugate gradients in float16, refined in float64: residual {float(solution.residual.max()):.0e} after")
print(f"{int(solution.iterations.max())} iterations in {solution.refinements} refinements.\n")
assert float(solution.residual.max()) <= 1e-12

# ---- 5. A reliable error bound -------------------------------------------------------------------------
#
# (E): because the frame is uniformly stable, the Euclidean norm of the residual bounds the error against the discrete
# solution, in the energy norm √∫ a |∇e|². (LS): the root of the loss is the error against the exact solution in another
# norm, that of the functional: √(‖div τ‖² + ‖τ/a - ∇e‖²) for the errors e of u and τ of σ. The energy norm is bounded
# by the theorem of Prager and Synge. Efficiency is the bound divided by the error in the same norm, over random y. For
# (E) the error is a random perturbation of the discrete solution, for (LS) that of the discrete solution itself.

for title, (problem, arrays) in cases.items():
    for norm in ("energy",) if arrays.formulation == "energy" else ("functional", "energy"):
        rows = list(efficiency_rows(arrays, problem, problem.parameters.sample(16, seed=1), norm=norm))
        least, most = min(r["efficiency_least"] for r in rows), max(r["efficiency_most"] for r in rows)
        print(f"{title}, {norm} norm, against the {rows[0]['against']}:")
        print(f"  the bound is between {least:.4f} and {most:.4f} times the true error, on all levels.")
        if arrays.formulation != "energy":
            print(f"  Relative errors on level {rows[-1]['level']}: up to {100 * rows[-1]['relative_most']:.2g} %.")
        assert least >= 1
        assert most < 4

# ---- 6. The picture ------------------------------------------------------------------------------------


def draw(path):
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(10.5, 7.4)
    panels = figure.subplots(2, 2, sharex="col")
    styles = {"A": ("A_y", "tab:red", "o"), "bpx": ("HᵀA_yH = DᵀC_yD", "tab:blue", "D")}
    factors = {"D": ("D on ker(F)^⊥", "tab:green", "s"), "C": ("C_y on ran D", "tab:gray", "^")}
    for (above, below), title in zip(panels.T, cases, strict=True):
        rows = conditions[title]
        for key, (label, color, marker) in (styles | factors).items():
            levels, values = [r["level"] for r in rows], [r[f"cond_{key}"] for r in rows]
            above.semilogy(levels, values, color=color, marker=marker, markersize=5, label=label)
        above.set(title=f"{title}, a = 1", ylabel="condition number")
        for dtype, line in (("float64", "-"), ("float32", "--")):
            mine = [r for r in iterations[title] if r["dtype"] == dtype]
            for key, (label, color, marker) in zip(("nodal", "stable"), styles.values(), strict=True):
                shown = "DᵀC_yD" if key == "stable" else label
                values = [r[f"{key}_iterations"] for r in mine]
                below.semilogy(
                    [r["level"] for r in mine],
                    [np.nan if v is None else v for v in values],
                    line,
                    color=color,
                    marker=marker,
                    markersize=5,
                    label=f"{shown}, {dtype}",
                )
        below.set(xlabel="level J", ylabel="iterations to 1e-6, random y")
        below.xaxis.set_major_locator(MaxNLocator(integer=True))
        for axes in (above, below):
            axes.grid(alpha=0.3)
    panels[0, 0].legend(fontsize=9)
    panels[1, 0].legend(fontsize=9)
    save(figure, path)


arguments.out.mkdir(parents=True, exist_ok=True)
draw(arguments.out / "conditioning.png")
print(f"\nPicture: {arguments.out / 'conditioning.png'}")
