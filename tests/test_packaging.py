"""The source distribution, the wheel, and the wheel in an environment with its dependencies only."""

import os
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from test_imports import ROOT, declared

pytestmark = pytest.mark.serial
LEFT = (".git", ".venv", "__pycache__", ".*_cache", "*.egg-info", "build", "dist")
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def run(*command, cwd, expect=0):
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=clean, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout


def build(what, source, folder):
    """By the build backend, as pip and build call it, but without downloading it."""
    return folder / run(sys.executable, "-c", BUILD, what, folder, cwd=source).split()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    left = shutil.ignore_patterns(*LEFT)
    source = shutil.copytree(
        ROOT, folder / "source", ignore=lambda at, names: {*left(at, names), *(["results"] if at == str(ROOT) else [])}
    )
    return build("build_sdist", source, folder)


@pytest.fixture(scope="module")
def unpacked(sdist):
    shutil.unpack_archive(sdist, sdist.parent)
    return sdist.parent / sdist.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(unpacked, tmp_path_factory):
    return build("build_wheel", unpacked, tmp_path_factory.mktemp("wheel"))


def dependencies(*names):
    """The distributions of these names that are installed here, and all that they require, by name."""
    found, wanted = {}, list(names)
    while wanted:
        name = wanted.pop()
        try:
            found.setdefault(name, metadata.distribution(name))
        except metadata.PackageNotFoundError:  # distributors leave some out
            continue
        for text in found[name].requires or ():
            requirement = Requirement(text)
            if requirement.name not in found and (not requirement.marker or requirement.marker.evaluate({"extra": ""})):
                wanted.append(requirement.name)
    return found


def declared_dependencies(wheel):
    """The names of the distributions that the wheel requires."""
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(next(name for name in archive.namelist() if name.endswith("/METADATA"))).decode()
    lines = [line.removeprefix("Requires-Dist: ") for line in text.splitlines() if line.startswith("Requires-Dist: ")]
    return [Requirement(line).name for line in lines if "extra ==" not in line]


def parts(distribution):
    """The folders and files of a distribution beside each other in site-packages."""
    listed = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
    # Debian lists files of some, of others nothing: then the name of what is imported is that of the distribution.
    names = listed or (distribution.read_text("top_level.txt") or "").split()
    name = distribution.metadata["Name"].lower().replace("-", "_")
    names = names or [name, *(["torchgen", "functorch"] if name == "torch" else [])]
    places = [Path(str(distribution.locate_file(name))) for name in names]
    return [place if place.exists() else place.with_suffix(".py") for place in places]


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """A virtual environment with the wheel, its dependencies and what these require, linked from here."""
    venv = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv)
    python = venv / "bin/python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=venv).strip())
    for distribution in dependencies(*declared_dependencies(wheel)).values():
        for part in parts(distribution):
            if part.exists() and not (site / part.name).exists():
                (site / part.name).symlink_to(part)
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=venv)
    return venv


def test_the_source_distribution_has_all_that_its_tests_need(sdist, unpacked):
    folders = ("fem_frames", "nets", "training", "tests", "demos", "docker", "docs", ".ci")
    needed = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    top = ("README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "Makefile", "environment.yml", "pyproject.toml")
    needed += [ROOT / name for name in (*top, ".dockerignore")]
    names = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    assert {str(path.relative_to(ROOT)) for path in needed} <= names
    assert not [name for name in names if name.endswith(".pyc") or ".venv" in name]
    assert os.access(unpacked / "docker/install", os.X_OK)
    run(sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", cwd=unpacked)


def test_the_wheel_is_typed_and_says_its_licence(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        text = archive.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    assert {"fem_frames/py.typed", "nets/py.typed", "training/py.typed"} <= set(names)
    assert {name.split("/")[0] for name in names} == {"fem_frames", "nets", "training", "fem_frames-0.1.0.dist-info"}
    lines = text.split("\n\n")[0].splitlines()
    assert {"License-Expression: MIT", "License-File: LICENSE"} <= set(lines)
    assert "Project-URL: Paper, https://arxiv.org/abs/2601.23185" in lines
    assert not [line for line in lines if "License ::" in line]
    extras = {line.split()[1] for line in lines if line.startswith("Provides-Extra")}
    assert extras == {
        "gmsh",
        "plot",
        "tensorboard",
        "onnx",
        "serve",
        "compare",
        "inverse",
    }  # what pip can install: FEniCSx is none of it


def test_the_wheel_works_with_its_dependencies_only(environment, frame_file, tmp_path):
    command = environment / "bin/fem-frames"
    absent = ("dolfinx", "basix", "ufl", "petsc4py", "mpi4py", "matplotlib", "meshio", "tensorboard", "pytest")
    program = f"import importlib.util as u; assert not [n for n in {absent} if u.find_spec(n)]; import fem_frames as f"
    where = run(environment / "bin/python", "-c", f"{program}; print(f.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(environment)
    assert "usage: fem-frames" in run(command, "--help", cwd=tmp_path)
    arguments = ("--frame", frame_file, "--epochs", 3, "--rank", 2, "--test-samples", 4, "--out", "run")
    assert "MRE" in run(command, "train", *arguments, cwd=tmp_path)
    assert '"reference": "conjugate gradients"' in run(
        command, "evaluate", "run", "--samples", 5, "--json", cwd=tmp_path
    )
    assert "error bound" in run(command, "query", "run", "--y", "1,0.8,1.4,0.7", cwd=tmp_path)
    assert "dolfinx     absent" in run(command, "info", cwd=tmp_path)


def test_strict_type_checkers_see_every_export(environment, tmp_path):
    """mypy comes with `make lint`, which continuous integration runs first; a misspelt name must be an error."""
    pytest.importorskip("mypy")
    lines = ["import fem_frames, nets, training"]
    for package in ("fem_frames", "nets", "training"):
        names = declared(package)[1]
        lines += [f"from {package} import {name}" for name in names]
        lines += [f"{name}_again = {package}.{name}" for name in names]
        lines += [f"from {package} import Misspelt{package}  # type: ignore[attr-defined]"]
    lines += ["def size(frame: Frame, problem: Problem) -> int:\n    return frame.frame_size + len(problem.name)"]
    lines += ["size(make_problem('quarters'), 3)  # type: ignore[arg-type]"]
    (tmp_path / "downstream.py").write_text("\n".join(lines))
    # torch is large and has nothing to do with it
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\n[mypy-torch.*]\nfollow_imports = skip\n")
    python = environment / "bin/python"
    run(sys.executable, "-m", "mypy", "--python-executable", python, "downstream.py", cwd=tmp_path)
