"""Evaluates the nets of an experiment on samples that occur neither in training nor in tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fem_frames.frame.solutions import ReferenceSolutions
from training.experiments.cells import Cell
from training.metrics import evaluate
from training.references import reference_solutions
from training.surrogate import Surrogate

SAMPLES = 1000


def evaluate_new_samples(
    cells: Sequence[Cell], seed: int, progress: Callable[[int, int], None] | None = None
) -> dict[str, dict[str, Any]]:
    """The metrics of all finished cells by name, equal to those of `fem-frames evaluate --samples 1000 --seed`."""
    done = [cell for cell in cells if cell.state().status == "done"]
    solved: dict[tuple[Any, ...], ReferenceSolutions] = {}
    found = {}
    for number, cell in enumerate(done):
        if progress is not None:
            progress(number, len(done))
        surrogate = Surrogate.load(cell.folder)
        c = cell.configuration
        key = (c.problem, str(c.options), c.levels, c.formulation, c.refinement, c.references)
        if key not in solved:
            y = surrogate.problem.parameters.sample(SAMPLES, seed)
            solved[key] = reference_solutions(surrogate.formulation, y, references=c.references)
        found[cell.name] = {"seed": seed, **evaluate(surrogate, solved[key]).record()}
    return found
