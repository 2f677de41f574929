"""The scaling study: its cells, what they measure, and the page that follows from them."""

import json
import re

import numpy as np
import pytest
import torch
from small_runs import call_command, skip_without_torchrun

from fem_frames import make_problem
from fem_frames.studies.levels import cached_frame
from training.scaling.machine_sections import ROOM, growth, largest, predicted_peak
from training.scaling.memory import memory, peak
from training.scaling.model import NODE, Device, message_seconds, step_seconds
from training.scaling.presets import PRESETS, STUDIES
from training.scaling.queries import Blocks
from training.scaling.report import collect, page_text
from training.scaling.sections import change, first_step, of_study, percent
from training.scaling.steps import TrainingStep, Work

pytestmark = pytest.mark.serial


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The quick study without processes and memory, which start programs of their own."""
    out = tmp_path_factory.mktemp("scaling") / "study"
    for name in ("levels", "parameters", "contrast", "training", "work"):
        told = run(out, f"{name}-*")
        assert told["failed"] == []
        assert told["done"] == told["cells"]
    return out


def run(out, cells, *more):
    words = ("scale", "--preset", "quick", "--out", out, "--cells", cells, "--quiet", "--json", *more)
    return json.loads(call_command(*words).stdout)


def cell(study, name):
    return json.loads((study / f"{name}.json").read_text())


def test_presets_have_all_studies_and_names_of_their_own():
    for preset in PRESETS.values():
        assert {cell.study for cell in preset.cells} == set(STUDIES)
        assert len({cell.name for cell in preset.cells}) == len(preset.cells)


def test_complete_cells_are_kept_unless_asked_again(study):
    path = study / "levels-disks-J3.json"
    before = path.stat().st_mtime_ns
    run(study, "levels-disks-J3")
    assert path.stat().st_mtime_ns == before
    run(study, "levels-disks-J3", "--again")
    assert path.stat().st_mtime_ns > before
    listed = call_command("scale", "--preset", "quick", "--out", study, "--list").stdout
    assert re.search(r"done +\d+ +levels-disks-J3\n", listed)
    assert re.search(r"new +- +memory-disks-J3-training", listed)


def test_a_cell_of_another_version_is_not_taken_for_a_result(study, tmp_path):
    run(tmp_path / "s", "levels-disks-J3")
    path = tmp_path / "s/levels-disks-J3.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 0'))
    done = call_command("report", tmp_path / "s", expect=2)
    assert "remove it to run it again" in done.stderr


def test_reports_name_a_damaged_file_and_write_nothing(tmp_path):
    run(tmp_path / "s", "levels-disks-J3")
    path = tmp_path / "s/levels-disks-J3.json"
    good = json.loads(path.read_text())
    for damage in ({"rows": None}, {"machine": {}}, {"seconds": "x"}, {"versions": None}):
        path.write_text(json.dumps({**good, **damage}))
        said = call_command("report", tmp_path / "s", expect=2).stderr
        assert f"{path} is damaged" in said
        assert "remove it, and `fem-frames scale` measures it again" in said
    (tmp_path / "s/scale.json").write_text("")
    assert f"{tmp_path / 's/scale.json'} is damaged" in call_command("report", tmp_path / "s", expect=2).stderr
    assert not (tmp_path / "s/report").exists()


def test_folders_of_others_are_refused(study, tmp_path):
    words = ("--out", study, "--cells", "levels-disks-J4")
    assert "holds the preset quick" in call_command("scale", "--preset", "full", *words, expect=2).stderr
    (tmp_path / "mine.txt").write_text("mine")
    done = call_command("scale", "--preset", "quick", "--out", tmp_path, expect=2)
    assert "holds other files" in done.stderr
    done = call_command("scale", "--preset", "quick", "--out", tmp_path / "new", "--cells", "nothing-*", expect=2)
    assert "none has such a name" in done.stderr
    assert not (tmp_path / "new").exists()


def test_steps_of_multigrid_reduce_the_error_on_every_mesh_and_for_every_contrast(study):
    for name in ("levels-disks-J3", "levels-disks-J4", "contrast-disks-100", "contrast-blocks-100"):
        rows = {row["method"]: row["error"] for row in cell(study, name)["rows"]}
        assert rows["multigrid (2, 2)"] > 2 * rows["multigrid (2, 2) + 1"] > 4 * rows["multigrid (2, 2) + 2"] > 0


def test_bounds_hold_and_the_frame_feels_the_contrast(study):
    for problem in ("disks", "blocks"):
        low, high = (cell(study, f"contrast-{problem}-{value}")["facts"] for value in (1, 100))
        assert high["bound"]["least"] >= 1
        assert high["iterations"]["frame"]["mean"] > 1.5 * low["iterations"]["frame"]["mean"]
        assert high["iterations"]["multigrid"]["mean"] < 2 * low["iterations"]["multigrid"]["mean"]


def test_blocks_have_the_contrast_that_they_are_named_after():
    problem = Blocks("", "", "checkerboard", 3, contrast=1000.0).make()
    points = np.array([[[0.1, 0.1]], [[0.9, 0.6]]])  # (K, Q, d)
    tables = problem.coefficient.tabulate(points, np.zeros(2, np.int64))
    y = np.zeros((2, 16))
    y[0, 0] = 1.0  # the first block, in which the first point lies
    y[1, 11] = 0.5
    expected = [[[1000.0], [1.0]], [[1.0], [1000.0**0.5]]]
    np.testing.assert_allclose(problem.coefficient.evaluate(tables, y), expected, rtol=1e-12)


def test_training_reaches_smaller_excesses_later(study):
    found = cell(study, "training-checkerboard-J3")
    assert found["curve"][0][1] > 5 * found["facts"]["excess"] > 0
    excess = dict(found["curve"])
    steps = [first_step(found, limit) for limit in (0.5, 0.2)]
    assert 0 < steps[0] < steps[1]
    assert excess[steps[1]] <= 0.2 < excess[steps[1] - 1]
    assert first_step(found, 0.0) is None


# ---- the page


def test_the_page_has_the_numbers_of_the_cells(study, tmp_path):
    told = json.loads(call_command("report", study, "--out", tmp_path / "page", "--json").stdout)
    page = (tmp_path / "page/scaling.md").read_text()
    for name in told["figures"]:
        assert (tmp_path / "page" / name).read_bytes().startswith(b"\x89PNG")
        assert f"({name})" in page
    assert {"levels.png", "parameters.png", "contrast.png", "training.png", "work.png"} == set(told["figures"])
    assert "`memory-disks-J3-training`" in page  # not run
    assert "Nothing in it was measured on a GPU" in page
    rows = {row["method"]: row for row in cell(study, "parameters-waves-4")["rows"]}
    assert f"| {percent(rows['multigrid (2, 2)']['error'])} |" in page
    assert max(len(line) for line in page.splitlines() if line[:1] not in "|#!") <= 120
    known = json.loads((tmp_path / "page/scaling.json").read_text())["cells"]
    assert known["levels-disks-J3"] == cell(study, "levels-disks-J3")
    assert known["memory-disks-J3-training"] is None


def test_the_page_says_how_many_cells_were_disturbed(study):
    report = collect(study)
    records = [record for record in report["cells"].values() if record is not None]
    for record in records:
        assert record["cpu_seconds"] >= 0
        record |= {"seconds": 10.0, "cpu_seconds": 9.0}
    assert "times may be too long" not in page_text(report)
    records[0]["cpu_seconds"], records[1]["cpu_seconds"] = 7.0, 6.0
    assert f"- 2 of {len(records)} cells with times had less than 80 % of a processor" in page_text(report)


def test_options_of_tables_are_refused_for_a_scaling_study(study):
    assert "are for folders of `tables`" in call_command("report", study, "--fresh-seed", 1, expect=2).stderr


def test_words_follow_from_numbers():
    assert change(1.0, 1.2) == "hardly changes (1 to 1.2)"
    assert change(2.0, 1.0, "ms") == "falls by a factor of 2 (2 to 1 ms)"
    assert change(0.001, 0.01, form=percent) == "grows by a factor of 10 (0.1 % to 1 %)"


# ---- the work of a step, and the model


def test_the_work_of_products_is_counted():
    a, b = torch.ones(3, 4), torch.ones(4, 5)
    with Work() as counted:
        (a @ b).T.reshape(15)
    copied = 15 * 4 * 2  # the transpose is not contiguous, so that its entries are copied
    assert counted.bytes == 4 * (12 + 20 + 15) + copied
    assert counted.flops == 2 * 3 * 4 * 5 + 15
    assert counted.calls == 2


def test_a_step_of_twice_the_samples_has_twice_the_work_for_samples(study):
    """The net's products of matrices take 6 operations per weight and sample, D and its transpose somewhat more."""
    found = cell(study, "work-disks-J4")
    weights = found["facts"]["weights"]
    assert 5.5 * weights < found["per_sample"]["flops"] < 8 * weights
    problem = make_problem("disks")
    assert TrainingStep(cached_frame(problem, 4, "energy"), problem, 4).net.parameter_count() == weights
    assert found["message"] == 4 * (weights + 2)


DEVICE = Device("", flops=100.0, bytes=10.0, call=0.5, link=8.0, network=4.0, latency=0.1, far_latency=0.2, share=0.5)


def test_the_model_sums_its_parts():
    work = {
        "per_sample": {"flops": 10.0, "bytes": 1.0},
        "per_step": {"flops": 50.0, "bytes": 5.0},
        "calls": 3,
        "message": 16,
    }
    alone = step_seconds(work, DEVICE, 1, 8)
    assert alone == {"operations": 130 / 50, "traffic": 13 / 5, "calls": 1.5, "message": 0.0, "all": 2.6 + 2.6 + 1.5}
    four = step_seconds(work, DEVICE, 4, 8)
    assert four["operations"] == pytest.approx(70 / 50)
    assert four["message"] == pytest.approx(6 * (4 / 8.0 + 0.1))


def test_a_message_between_nodes_uses_the_network():
    n = 2 * NODE
    assert message_seconds(n * 4.0, DEVICE, n) == pytest.approx(2 * (n - 1) * (1.0 + 0.2))


# ---- processes and memory


def test_two_processes_take_the_steps_of_one(tmp_path):
    skip_without_torchrun()
    run(tmp_path / "s", "processes-*")
    found = cell(tmp_path / "s", "processes-disks-J3-2")
    assert 0 < found["step_ms"] <= found["median_ms"]
    record = json.loads((tmp_path / "s/runs/processes-disks-J3-2/result.json").read_text())
    assert record["processes"] == 2
    call_command("report", tmp_path / "s", "--no-figures")
    assert "## Processes" in (tmp_path / "s/report/scaling.md").read_text()


def test_peaks_of_memory_are_those_of_a_process_of_its_own(tmp_path):
    ballast = np.ones(2**26)  # 512 MB, which a program that this process starts does not have
    assert peak() > ballast.nbytes
    run(tmp_path / "s", "memory-disks-J3-*")
    found = {task: cell(tmp_path / "s", f"memory-disks-J3-{task}") for task in ("training", "query")}
    for record in found.values():
        assert 1e8 < record["loaded"] <= record["peak"] < ballast.nbytes + 1e8
    assert found["training"]["weights"] > 0 == found["query"]["weights"]


def test_meshes_that_may_need_more_memory_than_there_is_are_not_tried(tmp_path):
    (tmp_path / "memory-disks-J3-query.json").write_text(json.dumps({"peak": 1e15}))
    settings = {"problem": "disks", "levels": 4, "task": "query"}
    found = memory(settings, tmp_path, "memory-disks-J4-query")
    assert list(found) == ["refused"]
    assert "it may need up to 4.8 PB" in found["refused"]
    assert not (tmp_path / "frames").exists()


def test_the_largest_mesh_follows_from_the_growth_of_the_peaks():
    """Peaks of 1 GiB and 1 kB per unknown, on meshes with 4^J unknowns."""
    records = [
        {
            "study": "memory",
            "settings": {"problem": "disks", "task": "training", "levels": J},
            "unknowns": 4**J,
            "peak": 2**30 + 1000 * 4**J,
        }
        for J in (9, 10)
    ]
    fine, each = growth(of_study(records, "memory"), "disks", "training")
    assert each == pytest.approx(1000)
    J = largest(fine, each, "disks")
    assert predicted_peak(fine, each, "disks", J - 10) == pytest.approx(2**30 + 1000 * 4**J)
    assert 2**30 + 1000 * 4**J <= ROOM < 2**30 + 1000 * 4 ** (J + 1)
