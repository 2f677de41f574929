"""Checks that the arrays of a frame, read from a file or made by hand, fit each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fem_frames.frame.curvature import check_children
from fem_frames.mesh.geometry import Ints, signed_volumes
from fem_frames.mesh.simplices import p1_gradients

if TYPE_CHECKING:
    from fem_frames.frame.arrays import FrameArrays

WHOLE = ("cells", "ends", "free", "regions", "starts", "columns", "facets", "conditions", "tags")
"""Names of arrays of whole numbers; all other arrays are in float64."""


def check_frame(frame: FrameArrays) -> None:
    """Raises a ValueError unless all arrays of a frame fit each other."""
    if not isinstance(frame.formulation, str):
        raise ValueError(f"formulation is {frame.formulation!r}; a name is expected")
    if not isinstance(frame.first_level, int) or frame.first_level < 0:
        raise ValueError(f"first_level is {frame.first_level!r}; a whole number is expected")
    if not frame.levels or not frame.fields or not frame.families or frame.points.ndim != 2:
        raise ValueError("a frame needs points (N, d), at least one level, one field and one family")
    if not isinstance(frame.length, float | int) or not 0 < frame.length < np.inf:
        raise ValueError(f"length is {frame.length!r}; a positive number is expected")
    names = [f.name for f in frame.fields]
    if len(set(names)) < len(names):
        raise ValueError(f"two fields are called {max(names, key=names.count)}")
    for name, array in frame.flat().items():
        if array.dtype != (np.int64 if name.rpartition(".")[2].rstrip("0123456789") in WHOLE else np.float64):
            raise ValueError(f"{name} has dtype {array.dtype}")
        if array.dtype == np.float64 and not np.isfinite(array).all():
            raise ValueError(f"{name} has values that are not finite")
    d, K, Q = frame.dimension, len(frame.levels[-1].cells), len(frame.rule_weights)
    if d not in (1, 2, 3) or any(f.element.dimension != d for f in frame.fields):
        raise ValueError(f"points have dimension {d}, but the elements have another one")
    if K == 0 or not (frame.volumes > 0).all():
        raise ValueError("some cells have no volume, or there are no cells")
    shapes = {
        "rule_weights": (Q,),
        "volumes": (K,),
        "centres": (K, d),
        "regions": (K,),
        "rule_points": (Q, d + 1),
        "neumann_load": (len(frame.points),),
    }
    for j, level in enumerate(frame.levels):
        cells = K >> (d * (len(frame.levels) - 1 - j))
        shapes |= {f"level{j}.cells": (cells, d + 1), f"level{j}.gradients": (cells, d + 1, d)}
        shapes[f"level{j}.ends"] = (len(level.ends), 2)
    flat = frame.flat()
    for name, shape in shapes.items():
        if flat[name].shape != shape:
            raise ValueError(f"{name} has shape {flat[name].shape}, expected {shape}")
    for j, level in enumerate(frame.levels):
        count, before = frame.point_count(j), frame.point_count(j - 1) if j else len(frame.points)
        for name, table, bound in (("cells", level.cells, count), ("ends", level.ends, before)):
            _check_references(table, bound, f"{name} of level {frame.first_level + j}")
        if level.cells.max() + 1 != count:
            raise ValueError(f"level {frame.first_level + j} has {count} points, its cells use {level.cells.max() + 1}")
    _check_functions(frame)
    _check_boundary(frame)


def _check_boundary(frame: FrameArrays) -> None:
    """Shapes and boundary facets have tables for all levels that fit the mesh."""
    boundary, count = frame.boundary, len(frame.levels)
    if frame.groups is not None:
        frame.groups.check(len(frame.points), frame.dimension)
    shapes = [(f, shape) for f in frame.fields for shape in f.shapes]
    for f, shape in shapes:
        if [values.shape for values in shape.values] != [lift.shape for lift in f.lift]:
            raise ValueError(f"a shape of {f.name} has other sizes than its lift")
    if boundary is None:
        if shapes:
            raise ValueError("the lift depends on y, but the frame has no rule on facets")
        return
    Q, d = len(boundary.rule_weights), frame.dimension
    if boundary.rule_points.shape != (Q, d) or boundary.rule_weights.shape != (Q,) or Q == 0:
        raise ValueError(f"the rule on facets has shape {boundary.rule_points.shape}, expected (Q, {d})")
    if not np.allclose(boundary.rule_points.sum(axis=1), 1) or not np.isclose(boundary.rule_weights.sum(), 1):
        raise ValueError("the rule on facets does not sum to 1")
    if (len(boundary.facets), len(boundary.conditions)) != (count, count):
        raise ValueError(f"boundary facets have {len(boundary.facets)} tables for {count} levels")
    for j, (facets, conditions) in enumerate(zip(boundary.facets, boundary.conditions, strict=True)):
        if facets.shape != (len(conditions), d) or (np.diff(conditions) < 0).any() or (conditions < 0).any():
            raise ValueError(f"boundary facets of level {frame.first_level + j} do not fit their conditions")
        _check_references(facets, frame.point_count(j), f"boundary facets of level {frame.first_level + j}")


def check_geometry(frame: FrameArrays) -> None:
    """Raises a ValueError unless volumes, centres and gradients follow from points and cells, for frames from files."""
    cells = frame.levels[-1].cells
    expected = {
        "volumes": (frame.volumes, np.abs(signed_volumes(frame.points, cells))),
        "centres": (frame.centres, frame.points[cells].mean(axis=1)),
        "rule_weights": (frame.rule_weights.sum(), np.ones(())),
        "rule_points": (frame.rule_points.sum(axis=1), np.ones(len(frame.rule_points))),
    }
    for j, level in enumerate(frame.levels):
        expected[f"level{j}.gradients"] = (level.gradients, p1_gradients(frame.points, level.cells)[0])
    for name, (found, right) in expected.items():
        if not np.allclose(found, right, rtol=1e-6, atol=1e-6 * float(np.abs(right).max())):
            raise ValueError(f"{name} does not follow from the points and cells: the file is damaged")
    check_children(frame)


def _check_functions(frame: FrameArrays) -> None:
    """Fields and families have tables for all levels that refer to existing simplices."""
    count, degrees = len(frame.levels), {f.name: f.degree for f in frame.fields}
    names = [f.name for f in frame.families]
    if names[: len(degrees)] != list(degrees) or len(set(names)) < len(names):
        raise ValueError(f"families are {', '.join(names)}; one of each field is expected first, then others")
    tables = [(f.name, f.degree, len(f.free), len(f.lift)) for f in frame.fields]
    tables += [(f.name, f.degree, len(f.free), len(f.functions)) for f in frame.families]
    for name, degree, *sizes in tables:
        if sizes != [count, count]:
            raise ValueError(f"{name} has {sizes[0]} and {sizes[1]} tables for {count} levels")
        if not 0 <= degree <= frame.dimension:
            raise ValueError(
                f"{name} has degree {degree} in dimension {frame.dimension}: nodal values lie on simplices of "
                f"dimension 0 to {frame.dimension}"
            )
    for f in frame.fields:
        if not f.element.nested and any(len(free) for free in f.free[:-1]):
            raise ValueError(
                f"{f.name} is free on coarse levels, but {f.element.name} has functions on the finest only"
            )
    for j in range(count):
        where = f"of level {frame.first_level + j}"
        for f in frame.fields:
            size = len(frame.simplices(j, f.degree)[0])
            _check_references(f.free[j], size, f"{f.name}.free {where}")
            if f.lift[j].shape != (size,):
                raise ValueError(f"{f.name}.lift {where} has shape {f.lift[j].shape}, expected {(size,)}")
        for family in frame.families:
            if family.field not in degrees:
                raise ValueError(f"family {family.name} belongs to {family.field}, which is not a field")
            rows, size = family.functions[j], len(frame.simplices(j, degrees[family.field])[0])
            _check_references(family.free[j], len(frame.simplices(j, family.degree)[0]), f"{family.name} {where}")
            _check_references(rows.columns, size, f"{family.name} {where}")
            whole = (rows.shape[0] + 1,), rows.columns.shape
            if (rows.starts.shape, rows.weights.shape) != whole or rows.shape[1] != size:
                raise ValueError(f"the functions of {family.name} {where} have arrays that do not fit each other")
            steps = np.diff(rows.starts)
            if j == 0 and not 0 <= family.coarse <= rows.shape[0]:
                raise ValueError(f"{family.name} has {family.coarse} coarse functions among {rows.shape[0]}")
            if rows.starts[0] != 0 or rows.starts[-1] != rows.columns.size or (steps < 0).any():
                raise ValueError(f"the functions of {family.name} {where} do not follow each other")
            own = rows.part(family.coarse, rows.shape[0]) if j == 0 else rows
            steps = np.diff(own.starts)
            nodal = len(family.free[j]) == len(steps) and (steps == 1).all() and (own.weights > 0).all()
            if family.name == family.field and not nodal:
                raise ValueError(f"{family.name} {where} is nodal, but its functions are not")


def _check_references(table: Ints, bound: int, name: str) -> None:
    if table.size and not 0 <= table.min() <= table.max() < bound:
        raise ValueError(f"{name} refers to points that do not exist")


def _is_witness(value: Any) -> bool:
    """Whether this is an entry of `witnesses.py`: a condition, points and as many values."""
    if not isinstance(value, dict) or set(value) != {"condition", "points", "values"}:
        return False
    if type(value["condition"]) is not int or not isinstance(value["points"], list):
        return False
    rows = [*value["points"], value["values"]]
    plain = all(isinstance(row, list) and all(type(x) in (int, float) for x in row) for row in rows)
    return plain and len(value["points"]) == len(value["values"]) > 0 and len({len(p) for p in value["points"]}) == 1


def check_record(record: Any) -> None:
    """Raises a ValueError unless all entries have the types that `save` writes."""
    counts = {"levels": (1, 64), "first_level": (0, 64)}
    for name, (least, most) in counts.items():
        value = record[name]
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"{name} is {value!r}; a whole number from {least} to {most} is expected")
    fits = all(type(name) is str and type(degree) is int for name, degree in record["fields"])
    for name, of, degree, shapes in record["families"]:
        fits &= type(name) is str and type(of) is str and type(degree) is int and len(shapes) == record["levels"]
        fits &= all(len(shape) == 2 and all(type(n) is int and n >= 0 for n in shape) for shape in shapes)
    elements = record.get("elements", [""] * len(record["fields"]))  # files of earlier versions have none
    fits &= isinstance(elements, list) and len(elements) == len(record["fields"])
    fits &= all(type(name) is str for name in elements)
    coarse = record.get("coarse", [0] * len(record["families"]))  # files of earlier versions have none
    fits &= isinstance(coarse, list) and len(coarse) == len(record["families"]) and all(type(n) is int for n in coarse)
    fits &= type(record.get("length", 1.0)) is float
    shapes = record.get("shapes", [[]] * len(record["fields"]))  # only where boundary data are evaluated for each y
    fits &= isinstance(shapes, list) and len(shapes) == len(record["fields"])
    fits &= all(isinstance(own, list) and all(type(number) is int for number in own) for own in shapes)
    made = record["record"]
    fits &= isinstance(made, dict) and isinstance(made.get("options", {}), dict)
    witnesses = made.get("neumann", []) if isinstance(made, dict) else []
    fits &= isinstance(witnesses, list) and all(map(_is_witness, witnesses))
    for key in ("region_names", "facet_names"):  # only of meshes that have names
        names = made.get(key, {}) if isinstance(made, dict) else {}
        fits &= isinstance(names, dict) and all(type(tag) is int for tag in names.values())
    if not fits:
        raise ValueError("fields, families or the record have other types than in a frame")
