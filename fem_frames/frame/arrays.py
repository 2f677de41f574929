"""FrameArrays: all that torch needs to know of a multilevel frame, as NumPy arrays in float64.

The border between DOLFINx and torch: made by `export_frame`, saved as .npz, loaded where there is no DOLFINx.

N points and K cells of the finest level J, j a level, n_j functions of a family on it, Q quadrature points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fem_frames.files import load_arrays, one_line, save_arrays
from fem_frames.frame.sparse import SparseMatrix
from fem_frames.mesh.coarse import Grid, MeshArrays
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.mesh.simplices import simplices
from fem_frames.problem.definition import Problem

KIND, VERSION = "frame arrays", 3  # 2: points numbered by the cells they lie in; 3: families


@dataclass(frozen=True, eq=False)
class FrameLevel:
    """Mesh of one level of the frame."""

    cells: Ints  # (K_j, d+1) points of each cell; cell c has the children 2^d c, …, 2^d c + 2^d - 1
    ends: Ints  # (new points, 2) P_j: a point of the level before keeps its value, new ones take the mean of two
    gradients: Floats  # (K_j, d+1, d) gradients of the nodal hats, not normalised


@dataclass(frozen=True, eq=False)
class FrameField:
    """An unknown function: P1 with values at points (degree 0), or RT0 with fluxes through facets (degree d - 1)."""

    name: str
    degree: int
    """Dimension of the simplices that carry its nodal values."""
    free: tuple[Ints, ...]  # for each level, the simplices whose nodal values are free
    lift: tuple[Floats, ...]  # for each level, nodal values at all simplices that take the essential boundary data


@dataclass(frozen=True, eq=False)
class FrameFamily:
    """Functions on every level, as combinations of the nodal basis of that level: columns are simplices of the field.

    Nodal families have one entry a function, what normalises it in H1 or H(div). The family "curl" has the curls of
    the Whitney forms of dimension d - 2, hats for triangles; on the first level also what harmonic fields there are.
    """

    name: str
    field: str
    degree: int
    """Dimension of the simplices that the functions belong to."""
    free: tuple[Ints, ...]  # for each level, these simplices, in the order of the functions
    functions: tuple[SparseMatrix, ...]  # for each level (n_j, simplices of the field)

    @property
    def scale(self) -> tuple[Floats, ...]:
        """Of a nodal family, for each level (n_j,) what normalises its functions."""
        return tuple(functions.weights for functions in self.functions)

    @property
    def level_sizes(self) -> tuple[int, ...]:
        return tuple(functions.shape[0] for functions in self.functions)


@dataclass(frozen=True, eq=False)
class FrameArrays:
    """A multilevel frame on nested meshes.

    Frame coefficients are ordered by family, then level from coarse to fine, then `free`; nodal values by field,
    then `free` of the finest level.
    """

    formulation: str
    first_level: int
    points: Floats  # (N, d); those of a coarser level are the first ones
    levels: tuple[FrameLevel, ...]
    fields: tuple[FrameField, ...]
    families: tuple[FrameFamily, ...]
    volumes: Floats  # (K,)
    centres: Floats  # (K, d)
    regions: Ints  # (K,)
    rule_points: Floats  # (Q, d+1) barycentric
    rule_weights: Floats  # (Q,), sum 1
    neumann_load: Floats  # (N,) integrals of Neumann data times hats; zero for (LS), where they are essential
    record: Mapping[str, Any] = field(default_factory=dict)
    """The problem's name and options, versions of what made the arrays."""
    _simplices: dict[tuple[int, int], tuple[Ints, Ints]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._check()
        for array in self._flat().values():
            array.flags.writeable = False

    def __repr__(self) -> str:
        levels = f"levels {self.first_level} to {self.finest_level}"
        return f"FrameArrays({self.formulation}, {self.dimension}D, {levels}, Nhat = {self.frame_size})"

    @property
    def dimension(self) -> int:
        return int(self.points.shape[1])

    @property
    def finest_level(self) -> int:
        return self.first_level + len(self.levels) - 1

    @property
    def frame_size(self) -> int:
        """Nhat, number of frame coefficients."""
        return sum(sum(family.level_sizes) for family in self.families)

    @property
    def nodal_size(self) -> int:
        """N, number of free nodal values of all fields on the finest level."""
        return sum(len(f.free[-1]) for f in self.fields)

    def simplices(self, index: int, k: int) -> tuple[Ints, Ints]:
        """(S, k+1) points of the k-simplices of levels[index], and (K_j, C) those of each cell."""
        if (index, k) not in self._simplices:
            self._simplices[index, k] = simplices(self.levels[index].cells, k)
        return self._simplices[index, k]

    def ancestors(self, index: int) -> Ints:
        """(K,) cell of levels[index] that each finest cell lies in."""
        return np.arange(len(self.volumes)) >> (self.dimension * (len(self.levels) - 1 - index))

    def point_count(self, index: int) -> int:
        """Number of points of levels[index]."""
        return len(self.points) - sum(len(level.ends) for level in self.levels[index + 1 :])

    def coarsened(self, level: int, regions: Callable[[Floats], npt.ArrayLike] | None = None) -> FrameArrays:
        """The frame that ends at a coarser level, on the same problem.

        `regions` gives the tags from the midpoints (K, d) of cells, as `Problem.regions` does; None: a cell has that of
        its first child, right where children inherit it.
        """
        if not self.first_level <= level <= self.finest_level:
            raise ValueError(f"level is {level}; the frame has the levels {self.first_level} to {self.finest_level}")
        count = level - self.first_level + 1
        levels, d = self.levels[:count], self.dimension
        points = self.points[: self.point_count(count - 1)].copy()
        load = self.neumann_load.copy()
        for index in range(len(self.levels) - 1, count - 1, -1):  # a coarse hat is made of finer ones
            size, ends = self.point_count(index - 1), self.levels[index].ends
            np.add.at(load, ends, 0.5 * load[size : size + len(ends), None])
            load = load[:size].copy()
        K = len(levels[-1].cells)
        centres = points[levels[-1].cells].mean(axis=1)
        tags = self.regions[:: len(self.regions) // K].copy() if regions is None else np.asarray(regions(centres))
        return replace(
            self,
            points=points,
            levels=levels,
            fields=tuple(replace(f, free=f.free[:count], lift=f.lift[:count]) for f in self.fields),
            families=tuple(replace(f, free=f.free[:count], functions=f.functions[:count]) for f in self.families),
            volumes=self.volumes.reshape(K, -1).sum(axis=1),
            centres=centres.reshape(K, d),
            regions=tags.astype(np.int64),
            neumann_load=load,
        )

    def without(self, family: str) -> FrameArrays:
        """The frame without a family that is no nodal one: without curls, and the harmonic fields among them."""
        left = tuple(f for f in self.families if f.name != family)
        if len(left) == len(self.families):
            raise ValueError(f"there is no family {family!r}; the frame has {', '.join(f.name for f in self.families)}")
        if family in {f.name for f in self.fields}:
            raise ValueError(f"without the family {family!r} the frame does not span {family}; curls can be left out")
        return replace(self, families=left)

    def check_problem(self, problem: Problem) -> None:
        """A ValueError if the frame is that of another problem, as far as points, regions and data tell."""
        made, name = self.record.get("problem"), problem.name
        wrong = ""
        mesh, box = problem.mesh, np.array([self.points.min(axis=0), self.points.max(axis=0)])
        if isinstance(mesh, Grid | MeshArrays) and mesh.box.shape != box.shape:
            wrong = f"the frame is {self.dimension}-dimensional, the problem {mesh.box.shape[1]}-dimensional"
        elif isinstance(mesh, Grid | MeshArrays) and not np.allclose(mesh.box, box):
            wrong = f"the frame lies in the box {box.tolist()}, the problem in {mesh.box.tolist()}"
        elif made == name and dict(self.record.get("options", {})) != dict(problem.options):
            wrong = f"its options are {dict(problem.options)}, those of the frame {self.record.get('options')}"
        elif self.record.get("quadrature_degree", problem.quadrature_degree) != problem.quadrature_degree:
            wrong = f"its quadrature_degree is {problem.quadrature_degree}, not {self.record['quadrature_degree']}"
        elif problem.regions is not None and not np.array_equal(problem.regions(self.centres), self.regions):
            wrong = "its regions are others"
        elif not np.allclose(problem.boundary_values("dirichlet_value", self.points), self.fields[0].lift[-1]):
            wrong = "its dirichlet_value is another"
        elif problem.neumann_value == 0.0 and (
            self.neumann_load.any() or any(f.lift[-1].any() for f in self.fields[1:])
        ):
            wrong = "its neumann_value is zero, that of the frame is not"
        if wrong:
            raise ValueError(f"problem {name} does not fit the frame, which is one of {made}: {wrong}; export it again")

    def save(self, path: str | Path) -> None:
        """Writes one .npz file, whole or not at all."""
        record = {
            "formulation": self.formulation,
            "first_level": self.first_level,
            "levels": len(self.levels),
            "fields": [(f.name, f.degree) for f in self.fields],
            "families": [(f.name, f.field, f.degree, [rows.shape for rows in f.functions]) for f in self.families],
            "record": dict(self.record),
        }
        save_arrays(path, KIND, VERSION, self._flat(), record, compress=True)

    @classmethod
    def load(cls, path: str | Path) -> FrameArrays:
        """Reads what `save` wrote; refuses anything else."""
        flat, record = load_arrays(path, KIND, VERSION)
        try:
            _check_record(record)
            count = range(record["levels"])
            return cls(
                formulation=record["formulation"],
                first_level=record["first_level"],
                levels=tuple(FrameLevel(*(flat[f"level{j}.{k}"] for k in _LEVEL_ARRAYS)) for j in count),
                fields=tuple(
                    FrameField(name, degree, *(_tables(flat, f"field.{name}.{k}", count) for k in ("free", "lift")))
                    for name, degree in record["fields"]
                ),
                families=tuple(
                    FrameFamily(
                        name,
                        of,
                        degree,
                        _tables(flat, f"family.{name}.free", count),
                        tuple(
                            SparseMatrix(
                                flat[f"{key}.starts{j}"], flat[f"{key}.columns{j}"], flat[f"{key}.weights{j}"], (n, s)
                            )
                            for key in (f"family.{name}",)
                            for j, (n, s) in enumerate(shapes)
                        ),
                    )
                    for name, of, degree, shapes in record["families"]
                ),
                record=record["record"],
                **{name: flat[name] for name in _OWN_ARRAYS},
            )
        except KeyError as error:
            raise ValueError(f"{path} lacks {error}: it is no complete file of frame arrays") from error
        except (TypeError, ValueError, AttributeError, LookupError) as error:
            raise ValueError(f"{path} does not hold a frame: {one_line(error)}") from error

    def _flat(self) -> dict[str, npt.NDArray]:
        flat: dict[str, npt.NDArray] = {name: getattr(self, name) for name in _OWN_ARRAYS}
        for j, level in enumerate(self.levels):
            flat |= {f"level{j}.{name}": getattr(level, name) for name in _LEVEL_ARRAYS}
        for f in self.fields:
            flat |= {f"field.{f.name}.free{j}": free for j, free in enumerate(f.free)}
            flat |= {f"field.{f.name}.lift{j}": lift for j, lift in enumerate(f.lift)}
        for family in self.families:
            flat |= {f"family.{family.name}.free{j}": free for j, free in enumerate(family.free)}
            for j, rows in enumerate(family.functions):
                flat |= {f"family.{family.name}.{name}{j}": getattr(rows, name) for name in _ROWS}
        return flat

    def _check(self) -> None:
        if not isinstance(self.formulation, str):
            raise ValueError(f"formulation is {self.formulation!r}; a name is expected")
        if not isinstance(self.first_level, int) or self.first_level < 0:
            raise ValueError(f"first_level is {self.first_level!r}; a whole number is expected")
        if not self.levels or not self.fields or not self.families or self.points.ndim != 2:
            raise ValueError("a frame needs points (N, d), at least one level, one field and one family")
        for name, array in self._flat().items():
            if array.dtype != (np.int64 if name.rpartition(".")[2].rstrip("0123456789") in _WHOLE else np.float64):
                raise ValueError(f"{name} has dtype {array.dtype}")
            if array.dtype == np.float64 and not np.isfinite(array).all():
                raise ValueError(f"{name} has values that are not finite")
        d, K, Q = self.dimension, len(self.levels[-1].cells), len(self.rule_weights)
        expected = [("u", 0)] if self.formulation == "energy" else [("u", 0), ("sigma", d - 1)]
        if d not in (1, 2, 3) or [(f.name, f.degree) for f in self.fields] != expected:
            found = ", ".join(f"{f.name} of degree {f.degree}" for f in self.fields)
            raise ValueError(f"fields are {found} in dimension {d}, which are not those of {self.formulation}")
        if K == 0 or not (self.volumes > 0).all():
            raise ValueError("some cells have no volume, or there are no cells")
        shapes = {
            "rule_weights": (Q,),
            "volumes": (K,),
            "centres": (K, d),
            "regions": (K,),
            "rule_points": (Q, d + 1),
            "neumann_load": (len(self.points),),
        }
        for j, level in enumerate(self.levels):
            cells = K >> (d * (len(self.levels) - 1 - j))
            shapes |= {f"level{j}.cells": (cells, d + 1), f"level{j}.gradients": (cells, d + 1, d)}
            shapes[f"level{j}.ends"] = (len(level.ends), 2)
        flat = self._flat()
        for name, shape in shapes.items():
            if flat[name].shape != shape:
                raise ValueError(f"{name} has shape {flat[name].shape}, expected {shape}")
        for j, level in enumerate(self.levels):
            count, before = self.point_count(j), self.point_count(j - 1) if j else len(self.points)
            for name, table, bound in (("cells", level.cells, count), ("ends", level.ends, before)):
                _check_references(table, bound, f"{name} of level {self.first_level + j}")
            if level.cells.max() + 1 != count:
                raise ValueError(f"level {self.first_level + j} has {count} points, its cells {level.cells.max() + 1}")
        self._check_functions()

    def _check_functions(self) -> None:
        """Fields and families have tables for all levels, which refer to simplices that are there."""
        count, degrees = len(self.levels), {f.name: f.degree for f in self.fields}
        names = [f.name for f in self.families]
        if names[: len(degrees)] != list(degrees) or len(set(names)) < len(names):
            raise ValueError(f"families are {', '.join(names)}; one of each field is expected, and others after these")
        tables = [(f.name, f.degree, len(f.free), len(f.lift)) for f in self.fields]
        tables += [(f.name, f.degree, len(f.free), len(f.functions)) for f in self.families]
        for name, degree, *sizes in tables:
            if sizes != [count, count]:
                raise ValueError(f"{name} has {sizes[0]} and {sizes[1]} tables for {count} levels")
            if not 0 <= degree < self.dimension:
                raise ValueError(f"{name} has degree {degree} in dimension {self.dimension}")
        for j in range(count):
            where = f"of level {self.first_level + j}"
            for f in self.fields:
                size = len(self.simplices(j, f.degree)[0])
                _check_references(f.free[j], size, f"{f.name}.free {where}")
                if f.lift[j].shape != (size,):
                    raise ValueError(f"{f.name}.lift {where} has shape {f.lift[j].shape}, expected {(size,)}")
            for family in self.families:
                if family.field not in degrees:
                    raise ValueError(f"family {family.name} is one of {family.field}, which is no field")
                rows, size = family.functions[j], len(self.simplices(j, degrees[family.field])[0])
                _check_references(family.free[j], len(self.simplices(j, family.degree)[0]), f"{family.name} {where}")
                _check_references(rows.columns, size, f"{family.name} {where}")
                whole = (rows.shape[0] + 1,), rows.columns.shape
                if (rows.starts.shape, rows.weights.shape) != whole or rows.shape[1] != size:
                    raise ValueError(f"the functions of {family.name} {where} have arrays that do not fit each other")
                steps = np.diff(rows.starts)
                if rows.starts[0] != 0 or rows.starts[-1] != rows.columns.size or (steps < 0).any():
                    raise ValueError(f"the functions of {family.name} {where} do not follow each other")
                nodal = len(family.free[j]) == len(steps) and (steps == 1).all() and (rows.weights > 0).all()
                if family.name == family.field and not nodal:
                    raise ValueError(f"{family.name} {where} is nodal, but its functions are not")


def _check_references(table: Ints, bound: int, name: str) -> None:
    if table.size and not 0 <= table.min() <= table.max() < bound:
        raise ValueError(f"{name} refers to points that are not there")


def _check_record(record: Any) -> None:
    """A ValueError unless all has the type that `save` gave it."""
    counts = {"levels": (1, 64), "first_level": (0, 64)}
    for name, (least, most) in counts.items():
        value = record[name]
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"{name} is {value!r}; a whole number from {least} to {most} is expected")
    fits = all(type(name) is str and type(degree) is int for name, degree in record["fields"])
    for name, of, degree, shapes in record["families"]:
        fits &= type(name) is str and type(of) is str and type(degree) is int and len(shapes) == record["levels"]
        fits &= all(len(shape) == 2 and all(type(n) is int and n >= 0 for n in shape) for shape in shapes)
    made = record["record"]
    fits &= isinstance(made, dict) and isinstance(made.get("options", {}), dict)
    if not fits:
        raise ValueError("fields, families or the record have other types than a frame's")


def _tables(flat: Mapping[str, npt.NDArray], name: str, count: range) -> tuple[npt.NDArray, ...]:
    return tuple(flat[f"{name}{j}"] for j in count)


_LEVEL_ARRAYS = ("cells", "ends", "gradients")
_OWN_ARRAYS = ("points", "volumes", "centres", "regions", "rule_points", "rule_weights", "neumann_load")
_ROWS = ("starts", "columns", "weights")
_WHOLE = ("cells", "ends", "free", "regions", "starts", "columns")
