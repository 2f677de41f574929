"""Nets with random weights as functions, in the frame and in the nodal basis.

See "Effect on random initializations" in the paper. N points.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fem_frames.frame.arrays import FrameArrays
from fem_frames.mesh.geometry import Floats
from fem_frames.problem.loading import recorded_problem
from training.configuration import Configuration
from training.description import describe_net
from training.surrogate import FRAME, Surrogate


def random_functions(
    arrays: FrameArrays, configuration: Configuration, samples: int, seed: int = 0
) -> dict[str, dict[str, Floats]]:
    """For each basis the fields (samples, N) of nets with different seeds, all at the same random y.

    The y is not the middle of the parameter box: this is mapped to 0, where nets with zero biases vanish.
    """
    problem = recorded_problem(arrays.record)
    y = problem.parameters.sample(1, seed)
    found = {}
    nodal = replace(configuration, loss="nodal", level_decay=0.0)
    for text, chosen in (("with frame", replace(configuration, loss="stable")), ("without frame", nodal)):
        c = replace(chosen, precision="float64").resolved()
        description = describe_net(c, problem)
        fields: dict[str, list[Floats]] = {f.name: [] for f in arrays.fields}
        for number in range(samples):
            net = description.build(arrays, torch.device("cpu"), seed + number)
            for name, values in Surrogate(net, description, arrays, problem, {})(y).items():
                fields[name].append(values[0].numpy())
        found[text] = {name: np.array(parts) for name, parts in fields.items()}
    return found


def frame_of_cells(out: Path) -> FrameArrays | None:
    """The frame of any run of an experiment, or None if there is none."""
    path = next(iter(sorted(out.glob(f"*/{FRAME}"))), None)
    return None if path is None else FrameArrays.load(path)
