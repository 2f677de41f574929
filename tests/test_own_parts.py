"""Nets, losses and optimizers of the user's own: trained, resumed to the same bits, loaded."""

import copy
import os
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest
import torch
from frames import case
from own_parts import (
    SIZE,
    STEPS,
    P,
    Unusual,
    adamw,
    assert_same_run,
    checkpoint,
    energy,
    interrupted,
    losses,
    mlp,
    same,
    seeded,
    small_settings,
)
from test_torchrun import free_port, torchrun
from torch import nn

from training import Surrogate, train
from training.losses import StableLoss, SupervisedLoss
from training.run.checkpoints import Checkpoints

pytestmark = pytest.mark.serial


@pytest.fixture
def settings(frame_of_u):
    return partial(small_settings, frame_of_u)


# ---- precision, resuming


@pytest.mark.parametrize("precision", ["float16", "float16 mixed", "bfloat16", "float32", "float64"])
def test_a_module_trains_in_every_precision_and_resumes_to_the_same_bits(tmp_path, settings, precision):
    c = settings(precision=precision.split()[0], mixed="mixed" in precision)
    whole = train(c, tmp_path / "whole", net=seeded(3, Unusual), optimizer=adamw, quiet=True)
    with pytest.raises(InterruptedError):
        train(c, tmp_path / "parts", net=seeded(3, Unusual), optimizer=interrupted(19, adamw), quiet=True)
    assert Checkpoints(tmp_path / "parts/checkpoints").steps()[-1] in (16, 17, 18)
    parts = train(None, tmp_path / "parts", resume=True, net=seeded(4, Unusual), optimizer=adamw, quiet=True)
    assert parts["loss"] == whole["loss"]
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    weights = checkpoint(tmp_path / "whole")["net"]
    assert weights["module.frozen"].tolist() == list(range(12))
    assert weights["module.norm.num_batches_tracked"] == STEPS
    assert (weights["module.last.weight"] != seeded(3, Unusual).last.weight.to(weights["module.last.weight"])).any()
    found = losses(tmp_path / "whole")
    assert found[-4:].mean() < found[:4].mean()


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "soap", "lbfgs", "ngd"])
def test_our_optimizers_train_a_module_and_resume_it_to_the_same_bits(tmp_path, settings, optimizer):
    """As killed right at the end; with dropout in all evaluations of one step alike."""
    sampling = dict(training_samples=16) if optimizer in ("lbfgs", "ngd") else {}
    c = settings(optimizer=optimizer, **sampling)
    net = nn.Sequential(nn.Linear(P, 12), nn.Tanh(), nn.Dropout(0.1), nn.Linear(12, SIZE))
    torch.nn.init.constant_(net[-1].weight, 0.01)
    train(c, tmp_path / "run", net=copy.deepcopy(net), quiet=True)
    whole = checkpoint(tmp_path / "run")["net"]
    for left in ("result.json", "surrogate.pt", f"checkpoints/step-{STEPS:09d}.pt"):
        (tmp_path / "run" / left).unlink()
    train(None, tmp_path / "run", resume=True, net=net, quiet=True)
    assert same(whole, checkpoint(tmp_path / "run")["net"])
    assert losses(tmp_path / "run").min() < losses(tmp_path / "run")[0]


def test_a_run_that_is_killed_before_its_first_step_keeps_the_first_weights(tmp_path, settings):
    train(settings(), tmp_path / "whole", net=seeded(1, mlp), optimizer=adamw, quiet=True)
    with pytest.raises(InterruptedError):
        train(settings(), tmp_path / "run", net=seeded(1, mlp), optimizer=interrupted(1, adamw), quiet=True)
    train(None, tmp_path / "run", resume=True, net=seeded(2, mlp), optimizer=adamw, quiet=True)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_functions_that_make_a_net_draw_its_weights_by_the_seed(tmp_path, settings):
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        train(settings(seed=seed, epochs=0, test_samples=0), tmp_path / name, net=mlp, quiet=True)
    a, b, c = (Surrogate.load(tmp_path / name, net=mlp).net.state_dict() for name in "abc")
    assert same(a, b)
    assert not same(a, c)


def test_a_module_is_trained_in_place_and_sees_y_mapped_by_the_box(tmp_path, settings):
    net, problem = seeded(0, mlp), case("interval")[0]
    train(settings(level_decay=1.0), tmp_path / "run", net=net, quiet=True)
    y = torch.as_tensor(problem.parameters.sample(3, 0))
    low, high = (
        torch.tensor(ends, dtype=torch.float64) for ends in (problem.parameters.lower, problem.parameters.upper)
    )
    sizes = case("interval")[1].families[0].level_sizes
    decay = torch.cat([torch.full((n,), 0.5 ** (case("interval")[1].first_level + j)) for j, n in enumerate(sizes)])
    expected = net(((2 * y - low - high) / (high - low)).float()) * decay
    found = Surrogate.load(tmp_path / "run", net=seeded(9, mlp)).coefficients(y)
    torch.testing.assert_close(found.float(), expected, rtol=1e-6, atol=0)
    train(settings(map_inputs=False, epochs=1), tmp_path / "raw", net=net, quiet=True)
    torch.testing.assert_close(Surrogate.load(tmp_path / "raw", net=net).coefficients(y).float(), net(y.float()))


# ---- losses and optimizers


def test_a_function_and_a_class_train_as_the_loss_that_they_repeat(tmp_path, settings):
    class Same(StableLoss):
        pass

    given = {"ours": {}, "function": {"loss": energy}, "class": {"loss": Same}}
    for name, parts in given.items():
        train(settings(precision="float64"), tmp_path / name, quiet=True, **parts)
    for name in ("function", "class"):
        np.testing.assert_allclose(losses(tmp_path / name), losses(tmp_path / "ours"), rtol=1e-10)
    assert Surrogate.load(tmp_path / "function").net.state_dict().keys()  # the net is one of ours


def test_a_loss_of_ones_own_decides_what_is_learnt(tmp_path, settings):
    """‖w - 1‖² has a minimum that everybody knows."""
    c = settings(epochs=300, rate=3e-2, test_samples=0, precision="float64")
    train(c, tmp_path / "run", net=mlp, loss=lambda w, y, formulation: (w - 1).square().sum(1), quiet=True)
    w = Surrogate.load(tmp_path / "run", net=mlp).coefficients(case("interval")[0].parameters.sample(5, 0))
    torch.testing.assert_close(w, torch.ones_like(w), rtol=0, atol=0.1)


def test_a_supervised_class_of_ones_own_gets_reference_solutions(tmp_path, settings):
    class Mine(SupervisedLoss):
        pass

    with pytest.raises(ValueError, match=r"the loss Mine needs reference solutions for a fixed set: sampling='fixed'"):
        train(settings(), tmp_path / "run", net=mlp, loss=Mine, quiet=True)
    train(settings(sampling="fixed", training_samples=32), tmp_path / "run", net=mlp, loss=Mine, quiet=True)
    assert losses(tmp_path / "run")[-1] < losses(tmp_path / "run")[0]


def test_an_optimizer_of_ones_own_is_the_one_of_torch(tmp_path, settings):
    """SGD on the net's own parameters takes the steps of SGD on one vector; its rate is the first of the schedule."""
    c = settings(precision="float64", rate=None)
    ours = settings(precision="float64", optimizer="sgd", rate=0.02)
    train(ours, tmp_path / "ours", quiet=True)
    train(c, tmp_path / "own", optimizer=lambda p: torch.optim.SGD(p, lr=0.02), quiet=True)
    np.testing.assert_allclose(losses(tmp_path / "own"), losses(tmp_path / "ours"), rtol=1e-12)


def test_the_schedule_sets_the_rates_of_all_groups_in_proportion(tmp_path, settings):
    train(settings(period=1e9), tmp_path / "run", net=seeded(0, mlp), optimizer=adamw, quiet=True)
    rates = [group["lr"] for group in checkpoint(tmp_path / "run")["optimizer"]["param_groups"]]
    np.testing.assert_allclose(rates, [1e-3, 5e-4])


class Wide(torch.optim.Optimizer):
    """Gradient descent with momentum that is kept in float32 whatever the parameters are in."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                moment = self.state[p].setdefault("moment", torch.zeros_like(p, dtype=torch.float32))
                p.sub_(moment.mul_(0.9).add_(p.grad), alpha=group["lr"])


def test_the_state_of_an_optimizer_keeps_its_precision_when_a_run_is_resumed(tmp_path, settings):
    c = settings(precision="float16")
    train(c, tmp_path / "whole", net=seeded(0, mlp), optimizer=Wide, quiet=True)
    with pytest.raises(InterruptedError):
        train(c, tmp_path / "parts", net=seeded(0, mlp), optimizer=interrupted(12, Wide), quiet=True)
    train(None, tmp_path / "parts", resume=True, net=mlp, optimizer=Wide, quiet=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert checkpoint(tmp_path / "parts")["optimizer"]["state"][0]["moment"].dtype == torch.float32


# ---- surrogates


def test_a_surrogate_with_a_module_answers_certifies_improves_and_travels(tmp_path, settings):
    net, y = seeded(0, Unusual), case("interval")[0].parameters.sample(5, 1)
    train(settings(epochs=100), tmp_path / "run", net=net, quiet=True)
    given = seeded(1, Unusual)
    before = copy.deepcopy(given.state_dict())
    surrogate = Surrogate.load(tmp_path / "run", net=given)
    assert same(before, given.state_dict())
    assert not surrogate.net.training
    torch.testing.assert_close(surrogate(y)["u"], surrogate(y)["u"], rtol=0, atol=0)  # no dropout in queries
    assert (surrogate.improve(y, 1e-6).error_bound <= 1e-6).all()
    half = surrogate.to(precision="float16")
    assert {p.dtype for p in half.net.parameters()} == {torch.float16}
    assert {p.dtype for p in surrogate.net.parameters()} == {torch.float32}
    torch.testing.assert_close(half.coefficients(y), surrogate.coefficients(y), rtol=0.05, atol=5e-3)
    half.save(tmp_path / "half")
    again = Surrogate.load(tmp_path / "half", net=lambda frame: Unusual(frame.frame_size))
    torch.testing.assert_close(again.coefficients(y), half.coefficients(y), rtol=0, atol=0)
    surrogate.export(tmp_path / "net.pt2")
    program = torch.export.load(tmp_path / "net.pt2").module()
    exported = program(torch.as_tensor(y).float()).double()
    torch.testing.assert_close(exported, surrogate.coefficients(y), rtol=1e-4, atol=1e-5)
    assert not surrogate.net.training


def test_a_run_starts_from_another_with_the_same_module(tmp_path, settings):
    first = train(settings(epochs=60), tmp_path / "first", net=mlp, quiet=True)
    c = settings(epochs=0, start_from=str(tmp_path / "first"), precision="float64")
    second = train(c, tmp_path / "second", net=mlp, quiet=True)
    assert second["loss"] == pytest.approx(first["loss"], rel=1e-6)
    with pytest.raises(ValueError, match="it is a Unusual, but the weights belong to a Sequential"):
        train(c, tmp_path / "third", net=Unusual(), quiet=True)


# ---- processes that are killed, and several of them

SCRIPT = """
import os
import sys
import torch
from torch import nn
from training import Configuration, train

frame, out, size, epochs, resume = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), "resume" in sys.argv
torch.manual_seed(99 if os.environ.get("RANK", "0") != "0" or resume else 0)  # the first weights are those of rank 0
net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, size))
loss = lambda w, y, formulation: formulation.loss(w, y)
c = Configuration(frame=frame, precision="float64", epochs=epochs, test_samples=4, log_every=1, batch=17)
given = dict(net=net, loss=loss, optimizer=lambda p: torch.optim.AdamW(p, lr=2e-3), quiet=True)
train(None if resume else c, out, resume=resume, **given)
"""


@pytest.fixture
def script(tmp_path, frame_of_u):
    def command(out, epochs, *more, start=()):
        (tmp_path / "mine.py").write_text(SCRIPT)
        given = [tmp_path / "mine.py", frame_of_u, tmp_path / out, SIZE, epochs, *more]
        return [*(start or [sys.executable]), *map(str, given)]

    return command


def run(command):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_a_process_that_is_killed_resumes_to_the_same_bits(tmp_path, script):
    run(script("whole", 300))
    process, log = subprocess.Popen(script("parts", 300)), tmp_path / "parts/log.jsonl"
    while process.poll() is None and (not log.exists() or len(log.read_text().splitlines()) < 100):
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL, "it must be killed before it ends"
    run(script("parts", 300, "resume"))
    one, two = (Surrogate.load(tmp_path / name, net=mlp).net.state_dict() for name in ("whole", "parts"))
    assert same(one, two)


def test_two_processes_take_the_steps_of_one_with_parts_of_ones_own(tmp_path, script):
    run(script("one", 20))
    run(script("two", 20, start=torchrun(2, free_port())[:-2]))
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=1e-6)
    one, two = (Surrogate.load(tmp_path / name, net=mlp).net.state_dict() for name in ("one", "two"))
    assert all(torch.allclose(one[name], two[name], rtol=1e-6) for name in one)
