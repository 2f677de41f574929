"""How far the paper's nets with prolongations can get, however they are trained.

    python demos/demo_separate_frame.py [--out FOLDER] [--levels 10] [--trained 6] [--epochs 1500] [--samples 1500]

In the separate frame representation the net of each level starts on the coarsest one and is prolonged. On four quarters
of an interval the coarsest level has one inner point, so such a net sees y through one number. This demo searches for
the best functions of this kind, without a net, and compares trained nets with them. The search is local, so it proves
nothing, but it indicates where more training is useless. Nets that start on a finer level have no such limit.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from fem_frames import Frame, MeshHierarchy, export_frame, make_formulation, make_problem
from fem_frames.studies.plots import new_figure, save
from training import Configuration, train
from training.recipes import best as best_recipe

parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
parser.add_argument("--out", type=Path, default=Path("results"), help="folder for runs and picture; default: results")
parser.add_argument("--levels", type=int, default=10, help="search for every second J up to this one; default: 10")
parser.add_argument("--trained", type=int, default=6, help="nets are trained up to this J; default: 6")
parser.add_argument("--epochs", type=int, default=1500, help="training steps; default: 1500")
parser.add_argument("--samples", type=int, default=1500, help="parameters y that the search fits; default: 1500")
arguments = parser.parse_args()
if arguments.levels < 6 or arguments.trained < 4 or arguments.epochs < 200 or arguments.samples < 300:
    parser.error("a comparison needs at least --levels 6, --trained 4, --epochs 200 and --samples 300")
torch.set_default_dtype(torch.float64)
DEGREE, COARSE = 6, 3


# ---- 1. A sum of functions of one number each ----------------------------------------------------------
#
# The net of u on level j is y ↦ F_j(s(w_j·y + b_j)): its first layer has one output. Whatever its blocks do,
#
#     u(y) = F_1(w_1·y) + … + F_J(w_J·y)    with functions F_j of one variable and values in V_j.
#
# For given w_j the best F_j are found by linear least squares, here among polynomials of degree 6. The loss exceeds
# that of the finite element solution by the square of the error in the norm of A_y. σ is unrestricted here: the best
# one is taken for each y, which leaves the Schur complement S_y of A_y. The solution is quadratic on every quarter, so
# u is compared on the mesh of level 3, with two cells per quarter, and V_j is V_3 for j ≥ 3.

problem = make_problem("quarters")
arrays = export_frame(MeshHierarchy.from_problem(problem, COARSE), problem, "least-squares")
formulation = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
P_2, P_3 = (formulation.frame.P(level).to_dense() for level in (2, COARSE))
SPACES = [P_3 @ P_2, P_3, torch.eye(len(P_3))]  # V_1, V_2, V_3 by their values on level 3


def solutions(count, seed):
    """y in [-1, 1]^4, u of the finite element solution (B, n), and a factor Lᵀ of S_y = L Lᵀ (B, n, n)."""
    y = torch.as_tensor(problem.parameters.sample(count, seed))
    A_y, N = formulation.A(y), formulation.localisation.shape[1]
    A = torch.stack([A_y(e.expand(count, N)) for e in torch.eye(N)], -1)  # (B, N, N)
    n = len(P_3)  # the values of u come first
    schur = A[:, :n, :n] - A[:, :n, n:] @ torch.linalg.solve(A[:, n:, n:], A[:, n:, :n])
    u = torch.linalg.solve(A, formulation.nodal_load(y))[:, :n]
    return 2 * (y - 1), u, torch.linalg.cholesky(schur).mT


def columns(x, directions, factor):
    """(B, n, M) the functions of y with values in Lᵀ V_j that span the F_j and a constant."""
    t = x @ (directions / directions.abs().sum(1, keepdim=True)).T  # (B, J), in [-1, 1]
    powers = [torch.ones_like(t), t]
    for _ in range(DEGREE - 1):
        powers.append(2 * t * powers[-1] - powers[-2])  # Chebyshev polynomials
    parts = [factor]
    for j in range(len(directions)):
        basis = factor @ SPACES[min(j, len(SPACES) - 1)]
        parts += [basis * power[:, j, None, None] for power in powers[1:]]
    return torch.cat(parts, -1)


def excess(data, directions, weights=None):
    """Mean squared error, and the weights of the columns: the best ones unless given."""
    x, u, factor = data
    matrix, target = columns(x, directions, factor), (factor @ u[..., None])[..., 0]
    if weights is None:
        flat = matrix.flatten(0, 1)
        gram = flat.T @ flat / len(x) + 1e-12 * torch.eye(flat.shape[1])
        weights = torch.linalg.solve(gram, flat.T @ target.flatten() / len(x))
    return ((target - matrix @ weights) ** 2).sum(1).mean(), weights


def searched(data, directions):
    """Directions with a smaller excess, by L-BFGS from the given ones."""
    directions = directions.clone().requires_grad_()
    search = torch.optim.LBFGS([directions], max_iter=60, line_search_fn="strong_wolfe", tolerance_change=1e-12)

    def closure():
        search.zero_grad()
        value = excess(data, directions)[0].log()
        value.backward()
        return value

    search.step(closure)
    return directions.detach()


print("(LS) on four quarters: excess of the test loss over its floor")
seen, new = solutions(arguments.samples, seed=1), solutions(arguments.samples, seed=2)
best, directions, generator = {}, torch.empty(0, 4), torch.Generator().manual_seed(0)
for J in range(4, arguments.levels + 1, 2):
    # The search is local. It starts from the best of fewer levels with two new directions, and from the four axes.
    random = torch.randn(J + 2, 4, generator=generator)
    starts = [torch.cat([random[: J - 4], torch.eye(4) + 0.05 * random[J - 4 : J]])]
    if J > 4:
        starts.append(torch.cat([directions, random[J:]]))
    directions = min((searched(seen, start) for start in starts), key=lambda found: float(excess(seen, found)[0]))
    best[J] = float(excess(new, directions, excess(seen, directions)[1])[0])
    print(f"  J = {J:2}: sums of {J:2} functions of one number each{best[J]:18.1e}", flush=True)


# ---- 2. Trained nets -----------------------------------------------------------------------------------
#
# The paper's nets with prolongations; the same nets, but starting on level 3, whose seven points let all of y through;
# and the full net. All are trained by the best recipe.

LATER = "separate-frame net from level 3"
NETS: dict[str, dict[str, Any]] = {
    "separate-frame net": {"net": "separate-frame", "rate": 1e-2},
    LATER: {"net": "separate-frame", "rate": 1e-2, "start_level": 3},
    "full net": {"net": "full"},
}
trained: dict[str, dict[int, float]] = {name: {} for name in NETS}
for J in range(4, arguments.trained + 1, 2):
    for name, net in NETS.items():
        settings = best_recipe({"formulation": "least-squares", "levels": J, "epochs": arguments.epochs, **net})
        configuration = Configuration(problem="quarters", test_samples=200, **settings)
        run = arguments.out / "separate_frame" / f"{name.replace(' ', '-')}-{J}"
        trained[name][J] = train(configuration, run, force=True, quiet=True)["test"]["excess"]
        print(f"  J = {J:2}: {name} after {arguments.epochs} steps".ljust(60) + f"{trained[name][J]:.1e}", flush=True)
assert all(value > 0.8 * best[J] for J, value in trained["separate-frame net"].items())
assert all(value < trained["separate-frame net"][J] for J, value in trained[LATER].items())
assert list(best.values()) == sorted(best.values(), reverse=True)


# ---- 3. The picture ------------------------------------------------------------------------------------

figure = new_figure(6.8, 5.0)
axes = figure.subplots()
axes.semilogy(list(best), list(best.values()), "k--", label="best sum of J functions of one number each, found")
for (name, values), style in zip(trained.items(), "os^", strict=True):
    axes.semilogy(list(values), list(values.values()), style, label=f"{name}, trained")
axes.set(xlabel="levels J", ylabel="test loss above its floor", title="What a net sees of y limits what it can learn")
axes.grid(alpha=0.3, which="both")
axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, fontsize=8)
save(figure, arguments.out / "separate_frame.png")
print(f"picture: {arguments.out / 'separate_frame.png'}")
