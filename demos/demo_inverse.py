"""An inverse problem: where two disks are, from noisy sensors, with an answer whose error is known.

    python demos/demo_inverse.py [--service] [--levels J] [--noise S] [--walkers W] [--steps N] [--out FOLDER]

−div(a_y ∇u) = 1 on the unit square, u = 0 on its boundary. Two disks conduct ten times better than the rest; their
centres and radii are y, six numbers. Sensors see u at 25 points, with noise of standard deviation S:

    d = q(u(y)) + noise,   posterior ∝ exp(−½ |q(u(y)) − d|² / S²) on the box of the parameters, first disk on the left

The most probable y (MAP) comes from L-BFGS-B with adjoint gradients, the posterior from emcee with a learned multigrid
that answers batches. With --service all answers come from `fem-frames serve`, which the demo starts on this machine:
the sampler asks for one y at a time from many threads, and requests that wait are answered together.
The data are no answers of the model that inverts them: PETSc makes them on a mesh that is two levels finer.
"""

import json
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import emcee
import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize

from fem_frames import (
    MeshHierarchy,
    OutputMap,
    PointValues,
    ReferenceSolver,
    Uniform,
    differentiable_solve,
    make_problem,
    solve,
    tangent_solve,
)
from fem_frames.studies.plots import save
from training import Configuration, Surrogate, train

sys.path.insert(0, str(Path(__file__).parent))
from inverse_plot import NAMES, Result, draw

Floats = npt.NDArray[np.float64]
TRUTH = np.array([0.33, 0.61, 0.16, 0.66, 0.37, 0.13])
THREADS = 64  # of the sampler, with --service

parser = ArgumentParser(description="Two disks from noisy sensors: MAP, posterior, certified error, PETSc's time.")
parser.add_argument("--levels", type=int, default=5, help="of the model, at least 3; the data have two more")
parser.add_argument("--epochs", type=int, default=600, help="of training the multigrid's weights")
parser.add_argument("--noise", type=float, default=5e-4, help="standard deviation; u is at most 0.06 or so")
parser.add_argument("--walkers", type=int, default=128)
parser.add_argument("--steps", type=int, help="default: 1500, with --service 50")
parser.add_argument("--service", action="store_true", help="ask a service that the demo starts, by umbridge's client")
parser.add_argument("--out", type=Path, default=Path("results"))
arguments = parser.parse_args()
if arguments.levels < 3:
    parser.error(f"--levels {arguments.levels}: the sensors are points of meshes with at least 3")
arguments.out.mkdir(parents=True, exist_ok=True)
steps = arguments.steps or (50 if arguments.service else 1500)
sigma = arguments.noise

# ---- 1. The problem, its sensors, and data from a finer mesh -------------------------------------------

problem = make_problem("disks", count=2)
box = problem.parameters
assert isinstance(box, Uniform)
lower, upper = np.array(box.lower), np.array(box.upper)
grid = np.arange(1, 8) / 8
sensors = np.array([(a, b) for a in grid for b in grid])[::2]  # (25, 2), points of every mesh


def sensor_nodes(levels: int) -> npt.NDArray[np.int64]:
    """Numbers of the sensors among the points of a level."""
    points = MeshHierarchy.from_problem(problem, levels).points
    return np.array([np.argmin(((points - x) ** 2).sum(axis=1)) for x in sensors])


fine = arguments.levels + 2
exact = ReferenceSolver(problem, fine)(TRUTH)[0]["u"][sensor_nodes(fine)]
data = exact + sigma * np.random.default_rng(7).standard_normal(len(sensors))
print(f"data: PETSc on level {fine}, u from {exact.min():.4f} to {exact.max():.4f}, and noise of {sigma:g}")

# ---- 2. The model: a learned multigrid, asked directly or as a service --------------------------------


class Model(Protocol):
    """Sensor values q(u(y)), fast ones for the sampler, accurate ones with derivatives for the MAP."""

    def fast(self, y: Floats) -> Floats:
        """(B, s) for y (B, p)."""

    def misfit(self, y: Floats) -> tuple[float, Floats]:
        """½ |q − d|² / S² and its gradient (p,), for one y."""

    def jacobian(self, y: Floats) -> Floats:
        """(s, p) ∂q/∂y."""


class Direct:
    """The library in this process."""

    def __init__(self, surrogate: Surrogate) -> None:
        self._surrogate, self._formulation = surrogate, surrogate.formulation
        self._outputs = OutputMap(self._formulation, PointValues(sensors))

    def fast(self, y: Floats) -> Floats:
        with torch.no_grad():
            values = self._outputs.values(self._surrogate.coefficients(y), torch.as_tensor(y))
        return np.asarray(values)

    def accurate(self, y: Floats) -> Floats:
        """(B, s) of the discrete solutions."""
        samples = torch.as_tensor(y)
        return np.asarray(self._outputs.values(solve(self._formulation, samples, 1e-9).w, samples))

    def misfit(self, y: Floats) -> tuple[float, Floats]:
        free = torch.tensor(y[None], requires_grad=True)
        q = self._outputs.values(differentiable_solve(self._formulation, free, 1e-9), free)[0]
        goal = 0.5 * ((q - torch.as_tensor(data)) / sigma).square().sum()
        (gradient,) = torch.autograd.grad(goal, free)  # one adjoint solve
        return float(goal.detach()), gradient[0].numpy()

    def jacobian(self, y: Floats) -> Floats:
        at, v = torch.as_tensor(y).repeat(len(y), 1), torch.eye(len(y), dtype=torch.float64)
        w, dw = tangent_solve(self._formulation, at, v, 1e-9)  # all directions at once
        return np.asarray(torch.func.jvp(self._outputs.values, (w, at), (dw, v))[1]).T


class Remote:
    """A service, by the client of UM-Bridge."""

    exact = {"tol": 1e-7}  # noqa: RUF012

    def __init__(self, url: str) -> None:
        import umbridge

        self._model = umbridge.HTTPModel(url, "forward")

    def fast(self, y: Floats) -> Floats:
        return np.array([self._model([row.tolist()])[0] for row in y])

    def misfit(self, y: Floats) -> tuple[float, Floats]:
        off = (np.array(self._model([y.tolist()], self.exact)[0]) - data) / sigma
        gradient = self._model.gradient(0, 0, [y.tolist()], (off / sigma).tolist(), self.exact)
        return 0.5 * float(off @ off), np.array(gradient)

    def jacobian(self, y: Floats) -> Floats:
        rows = [self._model.apply_jacobian(0, 0, [y.tolist()], v.tolist(), self.exact) for v in np.eye(len(y))]
        return np.array(rows).T


@contextmanager
def running_service(run: Path, log: Path) -> Iterator[str]:
    """The URL of `fem-frames serve` on a free port of this machine."""
    points = [f"--point={a},{b}" for a, b in sensors]
    command = [sys.executable, "-m", "fem_frames.commands", "serve", str(run), "--port=0", "--json", "--verbose"]
    with log.open("w") as lines, subprocess.Popen([*command, *points], stdout=subprocess.PIPE, stderr=lines) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, f"the service did not start: {log.read_text()}"
            yield json.loads(line)["url"]
        finally:
            process.terminate()
            process.wait(60)


held = ExitStack()
folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
settings = Configuration(
    problem="disks",
    options={"count": 2},
    levels=arguments.levels,
    net="multigrid",
    pre=3,
    post=3,
    epochs=arguments.epochs,
    test_samples=0,
)
start = time.perf_counter()
train(settings, folder / "run", quiet=True)
print(f"trained a multigrid's weights on level {arguments.levels} in {time.perf_counter() - start:.1f} s")
surrogate = Surrogate.load(folder / "run")
direct, model = Direct(surrogate), None
if arguments.service:
    url = held.enter_context(running_service(folder / "run", folder / "log"))
    print(f"service at {url}")
    model = Remote(url)
    some = box.sample(8, 5)
    gap = np.abs(model.fast(some) - direct.fast(some)).max()
    print(f"service and library differ by {gap:.1e}, rounding in float32")
    assert gap < 1e-5
asked: Model = model or direct

with held:
    # ---- 3. The most probable y ------------------------------------------------------------------------

    candidates = box.sample(64, 1)
    candidates = candidates[candidates[:, 0] < candidates[:, 3]]
    misfits = (((asked.fast(candidates) - data) / sigma) ** 2).sum(axis=1)
    limits = list(zip(lower, upper, strict=True))
    start = time.perf_counter()
    found = [
        minimize(asked.misfit, candidates[i], jac=True, method="L-BFGS-B", bounds=limits)
        for i in np.argsort(misfits)[:3]
    ]
    best = min(found, key=lambda one: one.fun)
    calls = sum(one.nfev for one in found)
    J = asked.jacobian(best.x)
    covariance = np.linalg.inv(J.T @ J / sigma**2)  # of the linearised problem: where the walkers start
    print(f"MAP by L-BFGS-B from 3 starts, {calls} values and adjoint gradients, {time.perf_counter() - start:.1f} s:")
    for name, value, truth, width in zip(NAMES, best.x, TRUTH, np.sqrt(np.diag(covariance)), strict=True):
        print(f"    {name} = {value:.4f} ± {width:.4f}, truth {truth:.4f}")
    print(f"    |q − d|² / S² = {2 * best.fun:.1f} for {len(sensors)} sensors and {len(TRUTH)} parameters")
    step = 1e-5 * np.random.default_rng(2).standard_normal(6)
    slope = (asked.misfit(TRUTH + step)[0] - asked.misfit(TRUTH - step)[0]) / 2
    assert abs(slope - asked.misfit(TRUTH)[1] @ step) < 1e-3 * abs(slope)

    # ---- 4. The posterior ------------------------------------------------------------------------------

    counted: list[int] = []  # threads may append to it at the same time

    def log_posterior(y: Floats) -> Floats:
        """(B,) for y (B, p); minus infinity outside of the prior."""
        inside = ((y >= lower) & (y <= upper)).all(axis=1) & (y[:, 0] < y[:, 3])
        values = np.full(len(y), -np.inf)
        if inside.any():
            values[inside] = -0.5 * (((asked.fast(y[inside]) - data) / sigma) ** 2).sum(axis=1)
        counted.append(int(inside.sum()))
        return values

    random = np.random.default_rng(3)
    walkers = random.multivariate_normal(best.x, covariance, arguments.walkers)
    walkers = np.clip(walkers, lower + 1e-4, upper - 1e-4)
    options: dict[str, Any] = {"vectorize": True}
    if arguments.service:
        options = {"pool": held.enter_context(ThreadPoolExecutor(THREADS))}
    one = log_posterior if not arguments.service else lambda y: float(log_posterior(y[None])[0])
    moves = [(emcee.moves.DEMove(), 0.8), (emcee.moves.DESnookerMove(), 0.2)]
    sampler = emcee.EnsembleSampler(arguments.walkers, len(TRUTH), one, moves=moves, **options)
    sampler.random_state = np.random.RandomState(4).get_state()
    start = time.perf_counter()
    sampler.run_mcmc(walkers, steps)
    seconds, evaluations = time.perf_counter() - start, sum(counted)
    chain = sampler.get_chain(discard=steps // 5)  # (n, W, p)
    tau = emcee.autocorr.integrated_time(chain, tol=0)
    ess = chain.shape[0] * chain.shape[1] / tau
    posterior = chain.reshape(-1, len(TRUTH))
    per = 1000 * seconds / evaluations
    print(f"posterior: {evaluations} likelihoods in {seconds:.1f} s, {per:.3f} ms each with the sampler's own work")
    print(f"    accepted {sampler.acceptance_fraction.mean():.0%} of the proposals")
    if len(chain) < 50 * tau.max():  # a short chain underestimates its autocorrelation
        worth = "too few steps to say how many are independent"
        print(f"    {len(chain)} steps are fewer than 50 times their autocorrelation, estimated as {tau.max():.0f}:")
        print(f"    {worth}")
    else:
        worth = f"about {ess.min():.0f} independent ones"
        print(f"    integrated autocorrelation: {tau.min():.0f} to {tau.max():.0f} steps, depending on the parameter;")
        print(f"    {len(posterior)} states are worth {worth} for the parameter that mixes worst")
    if arguments.service:
        lines = (folder / "log").read_text().splitlines()
        sizes = [int(line.partition(": ")[2].split()[0]) for line in lines if line.startswith("Evaluate {}")]
        print(
            f"    the service answered in {len(sizes)} batches of {np.mean(sizes):.1f} on average, {max(sizes)} at most"
        )
        assert max(sizes) > 1
    mean, spread = posterior.mean(axis=0), np.cov(posterior.T)
    distance = float((mean - TRUTH) @ np.linalg.solve(spread, mean - TRUTH))
    print(f"    the truth is {distance**0.5:.2f} standard deviations from the mean (Mahalanobis; 3.5 holds 95 %)")

# ---- 5. The model's error, certified, against the noise ------------------------------------------------

some = posterior[np.random.default_rng(5).integers(len(posterior), size=32)]
better = surrogate.output(some, PointValues(sensors), adjoint=True)  # within tiny bounds of the discrete solution
certified = np.abs(direct.fast(some) - better.values.numpy()) + better.error_bound.numpy()  # (32, s)
print(f"certified: sensor values of {len(some)} posterior samples are within {certified.max():.1e} of the discrete")
print(f"    solution, {certified.max() / sigma:.2f} S, on average {certified.mean() / sigma:.3f} S")

# Errors of one sign at many sensors could move the posterior even so: some of its states with exact likelihoods.
states = posterior[np.random.default_rng(8).integers(len(posterior), size=min(512, len(posterior)))]
chi = [(((q(states) - data) / sigma) ** 2).sum(axis=1) for q in (direct.accurate, direct.fast)]
weights = np.exp(-0.5 * (chi[0] - chi[1] - (chi[0] - chi[1]).min()))
weights /= weights.sum()
shift = np.abs(weights @ states - states.mean(axis=0)) / states.std(axis=0)
independent = 1 / (weights**2).sum()
print(f"    with exact likelihoods as weights, {len(states)} states count as {independent:.0f}; their mean moves by")
print(f"    {shift.max():.2f} standard deviations at most")

# ---- 6. The same likelihood with PETSc -----------------------------------------------------------------

nodes = sensor_nodes(arguments.levels)
lu = ReferenceSolver(problem, arguments.levels)
loose = {"pc_type": "icc", "ksp_rtol": 1e-5}  # errors far below the noise, as the model's are
icc = ReferenceSolver(problem, arguments.levels, solver="cg", petsc_options=loose)
half = arguments.walkers // 2  # emcee moves one half of the walkers at a time
batch = posterior[np.random.default_rng(6).integers(len(posterior), size=half)]


def sensed(solver: ReferenceSolver, y: Floats) -> Floats:
    """(s,) the sensor values for one y (p,)."""
    solver.solve(y)
    return solver.gathered()["u"][nodes]


ways: dict[str, Callable[[Floats], Floats]] = {
    "PETSc lu": lambda y: sensed(lu, y),
    "PETSc cg icc": lambda y: sensed(icc, y),
    "model": lambda y: direct.fast(batch),
}
times: dict[str, list[float]] = {name: [] for name in ways}
for y in np.concatenate([some[:1], np.repeat(some, 3, axis=0)]):  # by turns, so that other work on the machine hits all
    for name, way in ways.items():
        start = time.perf_counter()
        way(y)
        times[name].append(1000 * (time.perf_counter() - start) / (half if name == "model" else 1))
medians = {name: float(np.median(each[1:])) for name, each in times.items()}  # the first one warms up
off = np.abs(np.array([sensed(icc, y) for y in some]) - better.values.numpy()).max()
count, threads = len(times["model"]) - 1, torch.get_num_threads()
print(f"one likelihood, median of {count}, measured by turns, torch threads: {threads}")
print(f"    PETSc, one process: {medians['PETSc lu']:.2f} ms by LU, {medians['PETSc cg icc']:.2f} ms by cg with icc")
print(f"    (to a relative residual of 1e-5, which leaves errors of {off / sigma:.0e} S)")
print(f"    the model: {medians['model']:.3f} ms, in batches of {half}")
name = min(("PETSc lu", "PETSc cg icc"), key=lambda one: medians[one])
whole = medians[name] * evaluations / 1000
print(f"    measured {medians[name]:.2f} ms per solve by {name}: {evaluations} likelihoods would take {whole:.0f} s,")
print(f"    extrapolated and without the sampler; the chain took {seconds:.0f} s")
discretisation = np.abs(sensed(lu, TRUTH) - exact).max()
print(f"the mesh: levels {arguments.levels} and {fine} differ by {discretisation / sigma:.2f} S at the sensors")
solved = np.array([sensed(lu, y) for y in some])
assert (np.abs(solved - better.values.numpy()) <= better.error_bound.numpy() + 1e-9).all()

# ---- 7. The picture, and the claims --------------------------------------------------------------------

how = "by the\nservice" if arguments.service else "this\nchain"
figure = draw(
    Result(sensors, data, TRUTH, best.x, posterior, worth, certified / sigma, evaluations),
    {f"{name},\nextrapolated": whole, how: seconds},
)
save(figure, arguments.out / "inverse.png")
print(f"Picture: {arguments.out / 'inverse.png'}")
assert 2 * best.fun < len(sensors) + 5 * np.sqrt(2 * len(sensors))
assert distance**0.5 < 5
assert certified.max() < sigma
assert shift.max() < 0.5
