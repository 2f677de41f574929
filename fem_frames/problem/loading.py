"""`make_problem` finds problems by name, `make_problem("checkerboard", blocks=3)`, or in a Python file of the user."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fem_frames.files import check_file
from fem_frames.mesh.gmsh import MeshFile
from fem_frames.messages import either
from fem_frames.problem.callbacks import calling
from fem_frames.problem.catalogue import PROBLEMS
from fem_frames.problem.definition import Problem
from fem_frames.problem.densities import Density


def make_problem(name: str, **options: Any) -> Problem:
    """The built-in problem with this name, or a problem of your own: `folder/file.py` or `folder/file.py:name`.

    The file defines `problem` (or `name`): a Problem, or a function that makes one from the options.
    See docs/problems.md.
    """
    if not isinstance(name, str):
        raise ValueError(
            f"the name of a problem is a text, not a {type(name).__name__}; choose from {', '.join(PROBLEMS)}"
        )
    options = {key: value.item() if isinstance(value, np.generic) else value for key, value in options.items()}
    file, attribute = _split(name)
    if name in PROBLEMS:
        make = PROBLEMS[name]
    elif is_file(name):
        made = load_object(Path(file), attribute)
        if not (isinstance(made, Problem) or callable(made)):
            raise ValueError(f"{attribute} in {file} is neither a Problem nor a function that makes one")
        if isinstance(made, Problem):
            if options:
                raise ValueError(
                    f"{name} is a Problem without options; make it a function to give it {sorted(options)}"
                )
            return replace(_beside(made, Path(file)), name=name)
        make = made
    else:
        raise ValueError(
            f"there is no problem {name!r}; choose from {', '.join(PROBLEMS)}, or give a file.py:name of your own"
        )
    _check_options(name, make, options)
    with calling(f"making the problem {name} with the options {options}", make):
        problem = make(**options)
    if not isinstance(problem, Problem):
        raise ValueError(f"{name} made a {type(problem).__name__}, not a fem_frames.Problem")
    return replace(_beside(problem, Path(file)) if is_file(name) else problem, name=name, options=options)


def _beside(problem: Problem, file: Path) -> Problem:
    """The problem with its mesh file looked up next to the problem's file before the working directory.

    A file that is in neither place is missed when the mesh is read: a problem with its frame does without.
    """
    mesh = problem.mesh
    if not isinstance(mesh, str | Path) or Path(mesh).is_absolute():
        return problem
    beside = (file.parent / mesh).resolve()
    if beside.is_file():
        return replace(problem, mesh=beside)
    here = Path(mesh).resolve()
    return problem if here.is_file() or here == beside else replace(problem, mesh=MeshFile((beside, here)))


def recorded_problem(record: Mapping[str, Any], name: str | None = None, options: Any = None) -> Problem:
    """The built-in problem in a frame's record, or the one that the caller names, with the recorded refinement.

    A record never chooses code to run: if it names a file, the caller must name the file too.
    """
    if name is None:
        name = str(record.get("problem"))
        if name not in PROBLEMS:
            raise ValueError(f"it is not built in, and files do not choose code to run: give {_itself(name)}")
    problem = make_problem(name, **dict(record.get("options", {}) if options is None else options))
    refinement = record.get("refinement", problem.refinement)
    problem = problem if refinement == problem.refinement else replace(problem, refinement=refinement)
    return with_programs(problem, record.get("equation"))


def with_programs(problem: Problem, recorded: Any) -> Problem:
    """The problem, whose equation has the programs of a frame's record where UFL is absent."""
    if problem.equation is not None and recorded is not None:
        try:
            problem.density()
        except ImportError:
            problem.equation.adopt(Density.from_record(recorded))
    return problem


def is_file(name: str) -> bool:
    """Whether this name refers to a Python file, which would be executed."""
    return name not in PROBLEMS and _split(name)[0].endswith(".py")


def _split(name: str) -> tuple[str, str]:
    """File and attribute of `file.py:attribute`."""
    file, _, attribute = name.rpartition(":") if ".py:" in name else (name, "", "problem")
    return file, attribute


def _itself(name: str) -> str:
    shown = name if is_file(name) else "mine.py"
    return either(f"--problem {shown}", f"problem=make_problem({shown!r})" if is_file(name) else "problem=…")


def _check_options(name: str, make: Callable[..., Problem], options: dict[str, Any]) -> None:
    known = inspect.signature(make).parameters
    for key, value in options.items():
        if key not in known:
            if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
                continue
            raise ValueError(f"problem {name} has no option {key!r}; it has {', '.join(known) or 'none'}")
        # Options with a number as default take numbers.
        default = known[key].default
        for kind, word in ((int, "whole number"), (float, "finite number")):
            if type(default) is kind:
                fits = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
                if not fits or not np.isfinite(value):
                    raise ValueError(f"option {key} of {name} is {value!r:.60}; a {word} is expected")


def load_object(path: Path, attribute: str, what: str = "a problem") -> Any:
    """The object with this name in the file. Modules in its folder are found last: they replace no installed ones."""
    try:
        check_file(path)
    except ValueError as error:
        raise ValueError(f"{error}, to take {what} from") from error
    name = f"fem_frames_problem_{path.stem}_{abs(hash(path.resolve()))}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module there
    if str(path.resolve().parent) not in sys.path:
        sys.path.append(str(path.resolve().parent))
    try:
        with calling(f"loading {path}"):
            spec.loader.exec_module(module)
    except ValueError as error:
        if str(path) in str(error):
            raise
        raise ValueError(f"loading {path} fails: {error}") from error
    if not hasattr(module, attribute):
        raise ValueError(f"{path} does not define {attribute!r}; choose an object in it by {path}:name")
    return getattr(module, attribute)
