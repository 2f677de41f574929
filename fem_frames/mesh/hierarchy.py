"""Nested meshes: a coarse mesh and its uniform refinements, in this package's own numbering.

The numbering depends neither on the DOLFINx release nor on MPI: a level keeps the numbers of the coarser points, and
new points follow in the order of the cells that contain them; the children of cell c are 2^d c, …, 2^d c + 2^d - 1;
vertices ascend within a cell. So the ancestor of fine cell c, j levels up, is c >> (d j).

New points are midpoints of edges, except on curved parts of the boundary, where they lie on the curve.

N points, K cells, F boundary facets, d dimension, J the finest level.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fem_frames.mesh.checks import known_names
from fem_frames.mesh.coarse import Grid, MeshArrays
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.mesh.simplices import SimplexMesh
from fem_frames.problem.boundary import ALL, REST, Condition
from fem_frames.problem.callbacks import calling
from fem_frames.problem.definition import Problem


@dataclass(frozen=True, eq=False)
class Level:
    """One mesh of a hierarchy; its points are the first rows of the hierarchy's points."""

    cells: Ints  # (K, d+1) points of each cell, ascending
    ends: Ints  # (N - N of the coarser level, 2) ends of the edge that each new point halves; (0, 2) on level 0
    facets: Ints  # (F, d) points of each boundary facet, ascending
    facet_origin: Ints  # (F,) boundary facet of level 0 that contains each facet

    @property
    def point_count(self) -> int:
        return int(self.cells.max()) + 1


@dataclass(frozen=True, eq=False)
class MeshHierarchy:
    """Meshes of levels 0, …, J, each the uniform refinement of the one before. See docs/problems.md."""

    points: Floats  # (N, d) of the finest level
    levels: tuple[Level, ...]
    coarse_regions: Ints  # (K of level 0,)
    coarse_facet_tags: Ints  # (F of level 0,), -1 where the mesh has no tag
    refinement: str = "red"
    facet_names: Mapping[str, int] = field(default_factory=dict)
    """Tags of the boundary groups that have a name."""
    region_names: Mapping[str, int] = field(default_factory=dict)
    """Tags of the regions that have a name."""
    inner_facet_tags: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Tags of the tagged facets that lie between two cells of the coarse mesh, one entry per facet."""
    source: Any = None
    """The `Problem.mesh` that was refined."""
    curved: Mapping[Any, Any] = field(default_factory=dict)
    """The `Problem.curved` that new boundary points were moved onto."""

    @classmethod
    def from_problem(cls, problem: Problem, levels: int) -> MeshHierarchy:
        """Refines the mesh of a problem; every rank gets the same hierarchy."""
        from fem_frames.fenicsx.refinement import coarse_mesh

        levels = problem.check_levels(levels)
        made = cls.refine(coarse_mesh(problem.mesh), levels, problem.refinement, problem.curved)
        return replace(made, source=problem.mesh)

    @classmethod
    def refine(
        cls, coarse: MeshArrays, levels: int, refinement: str = "red", curved: Mapping[Any, Any] | None = None
    ) -> MeshHierarchy:
        """Refines a coarse mesh `levels` times, on this rank alone; `curved` is that of a `Problem`."""
        from fem_frames.fenicsx.refinement import refine

        return refine(coarse, levels, refinement, curved)

    @property
    def dimension(self) -> int:
        return int(self.points.shape[1])

    @property
    def finest(self) -> Level:
        return self.levels[-1]

    @cached_property
    def meshes(self) -> tuple[SimplexMesh, ...]:
        """The mesh of every level, with what is computed from it once."""
        return tuple(SimplexMesh(self.level_points(j), level.cells) for j, level in enumerate(self.levels))

    def level_points(self, level: int) -> Floats:
        """(N, d) points of a level."""
        return self.points[: self.levels[level].point_count]

    def centres(self, level: int = -1) -> Floats:
        """(K, d) midpoints of the cells of a level."""
        return np.asarray(self.points[self.levels[level].cells].mean(axis=1))

    def length(self, problem: Problem) -> float:
        """L, the unit of lengths in norms and functionals: by default the longest side of the box around the domain."""
        return float(np.ptp(self.points, axis=0).max()) if problem.length is None else problem.length

    def regions(self, problem: Problem) -> Ints:
        """(K,) region tag of each cell on the finest level."""
        if problem.regions is None:
            return np.repeat(self.coarse_regions, len(self.finest.cells) // len(self.coarse_regions))
        with calling("regions", problem.regions, "it is a function of x (n, d), x[:, i], with n whole numbers"):
            tags = np.asarray(problem.regions(self.centres()))
        if tags.shape != (len(self.finest.cells),):
            raise ValueError(
                f"regions gave tags of shape {tags.shape} for {len(self.finest.cells)} cells; give one per cell"
            )
        if not np.array_equal(tags, tags.astype(np.int64)):
            raise ValueError("regions gave tags that are not whole numbers")
        return tags.astype(np.int64)

    def check_problem(self, problem: Problem) -> None:
        """Raises a ValueError if this hierarchy belongs to the mesh of another problem."""
        if dict(self.curved) != dict(problem.curved):
            raise ValueError(
                f"the hierarchy does not follow the curves of {problem.name}; use MeshHierarchy.from_problem"
            )
        mine, other = self.source, problem.mesh
        if mine is None:
            return
        if isinstance(mine, MeshArrays) and isinstance(other, MeshArrays):
            names = ("points", "cells", "regions", "facets", "facet_tags")  # names do not change the hierarchy
            same = all(np.array_equal(getattr(mine, name), getattr(other, name)) for name in names)
        elif isinstance(mine, str | os.PathLike) and isinstance(other, str | os.PathLike):
            same = Path(mine) == Path(other)
        else:
            same = mine is other or (isinstance(mine, Grid) and bool(mine == other))
        if not same or self.refinement != problem.refinement:
            raise ValueError(f"the hierarchy is not of the mesh of {problem.name}; use MeshHierarchy.from_problem")

    def condition_facets(self, problem: Problem) -> Ints:
        """(F of level 0,) number of the condition in `problem.conditions` of each boundary facet, -1 if insulated."""
        found = np.full(len(self.levels[0].facets), -1)
        rest: list[int] = []
        for number, condition in enumerate(problem.conditions):
            if condition.field:  # fields of an equation have conditions of their own: `Problem.of_field`
                continue
            if condition.where == (REST,):
                rest.append(number)
                continue
            chosen = self.facets_of(condition)
            twice = np.flatnonzero(chosen & (found >= 0))
            if len(twice):
                other = problem.conditions[found[twice[0]]]
                where = self.points[self.levels[0].facets[twice[0]]].tolist()
                raise ValueError(f"{other.text} and {condition.text} both hold on the boundary facet {where}")
            found[chosen] = number
        for number in rest:
            found[found < 0] = number
        return found

    def dirichlet_facets(self, problem: Problem) -> np.ndarray:
        """(F of level 0,) whether u is given on each boundary facet of the coarse mesh."""
        return self._facets_of_kind(problem, "dirichlet")

    def _facets_of_kind(self, problem: Problem, *kinds: str) -> np.ndarray:
        chosen = np.array([*(condition.kind in kinds for condition in problem.conditions), False])
        return np.asarray(chosen[self.condition_facets(problem)])

    def facets_of(self, condition: Condition) -> np.ndarray:
        """(F of level 0,) whether the condition, other than one on the rest, names the facet."""
        if callable(condition.where):
            return self._facets_where(condition.where)
        if condition.where == (ALL,):
            return np.ones(len(self.levels[0].facets), bool)
        tags = [self._tag_of(group, condition) for group in condition.where]
        return np.isin(self.coarse_facet_tags, tags)

    def _tag_of(self, group: str | int, condition: Condition) -> int:
        """The facet tag of a group; raises a ValueError unless all of the group's facets lie on the boundary."""
        outer, inner = self.coarse_facet_tags, self.inner_facet_tags
        tag = self.facet_names.get(group) if isinstance(group, str) else group
        known = set(outer.tolist()) - {-1}
        names = [name for name, number in self.facet_names.items() if number in known]
        others = sorted(known - {self.facet_names[name] for name in names})
        has = known_names(str(group), names, others) or "no groups of boundary facets"
        if names and not isinstance(group, str):
            has = ", ".join([*(f"{name!r} ({self.facet_names[name]})" for name in names), *map(str, others)])
        if tag is None:
            if isinstance(group, str) and group in self.region_names:
                raise ValueError(
                    f"{condition.text}: {group!r} is a region, a group of cells; conditions hold on groups of boundary "
                    f"facets, and the mesh has {has}"
                )
            raise ValueError(f"{condition.text}: no boundary facet is called {group!r}; the mesh has {has}")
        inside = int((inner == tag).sum())
        if inside and tag in known:
            raise ValueError(
                f"{condition.text}: {inside} of {inside + int((outer == tag).sum())} facets of the group {group!r} lie "
                "between cells, inside the domain; make a group of the facets on the boundary alone"
            )
        if inside:
            raise ValueError(
                f"{condition.text}: all {inside} facets of the group {group!r} lie between cells, inside the domain; "
                f"conditions hold on the boundary, and the mesh has {has}"
            )
        if tag not in known:
            what = f"is called {group!r}: the group is empty" if isinstance(group, str) else f"carries the tag {group}"
            raise ValueError(f"{condition.text}: no boundary facet {what}; the mesh has {has}")
        return int(tag)

    def _facets_where(self, indicator: Any) -> np.ndarray:
        """(F of level 0,) where the function is true at the midpoints of all finest facets inside a coarse facet."""
        middles = self.points[self.finest.facets].mean(axis=1)  # (F, d)
        with calling("dirichlet", indicator, "it is a function of x (n, d), x[:, i], that is true where u is given"):
            told = np.asarray(indicator(middles))
        if told.shape != (len(middles),):
            raise ValueError(f"dirichlet gave values of shape {told.shape} for x (n, d); give one per point (n,)")
        if told.dtype.kind not in "bui":
            raise ValueError(f"dirichlet gave {told.dtype} values; give True where u is given, False elsewhere")
        origin, count = self.finest.facet_origin, len(self.levels[0].facets)
        inside, whole = (
            np.bincount(origin, weights=told.astype(bool), minlength=count),
            np.bincount(origin, minlength=count),
        )
        cut = np.flatnonzero((inside > 0) & (inside < whole))
        if len(cut):
            where = self.points[self.levels[0].facets[cut[0]]].tolist()
            raise ValueError(
                f"the Dirichlet part ends inside the boundary facet {where} of the coarse mesh; it must be a union of "
                "such facets: use a finer coarse mesh, or fix the function"
            )
        return inside > 0

    def _check_components(self, facets: Ints) -> None:
        """Every connected part of the domain has at least one of these facets."""
        from scipy import sparse

        cells, count = self.levels[0].cells, self.levels[0].point_count
        ends = (np.repeat(cells[:, 0], cells.shape[1]), cells.ravel())
        graph = sparse.coo_matrix((np.ones(cells.size), ends), shape=(count, count))
        parts, part = sparse.csgraph.connected_components(graph, directed=False)
        missed = np.setdiff1d(np.arange(parts), part[facets])
        if len(missed):
            where = self.points[np.flatnonzero(part == missed[0])[0]].tolist()
            raise ValueError(
                f"u is given nowhere on the part of the domain at {where}: make some of its boundary Dirichlet or Robin"
            )

    def fixed_points(self, problem: Problem) -> tuple[np.ndarray, ...]:
        """For each level, (N,) whether u is given at each point."""
        on_part, held = self.dirichlet_facets(problem), self._facets_of_kind(problem, "dirichlet", "robin")
        if problem.equation is None and not held.any():
            raise ValueError(
                "u is given on no facet of the boundary, so it is not unique: make a part of it Dirichlet, or give a "
                "Robin condition, robin={'wall': (k, u_outside)}"
            )
        if problem.equation is None:  # other equations may be solvable without data
            self._check_components(self.levels[0].facets[held])
        fixed = []
        for level in self.levels:
            mask = np.zeros(level.point_count, bool)
            mask[level.facets[on_part[level.facet_origin]]] = True
            fixed.append(mask)
        return tuple(fixed)
