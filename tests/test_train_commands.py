"""What training tells its users. Bad input: one line that names the remedy, exit code 2, nothing overwritten."""

import json
import re

import numpy as np
import pytest

from fem_frames.commands import main
from training import Configuration, train

pytestmark = pytest.mark.serial
SMALL = ["--problem", "quarters", "--formulation", "least-squares", "--levels", "3", "--epochs", "2", "--rank", "2"]
TRAIN = ["train", *SMALL, "--test-samples", "4", "--quiet"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a small run, a settings file with a slip, and things that are no runs."""
    made = tmp_path_factory.mktemp("commands")
    assert main([*TRAIN, "--out", str(made / "run")]) == 0
    assert main([*TRAIN, "--out", str(made / "energy"), "--formulation", "energy"]) == 0
    (made / "slip.toml").write_text('problem = "quarters"\nlevel = 3\n')
    (made / "broken.toml").write_text("problem = \n")
    (made / "empty").mkdir()
    (made / "notes").mkdir()
    (made / "notes/thesis.tex").write_text("x")
    (made / "file").write_text("x")
    (made / "net.pt2").write_text("precious")
    np.save(made / "frame.npy", np.zeros(3))
    (made / "mine.py").write_text("problem = 3\n")
    return made


CASES = [
    ([*TRAIN, "--out", "run"], "run holds a run: --resume continues it, --force replaces it"),
    ([*TRAIN, "--out", "notes"], "notes holds thesis.tex, which is not of a run"),
    ([*TRAIN, "--out", "notes", "--force"], "notes holds thesis.tex, which is not of a run"),
    ([*TRAIN, "--out", "file"], "file is a file: give a folder"),
    ([*TRAIN, "--out", "file/run"], "Not a directory"),
    ([*TRAIN, "--out", "run", "--resume", "--force"], "give one of them"),
    (["train", "--out", "empty", "--resume"], "empty holds no run that could be resumed"),
    (["train", "--out", "run", "--resume", "--epochs", "5"], "epochs 5 instead of 2"),
    (["train", "--out", "x"], "give problem and levels, or frame"),
    (["train", "--problem", "quarters", "--out", "x"], "levels is missing"),
    (["train", "--problem", "quarter", "--levels", "3", "--out", "x"], "there is no problem 'quarter'"),
    (["train", "--problem", "mine.py", "--levels", "3", "--out", "x"], "is neither a Problem nor a function"),
    (["train", "--problem", "quarters", "--set", "blocks", "--levels", "3", "--out", "x"], "not of the form"),
    (
        ["train", "--problem", "cube", "--formulation", "mixed", "--levels", "3", "--out", "x"],
        "invalid choice: 'mixed'",
    ),
    (["train", "slip.toml", "--out", "x"], "unknown setting 'level'; do you mean levels?"),
    (["train", "broken.toml", "--out", "x"], "broken.toml is no TOML file"),
    (["train", "absent.toml", "--out", "x"], "there is no file absent.toml"),
    (["train", "--frame", "frame.npy", "--out", "x"], "frame.npy"),
    (["train", "--frame", "run/frame.npz", "--levels", "3", "--out", "x"], "levels is decided by the frame"),
    ([*TRAIN, "--out", "x", "--optimizer", "adamw"], "invalid choice: 'adamw'"),
    ([*TRAIN, "--out", "x", "--epochs", "many"], "invalid int value: 'many'"),
    ([*TRAIN, "--out", "x", "--epochs", "-1"], "epochs is -1"),
    ([*TRAIN, "--out", "x", "--batch", "0"], "batch is 0"),
    ([*TRAIN, "--out", "x", "--rate", "nan"], "rate is nan"),
    ([*TRAIN, "--out", "x", "--device", "tpu"], "device 'tpu' cannot be used"),
    ([*TRAIN, "--out", "x", "--mixed"], "mixed goes with float16 or bfloat16"),
    ([*TRAIN, "--out", "x", "--loss", "nodal", "--level-decay", "1"], "no levels that could decay"),
    ([*TRAIN, "--out", "x", "--learning-rate", "1"], "unknown argument --learning-rate"),
    ([*TRAIN, "--out", "x", "--start-from", "empty"], "empty holds no surrogate"),
    ([*TRAIN], "the following arguments are required: --out"),
    (["evaluate", "empty"], "empty holds no surrogate"),
    (["evaluate", "run", "--samples", "0"], "give at least one sample"),
    (["evaluate", "run", "--problem", "checkerboard"], "does not fit the frame"),
    (["evaluate", "run", "--set", "blocks=2"], "--set goes with --problem"),
    (["query", "run", "--y", "1,0.8"], "has p = 4 parameters"),
    (["query", "run", "--y", "1,0.8,x,1"], "numbers with commas"),
    (["query", "run", "--y", "1,0.8,7,1"], "outside the parameters"),
    (["query", "run", "--y", "1,1,1,1", "--tol", "1e-9"], "the mesh allows no smaller one"),
    (["query", "run", "--y", "1,1,1,1", "--tol", "-1"], "a positive bound"),
    (["query", "run", "--y", "1,1,1,1", "--norm", "L2"], "invalid choice: 'L2'"),
    (
        ["query", "run", "--y", "1,1,1,1", "--tol", "1e-3", "--max-iterations", "0"],
        "--max-iterations 0: give at least one",
    ),
    (["query", "run", "--y", "1,1,1,1", "--tol", "1e-9", "--max-iterations", "1"], "raise --max-iterations"),
    (["query", "energy", "--y", "1,1,1,1", "--norm", "functional"], "of the formulation energy has error bounds in"),
    (["evaluate", "energy", "--norm", "functional"], "--norm functional: a surrogate of the formulation energy"),
    (["query", "run", "--y", "1,1,1,1", "--out", "u.csv"], "must end in .xdmf, .vtu, .vtk"),
    (["query", "run", "--y", "1,1,1,1", "--out", "no/u.vtu"], "make the folder no first"),
    (["query", "run", "--y", "1,1,1,1", "--plot", "u.doc"], "must end in .png"),
    (["plot", "empty"], "empty holds no run"),
    (["plot", "run", "--samples", "99"], "draw 0 to 6 solutions"),
    (["export-net", "run", "--out", "net.txt"], "must end in .pt2"),
    (["export-net", "run", "--out", "net.pt2"], "net.pt2 is there already"),
    (["bench", "--training", "--net", "deep", "--problem", "quarters", "--levels", "3"], "net is 'deep'"),
]


@pytest.mark.parametrize(("arguments", "message"), CASES, ids=[" ".join(a)[-60:] for a, _ in CASES])
def test_bad_input_gets_one_line_and_changes_nothing(folder, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(folder)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(SystemExit) as end:
        main(arguments)
    told = capsys.readouterr().err
    assert end.value.code == 2, told
    assert message in told
    assert told.count("\n") == 1
    assert told.startswith("fem-frames")
    after = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert {p: after.get(p) for p in before} == before
    new = sorted(str(p.relative_to(folder)) for p in set(after) - set(before) if p.suffix != ".pyc")
    assert not new, "what was refused leaves nothing behind"


def test_people_are_told_the_norm_of_bounds_and_nothing_that_is_not_there(folder, capsys):
    """Energies have no ratio to their floor: people get no line for it, scripts null."""
    assert main(["evaluate", str(folder / "energy"), "--samples", "3"]) == 0
    told = capsys.readouterr().out
    lines = dict(re.split(r"  +", line, maxsplit=1) for line in told.splitlines())
    assert "ratio" not in lines
    assert "None" not in told
    assert (lines["norm"], lines["against"]) == ("energy", "discrete solution")
    assert 0 < float(lines["error bound mean"]) <= float(lines["error bound max"])
    assert main(["evaluate", str(folder / "energy"), "--samples", "3", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["ratio"] is None
    assert record["error_bound_max"] == pytest.approx(float(lines["error bound max"]), rel=1e-4)
    assert main(["evaluate", str(folder / "run"), "--samples", "3", "--norm", "energy", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["norm"], record["against"]) == ("energy", "exact solution")


def test_a_relative_bound_that_says_nothing_is_said_so(folder, capsys):
    """A net after two steps is off by more than its answer: nothing is known of the size of the solution."""
    query = ["query", str(folder / "run"), "--y", "0.5,0.5,0.5,0.5", "--norm", "energy"]
    assert main(query) == 0
    assert "no bound: for all that is known, the norm of the solution may be zero" in capsys.readouterr().out
    assert main([*query, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["relative"] is None


def test_training_is_measured_by_bench(capsys):
    case = ["--problem", "quarters", "--formulation", "least-squares", "--levels", "3"]
    main(["bench", "--training", *case, "--seconds", "0", "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [r["dtype"] for r in rows] == ["float32", "float16"]
    assert all(r["step_s"] > 0 and r["net_s"] > 0 and r["ratio"] == r["step_s"] / r["net_s"] for r in rows)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "level 1 has 1 degree of freedom of u for 4 parameters; try start_level=3"),
        ({"start_level": 2}, "level 2 has 3 degrees of freedom of u for 4 parameters"),
        ({"start_level": 3}, ""),
        ({"loss": "nodal"}, ""),
        ({"net": "full"}, ""),
        ({"problem": "lshape"}, ""),
    ],
)
def test_nets_that_see_little_of_y_are_told_of(tmp_path, capsys, settings, told):
    chosen = dict(problem="quarters", levels=4, net="separate-frame", epochs=0, test_samples=0) | settings
    train(Configuration(**chosen), tmp_path / "run")
    heard = capsys.readouterr().err
    assert told in heard
    assert ("start_level=3" in heard) == bool(told)
