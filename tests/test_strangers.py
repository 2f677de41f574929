"""Files that a stranger made execute nothing, lead nowhere else, and are refused before anything is built from them."""

import io
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from frames import case
from services import Service
from small_runs import skip_without_torchrun
from strangers import TRACE, array_bytes, executed, header, leave_code, members, run_in, with_record, write_members

from fem_frames import (
    Frame,
    FrameArrays,
    ReferenceSolutions,
    RegionMean,
    Sweep,
    make_formulation,
    make_problem,
    run_sweep,
)
from fem_frames.commands import main, parser
from training import Configuration, OutputNet, OutputNetSettings, Surrogate, train
from training.experiments.cells import Cell
from training.experiments.overview import Overview
from training.experiments.runner import run_cells
from training.run.checkpoints import Checkpoints

pytestmark = pytest.mark.serial
REPORTS = Path(__file__).parent.parent / "docs/results"
SMALL = dict(levels=3, rank=2, blocks=1, epochs=4, checkpoint_every=2, test_samples=2)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A stranger's files, all of which name the stranger's code by its absolute path."""
    folder = tmp_path_factory.mktemp("stranger")
    code = str(leave_code(folder / "code"))
    train(Configuration(problem=code, **SMALL), folder / "run", quiet=True)
    assert executed(folder), "the owner's own call does run it"
    shutil.copytree(folder / "run", folder / "begun")
    for name in ("result.json", "surrogate.pt"):
        (folder / "begun" / name).unlink()
    with_record(
        folder / "run/frame.npz", folder / "renamed.npz", lambda h: h["record"]["record"].update(problem="mine.py")
    )
    shutil.copy(folder / "code/mine.py", folder)
    for name in ("meshio.py", "scipy.py", "rich.py", "matplotlib.py"):
        shutil.copy(folder / "code/mine.py", folder / name)
    (folder / "settings.toml").write_text(f"problem = {json.dumps(code)}\nlevels = 2\n")
    experiment = folder / "experiment"
    experiment.mkdir()
    (experiment / "experiment.json").write_text('{"preset": "quick"}')
    shutil.copytree(folder / "run", experiment / "full-adam-stable-float32")
    made = make_formulation(Frame.from_arrays(case("interval")[1], "float64"), case("interval")[0])
    net = OutputNet.train(made, RegionMean(), OutputNetSettings(samples=4, validation=2, steps=1))
    net.record["problem"] = code
    net.save(folder / "sensors.pt")
    report = json.loads((REPORTS / "quick/report.json").read_text())
    report["text"] = report["figures"] = code
    (folder / "report.json").write_text(json.dumps(report | {"figures": {code: code}}))
    return folder


FRAMES = ("run/frame.npz", "renamed.npz")
SAME = ("--rank", "2", "--blocks", "1", "--epochs", "1", "--test-samples", "0")
COMMANDS = [
    ["info"],
    ["problems"],
    *(
        [name, "--frame", frame]
        for name in ("condition", "iterations", "rounding")
        for frame in ("run/frame.npz", "renamed.npz")
    ),
    *(["bench", "--frame", frame, "--seconds", "0", "--batch", "2"] for frame in ("run/frame.npz", "renamed.npz")),
    ["bench", "--training", "--frame", "renamed.npz"],
    ["train", "--frame", "renamed.npz", "--out", "new"],
    ["train", "--frame", "run/frame.npz", "--out", "new"],
    ["train", "settings.toml", "--out", "new"],
    ["train", "run/configuration.toml", "--out", "new"],
    ["train", "--out", "run", "--resume"],
    ["train", "--out", "begun", "--resume"],
    ["train", "--problem", "quarters", "--levels", "3", "--start-from", "run", *SAME, "--out", "new"],
    ["evaluate", "run", "--samples", "2"],
    ["query", "run", "--y", "1,1,1,1"],
    ["outputs", "run", "--y", "1,1,1,1", "--point", "0.5"],
    ["outputs", "sensors.pt", "--y", "1,1,1,1"],
    ["learn-outputs", "run", "--point", "0.5", "--samples", "4", "--steps", "1", "--out", "new.pt"],
    ["query", "run", "--y", "1,1,1,1", "--out", "u.vtu", "--plot", "u.png"],
    ["plot", "run", "--out", "runs.png"],
    ["plot", "run", "--samples", "0", "--out", "curves.png"],
    ["export-net", "run", "--out", "net.pt2"],
    ["tables", "--preset", "quick", "--list", "--out", "experiment"],
    ["compare", "--preset", "quick", "--out", "compared", "--cells", "paper-direct"],
    ["scale", "--preset", "quick", "--out", "scaled", "--cells", "processes-disks-J3-1"],
    ["report", "experiment", "--fresh-seed", "3"],
    ["report", "report.json", "--out", "page"],
    ["report", "experiment", "--add", "report.json", "--no-figures"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=[" ".join(c)[:60] for c in COMMANDS])
def test_no_command_executes_code_that_a_file_names(place, command):
    if "processes" in command[-1]:
        skip_without_torchrun()
    code, told = run_in(place, *command)
    assert not executed(place)
    assert code in (0, 2), told
    assert "Traceback" not in told
    assert code == 0 or "give --problem" in told or "choose code" in told or "not built in" in told, told


def test_every_command_is_among_them():

    named = {module.__name__.rpartition(".")[2].replace("_", "-") for module in parser.COMMANDS}
    assert named - {c[0] for c in COMMANDS} == {"export", "reference", "quadrature", "serve"}, (
        "the first three read no file but the user's own problem; serve, which does not end, is tested below"
    )


def test_the_service_executes_no_code_that_a_file_names(place):
    pytest.importorskip("aiohttp")
    with Service(place / "run", cwd=place) as started:
        assert started.record["parameters"] == 4
        assert started.end() == 0
        assert "Traceback" not in started.log
    assert not executed(place)


def test_a_run_goes_on_with_the_problem_that_its_owner_names(tmp_path):
    code = leave_code(tmp_path / "code")
    c = Configuration(problem=str(code), **SMALL)
    train(c, tmp_path / "run", quiet=True)
    (tmp_path / "run/result.json").unlink()
    executed(tmp_path)
    with pytest.raises(ValueError, match=r"files do not choose code to run: give it again, problem=make_problem\("):
        train(None, tmp_path / "run", resume=True, quiet=True)
    assert not executed(tmp_path)
    (tmp_path / "moved").mkdir()
    moved = shutil.move(code, tmp_path / "moved/other.py")
    assert main(["train", "--out", str(tmp_path / "run"), "--resume", "--problem", str(moved), "--quiet"]) == 0
    (tmp_path / "run/result.json").unlink()
    assert train(None, tmp_path / "run", resume=True, problem=make_problem(str(moved)), quiet=True)["steps"] == 4
    (tmp_path / "run/result.json").unlink()
    moved.write_text(moved.read_text() + "from dataclasses import replace\nproblem = replace(problem, source=2.0)\n")
    with pytest.raises(ValueError, match=r"reference solutions do not fit|is not the one that"):
        train(None, tmp_path / "run", resume=True, problem=make_problem(str(moved)), quiet=True)


def test_cells_of_an_experiment_get_the_problem_passed_on(tmp_path):
    """By whoever starts them: their settings alone name no code."""
    code = leave_code(tmp_path / "code")
    cell = Cell("own", Configuration(problem=str(code), **SMALL), tmp_path)
    outcome = run_cells([cell], 1, Overview([cell], 1, False))
    assert outcome.done == ["own"], outcome
    assert executed(tmp_path / "code")


def test_cells_import_nothing_from_the_folder_they_are_started_in(tmp_path, monkeypatch):
    for name in ("torch.py", "numpy.py", "fem_frames.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / TRACE)!r}, 'w')\nraise SystemExit(7)\n")
    monkeypatch.chdir(tmp_path)
    cell = Cell("own", Configuration(problem="quarters", **SMALL), tmp_path)
    assert run_cells([cell], 1, Overview([cell], 1, False)).done == ["own"]
    assert not executed(tmp_path)


def test_modules_beside_a_problem_replace_no_installed_ones(tmp_path, monkeypatch):
    leave_code(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import meshio, helper\nfrom fem_frames import make_problem\n"
        "assert not hasattr(meshio, 'problem')\nproblem = make_problem('quarters', low=helper.LOW)\n"
    )
    (tmp_path / "helper.py").write_text("LOW = 0.75\n")
    for name in ("meshio", "helper"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert make_problem(str(tmp_path / "mine.py")).parameters.lower[0] == 0.75
    assert not executed(tmp_path)


# ---- links


@pytest.mark.parametrize(
    "name", ["log.jsonl", "surrogate.pt", "result.json", "lock", "checkpoints/best.pt", "test.npz"]
)
@pytest.mark.parametrize("how", ["resume", "force"])
def test_links_in_run_folders_are_refused(tmp_path, frame_file, name, how):
    c = Configuration(frame=str(frame_file), rank=2, blocks=1, epochs=2, test_samples=2)
    train(c, tmp_path / "run", quiet=True)
    (tmp_path / "run/result.json").unlink()
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "run" / name).unlink(missing_ok=True)
    (tmp_path / "run" / name).symlink_to(tmp_path / "precious")
    with pytest.raises(ValueError, match="is a symbolic link, which could lead anywhere"):
        train(c, tmp_path / "run", quiet=True, **{how: True})
    assert (tmp_path / "precious").read_text() == "precious"


def test_links_in_folders_of_experiments_and_sweeps_are_refused(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "e").mkdir()
    (tmp_path / "e/experiment.json").write_text('{"preset": "quick"}')
    (tmp_path / "e/full-adam-stable-float32.log").symlink_to(tmp_path / "precious")
    with pytest.raises(SystemExit):
        main(["tables", "--preset", "quick", "--out", str(tmp_path / "e"), "--cells", "full-adam-stable-float32"])
    (tmp_path / "e/full-adam-stable-float32.log").unlink()
    (tmp_path / "e/report").mkdir()
    (tmp_path / "e/report/report.json").symlink_to(tmp_path / "precious")
    with pytest.raises(SystemExit):
        main(["report", str(tmp_path / "e"), "--no-figures"])
    (tmp_path / "r.npz.parts").mkdir()
    (tmp_path / "r.npz.parts/plan.json").symlink_to(tmp_path / "precious")
    with pytest.raises(ValueError, match="is a symbolic link"):
        run_sweep(Sweep(make_problem("quarters"), 3, 2), tmp_path / "r.npz")
    assert (tmp_path / "precious").read_text() == "precious"


# ---- damage


def test_a_damaged_shard_is_solved_again(tmp_path):
    """However it is damaged: by a header that Python's tokenizer stops at, or a flag that says it is encrypted."""
    sweep, out = Sweep(make_problem("quarters"), 3, 4), tmp_path / "r.npz"
    whole = run_sweep(sweep, tmp_path / "whole.npz")
    parts = tmp_path / "r.npz.parts"
    damages = (
        lambda data: data[:-20],
        lambda data: data.replace(b"{'descr': '<f8'", b"{'descr': ((('8'"),
        lambda data: bytearray(data[:6]) + b"\x01" + data[7:],
    )
    for damage in damages:
        parts.mkdir()
        (parts / "plan.json").write_text(json.dumps(sweep.plan()))
        for i, shard in enumerate(sweep.shards()):
            piece = ReferenceSolutions(whole.y[shard], {"u": whole.u[shard]}, whole.loss[shard], sweep.plan())
            piece.save(parts / f"shard-{i:04d}.npz")
        file = parts / "shard-0001.npz"
        file.write_bytes(damage(file.read_bytes()))
        np.testing.assert_array_equal(run_sweep(sweep, out, force=False).u, whole.u)
        out.unlink()


def test_a_declared_shape_takes_no_memory(tmp_path):
    """Two hundred bytes that promise eight terabytes, and a gigabyte of zeros in a megabyte."""
    import tracemalloc

    path = tmp_path / "f.npz"
    case("interval")[1].save(path)
    parts = members(path)
    write_members(path, {**parts, "points.npy": header((10**12, 1))})
    tracemalloc.start()
    with pytest.raises(ValueError, match="which is not what it holds"):
        FrameArrays.load(path)
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(formulation=["energy"]), "does not hold a frame"),
        (lambda r: r["fields"].append(["u", 0]), "fields, families or the record have other types"),
        (lambda r: (r["fields"].append(["u", 0]), r["elements"].append("P1")), "two fields are called u"),
        (lambda r: r.update(elements=["P7"]), "there is no element 'P7'"),
        (
            lambda r: r.update(elements=["RT0"], fields=[["u", 1]]),
            "u has degree 1 in dimension 1, which does not fit RT0",
        ),
        (
            lambda r: (r["families"].append(r["families"][0]), r["coarse"].append(0)),
            "one of each field is expected",
        ),
        (lambda r: r.update(coarse=[99]), "99 coarse functions among"),
        (lambda r: r.update(coarse=[1]), "is nodal, but its functions are not"),
        (lambda r: r.update(coarse=1), "other types"),
        (lambda r: r.update(length=-1.0), "length is -1.0"),
        (lambda r: r["families"][0].__setitem__(3, [[1, 1]]), "other types"),
        (lambda r: r.update(record=[]), "other types"),
        (lambda r: r.pop("families"), "lacks 'families'"),
    ],
)
def test_records_of_frames_are_checked(tmp_path, change, message):
    case("interval")[1].save(tmp_path / "f.npz")
    crafted = with_record(tmp_path / "f.npz", tmp_path / "g.npz", lambda head: change(head["record"]))
    with pytest.raises(ValueError, match=message):
        FrameArrays.load(crafted)


@pytest.mark.parametrize("name", ["volumes", "centres", "rule_weights", "level1.gradients"])
def test_arrays_of_frames_that_do_not_follow_from_the_mesh_are_refused(tmp_path, name):
    """Bounds would not be bounds with other volumes or weights."""
    case("interval")[1].save(tmp_path / "f.npz")
    parts = members(tmp_path / "f.npz")
    array = np.load(io.BytesIO(parts[f"{name}.npy"]))
    array[0] *= 3
    write_members(tmp_path / "g.npz", {**parts, f"{name}.npy": array_bytes(array)})
    with pytest.raises(ValueError, match=f"{name} does not follow from the points and cells: the file is damaged"):
        FrameArrays.load(tmp_path / "g.npz")


def test_a_frame_that_claims_another_formulation_is_refused(tmp_path):
    """Where it is used: a file alone need not know all formulations."""
    problem, arrays = case("interval")
    arrays.save(tmp_path / "f.npz")
    change = lambda head: head["record"].update(formulation="least-squares")  # noqa: E731
    claimed = FrameArrays.load(with_record(tmp_path / "f.npz", tmp_path / "g.npz", change))
    with pytest.raises(ValueError, match="has the fields u in P1, but least-squares has u in P1, sigma in RT0"):
        make_formulation(Frame.from_arrays(claimed, "float32"), problem)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("family.u.starts1", [0, 2, 1, 3]),
        ("family.u.columns1", [0, 1, 10**6]),
        ("family.u.free1", [0, 1]),
        ("volumes", -np.ones(32)),
        ("rule_weights", np.ones((2, 2))),
    ],
)
def test_tables_of_frames_are_checked(tmp_path, name, values):
    case("interval")[1].save(tmp_path / "f.npz")
    write_members(tmp_path / "g.npz", {**members(tmp_path / "f.npz"), f"{name}.npy": array_bytes(np.array(values))})
    with pytest.raises(ValueError, match=r"g.npz (does not hold a frame|lacks)"):
        FrameArrays.load(tmp_path / "g.npz")


def test_a_checkpoint_of_a_step_beyond_the_last_is_not_the_end(tmp_path, frame_file):
    """The one before it is used, and the run takes the steps that are left."""
    c = Configuration(frame=str(frame_file), rank=2, blocks=1, epochs=4, checkpoint_every=2, test_samples=0)
    train(c, tmp_path / "run", quiet=True)
    (tmp_path / "run/result.json").unlink()
    folder = tmp_path / "run/checkpoints"
    content = torch.load(folder / "step-000000004.pt", weights_only=True)
    torch.save({**content, "step": 10**12}, folder / f"step-{10**12}.pt")
    (folder / "step-000000004.pt").unlink()
    assert train(None, tmp_path / "run", resume=True, quiet=True)["steps"] == 4
    assert Checkpoints(folder).steps()[-1] == 4


def test_a_million_blocks_are_not_built(tmp_path, frame_file):
    c = Configuration(frame=str(frame_file), rank=2, blocks=1, epochs=1, test_samples=0)
    train(c, tmp_path / "run", quiet=True)
    content = torch.load(tmp_path / "run/surrogate.pt", weights_only=True)
    content["net"]["blocks"] = 10**6
    torch.save(content, tmp_path / "run/surrogate.pt")
    with pytest.raises(ValueError, match=r"it describes a net of .* parameters, but has"):
        Surrogate.load(tmp_path / "run")
    with pytest.raises(ValueError, match=r"would need .* of memory"):
        train(Configuration(frame=str(frame_file), blocks=10**8, epochs=1), tmp_path / "new", quiet=True)
    assert not (tmp_path / "new").exists()


def test_report_names_no_files_outside_its_folder(tmp_path):
    report = json.loads((REPORTS / "quick/report.json").read_text())
    report["tables"][0]["name"] = "../../escaped"
    (tmp_path / "report.json").write_text(json.dumps(report))
    with pytest.raises(SystemExit) as end:
        main(["report", str(tmp_path / "report.json"), "--out", str(tmp_path / "page")])
    assert end.value.code == 2
    assert not list(tmp_path.rglob("*escaped*"))
    assert not os.path.exists(tmp_path / "page")
