"""Nets, losses and optimizers of the user's own: trained, resumed to the same bits, loaded, and refused in one line."""

import copy
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from frames import case
from test_torchrun import free_port, torchrun
from torch import nn

from fem_frames.commands import main
from training import Configuration, Surrogate, train
from training.losses import StableLoss, SupervisedLoss
from training.run.checkpoints import Checkpoints
from training.run.log import read_log

pytestmark = pytest.mark.serial
SIZE, P = case("interval")[1].frame_size, 4
STEPS = 24


class Unusual(nn.Module):
    """A module with a scalar, frozen and tied weights, batch norm, dropout, and buffers that are no finite numbers."""

    def __init__(self, size=SIZE):
        super().__init__()
        self.first, self.last = nn.Linear(P, 12), nn.Linear(12, size)
        self.inner = self.twin = nn.Linear(12, 12)
        self.gain = nn.Parameter(torch.tensor(0.5))
        self.frozen = nn.Parameter(torch.arange(12.0), requires_grad=False)
        self.norm, self.drop = nn.BatchNorm1d(12), nn.Dropout(0.1)
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("bound", torch.tensor(torch.inf))

    def forward(self, y):
        z = self.norm(torch.tanh(self.first(y) + 0.01 * self.frozen))
        return self.gain * self.last(self.drop(torch.tanh(self.twin(torch.tanh(self.inner(z))))))


def mlp(frame=None, width=16):
    size = SIZE if frame is None else frame.frame_size
    return nn.Sequential(nn.Linear(P, width), nn.Tanh(), nn.Linear(width, size))


def seeded(seed, make):
    torch.manual_seed(seed)
    return make()


def energy(w, y, formulation):
    return formulation.loss(w, y)


def adamw(parameters):
    """Two groups with rates of their own; an eps that float16 has."""
    matrices, others = [[p for p in parameters if (p.ndim == 2) == flag] for flag in (True, False)]
    return torch.optim.AdamW(
        [{"params": matrices}, {"params": others, "lr": 5e-4, "weight_decay": 0.0}], lr=1e-3, eps=1e-4
    )


def interrupted(step, factory):
    """The same optimizer, which fails in this step as if the power went."""

    def make(parameters):
        made, taken = factory(parameters), []

        def before(*_):
            taken.append(1)
            if len(taken) == step:
                raise InterruptedError

        made.register_step_pre_hook(before)
        return made

    return make


def same(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
        for name, value in one.items()
    )


def checkpoint(folder, step=STEPS):
    return torch.load(Checkpoints(folder / "checkpoints").path(step), weights_only=True)


def losses(folder):
    return np.array([r["loss"] for r in read_log(folder / "log.jsonl") if "loss" in r])


def assert_same_run(one, other):
    one, other = checkpoint(one), checkpoint(other)
    assert same(one["net"], other["net"])
    assert same(one["weights"], other["weights"])
    states = one["optimizer"]["state"]
    assert states
    assert states.keys() == other["optimizer"]["state"].keys()
    assert all(same(state, other["optimizer"]["state"][number]) for number, state in states.items())


@pytest.fixture(scope="module")
def frame_of_u(tmp_path_factory):
    path = tmp_path_factory.mktemp("frames") / "u.npz"
    case("interval")[1].save(path)
    return str(path)


@pytest.fixture
def settings(frame_of_u):
    def make(**changes):
        base = dict(frame=frame_of_u, epochs=STEPS, test_samples=8, log_every=1, checkpoint_every=8, batch=16)
        return Configuration(**base | changes)

    return make


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
    with pytest.raises(ValueError, match="it is a Unusual, but they are those of a Sequential"):
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


# ---- errors


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(P, SIZE)

    def forward(self, y):
        return self.inner(y).detach()


class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(P, SIZE)

    def forward(self, y):
        return self.inner(y)[nothing]  # noqa: F821


class Lost(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.fill_(torch.nan)


class Opaque(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        self.param_groups[0]["lock"] = object()


def replacing(parameters):
    class Replacing(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    p.data = p.data - group["lr"] * p.grad

    return Replacing(parameters, lr=0.1)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"net": "full"},
            r"^net is 'full'; a torch module .* is expected; names are settings, Configuration\(net=…\)$",
        ),
        ({"net": 3}, "^net is a int; a torch module from y"),
        ({"net": nn.Linear(P, 5)}, rf"^your net Linear gives the shape \(2, 5\) for y .* Nhat = {SIZE} coefficients$"),
        ({"net": nn.Linear(3, SIZE)}, "^your net Linear fails: RuntimeError: .*shapes cannot be multiplied"),
        ({"net": nn.LSTM(P, SIZE)}, "^your net LSTM gives a tuple for y"),
        ({"net": nn.Tanh()}, "^your net Tanh has no parameters that require gradients: there is nothing to train$"),
        ({"net": Detached()}, "^the answer of your net Detached does not depend on its parameters"),
        ({"net": Failing()}, r"^your net Failing fails in .*test_own_parts.py, line \d+, in forward: NameError"),
        ({"net": nn.Linear(P, SIZE, dtype=torch.complex64)}, "^weight of your net Linear is complex"),
        ({"net": lambda frame: 5}, "^your function that makes the net gives a int; a module is expected$"),
        ({"net": lambda: 5}, "^your function that makes the net fails in .*test_own_parts.py, line"),
        ({"loss": lambda w, y, f: w.sum()}, r"^your loss <lambda> gives the shape \(\); .* one loss per sample$"),
        ({"loss": lambda w, y, f: y.sum(1)}, "^your loss <lambda> does not depend on the coefficients w"),
        ({"loss": lambda w: w}, "^your loss <lambda> fails in .*test_own_parts.py, line .* TypeError"),
        ({"loss": "bpx"}, r"^loss is 'bpx'; a function .* Configuration\(loss=…\)$"),
        ({"optimizer": "sgd"}, r"^optimizer is 'sgd'; .* Configuration\(optimizer=…\)$"),
        ({"optimizer": torch.optim.LBFGS}, r"^your optimizer LBFGS evaluates the loss itself, .* optimizer='lbfgs'"),
        ({"optimizer": lambda p: 5}, "^your optimizer gives a int; a torch.optim.Optimizer is expected$"),
        ({"optimizer": lambda p: torch.optim.SGD(p[:1], lr=1.0)}, "^your optimizer SGD takes 1 of the 34 parameters"),
        ({"optimizer": lambda p: torch.optim.SGD(p, lr=-1.0)}, "^your optimizer.* fails in .*Invalid learning rate"),
        ({"optimizer": lambda p: Lost(p, lr=1.0)}, "^the first step of your optimizer Lost is not finite in"),
        ({"optimizer": replacing}, "^your optimizer Replacing replaces p.data"),
        ({"optimizer": lambda p: Opaque(p, lr=1.0)}, "^your optimizer Opaque cannot be saved"),
    ],
)
def test_parts_that_do_not_fit_are_refused_in_one_line(tmp_path, settings, parts, message):
    with pytest.raises(ValueError, match=message) as caught:
        train(settings(), tmp_path / "run", quiet=True, **parts)
    assert "\n" not in str(caught.value)
    taken = any(optimizer in str(caught.value) for optimizer in ("Lost", "Replacing", "Opaque"))  # a first step
    assert (tmp_path / "run").exists() == taken


def test_settings_and_parts_must_agree(tmp_path, settings):
    for given, parts, message in [
        ({"net": "separate"}, {"net": mlp}, "the settings say net='separate', and net=… is given too: leave out one"),
        ({"net": "own"}, {}, r"the settings say a net of your own: give it, train\(…, net=…\)"),
        ({"optimizer": "ngd"}, {"loss": energy}, "ngd needs the second derivative .* use adam, soap or lbfgs"),
        ({"optimizer": "ngd"}, {"net": seeded(0, Detached)}, "does not depend on its parameters"),
    ]:
        with pytest.raises(ValueError, match=message):
            train(settings(**given), tmp_path / "run", quiet=True, **parts)
    assert not (tmp_path / "run").exists()
    train(settings(), tmp_path / "run", quiet=True)
    with pytest.raises(ValueError, match=r"has the net full: leave out net=…$"):
        Surrogate.load(tmp_path / "run", net=mlp)
    (tmp_path / "run/result.json").unlink()
    with pytest.raises(ValueError, match=r"was trained with the net full: leave out net=…$"):
        train(None, tmp_path / "run", resume=True, net=mlp, quiet=True)


def test_resuming_and_loading_ask_for_the_parts_again_and_lose_nothing(tmp_path, settings, capsys):
    out = tmp_path / "run"
    train(settings(), out, net=seeded(0, mlp), loss=energy, optimizer=adamw, quiet=True)
    own = dict(net=mlp, loss=energy, optimizer=adamw)
    for command in (
        ["evaluate", str(out)],
        ["query", str(out), "--y", "1,1,1,1"],
        ["export-net", str(out), "--out", "x.pt2"],
    ):
        with pytest.raises(SystemExit):
            main(command)
        told = capsys.readouterr().err
        assert "has a net of your own, Sequential: commands cannot have it, use it in Python" in told
        assert told.count("\n") == 1
    (out / "result.json").unlink()
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    with pytest.raises(SystemExit):
        main(["train", "--out", str(out), "--resume"])
    assert "was trained with a net of your own, Sequential: commands cannot have it" in capsys.readouterr().err
    for wrong, message in [
        (
            {"net": None},
            r"with a net of your own, Sequential: give it again, train\(None, .*, net=…, loss=…, optimizer=…\)",
        ),
        ({"loss": None}, "with a loss of your own, energy: give it again"),
        ({"optimizer": None}, "with an optimizer of your own, AdamW: give it again"),
        ({"net": Unusual()}, "your net is Unusual, but the run in .* was trained with Sequential: give that one"),
        ({"loss": lambda w, y, f: f.loss(w, y)}, "your loss is <lambda>, but the run in .* was trained with energy"),
        ({"optimizer": torch.optim.Adam}, "your optimizer is Adam, but the run in .* was trained with AdamW"),
        ({"net": mlp(width=9)}, "size mismatch for module.0.weight.*give net and loss and optimizer as before"),
        ({"optimizer": lambda p: torch.optim.AdamW(p, lr=1e-3)}, "does not fit the run: .*parameter group"),
    ]:
        with pytest.raises(ValueError, match=message):
            train(None, out, resume=True, quiet=True, **own | wrong)
    for wrong, message in [
        (None, r"has a net of your own, Sequential: give it again, Surrogate.load\(.*, net=…\)"),
        (Unusual(), "it is a Unusual, but they are those of a Sequential"),
        (mlp(width=9), "your net does not fit the weights in .*size mismatch"),
    ]:
        with pytest.raises(ValueError, match=message):
            Surrogate.load(out, net=wrong)
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before
    train(None, out, resume=True, quiet=True, **own)
