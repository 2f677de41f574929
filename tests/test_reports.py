"""Reports of experiments: what is on their pages and in their figures."""

import contextlib
import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import call_command, result_of, run_command
from test_experiments import SMALL, small_cells

from fem_frames import Frame, MeshHierarchy, export_frame, make_formulation, make_problem
from fem_frames.problem.loading import recorded_problem
from fem_frames.solvers.spectra import condition_numbers
from training.experiments.beside import beside, draw_beside
from training.experiments.conditions import conditions_of
from training.experiments.earlier_reports import fill_in, read_report
from training.experiments.figures import draw_figures
from training.experiments.initialisation import frame_of_cells, random_functions
from training.experiments.new_samples import evaluate_new_samples
from training.experiments.presets import Row, Table
from training.experiments.protocol import PRESETS
from training.experiments.report import collect, page_text, write_report
from training.experiments.runner import claim
from training.run.trainer import TrainingError, train
from training.surrogate import Surrogate

pytestmark = pytest.mark.serial
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """Some cells of the tables with little effort; the others are not run."""
    out = tmp_path_factory.mktemp("experiments") / "small"
    efforts = {name: dict(epochs=2) for name in ("sgd", "adam", "lbfgs", "ngd")}
    preset = replace(PRESETS["quick"], base=replace(SMALL, rate=None), optimizers=efforts)
    claim(out, "quick")
    names = ("full-adam-nodal-float32", "full-adam-bpx-float32", "full-adam-stable-float32")
    train_cells([cell for cell in preset.cells(out) if cell.name in names])
    return preset, out


def train_cells(cells):
    """As `tables` runs them, but in this process."""
    for cell in cells:
        cell.settings.write_text(cell.resolved.to_toml())
        with contextlib.suppress(TrainingError):
            train(cell.configuration, cell.folder, quiet=True)


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
    write_report(report, tmp_path)
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
    fresh = evaluate_new_samples(preset.cells(out), 7)
    assert len(fresh) == 3
    told = json.loads(call_command("evaluate", out / "full-adam-bpx-float32", "--seed", 7, "--json").stdout)
    assert fresh["full-adam-bpx-float32"]["loss"] == pytest.approx(told["loss"], rel=1e-12)
    rows = [row for table in collect(out, preset, fresh)["tables"] for row in table["rows"]]
    assert sum(row["fresh"] is not None for row in rows) == 4  # one cell is in two tables


def test_a_report_from_before_scalings_is_one_of_normalised_hats(experiment, tmp_path):
    _, out = experiment
    report = collect(out, PRESETS["quick"].scaled("normalised"))
    earlier = {key: value for key, value in report.items() if key != "scaling"}
    earlier["protocol"] = [line for line in report["protocol"] if "hats" not in line]
    (tmp_path / "report.json").write_text(json.dumps(earlier))
    found = read_report(tmp_path / "report.json")
    assert (found["scaling"], found["protocol"]) == ("normalised", report["protocol"])


def test_both_scalings_stand_beside_the_paper(experiment, tmp_path):
    preset, out = experiment
    report, other = collect(out, preset), collect(out, preset.scaled("normalised"))
    with pytest.raises(ValueError, match="has printed hats too: give a report with the other scaling"):
        beside(report, report, "other.json")
    with pytest.raises(ValueError, match=r"other.json is of the preset cpu, this experiment of quick"):
        beside(report, {**other, "preset": "cpu"}, "other.json")
    rows = {row["cell"]: row for table in report["tables"] for row in table["rows"]}
    for table in other["tables"]:
        for row in table["rows"]:
            if row["cell"] == "full-adam-stable-float32":
                row["loss"], row["mre"] = 2.5 * row["paper"]["loss"], 3.5 * row["paper"]["mre"]
    report["beside"] = beside(report, other, "other.json")
    report["figures"] = draw_beside(report, tmp_path)
    write_report(report, tmp_path)
    page = (tmp_path / "report.md").read_text()
    row = rows["full-adam-stable-float32"]
    ours, paper = row["loss"], row["paper"]["loss"]
    assert f"| 1.20e-06 | {ours:.2e}, {ours / paper:.2g} | **3.00e-06, 2.5** |" in page
    assert f"| {3.5 * row['paper']['mre']:.2e}, 3.5 |" in page  # outside of the factor, so not bold
    assert "normalised 1 of 3 cells with values" in page
    missing = sum(row["paper"] is not None and row["loss"] is None for row in rows.values())
    assert f"{missing} cells with printed hats have no value" in page
    assert page.count("beside.png") == 1
    assert (tmp_path / "beside.png").exists()
    assert read_report(tmp_path / "report.json") == json.loads((tmp_path / "report.json").read_text())


def test_cells_without_a_frame_serve_both_scalings(tmp_path):
    """Where they have equally many steps, which those of SGD and Adam have not."""
    normalised = read_report(ROOT / "docs" / "results" / "cpu" / "report.json")
    joined = fill_in(collect(tmp_path, PRESETS["cpu"]), normalised, "normalised.json")
    expected = {f"full-{name}-nodal-float{bits}" for name in ("lbfgs", "ngd") for bits in (32, 64)}
    assert set(joined["added"]) == expected


def test_the_pages_in_docs_say_what_their_json_says(tmp_path):
    for path in (ROOT / "docs" / "results").glob("*/report.json"):
        write_report(json.loads(path.read_text()), tmp_path)
        assert path.with_name("report.md").read_text() == (tmp_path / "report.md").read_text()


def test_a_page_says_where_a_run_diverged_or_had_other_settings(tmp_path):
    claim(tmp_path, "cpu")
    diverging = dict(optimizer="sgd", rate=1e30, loss="bpx")
    cells = small_cells(tmp_path, **{"full-sgd-bpx-float16": diverging, "full-adam-bpx-float32": {}})
    train_cells(cells)
    rows = [Row(("SGD", "bpx", "float16"), cells[0].name, cells[0].configuration)]
    rows += [Row(("Adam", "bpx", "float32"), cells[1].name, replace(cells[1].configuration, epochs=9))]
    table = Table("1", "two", ("optimizer", "loss", "precision"), rows)
    report = collect(tmp_path, replace(PRESETS["cpu"], make=lambda preset: [table]))
    report["figures"] = draw_figures(report, tmp_path)
    assert list(report["figures"]) == ["table-1.png"]
    write_report(report, tmp_path)
    page = (tmp_path / "report.md").read_text()
    failure = json.loads((cells[0].folder / "failure.json").read_text())
    assert f"not finite at step {failure['step'] + 1}" in page
    assert "run with other settings" in page
    assert str(tmp_path) not in json.dumps(report)  # a report may be published
    with pytest.raises(ValueError, match="that failed, so there is no surrogate"):
        Surrogate.load(cells[0].folder)


def test_figures_of_the_best_preset_are_drawn(experiment, tmp_path):
    """From rows with numbers, and from those that have none yet."""
    _, out = experiment
    for known in (True, False):
        report = collect(out, PRESETS["best"])
        for table in report["tables"]:
            for row in table["rows"]:
                report["curves"][row["cell"]] = [[0, 0.0, 1.0], [10, 1.0, 0.1]]
                if known:
                    row |= {"floor": 1e-3, "loss": 0.1, "ratio": 100.0, "excess": 0.099, "status": "done"}
                    row["steps_to_excess"] = {"0.001": None, "0.0001": None, "1e-05": None, "1e-06": None}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            names = [f"table-{name}.png" for name in ("best", "ablation", "levels", "start")]
            assert list(draw_figures(report, tmp_path)) == names


def test_losses_stand_beside_conditions_for_each_decay(experiment, tmp_path):
    _, out = experiment
    report = collect(out, PRESETS["scaling"])
    report["conditions"] = conditions_of(report, out)  # of the runs' frame, here a coarse one
    assert list(report["conditions"]) == ["0", "0.25", "0.5", "0.75", "1", "1.25", "1.5", "2"]
    arrays = frame_of_cells(out)
    exact = make_formulation(Frame.from_arrays(arrays, "float64"), recorded_problem(arrays.record))
    y = torch.as_tensor(exact.problem.parameters.nominal)
    assert report["conditions"]["0"] == pytest.approx(condition_numbers(exact, y).cond_bpx, rel=1e-2)
    assert report["conditions"]["2"] > 10 * report["conditions"]["0"]
    assert f"| {report['conditions']['2']:.3g} | – | `decay-soap-2` |" in page_text(report)
    for row in report["tables"][1]["rows"]:
        report["curves"][row["cell"]] = [[0, 0.0, 1.0], [10, 1.0, 0.1]]
        row |= {"loss": 0.1, "floor": 1e-3, "status": "done"}
    assert list(draw_figures(report, tmp_path)) == ["table-decay.png"]
    assert conditions_of(collect(out), out) is None


def test_the_command_reports_from_runs_from_json_alone_and_from_other_reports(experiment, tmp_path, monkeypatch):
    preset, out = experiment
    monkeypatch.setitem(PRESETS, "quick", preset)
    whole, empty = tmp_path / "whole", tmp_path / "empty"
    call_command("report", out, "--out", whole, "--fresh-seed", 7, "--json")
    names = {p.name for p in whole.iterdir()}
    assert names == {"report.json", "report.md", "table-1.png", "table-2.png", "table-3.png", "initialisation.png"}
    page = (whole / "report.md").read_text()
    (whole / "report.md").unlink()
    run_command("report", whole / "report.json")  # in a process that knows nothing of the small preset
    assert (whole / "report.md").read_text() == page
    # Cells that were run elsewhere come from their report.
    claim(empty, "quick")
    call_command("report", empty, "--add", whole / "report.json", "--json")
    joined = (empty / "report" / "report.md").read_text()
    assert joined.replace(", 3 of them taken from their reports", "") == page != joined
    assert {p.name for p in (empty / "report").iterdir()} == names
    # What is complete in the folder counts more than what a report says of it.
    told = json.loads((whole / "report.json").read_text())
    told["tables"][0]["rows"][5]["loss"] = 1e9
    (tmp_path / "told.json").write_text(json.dumps(told))
    again = ("--out", tmp_path / "again", "--no-figures", "--json", "--add", tmp_path / "told.json")
    call_command("report", out, "--fresh-seed", 7, *again)
    both = [json.loads((folder / "report.json").read_text())["tables"] for folder in (whole, tmp_path / "again")]
    assert both[0] == both[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r | {"preset": "cpu"}, "other.json is of the preset cpu, this experiment of quick"),
        (lambda r: r | {"protocol": ["J = 99", *r["protocol"]]}, r"another protocol \(J = 99\)"),
        (lambda r: _with_row(r, epochs=77), "with epochs 77, here it is 2"),
        (lambda r: _with_row(r, fresh={"seed": 8}), r"seeds \[7, 8\], some of them in other.json"),
    ],
)
def test_reports_that_do_not_fit_together_are_not_joined(experiment, tmp_path, monkeypatch, change, message):
    preset, out = experiment
    monkeypatch.setitem(PRESETS, "quick", preset)
    whole = collect(out, preset, {"full-adam-bpx-float32": {"seed": 7}})
    report = collect(tmp_path, preset)
    with pytest.raises(ValueError, match=message):
        fill_in(report, change(json.loads(json.dumps(whole))), "other.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: [r], "it is no JSON object"),
        (lambda r: {**r, "preset": "mine"}, "does not know its preset, scaling or protocol"),
        (lambda r: {**r, "tables": None}, "cannot be read as a report"),
        (lambda r: {**r, "curves": {}}, "it has no 'full-"),
        (lambda r: {**r, "curves": {**r["curves"], "full-adam-nodal-float32": ["abc"]}}, "cannot be read as a report"),
        (lambda r: {**r, "curves": {**r["curves"], "full-adam-nodal-float32": [[1, 2]]}}, "no triples of step"),
        (lambda r: {k: v for k, v in r.items() if k != "circumstances"}, "it has no 'circumstances'"),
        (lambda r: _with_row(r, loss=float("nan")), "NaN is no number of a report"),
        (lambda r: _with_row(r, mre="abc"), "cannot be read as a report"),
        (lambda r: _without(r, "loss"), "it has no 'loss'"),
        (lambda r: _without(r, "optimizer"), "it has no 'optimizer'"),
    ],
)
def test_a_damaged_report_is_refused_by_name_and_nothing_is_written(experiment, tmp_path, capsys, change, message):
    preset, out = experiment
    from fem_frames.commands import main

    whole = json.loads(json.dumps(collect(out, preset)))
    damaged = tmp_path / "damaged.json"
    damaged.write_text(json.dumps(whole))
    assert read_report(damaged) == whole
    damaged.write_text(json.dumps(change(whole)))
    for arguments in ([damaged], [out, "--add", damaged]):
        with pytest.raises(SystemExit, match="2"):
            main(["report", *map(str, arguments), "--out", str(tmp_path / "out"), "--no-figures"])
        said = capsys.readouterr().err
        assert said.startswith(f"fem-frames: {damaged} cannot be read as a report: ")
        assert message in said
    assert not (tmp_path / "out").exists()


def _without(report, key):
    for row in (row for table in report["tables"] for row in table["rows"]):
        del row[key]
    return report


def _with_row(report, **change):
    """The report, its cell full-adam-nodal-float32 changed."""
    for row in (row for table in report["tables"] for row in table["rows"]):
        if row["cell"] == "full-adam-nodal-float32":
            row |= change
    return report


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
