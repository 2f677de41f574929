"""What training tells its users."""

import json

import pytest

from fem_frames.commands import main
from training import Configuration, train

pytestmark = pytest.mark.serial


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
