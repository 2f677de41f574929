"""One interface to all optimizers, with the paper's settings for every precision as defaults."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fem_frames.messages import option
from nets.own import own_name
from training.objective import Objective
from training.optimizers.lbfgs import LBFGS
from training.optimizers.natural_gradient import NGD
from training.optimizers.soap import SOAP
from training.own import OptimizerFactory, make_optimizer
from training.precision import Precision, Weights
from training.registry import OPTIMIZERS
from training.tensor_files import is_plain


@dataclass(frozen=True, eq=False)
class StepResult:
    """The result of one step."""

    loss: Tensor
    finite: bool = True
    """Whether loss and gradients were finite; if not, the step left the parameters unchanged."""
    reason: str | None = None
    """The reason if the optimizer stopped early."""
    moved: bool = True


class Stepper:
    """Takes steps by a first-order optimizer: one evaluation, one update."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def __call__(self, objective: Objective) -> StepResult:
        loss = objective()
        if not objective.finite(loss):
            return StepResult(loss, finite=False)
        self.optimizer.step()
        return StepResult(loss)

    def set_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def load(self, saved: dict[str, Any]) -> None:
        """Restores the saved state of the optimizer."""
        load_optimizer(self.optimizer, saved)


class LineSearchStepper(Stepper):
    """Takes steps by an optimizer that evaluates the objective itself, several times per step.

    If a step ends in numbers that are not finite, the parameters are restored and the optimizer's history is dropped.
    """

    def __call__(self, objective: Objective) -> StepResult:
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        before = [p.detach().clone() for p in parameters]
        first = _First(objective)
        try:
            loss = torch.as_tensor(self.optimizer.step(first)).detach()  # type: ignore[arg-type]
        except _NotFiniteError:
            return StepResult(first.loss, finite=False)
        finite, moved = _seen(loss, parameters, before)
        if not finite:
            with torch.no_grad():
                for p, saved in zip(parameters, before, strict=True):
                    p.copy_(saved)
            self.optimizer.state.clear()  # a history with such numbers spoils all later steps
            reason = f"the line search failed: it left the range of {parameters[0].dtype}"
            return StepResult(first.loss, reason=reason, moved=False)
        assert isinstance(self.optimizer, LBFGS | NGD)
        return StepResult(loss, reason=self.optimizer.reason, moved=moved)


class OwnStepper(Stepper):
    """Takes steps by a user's optimizer, which sees the parameters in their shapes in the net.

    The schedule sets the rate of its first group of parameters; the rates of other groups stay in proportion.
    """

    def __init__(self, factory: OptimizerFactory, weights: Weights) -> None:
        self._pieces = weights.pieces()
        self._gradients = [p.grad for p in self._pieces]
        self._memory = [p.data_ptr() for p in self._pieces]
        super().__init__(make_optimizer(factory, self._pieces))
        self._looked = False
        rates = [float(group.get("lr", 1.0)) for group in self.optimizer.param_groups]
        self._factors = [rate / rates[0] if rates[0] else 1.0 for rate in rates]

    def __call__(self, objective: Objective) -> StepResult:
        for p, gradient in zip(self._pieces, self._gradients, strict=True):
            p.grad = gradient  # the previous step may have dropped it
        outcome = super().__call__(objective)
        if not self._looked and outcome.finite:
            self._looked = True
            self._check()
        return outcome

    def set_rate(self, rate: float) -> None:
        for group, factor in zip(self.optimizer.param_groups, self._factors, strict=True):
            if isinstance(group.get("lr"), Tensor):
                group["lr"].fill_(rate * factor)
            elif "lr" in group:
                group["lr"] = rate * factor

    def load(self, saved: dict[str, Any]) -> None:
        """Restores the saved state in its precision; raises a ValueError if the optimizer's settings differ."""
        own = [{k: v for k, v in g.items() if k not in _NOT_COMPARED} for g in self.optimizer.param_groups]
        self.optimizer.load_state_dict(saved)
        for group, settings in zip(self.optimizer.param_groups, own, strict=True):
            for name, value in settings.items():
                if not _equal(group.get(name), value):
                    raise ValueError(f"{name} of the optimizer was {group.get(name)!r}, and is {value!r}")
        numbers = [number for group in saved["param_groups"] for number in group["params"]]
        given = [p for group in self.optimizer.param_groups for p in group["params"]]
        for number, p in zip(numbers, given, strict=True):
            state = self.optimizer.state.get(p, {})
            for name, value in saved["state"].get(number, {}).items():
                if isinstance(state.get(name), Tensor) and state[name].dtype != value.dtype:
                    state[name] = value.to(state[name].device)  # torch has rounded it to the parameters' dtype

    def _check(self) -> None:
        name = own_name(type(self.optimizer))
        if [p.data_ptr() for p in self._pieces] != self._memory:
            raise ValueError(f"your optimizer {name} replaces p.data: it must change parameters in place, p.add_(…)")
        if not all(torch.isfinite(p).all() for p in self._pieces):
            raise ValueError(
                f"the first step of your optimizer {name} is not finite in {self._pieces[0].dtype}; in half precision "
                f"give Adam and the like an eps of 1e-4, or keep weights in float32 ({option('mixed')})"
            )
        if not is_plain(self.optimizer.state_dict()):
            raise ValueError(
                f"your optimizer {name} cannot be saved: its state_dict() must hold tensors, numbers, texts, lists and "
                "dictionaries alone"
            )


_NOT_COMPARED = ("params", "lr", "initial_lr", "fused", "foreach", "capturable")
"""The schedule sets the rate; the other entries depend on the device, which may have changed."""


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a.cpu(), b.cpu())
    return bool(a == b)


def _seen(loss: Tensor, parameters: list[nn.Parameter], before: list[Tensor]) -> tuple[bool, bool]:
    """Whether loss and parameters are finite, and whether a parameter has changed; waits for the device only once."""
    finite = torch.stack([torch.isfinite(loss), *(torch.isfinite(p).all() for p in parameters)]).all()
    moved = torch.stack([(p != saved).any() for p, saved in zip(parameters, before, strict=True)]).any()
    found = torch.stack([finite, moved]).tolist()
    return found[0], found[1]


class _NotFiniteError(Exception):
    """Loss or gradient are not finite at the beginning of the step."""


class _First:
    """The objective; it keeps its first value and raises _NotFiniteError if this is not finite."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self.loss = torch.empty(0)
        self.gradient, self.gauss_newton = objective.gradient, objective.gauss_newton

    def __call__(self) -> Tensor:
        loss = self._objective()
        if not self.loss.numel():
            self.loss = loss
            if not self._objective.finite(loss):
                raise _NotFiniteError
        return torch.where(torch.isnan(loss), torch.inf, loss)  # line searches step back from inf, but not from NaN


@dataclass(frozen=True)
class OptimizerKind:
    """An optimizer that settings can name."""

    rate: float
    """The default of the first learning rate."""
    make: Callable[[Weights, Precision, float], torch.optim.Optimizer]
    line_search: bool = False
    """Whether it searches along a line: then it has no schedule, and needs the same batch throughout a step."""


ADAM_KIND = OptimizerKind(
    1e-3,
    lambda weights, precision, rate: torch.optim.Adam(
        [weights.vector], lr=rate, eps=precision.adam_epsilon, fused=_fused(weights.vector)
    ),
)
SGD_KIND = OptimizerKind(1e-3, lambda weights, precision, rate: torch.optim.SGD([weights.vector], lr=rate))
SOAP_KIND = OptimizerKind(
    3e-3,
    lambda weights, precision, rate: SOAP(weights.vector, weights.shapes, lr=rate, eps=precision.adam_epsilon),
)
LBFGS_KIND = OptimizerKind(
    1.0,
    lambda weights, precision, rate: LBFGS(
        weights.vector,
        lr=rate,
        max_iter=20,
        max_eval=25,
        tolerance_grad=precision.tolerance,
        tolerance_change=precision.tolerance,
        history_size=100,
    ),
    line_search=True,
)
NGD_KIND = OptimizerKind(
    1.0,
    lambda weights, precision, rate: NGD(
        [weights.vector], lr=rate, regularisation=precision.natural_gradient, tolerance=precision.natural_gradient
    ),
    line_search=True,
)
LINE_SEARCH = tuple(name for name, kind in OPTIMIZERS.items() if kind.line_search)


def make_stepper(
    name: str, weights: Weights, precision: Precision, rate: float, own: OptimizerFactory | None = None
) -> Stepper:
    """The stepper for the optimizer with this name, or for the user's own."""
    if own is not None:
        return OwnStepper(own, weights)
    kind = OPTIMIZERS.find(name)
    return (LineSearchStepper if kind.line_search else Stepper)(kind.make(weights, precision, rate))


def _state_shapes(optimizer: torch.optim.Optimizer, vector: Tensor) -> dict[str, torch.Size]:
    """The shapes of the tensors in an optimizer's state; L-BFGS checks its own."""
    whole = vector.shape
    if isinstance(optimizer, torch.optim.Adam):
        return {"step": torch.Size(), "exp_avg": whole, "exp_avg_sq": whole}
    if isinstance(optimizer, SOAP):
        small = torch.Size([optimizer.small_size])
        return {"moment": whole, "square": whole, "statistics": small, "bases": small}
    return {}


def load_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Restores the saved state; raises a ValueError if settings or state do not fit the optimizer."""
    (group,) = optimizer.param_groups
    own = {name: value for name, value in group.items() if name != "params"}
    groups = saved.get("param_groups")
    if not isinstance(saved.get("state"), dict) or not isinstance(groups, list) or len(groups) != 1:
        raise ValueError("there is no state of an optimizer for one vector of parameters")
    optimizer.load_state_dict(saved)
    (group,) = optimizer.param_groups
    group["lr"] = own.pop("lr")  # from the schedule or the settings
    for name in {"fused", "foreach"} & set(own):  # these depend on the device, which may have changed
        group[name] = own[name]
    for name, value in own.items():
        found = group.setdefault(name, value)
        if isinstance(found, Tensor) or found != value:
            raise ValueError(f"{name} of the optimizer is {group[name]!r} instead of {value!r}")
    (vector,) = group["params"]
    state = optimizer.state.get(vector, {})
    if not isinstance(state, dict):
        raise ValueError("the state of the optimizer is not a dictionary")
    for name, shape in _state_shapes(optimizer, vector).items() if state else ():
        if getattr(state.get(name), "shape", None) != shape:
            raise ValueError(f"{name} of the optimizer does not fit {len(vector)} parameters")


def cosine_rate(epoch: float, period: float, rate: float, minimum: float) -> float:
    """The paper's η_t up to T_max and its minimum afterwards, where the printed formula would rise again."""
    if epoch >= period:
        return minimum
    return minimum + 0.5 * (rate - minimum) * (1 + math.cos(math.pi * epoch / period))


def _fused(vector: Tensor) -> bool:
    """Whether torch has fused kernels, which pass over parameters and state once instead of ten times."""
    return vector.device.type in ("cpu", "cuda") and vector.dtype != torch.bfloat16
