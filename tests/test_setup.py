"""The set-up script: its virtual environment, and what it says where it cannot help.

That the whole of it works is shown by this suite running at all.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
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


def newer_numpy(folder):
    """A folder with a wheel that pip takes for NumPy 99."""
    info = "numpy-99.0.dist-info"
    with zipfile.ZipFile(folder / "numpy-99.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: numpy\nVersion: 99.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return folder


def test_pip_in_the_virtual_environment_keeps_the_numpy_of_dolfinx(tmp_path):
    """Also in a folder with a blank in its name; --no-index: nothing is downloaded."""
    venv = tmp_path / "my work" / ".venv"
    done = install("venv", VENV=str(venv), PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    assert (venv / "constraints.txt").read_text() == f"numpy=={np.__version__}\n"
    wheels = newer_numpy(tmp_path)

    def pip_install(**environment):
        command = [venv / "bin/pip", "install", "--dry-run", "--no-index", "--find-links", wheels, "numpy>=2.99"]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        return subprocess.run(command, env=clean | environment, capture_output=True, text=True, timeout=60, check=False)

    refused = pip_install()
    assert refused.returncode != 0, refused.stdout
    assert f"(constraint) numpy=={np.__version__}" in refused.stdout + refused.stderr
    assert "Would install numpy-99.0" in pip_install(PIP_CONFIG_FILE=os.devnull).stdout


def test_image_builds_take_pips_options_but_no_constraint(tmp_path):
    """What `docker/check` hands over is for a Debian with a NumPy of its own."""
    listed = "global.timeout='60'\nglobal.constraint='file:///home/me/.venv/constraints.txt'\n"
    script = INSTALL.with_name("pip_config.py")
    done = subprocess.run(
        [sys.executable, script, tmp_path], input=listed, capture_output=True, text=True, timeout=60, check=True
    )
    assert (tmp_path / "pip.conf").read_text() == "[global]\ntimeout = 60\n"
    assert done.stdout.splitlines() == [f"--volume={tmp_path}/pip.conf:/etc/pip.conf:ro"]
