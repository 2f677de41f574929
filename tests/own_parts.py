"""Modules, losses and optimizers as users write them, for tests, and what their runs leave behind."""

import numpy as np
import torch
from frames import case
from torch import nn

from training import Configuration
from training.run.checkpoints import Checkpoints
from training.run.log import read_log

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


def small_settings(frame, **changes):
    base = dict(frame=frame, epochs=STEPS, test_samples=8, log_every=1, checkpoint_every=8, batch=16)
    return Configuration(**base | changes)
