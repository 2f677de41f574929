"""First-order least squares on triangles: u in P1, the flux in Raviart-Thomas elements, and a loss that is an error.

    python demos/demo_least_squares_2d.py [--out FOLDER] [--levels 5] [--epochs 600]

A net learns u and σ = a ∇u for all coefficients that are constant on the four squares of a checkerboard, without a
single solve. Its loss ‖div σ + f‖² + ‖σ/a - ∇u‖² needs only the net's output, and is the square of its error in the
norm of the functional; the same residuals also bound the error in the energy norm. The demo compares both with true
errors, against the solution on a mesh two levels finer.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from fem_frames import (
    Frame,
    MeshHierarchy,
    export_frame,
    flux_at_centres,
    make_formulation,
    make_problem,
    solve_reference,
)
from fem_frames.solvers.bounds import norm_of
from fem_frames.solvers.solution import solve
from fem_frames.studies.levels import embedded
from fem_frames.studies.plots import new_figure, save
from training import Configuration, Surrogate, train
from training.metrics import evaluate

parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
parser.add_argument("--out", type=Path, default=Path("results"), help="folder for the picture; default: results")
parser.add_argument("--levels", type=int, default=5, help="refinements of the square; default: 5")
parser.add_argument("--epochs", type=int, default=600, help="training steps; default: 600")
arguments = parser.parse_args()
if arguments.levels < 2 or arguments.epochs < 1:
    parser.error("the checkerboard needs at least --levels 2, and training at least --epochs 1")
J = arguments.levels
problem = make_problem("checkerboard")


# ---- 1. Training ---------------------------------------------------------------------------------------
#
# The net returns coefficients of three families: hats for u, facet functions and curls of hats for σ. No other part of
# training knows about Raviart-Thomas elements.

configuration = Configuration(
    problem="checkerboard",
    formulation="least-squares",
    levels=J,
    optimizer="soap",
    level_decay=1.0,
    minimum_rate=3e-7,
    epochs=arguments.epochs,
    test_samples=64,
)
run = arguments.out / "least_squares_2d"
result = train(configuration, run, force=True)
surrogate = Surrogate.load(run)
print(f"{surrogate.net.parameter_count()} parameters, {arguments.epochs} steps in {result['seconds']:.0f} s")


# ---- 2. Accuracy ---------------------------------------------------------------------------------------
#
# The floor is the loss of the finite element solution by PETSc, which no net can beat. In float16 the net's parameters,
# activations and output are rounded; the loss of this output is evaluated exactly.

y = problem.parameters.sample(32, seed=1)
reference = solve_reference(problem, y, J, "least-squares", distribute="samples")
full = evaluate(surrogate, reference)
half = evaluate(surrogate.to("float16"), reference)
print(f"test loss {full.loss:.3e}, {full.ratio:.3f} times the floor; in float16 {half.ratio:.3f} times")


# ---- 3. The loss as an error bound ---------------------------------------------------------------------
#
# √loss is the error against the exact solution in the norm of the functional, √(‖div τ‖² + ‖τ/a - ∇e‖²) for the errors
# e of u and τ of σ. The bound for the energy norm √∫ a |∇e|² is that of Prager and Synge. The exact solution is not
# known, so the discrete solution two levels finer takes its place. The net's output is a function on that mesh too: its
# coefficients come first in each family.

finer = export_frame(MeshHierarchy.from_problem(problem, J + 2), problem, "least-squares")
fine = make_formulation(Frame.from_arrays(finer, "float64"), problem)
samples = torch.as_tensor(y[:8])
truth = solve(fine, samples, 1e-10).w
answer = embedded(surrogate.coefficients(y[:8]), surrogate.arrays, finer)
print(f"Bound divided by the error against level {J + 2}:")
errors, bounds = {}, {}
for norm in surrogate.formulation.norms:
    errors[norm.name] = norm_of(fine, answer - truth, samples, norm.name).numpy()
    found = surrogate.certify(y[:8], norm.name)
    bounds[norm.name] = found.value.numpy()
    ratio = bounds[norm.name] / errors[norm.name]
    print(f"  {norm.text}: {ratio.min():.3f} to {ratio.max():.3f}; relative error up to {found.relative.max():.1e}")
error, bound = errors["functional"], bounds["functional"]


# ---- 4. The picture ------------------------------------------------------------------------------------

figure = new_figure(13, 8)
grid = figure.subplots(2, 3)
arrays, values = surrogate.arrays, {k: v.double().numpy() for k, v in surrogate(y[:1]).items()}
x, cells = arrays.points, arrays.levels[-1].cells
for row, (title, fields) in zip(grid, {"net": values, "PETSc": reference.fields}.items(), strict=True):
    drawn = row[0].tripcolor(x[:, 0], x[:, 1], cells, fields["u"][0], shading="gouraud")
    figure.colorbar(drawn, ax=row[0], shrink=0.8)
    row[0].set_title(f"u, {title}")
    vectors = flux_at_centres(arrays, fields["sigma"][0])
    drawn = row[1].tripcolor(x[:, 0], x[:, 1], cells, facecolors=np.linalg.norm(vectors, axis=1), cmap="Blues")
    figure.colorbar(drawn, ax=row[1], shrink=0.8)
    # Streamlines need a grid; each of its squares holds two triangles.
    n = 2**J
    on_grid, column = np.zeros((2, n, n)), (arrays.centres * n).astype(int)
    for axis in range(2):
        np.add.at(on_grid[axis], (column[:, 1], column[:, 0]), vectors[:, axis] / 2)
    middle = (np.arange(n) + 0.5) / n
    row[1].streamplot(middle, middle, *on_grid, color="black", density=0.9, linewidth=0.7, arrowsize=0.8)
    row[1].set(title=f"σ, {title}", xlim=(0, 1), ylim=(0, 1))
    for axes in row[:2]:
        axes.set_aspect("equal")
        axes.set_axis_off()
difference = flux_at_centres(arrays, values["sigma"][0] - reference.fields["sigma"][0])
axes = grid[0, 2]
drawn = axes.tripcolor(x[:, 0], x[:, 1], cells, facecolors=np.linalg.norm(difference, axis=1), cmap="Reds")
figure.colorbar(drawn, ax=axes, shrink=0.8)
axes.set_aspect("equal")
axes.set_axis_off()
axes.set_title("difference of the fluxes")
axes = grid[1, 2]
axes.plot(error, bound, "o", color="tab:blue", label="eight samples")
ends = np.array([0.0, 1.1 * bound.max()])
axes.plot(ends, ends, color="gray", linewidth=0.8, label="equal")
axes.set(xlabel=f"error against level {J + 2}", ylabel="√loss", title="The loss knows the error, in its own norm")
axes.grid(alpha=0.3)
axes.legend(fontsize=8)
save(figure, arguments.out / "least_squares_2d.png")
print(f"picture: {arguments.out / 'least_squares_2d.png'}")

if arguments.epochs >= 400:
    assert full.ratio < 1.5
    assert half.ratio < 2
assert all((bounds[name] >= errors[name]).all() for name in bounds)
