"""Bad input gets one line that names the remedy and exit code 2, and nothing is written, for every command."""

import re

import pytest
from bad_files import make_folder
from bad_inputs import CASES

from fem_frames.commands import main

pytestmark = pytest.mark.serial


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("bad"))


def content(folder):
    files = {p: p.read_bytes() if p.is_file() else b"" for p in folder.rglob("*") if "__pycache__" not in p.parts}
    return {str(p.relative_to(folder)): data for p, data in files.items()}


@pytest.mark.parametrize(("arguments", "message"), CASES, ids=[" ".join(a)[:70] for a, _ in CASES])
def test_bad_input_is_one_line_and_exit_code_2(folder, monkeypatch, capfd, arguments, message):
    monkeypatch.chdir(folder)
    before = content(folder)
    with pytest.raises(SystemExit) as end:
        main(arguments)
    told = capfd.readouterr()
    assert re.search(message, told.err), told.err
    assert end.value.code == 2, told.err
    assert told.err.count("\n") == 1, told.err
    assert told.err.startswith("fem-frames")
    assert not told.out
    assert content(folder) == before


def test_the_list_is_long_and_says_nothing_twice():
    assert len(CASES) >= 150
    assert len({" ".join(arguments) for arguments, _ in CASES}) == len(CASES)
