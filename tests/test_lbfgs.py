"""L-BFGS takes the steps of torch's, in every precision, and goes on from its state and from torch's."""

import copy

import pytest
import torch
from small_runs import small_objective
from torch.optim.lbfgs import _strong_wolfe

from training import Configuration, train
from training.optimizers.lbfgs import LBFGS
from training.optimizers.line_search import Trial, strong_wolfe
from training.optimizers.steppers import make_stepper
from training.precision import PRECISIONS
from training.run.log import read_log

pytestmark = pytest.mark.serial
PAPER = dict(lr=1.0, max_iter=20, max_eval=25, history_size=100)
TIGHT = dict(tolerance_grad=1e-12, tolerance_change=1e-12)


def theirs(vector, **settings):
    return torch.optim.LBFGS([vector], **settings, line_search_fn="strong_wolfe")


def rosenbrock(dimension, start):
    """(parameter, closure) of Σ 100 (x_{i+1} - x_i²)² + (1 - x_i)²."""
    x = torch.nn.Parameter(torch.full((dimension,), start, dtype=torch.float64))

    def closure():
        with torch.enable_grad():
            x.grad = None
            value = (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()
            value.backward()
        return value.detach()

    return x, closure


def beside(problem, steps, **settings):
    """Step by step, parameters and state of ours and of torch's."""
    runs = []
    for make in (LBFGS, theirs):
        vector, closure = problem()
        runs.append((vector, closure, make(vector, **settings)))
    for _ in range(steps):
        for _, closure, optimizer in runs:
            optimizer.step(closure)
        yield [(vector.detach(), optimizer.state[vector]) for vector, _, optimizer in runs]


def training_problem(kind, dtype="float64"):
    def make():
        objective, _ = small_objective(kind, dtype=dtype, count=16, rank=4, blocks=2)
        return objective.weights.vector, objective

    return make


@pytest.mark.parametrize("kind", ["interval, LS", "square", "square, lognormal"])
def test_steps_of_training_are_those_of_torch(kind):
    """Twenty directions a step; rounding grows from one to the next, in torch's as in ours."""
    for step, ((ours, state), (other, their_state)) in enumerate(
        beside(training_problem(kind), 4, **PAPER, **TIGHT), start=1
    ):
        assert float((ours - other).norm() / other.norm()) < 1e-11 * 10 ** (step - 1)
        for name in ("n_iter", "func_evals"):
            assert state[name] == their_state[name]
    assert state["n_iter"] == 80


@pytest.mark.parametrize(("dimension", "start"), [(2, -1.2), (5, 3.0), (10, -1.2)])
@pytest.mark.parametrize("settings", [PAPER, PAPER | dict(history_size=3), PAPER | dict(lr=0.1, max_eval=60)])
def test_steps_on_rosenbrocks_function_are_those_of_torch(dimension, start, settings):
    """With a history that is soon full, and line searches that shrink, grow and run out of evaluations."""
    for (ours, state), (other, their_state) in beside(lambda: rosenbrock(dimension, start), 12, **settings, **TIGHT):
        torch.testing.assert_close(ours, other, rtol=1e-6, atol=1e-6)
        assert state["n_iter"] == their_state["n_iter"]
    assert float((ours - 1).abs().max()) < 1e-4


class Wave:
    """t to a parabola with waves, and its slope; keeps the places that it is asked for, as `Line` does its count."""

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)
        self._bend, self._height, self._speed, self._shift = torch.rand(4, generator=generator, dtype=torch.float64) * 3
        # Descends from the start, and is bounded from below.
        self._slope = self._height * self._speed * torch.cos(self._shift) + 1
        self.longest, self.asked = 1.0, []
        self.start = self(0.0)
        self.asked.clear()

    def value(self, t):
        at = torch.tensor(t, dtype=torch.float64, requires_grad=True)
        loss = self.loss(at)
        loss.backward()
        return float(loss.detach()), at.grad[None].clone()

    def loss(self, t):
        return self._height * torch.sin(self._speed * t + self._shift) - self._slope * t + 0.1 * self._bend * t**2

    def __call__(self, t):
        self.asked.append(t)
        loss, gradient = self.value(t)
        return Trial(t, loss, float(gradient), gradient, abs(float(gradient)))


class Trough(Wave):
    """Far away it is lower than at the start, but by too little: -t exp(-t)."""

    def loss(self, t):
        return -t * torch.exp(-self._speed * t)


@pytest.mark.parametrize("function", [Wave, Trough])
@pytest.mark.parametrize("limit", [3, 25])
@pytest.mark.parametrize("first", [0.3, 1.0, 10.0, 1000.0])
def test_line_searches_go_where_those_of_torch_go(first, limit, function):
    """On functions of one variable with many valleys: all places, and the one that is taken."""
    lengths = set()
    for seed in range(300):
        wave, asked = function(seed), []

        def evaluate(x, t, d, wave=wave, asked=asked):
            asked.append(float(t))
            return wave.value(float(t))

        start, d = wave.start, torch.ones(1, dtype=torch.float64)
        slope = start.gradient.dot(d)
        _, _, t, _ = _strong_wolfe(evaluate, None, first, d, start.loss, start.gradient, slope, max_ls=limit)
        found = strong_wolfe(wave, wave(first), 1e-9, limit)
        assert wave.asked == pytest.approx(asked, rel=1e-5)  # cubics through near points amplify rounding
        assert found.t == pytest.approx(float(t), rel=1e-5)
        lengths.add(len(asked))
    assert len(lengths) > 1


def test_in_float32_it_trains_as_well_as_torch():
    """Rounding leads them apart, not one behind the other."""
    *_, last = beside(training_problem("interval, LS", "float32"), 12, **PAPER, **TIGHT)
    losses = []
    for vector, _ in last:
        objective, _ = small_objective("interval, LS", dtype="float32", count=16, rank=4, blocks=2)
        with torch.no_grad():
            objective.weights.vector.copy_(vector)
        losses.append(float(objective()))
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("history_size", [4, 100])
def test_it_goes_on_from_its_state_to_the_same_bits(dtype, history_size):
    def run(again):
        objective, _ = small_objective(dtype=dtype, count=8, rank=4, blocks=2)
        vector = objective.weights.vector
        settings = PAPER | dict(history_size=history_size, tolerance_grad=0.0, tolerance_change=0.0, max_iter=5)
        made = LBFGS(vector, **settings)
        for step in range(6):
            made.step(objective)
            if step == again:
                state = copy.deepcopy(made.state_dict())
                made = LBFGS(vector, **settings)
                made.load_state_dict(state)
        return vector.detach(), made.state[vector]

    (vector, _), (again, state) = run(None), run(2)
    assert torch.equal(vector, again)
    assert 3 < state["history"].count <= history_size


def test_the_saved_state_has_the_pairs_that_are_in_use_and_no_more():
    objective, _ = small_objective()
    made = LBFGS(objective.weights.vector, **PAPER | dict(max_iter=7))
    made.step(objective)
    (own,) = made.state_dict()["state"].values()
    count = made.state[objective.weights.vector]["history"].count
    assert own["pairs"].shape == (count, 2, len(objective.weights.vector))
    assert own["pairs"].untyped_storage().nbytes() == own["pairs"].nbytes
    assert all(isinstance(value, torch.Tensor | int | float) for value in own.values())


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_it_goes_on_from_the_state_of_torchs(steps):
    """Files of runs from before hold it."""
    make = training_problem("interval, LS")
    (first, objective), (second, other) = make(), make()
    before = theirs(first, **PAPER, **TIGHT)
    for _ in range(steps):
        before.step(objective)
    ours, torchs = LBFGS(second, **PAPER, **TIGHT), before
    ours.load_state_dict(copy.deepcopy(before.state_dict()))
    with torch.no_grad():
        second.copy_(first)
    ours.step(other)
    torchs.step(objective)
    torch.testing.assert_close(second, first, rtol=0, atol=1e-9)
    assert ours.state[second]["n_iter"] == torchs.state[first]["n_iter"] == 20 * (steps + 1)


def test_a_run_that_torchs_began_is_resumed(tmp_path, frame_file):
    """Its checkpoint as it was written when steps were torch's."""
    settings = dict(frame=str(frame_file), optimizer="lbfgs", training_samples=8, epochs=4, precision="float64")
    settings |= dict(rank=2, blocks=1, test_samples=0, checkpoint_every=2, log_every=1)
    whole = tmp_path / "whole"
    train(Configuration(**settings), whole, quiet=True)
    old = tmp_path / "old"
    train(Configuration(**settings), old, quiet=True)
    (old / "result.json").unlink()
    (old / "checkpoints/step-000000004.pt").unlink()
    path = old / "checkpoints/step-000000002.pt"
    content = torch.load(path, weights_only=True)
    (state,) = content["optimizer"]["state"].values()
    pairs = state.pop("pairs")
    state |= {"old_stps": list(pairs[:, 0]), "old_dirs": list(pairs[:, 1])}
    state |= {"ro": [1 / (s @ y) for s, y in pairs], "al": [None] * 100, "H_diag": torch.tensor(state["H_diag"])}
    del state["inner"], state["on_gradient"], state["oldest"]
    torch.save(content, path)
    train(Configuration(**settings), old, resume=True, quiet=True)
    losses = [[r["loss"] for r in read_log(folder / "log.jsonl") if "loss" in r] for folder in (whole, old)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)
    assert len(losses[0]) == 4


def test_a_direction_that_does_not_descend_is_not_taken():
    """A gradient that lies: the pairs then have no curvature, and the step ends where it began."""
    x = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))

    def closure():
        x.grad = torch.zeros_like(x) + 1e-9
        return (x.detach() ** 2).sum()

    made = LBFGS(x, tolerance_grad=0.0, tolerance_change=1e-6)
    made.step(closure)
    assert made.reason.startswith("the slope of L-BFGS's direction, -3.0e-18, is below the tolerance 1e-06")
    assert torch.equal(x, torch.ones(3, dtype=torch.float64))


def test_a_search_that_finds_nothing_smaller_says_so():
    x = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def closure():
        x.grad = torch.ones_like(x)  # promises descent where the loss only grows
        return (x.detach() ** 2).sum()

    made = LBFGS(x, max_iter=20, max_eval=200)
    made.step(closure)
    assert made.reason == "the line search failed: no step gave a smaller loss"
    assert torch.equal(x, torch.zeros(2, dtype=torch.float64))


def test_steps_too_long_for_half_precision_come_back():
    objective, _ = small_objective(dtype="float16", count=8)
    step = make_stepper("lbfgs", objective.weights, PRECISIONS["float16"], 1e6)
    first = step(objective)
    assert first.finite
    assert torch.isfinite(objective.weights.vector).all()
    assert float(objective()) <= float(first.loss)
