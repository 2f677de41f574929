"""Golden numbers: what the code computed when they were written, to the bit.

    python tests/golden.py --write

writes them anew, which is right only where behaviour is meant to change. A golden number is a digest of all bits, and a
few figures of the same array. Digests are compared where processor, torch, NumPy and DOLFINx are those that the numbers
were written with; elsewhere rounding differs, and the figures are compared, up to a tolerance of the precision.
"""

import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from frames import mixed

from fem_frames import (
    ByRegion,
    Frame,
    Grid,
    MeshHierarchy,
    Problem,
    Uniform,
    export_frame,
    make_formulation,
    make_problem,
    solve_reference,
)
from training import Configuration, Surrogate, TrainingError, train
from training.run.log import read_log

FOLDER = Path(__file__).parent / "golden"
NUMBERS = FOLDER / "numbers.json"
DTYPES = ("float16", "bfloat16", "float32", "float64")


def environment():
    """A digest of all that rounding depends on."""
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")][:1]
    import dolfinx

    parts = [*model, platform.machine(), torch.__version__, np.__version__, dolfinx.__version__]
    parts += [torch.backends.cpu.get_cpu_capability(), str(torch.get_num_threads())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def golden(*arrays):
    """The digest of arrays, and figures of them that do not depend on the order of entries that vanish."""
    digest, figures = hashlib.sha256(), []
    for array in arrays:
        if isinstance(array, torch.Tensor):
            bits = array.detach().cpu().contiguous()
            array = bits.double().numpy()
            digest.update(bits.flatten().view(torch.uint8).numpy().tobytes() if bits.numel() else b"")
        else:
            array = np.ascontiguousarray(array)
            digest.update(array.tobytes())
        flat = np.asarray(array, np.float64).ravel()
        wave = np.cos(np.arange(len(flat)))
        figures += [float(np.linalg.norm(flat)), float(flat @ wave), float(np.abs(flat).sum())]
    return {"digest": digest.hexdigest()[:16], "figures": figures}


# ---- frames and operators


def stretched():
    """A box whose cells have no dyadic coordinates."""
    return replace(mixed(3), mesh=Grid((1, 1, 1), (0.0, 0.0, 0.1), (0.9, 0.7, 1.3)), length=1.0, coarse="none")


def corner():
    """Norms as before lengths were measured in the size of the domain."""
    return replace(make_problem("lshape"), length=1.0)


FRAMES = {  # problem, levels, formulation
    "interval": (lambda: make_problem("quarters"), 4, "energy"),
    "interval, mixed": (lambda: mixed(1), 4, "energy"),
    "interval, LS": (lambda: make_problem("quarters"), 4, "least-squares"),
    "interval, LS, mixed": (lambda: mixed(1), 3, "least-squares"),
    "interval, weighted": (lambda: mixed(1), 3, "weighted-least-squares"),
    "square": (lambda: make_problem("checkerboard"), 3, "energy"),
    "square, mixed": (lambda: mixed(2), 3, "energy"),
    "square, lognormal": (lambda: make_problem("lognormal"), 2, "energy"),
    "square, dolfinx": (
        lambda: Problem(Grid((2, 1)), ByRegion({0: 0}), Uniform((0.5,), (1.5,)), refinement="dolfinx"),
        *(2, "energy"),
    ),
    "L-shape": (corner, 2, "energy"),
    "square, LS": (lambda: make_problem("checkerboard"), 2, "least-squares"),
    "square, LS, mixed": (lambda: mixed(2), 2, "least-squares"),
    "square, weighted": (lambda: make_problem("checkerboard"), 2, "weighted-least-squares"),
    "ring, LS": (lambda: replace(make_problem("ring"), coarse="none"), 1, "least-squares"),
    "cube": (lambda: make_problem("cube"), 2, "energy"),
    "box, mixed": (stretched, 1, "energy"),
    "cube, LS": (lambda: make_problem("cube"), 1, "least-squares"),
    "box, LS, mixed": (stretched, 1, "least-squares"),
    "box, weighted": (stretched, 1, "weighted-least-squares"),
}


@cache
def frame_arrays(name):
    make, levels, formulation = FRAMES[name]
    problem = make()
    return problem, export_frame(MeshHierarchy.from_problem(problem, levels), problem, formulation)


def saved_arrays(arrays):
    """By name, what a file of the frame holds."""
    with tempfile.TemporaryDirectory() as folder:
        arrays.save(Path(folder) / "frame.npz")
        with np.load(Path(folder) / "frame.npz", allow_pickle=False) as file:
            return {name: file[name] for name in file.files if file[name].dtype.kind in "fi"}


def frame_numbers(name, dtype):
    """H, D, C_y, loads, losses and residuals in one precision."""
    problem, arrays = frame_arrays(name)
    formulation = make_formulation(Frame.from_arrays(arrays, dtype), problem)
    frame = formulation.frame
    wave = torch.cos(torch.arange(2 * frame.frame_size, dtype=torch.float64)).view(2, -1).to(frame.dtype)
    states = torch.sin(torch.arange(2 * frame.D.shape[0], dtype=torch.float64)).view(2, -1).to(frame.dtype)
    y = torch.as_tensor(problem.parameters.sample(2, 0)).bfloat16().to(frame.dtype)
    loss, residual = formulation.loss_and_residual(wave, y)
    found = {
        "H": (frame.H(wave), frame.H.T(frame.H(wave))),
        "D": (frame.D(wave), frame.D.T(states)),
        "C": (formulation.C(y)(states),),
        "A": (formulation.A(y)(frame.H(wave)),),
        "load": (formulation.load(y), formulation.nodal_load(y)),
        "loss": (formulation.loss(wave, y), loss, residual, formulation.constant(y)),
        "bpx": (formulation.nodal_loss(frame.H(wave), y),),
        "fields": tuple(formulation.synthesise(wave).values()),
    }
    if dtype == "float64":
        found["dense"] = (frame.H.to_dense(), frame.D.to_dense())
    return {key: golden(*tensors) for key, tensors in found.items()}


# ---- reference solutions

REFERENCES = {  # problem, levels, formulation, solver
    "interval, energy": (lambda: mixed(1), 4, "energy", None),
    "interval, least-squares": (lambda: mixed(1), 4, "least-squares", None),
    "square, energy": (lambda: mixed(2), 3, "energy", None),
    "square, energy, lu": (lambda: make_problem("checkerboard"), 3, "energy", "lu"),
    "square, least-squares": (lambda: mixed(2), 2, "least-squares", None),
    "square, least-squares, cg": (corner, 2, "least-squares", "cg"),
    "square, weighted": (lambda: mixed(2), 2, "weighted-least-squares", None),
    "box, energy": (stretched, 1, "energy", None),
    "box, least-squares": (stretched, 1, "least-squares", None),
}


def reference_numbers(name):
    make, levels, formulation, solver = REFERENCES[name]
    problem = make()
    found = solve_reference(problem, problem.parameters.sample(2, 0), levels, formulation, solver=solver)
    return golden(*found.fields.values(), found.loss)


# ---- training

INTERVAL = dict(problem="quarters", formulation="least-squares", levels=3)
SQUARE = dict(problem="checkerboard", formulation="energy", levels=2)
SHARED = dict(rank=4, blocks=2, batch=8, epochs=20, log_every=1, test_samples=0, device="cpu")
FIXED = dict(sampling="fixed", training_samples=16)
LINE_SEARCH = {key: dict(training_samples=8) for key in ("lbfgs", "ngd")}  # one batch: 20 epochs are 20 steps
PRECISIONS = {**{name: dict(precision=name) for name in DTYPES}, "mixed": dict(precision="float16", mixed=True)}


def _supervised(loss):
    return FIXED | dict(references="petsc") if loss.startswith("supervised") else {}


RUNS = {
    **{
        f"{optimizer}, {name}": INTERVAL | dict(optimizer=optimizer) | more | LINE_SEARCH.get(optimizer, {})
        for optimizer in ("sgd", "adam", "lbfgs", "ngd", "soap")
        for name, more in PRECISIONS.items()
    },
    **{
        f"{net}, {loss}": INTERVAL | dict(net=net, loss=loss) | _supervised(loss)
        for net in ("full", "separate", "separate-frame")
        for loss in ("stable", "bpx", "nodal", "supervised", "supervised-nodal")
    },
    **{
        f"{loss}, float16": INTERVAL | dict(loss=loss, precision="float16") | _supervised(loss)
        for loss in ("bpx", "nodal", "supervised", "supervised-nodal")
    },
    **{
        f"{net}, square, {name}": SQUARE | dict(net=net, level_decay=1.0) | more
        for net in ("full", "separate", "separate-frame")
        for name, more in PRECISIONS.items()
        if name in ("float16", "float32")
    },
    "square, LS": SQUARE | dict(formulation="least-squares", optimizer="soap"),
    "square, LS, float16": SQUARE | dict(formulation="least-squares", precision="float16"),
    "square, weighted": SQUARE | dict(formulation="weighted-least-squares"),
    "cube": dict(problem="cube", levels=1, start_level=1, net="separate-frame"),
    "cube, LS": dict(problem="cube", levels=1, formulation="least-squares"),
    "sobol": SQUARE | dict(sampling="sobol", start_level=2, net="separate-frame"),
    "fixed, micro": SQUARE | FIXED | dict(micro_batch=3),
    "lognormal": dict(problem="lognormal", levels=2),
}


def run_numbers(name, folder):
    """Losses of all steps and the weights in the end; of a run that stops, the losses until then."""
    import contextlib

    with contextlib.suppress(TrainingError):
        train(Configuration(**(SHARED | RUNS[name])), folder, quiet=True)
    return numbers_of_run(folder)


def numbers_of_run(folder):
    losses = [r["loss"] for r in read_log(folder / "log.jsonl") if "loss" in r]
    found = [np.array([np.nan if loss is None else loss for loss in losses])]
    found[0] = np.nan_to_num(found[0], nan=-1.0)
    if (folder / "surrogate.pt").exists():
        weights = torch.load(folder / "surrogate.pt", weights_only=True)["weights"]
        found.append(torch.cat([w.reshape(-1) for w in weights.values()]))
    return golden(*found)


# ---- files of the format of their time

STOPPED = "full, stable"  # the run that is kept half done
QUERIED = "full, square, float32"


def surrogate_numbers(surrogate):
    y = make_problem("checkerboard").parameters.sample(3, 5)
    better = surrogate.improve(y, 1e-8)
    return golden(*surrogate(y).values(), surrogate.error_bound(y), better.values["u"], surrogate.loss(y))


def write_files():
    for name in ("run", "surrogate", "frames"):
        shutil.rmtree(FOLDER / name, ignore_errors=True)
    with tempfile.TemporaryDirectory() as place:
        whole, other = Path(place) / "run", Path(place) / "other"
        train(Configuration(**(SHARED | RUNS[STOPPED]), checkpoint_every=10), whole, quiet=True)
        for rest in ("result.json", "surrogate.pt", "lock", "checkpoints/best.pt", "checkpoints/step-000000020.pt"):
            (whole / rest).unlink(missing_ok=True)
        shutil.copytree(whole, FOLDER / "run")
        train(Configuration(**(SHARED | RUNS[QUERIED])), other, quiet=True)
        (FOLDER / "surrogate").mkdir()
        for name in ("frame.npz", "surrogate.pt"):
            shutil.copy(other / name, FOLDER / "surrogate" / name)
    (FOLDER / "frames").mkdir()
    for number, name in enumerate(FRAMES):
        if "mixed" in name or "ring" in name:
            frame_arrays(name)[1].save(FOLDER / "frames" / f"{number}.npz")
    problem = make_problem("checkerboard")
    solve_reference(problem, problem.parameters.sample(2, 0), 2).save(FOLDER / "frames" / "reference.npz")


def all_numbers():
    found = {"environment": environment(), "frames": {}, "files": {}, "references": {}, "runs": {}}
    for name in FRAMES:
        found["frames"][name] = {dtype: frame_numbers(name, dtype) for dtype in DTYPES}
        flat = saved_arrays(frame_arrays(name)[1])
        found["files"][name] = {"names": sorted(flat), "golden": golden(*(flat[key] for key in sorted(flat)))}
    for name in REFERENCES:
        found["references"][name] = reference_numbers(name)
    with tempfile.TemporaryDirectory() as place:
        for number, name in enumerate(RUNS):
            found["runs"][name] = run_numbers(name, Path(place) / str(number))
    found["surrogate"] = surrogate_numbers(Surrogate.load(FOLDER / "surrogate"))
    return found


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("python tests/golden.py --write replaces all golden numbers and files")
    FOLDER.mkdir(exist_ok=True)
    write_files()
    NUMBERS.write_text(json.dumps(all_numbers()) + "\n")
