"""Peak memory of a process that trains or answers queries, measured in a process of its own.

The child loads the frame from a file, so that its peak is not that of making the mesh.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fem_frames.formulations.registry import make_formulation
from fem_frames.frame.arrays import FrameArrays
from fem_frames.memory import as_text, available
from fem_frames.operators.frame import Frame
from fem_frames.problem.loading import make_problem
from fem_frames.solvers.multigrid import Multigrid
from training.scaling.steps import BATCH, TrainingStep

Settings = Mapping[str, Any]
STEPS = 3  # of training: the first makes the state of the optimizer
MARGIN = 1.2  # on what the coarser mesh suggests, before a process is started that others might suffer from
STATUS = Path("/proc/self/status")
MAKE = (
    "import sys; from pathlib import Path; from fem_frames import make_problem; from fem_frames.studies.levels import "
    "cached_frame; cached_frame(make_problem(sys.argv[1]), int(sys.argv[2]), 'energy', folder=Path(sys.argv[3]))"
)
RUN = "import sys; from training.scaling.memory import run; run(*sys.argv[1:])"


def memory(settings: Settings, out: Path, name: str) -> dict[str, Any]:
    """The peak of a process that trains or answers, or the reason why it was not started."""
    problem, J, task = settings["problem"], settings["levels"], settings["task"]
    coarser = out / f"memory-{problem}-J{J - 1}-{task}.json"
    d = make_problem(problem).dimension
    if coarser.is_file():
        found = json.loads(coarser.read_text())
        known = found.get("peak")
        expected = None if known is None else MARGIN * 2**d * known
        if expected is None or expected > available():
            need = "more than there is" if expected is None else f"up to {as_text(expected)}"
            return {"refused": f"it may need {need}, and {as_text(available())} were free"}
    # The mesh is made by a process that ends, and with it the memory of DOLFINx.
    _call(MAKE, problem, J, out / "frames")
    return dict(json.loads(_call(RUN, problem, J, task, out / "frames")))


def _call(program: str, *arguments: object) -> str:
    words = [sys.executable, "-P", "-c", program, *map(str, arguments)]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip()[-400:]}")
    return done.stdout


def run(problem_name: str, levels: str, task: str, folder: str) -> None:
    """Trains some steps, or answers a batch, and prints the peak of memory."""
    from fem_frames.studies.levels import cached_frame

    problem = make_problem(problem_name)
    arrays = cached_frame(problem, int(levels), "energy", folder=Path(folder))
    begin = peak()
    weights = 0
    if task == "training":
        step = TrainingStep(arrays, problem, BATCH)
        weights = step.net.parameter_count()
        for _ in range(STEPS):
            step()
    else:
        _answer(arrays, problem)
    record = {"unknowns": arrays.nodal_size, "weights": weights, "loaded": begin, "peak": peak()}
    print(json.dumps(record))


@torch.no_grad()
def _answer(arrays: FrameArrays, problem: Any) -> None:
    """Multigrid with two steps of conjugate gradients for a batch."""
    multigrid = Multigrid(make_formulation(Frame.from_arrays(arrays, torch.float32), problem))
    multigrid.answer(torch.as_tensor(problem.parameters.sample(BATCH, 0)).float(), 2)


def peak() -> int:
    """Bytes of memory that this process held at most.

    Linux hands the peak of getrusage on to a program that a large process starts, so its own record comes first.
    """
    if STATUS.exists():
        lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines() if ":" in line)
        if "VmHWM" in lines:
            return 1024 * int(lines["VmHWM"].split()[0])
    import resource

    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else 1024 * size
