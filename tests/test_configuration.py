"""Settings: from TOML and the command line, defaults that depend on others, and samples that depend on nothing else."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from fem_frames import Gaussian, Uniform
from nets import NETS
from training.configuration import OWN, Configuration, Resolved
from training.losses import LOSSES
from training.precision import PRECISIONS
from training.recipes import best
from training.registry import OPTIMIZERS
from training.samples import FixedSamples, FreshSamples, SobolSamples
from training.settings import declared

pytestmark = pytest.mark.serial
BASE = dict(problem="quarters", levels=4)


def resolved(**settings):
    return Configuration(**BASE, **settings).resolved()


def test_every_setting_has_a_type_and_a_text():
    names = [f.name for f in dataclasses.fields(Configuration)]
    settings = declared(Configuration)
    assert list(settings) == names
    assert {s.kind for s in settings.values()} == {int, float, bool, str, dict}
    assert all(s.text.endswith(".") for s in settings.values())
    assert [f.name for f in dataclasses.fields(Resolved)] == names


def test_choices_are_what_there_is():
    choices = {name: set(s.choices) for name, s in declared(Configuration).items()}
    assert choices["net"] == {*NETS, "multigrid"}
    assert choices["loss"] == set(LOSSES)
    assert choices["optimizer"] == set(OPTIMIZERS)
    assert choices["precision"] == set(PRECISIONS)


def test_defaults_are_those_of_the_paper():
    c = resolved()
    assert (c.net, c.rank, c.blocks, c.loss, c.optimizer) == ("full", 8, 8, "stable", "adam")
    assert (c.epochs, c.period, c.rate, c.minimum_rate, c.level_decay) == (6000, 5000, 1e-3, 1e-6, 0)
    assert resolved(net="separate-frame").blocks == 4
    assert resolved(precision="float16").minimum_rate == 1e-4
    assert resolved(precision="float16", mixed=True).minimum_rate == 1e-6
    assert resolved(precision="float64").minimum_rate == 1e-10
    assert (resolved(optimizer="soap").rate, resolved(optimizer="lbfgs").rate) == (3e-3, 1.0)


def test_files_are_kept_with_their_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quarters").write_text("not the problem")
    assert resolved().problem == "quarters"
    c = Configuration(problem="mine.py:other", levels=2, start_from="run").resolved()
    assert (c.problem, c.start_from) == (f"{tmp_path}/mine.py:other", f"{tmp_path}/run")
    assert Configuration.checked({"frame": "f.npz"}) == {"frame": f"{tmp_path}/f.npz"}


def test_no_epochs_are_allowed():
    assert resolved(epochs=0).period == 1


def test_samples_follow_the_optimizer_and_the_loss():
    assert (resolved().sampling, resolved().batch, resolved().steps_per_epoch) == ("fresh", 64, 1)
    c = resolved(optimizer="lbfgs")
    assert (c.sampling, c.training_samples, c.batch, c.steps_per_epoch) == ("fixed", 256, 256, 1)
    c = resolved(loss="supervised")
    assert (c.sampling, c.training_samples, c.batch, c.steps_per_epoch) == ("fixed", 1024, 64, 16)
    assert resolved(sampling="fixed", training_samples=100, batch=30).steps_per_epoch == 4


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"optimizer": "ngd"},
        {"options": {"a": [1, 2], "b c": 'x"y'}},
        {"mixed": True, "precision": "float16"},
    ],
)
def test_toml_gives_back_what_was_saved(tmp_path, settings):
    c = resolved(**settings)
    (tmp_path / "c.toml").write_text(c.to_toml())
    again = Configuration(**Configuration.from_toml(tmp_path / "c.toml"))
    assert again.resolved() == c


def test_comments_say_what_the_settings_mean():
    lines = resolved(options={"a": 1}).to_toml().splitlines()
    assert lines[lines.index("rank = 8") - 1] == "# Rank of the residual blocks."
    assert lines[-3:] == ["# Options of the problem.", "[options]", "a = 1"]


def test_a_net_a_loss_and_an_optimizer_of_ones_own_have_no_settings_of_ours():
    c = resolved(net=OWN, loss=OWN, optimizer=OWN, start_level=2, level_decay=1.0)
    assert (c.blocks, c.rate, c.sampling, c.start_level) == (0, 1e-3, "fresh", 2)
    assert OWN not in {name for s in declared(Configuration).values() for name in s.choices}
    assert best({"loss": OWN, "optimizer": OWN})["sampling"] == "sobol"


def test_numbers_of_numpy_become_those_of_python():
    c = resolved(epochs=np.int64(3), rate=np.float32(0.5), mixed=np.False_)
    assert (type(c.epochs), type(c.rate), type(c.mixed)) == (int, float, bool)
    assert type(resolved(rate=1).rate) is float


def test_a_changed_configuration_is_checked_again():
    c = Configuration(**BASE)
    assert dataclasses.replace(c, epochs=3).epochs == 3
    with pytest.raises(ValueError, match="epochs is -3; at least 0 is expected"):
        dataclasses.replace(c, epochs=-3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        c.epochs = 3


def test_the_settings_of_the_first_release_are_read(tmp_path):
    path = Path(__file__).parent / "golden/run/configuration.toml"
    c = Configuration(**Configuration.from_toml(path)).resolved()
    (tmp_path / "c.toml").write_text(c.to_toml())
    later = {"references": "auto"}  # settings that were added since
    assert Configuration.from_toml(tmp_path / "c.toml") == Configuration.from_toml(path) | later


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("level = 3", "unknown setting 'level'; do you mean levels"),
        ("levels = 'three'", "levels is 'three'; a whole number is expected"),
        ("levels = 3.5", "levels is 3.5; a whole number is expected"),
        ("levels = true", "levels is True; a whole number is expected"),
        ("level_decay = 'much'", "level_decay is 'much'; a number is expected"),
        ("level_decay = nan", "level_decay is nan; a number is expected"),
        ("mixed = 1", "mixed is 1; true or false is expected"),
        ("net = 'deep'", "net is 'deep'; choose from full, separate, separate-frame"),
        ("options = 3", "options is 3; a table is expected"),
        ("levels = ", "not a readable TOML file"),
    ],
)
def test_bad_files_are_refused(tmp_path, text, message):
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(ValueError, match=message):
        Configuration.from_toml(tmp_path / "c.toml")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(problem=""), "give problem and levels, or frame"),
        (dict(levels=None), "levels is missing"),
        (dict(frame="f.npz"), "levels is decided by the frame"),
        (dict(epochs=-1), "epochs is -1; at least 0 is expected"),
        (dict(batch=0), "batch is 0; at least 1"),
        (dict(rate=0.0), "rate is 0.0; more than 0 is expected"),
        (dict(seed=-3), "seed is -3"),
        (dict(mixed=True), "mixed goes with float16 or bfloat16, not with float32"),
        (dict(loss="nodal", level_decay=1.0), "the loss nodal has no levels that could decay"),
        (dict(level_decay=99.0), "level_decay is 99.0; at most 10 is expected"),
        (dict(start_level=2), "separate-frame and losses with a frame: leave it out with the net full"),
        (dict(net="separate-frame", start_level=11), "start_level is 11, but levels is 4: start coarser"),
        (dict(net="separate-frame", loss="nodal", start_level=2), "start_level is for the net separate-frame"),
        (dict(net="separate-frame", start_level=-1), "start_level is -1; at least 0 is expected"),
        (dict(loss="supervised", sampling="fresh"), "needs reference solutions"),
        (dict(sampling="sobol", training_samples=10), "leave it out with sampling sobol"),
        (dict(training_samples=10), "give sampling fixed too"),
        (dict(sampling="fixed", training_samples=100, batch=10, steps_per_epoch=3), "leave out steps_per_epoch"),
        (dict(optimizer="adamw"), "optimizer is 'adamw'; choose from adam, sgd, lbfgs, ngd, soap$"),
        (dict(precision=OWN), "precision is 'own'; choose from float16"),
        (dict(epoch=3), r"unknown setting 'epoch'; do you mean epochs\?"),
        (dict(batch=2**31), r"batch is 2147483648; less than 2\^31 is expected"),
        (dict(rate=10**400), "rate is 10+; a number is expected"),
        (dict(rate=True), "rate is True; a number is expected"),
        (dict(options={"a": None}), "options must be numbers, texts and lists of them"),
        (dict(options={"a": float("nan")}), "options must be numbers, texts and lists of them"),
        (dict(options={"a": (1, 2)}), "options must be numbers, texts and lists of them: TOML does not give back"),
        (dict(options={3: 4}), "options.3 is 3; a text is expected"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Configuration(**(BASE | settings)).resolved()


# ---- samples


BOX = Uniform((0.0, -1.0), (1.0, 3.0))


@pytest.mark.parametrize("seed", [0, 3])
def test_training_samples_are_not_those_of_a_test_with_the_same_seed(seed):
    rows = {tuple(row) for row in BOX.sample(512, seed)}
    fresh = FreshSamples(BOX, 64, 1, seed)
    for y in (*(fresh.batch(k)[0] for k in range(70)), FixedSamples(BOX, 512, 64, seed).y):
        assert not rows & {tuple(row) for row in y}


def test_fresh_samples_depend_on_seed_and_step_alone():
    fresh = FreshSamples(BOX, 8, 1, seed=3)
    later = fresh.batch(7)[0]
    np.testing.assert_array_equal(FreshSamples(BOX, 8, 1, seed=3).batch(7)[0], later)
    assert not np.array_equal(fresh.batch(8)[0], later)
    assert not np.array_equal(FreshSamples(BOX, 8, 1, seed=4).batch(7)[0], later)
    assert not BOX.outside(later).any()


def test_a_fixed_set_is_seen_once_in_every_epoch():
    fixed = FixedSamples(BOX, 10, 4, seed=0)
    assert (fixed.steps_per_epoch, fixed.repeats) == (3, False)
    for epoch in range(3):
        rows = np.concatenate([fixed.batch(3 * epoch + k)[1] for k in range(3)])
        assert sorted(rows) == list(range(10))
    np.testing.assert_array_equal(fixed.batch(4)[0], fixed.y[fixed.batch(4)[1]])
    assert not np.array_equal(fixed.batch(0)[1], fixed.batch(3)[1])
    whole = FixedSamples(BOX, 10, 10, seed=0)
    assert whole.repeats
    np.testing.assert_array_equal(whole.batch(5)[0], whole.y)


def test_after_the_last_sobol_point_another_sequence_begins(monkeypatch):
    monkeypatch.setattr(SobolSamples, "LENGTH", 64)
    sobol = SobolSamples(BOX, 16, 1, seed=1)
    batches = [sobol.batch(k)[0] for k in range(9)]
    np.testing.assert_array_equal(sobol.batch(2)[0], batches[2])  # back again
    np.testing.assert_array_equal(SobolSamples(BOX, 16, 1, seed=1).batch(7)[0], batches[7])
    assert len(np.unique(np.concatenate(batches), axis=0)) == 9 * 16
    assert not BOX.outside(np.concatenate(batches)).any()


def test_sobol_points_fill_the_box_evenly_and_can_be_taken_up_anywhere():
    sobol = SobolSamples(BOX, 16, 1, seed=1)
    points = np.concatenate([sobol.batch(k)[0] for k in range(4)])
    np.testing.assert_array_equal(SobolSamples(BOX, 16, 1, seed=1).batch(3)[0], points[48:])
    np.testing.assert_array_equal(sobol.batch(1)[0], points[16:32])  # back again
    unit = (points - BOX.lower) / (np.array(BOX.upper) - BOX.lower)
    cells = np.floor(8 * unit).astype(int) @ [1, 8]
    assert np.bincount(cells, minlength=64).tolist() == [1] * 64  # one point in every square
    normal = SobolSamples(Gaussian(3), 512, 1, seed=0).batch(0)[0]
    assert np.abs(normal.mean(0)).max() < 0.02
    assert np.abs(normal.std(0) - 1).max() < 0.03
