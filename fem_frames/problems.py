"""The problems that come with the library, by name: `make_problem("checkerboard", blocks=3)`."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fem_frames.callbacks import calling
from fem_frames.files import check_file
from fem_frames.memory import check_memory
from fem_frames.mesh import Floats, Grid, Ints, MeshArrays
from fem_frames.problem import Array, ByRegion, ExpAffine, Gaussian, Pointwise, Problem, Uniform, whole_number
from fem_frames.speech import either


def quarters(low: float = 0.5, high: float = 1.5) -> Problem:
    """Unit interval, a parameter on each quarter, f = 1: the paper's experiments."""
    return Problem(
        mesh=Grid((1,)),
        coefficient=ByRegion.each(4),
        parameters=Uniform((low,) * 4, (high,) * 4),
        regions=lambda x: _blocks(x, 4),
        first_level=1,
        resolved_from=2,
    )


def checkerboard(blocks: int = 2, low: float = 0.5, high: float = 1.5) -> Problem:
    """Unit square, a parameter on each of blocks × blocks squares, f = 1."""
    return _block_problem(2, blocks, low, high)


def cube(blocks: int = 2, low: float = 0.5, high: float = 1.5) -> Problem:
    """Unit cube, a parameter on each of blocks × blocks × blocks cubes, f = 1."""
    return _block_problem(3, blocks, low, high)


def lshape(low: float = 0.5, high: float = 1.5) -> Problem:
    """(-1, 1)² without its lower right quarter, a parameter on each of the three squares, f = 1."""
    points = np.array([[-1, -1], [0, -1], [-1, 0], [0, 0], [1, 0], [-1, 1], [0, 1], [1, 1]], np.float64)
    cells = np.array([[0, 1, 3], [0, 3, 2], [2, 3, 6], [2, 6, 5], [3, 4, 7], [3, 7, 6]])
    return Problem(
        mesh=MeshArrays(points, cells, regions=np.repeat(np.arange(3), 2)),
        coefficient=ByRegion.each(3),
        parameters=Uniform((low,) * 3, (high,) * 3),
    )


def ring(low: float = 0.5, high: float = 1.5) -> Problem:
    """Unit square without the middle one of its 3 × 3 blocks, a parameter on each of the others, f = 1."""
    points = np.array([(i, j) for j in range(4) for i in range(4)]) / 3
    corners = np.array([i + 4 * j for j in range(3) for i in range(3) if (i, j) != (1, 1)])
    halves = np.array([[0, 1, 5], [0, 5, 4]])
    return Problem(
        mesh=MeshArrays(points, (corners[:, None, None] + halves).reshape(-1, 3), regions=np.repeat(np.arange(8), 2)),
        coefficient=ByRegion.each(8),
        parameters=Uniform((low,) * 8, (high,) * 8),
    )


def cookies(rows: int = 2, radius: float = 0.3, low: float = 0.5, high: float = 1.5) -> Problem:
    """Unit square with rows × rows disks of their own parameter in a background of 1, f = 1.

    The radius is relative to the distance of the centres. A cell belongs to a disk if its midpoint does.
    """
    rows = whole_number(rows, "rows")
    _check_count("rows", rows, rows**2)
    if not 0 < radius <= 0.5:
        raise ValueError(f"radius is {radius}; disks need 0 < radius <= 0.5, in units of the distance of centres")

    def region(x: Floats) -> Ints:
        cell = np.clip(np.floor(rows * x), 0, rows - 1)
        inside = np.linalg.norm(rows * x - cell - 0.5, axis=-1) < radius
        return np.where(inside, cell[:, 0] + rows * cell[:, 1], rows**2).astype(np.int64)

    return Problem(
        mesh=Grid((1, 1)),
        coefficient=ByRegion({k: k for k in range(rows**2)}, fixed={rows**2: 1.0}),
        parameters=Uniform((low,) * rows**2, (high,) * rows**2),
        regions=region,
    )


def lognormal(terms: int = 8, scale: float = 1.0, decay: float = 2.0) -> Problem:
    """Unit square, log a = scale Σ_k y_k |k|^-decay cos(π k₁x₁) cos(π k₂x₂), y normal, f = 1.

    The sum runs over the `terms` smallest k ≠ 0.
    """
    terms = whole_number(terms, "terms")
    _check_count("terms", terms, terms)
    side = range(int(np.sqrt(terms)) + 2)
    waves = sorted(((m, n) for m in side for n in side if m + n > 0), key=lambda k: (k[0] ** 2 + k[1] ** 2, k[1]))
    k = np.array(waves[:terms], np.float64)  # (terms, 2)
    amplitude = scale * np.linalg.norm(k, axis=1) ** -decay

    def modes(x: Floats) -> Floats:
        return np.asarray(amplitude * np.prod(np.cos(np.pi * k * x[..., None, :]), axis=-1))

    return Problem(mesh=Grid((1, 1)), coefficient=ExpAffine(0.0, modes), parameters=Gaussian(terms))


def inclusion(conductivity: float = 10.0) -> Problem:
    """Unit square, a = 1 but for a disk of another conductivity; y = (centre, radius), f = 1.

    What moves with y makes linear reduction weak.
    """

    def a(x: Array, y: Array) -> Array:
        inside = (x[..., 0] - y[..., 0]) ** 2 + (x[..., 1] - y[..., 1]) ** 2 < y[..., 2] ** 2
        return 1.0 + (conductivity - 1.0) * inside

    return Problem(
        mesh=Grid((1, 1)),
        coefficient=Pointwise(a),
        parameters=Uniform((0.25, 0.25, 0.1), (0.75, 0.75, 0.2)),
        quadrature_degree=4,
    )


PROBLEMS: dict[str, Callable[..., Problem]] = {
    make.__name__: make for make in (quarters, checkerboard, lshape, ring, cookies, lognormal, inclusion, cube)
}


def make_problem(name: str, **options: Any) -> Problem:
    """The built-in problem of this name, or one of your own: `folder/file.py` or `folder/file.py:name`.

    Such a file defines `problem` (or `name`): a Problem, or a function that makes one from the options.
    """
    if not isinstance(name, str):
        raise ValueError(
            f"a problem is named by a text, not by a {type(name).__name__}; choose from {', '.join(PROBLEMS)}"
        )
    options = {key: value.item() if isinstance(value, np.generic) else value for key, value in options.items()}
    file, attribute = _split(name)
    if name in PROBLEMS:
        make = PROBLEMS[name]
    elif is_file(name):
        made = _load(Path(file), attribute)
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
    """The problem, its mesh file taken from beside its own file if it is there, not from the working directory."""
    mesh = problem.mesh
    if not isinstance(mesh, str | Path) or not (file.parent / mesh).is_file():
        return problem
    return replace(problem, mesh=(file.parent / mesh).resolve())


def recorded_problem(record: Mapping[str, Any], name: str | None = None, options: Any = None) -> Problem:
    """The built-in problem that a frame's record names, or the one that the caller names; with the refinement recorded.

    A record never chooses code to run: if it names a file, the caller has to name one too.
    """
    if name is None:
        name = str(record.get("problem"))
        if name not in PROBLEMS:
            raise ValueError(f"it is not built in, and files do not choose code to run: give {_itself(name)}")
    problem = make_problem(name, **dict(record.get("options", {}) if options is None else options))
    refinement = record.get("refinement", problem.refinement)
    return problem if refinement == problem.refinement else replace(problem, refinement=refinement)


def is_file(name: str) -> bool:
    """Whether a problem of this name is taken from a Python file, which is executed."""
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
        # What has a number for its default takes numbers.
        default = known[key].default
        for kind, word in ((int, "whole number"), (float, "finite number")):
            if type(default) is kind:
                fits = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
                if not fits or not np.isfinite(value):
                    raise ValueError(f"option {key} of {name} is {value!r:.60}; a {word} is expected")


def _load(path: Path, attribute: str) -> Any:
    """What the file defines by this name. Modules beside it are found last: they replace no installed one."""
    try:
        check_file(path)
    except ValueError as error:
        raise ValueError(f"{error}, to take a problem from") from error
    name = f"fem_frames_problem_{path.stem}_{abs(hash(path.resolve()))}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there for the module they are defined in
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
        raise ValueError(f"{path} does not define {attribute!r}; name what it defines as {path}:name")
    found = getattr(module, attribute)
    if not (isinstance(found, Problem) or callable(found)):
        raise ValueError(f"{attribute} in {path} is neither a Problem nor a function that makes one")
    return found


def _check_count(name: str, value: int, parameters: int) -> None:
    """A ValueError for more parameters than memory holds: a number, and a place in lists and tables, for each."""
    check_memory(f"{name} = {value}, which makes {parameters:.3g} parameters,", 500.0 * parameters, f"use fewer {name}")


def _block_problem(d: int, blocks: int, low: float, high: float) -> Problem:
    blocks = whole_number(blocks, "blocks")
    _check_count("blocks", blocks, blocks**d)
    # The coarse mesh is as coarse as can be: halving it `halvings` times resolves the blocks.
    halvings = (blocks & -blocks).bit_length() - 1
    return Problem(
        mesh=Grid((blocks >> halvings,) * d),
        coefficient=ByRegion.each(blocks**d),
        parameters=Uniform((low,) * blocks**d, (high,) * blocks**d),
        regions=lambda x: _blocks(x, blocks),
        resolved_from=halvings,
    )


def _blocks(x: Floats, blocks: int) -> Ints:
    """(K,) number of the block of the unit cube that x (K, d) lies in, first coordinate fastest."""
    place = np.clip(np.floor(blocks * x), 0, blocks - 1).astype(np.int64)
    return np.asarray(place @ blocks ** np.arange(x.shape[-1]))
