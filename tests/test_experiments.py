"""Experiments: which cells there are, that they are run once, resumed and reported."""

import contextlib
import json
import os
import shutil
import signal
import threading
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import start_program
from small_runs import call_command, result_of, run_command

from fem_frames import Frame, MeshHierarchy, export_frame, make_problem
from fem_frames.commands import tables as tables_command
from nets import NETS
from training.configuration import Configuration
from training.description import describe_net
from training.experiments.cells import Cell, State
from training.experiments.overview import Overview, duration, expected_seconds
from training.experiments.paper import TABLE_1, TABLE_2, TABLE_3
from training.experiments.presets import WORDS
from training.experiments.protocol import PRESETS
from training.experiments.runner import claim, preset_of, run_cells
from training.losses import LOSSES
from training.optimizers.steppers import LINE_SEARCH
from training.recipes import RECIPES, best
from training.registry import OPTIMIZERS
from training.run.trainer import train

pytestmark = pytest.mark.serial
ROOT = Path(__file__).parent.parent
SMALL = Configuration(problem="quarters", formulation="least-squares", levels=3, test_samples=4, epochs=4, batch=4)


def small_cells(out, **by_name):
    """Cells of a small problem with the settings given for each name."""
    return [Cell(name.replace("_", "-"), replace(SMALL, **settings), out) for name, settings in by_name.items()]


def run_quietly(cells, workers=2):
    return run_cells(cells, workers, Overview(cells, workers, wanted=False))


# ---- the protocol


def test_the_tables_are_those_of_the_paper():
    tables = {t.name: t for t in PRESETS["paper"].tables()}
    assert {name: len(t.rows) for name, t in tables.items()} == {"1": 21, "2": 12, "3": 9}
    for row in tables["1"].rows:
        c = row.configuration
        assert row.paper == (None if c.rate else TABLE_1.get((c.optimizer, c.loss, c.precision)))
    for row in tables["2"].rows:
        assert row.paper == TABLE_2[row.configuration.optimizer, row.configuration.precision]
    for row in tables["3"].rows:
        assert row.paper == TABLE_3[row.configuration.net, row.configuration.precision]
    only_spoken_of = [row.labels for row in tables["1"].rows if row.paper is None]
    spoken_of = [(o, "bpx", "float16") for o in ("SGD", "Adam", "L-BFGS", "NGD")]
    assert only_spoken_of == [*spoken_of, ("SGD, rate 1e-05", "nodal", "float32")]


def test_values_of_the_paper_agree_where_it_prints_them_twice():
    for precision in ("float16", "float32", "float64"):
        assert TABLE_3["full", precision] == TABLE_2["adam", precision]
    for precision in ("float32", "float64"):
        assert TABLE_1["sgd", "bpx", precision] == TABLE_2["sgd", precision]
    # MSE is that of the joint nodal vector, whose squared norm is 98.5 in the mean: where a net has learnt next to
    # nothing, MRE² times that is the MSE. The paper's 0.735 for SGD in float32 cannot be; it reads as 0.935.
    for optimizer in ("sgd", "ngd"):
        value = TABLE_1[optimizer, "nodal", "float64"]
        assert value.mse == pytest.approx(98.5 * value.mre**2, rel=0.02)


def test_the_command_line_knows_the_presets():
    assert tuple(PRESETS) == tables_command.PRESETS


@pytest.mark.parametrize("name", ["quick", "cpu", "paper"])
def test_presets_differ_in_effort_only(name):
    """The protocol is one: presets change epochs, steps of an epoch, J and the size of the test set, nothing else."""
    free = {"epochs", "steps_per_epoch", "levels", "test_samples", "period"}
    free |= {"evaluate_every", "checkpoint_every", "log_every"}
    cells = {c.name: c for c in PRESETS[name].cells(Path("x"))}
    paper = {c.name: c for c in PRESETS["paper"].cells(Path("x"))}
    assert len(cells) == 39
    assert list(cells) == list(paper)
    for key, cell in cells.items():
        ours, theirs = cell.resolved.record(), paper[key].resolved.record()
        assert {k for k in ours if ours[k] != theirs[k]} <= free
        assert cell.resolved.epochs <= 6000


def test_a_table_is_labelled_by_what_its_cells_are():
    for table in PRESETS["cpu"].tables():
        for row in table.rows:
            c = row.configuration
            assert row.cell.removesuffix("-slow") == f"{c.net}-{c.optimizer}-{c.loss}-{c.precision}"
            assert row.labels[-1] == c.precision
            assert row.labels[0].startswith(WORDS[c.net if table.name == "3" else c.optimizer])


def test_the_paper_preset_has_6000_epochs_and_j_10():
    for cell in PRESETS["paper"].cells(Path("x")):
        assert (cell.configuration.levels, cell.configuration.epochs) == (10, 6000)
        assert cell.configuration.test_samples == 1000


def test_the_best_preset_keeps_the_papers_nets():
    for row in PRESETS["best"].tables("best")[0].rows:
        c = row.configuration.resolved()
        assert (c.levels, c.rank, c.blocks, c.test_samples) == (10, 8, NETS[c.net].default_blocks, 1000)


def test_the_scaling_preset_changes_only_what_its_tables_say():
    for table, free in (("steps", {"optimizer", "steps_per_epoch"}), ("decay", {"optimizer", "rate", "level_decay"})):
        records = [row.configuration.resolved().record() for row in PRESETS["scaling"].tables(table)[0].rows]
        assert {key for record in records for key in record if record[key] != records[0][key]} - {"log_every"} == free


def test_unknown_tables_are_refused():
    with pytest.raises(ValueError, match="the preset cpu has no table 7; choose from 1, 2, 3, all"):
        PRESETS["cpu"].tables("7")


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "float32", "float64"])
def test_recipes_are_configurations(precision):
    for recipe in RECIPES.values():
        c = Configuration(problem="quarters", levels=3, **recipe({"precision": precision})).resolved()
        assert (c.precision, c.mixed) == (precision, precision in ("float16", "bfloat16"))


def test_a_recipe_yields_to_what_is_given():
    assert "rate" not in best({"optimizer": "adam"})
    assert "level_decay" not in best({"loss": "nodal"})
    assert best({"level_decay": 1.0, "epochs": 3})["level_decay"] == 1.0
    assert best({"sampling": "fresh"})["sampling"] == "fresh"
    assert best({"rate": 1e-8})["minimum_rate"] == 1e-8
    for given in ({"precision": "float16", "mixed": False}, {"sampling": "fixed", "training_samples": 100}):
        Configuration(problem="quarters", levels=3, **best(given)).resolved()


def test_the_recipe_fits_every_loss_and_optimizer():
    for loss, optimizer in product(LOSSES, OPTIMIZERS):
        c = Configuration(problem="quarters", levels=3, **best({"loss": loss, "optimizer": optimizer})).resolved()
        needs_fixed = LOSSES[loss].supervised or optimizer in LINE_SEARCH
        assert c.sampling == ("fixed" if needs_fixed else "sobol")


# ---- running


LONG = dict(epochs=1000, checkpoint_every=5)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """(folder, outcome) of cells that were run: one diverges, one has no room for its run, one is killed."""
    out = tmp_path_factory.mktemp("cells") / "experiment"
    claim(out, "cpu")
    cells = cells_of(out)
    (out / "blocked").mkdir()
    (out / "blocked/mine.txt").write_text("not of a run")
    killer = threading.Thread(target=lambda: kill_when_at_work(cells[-1]))
    killer.start()
    outcome = run_quietly(cells, workers=3)
    killer.join()
    return out, outcome


def cells_of(out):
    wild = dict(optimizer="sgd", rate=1e30)
    return small_cells(out, good={}, wild=wild, other=dict(precision="float64"), blocked={}, killed=LONG)


def kill_when_at_work(cell):
    wait_for(lambda: cell.state().step > 5)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(cell.folder).encode() in (process / "cmdline").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


def wait_for(condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_cell_that_diverges_fails_or_is_killed_does_not_stop_the_others(ended):
    out, outcome = ended
    cells = cells_of(out)
    assert (outcome.done, outcome.diverged) == (["good", "other"], ["wild"])
    assert [cell.state().status for cell in cells[:3]] == ["done", "diverged", "done"]
    failure = json.loads((cells[1].folder / "failure.json").read_text())
    assert cells[1].records()[-1]["step"] == failure["step"]  # the net was tested when it failed
    assert "is not finite at step" in failure["reason"]
    assert failure["parameters"] == result_of(cells[0].folder)["parameters"]
    assert not (cells[0].folder / "checkpoints").exists()
    assert set(outcome.failed) == {"blocked", "killed"}
    assert "mine.txt, which is not of a run" in outcome.failed["blocked"]
    assert outcome.failed["killed"].startswith("killed by SIGKILL; was there enough memory? (see ")


def test_cells_run_once_and_those_that_failed_are_tried_again(ended, tmp_path):
    out, _ = ended
    shutil.copytree(out, tmp_path / "again")
    good, wild, other, blocked, _ = cells_of(tmp_path / "again")
    (blocked.folder / "mine.txt").unlink()

    def times():
        files = [p for p in (tmp_path / "again").rglob("*") if p.is_file() and p.suffix != ".part"]
        return {p: p.stat().st_mtime_ns for p in files if "blocked" not in str(p)}

    before = times()
    outcome = run_quietly([good, wild, other, blocked])
    assert (outcome.done, outcome.diverged, outcome.failed) == (["good", "other", "blocked"], ["wild"], {})
    assert times() == before


def test_a_finished_run_is_not_begun_again(ended):
    """Its checkpoints are gone: to resume it must not mean to start anew."""
    cell = cells_of(ended[0])[0]
    before = (cell.folder / "log.jsonl").read_bytes(), result_of(cell.folder)
    done = call_command("train", "--out", cell.folder, "--resume", "--json")
    assert json.loads(done.stdout)["loss"] == before[1]["loss"]
    assert ((cell.folder / "log.jsonl").read_bytes(), result_of(cell.folder)) == before


def test_settings_lie_beside_their_cell_and_train_it_again(ended, tmp_path):
    cell = cells_of(ended[0])[0]
    call_command("train", cell.settings, "--out", tmp_path / "again", "--quiet")
    assert result_of(tmp_path / "again")["loss"] == result_of(cell.folder)["loss"]


def test_a_cell_with_other_settings_is_refused_before_anything_runs(ended):
    cells = small_cells(ended[0], new={}, good=dict(epochs=5))
    with pytest.raises(ValueError, match=r"good is another run \(.*epochs 5 instead of 4"):
        run_quietly(cells)
    assert not cells[0].folder.exists()


def test_settings_of_a_run_that_was_removed_are_not_used_again(tmp_path):
    claim(tmp_path, "cpu")
    (cell,) = small_cells(tmp_path, cell={})
    cell.settings.write_text(replace(SMALL, epochs=1, sampling="sobol").resolved().to_toml())
    assert run_quietly([cell]).done == ["cell"]
    assert result_of(cell.folder)["steps"] == SMALL.epochs
    assert Configuration(**Configuration.from_toml(cell.settings)).resolved() == cell.resolved


BOTH = {n: LONG | dict(precision=n) for n in ("float32", "float64")}
PROGRAM = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests")!r})
from pathlib import Path
from test_experiments import BOTH, run_quietly, small_cells
from training.experiments.runner import claim

out = Path(sys.argv[1])
claim(out, "cpu")
run_quietly(small_cells(out, **{{name: BOTH[name] for name in sys.argv[2:]}}))
"""


def stopped(out, number, *names):
    """(cells, what was said): an experiment whose runner gets a signal when all of its runs are at work."""
    cells = small_cells(out, **{name: BOTH[name] for name in names})
    process = start_program(PROGRAM, out, *names)
    wait_for(lambda: all(cell.state().step > 5 for cell in cells))
    process.send_signal(number)
    _, said = process.communicate(timeout=120)
    assert process.returncode != 0
    return cells, said


def test_an_experiment_that_is_interrupted_saves_its_runs_and_goes_on(tmp_path):
    cells, said = stopped(tmp_path / "experiment", signal.SIGINT, "float32", "float64")
    assert "the same command goes on" in said
    assert not any(cell.busy() for cell in cells)
    assert all(cell.state().status == "partial" for cell in cells)
    assert run_quietly(cells).done == ["float32", "float64"]


def test_an_experiment_that_is_killed_leaves_its_runs_and_the_next_one_waits_for_them(tmp_path):
    cells, _ = stopped(tmp_path / "experiment", signal.SIGKILL, "float32")
    assert run_quietly(cells).done == ["float32"]
    fresh = train(cells[0].configuration, tmp_path / "fresh", quiet=True)
    assert result_of(cells[0].folder)["loss"] == fresh["loss"]


def test_a_folder_belongs_to_one_preset(tmp_path):
    claim(tmp_path / "a", "cpu")
    claim(tmp_path / "a", "cpu")
    assert preset_of(tmp_path / "a").name == "cpu"
    with pytest.raises(ValueError, match="holds cells of the preset cpu: choose another --out for quick"):
        claim(tmp_path / "a", "quick")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(ValueError, match="holds no experiment"):
        claim(tmp_path / "mine", "quick")


def test_a_folder_belongs_to_one_scaling(tmp_path):
    assert claim(tmp_path / "new", "cpu").scaling == "printed"
    assert claim(tmp_path / "a", "cpu", "normalised").scaling == "normalised"
    assert claim(tmp_path / "a", "cpu").scaling == preset_of(tmp_path / "a").scaling == "normalised"
    with pytest.raises(ValueError, match="holds cells with normalised hats: choose another --out for printed ones"):
        claim(tmp_path / "a", "cpu", "printed")
    with pytest.raises(ValueError, match="--scaling is for the paper's tables"):
        claim(tmp_path / "b", "best", "printed")
    assert not (tmp_path / "b").exists()
    (tmp_path / "earlier").mkdir()
    (tmp_path / "earlier" / "experiment.json").write_text('{"preset": "cpu"}')
    assert preset_of(tmp_path / "earlier").scaling == "normalised"
    for wrong in ('"large"', "3", "null", "[]"):
        (tmp_path / "earlier" / "experiment.json").write_text(f'{{"preset": "cpu", "scaling": {wrong}}}')
        with pytest.raises(ValueError, match="which this fem-frames does not have"):
            preset_of(tmp_path / "earlier")


def test_scalings_differ_in_the_decay_of_frame_coefficients_and_at_most_in_steps():
    for name in ("quick", "cpu", "paper"):
        printed, normalised = (
            {c.name: c.resolved.record() for c in PRESETS[name].scaled(scaling).cells(Path("x"))}
            for scaling in ("printed", "normalised")
        )
        for cell, ours in printed.items():
            theirs = normalised[cell]
            assert (ours["level_decay"], theirs["level_decay"]) == (0.0 if "-nodal-" in cell else 0.5, 0.0)
            free = {"level_decay", "steps_per_epoch", "period", "evaluate_every", "checkpoint_every", "log_every"}
            assert {k for k in ours if ours[k] != theirs[k]} <= free


@pytest.mark.parametrize(("scaling", "power"), [("printed", 1.0), ("normalised", 0.5)])
def test_hats_of_the_example_are_scaled_as_the_paper_prints_or_says(scaling, power):
    c = PRESETS["quick"].scaled(scaling).configuration("adam", "stable", "float64").resolved()
    problem = make_problem(c.problem)
    arrays = export_frame(MeshHierarchy.from_problem(problem, c.levels), problem, "least-squares")
    net = describe_net(c, problem).build(arrays, torch.device("cpu"), 0)
    heights = (Frame.from_arrays(arrays, "float64").H.to_dense() * net.decay.T).abs().amax(0)
    levels = torch.cat(
        [torch.repeat_interleave(torch.arange(len(s)), torch.tensor(s)) for s in arrays.level_sizes.values()]
    )
    for own in (
        torch.arange(len(levels)) < sum(arrays.level_sizes["u"]),
        torch.arange(len(levels)) >= sum(arrays.level_sizes["u"]),
    ):
        tops = [heights[own & (levels == j)].max() for j in range(2, c.levels)]
        slope = np.polyfit(range(len(tops)), np.log2(tops), 1)[0]
        assert slope == pytest.approx(-power, abs=0.01)


# ---- how long it takes


def test_time_left_is_that_of_the_cells_most_alike(tmp_path):
    fast, slow, new, odd = small_cells(
        tmp_path,
        fast={},
        slow=dict(precision="float64"),
        new=dict(precision="float64", net="separate"),
        odd=dict(levels=4),
    )
    states = {
        "fast": State("partial", 2, 2.0),
        "slow": State("done", 4, 40.0),
        "new": State("new"),
        "odd": State("new"),
    }
    left = expected_seconds([fast, slow, new, odd], states)
    assert left == {"fast": 2.0, "slow": 0.0, "new": 40.0, "odd": pytest.approx(4 * 5.5)}
    assert expected_seconds([new], {"new": State("new")}) == {"new": None}


def test_durations_are_for_people():
    assert [duration(s) for s in (4.4, 89, 600, 12_000)] == ["4 s", "89 s", "10 min", "3 h 20 min"]


# ---- the commands


def test_tables_runs_and_reports_from_the_command_line(tmp_path):
    out = tmp_path / "quick"
    arguments = ("tables", "--preset", "quick", "--table", "2", "--cells", "full-lbfgs-stable-float16", "--out", out)
    done = json.loads(run_command(*arguments, "--json").stdout)
    assert (done["cells"], done["done"], done["failed"]) == (1, 1, [])
    listed = json.loads(call_command(*arguments, "--json", "--list").stdout)["rows"]
    assert [row["status"] for row in listed] == ["done"]
    record = json.loads(call_command("report", out, "--json").stdout)
    assert (record["cells"], record["complete"]) == (39, 1)
    assert (out / "report" / "report.md").exists()
    record = json.loads(call_command("report", out, "--cells", "*-lbfgs-stable-*", "--no-figures", "--json").stdout)
    assert (record["cells"], record["complete"]) == (3, 1)
    page = (out / "report" / "report.md").read_text()
    assert "--preset quick --scaling printed --cells '*-lbfgs-stable-*'`" in page
    assert ("## Table 2" in page, "## Table 1" in page, "- L-BFGS: 40 epochs" in page, "Adam:" in page) == (1, 0, 1, 0)


def test_train_takes_the_recipe_and_what_is_given_wins(tmp_path):
    common = ("--problem", "quarters", "--formulation", "least-squares", "--levels", 3, "--epochs", 2)
    more = ("--test-samples", 4, "--precision", "float16", "--level-decay", 1, "--quiet")
    call_command("train", "--preset", "best", *common, *more, "--out", tmp_path / "run")
    toml = (tmp_path / "run" / "configuration.toml").read_text()
    for line in ('optimizer = "soap"', "mixed = true", "level_decay = 1.0", "epochs = 2"):
        assert line in toml.splitlines()
