"""What a training run is: one dataclass, from which the command line and the TOML files of experiments follow."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import math
import numbers
import textwrap
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fem_frames.files import check_file, one_line

if TYPE_CHECKING:
    from training.precision import Precision

_AT_LEAST_ONE = (
    *("rank", "batch", "micro_batch", "training_samples", "steps_per_epoch"),
    *("evaluate_every", "checkpoint_every", "log_every"),
)
_NOT_NEGATIVE = (
    *("epochs", "blocks", "test_samples", "minimum_rate", "first_level", "start_level"),
    *("seed", "net_seed", "sample_seed", "test_seed"),
)
OWN, OWN_PARTS = "own", ("net", "loss", "optimizer")


@dataclass(frozen=True)
class Configuration:
    """All settings of a run. Those that are None depend on others; `resolved` fills them in."""

    problem: str = ""
    """A built-in problem, or file.py:name of your own."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the problem."""
    levels: int | None = None
    """Number of uniform refinements, J."""
    formulation: Literal["energy", "least-squares", "weighted-least-squares"] | None = None
    """Default: energy, or that of the frame."""
    first_level: int | None = None
    """Coarsest level of the frame; default: the problem's."""
    refinement: Literal["red", "dolfinx"] | None = None
    """Of triangles and tetrahedra; default: the problem's."""
    frame: str | None = None
    """A file written by `fem-frames export` instead of problem and levels; then no DOLFINx is needed."""

    net: Literal["full", "separate", "separate-frame"] = "full"
    """Architecture: one net, one for every level, or one for every level that is prolonged to it."""
    rank: int = 8
    """Rank of the residual blocks."""
    blocks: int | None = None
    """Residual blocks, for separate-frame after each prolongation; default: 8, for separate-frame 4."""
    start_level: int | None = None
    """With separate-frame: the level that nets of finer ones start on; default: the coarsest, as in the paper."""
    map_inputs: bool = True
    """Map parameters to [-1, 1] by their box."""
    level_decay: float = 0.0
    """Scale the coefficients of level j by 2^(-s j); 0 is the paper, 1 suits smooth solutions."""

    loss: Literal["stable", "bpx", "nodal", "supervised", "supervised-nodal"] = "stable"
    """Through D, through H, without a frame, or against reference solutions, by their states or by nodal values."""
    optimizer: Literal["adam", "sgd", "lbfgs", "ngd", "soap"] = "adam"
    """SOAP converges best, Adam is the paper's best."""
    rate: float | None = None
    """First learning rate; default: 1e-3, soap 3e-3, lbfgs and ngd 1."""
    minimum_rate: float | None = None
    """Last learning rate; default: that of the paper for the precision."""
    period: float | None = None
    """Epochs in which the rate falls by half a cosine; default: five sixths of all, as 5000 of 6000 in the paper."""

    precision: Literal["float16", "bfloat16", "float32", "float64"] = "float32"
    """Of parameters, activations, frame and, unless mixed, the optimizer."""
    mixed: bool = False
    """With a half precision: master weights and optimizer in float32, and a dynamic loss scale."""

    epochs: int = 6000
    """Passes over the samples; with fresh samples one step each, unless steps_per_epoch says otherwise."""
    batch: int | None = None
    """Samples in a step, of all processes together; default: 64, for lbfgs and ngd all of a fixed set."""
    micro_batch: int | None = None
    """Evaluate a batch in pieces of at most so many samples per process, to save memory; default: all at once."""
    sampling: Literal["fresh", "fixed", "sobol"] | None = None
    """New random samples in every step, a fixed set, Sobol points; default: fresh, for lbfgs, ngd, supervised fixed."""
    training_samples: int | None = None
    """Size of the fixed set; default: 1024, for lbfgs and ngd 256."""
    steps_per_epoch: int | None = None
    """Default: 1; with a fixed set as many as it has batches."""

    seed: int = 0
    """Of net and samples, unless they have their own."""
    net_seed: int | None = None
    """Of the first weights; default: seed."""
    sample_seed: int | None = None
    """Of the training samples; default: seed."""
    test_seed: int = 1_000_000
    """Of the test set, the same for all seeds."""

    test_samples: int = 256
    """Samples of the test set, solved before training starts; 0: no tests."""
    evaluate_every: int | None = None
    """Epochs between tests; default: a twentieth of all."""
    checkpoint_every: int | None = None
    """Epochs between checkpoints; default: a twentieth of all."""
    log_every: int | None = None
    """Steps between lines of the log; default: a thousandth of all."""
    tensorboard: bool = False
    """Write TensorBoard's events too."""

    device: str | None = None
    """cpu, cuda, mps, …; default: the best that works."""
    start_from: str | None = None
    """A run, or a saved surrogate, with the weights to start from."""

    @property
    def dtype_settings(self) -> Precision:
        """The paper's settings for the precision that the optimizer works in."""
        from training.precision import PRECISIONS

        return PRECISIONS["float32" if self.mixed else self.precision]

    def resolved(self) -> Resolved:
        """The same with all defaults filled in, or a ValueError that says what is wrong."""
        from nets import NETS
        from training.losses import loss_kind
        from training.optimizers.steppers import LINE_SEARCH, RATES

        self._check()
        searches = self.optimizer in LINE_SEARCH
        sampling = self.sampling or ("fixed" if searches or loss_kind(self.loss).supervised else "fresh")
        count, steps = self.training_samples, self.steps_per_epoch
        if sampling == "fixed":
            count = count or (256 if searches else 1024)
            batch = min(self.batch or (count if searches else 64), count)
            batches = -(-count // batch)
            if steps not in (None, batches):
                raise ValueError(f"a fixed set of {count} has {batches} batches of {batch}: leave out steps_per_epoch")
            steps = batches
        else:
            batch, steps = self.batch or 64, steps or 1
        settings = self.dtype_settings
        rate = RATES.get(self.optimizer, 1e-3) if self.rate is None else self.rate
        minimum = min(settings.minimum_rate, rate) if self.minimum_rate is None else self.minimum_rate
        if minimum > rate:
            raise ValueError(
                f"minimum_rate is {minimum:g}, above the rate {rate:g}: it is the last rate, not the first"
            )
        values = _values(self) | dict(
            **{name: _absolute(name, getattr(self, name)) for name in _PATHS},
            options=dict(self.options),
            blocks=getattr(NETS.get(self.net), "default_blocks", 0) if self.blocks is None else self.blocks,
            rate=rate,
            minimum_rate=minimum,
            period=max(5 * self.epochs / 6, 1.0) if self.period is None else self.period,
            batch=batch,
            sampling=sampling,
            training_samples=count,
            steps_per_epoch=steps,
            net_seed=self.seed if self.net_seed is None else self.net_seed,
            sample_seed=self.seed if self.sample_seed is None else self.sample_seed,
            evaluate_every=self.evaluate_every or max(1, self.epochs // 20),
            checkpoint_every=self.checkpoint_every or max(1, self.epochs // 20),
            log_every=self.log_every or max(1, self.epochs * steps // 1000),
        )
        found = Resolved(**values)
        try:
            kept = tomllib.loads(found.to_toml()).get("options", {})
        except tomllib.TOMLDecodeError:
            kept = None
        if kept != found.options:
            raise ValueError(f"options are {found.options}; a run keeps them as TOML, which has no such values")
        return found

    def record(self) -> dict[str, Any]:
        """All settings, as JSON has them."""
        try:
            return dict(json.loads(json.dumps(_values(self))))
        except TypeError as error:
            raise ValueError(f"options are {self.options!r}; numbers, texts and lists are expected: {error}") from error

    def _check(self) -> None:
        for name, value in _values(self).items():
            _convert(name, value)
        if not self.problem and not self.frame:
            raise ValueError("give problem and levels, or frame with a file written by `fem-frames export`")
        if self.levels is not None and self.levels < 1:
            raise ValueError(f"levels is {self.levels}; at least 1 refinement is needed")
        if self.frame:
            for name in ("levels", "first_level", "refinement"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} is decided by the frame: leave it out")
        elif self.levels is None:
            raise ValueError(f"levels is missing: how often is the mesh of {self.problem} to be refined?")
        for name in _AT_LEAST_ONE:
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; at least 1 is expected")
        for name in _NOT_NEGATIVE:
            if getattr(self, name) is not None and getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must not be negative")
        for name in (
            "seed",
            "net_seed",
            "sample_seed",
            "test_seed",
            "batch",
            "training_samples",
            "test_samples",
            "epochs",
            "steps_per_epoch",
            "rank",
            "blocks",
        ):
            if (getattr(self, name) or 0) >= 2**31:
                raise ValueError(f"{name} is {getattr(self, name)}; less than 2^31 is expected")
        for name in ("rate", "period"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; a positive number is expected")
        self._check_choices()

    def _check_choices(self) -> None:
        from training.losses import loss_kind
        from training.optimizers.steppers import LINE_SEARCH

        loss = loss_kind(self.loss)
        if self.mixed and self.precision not in ("float16", "bfloat16"):
            raise ValueError(f"mixed goes with float16 or bfloat16, not with {self.precision}: change one of them")
        if loss.nodal and self.level_decay:
            raise ValueError(f"the loss {self.loss} has no levels that could decay: leave level_decay at 0")
        if self.start_level is not None and (self.net != "separate-frame" or loss.nodal):
            raise ValueError(
                "start_level is for the net separate-frame and losses with a frame: leave it out with the net "
                f"{self.net} and the loss {self.loss}"
            )
        if self.levels is not None and (self.start_level or 0) > self.levels:
            raise ValueError(f"start_level is {self.start_level}, but levels is {self.levels}: choose a coarser one")
        if abs(self.level_decay) > 10:
            raise ValueError(f"level_decay is {self.level_decay}; give a number between -10 and 10, such as 1")
        if loss.supervised and self.sampling not in (None, "fixed"):
            raise ValueError(f"the loss {self.loss} needs reference solutions: use sampling fixed, not {self.sampling}")
        if self.sampling in ("fresh", "sobol") and self.training_samples is not None:
            raise ValueError(f"training_samples is the size of a fixed set: leave it out with sampling {self.sampling}")
        fixed_by_itself = loss.supervised or self.optimizer in LINE_SEARCH
        if self.training_samples is not None and self.sampling is None and not fixed_by_itself:
            raise ValueError("training_samples is the size of a fixed set: give sampling fixed too")

    # ---- TOML

    def to_toml(self) -> str:
        """All settings that are not None, with their meaning as comments."""
        lines, tables = [], []
        for name, value in _values(self).items():
            if isinstance(value, Mapping):
                tables += (
                    [
                        f"\n[{name}]",
                        *(f"{_key(key)} = {json.dumps(entry, ensure_ascii=False)}" for key, entry in value.items()),
                    ]
                    if value
                    else []
                )
            elif value is not None:
                lines += [f"{name} = {json.dumps(value, ensure_ascii=False)}"]
        return "\n".join([*lines, *tables]) + "\n"

    @classmethod
    def from_toml(cls, path: str | Path) -> dict[str, Any]:
        """The settings in a file, by name; `Configuration(**settings)` makes the rest.

        Commands do not run a problem's file that only such a file names.
        """
        try:
            content = tomllib.loads(check_file(path).read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
            raise ValueError(f"{path} is no TOML file that can be read: {one_line(error)}") from error
        return cls.checked(content, str(path))

    @classmethod
    def checked(cls, settings: Mapping[str, Any], where: str) -> dict[str, Any]:
        """The settings, or a ValueError for names that are unknown and values of the wrong type."""
        known = [f.name for f in dataclasses.fields(cls)]
        for name in settings:
            if name not in known:
                import difflib

                close = difflib.get_close_matches(name, known, 1)
                raise ValueError(
                    f"{where} has an unknown setting {name!r}" + (f"; do you mean {close[0]}?" if close else "")
                )
        return {name: _absolute(name, _convert(name, value)) for name, value in settings.items()}


@dataclass(frozen=True)
class Resolved(Configuration):
    """A configuration with all defaults filled in, as a run has it and saves it."""

    blocks: int = 8
    rate: float = 1e-3
    minimum_rate: float = 1e-6
    period: float = 5000.0
    batch: int = 64
    sampling: Literal["fresh", "fixed", "sobol"] = "fresh"
    steps_per_epoch: int = 1
    net_seed: int = 0
    sample_seed: int = 0
    evaluate_every: int = 300
    checkpoint_every: int = 120
    log_every: int = 6

    @property
    def total_steps(self) -> int:
        return self.epochs * self.steps_per_epoch


_PATHS = ("problem", "frame", "start_from")


def _absolute(name: str, value: Any) -> Any:
    """Files with the folders they are in: a run may be resumed from another one."""
    if name not in _PATHS or value is None:
        return value
    file, colon, attribute = value.rpartition(":") if ".py:" in value else (value, "", "")
    if name == "problem" and not file.endswith(".py"):
        return value  # built in
    return str(Path(file).absolute()) + colon + attribute


def _values(configuration: Configuration) -> dict[str, Any]:
    return {f.name: getattr(configuration, f.name) for f in dataclasses.fields(configuration)}


def _key(name: str) -> str:
    plain = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if plain else json.dumps(name, ensure_ascii=False)


@cache
def setting_types() -> dict[str, tuple[type, tuple[str, ...], bool]]:
    """Of every setting its type, the choices if it has any, and whether it may be None."""
    found = {}
    for name, hint in typing.get_type_hints(Configuration).items():
        union = typing.get_origin(hint) in (typing.Union, types.UnionType)
        parts = typing.get_args(hint) if union else (hint,)
        optional = type(None) in parts
        (part,) = [p for p in parts if p is not type(None)]
        choices: tuple[str, ...] = ()
        if typing.get_origin(part) is Literal:
            part, choices = str, typing.get_args(part)
        found[name] = (dict if typing.get_origin(part) is not None else part, choices, optional)
    return found


@cache
def setting_texts() -> dict[str, str]:
    """Of every setting the text below it."""
    body = ast.parse(textwrap.dedent(inspect.getsource(Configuration))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for statement, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            assert isinstance(after, ast.Expr)
            assert isinstance(after.value, ast.Constant)
            found[statement.target.id] = str(after.value.value)
    return found


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", dict: "a table"}


def _convert(name: str, value: Any) -> Any:
    """The value in the type of the setting, or a ValueError."""
    kind, choices, optional = setting_types()[name]
    if value is None and optional:
        return None
    if choices:
        if value not in choices and (value != OWN or name not in OWN_PARTS):
            raise ValueError(f"{name} is {value!r}; choose from {', '.join(choices)}")
        return value
    if kind is dict:
        fits = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
        if fits:
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError, RecursionError) as error:
                raise ValueError(f"{name} must be numbers, texts and lists of them: {error}") from error
    elif kind is float:
        fits = isinstance(value, numbers.Real) and math.isfinite(value)
    else:
        fits = isinstance(value, numbers.Integral if kind is int else kind)
    if not fits or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{name} is {value!r}; {_WORDS[kind]} is expected")
    return kind(value)
