"""A sample with a wrong coefficient, source or target stops training in its own step, and is named, not the rate."""

import re

import numpy as np
import pytest
import torch
from pretended import DEVICE, counted, on, require

from fem_frames import Grid, Pointwise, Problem, Uniform, make_problem
from training import Configuration, TrainingError, train
from training.losses import SupervisedLoss
from training.run.checkpoints import Checkpoints
from training.samples import FreshSamples

pytestmark = pytest.mark.serial
LEAST = 1e-2  # values of y below it make something wrong
PARAMETERS = Uniform((0.0,), (1.0,))
RUN = dict(problem="mine", levels=3, rank=2, blocks=1, test_samples=0, batch=8, epochs=300, log_every=1000)
RUN |= dict(checkpoint_every=1)


def wrong_where_small(value, source=None):
    """A problem whose coefficient, or with `source` whose source, has this value where x > 1/2 and y is small."""

    def spoilt(x, y):
        bad = (y[..., 0] < LEAST) & (x[..., 0] > 0.5)
        return torch.where(bad, value, 1.0) if isinstance(y, torch.Tensor) else np.where(bad, value, 1.0)

    plain = Pointwise(lambda x, y: 1 + y[..., 0] + 0 * x[..., 0])
    if source:
        return Problem(Grid((4,)), plain, PARAMETERS, source=spoilt)
    return Problem(Grid((4,)), Pointwise(spoilt), PARAMETERS)


def first_bad(c):
    """Step and parameter of the first that is wrong."""
    samples = FreshSamples(PARAMETERS, c.batch, 1, c.seed)
    for step in range(c.epochs):
        (rows,) = np.nonzero(samples.batch(step)[0][:, 0] < LEAST)
        if len(rows):
            return step, float(samples.batch(step)[0][rows[0], 0])
    raise AssertionError("no sample is wrong")


def check(folder, problem, message, **settings):
    """The run ends with a ValueError that matches the message, after all steps before the one that is wrong."""
    c = Configuration(**RUN | settings)
    step, y = first_bad(c)
    assert step > 3
    with pytest.raises(ValueError, match=message) as raised:
        train(c, folder, problem=problem, quiet=True)
    assert not isinstance(raised.value, TrainingError)
    assert f"for y = ({y:.6g}) " in str(raised.value)
    assert "rate" not in str(raised.value)
    assert Checkpoints(folder / "checkpoints").steps()[-1] == step
    return str(raised.value)


@pytest.mark.parametrize("value", [-1.0, 0.0, np.inf, np.nan])
@pytest.mark.parametrize("formulation", ["energy", "least-squares"])
def test_a_wrong_coefficient_stops_the_step_that_meets_it(tmp_path, value, formulation):
    message = rf"a_y must be positive and finite, but it is {value:.3g} for y = \(\S+\) in cell \d+ at x = \(0\.\d+\)"
    said = check(tmp_path / "run", wrong_where_small(value), message, formulation=formulation)
    assert float(re.search(r"x = \((.*?)\)", said)[1]) > 0.5


@pytest.mark.parametrize(
    "settings",
    [
        dict(loss="bpx"),
        dict(loss="nodal"),
        dict(precision="float16"),
        dict(precision="float16", mixed=True),
        dict(micro_batch=3),
        dict(optimizer="soap"),
        dict(optimizer="lbfgs", sampling="fresh"),
        dict(optimizer="ngd", sampling="fresh"),
    ],
    ids=str,
)
def test_it_does_so_with_every_loss_precision_and_optimizer(tmp_path, settings):
    check(tmp_path / "run", wrong_where_small(-1.0), "a_y must be positive and finite, but it is -1", **settings)


@pytest.mark.parametrize("formulation", ["energy", "least-squares"])
@pytest.mark.parametrize("mixed", [False, True])
def test_a_source_that_is_no_number_is_named(tmp_path, formulation, mixed):
    message = r"f is nan for y = \(\S+\) at x = \(0\.\d+\): fix the source"
    more = dict(precision="float16", mixed=True) if mixed else {}
    check(tmp_path / "run", wrong_where_small(np.nan, source=True), message, formulation=formulation, **more)


def test_a_coefficient_that_half_precision_rounds_to_zero_is_named(tmp_path):
    c = Configuration(**RUN | dict(precision="float16"))
    with pytest.raises(ValueError, match=r"a_y has values down to 1e-09, which are zero in torch\.float16"):
        train(c, tmp_path / "run", problem=wrong_where_small(1e-9), quiet=True)
    assert Checkpoints(tmp_path / "run/checkpoints").steps()[-1] == first_bad(c)[0]


def test_a_target_that_is_no_number_is_named(tmp_path, monkeypatch):
    whole = SupervisedLoss.targets

    def spoilt(self, exact, reference):
        found = whole(self, exact, reference)
        found[5, 2] = torch.nan
        return found

    monkeypatch.setattr(SupervisedLoss, "targets", spoilt)
    c = Configuration(problem="quarters", levels=3, loss="supervised", training_samples=8, batch=8, test_samples=0)
    with pytest.raises(ValueError, match=r"solution for y = \(.*\) is not finite in torch\.float32: solve"):
        train(c, tmp_path / "run", quiet=True)


def test_where_all_samples_are_right_the_rate_is_blamed(tmp_path):
    c = Configuration(problem="quarters", levels=3, optimizer="sgd", rate=1e9, test_samples=0, epochs=50)
    with pytest.raises(TrainingError, match=r"loss or gradient is not finite .* try a smaller rate"):
        train(c, tmp_path / "run", quiet=True)


def test_the_test_of_the_coefficient_costs_no_wait():
    require()
    from fem_frames import Frame, MeshHierarchy, export_frame, make_formulation
    from fem_frames.operators.checking import unchecked

    problem = make_problem("checkerboard")
    arrays = export_frame(MeshHierarchy.from_problem(problem, 1), problem)
    with on(DEVICE):
        formulation = make_formulation(Frame.from_arrays(arrays, "float32", DEVICE), problem)
        y = torch.as_tensor(problem.parameters.sample(3, 0)).to(DEVICE, torch.float32)
        for sign, right in ((1.0, True), (-1.0, False)):
            with counted() as events, unchecked() as tests:
                formulation.coefficient(sign * y)
            assert not any(events.values())
            assert [bool(test) for test in tests] == [right]
