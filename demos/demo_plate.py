"""A plate of your own, from the mesh file to certified answers.

    python demos/demo_plate.py [--size H] [--levels J] [--epochs N] [--out FOLDER]

A plate with two holes, of steel and air with glue between them, comes from gmsh with names: heat flows in on the left,
the right side has temperature zero, the walls lose heat to surroundings of temperature one, the holes are insulated.

    −div(a_y ∇u) = 0,   u = 0 on "outflow",   a_y ∂u/∂n = y₃ on "inflow",   a_y ∂u/∂n = k (1 − u) on "wall"

The three conductivities are y₀, y₁, y₂, the inflow is y₃. Where gmsh is installed it makes the mesh; otherwise the
file demos/plate.msh is used, which it made.
"""

import contextlib
import sys
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import torch

from fem_frames import (
    ByRegion,
    Frame,
    MeshHierarchy,
    Parameter,
    Problem,
    Uniform,
    export_frame,
    frame_condition,
    make_formulation,
    solve,
    solve_reference,
)
from fem_frames.studies.plots import new_figure, save
from training import Configuration, Surrogate, train

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))
parser = ArgumentParser(description="A plate with two holes: conditions by name, condition numbers, training, bounds.")
parser.add_argument("--size", type=float, default=0.06, help="size of the coarse cells; needs gmsh")
parser.add_argument("--levels", type=int, default=1)
parser.add_argument("--epochs", type=int, default=300)
parser.add_argument("--out", type=Path, default=Path("results"))
arguments = parser.parse_args()
arguments.out.mkdir(parents=True, exist_ok=True)

# ---- 1. The mesh and the problem, as they are named ---------------------------------------------------

mesh = FOLDER / "plate.msh"
with contextlib.suppress(ImportError, OSError):  # without gmsh, or without the graphics libraries that it needs
    from plate import make_plate

    mesh = make_plate(arguments.out / "plate.msh", arguments.size)

problem = Problem(
    mesh=mesh,
    coefficient=ByRegion({"steel": 0, "glue": 1, "air": 2}),
    parameters=Uniform(lower=(1.0, 0.2, 0.1, 0.5), upper=(2.0, 0.6, 0.5, 1.5)),
    source=0.0,
    dirichlet={"outflow": 0.0},
    neumann={"inflow": Parameter(3), "holes": 0.0},
    robin={"wall": (0.5, 1.0)},
)
print(problem.show())

# ---- 2. Condition numbers, before and after -----------------------------------------------------------

hierarchy = MeshHierarchy.from_problem(problem, arguments.levels)
middle = torch.as_tensor(problem.parameters.nominal[0])
found = {}
for choice in ("none", "auto"):
    arrays = export_frame(hierarchy, problem, coarse=choice)
    found[choice] = frame_condition(make_formulation(Frame.from_arrays(arrays, "float64"), problem), middle)
print(f"\ncondition number of HᵀA_yH: {found['none']:.0f} with the hats of all meshes alone,")
print(f"{found['auto']:.1f} with the coarse level below them; level sizes {arrays.level_sizes['u']}")
assert found["auto"] < 60
assert found["auto"] < 0.2 * found["none"]

# ---- 3. A surrogate, trained without a solution -------------------------------------------------------

settings = Configuration(
    problem="plate",
    levels=arguments.levels,
    optimizer="soap",
    level_decay=1.0,
    epochs=arguments.epochs,
    test_samples=16,
)
with tempfile.TemporaryDirectory() as folder:
    start = time.perf_counter()
    result = train(settings, Path(folder) / "run", problem=problem, quiet=True)
    surrogate = Surrogate.load(Path(folder) / "run", problem=problem)
seconds = time.perf_counter() - start
print(f"\ntrained {result['parameters']} weights in {seconds:.0f} s, mean relative error {result['test']['mre']:.1e}")

# ---- 4. Bounds against errors -------------------------------------------------------------------------

y = problem.parameters.sample(8, seed=7)
bound = surrogate.certify(y).value.double()
exact = surrogate.formulation.to("float64")
samples = torch.as_tensor(y)
w = surrogate.coefficients(y).double()
truth = solve(exact, samples, 1e-10).w
error = exact.energy_norm(exact.frame.D(w - truth), samples)
size = exact.energy_norm(exact.states(truth, samples), samples)
reference = solve_reference(problem, y[:1], arguments.levels)
u = exact.synthesise(truth, samples)["u"][0].numpy()
print(f"PETSc and multigrid differ by {np.abs(u - reference.u[0]).max() / np.abs(u).max():.0e}")
print("error in the energy norm, relative:", " ".join(f"{e:.1e}" for e in (error / size).tolist()))
print("bound / error:                     ", " ".join(f"{b:.2f}" for b in (bound / error).tolist()))
assert (bound >= error).all()

# ---- 5. The picture -----------------------------------------------------------------------------------

flux = surrogate.flux(y[:1])[0]
points, cells = exact.frame.arrays.points, exact.frame.arrays.levels[-1].cells
values = surrogate(y[:1])["u"][0]
figure = new_figure(13, 4.2)
left, right = figure.subplots(1, 2, width_ratios=(2.2, 1))
drawn = left.tripcolor(*points.T, cells, np.asarray(values), shading="gouraud", cmap="inferno")
figure.colorbar(drawn, ax=left, label="u")
centres = points[cells].mean(axis=1)
shown = np.random.default_rng(0).permutation(len(cells))[:400]
left.quiver(*centres[shown].T, *-np.asarray(flux)[shown].T, color="white", width=0.0015)
left.set(title=f"u and −a∇u for y = {np.round(y[0], 2).tolist()}", aspect="equal")
right.loglog(error, bound, "o", label="surrogate's answers")
ends = np.array([float(error.min()) / 2, float(bound.max()) * 2])
right.loglog(ends, ends, "k-", linewidth=0.8, label="bound = error")
right.loglog(ends, 3 * ends, "k:", linewidth=0.8, label="bound = 3 · error")
right.set(xlabel="error in the energy norm", ylabel="certified bound", title="Bounds need no solution")
right.legend(fontsize=8)
save(figure, arguments.out / "plate.png")
print(f"Picture: {arguments.out / 'plate.png'}")
