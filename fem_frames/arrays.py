"""FrameArrays: all that torch needs to know of a multilevel frame, as NumPy arrays in float64.

The border between DOLFINx and torch: made by `export_frame`, saved as .npz, loaded where there is no DOLFINx.

N points and K cells of the finest level J, j a level, n_j free dofs of a field on it, Q quadrature points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fem_frames.files import load_arrays, save_arrays
from fem_frames.mesh import Floats, Grid, Ints, MeshArrays
from fem_frames.problem import Problem

KIND, VERSION = "frame arrays", 2  # 2: points numbered by the cells they lie in
FORMULATIONS = ("energy", "least-squares")


@dataclass(frozen=True, eq=False)
class FrameLevel:
    """Mesh of one level of the frame."""

    cells: Ints  # (K_j, d+1) points of each cell; cell c has the children 2^d c, …, 2^d c + 2^d - 1
    ends: Ints  # (new points, 2) P_j: a point of the level before keeps its value, new ones take the mean of two
    gradients: Floats  # (K_j, d+1, d) gradients of the nodal hats, not normalised


@dataclass(frozen=True, eq=False)
class FrameField:
    """One P1 field: which points of each level are free, and what normalises their hats in H1."""

    name: str
    free: tuple[Ints, ...]  # for each level (n_j,) points
    scale: tuple[Floats, ...]  # for each level (n_j,) 1 / (H1 norm of the hat)
    lift: Floats  # (N,) nodal values that take the essential boundary data; zero where there are none

    @property
    def level_sizes(self) -> tuple[int, ...]:
        return tuple(len(free) for free in self.free)


@dataclass(frozen=True, eq=False)
class FrameArrays:
    """A multilevel frame on nested meshes.

    Frame coefficients are ordered by field, then level from coarse to fine, then `free`; nodal values by field,
    then `free` of the finest level.
    """

    formulation: str
    first_level: int
    points: Floats  # (N, d); those of a coarser level are the first ones
    levels: tuple[FrameLevel, ...]
    fields: tuple[FrameField, ...]
    volumes: Floats  # (K,)
    centres: Floats  # (K, d)
    regions: Ints  # (K,)
    rule_points: Floats  # (Q, d+1) barycentric
    rule_weights: Floats  # (Q,), sum 1
    neumann_load: Floats  # (N,) integrals of Neumann data times hats; zero for (LS), where they are essential
    record: Mapping[str, Any] = field(default_factory=dict)
    """The problem's name and options, versions of what made the arrays."""

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
        return sum(sum(f.level_sizes) for f in self.fields)

    @property
    def nodal_size(self) -> int:
        """N, number of free nodal values of all fields on the finest level."""
        return sum(f.level_sizes[-1] for f in self.fields)

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
            fields=tuple(
                FrameField(f.name, f.free[:count], f.scale[:count], f.lift[: len(points)].copy()) for f in self.fields
            ),
            volumes=self.volumes.reshape(K, -1).sum(axis=1),
            centres=centres.reshape(K, d),
            regions=tags.astype(np.int64),
            neumann_load=load,
        )

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
        elif not np.allclose(problem.boundary_values(problem.dirichlet_value, self.points), self.fields[0].lift):
            wrong = "its dirichlet_value is another"
        elif problem.neumann_value == 0.0 and self.neumann_load.any():
            wrong = "its neumann_value is zero, that of the frame is not"
        if wrong:
            raise ValueError(f"problem {name} does not fit the frame, which is one of {made}: {wrong}; export it again")

    def save(self, path: str | Path) -> None:
        """Writes one .npz file, whole or not at all."""
        record = {
            "formulation": self.formulation,
            "first_level": self.first_level,
            "levels": len(self.levels),
            "fields": [f.name for f in self.fields],
            "record": dict(self.record),
        }
        save_arrays(path, KIND, VERSION, self._flat(), record, compress=True)

    @classmethod
    def load(cls, path: str | Path) -> FrameArrays:
        """Reads what `save` wrote; refuses anything else."""
        flat, record = load_arrays(path, KIND, VERSION)
        try:
            count = range(record["levels"])
            return cls(
                formulation=record["formulation"],
                first_level=record["first_level"],
                levels=tuple(FrameLevel(*(flat[f"level{j}.{k}"] for k in _LEVEL_ARRAYS)) for j in count),
                fields=tuple(
                    FrameField(
                        name,
                        tuple(flat[f"{name}.free{j}"] for j in count),
                        tuple(flat[f"{name}.scale{j}"] for j in count),
                        flat[f"{name}.lift"],
                    )
                    for name in record["fields"]
                ),
                record=record["record"],
                **{name: flat[name] for name in _OWN_ARRAYS},
            )
        except KeyError as error:
            raise ValueError(f"{path} lacks {error}: it is no complete file of frame arrays") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{path} does not hold a frame: {error}") from error

    def _flat(self) -> dict[str, npt.NDArray]:
        flat: dict[str, npt.NDArray] = {name: getattr(self, name) for name in _OWN_ARRAYS}
        for j, level in enumerate(self.levels):
            flat |= {f"level{j}.{name}": getattr(level, name) for name in _LEVEL_ARRAYS}
        for f in self.fields:
            flat[f"{f.name}.lift"] = f.lift
            for j in range(len(f.free)):
                flat |= {f"{f.name}.free{j}": f.free[j], f"{f.name}.scale{j}": f.scale[j]}
        return flat

    def _check(self) -> None:
        if self.formulation not in FORMULATIONS:
            raise ValueError(f"formulation is {self.formulation!r}; choose from {', '.join(FORMULATIONS)}")
        if not isinstance(self.first_level, int) or self.first_level < 0:
            raise ValueError(f"first_level is {self.first_level!r}; a whole number is expected")
        if not self.levels or not self.fields or self.points.ndim != 2:
            raise ValueError("a frame needs points (N, d), at least one level and one field")
        for name, array in self._flat().items():
            if array.dtype != (np.int64 if name.rpartition(".")[2].rstrip("0123456789") in _WHOLE else np.float64):
                raise ValueError(f"{name} has dtype {array.dtype}")
            if array.dtype == np.float64 and not np.isfinite(array).all():
                raise ValueError(f"{name} has values that are not finite")
        d, K, Q = self.dimension, len(self.levels[-1].cells), len(self.rule_weights)
        shapes = {
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
        for f in self.fields:
            shapes[f"{f.name}.lift"] = (len(self.points),)
            if not len(f.free) == len(f.scale) == len(self.levels):
                raise ValueError(
                    f"field {f.name} has {len(f.free)} and {len(f.scale)} tables for {len(self.levels)} levels"
                )
            shapes |= {f"{f.name}.scale{j}": (len(free),) for j, free in enumerate(f.free)}
        flat = self._flat()
        for name, shape in shapes.items():
            if flat[name].shape != shape:
                raise ValueError(f"{name} has shape {flat[name].shape}, expected {shape}")
        for j, level in enumerate(self.levels):
            count, before = self.point_count(j), self.point_count(j - 1) if j else len(self.points)
            tables = [("cells", level.cells, count), ("ends", level.ends, before)]
            tables += [(f"{f.name}.free", f.free[j], count) for f in self.fields]
            for name, table, bound in tables:
                if table.size and not 0 <= table.min() <= table.max() < bound:
                    raise ValueError(f"{name} of level {self.first_level + j} refers to points that are not there")


_LEVEL_ARRAYS = ("cells", "ends", "gradients")
_OWN_ARRAYS = ("points", "volumes", "centres", "regions", "rule_points", "rule_weights", "neumann_load")
_WHOLE = ("cells", "ends", "free", "regions")
