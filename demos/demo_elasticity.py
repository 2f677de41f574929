"""An elastic beam from its energy in UFL to certified answers: the displacement, the stress, and what they cost.

    python demos/demo_elasticity.py [--levels J] [--epochs N] [--out FOLDER]

A beam of three materials is clamped on the left; a force pulls its right end down. The parameters are the three Young's
moduli E, and the force t. With the strain ε(u) = sym ∇u and the Lamé parameters λ, μ of E and ν = 0.3,

    minimise  ∫ λ/2 (tr ε)² + μ ε : ε  +  ∫ t u₂  over the right end.

The energy below is all that is written for this equation: frame, loss, error bound and PETSc's reference follow.
"""

import time
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import torch

from fem_frames import Equation, Field, MeshArrays, Problem, Uniform, frame_condition, solve_reference
from fem_frames.studies.plots import new_figure, save
from training import Configuration, Surrogate, train

parser = ArgumentParser(
    description="An elastic beam: the energy in UFL, a surrogate with bounds, deformation and stress."
)
parser.add_argument("--levels", type=int, default=3)
parser.add_argument("--epochs", type=int, default=2000)
parser.add_argument("--out", type=Path, default=Path("results"))
arguments = parser.parse_args()
arguments.out.mkdir(parents=True, exist_ok=True)

# ---- 1. The beam: 3 × 1 squares, three materials, and two named ends -----------------------------------

LENGTH, NU = 3, 0.3
points = np.array([(i, j) for j in range(2) for i in range(LENGTH + 1)], float)
corner = np.arange(LENGTH)
cells = np.concatenate([[(i, i + 1, i + LENGTH + 2), (i, i + LENGTH + 2, i + LENGTH + 1)] for i in corner])
beam = MeshArrays(
    points,
    cells,
    regions=np.repeat([0, 1, 2], 2),
    facets=np.array([[0, LENGTH + 1], [LENGTH, 2 * LENGTH + 1]]),
    facet_tags=np.array([1, 2]),
    region_names={"root": 0, "middle": 1, "tip": 2},
    facet_names={"clamped": 1, "pulled": 2},
)

# ---- 2. The equation -------------------------------------------------------------------------------------


def energy(u, y, x, dx, ds):
    from ufl import grad, inner, sym, tr

    strain = sym(grad(u))
    factors = NU / ((1 + NU) * (1 - 2 * NU)) / 2, 1 / (2 * (1 + NU))
    stored = factors[0] * tr(strain) ** 2 + factors[1] * inner(strain, strain)
    return sum(y[k] * stored * dx(name) for k, name in enumerate(("root", "middle", "tip"))) + y[3] * u[1] * ds(
        "pulled"
    )


problem = Problem(
    beam,
    Equation(Field("u", components=2), energy=energy),
    Uniform((5.0, 5.0, 5.0, 0.02), (20.0, 20.0, 20.0, 0.1)),
    dirichlet={"clamped": 0.0},
    name="beam",
)

# ---- 3. A surrogate, trained on the energy, without a single solution ------------------------------------

settings = Configuration(
    levels=arguments.levels, optimizer="soap", level_decay=1.0, epochs=arguments.epochs, test_samples=32
)
start = time.perf_counter()
result = train(settings, arguments.out / "beam", problem=problem, force=True, quiet=True)
seconds = time.perf_counter() - start
surrogate = Surrogate.load(arguments.out / "beam")  # no file of ours, no DOLFINx: the frame holds the programs
arrays = surrogate.arrays
nominal = torch.as_tensor(problem.parameters.nominal)
print(f"frame: {arrays}, condition number {frame_condition(surrogate.formulation, nominal):.1f}")
print(f"trained {result['parameters']} weights in {seconds:.0f} s, mean relative error {result['test']['mre']:.1e}")

y = problem.parameters.sample(8, seed=11)
bound = surrogate.certify(y)
reference = solve_reference(problem, y, arguments.levels)
exact = surrogate.formulation
truth = exact.coordinates.coefficients(exact.coordinates.free(reference.fields, y=y))
error = exact.energy_norm(exact.frame.D(surrogate.coefficients(y) - truth), torch.as_tensor(y))
ratio = (bound.value / error).numpy()
print(f"bound / error against PETSc: {ratio.min():.2f} to {ratio.max():.2f}; relative to {bound.relative.max():.1%}")
better = surrogate.improve(y, tol=1e-8)
print(f"improved to a bound of 1e-8 in {better.iterations.min()} to {better.iterations.max()} iterations")
assert (bound.value >= error * (1 - 1e-9)).all()

# ---- 4. Deformation and stress ---------------------------------------------------------------------------


def von_mises(u, moduli):
    """(K,) von Mises stress in plane strain, from displacements (N, 2) at the points."""
    level = arrays.levels[-1]
    slope = np.einsum("kli,klj->kij", u[level.cells], level.gradients)  # (K, 2, 2)
    strain = (slope + slope.transpose(0, 2, 1)) / 2
    E = moduli[arrays.regions]
    lam, mu = E * NU / ((1 + NU) * (1 - 2 * NU)), E / (2 * (1 + NU))
    trace = strain.trace(axis1=1, axis2=2)
    s = 2 * mu[:, None, None] * strain + (lam * trace)[:, None, None] * np.eye(2)
    out = lam * trace  # the stress across the plane
    return np.sqrt(
        s[:, 0, 0] ** 2
        + s[:, 1, 1] ** 2
        + out**2
        - s[:, 0, 0] * s[:, 1, 1]
        - (s[:, 0, 0] + s[:, 1, 1]) * out
        + 3 * s[:, 0, 1] ** 2
    )


samples = np.array([[10.0, 10, 10, 0.05], [5, 20, 20, 0.05], [20, 5, 20, 0.05]])
answers = surrogate(samples)["u"].double().numpy()  # (3, N, 2)
tip = arrays.points[:, 0].argmax()
stresses = [von_mises(u, sample[:3]) for u, sample in zip(answers, samples, strict=True)]
figure = new_figure(7.5, 9.0)
for axes, u, sample, stress in zip(figure.subplots(3, 1), answers, samples, stresses, strict=True):
    x = arrays.points + u
    axes.triplot(*arrays.points.T, arrays.levels[0].cells, color="lightgray", linewidth=0.6)
    drawn = axes.tripcolor(
        *x.T, arrays.levels[-1].cells, facecolors=stress, cmap="viridis", vmin=0, vmax=max(map(np.max, stresses))
    )
    axes.set(
        aspect="equal",
        xlim=(-0.1, LENGTH + 0.2),
        ylim=(-0.8, 1.1),
        title=f"E = {sample[:3].tolist()}, t = {sample[3]}: tip moves by {u[tip, 1]:.3f}",
    )
    axes.set_axis_off()
    figure.colorbar(drawn, ax=axes, label="von Mises stress")
figure.suptitle("The surrogate's displacements (to scale) and stress; gray: the beam at rest")
save(figure, arguments.out / "elasticity.png")

# ---- 5. What the demo claims -----------------------------------------------------------------------------

weak = answers[1:, tip, 1]
even = answers[0, tip, 1]
print(f"tip: {even:.3f} with equal materials, {weak[0]:.3f} soft at the root, {weak[1]:.3f} soft in the middle")
assert weak[0] < weak[1] < 0  # a soft root bends most
assert result["test"]["mre"] < 5e-2
