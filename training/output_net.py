"""OutputNet: a plain net y -> outputs, fitted to outputs of discrete solutions, with its validation error.

It answers in microseconds and has no error bound: the validation error is what was seen for other random y.

B samples, p parameters, s outputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from fem_frames.formulations.formulation import Formulation
from fem_frames.memory import check_memory
from fem_frames.output_records import read_outputs
from fem_frames.outputs import Output
from fem_frames.problem.parameters import Gaussian, Uniform, check_samples, whole_number
from training.dense_net import check_finite, dense_net, fit_by_adam
from training.output_samples import OutputSamples, formulation_of, solve_outputs
from training.tensor_files import are_weights, load_tensors, save_tensors

if TYPE_CHECKING:
    from training.outputs import Outputs
    from training.surrogate import Surrogate

KIND, VERSION = "output net", 1
SLACK = 2e-6  # as in Uniform.outside, for [-1, 1]
TRAINING, VALIDATION = 5, 6  # end the seeds of the samples, as in training/samples.py
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class OutputNetSettings:
    """How an `OutputNet` is trained. See docs/surrogates.md."""

    samples: int = 10_000
    """Random y that are solved for training."""
    validation: int = 1000
    """Other random y, which are solved for the validation error alone."""
    width: int = 128
    depth: int = 3
    """The net has `depth` hidden layers of `width` with GELU."""
    steps: int = 10_000
    """Steps of Adam."""
    batch: int = 256
    """Samples per step."""
    rate: float = 1e-2
    """The first rate; it falls along a cosine to a thousandth."""
    tol: float = 1e-6
    """Relative residual of the solves."""
    seed: int = 0
    """Of samples, first weights and batches."""

    def __post_init__(self) -> None:
        for name, least in {"samples": 2, "validation": 2, "width": 1, "depth": 1, "steps": 0, "batch": 1}.items():
            object.__setattr__(self, name, whole_number(getattr(self, name), name, least))
        object.__setattr__(self, "seed", whole_number(self.seed, "seed", 0))
        for name in ("rate", "tol"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
                raise ValueError(f"{name} is {value!r}; a number between 0 and 1 is expected")

    def check_size(self, p: int, s: int) -> None:
        """Raises a ValueError if the net does not fit into memory with its gradient and Adam's moments."""
        weights = self.width * (p + s + 2.0 + (self.depth - 1.0) * (self.width + 1.0))
        check_memory(f"a net of {weights:.3g} weights", 16.0 * weights, "use a smaller width or depth")


@dataclass(frozen=True, eq=False)
class ValidationErrors:
    """Errors of an `OutputNet` that were seen for random y not used in training: no bounds. See docs/surrogates.md."""

    mean: Tensor  # (s,) absolute
    max: Tensor  # (s,) absolute
    deviation: Tensor  # (s,) standard deviation of the output over the validation samples; zero if it is a constant
    rms: Tensor  # (s,) root of the mean square of the output over the validation samples
    samples: int

    @classmethod
    def between(cls, found: Tensor, truth: OutputSamples) -> ValidationErrors:
        """Of outputs (B, s) against those of the discrete solutions."""
        off, (_, deviation) = (found - truth.values).abs(), truth.scaling()
        return cls(off.mean(0), off.amax(0), deviation, truth.values.square().mean(0).sqrt(), len(off))

    def relative(self, kind: str = "mean", to: str = "deviation") -> Tensor:
        """(s,) the error "mean" or "max" divided by "deviation" or "rms"; infinite or NaN where that is zero."""
        if kind not in ("mean", "max") or to not in ("deviation", "rms"):
            raise ValueError(f"there is no error {kind!r} relative to {to!r}: use mean or max, deviation or rms")
        made: Tensor = getattr(self, kind) / getattr(self, to)
        return made

    def __str__(self) -> str:
        mean, largest = (_largest(self.relative(kind)) for kind in ("mean", "max"))
        return f"mean {mean}, max {largest} of the standard deviation, for the worst output and {self.samples} samples"


class OutputNet:
    """y to s outputs by a plain net in float32: microseconds per query, a validation error, no bound.

    Its file needs neither DOLFINx nor the frame nor the problem. See docs/surrogates.md.
    """

    def __init__(
        self,
        net: nn.Sequential,
        scaling: tuple[Tensor, Tensor],
        parameters: Uniform | Gaussian,
        labels: tuple[str, ...],
        errors: ValidationErrors,
        record: Mapping[str, Any],
        outputs: list[dict[str, Any]] | None = None,
    ) -> None:
        """`scaling` are the centre (s,) and the scale (s,) of the outputs; `record` tells how the net was trained.

        `outputs` are the records of the outputs, as `record_outputs` makes them.
        """
        self.net, self.parameters, self.labels = net.requires_grad_(False), parameters, labels
        self.validation, self.record = errors, dict(record)
        self._centre, self._scale = scaling
        self._middle, self._half = _box(parameters)
        self._outputs = outputs

    @property
    def outputs(self) -> list[Output]:
        """The outputs, to ask a surrogate of the same problem for them; functionals come as programs."""
        if self._outputs is None:
            raise ValueError(
                f"the net of {self.record.get('problem')} does not hold its outputs: they were given by functions, or "
                "an earlier version made the file; only their labels are known"
            )
        return read_outputs(self._outputs)

    def __repr__(self) -> str:
        sizes = "-".join(str(size) for size in _sizes(self.net))
        return (
            f"OutputNet of {self.record.get('problem')}, {len(self.labels)} outputs for y in {self.parameters}\n"
            f"  net {sizes}, fitted to {self.record.get('samples')} solves\n"
            f"  validation error: {self.validation}"
        )

    def __call__(self, y: npt.ArrayLike | Tensor) -> Tensor:
        """(B, s) outputs in float64 for y (B, p) or (p,); differentiable in a tensor y."""
        if not isinstance(y, Tensor):
            samples = torch.as_tensor(self._checked(y))
        else:
            if y.ndim != 2 or y.shape[1] != self.parameters.dimension or not len(y) or y.is_complex():
                self._checked(y)
            samples = (y if y.ndim == 2 else y[None]).to("cpu", torch.float64)
        x = (samples - self._middle) / self._half
        limit = 1 + SLACK if isinstance(self.parameters, Uniform) else torch.inf
        if not bool((x.abs() < limit).all()):  # a quick test, which fails for NaN too; the slow one says what is wrong
            self._checked(y)
        found = self._centre + self._scale * self.net(x.float()).double()
        return found.to(y.device) if isinstance(y, Tensor) else found

    def _checked(self, y: Any) -> npt.NDArray:
        given = y.detach().cpu().numpy() if isinstance(y, Tensor) else y
        return check_samples(given, self.parameters, f"the net of {self.record.get('problem')}")

    # ---- training

    @classmethod
    def train(
        cls,
        model: Formulation | Surrogate,
        outputs: Outputs,
        settings: OutputNetSettings = OutputNetSettings(),  # noqa: B008 (frozen)
        progress: Progress | None = None,
    ) -> OutputNet:
        """Solves for random y, fits the net to their outputs, and solves for other y for the validation error.

        A surrogate gives its formulation; its own net is not used. `progress` is called with the done and all solves,
        then with the done and all steps.
        """
        training, validation = solve_for(model, outputs, settings, progress)
        return cls.fit(training, validation, settings, progress)

    @classmethod
    def fit(
        cls,
        training: OutputSamples,
        validation: OutputSamples,
        settings: OutputNetSettings = OutputNetSettings(),  # noqa: B008 (frozen)
        progress: Progress | None = None,
    ) -> OutputNet:
        """Fits the net to outputs that are solved already, as `train` does."""
        if training.labels != validation.labels or training.parameters != validation.parameters:
            raise ValueError("samples for training and validation are of other outputs or parameters: solve for both")
        begin, p, s = time.perf_counter(), training.y.shape[1], training.values.shape[1]
        settings.check_size(p, s)
        centre, scale = training.scaling()
        targets = ((training.values - centre) / torch.where(scale > 0, scale, 1.0)).float()
        middle, half = _box(training.parameters)
        x = ((training.y - middle) / half).float()
        net = dense_net([p, *[settings.width] * settings.depth, s], settings.seed, nn.GELU)
        batches = _Batches(len(x), settings.batch, settings.seed)

        def loss(step: int) -> Tensor:
            rows = batches(step)
            return nn.functional.mse_loss(net(x[rows]), targets[rows])

        fit_by_adam(net, loss, settings.steps, (settings.rate, 1e-3 * settings.rate), (0.9, 0.99), progress)
        with torch.no_grad():
            check_finite(loss(0), settings.steps, settings.rate)
        record = {
            "problem": training.problem,
            **asdict(settings),
            "samples": len(training.y),
            "validation": len(validation.y),
            "solves": len(training.y) + len(validation.y),
            "solve_seconds": training.seconds + validation.seconds,
            "fit_seconds": time.perf_counter() - begin,
        }
        with torch.no_grad():
            found = centre + scale * net(((validation.y - middle) / half).float()).double()
        errors = ValidationErrors.between(found, validation)
        return cls(net, (centre, scale), training.parameters, training.labels, errors, record, training.outputs)

    # ---- files

    def save(self, path: str | Path) -> None:
        """Writes one file, completely or not at all."""
        if isinstance(self.parameters, Uniform):
            parameters: dict[str, Any] = {"lower": list(self.parameters.lower), "upper": list(self.parameters.upper)}
        else:
            parameters = {"normal": self.parameters.dimension}
        content = {
            "weights": {name: value.clone() for name, value in self.net.state_dict().items()},
            "centre": self._centre,
            "scale": self._scale,
            "parameters": parameters,
            "labels": list(self.labels),
            "validation": asdict(self.validation),
            "record": self.record,
            "outputs": self._outputs,
        }
        save_tensors(path, KIND, VERSION, content)

    @classmethod
    def load(cls, path: str | Path) -> OutputNet:
        """Reads a file of `save`, without executing anything in it."""
        content = load_tensors(path, KIND, VERSION)
        try:
            return _restored(content)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            why = str(error).split("\n")[0]
            raise ValueError(f"{path} holds no net for outputs that can be used: {why}; the file is damaged") from error


def solve_for(
    model: Formulation | Surrogate, outputs: Outputs, settings: OutputNetSettings, progress: Progress | None = None
) -> tuple[OutputSamples, OutputSamples]:
    """The samples for training and those for validation that the settings ask for."""
    formulation = formulation_of(model)
    settings.check_size(formulation.problem.parameters.dimension, 1)  # before the solves rather than after them
    total = settings.samples + settings.validation

    def solved(count: int, end: int, before: int) -> OutputSamples:
        def told(done: int, _: int) -> None:
            if progress is not None:
                progress(before + done, total)

        return solve_outputs(formulation, outputs, count, (settings.seed, 0, end), settings.tol, told)

    return solved(settings.samples, TRAINING, 0), solved(settings.validation, VALIDATION, settings.samples)


class _Batches:
    """Rows of the samples for each step: all samples once per epoch, in another order each time."""

    def __init__(self, count: int, batch: int, seed: int) -> None:
        self._generator, self._count, self._batch = torch.Generator().manual_seed(seed), count, min(batch, count)
        self._epoch, self._order = -1, torch.arange(count)

    def __call__(self, step: int) -> Tensor:
        epoch, place = divmod(step, self._count // self._batch)  # what is left of an epoch comes in another one
        if epoch > self._epoch:
            self._epoch, self._order = epoch, torch.randperm(self._count, generator=self._generator)
        return self._order[place * self._batch : (place + 1) * self._batch]


def _box(parameters: Uniform | Gaussian) -> tuple[Tensor, Tensor]:
    """(p,) and (p,): the net sees (y - first) / second, in [-1, 1] for a box, unchanged if y is standard normal."""
    p = parameters.dimension
    ends = (parameters.lower, parameters.upper) if isinstance(parameters, Uniform) else ([-1.0] * p, [1.0] * p)
    low, high = (torch.tensor(end, dtype=torch.float64) for end in ends)
    return (low + high) / 2, (high - low) / 2


def _sizes(net: nn.Sequential) -> list[int]:
    linear = [layer for layer in net if isinstance(layer, nn.Linear)]
    return [linear[0].in_features, *(layer.out_features for layer in linear)]


def _largest(relative: Tensor) -> str:
    finite = relative[torch.isfinite(relative)]
    return f"{100 * float(finite.max()):.2g} %" if len(finite) else "nothing"


def _restored(content: Mapping[str, Any]) -> OutputNet:
    """The net of a file's content; raises an error if its parts do not fit each other."""
    given = content["parameters"]
    parameters = Gaussian(given["normal"]) if "normal" in given else Uniform(given["lower"], given["upper"])
    weights, labels, record, told = (content[name] for name in ("weights", "labels", "record", "validation"))
    if not isinstance(labels, list) or not labels or not all(isinstance(label, str) for label in labels):
        raise ValueError("its labels are not texts")
    if not isinstance(record, dict) or not all(isinstance(key, str) for key in record):
        raise ValueError("its record is no dictionary")
    if not isinstance(weights, dict) or not all(map(are_weights, weights.values())):
        raise ValueError("its weights are not finite numbers")
    p, s = parameters.dimension, len(labels)
    shapes = [tuple(value.shape) for value in weights.values()]
    sizes = [p, *(shape[0] for shape in shapes[::2])]
    expected = [shape for a, b in pairwise(sizes) for shape in ((b, a), (b,))]
    names = [f"{2 * k}.{kind}" for k in range(len(sizes) - 1) for kind in ("weight", "bias")]
    if shapes != expected or list(weights) != names or sizes[-1] != s or len(sizes) < 3:
        raise ValueError(f"its weights have the shapes {str(shapes)[:80]}, no net from {p} parameters to {s} outputs")
    net = dense_net(sizes, 0, nn.GELU)
    net.load_state_dict(weights)
    parts = [content["centre"], content["scale"], *(told[name] for name in ("mean", "max", "deviation", "rms"))]
    if not all(are_weights(part) and part.shape == (s,) and part.dtype == torch.float64 for part in parts):
        raise ValueError(f"its scales and validation errors are not {s} finite numbers each")
    samples = whole_number(told["samples"], "the number of validation samples")
    errors = ValidationErrors(parts[2], parts[3], parts[4], parts[5], samples)
    outputs = content.get("outputs")
    if outputs is not None:
        read_outputs(outputs)
    return OutputNet(net, (parts[0], parts[1]), parameters, tuple(labels), errors, record, outputs)
