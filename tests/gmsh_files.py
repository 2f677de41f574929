"""Small gmsh files for tests: the unit square of two triangles, and the plate of the demos."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from fem_frames.mesh import gmsh_readers

ROOT = Path(__file__).parent.parent
PLATE = ROOT / "demos/plate.msh"

POINTS = ["0 0 0", "1 0 0", "1 1 0", "0 1 0"]
# Entities of the square: dimension and number, with their elements (kind, points).
SQUARE = {
    (1, 1): [(1, "1 2")],  # the lower side
    (1, 2): [(1, "3 4")],  # the upper side
    (1, 3): [(1, "1 3")],  # the diagonal
    (2, 1): [(2, "1 2 3")],
    (2, 2): [(2, "1 3 4")],
}
GROUPS = {(1, 1): [7], (1, 2): [8], (1, 3): [9], (2, 1): [5], (2, 2): [6]}
NAMES = [(1, 7, "in flow"), (1, 8, "steel"), (1, 9, "middle"), (1, 12, "nothing"), (2, 5, "steel"), (2, 6, "air")]


def square_41(groups=GROUPS, names=NAMES, entities=SQUARE, points=POINTS):
    """The square in format 4.1, as text; `groups` maps entities to the groups that they are in."""
    lines = ["$MeshFormat", "4.1 0 8", "$EndMeshFormat"]
    if names:
        lines += ["$PhysicalNames", str(len(names)), *(f'{d} {tag} "{name}"' for d, tag, name in names)]
        lines += ["$EndPhysicalNames"]
    count = [sum(d == k for d, _ in entities) for k in range(4)]
    lines += ["$Entities", " ".join(map(str, count))]
    for d, number in sorted(entities):
        tags = groups.get((d, number), [])
        lines.append(" ".join(map(str, [number, 0, 0, 0, 1, 1, 0, len(tags), *tags, 0])))
    lines += ["$EndEntities", "$Nodes", f"1 {len(points)} 1 {len(points)}", f"2 1 0 {len(points)}"]
    lines += [*(str(k + 1) for k in range(len(points))), *points, "$EndNodes"]
    total = sum(map(len, entities.values()))
    lines += ["$Elements", f"{len(entities)} {total} 1 {total}"]
    number = 0
    for (d, entity), elements in entities.items():
        lines.append(f"{d} {entity} {elements[0][0]} {len(elements)}")
        for _, nodes in elements:
            number += 1
            lines.append(f"{number} {nodes}")
    return "\n".join([*lines, "$EndElements", ""])


def square_41_binary(groups=GROUPS):
    """The square in format 4.1 with binary sections: whole numbers of 4 and 8 bytes, coordinates of 8."""

    def pack(kind, *values):
        return np.array(values, kind).tobytes()

    parts = [b"$MeshFormat\n4.1 1 8\n", pack("i4", 1), b"\n$EndMeshFormat\n$PhysicalNames\n", str(len(NAMES)).encode()]
    parts += [f'\n{d} {tag} "{name}"'.encode() for d, tag, name in NAMES]
    parts += [b"\n$EndPhysicalNames\n$Entities\n", pack("u8", *(sum(d == k for d, _ in SQUARE) for k in range(4)))]
    for key in SQUARE:
        tags = groups.get(key, [])
        parts += [pack("i4", key[1]), pack("f8", 0, 0, 0, 1, 1, 0), pack("u8", len(tags)), pack("i4", *tags)]
        parts += [pack("u8", 0)]
    parts += [b"\n$EndEntities\n$Nodes\n", pack("u8", 1, 4, 1, 4), pack("i4", 2, 1, 0), pack("u8", 4, 1, 2, 3, 4)]
    parts += [pack("f8", *(float(x) for point in POINTS for x in point.split())), b"\n$EndNodes\n$Elements\n"]
    parts += [pack("u8", len(SQUARE), len(SQUARE), 1, len(SQUARE))]
    for number, ((d, entity), ((kind, nodes),)) in enumerate(SQUARE.items(), 1):
        parts += [pack("i4", d, entity, kind), pack("u8", 1, number, *map(int, nodes.split()))]
    return b"".join([*parts, b"\n$EndElements\n"])


def square_22(groups=GROUPS, names=NAMES, entities=SQUARE, points=POINTS):
    """The same in format 2.2, where an element that is in two groups is listed twice."""
    lines = ["$MeshFormat", "2.2 0 8", "$EndMeshFormat"]
    if names:
        lines += ["$PhysicalNames", str(len(names)), *(f'{d} {tag} "{name}"' for d, tag, name in names)]
        lines += ["$EndPhysicalNames"]
    lines += ["$Nodes", str(len(points)), *(f"{k} {x}" for k, x in enumerate(points, 1)), "$EndNodes"]
    rows = [
        f"{kind} 2 {tag} {number} {nodes}"
        for (d, number), elements in entities.items()
        for tag in groups.get((d, number), [0])
        for kind, nodes in elements
    ]
    lines += ["$Elements", str(len(rows)), *(f"{k} {row}" for k, row in enumerate(rows, 1)), "$EndElements", ""]
    return "\n".join(lines)


FORMATS = {"2.2": square_22, "4.1": square_41}


def has_gmsh():
    try:
        gmsh_readers.gmsh_package()
    except ImportError:
        return False
    return True


READERS = [
    "meshio",
    pytest.param("gmsh", marks=pytest.mark.skipif(not has_gmsh(), reason="needs the package gmsh")),
]


def make_plate(path, **options):
    """The plate of the demos, written by gmsh."""
    sys.path.insert(0, str(ROOT / "demos"))
    try:
        return importlib.import_module("plate").make_plate(path, **options)
    finally:
        sys.path.remove(str(ROOT / "demos"))
