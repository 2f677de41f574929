"""The protocol of the experiments: what the paper fixes, what it leaves open, and which cells are run.

The paper ("Experimental settings") fixes the problem, J = 10, the nets, the optimizers with their settings for each
precision, the metrics and 6000 epochs. These are the defaults of `Configuration` and of `training.precision`.

It contradicts itself about the scaling of the hats: normalised in H1 by its text, 2^-j by the formula that it prints
for its example, which in 1D decays faster by 2^(-j/2). `SCALINGS` has both, as the decay of coefficients over
levels.

It leaves open the samples and steps per epoch, the batch size, the number of test samples, and the seeds. Here

- SGD and Adam draw new samples: `STEPS` steps of `BATCH` samples per epoch, fewer in the shorter presets, and
  `FITTING_STEPS` in the preset `cpu` with the printed scaling, with which losses come closest to the paper's;
- L-BFGS and NGD need the same function at all points of a line search, so they use a fixed set of `FIXED` samples and
  take one step of at most 20 iterations per epoch;
- the test set has `TEST` samples with its own seed, the same for all cells;
- the seed of net and samples is 0.

A preset chooses how much of this is run. Only `quick` uses a smaller J.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from training.configuration import Configuration
from training.experiments.paper_tables import paper_tables
from training.experiments.presets import SCALINGS, Preset
from training.experiments.recipe_tables import best_tables, recipe_lines
from training.experiments.scaling_tables import scaling_lines, scaling_tables

STEPS, FITTING_STEPS, BATCH, FIXED, TEST = 6, 3, 64, 256, 1000


def _efforts(first_order: int, lbfgs: int, ngd: int, steps: int = STEPS) -> dict[str, dict[str, Any]]:
    """Settings by optimizer for these numbers of epochs."""
    plain = {"epochs": first_order, "batch": BATCH, "steps_per_epoch": steps, "evaluate_every": first_order // 40}
    return {
        "sgd": plain,
        "adam": plain,
        "lbfgs": {"epochs": lbfgs, "training_samples": FIXED},
        "ngd": {"epochs": ngd, "training_samples": FIXED},
    }


PAPER_LEVELS = 10
_PAPER = Configuration(problem="quarters", formulation="least-squares", levels=PAPER_LEVELS, test_samples=TEST)

PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "quick",
            "the pattern of the tables at smaller J, in a quarter of an hour on two cores",
            paper_tables,
            replace(_PAPER, levels=7, test_samples=200),
            _efforts(1000, 40, 20, 2),
            "printed",
        ),
        Preset(
            "cpu",
            "all cells at J = 10 in a few hours on two cores; L-BFGS and NGD have fewer epochs than in the paper",
            paper_tables,
            _PAPER,
            _efforts(6000, 200, 150, 4),
            "printed",
            FITTING_STEPS,
        ),
        Preset(
            "paper", "6000 epochs for all optimizers; days", paper_tables, _PAPER, _efforts(6000, 6000, 6000), "printed"
        ),
        Preset(
            "best",
            "the best recipe, what its parts contribute, J = 4 to 12, later starts",
            best_tables,
            _PAPER,
            lines=recipe_lines,
        ),
        Preset(
            "scaling",
            "what the scaling of the hats does at J = 10, and the steps per epoch that fit the paper",
            scaling_tables,
            replace(_PAPER, batch=BATCH),
            lines=scaling_lines,
        ),
    )
}

BEFORE_SCALINGS = "normalised"
"""The scaling of experiments and reports that do not name one: they are older than the choice."""


def known_preset(name: object, scaling: object) -> Preset | None:
    """The preset of this name and scaling in a file, or None if there is none; `best` ignores the scaling."""
    preset = PRESETS.get(name) if isinstance(name, str) else None
    if preset is None or preset.scaling is None:
        return preset
    return preset.scaled(scaling) if isinstance(scaling, str) and scaling in SCALINGS else None
