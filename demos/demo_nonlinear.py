"""A nonlinear energy of one's own: two layers of a fluid that thickens as it is sheared, with bounds for a surrogate.

    python demos/demo_nonlinear.py [--levels J] [--epochs N] [--out FOLDER]

A chute is filled with two fluids, one above the other. Both flow along it, with velocity u over its cross-section; they
stick to the chute and are free above. Their viscosity μ grows with the shear |∇u|, as it does for starch in water:

    minimise  ∫ a ψ(|∇u|²) − f u  with  ψ(q) = (1 + m q)^{3/2} / 3m,
    so that  −div(μ ∇u) = f  with  μ = a (1 + m |∇u|²)^{1/2}.

The parameters are a of the lower fluid, a of the upper one, m of both, and the pull f. The energy below is all that is
written for this equation. Its second derivative is found to be at least that of ½ ∫ a |∇u|², so errors have bounds.
"""

import time
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import torch

from fem_frames import Equation, Field, MeshArrays, Problem, Uniform, error_bound, solve_reference
from fem_frames.solvers.newton import newton
from fem_frames.studies.plots import new_figure, save
from training import Configuration, Surrogate, train

parser = ArgumentParser(description="A thickening fluid: a nonlinear energy in UFL, a surrogate, bounds, Newton steps.")
parser.add_argument("--levels", type=int, default=4)
parser.add_argument("--epochs", type=int, default=500)
parser.add_argument("--out", type=Path, default=Path("results"))
arguments = parser.parse_args()
arguments.out.mkdir(parents=True, exist_ok=True)

# ---- 1. The cross-section: 2 × 1, a layer on a layer, with walls on three sides --------------------------

points = np.array([(i, j / 2) for j in range(3) for i in range(3)], float)
corner = np.array([0, 1, 3, 4])
chute = MeshArrays(
    points,
    np.concatenate([[(i, i + 1, i + 4), (i, i + 4, i + 3)] for i in corner]),
    regions=np.repeat([0, 1], 4),
    facets=np.array([[0, 1], [1, 2], [0, 3], [3, 6], [2, 5], [5, 8]]),
    facet_tags=np.full(6, 1),
    region_names={"lower": 0, "upper": 1},
    facet_names={"wall": 1},
)

# ---- 2. The equation -------------------------------------------------------------------------------------


def energy(u, y, x, dx, ds):
    from ufl import grad, inner

    stored = (1 + y[2] * inner(grad(u), grad(u))) ** 1.5 / (3 * y[2])
    return y[0] * stored * dx("lower") + y[1] * stored * dx("upper") - y[3] * u * dx


problem = Problem(
    chute,
    Equation(Field("u"), energy=energy),
    Uniform((0.5, 0.5, 0.2, 2.0), (2.0, 2.0, 2.0, 10.0)),
    dirichlet={"wall": 0.0},
    name="chute",
)

# ---- 3. A surrogate, trained on the energy, and its bounds -----------------------------------------------

settings = Configuration(
    levels=arguments.levels, optimizer="soap", level_decay=1.0, epochs=arguments.epochs, test_samples=32
)
start = time.perf_counter()
result = train(settings, arguments.out / "chute", problem=problem, force=True, quiet=True)
seconds = time.perf_counter() - start
surrogate = Surrogate.load(arguments.out / "chute")  # the frame holds the energy as a program
arrays, exact = surrogate.arrays, surrogate.formulation
print(f"frame: {arrays}")
print(f"trained {result['parameters']} weights in {seconds:.0f} s, mean relative error {result['test']['mre']:.1e}")

y = problem.parameters.sample(12, seed=11)
samples = torch.as_tensor(y)
bound = surrogate.certify(y)
reference = solve_reference(problem, y, arguments.levels)  # PETSc's SNES
truth = exact.coordinates.coefficients(exact.coordinates.free(reference.fields, y=y))
error = exact.energy_norm(exact.frame.D(surrogate.coefficients(y) - truth), samples)
ratio = (bound.value / error).numpy()
print(f"bound / error against PETSc's SNES: {ratio.min():.2f} to {ratio.max():.2f}")
print(f"the norm is the {bound.norm}")

# ---- 4. Newton's method, from the net's answer and from zero ---------------------------------------------

TOL = 1e-8
better = surrogate.improve(y, tol=TOL)


def bounds_by_step(first):
    """(steps + 1, B) error bounds at `first` and after each Newton step.

    They are NaN for samples that were below TOL before.
    """
    bounds = []

    def good(w, places):
        bounds.append(np.full(len(y), np.nan))
        bounds[-1][places] = error_bound(exact, w, samples[places])
        return torch.as_tensor(bounds[-1][places] <= TOL)

    newton(exact, samples, 1e-13, start=first, until=good)
    found = np.array(bounds)
    found[1:][found[:-1] <= TOL] = np.nan
    return found


from_net, from_zero = (bounds_by_step(first) for first in (surrogate.coefficients(y), None))
net_steps, zero_steps = ((bounds > TOL).sum(axis=0) for bounds in (from_net, from_zero))
off = exact.energy_norm(exact.frame.D(better.w - truth), samples)
petsc = error_bound(exact, truth, samples)
print(f"improved to a bound of {TOL:g} in {better.iterations.min()} to {better.iterations.max()} multigrid iterations,")
print(f"in {net_steps.max()} Newton steps at most; from zero in {zero_steps.max()} at most")
print(f"distance to PETSc's solutions {off.max():.1e}; the bound for theirs is {petsc.max():.1e}")

# ---- 5. Velocity, viscosity, and bounds ------------------------------------------------------------------


def viscosity(u, sample):
    """(K,) μ on the cells, from velocities (N,) at the points."""
    level = arrays.levels[-1]
    slope = np.einsum("kl,kli->ki", u[level.cells], level.gradients)  # (K, 2)
    return sample[arrays.regions] * np.sqrt(1 + sample[2] * (slope**2).sum(axis=1))


shown = np.array([[1.0, 1.0, 0.3, 6.0], [0.6, 1.8, 2.0, 10.0]])
velocities = surrogate(shown)["u"].double().numpy()  # (2, N)
figure = new_figure(11.5, 4.6)
panels = figure.subplots(2, 3)
mesh = *arrays.points.T, arrays.levels[-1].cells
for column, u, sample in zip(panels.T, velocities, shown, strict=False):
    drawn = column[0].tricontourf(*mesh, u, levels=14, cmap="viridis")
    a, b, m, f = sample
    column[0].set_title(f"velocity, a = {a} below, {b} above, m = {m}, f = {f:.0f}", fontsize=9)
    figure.colorbar(drawn, ax=column[0], shrink=0.7)
    drawn = column[1].tripcolor(*mesh, facecolors=viscosity(u, sample), cmap="magma")
    column[1].set_title("viscosity μ", fontsize=9)
    figure.colorbar(drawn, ax=column[1], shrink=0.7)
    for axes in column:
        axes.set(aspect="equal", xlim=(0, 2), ylim=(0, 1), xticks=[], yticks=[])
        axes.axhline(0.5, color="white", linewidth=0.6)
axes = panels[0, 2]
ends = np.array([error.min(), error.max()])
axes.loglog(error, bound.value, "o", label="the surrogate")
axes.loglog(ends, ends, color="gray", label="bound = error")
axes.set(xlabel="error against PETSc", ylabel="bound")
axes.xaxis.set_minor_formatter("")
axes.legend(fontsize=8)
axes = panels[1, 2]
for bounds, color, label in ((from_zero, "tab:red", "from zero"), (from_net, "tab:blue", "from the net")):
    lines = axes.semilogy(bounds, color=color, marker=".", linewidth=0.7)
    lines[0].set_label(label)
axes.axhline(TOL, color="gray", linestyle="dashed")
axes.set(xlabel="Newton steps", ylabel="bound")
axes.legend(fontsize=8)
save(figure, arguments.out / "nonlinear.png")

# ---- 6. What the demo claims -----------------------------------------------------------------------------

assert (ratio >= 1 - 1e-6).all()
assert (better.error_bound <= TOL).all()
assert (off <= better.error_bound + petsc + 1e-12).all()  # both bounds hold
assert net_steps.max() <= 6
assert net_steps.mean() < zero_steps.mean()
assert result["test"]["mre"] < 5e-2
