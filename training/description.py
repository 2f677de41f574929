"""NetDescription determines a net up to its weights and frame; surrogates save it and check it before building."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fem_frames.files import one_line
from fem_frames.formulations.registry import make_formulation
from fem_frames.frame.arrays import FrameArrays
from fem_frames.messages import either
from fem_frames.operators.frame import DTYPES, Frame
from fem_frames.problem.definition import Problem, Uniform
from nets import NETS, make_net
from nets.frame_net import FrameNet
from nets.multigrid import MultigridNet
from nets.own import OwnNet
from training.configuration import MULTIGRID, OWN
from training.losses import loss_kind
from training.net_outputs import first_level, level_depths, level_sizes, prolongations
from training.own import OwnModule, OwnPartError, check_module, make_module
from training.tensor_files import are_plain_tensors, are_weights

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class NetDescription:
    """Determines a net up to its weights and the frame."""

    name: str
    parameters: int
    precision: str
    nodal: bool
    """Whether the net returns nodal values instead of frame coefficients."""
    rank: int
    blocks: int
    box: tuple[tuple[float, ...], tuple[float, ...]] | None
    level_decay: float
    start_level: int | None = None
    module: str | None = None
    """The name of the class if the net is a user's module."""
    pre: int = 2
    post: int = 2
    """Smoothing steps of the net multigrid before and after each coarse correction."""

    @property
    def is_own(self) -> bool:
        return self.name == OWN

    @property
    def solves(self) -> bool:
        """Whether the net needs the problem: it sees coefficient and load, not y alone."""
        return self.name == MULTIGRID

    @classmethod
    def from_record(
        cls, record: Mapping[str, Any], weights: Mapping[str, Tensor], arrays: FrameArrays
    ) -> NetDescription:
        """Reads the result of `asdict`, checked against the weights before anything is built from it."""
        given: dict[str, Any] = {"pre": 2, "post": 2, **record}  # earlier versions had no such net
        given["box"] = None if given["box"] is None else tuple(tuple(map(float, ends)) for ends in given["box"])
        kinds: dict[str, Any] = {
            "name": str,
            "parameters": int,
            "precision": str,
            "nodal": bool,
            "rank": int,
            "blocks": int,
            "pre": int,
            "post": int,
            "level_decay": float,
            "start_level": (int, type(None)),
            "module": (str, type(None)),
        }
        for name, kind in kinds.items():
            if not isinstance(given.get(name), kind) or (kind is int and isinstance(given.get(name), bool)):
                raise ValueError(f"{name} is {given.get(name)!r}")
        if given["name"] not in (*NETS, OWN, MULTIGRID) or given["precision"] not in DTYPES:
            raise ValueError(f"there is no net {given['name']!r} in {given['precision']!r}")
        if given["name"] == OWN:
            if not are_plain_tensors(weights.values()):
                raise ValueError("its weights are not tensors of numbers")
            return cls(**given)  # only the user's module knows its number of weights
        if not all(map(are_weights, weights.values())):
            raise ValueError("its weights are not finite numbers")
        description, found = cls(**given), sum(value.numel() for value in weights.values())
        if description.count(arrays) != found:
            raise ValueError(f"it describes a net of {description.count(arrays)} parameters, but has {found}")
        return description

    def count(self, arrays: FrameArrays) -> int:
        """Number of the net's parameters, computed without building it."""
        if self.solves:
            return MultigridNet.count((self.pre, self.post))
        sizes, first = level_sizes(arrays, self.nodal), first_level(arrays, self.nodal)
        start = 0 if self.start_level is None else self.start_level - first
        start = int(np.clip(start, 0, min(map(len, sizes.values())) - 1))  # `build` refuses wrong levels
        return NETS[self.name].count(self.parameters, sizes, self.rank, self.blocks, start)

    def build(
        self,
        arrays: FrameArrays,
        device: torch.device,
        seed: int = 0,
        own: OwnModule | None = None,
        frame: Frame | None = None,
        problem: Problem | None = None,
    ) -> FrameNet:
        """The net with its first weights, or around a user's module.

        A function that makes the module gets `frame`, by default made from the arrays. A net that solves needs
        `problem`.
        """
        dtype = DTYPES[self.precision]
        if self.solves:
            if problem is None:
                raise OwnPartError(
                    f"the net {MULTIGRID} solves the problem {arrays.record.get('problem')!r}, which is not built in: "
                    "give it, as " + either("--problem", "Surrogate.load(folder, problem=…)")
                )
            made = make_formulation(frame or Frame.from_arrays(arrays, dtype, device), problem)
            sizes = level_sizes(arrays, self.nodal)
            return MultigridNet(made, sizes, (self.pre, self.post), self.nodal, self.box).to(device, dtype)
        if self.is_own:
            assert own is not None
            module = make_module(own, lambda: frame or Frame.from_arrays(arrays, dtype, device), seed)
            check_module(module)
            return OwnNet(
                module,
                self.parameters,
                level_sizes(arrays, self.nodal),
                box=self.box,
                level_decay=self.level_decay,
                first_level=first_level(arrays, self.nodal),
                depths=level_depths(arrays, self.nodal),
            ).to(device, dtype)
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
            depths=level_depths(arrays, self.nodal),
            prolongations=prolongations(arrays, self.nodal, dtype, device) if prolonged else None,
            start_level=self.start_level,
        )
        return net.to(device, dtype)

    def restored(
        self,
        weights: Mapping[str, Tensor],
        arrays: FrameArrays,
        device: torch.device,
        own: OwnModule | None,
        folder: Path,
        problem: Problem | None = None,
    ) -> FrameNet:
        """The net with weights that were saved in a folder; a user's module is copied and stays unchanged."""
        if self.is_own and own is None:
            again = f"Surrogate.load({str(folder)!r}, net=…)"
            raise OwnPartError(
                f"{folder} has a net of your own, {self.module}: "
                + either(f"commands cannot have it, use it in Python, {again}", f"give it again, {again}")
            )
        if not self.is_own and own is not None:
            raise OwnPartError(f"{folder} has the net {self.name}: leave out net=…")
        try:
            net = self.build(arrays, device, own=_copy(own) if isinstance(own, nn.Module) else own, problem=problem)
            if isinstance(net, OwnNet) and net.module_name != self.module:
                raise ValueError(f"it is a {net.module_name}, but the weights belong to a {self.module}")
            net.load_state_dict(weights)
        except (RuntimeError, ValueError) as error:
            if self.is_own and not isinstance(error, OwnPartError):
                raise OwnPartError(f"your net does not fit the weights in {folder}: {one_line(error)}") from error
            raise
        return net.eval()

    def copied(
        self, net: FrameNet, arrays: FrameArrays, device: torch.device, problem: Problem | None = None
    ) -> FrameNet:
        """A copy of a net, in the precision described here."""
        if self.is_own:
            return _copy(net).to(device, DTYPES[self.precision])
        made = self.build(arrays, device, problem=problem)
        made.load_state_dict(net.state_dict())
        return made


def _copy(net: Module) -> Module:
    try:
        return copy.deepcopy(net)
    except RuntimeError as error:
        raise OwnPartError(
            f"your net cannot be copied ({one_line(error)}): give a function that makes it, net=lambda frame: …"
        ) from error


def describe_net(configuration: Any, problem: Problem, nodal: bool | None = None) -> NetDescription:
    """The net of a configuration; `nodal` says whether a loss of the user takes nodal values."""
    parameters = problem.parameters
    bounded = isinstance(parameters, Uniform) and configuration.map_inputs
    return NetDescription(
        name=configuration.net,
        parameters=parameters.dimension,
        precision=configuration.precision,
        nodal=loss_kind(configuration.loss).nodal if nodal is None else nodal,
        rank=configuration.rank,
        blocks=configuration.blocks,
        box=(parameters.lower, parameters.upper) if bounded else None,  # type: ignore[union-attr]
        level_decay=configuration.level_decay,
        start_level=configuration.start_level,
        pre=2 if configuration.pre is None else configuration.pre,
        post=2 if configuration.post is None else configuration.post,
    )
