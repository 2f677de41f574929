"""The settings of a training run: one dataclass that defines the command line and the TOML files of experiments."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tomli_w
from pydantic import Field, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass

from fem_frames.files import check_file, one_line
from fem_frames.formulations.registry import formulation_names
from fem_frames.problem.definition import COARSE, REFINEMENTS
from nets.registry import NETS
from training.registry import LOSSES, OPTIMIZERS, REFERENCES
from training.settings import MULTIGRID, OWN, STRICT, Count, Positive, Size, declared, one_line_errors, setting

if TYPE_CHECKING:
    from training.precision import Precision

PRECISION_NAMES = ("float16", "bfloat16", "float32", "float64")


@one_line_errors
@dataclass(frozen=True, kw_only=True, config=STRICT)
class Configuration:
    """All settings of a run. `resolved` fills in settings that are None from the others. See docs/training.md."""

    problem: str = setting("", "A built-in problem, or file.py:name of your own.")
    options: dict[str, Any] = setting(dict, "Options of the problem.", strict=False)
    levels: Size | None = setting(None, "Number of uniform refinements, J; 0 uses the mesh as it is.")
    formulation: str | None = setting(
        None, f"{', '.join(formulation_names())}, or one of your own; default: energy, or that of the frame."
    )
    first_level: Size | None = setting(None, "Coarsest level of the frame; default: the problem's.")
    refinement: str | None = setting(
        None, "Refines triangles and tetrahedra; default: the problem's.", choices=REFINEMENTS
    )
    coarse: str | None = setting(
        None, "The coarse level below the first mesh of the frame; default: the problem's.", choices=COARSE
    )
    frame: str | None = setting(
        None, "A file written by `fem-frames export` instead of problem and levels; then no DOLFINx is needed."
    )

    net: str = setting(
        "full",
        "One net, one per level, or one per level that starts coarse and is prolonged; or a solver.",
        choices=(*NETS, MULTIGRID),
        own=True,
    )
    rank: Count = setting(8, "Rank of the residual blocks.")
    blocks: Size | None = setting(
        None, "Residual blocks, for separate-frame after each prolongation; default: 8, for separate-frame 4."
    )
    start_level: Size | None = setting(
        None,
        "With separate-frame: level on which the nets of finer levels start; default: the coarsest, as in the paper.",
    )
    pre: Size | None = setting(None, "With multigrid: smoothing steps before each coarse correction; default: 2.")
    post: Size | None = setting(None, "With multigrid: smoothing steps after it; default: 2.")
    map_inputs: bool = setting(True, "Map parameters to [-1, 1] by their box.")
    level_decay: Annotated[float, Field(ge=-10, le=10)] = setting(
        0.0, "Scale the coefficients of level j by 2^(-s j); 0 is the paper, 1 suits smooth solutions."
    )

    loss: str = setting(
        "stable",
        "Uses D, H, or no frame; or compares with reference solutions, by their states or by nodal values.",
        choices=LOSSES,
        own=True,
    )
    optimizer: str = setting("adam", "SOAP converges best, Adam is the paper's best.", choices=OPTIMIZERS, own=True)
    rate: Positive | None = setting(
        None, "First learning rate; default: 1e-3, soap 3e-3, lbfgs and ngd 1; multigrid 2e-2."
    )
    minimum_rate: Annotated[float, Field(ge=0)] | None = setting(
        None, "Last learning rate; default: the paper's for the precision."
    )
    period: Positive | None = setting(
        None,
        "Epochs in which the rate falls by half a cosine; default: five sixths of all, as 5000 of 6000 in the paper.",
    )

    precision: str = setting(
        "float32", "For parameters, activations, frame and, unless mixed, the optimizer.", choices=PRECISION_NAMES
    )
    mixed: bool = setting(
        False, "With a half precision: master weights and optimizer in float32, and a dynamic loss scale."
    )

    epochs: Size | None = setting(
        None,
        "Passes over the samples; with fresh samples one step each, unless steps_per_epoch says otherwise; default: "
        "6000, for multigrid 400.",
    )
    batch: Count | None = setting(
        None, "Samples in a step, of all processes together; default: 64, for lbfgs and ngd all of a fixed set."
    )
    micro_batch: Count | None = setting(
        None,
        "Evaluate a batch in pieces of at most this many samples per process, to save memory; default: all at once.",
    )
    sampling: str | None = setting(
        None,
        "New random samples per step, a fixed set, or Sobol points; default: fresh, fixed for lbfgs, ngd, supervised.",
        choices=("fresh", "fixed", "sobol"),
    )
    training_samples: Count | None = setting(None, "Size of the fixed set; default: 1024, for lbfgs and ngd 256.")
    steps_per_epoch: Count | None = setting(None, "Default: 1; with a fixed set the number of its batches.")

    seed: Size = setting(0, "Seed of net and samples, unless they have their own.")
    net_seed: Size | None = setting(None, "Seed of the initial weights; default: seed.")
    sample_seed: Size | None = setting(None, "Seed of the training samples; default: seed.")
    test_seed: Size = setting(1_000_000, "Seed of the test set, the same for all seeds.")

    test_samples: Size = setting(256, "Samples of the test set, solved before training starts; 0: no tests.")
    references: str = setting(
        "auto",
        "Solves test sets and supervised training sets; auto: multigrid where there is one, otherwise PETSc.",
        choices=REFERENCES,
    )
    evaluate_every: Count | None = setting(None, "Epochs between tests; default: a twentieth of all.")
    checkpoint_every: Count | None = setting(None, "Epochs between checkpoints; default: a twentieth of all.")
    log_every: Count | None = setting(None, "Steps between lines of the log; default: a thousandth of all.")
    tensorboard: bool = setting(False, "Also write events for TensorBoard.")

    device: str | None = setting(None, "cpu, cuda, mps, …; default: the best that works.")
    start_from: str | None = setting(None, "A run, or a saved surrogate, with the weights to start from.")

    # ---- checks of single settings, beyond their types and bounds

    @field_validator("*")
    @classmethod
    def _chosen(cls, value: Any, info: ValidationInfo) -> Any:
        return declared(Configuration)[str(info.field_name)].chosen(value)

    @field_validator("options")
    @classmethod
    def _kept(cls, options: dict[str, Any]) -> dict[str, Any]:
        """The options; raises a ValueError unless TOML and JSON, the formats of a run's files, can hold them."""
        try:
            json.dumps(options, allow_nan=False)
            if tomllib.loads(tomli_w.dumps(options)) != options:
                raise ValueError(f"TOML does not give back {options}")
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"options must be numbers, texts and lists of them: {one_line(error)}") from error
        return options

    @field_validator("problem", "frame", "start_from")
    @classmethod
    def _absolute(cls, value: str | None, info: ValidationInfo) -> str | None:
        """Files with absolute paths: a run may be resumed from another folder."""
        if value is None:
            return None
        file, colon, attribute = value.rpartition(":") if ".py:" in value else (value, "", "")
        if info.field_name == "problem" and not file.endswith(".py"):
            return value  # built in
        return str(Path(file).absolute()) + colon + attribute

    # ---- settings that depend on others

    @property
    def dtype_settings(self) -> Precision:
        """The paper's settings for the optimizer's precision."""
        from training.precision import PRECISIONS

        return PRECISIONS["float32" if self.mixed else self.precision]

    @property
    def _searches(self) -> bool:
        return self.optimizer != OWN and OPTIMIZERS[self.optimizer].line_search

    @property
    def _nodal(self) -> bool:
        return self.loss != OWN and LOSSES[self.loss].nodal

    @property
    def _supervised(self) -> bool:
        return self.loss != OWN and LOSSES[self.loss].supervised

    def resolved(self) -> Resolved:
        """The same with all defaults filled in; raises a ValueError if settings do not fit each other."""
        self._check()
        sampling = self.sampling or ("fixed" if self._searches or self._supervised else "fresh")
        count, steps = self.training_samples, self.steps_per_epoch
        if sampling == "fixed":
            count = count or (256 if self._searches else 1024)
            batch = min(self.batch or (count if self._searches else 64), count)
            batches = -(-count // batch)
            if steps not in (None, batches):
                raise ValueError(f"a fixed set of {count} has {batches} batches of {batch}: leave out steps_per_epoch")
            steps = batches
        else:
            batch, steps = self.batch or 64, steps or 1
        rate, minimum, blocks = self.rate, self.minimum_rate, self.blocks
        if rate is None:
            rate = 1e-3 if self.optimizer == OWN else OPTIMIZERS[self.optimizer].rate
            if self.net == MULTIGRID and not self._searches:
                rate = 2e-2
        if minimum is None:
            minimum = min(self.dtype_settings.minimum_rate, rate)
        if minimum > rate:
            raise ValueError(
                f"minimum_rate is {minimum:g}, above the rate {rate:g}: it is the last rate, not the first"
            )
        if blocks is None:
            blocks = 0 if self.net in (OWN, MULTIGRID) else NETS[self.net].default_blocks
        epochs = self.epochs
        if epochs is None:
            epochs = 400 if self.net == MULTIGRID else 6000
        values = self.record() | dict(
            blocks=blocks,
            epochs=epochs,
            rate=rate,
            minimum_rate=minimum,
            period=max(5 * epochs / 6, 1.0) if self.period is None else self.period,
            batch=batch,
            sampling=sampling,
            training_samples=count,
            steps_per_epoch=steps,
            net_seed=self.seed if self.net_seed is None else self.net_seed,
            sample_seed=self.seed if self.sample_seed is None else self.sample_seed,
            evaluate_every=self.evaluate_every or max(1, epochs // 20),
            checkpoint_every=self.checkpoint_every or max(1, epochs // 20),
            log_every=self.log_every or max(1, epochs * steps // 1000),
        )
        return Resolved(**values)

    def record(self) -> dict[str, Any]:
        """All settings by name, as plain data for JSON."""
        return dataclasses.asdict(self)

    def _check(self) -> None:
        """Raises a ValueError for settings that do not fit each other."""
        if not self.problem and not self.frame:
            raise ValueError("give problem and levels, or frame with a file written by `fem-frames export`")
        if self.frame:
            for name in ("levels", "first_level", "refinement", "coarse"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} is decided by the frame: leave it out")
        elif self.levels is None:
            raise ValueError(f"levels is missing: how often is the mesh of {self.problem} to be refined?")
        if self.mixed and self.precision not in ("float16", "bfloat16"):
            raise ValueError(f"mixed goes with float16 or bfloat16, not with {self.precision}: change one of them")
        if self._nodal and self.level_decay:
            raise ValueError(f"the loss {self.loss} has no levels that could decay: leave level_decay at 0")
        if self.net == MULTIGRID:
            self._check_multigrid()
        elif self.pre is not None or self.post is not None:
            raise ValueError(f"pre and post are for the net {MULTIGRID}: leave them out with the net {self.net}")
        if self.start_level is not None and self.net != OWN:
            if self.net == MULTIGRID or not NETS[self.net].prolonged or self._nodal:
                raise ValueError(
                    "start_level is for the net separate-frame and losses with a frame: leave it out with the net "
                    f"{self.net} and the loss {self.loss}"
                )
            if self.levels is not None and self.start_level > self.levels:
                raise ValueError(f"start_level is {self.start_level}, but levels is {self.levels}: start coarser")
        if self._supervised and self.sampling not in (None, "fixed"):
            raise ValueError(f"the loss {self.loss} needs reference solutions: use sampling fixed, not {self.sampling}")
        if self.sampling in ("fresh", "sobol") and self.training_samples is not None:
            raise ValueError(f"training_samples is the size of a fixed set: leave it out with sampling {self.sampling}")
        fixed_by_itself = self._supervised or self._searches
        if self.training_samples is not None and self.sampling is None and not fixed_by_itself:
            raise ValueError("training_samples is the size of a fixed set: give sampling fixed too")

    def _check_multigrid(self) -> None:
        if self.pre == self.post == 0:
            raise ValueError("pre and post are 0: a cycle without smoothing does not converge, give one of them steps")
        if self.level_decay:
            raise ValueError(f"the net {MULTIGRID} has no coefficients that could decay: leave level_decay at 0")
        if self.optimizer == "ngd":
            raise ValueError(f"the optimizer ngd does not know the net {MULTIGRID}: use adam, soap or lbfgs")

    # ---- TOML

    def to_toml(self) -> str:
        """All settings that are not None, with their meaning as comments."""
        values = {name: value for name, value in self.record().items() if value not in (None, {})}
        values |= {name: values.pop(name) for name in ["options"] if name in values}  # a table comes last
        texts = declared(Configuration)
        return "\n".join(f"# {texts[name].text}\n{tomli_w.dumps({name: value})}" for name, value in values.items())

    @classmethod
    def from_toml(cls, path: str | Path) -> dict[str, Any]:
        """The settings in a file, by name; `Configuration(**settings)` adds the defaults.

        Commands do not run a problem's Python file that only a settings file names.
        """
        try:
            content = tomllib.loads(check_file(path).read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
            raise ValueError(f"{path} is not a readable TOML file: {one_line(error)}") from error
        try:
            return cls.checked(content)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @staticmethod
    def checked(settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings with absolute paths; raises a ValueError for an unknown name or a wrong value."""
        found = Configuration(**settings)
        return {name: getattr(found, name) for name in settings}


REQUIRED: Any = Field()


@one_line_errors
@dataclass(frozen=True, kw_only=True, config=STRICT)
class Resolved(Configuration):
    """A configuration with all defaults filled in, as runs use and save it."""

    blocks: int = REQUIRED
    epochs: int = REQUIRED
    rate: float = REQUIRED
    minimum_rate: float = REQUIRED
    period: float = REQUIRED
    batch: int = REQUIRED
    sampling: str = REQUIRED
    steps_per_epoch: int = REQUIRED
    net_seed: int = REQUIRED
    sample_seed: int = REQUIRED
    evaluate_every: int = REQUIRED
    checkpoint_every: int = REQUIRED
    log_every: int = REQUIRED

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self.epochs * self.steps_per_epoch
