"""What makes a net but its weights and the frame: saved with a surrogate, and checked before a net is built from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fem_frames.frame.arrays import FrameArrays
from fem_frames.operators.frame import DTYPES
from fem_frames.problem.definition import Problem, Uniform
from nets import NETS, CoefficientNet, make_net
from training.losses import LOSSES
from training.net_outputs import first_level, level_sizes, prolongations
from training.tensor_files import are_weights


@dataclass(frozen=True)
class NetDescription:
    """All that makes a net but its weights and the frame."""

    name: str
    parameters: int
    precision: str
    nodal: bool
    """Whether it gives nodal values instead of frame coefficients."""
    rank: int
    blocks: int
    box: tuple[tuple[float, ...], tuple[float, ...]] | None
    level_decay: float
    start_level: int | None = None

    @classmethod
    def from_record(
        cls, record: Mapping[str, Any], weights: Mapping[str, Tensor], arrays: FrameArrays
    ) -> NetDescription:
        """What `asdict` made of one, checked against its weights before anything is built from it."""
        given = dict(record)
        given["box"] = None if given["box"] is None else tuple(tuple(map(float, ends)) for ends in given["box"])
        kinds: dict[str, Any] = {
            "name": str,
            "parameters": int,
            "precision": str,
            "nodal": bool,
            "rank": int,
            "blocks": int,
            "level_decay": float,
            "start_level": (int, type(None)),
        }
        for name, kind in kinds.items():
            if not isinstance(given.get(name), kind) or (kind is int and isinstance(given.get(name), bool)):
                raise ValueError(f"{name} is {given.get(name)!r}")
        if given["name"] not in NETS or given["precision"] not in DTYPES:
            raise ValueError(f"there is no net {given['name']!r} in {given['precision']!r}")
        if not all(map(are_weights, weights.values())):
            raise ValueError("its weights are no finite numbers")
        description, found = cls(**given), sum(value.numel() for value in weights.values())
        if description.count(arrays) != found:
            raise ValueError(f"it describes a net of {description.count(arrays)} parameters, but has {found}")
        return description

    def count(self, arrays: FrameArrays) -> int:
        """Number of the net's parameters, without building it."""
        sizes, start = level_sizes(arrays, self.nodal), (self.start_level or 0) - first_level(arrays, self.nodal)
        start = int(np.clip(start, 0, min(map(len, sizes.values())) - 1))  # what is no level is refused by `build`
        return NETS[self.name].count(self.parameters, sizes, self.rank, self.blocks, start)

    def build(self, arrays: FrameArrays, device: torch.device, seed: int = 0) -> CoefficientNet:
        """The net with random weights."""
        dtype = DTYPES[self.precision]
        prolonged = NETS[self.name].prolonged
        net = make_net(
            self.name,
            self.parameters,
            level_sizes(arrays, self.nodal),
            seed=seed,
            rank=self.rank,
            blocks=self.blocks,
            box=self.box,
            level_decay=self.level_decay,
            first_level=first_level(arrays, self.nodal),
            prolongations=prolongations(arrays, self.nodal, dtype, device) if prolonged else None,
            start_level=self.start_level,
        )
        return net.to(device, dtype)


def describe_net(configuration: Any, problem: Problem) -> NetDescription:
    """The net of a configuration."""
    parameters = problem.parameters
    bounded = isinstance(parameters, Uniform) and configuration.map_inputs
    return NetDescription(
        name=configuration.net,
        parameters=parameters.dimension,
        precision=configuration.precision,
        nodal=LOSSES[configuration.loss].nodal,
        rank=configuration.rank,
        blocks=configuration.blocks,
        box=(parameters.lower, parameters.upper) if bounded else None,  # type: ignore[union-attr]
        level_decay=configuration.level_decay,
        start_level=configuration.start_level,
    )
