"""The content of a gmsh file, read by the package gmsh or by meshio.

Both give the same content for files that gmsh wrote: points and elements in the order of their numbers in the file.

n points, m elements of one dimension.
"""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from fem_frames.mesh.geometry import Floats, Ints

_SIMPLICES = {15: 0, 1: 1, 2: 2, 4: 3}  # gmsh's numbers of first-order simplices, and their dimensions
_KINDS = ("vertex", "line", "triangle", "tetra")
_HEAD = re.compile(rb"(?:\$Comments\b.*?\$EndComments\s+)*\$MeshFormat\s+(\d+)(?:\.(\d+))?\s+([01])\s+(\d+)", re.S)


Names = tuple[tuple[tuple[str, int], ...], ...]


@dataclass(frozen=True, eq=False)
class GmshContent:
    """Points, first-order simplices and physical groups of a gmsh file."""

    points: Floats  # (n, 3)
    elements: tuple[Ints, ...]  # for the dimensions 0 to 3, (m, dimension + 1) rows of points
    groups: tuple[Ints, ...]  # for the dimensions 0 to 3, (m,) group of each element, 0: none
    """An element that is in several groups is listed once for each."""
    names: Names
    """For the dimensions 0 to 3, names and tags of the groups."""
    foreign: tuple[str, ...]
    """Kinds of elements that are not first-order simplices."""


def read_content(path: Path) -> GmshContent:
    """The content of a gmsh file, by the reader that is installed and suits its format."""
    version = file_version(path)
    # Format 2 lists groups by element, which gmsh does not keep: all elements of a geometrical entity get the groups
    # of each. Files by other programs number all entities alike, so meshio reads them better.
    readers = (read_by_meshio, read_by_gmsh) if version < 4 else (read_by_gmsh, read_by_meshio)
    for reader in readers:
        with contextlib.suppress(ImportError):
            return reader(path)
    raise ValueError("reading gmsh files needs gmsh or meshio: pip install gmsh, or pip install meshio")


def file_version(path: Path) -> float:
    """The version of the format in a file's head; raises a ValueError if the file is not one of gmsh's meshes.

    gmsh would run a file without this head as a script, which may call the system.
    """
    with path.open("rb") as file:
        head = _HEAD.match(file.read(100_000))
    if head is None:
        raise ValueError(f"{path} cannot be read as a gmsh mesh: it does not begin with $MeshFormat; {_REMEDY}")
    return float(b".".join(part for part in head.groups()[:2] if part))


_REMEDY = "save it with gmsh as .msh 2.2 or 4.1, all in physical groups"


def _names(path: Path) -> Names:
    """Names and tags of the groups of each dimension; gmsh drops those of empty groups, meshio mixes dimensions."""
    section = re.search(rb"^\$PhysicalNames\s(.*?)^\$EndPhysicalNames", path.read_bytes(), re.S | re.M)
    found: list[list[tuple[str, int]]] = [[], [], [], []]
    for line in section[1].decode(errors="replace").splitlines() if section else ():
        entry = re.fullmatch(r'\s*([0-3])\s+(-?\d+)\s+"(.*)"\s*', line)
        if entry and entry[3]:
            found[int(entry[1])].append((entry[3], int(entry[2])))
    return tuple(tuple(sorted(of_dimension, key=lambda pair: pair[1])) for of_dimension in found)


# ---- the package gmsh -----------------------------------------------------------------------------------


def read_by_gmsh(path: Path) -> GmshContent:
    """The content as the package gmsh reads it; raises an ImportError if that is missing."""
    gmsh = gmsh_package()
    file_version(path)
    # A copy, because gmsh runs a file beside it as a script if its name continues with .opt.
    with tempfile.TemporaryDirectory() as folder, _model(gmsh):
        try:
            gmsh.merge(shutil.copyfile(path, str(Path(folder) / "mesh.msh")))
        except Exception as error:  # gmsh has no class of its own for errors
            raise ValueError(f"{path} cannot be read as a gmsh mesh: {error}; {_REMEDY}") from error
        return _content_of_model(gmsh, _names(path))


def gmsh_package() -> ModuleType:
    """The package gmsh; raises an ImportError if it, or a library of the system that it needs, is missing."""
    try:
        import gmsh
    except OSError as error:  # such as libGL
        raise ImportError(f"gmsh cannot be loaded: {error}") from error
    module: ModuleType = gmsh
    return module


@contextlib.contextmanager
def _model(gmsh: Any) -> Iterator[None]:
    """An empty model, in a session of its own or in that of the user, which is left as it was."""
    mine = not gmsh.isInitialized()
    if mine:
        gmsh.initialize(readConfigFiles=False, interruptible=False)
    quiet, before = gmsh.option.getNumber("General.Terminal"), gmsh.model.getCurrent()
    gmsh.option.setNumber("General.Terminal", 0)
    try:
        gmsh.model.add("fem-frames")
        try:
            yield
        finally:
            gmsh.model.remove()
            if before:
                gmsh.model.setCurrent(before)
    finally:
        gmsh.option.setNumber("General.Terminal", quiet)
        if mine:
            gmsh.finalize()


def _content_of_model(gmsh: Any, names: Names) -> GmshContent:
    numbers, x, _ = gmsh.model.mesh.getNodes()
    numbers, first = np.unique(np.asarray(numbers, np.int64), return_index=True)
    elements, groups, foreign = [], [], set()
    for dimension in range(4):
        rows, tags = [np.zeros((0, 2 + dimension), np.int64)], [np.zeros(0, np.int64)]
        for entity in gmsh.model.getEntities(dimension):
            for kind, own, nodes in zip(*gmsh.model.mesh.getElements(*entity), strict=True):
                if _SIMPLICES.get(kind) != dimension:
                    foreign.add(gmsh.model.mesh.getElementProperties(kind)[0])
                    continue
                corners = np.searchsorted(numbers, np.asarray(nodes, np.int64)).reshape(len(own), -1)
                of_entity = gmsh.model.getPhysicalGroupsForEntity(*entity)
                for tag in of_entity if len(of_entity) else [0]:
                    rows.append(np.column_stack([np.asarray(own, np.int64), corners]))
                    tags.append(np.full(len(own), tag, np.int64))
        table, tag_of_row = np.concatenate(rows), np.concatenate(tags)
        order = np.argsort(table[:, 0], kind="stable")
        elements.append(table[order, 1:])
        groups.append(tag_of_row[order])
    points = np.asarray(x, np.float64).reshape(-1, 3)[first]
    return GmshContent(points, tuple(elements), tuple(groups), names, tuple(sorted(foreign)))


# ---- meshio ---------------------------------------------------------------------------------------------


def read_by_meshio(path: Path) -> GmshContent:
    """The content as meshio reads it, with names and groups that it drops; raises an ImportError without meshio."""
    import meshio

    complaint = io.StringIO()
    try:
        with contextlib.redirect_stdout(complaint), contextlib.redirect_stderr(complaint):
            of_entity = _entity_groups(path)
            with _without_entities(path) if of_entity else contextlib.nullcontext(path) as file:
                content = meshio.read(file, file_format="gmsh")
            return _content_by_meshio(content, _names(path), of_entity)
    # meshio calls sys.exit on some malformed files, and raises its own and many other errors on others.
    except (Exception, SystemExit) as error:
        raise ValueError(f"{path} cannot be read as a gmsh mesh; {_REMEDY}, or pip install gmsh") from error


@contextlib.contextmanager
def _without_entities(path: Path) -> Iterator[Path]:
    """A copy of a file of format 4 without its section of entities.

    With it, meshio keeps one group of each element, and refuses files in which some elements are in no group.
    """
    content = path.read_bytes()
    start, end = content.index(b"$Entities"), content.index(b"$EndEntities")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "mesh.msh"
        copy.write_bytes(content[:start] + content[end:].partition(b"\n")[2])
        yield copy


def _content_by_meshio(content: Any, names: Names, of_entity: dict[tuple[int, int], list[int]]) -> GmshContent:
    rows: list[list[Ints]] = [[np.zeros((0, k + 1), np.int64)] for k in range(4)]
    tags: list[list[Ints]] = [[np.zeros(0, np.int64)] for _ in range(4)]
    physical = content.cell_data.get("gmsh:physical", [None] * len(content.cells))
    entity = content.cell_data.get("gmsh:geometrical", [None] * len(content.cells))
    foreign = set()
    for block, own, of in zip(content.cells, physical, entity, strict=True):
        if block.type not in _KINDS:
            foreign.add(block.type)
            continue
        dimension = _KINDS.index(block.type)
        several = of_entity.get((dimension, int(of[0])), []) if of is not None and len(of) else []
        one = np.zeros(len(block.data), np.int64) if own is None else np.asarray(own, np.int64)
        for tag in [np.full_like(one, k) for k in several] or [one]:
            rows[dimension].append(np.asarray(block.data, np.int64).reshape(-1, dimension + 1))
            tags[dimension].append(tag)
    points = np.zeros((len(content.points), 3))
    points[:, : content.points.shape[1]] = content.points
    elements, groups = (tuple(np.concatenate(parts) for parts in lists) for lists in (rows, tags))
    return GmshContent(points, elements, groups, names, tuple(sorted(foreign)))


def _entity_groups(path: Path) -> dict[tuple[int, int], list[int]]:
    """Groups of the geometrical entities (dimension, number) in format 4; meshio keeps only the first of each."""
    content = path.read_bytes()
    head = _HEAD.match(content)
    start = re.search(rb"^\$Entities *\r?\n", content, re.M)
    if head is None or start is None or int(head[1]) < 4 or head[2] == b"0":
        return {}
    read = _text_reader(content[start.end() :]) if head[3] == b"0" else _binary_reader(content[start.end() :])
    found = {}
    for dimension, count in enumerate(read("u8", 4).tolist()):
        for _ in range(count):
            number = int(read("i4", 1)[0])
            read("f8", 6 if dimension else 3)  # the box around it
            found[dimension, number] = [abs(tag) for tag in read("i4", int(read("u8", 1)[0])).tolist()]
            if dimension:
                read("i4", int(read("u8", 1)[0]))  # entities on its boundary
    return found


Reader = Callable[[str, int], np.ndarray]


def _text_reader(content: bytes) -> Reader:
    words = iter(content.split(b"$EndEntities")[0].split())
    return lambda kind, count: np.array([float(next(words)) for _ in range(count)]).astype(kind)


def _binary_reader(content: bytes) -> Reader:
    place = [0]

    def read(kind: str, count: int) -> np.ndarray:
        values = np.frombuffer(content, kind, count, place[0])
        place[0] += values.nbytes
        return values

    return read


def names_given_twice(names: tuple[tuple[str, int], ...]) -> list[tuple[str, list[int]]]:
    """Names that several groups of one dimension have, and their tags."""
    count = Counter(name for name, _ in names)
    return [(name, [tag for other, tag in names if other == name]) for name in count if count[name] > 1]
