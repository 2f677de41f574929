"""The golden numbers of `golden.py` still come out, and files of the format of their time still load."""

import json
import shutil

import numpy as np
import pytest
from golden import (
    DTYPES,
    FOLDER,
    FRAMES,
    NUMBERS,
    REFERENCES,
    RUNS,
    STOPPED,
    environment,
    frame_arrays,
    frame_numbers,
    golden,
    numbers_of_run,
    reference_numbers,
    run_numbers,
    saved_arrays,
    surrogate_numbers,
)

from fem_frames import FrameArrays
from fem_frames.frame.solutions import ReferenceSolutions
from training import Surrogate, train

pytestmark = pytest.mark.serial
WRITTEN = json.loads(NUMBERS.read_text())
TOLERANCES = {"float16": 3e-2, "bfloat16": 2e-1, "float32": 1e-4, "float64": 1e-9}


@pytest.fixture(autouse=True)
def kernels_of_torch(monkeypatch):
    """Compiled code rounds as the C compiler likes."""
    monkeypatch.setenv("FEM_FRAMES_KERNELS", "torch")


def check(found, written, dtype="float64"):
    """To the bit in the environment of the golden numbers, otherwise up to rounding."""
    if WRITTEN["environment"] == environment():
        assert found == written
    else:
        np.testing.assert_allclose(found["figures"], written["figures"], rtol=TOLERANCES[dtype], atol=1e-9)


@pytest.mark.parametrize("name", FRAMES)
def test_frames_and_operators_are_as_they_were(name):
    """H, D, C_y, A_y, loads, losses and residuals in every precision, and what files of frames hold."""
    for dtype in DTYPES:
        found, written = frame_numbers(name, dtype), WRITTEN["frames"][name][dtype]
        assert found.keys() == written.keys()
        for key in written:
            check(found[key], written[key], dtype)
    flat, written = saved_arrays(frame_arrays(name)[1]), WRITTEN["files"][name]
    check(golden(*(flat[key] for key in written["names"])), written["golden"])


@pytest.mark.parametrize("name", REFERENCES)
def test_reference_solutions_are_as_they_were(name):
    check(reference_numbers(name), WRITTEN["references"][name])


@pytest.mark.parametrize("name", RUNS)
def test_runs_take_the_steps_that_they_took(name, tmp_path):
    """All losses, and the weights in the end."""
    found, written = run_numbers(name, tmp_path / "run"), WRITTEN["runs"][name]
    if WRITTEN["environment"] == environment():
        assert found == written
    elif RUNS[name].get("precision", "float32") in ("float32", "float64"):
        np.testing.assert_allclose(found["figures"][:3], written["figures"][:3], rtol=2e-2)


def test_a_run_of_the_old_format_resumes_to_the_same_bits(tmp_path):
    shutil.copytree(FOLDER / "run", tmp_path / "run")
    train(None, tmp_path / "run", resume=True, quiet=True)
    check(numbers_of_run(tmp_path / "run"), WRITTEN["runs"][STOPPED], "float32")


def test_a_surrogate_of_the_old_format_answers_as_it_did():
    check(surrogate_numbers(Surrogate.load(FOLDER / "surrogate")), WRITTEN["surrogate"], "float32")


@pytest.mark.parametrize("name", [name for name in FRAMES if "mixed" in name or "ring" in name])
def test_frames_of_the_old_format_load(name):
    """As the arrays that are exported today."""
    found = FrameArrays.load(FOLDER / "frames" / f"{list(FRAMES).index(name)}.npz")
    exported = frame_arrays(name)[1]
    old, new = saved_arrays(found), saved_arrays(exported)
    assert repr(found) == repr(exported)
    for key in WRITTEN["files"][name]["names"]:
        np.testing.assert_allclose(old[key], new[key], rtol=1e-9, atol=1e-12)


def test_reference_solutions_of_the_old_format_load():
    found = ReferenceSolutions.load(FOLDER / "frames" / "reference.npz")
    assert found.u.shape == (2, 25)
    assert found.record["problem"] == "checkerboard"
