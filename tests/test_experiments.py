"""Experiments: which cells there are, that they are run once, resumed and reported."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_runs import result_of, run_command

from fem_frames import MeshHierarchy, export_frame, make_problem
from nets import NETS
from training.configuration import Configuration
from training.experiments.cells import Cell, State
from training.experiments.comparison import write_comparison
from training.experiments.fresh import evaluate_fresh
from training.experiments.initialisation import random_functions
from training.experiments.overview import Overview, duration, expected_seconds
from training.experiments.paper import TABLE_1, TABLE_2, TABLE_3
from training.experiments.protocol import PRESETS
from training.experiments.report import collect, write_page
from training.experiments.runner import claim, preset_of, run_cells
from training.recipes import RECIPES

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
    printed = {name: [row.paper for row in t.rows if row.paper is not None] for name, t in tables.items()}
    for name, values in (("1", TABLE_1), ("2", TABLE_2), ("3", TABLE_3)):
        assert sorted(printed[name]) == sorted(values.values())
    only_spoken_of = [row.labels for row in tables["1"].rows if row.paper is None]
    spoken_of = [(o, "bpx", "float16") for o in ("SGD", "Adam", "L-BFGS", "NGD")]
    assert only_spoken_of == [*spoken_of, ("SGD, rate 1e-05", "nodal", "float32")]


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


def test_the_paper_preset_has_6000_epochs_and_j_10():
    for cell in PRESETS["paper"].cells(Path("x")):
        assert (cell.configuration.levels, cell.configuration.epochs) == (10, 6000)
        assert cell.configuration.test_samples == 1000


def test_the_best_preset_keeps_the_papers_nets():
    for row in PRESETS["best"].tables("best")[0].rows:
        c = row.configuration.resolved()
        assert (c.levels, c.rank, c.blocks, c.test_samples) == (10, 8, NETS[c.net].default_blocks, 1000)


def test_unknown_tables_are_refused():
    with pytest.raises(ValueError, match="the preset cpu has no table 7; choose from 1, 2, 3, all"):
        PRESETS["cpu"].tables("7")


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "float32", "float64"])
def test_recipes_are_configurations(precision):
    for recipe in RECIPES.values():
        c = Configuration(problem="quarters", levels=3, **recipe(precision)).resolved()
        assert (c.precision, c.mixed) == (precision, precision in ("float16", "bfloat16"))


# ---- running


def test_cells_run_once_and_one_that_diverges_does_not_stop_the_others(tmp_path):
    claim(tmp_path, "cpu")
    cells = small_cells(tmp_path, good={}, wild=dict(optimizer="sgd", rate=1e30), other=dict(precision="float64"))
    outcome = run_quietly(cells)
    assert (outcome.done, outcome.diverged, outcome.failed) == (["good", "other"], ["wild"], {})
    assert [cell.state().status for cell in cells] == ["done", "diverged", "done"]
    failure = json.loads((cells[1].folder / "failure.json").read_text())
    assert "is not finite at step" in failure["reason"]
    assert failure["parameters"] == result_of(cells[0].folder)["parameters"]
    assert not (cells[0].folder / "checkpoints").exists()
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    assert run_quietly(cells) == outcome
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".part"} == before


def test_a_cell_that_fails_is_named_and_tried_again(tmp_path):
    claim(tmp_path, "cpu")
    blocked, good = small_cells(tmp_path, blocked={}, good={})
    blocked.folder.mkdir()
    (blocked.folder / "mine.txt").write_text("not of a run")
    outcome = run_quietly([blocked, good])
    assert outcome.done == ["good"]
    assert "mine.txt, which is not of a run" in outcome.failed["blocked"]
    (blocked.folder / "mine.txt").unlink()
    assert run_quietly([blocked, good]).done == ["blocked", "good"]


def test_settings_lie_beside_their_cell_and_train_it_again(tmp_path):
    claim(tmp_path, "cpu")
    (cell,) = small_cells(tmp_path, good={})
    run_quietly([cell])
    run_command("train", cell.settings, "--out", tmp_path / "again", "--quiet")
    assert result_of(tmp_path / "again")["loss"] == result_of(cell.folder)["loss"]


def test_a_cell_with_other_settings_is_refused_before_anything_runs(tmp_path):
    claim(tmp_path, "cpu")
    run_quietly(small_cells(tmp_path, good={}))
    cells = small_cells(tmp_path, new={}, good=dict(epochs=5))
    with pytest.raises(ValueError, match=r"good is another run \(.*epochs 5 instead of 4"):
        run_quietly(cells)
    assert not cells[0].folder.exists()


LONG = {n: dict(epochs=1500, checkpoint_every=5, precision=n) for n in ("float32", "float64")}
PROGRAM = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests")!r})
from pathlib import Path
from test_experiments import LONG, run_quietly, small_cells
from training.experiments.runner import claim

out = Path(sys.argv[1])
claim(out, "cpu")
run_quietly(small_cells(out, **LONG))
"""


def wait_for(condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_an_experiment_that_is_stopped_goes_on(tmp_path, how):
    """Ctrl-C and SIGTERM let the runs save; a runner that is killed leaves them, and the next one waits for them."""
    out = tmp_path / "experiment"
    cells = small_cells(out, **LONG)
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(out)], stderr=subprocess.PIPE, text=True)
    wait_for(lambda: all(cell.state().step > 5 for cell in cells))
    process.send_signal(getattr(signal, how))
    _, said = process.communicate(timeout=120)
    assert process.returncode != 0
    if how != "SIGKILL":
        assert "the same command goes on" in said
        assert not any(cell.busy() for cell in cells)
        assert all(cell.state().status == "partial" for cell in cells)
    assert run_quietly(cells).done == ["float32", "float64"]
    fresh = small_cells(tmp_path / "fresh", float32=LONG["float32"])
    claim(tmp_path / "fresh", "cpu")
    run_quietly(fresh)
    assert result_of(cells[0].folder)["loss"] == result_of(fresh[0].folder)["loss"]


def test_a_folder_belongs_to_one_preset(tmp_path):
    claim(tmp_path / "a", "cpu")
    claim(tmp_path / "a", "cpu")
    assert preset_of(tmp_path / "a") == "cpu"
    with pytest.raises(ValueError, match="holds cells of the preset cpu: choose another --out for quick"):
        claim(tmp_path / "a", "quick")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(ValueError, match="holds no experiment"):
        claim(tmp_path / "mine", "quick")


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


# ---- the report


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """Some cells of the tables with little effort; the others are not run."""
    out = tmp_path_factory.mktemp("experiments") / "small"
    efforts = {name: dict(epochs=2) for name in ("sgd", "adam", "lbfgs", "ngd")}
    preset = replace(PRESETS["quick"], base=replace(SMALL, rate=None), optimizers=efforts)
    claim(out, "quick")
    names = ("full-adam-nodal-float32", "full-adam-bpx-float32", "full-adam-stable-float32")
    run_quietly([cell for cell in preset.cells(out) if cell.name in names])
    return preset, out


def test_a_report_says_what_is_there_and_what_is_missing(experiment):
    preset, out = experiment
    report = collect(out, preset)
    rows = {row["cell"]: row for table in report["tables"] for row in table["rows"]}
    assert len(rows) == 39
    assert sorted(c for c, row in rows.items() if row["status"] == "done") == sorted(
        f"full-adam-{loss}-float32" for loss in ("bpx", "nodal", "stable")
    )
    for cell, row in rows.items():
        if row["status"] == "done":
            result = result_of(out / cell)
            assert (row["loss"], row["mre"], row["seconds"]) == (
                result["loss"],
                result["test"]["mre"],
                result["seconds"],
            )
            assert report["curves"][cell][-1][2] == pytest.approx(result["loss"], rel=1e-4)
            assert report["curves"][cell][0][0] == 0


def test_the_page_has_our_values_beside_those_of_the_paper(experiment, tmp_path):
    preset, out = experiment
    report = collect(out, preset) | {"figures": {"table-2.png": "a picture"}}
    write_page(report, tmp_path)
    page = (tmp_path / "report.md").read_text()
    loss = result_of(out / "full-adam-stable-float32")["loss"]
    line = next(x for x in page.splitlines() if "full-adam-stable-float32" in x)
    assert f"| {loss:.2e} | 1.20e-06 |" in line
    assert line.startswith("| Adam | stable | float32 | 2 |")
    assert sum("not run" in x for x in page.splitlines()) == 42 - 4
    ratio = result_of(out / "full-adam-nodal-float32")["loss"] / result_of(out / "full-adam-bpx-float32")["loss"]
    assert f"| Adam | float32 | {ratio:.3g} | 1.5e+04 |" in page
    assert "![a picture](table-2.png)" in page


def test_nets_are_evaluated_on_new_samples_as_the_command_does_it(experiment):
    preset, out = experiment
    fresh = evaluate_fresh(preset.cells(out), 7)
    assert len(fresh) == 3
    told = json.loads(run_command("evaluate", out / "full-adam-bpx-float32", "--seed", 7, "--json").stdout)
    assert fresh["full-adam-bpx-float32"]["loss"] == pytest.approx(told["loss"], rel=1e-12)
    rows = [row for table in collect(out, preset, fresh)["tables"] for row in table["rows"]]
    assert sum(row["fresh"] is not None for row in rows) == 4  # one cell is in two tables


def test_the_pages_in_docs_say_what_their_json_says(tmp_path):
    for path in (ROOT / "docs" / "results").glob("*/report.json"):
        write_page(json.loads(path.read_text()), tmp_path)
        assert path.with_name("report.md").read_text() == (tmp_path / "report.md").read_text()
    for path in (ROOT / "docs" / "results").glob("*/comparison.json"):
        (tmp_path / "comparison.png").touch()
        write_comparison(json.loads(path.read_text()), tmp_path)
        assert path.with_name("comparison.md").read_text() == (tmp_path / "comparison.md").read_text()


def test_the_command_reports_with_figures_and_from_json_alone(experiment, tmp_path, monkeypatch):
    preset, out = experiment
    monkeypatch.setitem(PRESETS, "quick", preset)
    from fem_frames.commands import main

    assert main(["report", str(out), "--out", str(tmp_path / "a"), "--json"]) == 0
    names = {p.name for p in (tmp_path / "a").iterdir()}
    assert names == {"report.json", "report.md", "table-1.png", "table-2.png", "table-3.png", "initialisation.png"}
    page = (tmp_path / "a" / "report.md").read_text()
    (tmp_path / "a" / "report.md").unlink()
    run_command("report", tmp_path / "a" / "report.json")  # in a process that knows nothing of the small preset
    assert (tmp_path / "a" / "report.md").read_text() == page


# ---- the commands


def test_tables_runs_and_reports_from_the_command_line(tmp_path):
    out = tmp_path / "quick"
    arguments = ("tables", "--preset", "quick", "--table", "2", "--cells", "full-adam-stable-float32", "--out", out)
    done = json.loads(run_command(*arguments, "--json").stdout)
    assert (done["cells"], done["done"], done["failed"]) == (1, 1, [])
    listed = json.loads(run_command(*arguments, "--json", "--list").stdout)["rows"]
    assert [(row["status"], row["step"] == row["steps"]) for row in listed] == [("done", True)]
    record = json.loads(run_command("report", out, "--json").stdout)
    assert (record["cells"], record["complete"]) == (39, 1)
    assert (out / "report" / "report.md").exists()


def test_train_takes_the_recipe_and_what_is_given_wins(tmp_path):
    common = ("--problem", "quarters", "--formulation", "least-squares", "--levels", 3, "--epochs", 2)
    more = ("--test-samples", 4, "--precision", "float16", "--level-decay", 1, "--quiet")
    run_command("train", "--preset", "best", *common, *more, "--out", tmp_path / "run")
    toml = (tmp_path / "run" / "configuration.toml").read_text()
    for line in ('optimizer = "soap"', "mixed = true", "level_decay = 1.0", "epochs = 2"):
        assert line in toml.splitlines()


BAD = {
    "no such preset": (["tables", "--preset", "fast", "--out", "x"], "invalid choice: 'fast'"),
    "no such table": (
        ["tables", "--preset", "cpu", "--table", "best", "--out", "x"],
        "has no table best; choose from 1",
    ),
    "no workers": (["tables", "--preset", "cpu", "--workers", "0", "--out", "x"], "--workers is 0: at least one"),
    "no such cell": (["tables", "--preset", "cpu", "--cells", "adam", "--out", "x"], "there is none like that; --list"),
    "a file": (["tables", "--preset", "cpu", "--out", "file"], "file is a file: give a folder"),
    "someone's folder": (["tables", "--preset", "cpu", "--out", "."], "holds no experiment of `fem-frames tables`"),
    "report of nothing": (["report", "x"], "there is no folder x: give the one that was --out"),
    "report of a folder": (["report", "."], "holds no experiment of `fem-frames tables`"),
    "report of a file": (["report", "file"], "file cannot be read as a report"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case, tmp_path):
    arguments, message = BAD[case]
    (tmp_path / "file").write_text("mine")
    done = run_command(*arguments, check=False, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


def test_random_nets_over_a_frame_are_smoother_than_in_the_nodal_basis():
    """Random nodal values are white noise; those of the frame are like paths of a Brownian motion."""
    problem = make_problem("quarters")
    arrays = export_frame(MeshHierarchy.from_problem(problem, 6), problem, "least-squares")
    found = random_functions(arrays, replace(SMALL, levels=6), 20)
    assert found["with frame"]["u"].shape == (20, 65)
    order = arrays.points[:, 0].argsort()
    ratio = {}
    for basis, fields in found.items():
        sigma = fields["sigma"][:, order]
        ratio[basis] = abs(np.diff(sigma)).mean() / sigma.std()
    assert ratio["with frame"] < ratio["without frame"] / 3
