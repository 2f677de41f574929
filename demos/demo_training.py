"""Train a surrogate y ↦ (u, σ) without any solution, and know its error.

    python demos/demo_training.py [--out FOLDER] [--levels 8] [--epochs 1200]

−(a_y u')' = 1 on the unit interval, a_y constant on each quarter, y in [0.5, 1.5]^4, as first-order least squares. The
loss is the squared residual ‖σ' + 1‖² + ‖σ/a_y - u'‖²: no reference solution enters training, and the root of the loss
bounds the error. One net of the paper's kind is trained six times: with the nodal basis, through HᵀA_yH and through
DᵀC_yD, each in float32 and in float16. Then the demo queries the surrogate.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from fem_frames import solve
from fem_frames.studies.plots import new_figure, save
from fem_frames.studies.solution_plots import COLORS
from training import Configuration, Surrogate, TrainingError, train
from training.metrics import evaluate
from training.references import reference_solutions
from training.run.log import read_log

parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
parser.add_argument("--out", type=Path, default=Path("results"), help="folder for runs and picture; default: results")
parser.add_argument("--levels", type=int, default=8, help="refinements J; default: 8")
parser.add_argument("--epochs", type=int, default=1200, help="steps, a third of them for the table; default: 1200")
arguments = parser.parse_args()
if arguments.levels < 6 or arguments.epochs < 300:
    parser.error("the effects shown here need at least --levels 6 and --epochs 300")
J, runs = arguments.levels, arguments.out / "training"


def configuration(loss, precision, epochs):
    """SOAP, with the coefficients of level j scaled by 2^-j."""
    return Configuration(
        problem="quarters",
        formulation="least-squares",
        levels=J,
        loss=loss,
        optimizer="soap",
        level_decay=0.0 if loss == "nodal" else 1.0,
        precision=precision.split()[0],
        mixed=precision.endswith("mixed"),
        epochs=epochs,
        test_samples=128,
    )


# ---- 1. One net, three losses, two precisions ----------------------------------------------------------
#
# All three losses are the same functional. They differ in what the optimizer sees: A_y has the condition number of a
# fourth-order problem, HᵀA_yH and DᵀC_yD that of a small matrix; and in how many digits they keep in float16.
# "Mixed" is float16 with master weights in float32. The stable loss works in pure float16 too, but gains less, because
# the weights lose small updates.

print(f"(LS) on four quarters, J = {J}, SOAP, {arguments.epochs // 3} steps of 64 fresh samples, tested against PETSc")
print("  loss    precision       test loss   over floor       MRE")
table: dict[tuple[str, str], dict | None] = {}
CASES = [(loss, precision) for loss in ("nodal", "bpx", "stable") for precision in ("float32", "float16 mixed")]
for loss, precision in [*CASES, ("stable", "float16")]:
    folder = runs / f"{loss}-{precision}".replace(" ", "-")
    try:
        result = train(configuration(loss, precision, arguments.epochs // 3), folder, force=True, quiet=True)
    except TrainingError as error:
        table[loss, precision] = None
        print(f"  {loss:7} {precision:13}   {str(error).split(' in ')[0]}")
        continue
    table[loss, precision] = result["test"]
    found = result["test"]
    print(f"  {loss:7} {precision:13} {found['loss']:11.2e} {found['ratio']:12.3g} {found['mre']:9.1e}")

# ---- 2. The surrogate, against PETSc -------------------------------------------------------------------

folder = runs / "surrogate"
result = train(configuration("stable", "float32", arguments.epochs), folder, force=True, quiet=True)
surrogate = Surrogate.load(folder)
y = surrogate.problem.parameters.sample(200, seed=42)  # neither training nor test samples
reference = reference_solutions(surrogate.formulation, y)
metrics = evaluate(surrogate, reference)
print(f"\nThe stable loss in float32 for {arguments.epochs} steps ({result['seconds']:.0f} s), on 200 new samples:")
print(
    f"  loss {metrics.loss:.2e}, {metrics.ratio:.2f} times that of the finite element solution; MRE {metrics.mre:.1e}"
)

# ---- 3. An answer with a known error, and its improvement ----------------------------------------------

worst = int(np.argmax(surrogate.loss(y).numpy() / reference.loss))
query = y[worst : worst + 1]
certified = surrogate.certify(query)
bound, relative = float(certified.value[0]), float(certified.relative[0])
exact = surrogate.formulation
least = float(exact.loss(solve(exact, torch.as_tensor(query), 1e-12).w, torch.as_tensor(query)).sqrt()[0])
tol = 1.05 * least
better = surrogate.improve(query, tol)
print(f"\nThe worst of them, y = ({', '.join(f'{v:.3f}' for v in query[0])}):")
print("  error of the net against the exact solution, in the norm of the functional, known without a reference:")
print(f"  {bound:.2e}, relative {relative:.1e}; the mesh allows {least:.2e}")
iterations = int(better.iterations[0])
print(f"  {iterations} iterations of conjugate gradients started from the net: {float(better.error_bound[0]):.2e}")

# ---- 4. The claims -------------------------------------------------------------------------------------

stable, half = table["stable", "float32"], table["stable", "float16 mixed"]
assert stable is not None
assert half is not None
assert half["loss"] < 3 * stable["loss"], "float16 must do as well as float32 where the loss is stable"
nodal, unstable = table["nodal", "float32"], table["bpx", "float16 mixed"]
assert nodal is None or nodal["loss"] > 100 * stable["loss"], "without preconditioning training must fail"
assert unstable is None or unstable["loss"] > 10 * half["loss"], "HᵀA_yH must fail in float16"
assert metrics.ratio >= 1
assert metrics.loss < stable["loss"]
assert float(better.error_bound[0]) <= tol < bound

# ---- 5. The picture ------------------------------------------------------------------------------------


def draw(path):
    figure = new_figure(11, 8)
    (curves, bounds), (left, right) = figure.subplots(2, 2)
    for number, loss in enumerate(("nodal", "bpx", "stable")):
        for precision, style in (("float32", "-"), ("float16 mixed", "--")):
            folder = runs / f"{loss}-{precision}".replace(" ", "-")
            records = [r for r in read_log(folder / "log.jsonl") if "test" in r]
            steps, losses = [r["step"] for r in records], [r["test"]["loss"] for r in records]
            curves.semilogy(steps, losses, style, color=COLORS[number], label=f"{loss}, {precision}")
            if table[loss, precision] is None and steps:
                curves.semilogy(steps[-1:], losses[-1:], "x", color=COLORS[number], markersize=9)
    curves.axhline(metrics.floor, color="black", linewidth=0.8, linestyle=":", label="floor: finite element solution")
    curves.set(xlabel="step", ylabel="test loss", title="One functional, three ways to compute it")
    curves.legend(fontsize=8)
    error = np.sqrt(np.maximum(surrogate.loss(y).numpy(), 0))
    bounds.hist(error / np.sqrt(reference.loss), bins=30, color=COLORS[2])
    bounds.set(
        xlabel="error of the surrogate / error of the finite element solution,\nin the norm of the functional",
        ylabel="samples",
        title="What the loss says of 200 new samples",
    )
    x = surrogate.arrays.points[:, 0]
    order = np.argsort(x)
    values = surrogate(y[:3])
    for axes, name, title in ((left, "u", "u"), (right, "sigma", "σ = a_y u'")):
        for i in range(3):
            axes.plot(x[order], reference.fields[name][i][order], color=COLORS[i], linewidth=6, alpha=0.25)
            label = "y = " + ", ".join(f"{v:.2f}" for v in y[i])
            axes.plot(x[order], values[name][i].numpy()[order], color=COLORS[i], linewidth=1.2, label=label)
        axes.set(xlabel="x", title=f"{title}: surrogate (thin) over PETSc (broad)")
    left.legend(fontsize=8)
    for axes in (curves, bounds, left, right):
        axes.grid(alpha=0.3)
    save(figure, path)


draw(arguments.out / "training.png")
print(f"\nPicture: {arguments.out / 'training.png'}")
print(f"Try:     fem-frames query {folder} --y 1,0.8,1.4,0.7 --plot u.png")
