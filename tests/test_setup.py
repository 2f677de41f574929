"""The set-up script: what it says where it cannot help. That it works is shown by this suite running at all."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.serial
INSTALL = Path(__file__).parent.parent / "docker" / "install"
TOOLS = ("bash", "env", "dirname", "id")


def install(*arguments, **environment):
    return subprocess.run(
        [INSTALL, *arguments], env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def bare_path(tmp_path):
    """A PATH with neither apt nor any Python."""
    for tool in TOOLS:
        (tmp_path / tool).symlink_to(shutil.which(tool))
    return str(tmp_path)


def test_without_apt_and_dolfinx_it_names_conda_and_the_container(bare_path):
    done = install("system", PATH=bare_path, SYSTEM_PYTHON="/absent/python3", PYTHON="")
    assert done.returncode == 1
    assert "conda env create -f environment.yml" in done.stderr
    assert "docker build -t fem-frames -f docker/Dockerfile ." in done.stderr


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["system"], {"PYTHON": "/bin/false"}, "PYTHON=/bin/false does not import DOLFINx"),
        (["system"], {"TORCH": "rocm"}, "TORCH is 'rocm'; choose cpu or cuda"),
        (["kitchen"], {}, "does not know 'kitchen'"),
    ],
)
def test_bad_settings_are_named(arguments, environment, message):
    done = install(*arguments, **environment)
    assert done.returncode != 0
    assert message in done.stderr
