"""Parts of a run that the user gives to `train` in Python: a net, a loss, an optimizer.

Settings record them as "own". Checkpoints and surrogates also record the names of their classes, but only for messages:
a file never leads to an import, so the user gives the parts again to resume a run or load its surrogate.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fem_frames.formulations.formulation import Formulation
from fem_frames.frame.solutions import ReferenceSolutions
from fem_frames.messages import either, option
from fem_frames.operators.frame import Frame
from fem_frames.problem.callbacks import calling
from nets.own import own_name
from training.configuration import OWN, Configuration
from training.losses import NO_CURVATURE, FunctionLoss, Loss, OwnFunction, SupervisedLoss, loss_kind

OwnModule = nn.Module | Callable[[Frame], nn.Module]
"""A module from y (B, p) to frame coefficients (B, Nhat), or a function that makes it for a frame."""
OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class OwnPartError(ValueError):
    """A user's net, loss or optimizer is missing, superfluous or different from before."""


@dataclass(frozen=True, eq=False)
class OwnParts:
    """The objects given to `train` instead of names of nets, losses and optimizers."""

    net: OwnModule | None = None
    loss: OwnFunction | type[Loss] | None = None
    optimizer: OptimizerFactory | None = None

    def __post_init__(self) -> None:
        expected = {
            "net": "a torch module from y (B, p) to frame coefficients (B, Nhat), or a function frame ↦ module",
            "loss": "a function (w, y, formulation) ↦ (B,), or a subclass of training.losses.Loss",
            "optimizer": "a function from parameters to a torch optimizer",
        }
        for name, text in expected.items():
            given = getattr(self, name)
            if given is not None and (isinstance(given, Loss | torch.optim.Optimizer) or not callable(given)):
                kind = f"{given!r}" if isinstance(given, str) else f"a {type(given).__name__}"
                more = f"; names are settings, Configuration({name}=…)" if isinstance(given, str) else ""
                raise OwnPartError(f"{name} is {kind}; {text} is expected{more}")

    @property
    def given(self) -> list[str]:
        return [f.name for f in fields(self) if getattr(self, f.name) is not None]

    @property
    def loss_kind(self) -> type[Loss] | None:
        """The class of the user's loss; None if there is none."""
        if self.loss is None:
            return None
        return self.loss if isinstance(self.loss, type) and issubclass(self.loss, Loss) else FunctionLoss

    def in_settings(self, configuration: Configuration) -> Configuration:
        """The settings with "own" for the given parts, and the optimizer's rate if they have none."""
        for name in self.given:
            said = getattr(configuration, name)
            if said not in (getattr(Configuration(), name), OWN):
                raise OwnPartError(f"the settings say {name}={said!r}, and {name}=… is given too: leave out one")
        changes: dict[str, Any] = dict.fromkeys(self.given, OWN)
        if self.optimizer is not None and configuration.rate is None:
            advice = "a function from any list of parameters is expected, or a rate in the settings"
            with calling("your optimizer, made for one matrix to learn its rate,", self.optimizer, advice):
                trial = self.optimizer([nn.Parameter(torch.zeros(2, 2))])
            rate = trial.param_groups[0].get("lr") if isinstance(trial, torch.optim.Optimizer) else None
            changes |= {} if rate is None or not float(rate) > 0 else {"rate": float(rate)}
        return replace(configuration, **changes)

    def check_given(
        self, configuration: Configuration, folder: Path, names: Callable[[], Mapping[str, str]] | None = None
    ) -> None:
        """Raises a ValueError unless exactly the parts that a configuration calls "own" are given.

        For a resumed run, `names` finds the names of the parts that it was trained with.
        """
        own, resume = [f.name for f in fields(self) if getattr(configuration, f.name) == OWN], names is not None
        for name in own:
            if name not in self.given:
                call = f"train(None, {str(folder)!r}, resume=True, " if resume else "train(…, "
                again = call + ", ".join(f"{part}=…" for part in own) + ")"
                before = names().get(name) if names is not None else None
                known = f", {before:.100}" if before else ""
                run = f"the run in {folder} was trained with" if resume else "the settings say"
                raise OwnPartError(
                    f"{run} {'an' if name == 'optimizer' else 'a'} {name} of your own{known}: "
                    + either(f"commands cannot have it, use Python, {again}", f"give it{' again' * resume}, {again}")
                )
        for name in self.given:
            if name not in own:
                said = getattr(configuration, name)
                raise OwnPartError(f"the run in {folder} was trained with the {name} {said}: leave out {name}=…")
        if self.loss_kind is FunctionLoss and configuration.optimizer == "ngd":
            raise ValueError(NO_CURVATURE)
        kind = self.loss_kind or loss_kind(configuration.loss)
        if kind.nodal and configuration.level_decay:
            raise OwnPartError(f"the loss {own_name(kind)} has no levels that could decay: leave level_decay at 0")
        if kind.supervised and configuration.sampling != "fixed":
            raise OwnPartError(
                f"the loss {own_name(kind)} needs reference solutions for a fixed set: {option('sampling', 'fixed')}"
            )

    def names(self, module: str | None, optimizer: torch.optim.Optimizer) -> dict[str, str]:
        """The name of the class or function of each given part, for messages."""
        found = {"net": module or "", "loss": own_name(self.loss), "optimizer": own_name(type(optimizer))}
        return {name: found[name] for name in self.given}

    def make_loss(self, formulation: Formulation, reference: ReferenceSolutions | None) -> Loss:
        """The user's loss over a formulation."""
        kind = self.loss_kind
        assert kind is not None
        if kind is FunctionLoss:
            assert self.loss is not None
            return FunctionLoss(formulation, self.loss)  # type: ignore[arg-type]
        with calling(f"your loss {own_name(kind)}", kind.__init__):
            if issubclass(kind, SupervisedLoss):
                assert reference is not None
                return kind(formulation, reference)
            return kind(formulation)


def check_names(given: Mapping[str, str], saved: Mapping[str, Any], folder: Path) -> None:
    """Raises a ValueError if parts have other names than in the run's checkpoint."""
    for name, value in given.items():
        if saved.get(name, value) != value:
            raise OwnPartError(
                f"your {name} is {value}, but the run in {folder} was trained with {saved[name]!s:.100}: give that one"
            )


def make_optimizer(factory: OptimizerFactory, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The user's optimizer for parameters, checked before use."""
    with calling("your optimizer", factory, "a function from parameters to a torch optimizer is expected"):
        made = factory(parameters)
    if not isinstance(made, torch.optim.Optimizer):
        raise ValueError(f"your optimizer gives a {type(made).__name__}; a torch.optim.Optimizer is expected")
    closure = inspect.signature(made.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"your optimizer {own_name(type(made))} evaluates the loss itself, several times per step: use "
            f"{option('optimizer', 'lbfgs')}, which does so too, or one whose step needs no closure"
        )
    known = {id(p) for p in parameters}
    taken = [id(p) for group in made.param_groups for p in group["params"]]
    if set(taken) != known:
        raise ValueError(
            f"your optimizer {own_name(type(made))} takes {len(set(taken) & known)} of the {len(known)} parameters "
            "given to it: freeze the others in the module, requires_grad_(False)"
        )
    return made


def make_module(given: OwnModule, frame: Callable[[], Frame], seed: int) -> nn.Module:
    """The given module, or the module that a function makes for the frame; the seed determines its random weights."""
    if isinstance(given, nn.Module):
        return given
    with torch.random.fork_rng(devices=[]), calling("your function that makes the net", given):
        torch.manual_seed(seed)
        made = given(frame())
    if not isinstance(made, nn.Module):
        raise OwnPartError(f"your function that makes the net gives a {type(made).__name__}; a module is expected")
    return made


def check_module(module: nn.Module) -> None:
    """Raises a ValueError if a module has nothing to train, or complex numbers."""
    name = own_name(module)
    if not any(p.requires_grad for p in module.parameters()):
        raise OwnPartError(f"your net {name} has no parameters that require gradients: there is nothing to train")
    for key, value in (*module.named_parameters(), *module.named_buffers()):
        if not nn.parameter.is_lazy(value) and value.is_complex():
            raise OwnPartError(f"{key} of your net {name} is complex: keep real and imaginary parts instead")
