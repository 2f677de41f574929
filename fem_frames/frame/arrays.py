"""FrameArrays: all that torch needs to know of a multilevel frame, as NumPy arrays in float64.

They are the border between DOLFINx and torch: `export_frame` makes them, and their .npz files load without DOLFINx.

N points and K cells of the finest level J, j a level, n_j functions of a family on it, Q quadrature points.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fem_frames.files import load_arrays, one_line, save_arrays
from fem_frames.frame.boundary import BoundaryFacets, LiftShape, shapes_from_flat
from fem_frames.frame.coarsening import coarsened
from fem_frames.frame.curvature import moved_points
from fem_frames.frame.elements import Element, element_class, unrecorded_element
from fem_frames.frame.facet_groups import FacetGroups
from fem_frames.frame.families import FrameFamily
from fem_frames.frame.frame_checks import check_frame, check_geometry, check_record
from fem_frames.frame.sparse import SparseMatrix
from fem_frames.mesh.coarse import Grid, MeshArrays
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.mesh.simplices import simplices
from fem_frames.problem.curved import lies_on
from fem_frames.problem.definition import Problem
from fem_frames.problem.densities import Density

# 2: points numbered by the cells they lie in; 3: families; 4: coarse levels and lengths
KIND, VERSION, OLDEST = "frame arrays", 4, 3


@dataclass(frozen=True, eq=False)
class FrameLevel:
    """Mesh of one level of the frame."""

    cells: Ints  # (K_j, d+1) points of each cell; cell c has the children 2^d c, …, 2^d c + 2^d - 1
    ends: Ints  # (new points, 2) P_j: points of the previous level keep their values, a new one averages its two ends
    gradients: Floats  # (K_j, d+1, d) gradients of the nodal hats, not normalised


@dataclass(frozen=True, eq=False)
class FrameField:
    """An unknown function: its element, and which of its nodal values are free."""

    name: str
    element: Element
    free: tuple[Ints, ...]  # for each level, the simplices whose nodal values are free
    lift: tuple[Floats, ...]  # for each level, nodal values of a function that satisfies the essential boundary data
    shapes: tuple[LiftShape, ...] = ()
    """The functions that carry essential data that depend on y; `lift` then satisfies the other ones."""

    @property
    def degree(self) -> int:
        """Dimension of the simplices that carry its nodal values."""
        return self.element.degree

    def coarsened(self, count: int) -> FrameField:
        """The field on the first `count` levels."""
        shapes = tuple(LiftShape(shape.condition, shape.values[:count]) for shape in self.shapes)
        return replace(self, free=self.free[:count], lift=self.lift[:count], shapes=shapes)


@dataclass(frozen=True, eq=False)
class FrameArrays:
    """A multilevel frame on nested meshes.

    Frame coefficients are ordered by family, then level from coarse to fine, then `free`; nodal values by field,
    then `free` of the finest level. See docs/problems.md.
    """

    formulation: str
    first_level: int
    points: Floats  # (N, d); the points of coarser levels come first
    levels: tuple[FrameLevel, ...]
    fields: tuple[FrameField, ...]
    families: tuple[FrameFamily, ...]
    volumes: Floats  # (K,)
    centres: Floats  # (K, d)
    regions: Ints  # (K,)
    rule_points: Floats  # (Q, d+1) barycentric
    rule_weights: Floats  # (Q,), sum 1
    neumann_load: Floats  # (N,) integrals of Neumann data times hats; zero for (LS), where these data are essential
    length: float = 1.0
    """L, the unit in which norms and functionals measure lengths: the longest side of the box around the domain."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """The problem's name and options, and the versions of the software that made the arrays."""
    boundary: BoundaryFacets | None = None
    """Facets whose data enter the functional for each y; None if no boundary data are evaluated for each y."""
    groups: FacetGroups | None = None
    """All finest boundary facets, for outputs and equations; None in files of earlier versions."""
    _simplices: dict[tuple[int, int], tuple[Ints, Ints]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_frame(self)
        for array in self.flat().values():
            array.flags.writeable = False

    def __repr__(self) -> str:
        return f"FrameArrays({self.formulation}, {self.dimension}D, {self.level_text}, Nhat = {self.frame_size})"

    @property
    def level_text(self) -> str:
        """The levels in words."""
        coarse = "a coarse level and " if self.has_coarse else ""
        return f"{coarse}levels {self.first_level} to {self.finest_level}"

    @property
    def dimension(self) -> int:
        return int(self.points.shape[1])

    @property
    def finest_level(self) -> int:
        return self.first_level + len(self.levels) - 1

    @property
    def has_coarse(self) -> bool:
        """Whether some family has a coarse level below the first mesh."""
        return any(family.coarse for family in self.families)

    @property
    def lowest_level(self) -> int:
        """The number of the first entry of `level_sizes`: the coarse level comes before the first mesh."""
        return self.first_level - self.has_coarse

    @property
    def level_sizes(self) -> dict[str, tuple[int, ...]]:
        """The number of frame coefficients of each family on every level, the coarse level first if there is one."""
        if not self.has_coarse:
            return {family.name: family.level_sizes for family in self.families}
        return {
            family.name: (family.coarse, family.level_sizes[0] - family.coarse, *family.level_sizes[1:])
            for family in self.families
        }

    @property
    def level_depths(self) -> tuple[float, ...]:
        """For each entry of `level_sizes`, how often a domain of one cell is halved until cells have the level's size.

        Without a coarse level these are the numbers of the levels. With one, it has depth 0, and the depth of the first
        mesh follows from its number of points.
        """
        if not self.has_coarse:
            return tuple(float(self.first_level + j) for j in range(len(self.levels)))
        depth = float(np.log2(self.point_count(0)) / self.dimension)
        return (0.0, *(depth + j for j in range(len(self.levels))))

    @property
    def frame_size(self) -> int:
        """Nhat, number of frame coefficients."""
        return sum(sum(family.level_sizes) for family in self.families)

    @property
    def nodal_size(self) -> int:
        """N, number of free nodal values of all fields on the finest level."""
        return sum(len(f.free[-1]) for f in self.fields)

    @cached_property
    def curved(self) -> bool:
        """Whether points were moved onto curved boundaries, so that cells do not contain their children exactly."""
        return bool(moved_points(self).any())

    def simplices(self, index: int, k: int) -> tuple[Ints, Ints]:
        """(S, k+1) points of the k-simplices of levels[index], and (K_j, C) numbers of the k-simplices of each cell."""
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

        `regions` maps the midpoints (K, d) of cells to tags, as `Problem.regions` does. By default a cell takes the tag
        of its first child, which is correct if children inherit tags. On curved boundaries the load of Neumann data
        remains that of the finest facets.
        """
        if not self.first_level <= level <= self.finest_level:
            raise ValueError(f"level is {level}; the frame has the levels {self.first_level} to {self.finest_level}")
        return coarsened(self, level - self.first_level + 1, regions)

    def without(self, family: str) -> FrameArrays:
        """The frame without a family that is not nodal, such as the curls (with the harmonic fields among them)."""
        left = tuple(f for f in self.families if f.name != family)
        if len(left) == len(self.families):
            raise ValueError(f"there is no family {family!r}; the frame has {', '.join(f.name for f in self.families)}")
        if family in {f.name for f in self.fields}:
            raise ValueError(f"without the family {family!r} the frame does not span {family}; curls can be left out")
        return replace(self, families=left)

    def check_problem(self, problem: Problem) -> None:
        """Raises a ValueError if points, regions or data show that the frame belongs to another problem."""
        made, name = self.record.get("problem"), problem.name
        wrong = ""
        mesh, points, curved = problem.mesh, self.points, self.record.get("curved", [])
        if curved and isinstance(mesh, Grid | MeshArrays):  # points of finer levels may have left the box
            points = points[: mesh.point_count]
        box = np.array([points.min(axis=0), points.max(axis=0)])
        if isinstance(mesh, Grid | MeshArrays) and mesh.box.shape != box.shape:
            wrong = f"the frame is {self.dimension}-dimensional, the problem {mesh.box.shape[1]}-dimensional"
        elif isinstance(mesh, Grid | MeshArrays) and not np.allclose(mesh.box, box):
            wrong = f"the frame lies in the box {box.tolist()}, the problem in {mesh.box.tolist()}"
        elif made == name and dict(self.record.get("options", {})) != dict(problem.options):
            wrong = f"its options are {dict(problem.options)}, but the frame has {self.record.get('options')}"
        elif self.record.get("quadrature_degree", problem.quadrature_degree) != problem.quadrature_degree:
            wrong = f"its quadrature_degree is {problem.quadrature_degree}, not {self.record['quadrature_degree']}"
        elif mesh is not None and curved != sorted(map(str, problem.curved)):
            wrong = f"its boundary is curved on {sorted(map(str, problem.curved))}, that of the frame on {curved}"
        elif curved and problem.curved and lies_on(problem.curved, self.points[moved_points(self)]) is False:
            wrong = "boundary points of the frame do not lie on its curves"
        elif problem.length not in (None, self.length):
            wrong = f"its length is {problem.length}, not {self.length}"
        elif not self._has_equation(problem):
            wrong = "its equation differs"
        elif problem.regions is not None and not np.array_equal(problem.regions(self.centres), self.regions):
            wrong = "its regions differ"
        if wrong:
            raise self.misfit(problem, wrong)

    def _has_equation(self, problem: Problem) -> bool:
        """Whether the programs of the frame are those of the problem; neither may have any."""
        own = self.record.get("equation")
        if own is None or problem.equation is None:
            return own is None and problem.equation is None
        found = problem.equation.compiled(self.dimension, problem.parameters.dimension)
        return json.dumps(found.record()) == json.dumps(own) or found.agrees(Density.from_record(own))

    def with_tags(self, problem: Problem) -> Problem:
        """The problem with region tags in place of names, by the names that the mesh of the frame had."""
        try:
            return problem.with_tags(self.record.get("region_names", {}))
        except ValueError as error:
            raise self.misfit(problem, str(error)) from error

    def misfit(self, problem: Problem, wrong: str) -> ValueError:
        """The error for a problem that does not fit the frame."""
        made = self.record.get("problem")
        return ValueError(f"problem {problem.name} does not fit the frame, made for {made}: {wrong}; export it again")

    def save(self, path: str | Path) -> None:
        """Writes one .npz file, either completely or not at all."""
        record = {
            "formulation": self.formulation,
            "first_level": self.first_level,
            "levels": len(self.levels),
            "fields": [(f.name, f.degree) for f in self.fields],
            "elements": [f.element.name for f in self.fields],
            "families": [(f.name, f.field, f.degree, [rows.shape for rows in f.functions]) for f in self.families],
            "coarse": [f.coarse for f in self.families],
            "length": self.length,
            "record": dict(self.record),
        }
        if self.boundary is not None:
            record["shapes"] = [[shape.condition for shape in f.shapes] for f in self.fields]
        save_arrays(path, KIND, VERSION, self.flat(), record, compress=True)

    @staticmethod
    def record_of(path: str | Path) -> dict[str, Any]:
        """The record in a file of `save`: problem, options and versions. Needs no elements of users."""
        record = load_arrays(path, KIND, VERSION, OLDEST)[1]
        try:
            check_record(record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{path} does not hold a frame: {one_line(error)}") from error
        return dict(record["record"])

    @classmethod
    def load(cls, path: str | Path) -> FrameArrays:
        """Reads a file of `save`; refuses anything else."""
        flat, record = load_arrays(path, KIND, VERSION, OLDEST)
        try:
            check_record(record)
            count = range(record["levels"])
            elements = _elements(record, flat["points"].shape[1], flat["volumes"])
            made = cls(
                formulation=record["formulation"],
                first_level=record["first_level"],
                levels=tuple(FrameLevel(*(flat[f"level{j}.{k}"] for k in _LEVEL_ARRAYS)) for j in count),
                fields=tuple(
                    FrameField(
                        name,
                        element,
                        _tables(flat, f"field.{name}.free", count),
                        _tables(flat, f"field.{name}.lift", count),
                        shapes_from_flat(flat, name, conditions, len(count)),
                    )
                    for (name, _), element, conditions in zip(record["fields"], elements, _shapes(record), strict=True)
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
                        coarse,
                    )
                    for (name, of, degree, shapes), coarse in zip(
                        record["families"], record.get("coarse", [0] * len(record["families"])), strict=True
                    )
                ),
                length=record.get("length", 1.0),
                record=record["record"],
                boundary=BoundaryFacets.from_flat(flat, len(count)),
                groups=FacetGroups.from_flat(flat),
                **{name: flat[name] for name in _OWN_ARRAYS},
            )
            check_geometry(made)
        except KeyError as error:
            raise ValueError(f"{path} lacks {error}: it is not a complete file of frame arrays") from error
        except (TypeError, ValueError, AttributeError, LookupError) as error:
            raise ValueError(f"{path} does not hold a frame: {one_line(error)}") from error
        return made

    def flat(self) -> dict[str, npt.NDArray]:
        """All arrays by their names in a file."""
        flat: dict[str, npt.NDArray] = {name: getattr(self, name) for name in _OWN_ARRAYS}
        for j, level in enumerate(self.levels):
            flat |= {f"level{j}.{name}": getattr(level, name) for name in _LEVEL_ARRAYS}
        for f in self.fields:
            flat |= {f"field.{f.name}.free{j}": free for j, free in enumerate(f.free)}
            flat |= {f"field.{f.name}.lift{j}": lift for j, lift in enumerate(f.lift)}
            for shape in f.shapes:
                key = f"field.{f.name}.shape{shape.condition}.values"
                flat |= {f"{key}{j}": values for j, values in enumerate(shape.values)}
        for family in self.families:
            flat |= {f"family.{family.name}.free{j}": free for j, free in enumerate(family.free)}
            for j, rows in enumerate(family.functions):
                flat |= {f"family.{family.name}.{name}{j}": getattr(rows, name) for name in _ROWS}
        for part in (self.boundary, self.groups):
            flat |= {} if part is None else part.flat()
        return flat


def _elements(record: Mapping[str, Any], dimension: int, volumes: Floats) -> list[Element]:
    """The elements of the fields; files of earlier versions do not name them."""
    names = record.get("elements")
    if names is None:
        kinds = [unrecorded_element(k) for k in range(len(record["fields"]))]
    else:
        kinds = [element_class(name) for name in names]
    found = [kind.for_mesh(dimension, volumes) for kind in kinds]
    for (name, degree), element in zip(record["fields"], found, strict=True):
        if degree != element.degree:
            raise ValueError(f"{name} has degree {degree} in dimension {dimension}, which does not fit {element.name}")
    return found


def _shapes(record: Mapping[str, Any]) -> list[list[int]]:
    """For each field, the conditions whose data depend on y; most files have none."""
    return list(record.get("shapes", [[]] * len(record["fields"])))


def _tables(flat: Mapping[str, npt.NDArray], name: str, count: range) -> tuple[npt.NDArray, ...]:
    return tuple(flat[f"{name}{j}"] for j in count)


_LEVEL_ARRAYS = ("cells", "ends", "gradients")
_OWN_ARRAYS = ("points", "volumes", "centres", "regions", "rule_points", "rule_weights", "neumann_load")
_ROWS = ("starts", "columns", "weights")
