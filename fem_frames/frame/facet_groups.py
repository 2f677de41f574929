"""The boundary facets of the finest mesh with their groups and conditions: outputs integrate fluxes over them.

F boundary facets, Q points of a facet's rule, d dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from fem_frames.mesh.geometry import Floats, Ints, row_keys
from fem_frames.mesh.hierarchy import MeshHierarchy
from fem_frames.problem.definition import Problem

_PREFIX = "groups."


@dataclass(frozen=True, eq=False)
class FacetGroups:
    """All boundary facets of the finest mesh. The names of their tags are in the frame's record, `facet_names`."""

    facets: Ints  # (F, d) points
    tags: Ints  # (F,) of the mesh, -1 without one
    conditions: Ints  # (F,) places in `Problem.conditions`, -1 where the boundary is insulated
    rule_points: Floats  # (Q, d) barycentric
    rule_weights: Floats  # (Q,), sum 1

    @classmethod
    def from_hierarchy(cls, hierarchy: MeshHierarchy, problem: Problem) -> FacetGroups:
        from fem_frames.fenicsx import door
        from fem_frames.frame.boundary import POINT_RULE

        d, level = hierarchy.dimension, hierarchy.finest
        rule = POINT_RULE if d == 1 else door.barycentric_quadrature(d - 1, problem.quadrature_degree)
        tags, conditions = hierarchy.coarse_facet_tags, hierarchy.condition_facets(problem)
        return cls(
            np.array(level.facets, np.int64),
            np.array(tags[level.facet_origin], np.int64),
            np.array(conditions[level.facet_origin], np.int64),
            np.array(rule[0]),
            np.array(rule[1]),
        )

    def coarsened(self, count: int, ends: Ints) -> FacetGroups:
        """The facets of the mesh one level coarser, with `count` points; finer points are the middles of `ends`."""
        d, own = self.facets.shape[1], np.arange(count)[:, None]
        corners = np.concatenate([np.repeat(own, 2, axis=1), ends])[self.facets].reshape(-1, 2 * d)
        corners.sort(axis=1)  # a facet and its parent have the same corners and middles of them
        first = np.ones(corners.shape, bool)
        first[:, 1:] = corners[:, 1:] != corners[:, :-1]
        parents = corners[first].reshape(-1, d)
        kept = np.sort(np.unique(row_keys(parents, count), return_index=True)[1])
        return replace(self, facets=parents[kept], tags=self.tags[kept], conditions=self.conditions[kept])

    def flat(self) -> dict[str, npt.NDArray]:
        """All arrays by their names in a file."""
        return {f"{_PREFIX}{f.name}": getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_flat(cls, flat: Mapping[str, npt.NDArray]) -> FacetGroups | None:
        """The facets in a file; None in files of earlier versions."""
        if f"{_PREFIX}facets" not in flat:
            return None
        return cls(*(flat[f"{_PREFIX}{f.name}"] for f in fields(cls)))

    def check(self, points: int, d: int) -> None:
        """Raises a ValueError unless the arrays fit each other and a mesh of so many points in dimension d."""
        F, Q = len(self.facets), len(self.rule_weights)
        found = [getattr(self, f.name).shape for f in fields(self)]
        if found != [(F, d), (F,), (F,), (Q, d), (Q,)] or not Q:
            raise ValueError(f"the groups of boundary facets have arrays of shapes {found}, which do not fit")
        if F and not 0 <= self.facets.min() <= self.facets.max() < points:
            raise ValueError("the groups of boundary facets refer to points that do not exist")
