"""Parts of the user's own that do not fit, or are missing, are refused in one line, and nothing is lost."""

from functools import partial

import pytest
import torch
from own_parts import SIZE, P, Unusual, adamw, energy, mlp, seeded, small_settings
from torch import nn

from fem_frames.commands import main
from training import Surrogate, train

pytestmark = pytest.mark.serial


@pytest.fixture
def settings(frame_of_u):
    return partial(small_settings, frame_of_u)


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
        ({"net": Failing()}, r"^your net Failing fails in .*_refused.py, line \d+, in forward: NameError"),
        ({"net": nn.Linear(P, SIZE, dtype=torch.complex64)}, "^weight of your net Linear is complex"),
        ({"net": lambda frame: 5}, "^your function that makes the net gives a int; a module is expected$"),
        ({"net": lambda: 5}, "^your function that makes the net fails in .*test_own_parts_refused.py, line"),
        ({"loss": lambda w, y, f: w.sum()}, r"^your loss <lambda> gives the shape \(\); .* one loss per sample$"),
        ({"loss": lambda w, y, f: y.sum(1)}, "^your loss <lambda> does not depend on the coefficients w"),
        ({"loss": lambda w: w}, "^your loss <lambda> fails in .*test_own_parts_refused.py, line .* TypeError"),
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
        (
            {"optimizer": "ngd"},
            {"net": Unusual()},
            "ngd needs derivatives that your net Unusual does not have: use adam",
        ),
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
        (Unusual(), "it is a Unusual, but the weights belong to a Sequential"),
        (mlp(width=9), "your net does not fit the weights in .*size mismatch"),
    ]:
        with pytest.raises(ValueError, match=message):
            Surrogate.load(out, net=wrong)
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before
    train(None, out, resume=True, quiet=True, **own)
