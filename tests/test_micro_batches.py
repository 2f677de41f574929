"""A batch that is evaluated in pieces gives the loss, gradient, Gauss-Newton product and steps of the whole one."""

import pytest
import torch
from small_runs import small_objective

from training import Configuration, train
from training.run.log import read_log
from training.run.store import SETTINGS

pytestmark = pytest.mark.serial
SMALL = dict(rank=2, blocks=1, batch=8, test_samples=0, precision="float64", log_every=1)


def in_pieces(objective, size):
    """The same objective in pieces of at most this size; gives too how many samples the net is asked for at a time."""
    sizes = []
    objective.net.register_forward_pre_hook(lambda net, given: sizes.append(len(given[0])))
    objective._micro_batch = size
    objective.take(objective._batch, objective._count)
    return sizes


@pytest.mark.parametrize("size", [1, 3, 8, 100])
@pytest.mark.parametrize(
    ("kind", "loss", "net"),
    [
        ("interval, LS", "stable", "full"),
        ("interval, LS", "bpx", "separate"),
        ("interval, mixed", "nodal", "full"),
        ("square, LS", "stable", "separate-frame"),
        ("square, lognormal", "stable", "full"),
    ],
)
def test_pieces_add_up_to_the_batch(kind, loss, net, size):
    whole, _ = small_objective(kind, loss, count=8, net=net)
    split, _ = small_objective(kind, loss, count=8, net=net)
    sizes = in_pieces(split, size)
    torch.testing.assert_close(split(), whole(), rtol=1e-12, atol=0)
    gradient = whole.gradient()
    torch.testing.assert_close(split.gradient(), gradient, rtol=0, atol=1e-12 * float(gradient.abs().max()))
    v = torch.randn(len(gradient), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    product = whole.gauss_newton()(v)
    again = split.gauss_newton()
    for _ in range(2):  # as conjugate gradients do
        torch.testing.assert_close(again(v), product, rtol=0, atol=1e-12 * float(product.abs().max()))
    assert max(sizes) <= size
    assert sum(sizes) >= 3 * 8


@pytest.mark.parametrize(("dtype", "mixed"), [("float16", False), ("bfloat16", False), ("float16", True)])
def test_pieces_in_half_precision_lose_nothing(dtype, mixed):
    """Gradients of pieces are added in float32: many are as accurate as one."""
    exact, net = small_objective(count=64)
    errors = []
    for size in (None, 1):
        low, made = small_objective(dtype=dtype, mixed=mixed, count=64)
        in_pieces(low, size)
        low()
        for p, q in zip(net.parameters(), made.parameters(), strict=True):
            p.data.copy_(q)
        exact()
        errors.append(float((low.gradient().double() - exact.gradient()).norm() / exact.gradient().norm()))
    assert errors[1] < 2 * errors[0]


def losses_of(folder, frame_file, **settings):
    train(Configuration(frame=str(frame_file), **SMALL | settings), folder, quiet=True)
    return [record["loss"] for record in read_log(folder / "log.jsonl") if "loss" in record]


@pytest.mark.parametrize(
    "settings",
    [
        dict(optimizer="adam", epochs=20),
        dict(optimizer="soap", epochs=12),
        dict(optimizer="lbfgs", training_samples=8, epochs=2),
        dict(optimizer="ngd", training_samples=8, epochs=2),
        dict(loss="supervised", training_samples=16, epochs=4),
        dict(loss="supervised-nodal", training_samples=16, epochs=4),
    ],
    ids=lambda settings: settings.get("optimizer") or settings["loss"],
)
def test_steps_in_pieces_are_those_of_whole_batches(tmp_path, frame_file, settings):
    whole = losses_of(tmp_path / "whole", frame_file, **settings)
    pieces = losses_of(tmp_path / "pieces", frame_file, **settings, micro_batch=3)
    assert pieces == pytest.approx(whole, rel=1e-12 if settings.get("optimizer") in (None, "adam") else 1e-9)
    assert pieces != whole  # in another order


def test_runs_in_mixed_precision_take_pieces(tmp_path, frame_file):
    settings = dict(precision="float16", mixed=True, epochs=20)
    whole = losses_of(tmp_path / "whole", frame_file, **settings)
    assert losses_of(tmp_path / "pieces", frame_file, **settings, micro_batch=3) == pytest.approx(whole, rel=0.02)


def test_a_run_may_be_resumed_with_pieces_of_another_size(tmp_path, frame_file):
    """As on another device: the steps are the same up to rounding. A run from before pieces has no such setting."""
    settings = dict(frame=str(frame_file), **SMALL, epochs=8, checkpoint_every=4)
    whole = losses_of(tmp_path / "whole", frame_file, epochs=8)
    out = tmp_path / "run"
    train(Configuration(**settings), out, quiet=True)
    assert "micro_batch" not in (out / SETTINGS).read_text()
    (out / "result.json").unlink()
    (out / "checkpoints/step-000000008.pt").unlink()
    content = torch.load(out / "checkpoints/step-000000004.pt", weights_only=True)
    del content["configuration"]["micro_batch"]
    torch.save(content, out / "checkpoints/step-000000004.pt")
    train(Configuration(**settings, micro_batch=3), out, resume=True, quiet=True)
    losses = [record["loss"] for record in read_log(out / "log.jsonl") if "loss" in record]
    assert losses == pytest.approx(whole, rel=1e-12)
    assert losses[:4] == whole[:4]
    assert losses[4:] != whole[4:]


def test_pieces_have_a_sample_at_least():
    with pytest.raises(ValueError, match="micro_batch is 0; at least 1 is expected"):
        Configuration(problem="quarters", levels=2, micro_batch=0).resolved()
