"""What a numerical analyst would do instead of a neural net, on the same problems and by the same measures.

    python demos/demo_comparison.py [--out FOLDER] [--problem quarters] [--levels J] [--run RUN] [--frame FILE.npz]

Two problems: `quarters` in one dimension as first-order least squares, where the coefficient is piecewise constant and
few numbers determine the solution; and `inclusion`, the energy on the unit square, where a disk moves. The demo
compares a solve for every y, a reduced basis, polynomial chaos, a small net for the coefficients of POD modes, and
with --run the surrogate of `fem-frames train`. All numbers go to comparison.json. With --frame, a file written by
`fem-frames export`, or with the frame of a run, no DOLFINx is needed. A query gives all fields at all points.
"""

import argparse
import json
from pathlib import Path
from textwrap import fill
from time import perf_counter

import numpy as np
import torch

from fem_frames import Frame, FrameArrays, make_formulation, make_problem
from fem_frames.commands.info import collect
from fem_frames.files import written_whole
from fem_frames.operators.coordinates import Coordinates
from fem_frames.problem.loading import recorded_problem
from fem_frames.studies.levels import cached_frame
from fem_frames.studies.plots import new_figure, save
from fem_frames.studies.solution_plots import COLORS
from training.metrics import evaluate, query_seconds
from training.references import reference_solutions
from training.registry import REFERENCES
from training.rivals.reduced_bases import (
    PodSpace,
    RivalAnswers,
    direct_solves,
    full_system,
    gradient_errors,
    reduced_basis,
    solve_snapshots,
)
from training.rivals.regression import PodNet, PolynomialChaos, affordable_degree
from training.surrogate import Surrogate

CASES = {"quarters": ("least-squares", 10), "inclusion": ("energy", 6)}  # formulation, levels

parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
parser.add_argument("--out", type=Path, default=Path("results"), help="folder for the results; default: results")
parser.add_argument("--problem", action="append", choices=CASES, help="one of the two; default: both")
parser.add_argument("--levels", type=int, metavar="J", help="refinements; default: 10 for quarters, 6 for inclusion")
parser.add_argument("--samples", type=int, default=1000, metavar="S", help="solves to learn from; default: 1000")
parser.add_argument("--test-samples", type=int, default=200, metavar="B", help="new samples; default: 200")
parser.add_argument("--seed", type=int, default=0, help="seed of all samples and of the small nets; default: 0")
parser.add_argument("--run", type=Path, action="append", default=[], help="folder of a trained surrogate; repeatable")
parser.add_argument("--frame", type=Path, action="append", default=[], help="file of an exported frame; repeatable")
parser.add_argument("--references", choices=REFERENCES, default="auto", help="solves for the samples; default: auto")
parser.add_argument("--fast", action="store_true", help="coarse meshes, few samples, short training: a few seconds")
arguments = parser.parse_args()
if arguments.fast:
    CASES = {"quarters": ("least-squares", 5), "inclusion": ("energy", 4)}
    arguments.samples, arguments.test_samples = min(arguments.samples, 160), min(arguments.test_samples, 16)
if arguments.samples < 100 or arguments.test_samples < 1 or arguments.seed < 0:
    parser.error("this comparison needs at least --samples 100 and --test-samples 1, and no negative --seed")
if arguments.levels is not None and arguments.levels < 4:
    parser.error(f"--levels is {arguments.levels}; this comparison needs at least 4")
try:
    arguments.out.mkdir(parents=True, exist_ok=True)
except OSError as error:
    parser.error(f"cannot write to {arguments.out}: {error.strerror}")


def by_problem(found, option):
    """What was loaded, by the name of its problem."""
    names = [arrays.record.get("problem") for arrays, _ in found]
    for (arrays, made), name in zip(found, names, strict=True):
        if name not in CASES or arrays.formulation != CASES[name][0] or names.count(name) > 1:
            parser.error(
                f"{option} {made}: give one each for quarters with least-squares and for inclusion with energy, "
                f"this is {name} with {arrays.formulation}"
            )
    return dict(zip(names, found, strict=True))


try:
    runs = by_problem([(Surrogate.load(folder).arrays, folder) for folder in arguments.run], "--run")
    frames = by_problem([(FrameArrays.load(file), file) for file in arguments.frame], "--frame")
except ValueError as error:
    parser.error(str(error))
chosen = arguments.problem or [name for name in CASES if name in frames or not frames]


class Comparison:
    """One problem with its formulation, snapshots and test set, and the rows of its table."""

    def __init__(self, name):
        self.name, seed = name, arguments.seed
        self.arrays = self._arrays()
        if self.arrays.finest_level < 4:
            parser.error(f"{name} has {self.arrays.finest_level} levels; this comparison needs at least 4")
        self.problem = recorded_problem(self.arrays.record)
        self.exact = make_formulation(Frame.from_arrays(self.arrays, "float64"), self.problem)
        parameters = self.problem.parameters
        # Three disjoint sets of samples: for learning, for testing, for measuring times.
        tests = parameters.sample(arguments.test_samples, [seed, 1])
        self.reference = reference_solutions(self.exact, tests, references=arguments.references)
        self.queries = parameters.sample(128 if arguments.fast else 2000, [seed, 2])
        self.system, self.system_s = timed(full_system, self.exact)
        self.direct = direct_solves(self.system)
        self.snapshots = solve_snapshots(self.direct, parameters.sample(arguments.samples, seed), arguments.references)
        self.rows, self.curves, self.verdicts = [], {}, []
        N, J = self.arrays.nodal_size, self.arrays.finest_level
        print(f"\n{name}, {self.exact.name}, J = {J}: {N} unknowns, {len(self.reference.y)} test samples")
        print(f"  {'method':36} {'solves':>6} {'offline':>9} {'1000 queries':>12} {'above floor':>12}", end="")
        print(f" {'MRE':>8} {'H1 error':>9}")

    def _arrays(self):
        """The frame from a file, from a run, or made by DOLFINx."""
        given = [found[self.name][0] for found in (frames, runs) if self.name in found]
        formulation, default = CASES[self.name]
        arrays = given[0] if given else cached_frame(make_problem(self.name), arguments.levels or default, formulation)
        wanted = (arguments.levels or arrays.finest_level, arrays.record.get("options"))
        if any((a.finest_level, a.record.get("options")) != wanted for a in (arrays, *given)):
            parser.error(f"--levels, --frame and --run for {self.name} differ: give those of one mesh and problem")
        return arrays

    def measure(self, name, solves, offline_s, surrogate):
        """Adds a row to the table; returns the errors (B,) of the gradient."""
        found = evaluate(surrogate, self.reference)
        w = surrogate.coefficients(torch.as_tensor(self.reference.y))
        errors = gradient_errors(surrogate.formulation, w, self.reference).numpy()
        one = query_seconds(surrogate, self.queries[:128])
        if one < 1e-3:  # cheap methods also get all queries at once
            one = min(one, query_seconds(surrogate, self.queries, 1000))
        row = {
            "method": name,
            "solves": solves,
            "offline_s": offline_s,
            "query_1000_s": 1000 * one,
            "loss": found.loss,
            "excess": found.excess,
            "mre": found.mre,
            "h1_error": float(errors.mean()),
        }
        self.rows.append(row)
        offline = "-" if offline_s is None else f"{offline_s:.3g} s"
        print(f"  {name:36} {solves:6d} {offline:>9} {1e6 * one:9.1f} ms {found.excess:12.1e}", end="")
        print(f" {found.mre:8.1e} {row['h1_error']:9.1e}", flush=True)
        return errors

    def measure_method(self, method, offline_s):
        return self.measure(method.name, method.solves, offline_s, RivalAnswers(self.exact, method))

    def measure_run(self):
        """Adds a row for the surrogate of a run, if there is one."""
        if self.name not in runs:
            print(f"  (no --run for {self.name}: `fem-frames train --problem {self.name} …` makes one)")
            return
        folder = runs[self.name][1]
        result = folder / "result.json"
        seconds = json.loads(result.read_text()).get("seconds") if result.exists() else None
        self.measure("frame net", 0, seconds, Surrogate.load(folder))

    def projection_errors(self, space):
        """(B,) errors of the best approximation in the space, which bounds every method that uses its modes."""
        free = self.exact.coordinates.free(self.reference.fields, self.exact.frame.device, self.reference.y)
        best = space.project(free)
        return gradient_errors(self.exact, Coordinates(self.arrays).coefficients(best), self.reference).numpy()

    def say(self, text):
        """Prints a sentence about the numbers, and keeps it for the page."""
        self.verdicts.append(text)
        print(fill(text, 118, subsequent_indent="  "))

    def run_record(self):
        """Describes the frame net and its training."""
        if self.name not in runs:
            return None
        record = Surrogate.load(runs[self.name][1]).record
        names = ("net", "start_level", "rank", "blocks", "level_decay", "optimizer", "precision", "epochs", "batch")
        given = {name: record["configuration"].get(name) for name in (*names, "sampling", "seed")}
        settings = {name: value for name, value in given.items() if value is not None}
        return {"settings": settings, **{key: record["result"][key] for key in ("parameters", "threads", "seconds")}}

    def row(self, start):
        return next((r for r in self.rows if r["method"].startswith(start)), None)

    def verdict(self, measure, words):
        """Says which methods are better than the frame net in error or in query time, and which are not."""
        net = self.row("frame net")
        if net is None:
            return
        titles = ("more accurate and faster", "more accurate, but slower", "faster, but less accurate", "neither")
        groups: dict[str, list[str]] = {title: [] for title in titles}
        for r in self.rows:
            if r is not net:
                worse, slower = (r[key] >= net[key] for key in (measure, "query_1000_s"))
                groups[titles[2 * worse + slower]].append(r["method"])
        parts = [f"{title}: {', '.join(names) or 'no method'}" for title, names in groups.items()]
        self.say(f"Beside the frame net, by {words}: {'; '.join(parts)}.")

    def record(self):
        versions = collect()
        return {
            "problem": self.name,
            "formulation": self.exact.name,
            "levels": self.arrays.finest_level,
            "seed": arguments.seed,
            "snapshots": len(self.snapshots.y),
            "test_samples": len(self.reference.y),
            "floor": float(self.reference.loss.mean()),
            "rows": self.rows,
            "curves": self.curves,
            "verdicts": self.verdicts,
            "run": self.run_record(),
            "versions": {key: versions[key] for key in ("fem-frames", "python", "numpy", "scipy", "torch")},
            "threads": torch.get_num_threads(),
        }


records: list[dict] = []


def write_numbers(case):
    """Writes the measurements before the claims are checked, so that they are kept in any case."""
    records.append(case.record())
    with written_whole(arguments.out / "comparison.json") as file:
        file.write(json.dumps({"problems": records}, indent=1, allow_nan=False).encode())


def timed(make, *given, **options):
    start = perf_counter()
    made = make(*given, **options)
    return made, perf_counter() - start


# ---- 1. Four quarters: a small problem in disguise -----------------------------------------------------
#
# −(a_y u')' = 1 with a_y constant on each quarter. The flux is σ = c - x with a number c that depends on y, and u' is
# σ/a_k on the k-th quarter: all solutions are combinations of ten functions with the weights 1, c, 1/a_k and c/a_k, and
# u(1) = 0 is a linear relation between these. So they lie in an affine space of dimension 8, discrete ones up to O(h²).
# Nine solves span it; the demo takes 16, because nine random ones may span it badly and cost two digits of the excess.
# The functional ‖σ' + 1‖² + ‖σ/a_y - u'‖² is quadratic in 1/a_y: it is reduced to 8 × 8 matrices once and for all.


def compare_quarters():
    case = Comparison("quarters")
    few, some = case.snapshots.first(16), case.snapshots.first(min(400, arguments.samples))
    case.measure_method(case.direct, case.system_s)

    space, seconds = timed(PodSpace.build, case.exact, few, 8)
    method, own = timed(reduced_basis, case.system, space)
    case.measure_method(method, few.seconds + seconds + case.system_s + own)

    degree = min(5, affordable_degree(4, len(some.y)))
    space, seconds = timed(PodSpace.build, case.exact, some, 8)
    method, own = timed(PolynomialChaos, case.problem, space, some, degree)
    case.measure_method(method, some.seconds + seconds + own)

    space, seconds = timed(PodSpace.build, case.exact, case.snapshots, 8)
    steps = (200, 50) if arguments.fast else (1000, 3000)
    method, own = timed(PodNet, case.problem, space, case.snapshots, (64, 64), steps, arguments.seed)
    case.measure_method(method, case.snapshots.seconds + seconds + own)
    case.measure_run()

    spectrum = (space.spectrum / space.spectrum[0]).tolist()
    case.curves["POD spectrum"] = [[k + 1, value] for k, value in enumerate(spectrum[:16])]
    floor, basis = float(case.reference.loss.mean()), case.row("least-squares reduced basis")
    case.say(
        f"Singular values of the snapshots, the 8th and the 9th: {spectrum[7]:.0e} and {spectrum[8]:.0e} of the first. "
        f"A reduced basis of 8 modes, made from 16 solves, is {basis['excess']:.0e} above the floor, {floor:.4e}."
    )
    net = case.row("frame net")
    if net is not None:
        times = net["query_1000_s"] / basis["query_1000_s"]
        gains = " So on this problem a net gains nothing." if times > 1 and net["excess"] > basis["excess"] else ""
        case.say(f"The frame net is {net['excess']:.1e} above it, its queries take {times:.1f} times as long.{gains}")
    case.verdict("excess", "the loss")
    write_numbers(case)

    h2 = 4.0**-case.arrays.finest_level
    assert spectrum[8] < 0.2 * h2 < 1e-3 < spectrum[7], "the solutions must lie in an affine space of dimension 8"
    assert net is None or net["excess"] > basis["excess"]
    assert abs(basis["excess"]) < 0.02 * h2**2, "the reduced basis must be exact up to O(h⁴)"
    assert all(r["loss"] > (1 - 1e-9) * floor for r in case.rows), "nothing is below the floor"
    assert all(r["excess"] > basis["excess"] for r in case.rows if r["method"].startswith(("POD", "poly")))
    return case


# ---- 2. A moving disk: hard for linear reduction -------------------------------------------------------
#
# The kink of u moves with the disk. A linear space for all its positions needs many dimensions: the error of the best
# one, that of POD, falls slowly with N. Moreover a_y is not affine in y, so a reduced basis has to visit the mesh for
# every query. The Galerkin solution is at most √10 times worse than the best approximation in the same space, where 10
# is the contrast of a_y (Céa).


def compare_inclusion():
    case = Comparison("inclusion")
    case.measure_method(case.direct, case.system_s)
    space, seconds = timed(PodSpace.build, case.exact, case.snapshots)
    offline = case.snapshots.seconds + seconds
    few = min(space.size - 1, case.arrays.nodal_size // 8)  # on a coarse mesh many modes would span everything
    sizes = [n for n in (5, 10, 20, 40, 80, 160, 320) if n <= few]
    best, reduced = {}, {}
    for n in sizes:
        best[n] = case.projection_errors(space.first(n))
        method, own = timed(reduced_basis, case.system, space.first(n))
        reduced[n] = case.measure_method(method, offline + case.system_s + own)

    modes = max(n for n in sizes if n <= 160)
    short = space.first(modes)
    degree = affordable_degree(3, arguments.samples, surplus=4)
    method, own = timed(PolynomialChaos, case.problem, short, case.snapshots, degree)
    fitted = [case.measure_method(method, offline + own)]
    steps = (200, 50) if arguments.fast else (2000, 200)
    method, own = timed(PodNet, case.problem, short, case.snapshots, (128, 128, 128), steps, arguments.seed)
    fitted.append(case.measure_method(method, offline + own))
    case.measure_run()

    case.curves["POD projection"] = [[n, float(best[n].mean())] for n in sizes]
    case.curves["reduced basis"] = [[n, float(reduced[n].mean())] for n in sizes]
    for name, errors in zip(("polynomial chaos", "POD and net"), fitted, strict=True):
        case.curves[name] = [[modes, float(errors.mean())]]
    rate = -np.polyfit(np.log(sizes), np.log([best[n].mean() for n in sizes]), 1)[0]
    case.say(f"The error of the best approximation by N modes falls like N^-{rate:.2f}.")
    print(", ".join(f"{best[n].mean():.3f} (N = {n})" for n in sizes))
    net = case.row("frame net")
    if net is not None:
        for title, errors in (("POD space", best), ("Galerkin reduced basis", reduced)):
            enough = next((n for n in sizes if errors[n].mean() <= net["h1_error"]), None)
            many = f"more than {sizes[-1]}" if enough is None else f"at most {enough}"
            case.say(f"The frame net errs by {net['h1_error']:.4f}; a {title} needs {many} modes for that.")
    case.verdict("h1_error", "the error of ∇u")
    case.verdict("excess", "the energy, which the reduced basis and the frame net minimise")
    write_numbers(case)

    contrast = case.problem.options.get("conductivity", 10.0)
    for n in sizes:
        assert (best[n] <= (1 + 1e-9) * reduced[n]).all(), "nothing in the space is better than the projection"
        assert (reduced[n] <= np.sqrt(max(contrast, 1 / contrast)) * best[n]).all(), "Céa's lemma must hold"
    for errors in fitted:
        assert (best[modes] <= (1 + 1e-9) * errors).all()
    assert rate < 0.6, "linear reduction must be weak where features move"
    assert case.row("direct")["h1_error"] < 1e-8
    return case


# ---- 3. Numbers and picture ----------------------------------------------------------------------------


def draw(case, path):
    figure = new_figure(11.5, 4.8)
    left, right = figure.subplots(1, 2, sharey=True)
    names, markers = ("Galerkin reduced basis", "polynomial chaos", "POD and net", "frame net"), "os^*"
    styles = dict(zip(names, zip(COLORS, markers, strict=False), strict=False))
    curves, net = case.curves, case.row("frame net")
    left.loglog(*zip(*curves["POD projection"], strict=True), "k--", label="best approximation (POD projection)")
    left.loglog(*zip(*curves["reduced basis"], strict=True), "o-", color=COLORS[0], label=names[0])
    for name in names[1:3]:
        left.loglog(*curves[name][0], styles[name][1], color=styles[name][0], markersize=8, label=name)
    if net is not None:
        left.axhline(net["h1_error"], color=COLORS[3], label="frame net")
    left.set_xticks([n for n, _ in curves["POD projection"]], [str(n) for n, _ in curves["POD projection"]])
    left.minorticks_off()
    left.set(xlabel="number of modes N", ylabel="mean relative error of ∇u", title="Error against dimension")
    for name, (color, marker) in styles.items():
        mine = [(r["query_1000_s"], r["h1_error"]) for r in case.rows if r["method"].startswith(name)]
        if mine:
            right.loglog(*zip(*mine, strict=True), marker, color=color, markersize=8, label=name)
    right.axvline(case.row("direct")["query_1000_s"], color="black", linestyle=":", label="direct solves (no error)")
    right.set(xlabel="seconds for 1000 queries", title="Error against time")
    for axes in (left, right):
        axes.grid(alpha=0.3, which="both")
        axes.legend(fontsize=8)
    figure.suptitle(f"A disk that moves: (E), J = {case.arrays.finest_level}")
    save(figure, path)


compare = {"quarters": compare_quarters, "inclusion": compare_inclusion}
found = [compare[name]() for name in CASES if name in chosen]
print(f"\nNumbers: {arguments.out / 'comparison.json'}")
if "inclusion" in chosen:
    draw(found[-1], arguments.out / "comparison.png")
    print(f"Picture: {arguments.out / 'comparison.png'}")
