"""Moves the new boundary points of a refinement onto the curves of their groups.

A uniform refinement of a mesh keeps its polygon. Where a group of the boundary follows a curve or a surface, the new
points of the group's facets are moved onto it; interior points and points of coarser levels stay.

N points, K cells, F boundary facets, G groups, n new points, d dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fem_frames.mesh.coarse import MeshArrays
from fem_frames.mesh.curves import Circle, Cylinder, Sphere
from fem_frames.mesh.geometry import Floats, Ints, signed_volumes
from fem_frames.mesh.simplices import diameters
from fem_frames.problem.boundary import ALL
from fem_frames.problem.callbacks import calling

HOW = "it is a function of x (n, d), x[:, i], with n points on the curve"
READY = (Circle, Cylinder, Sphere)
ON_CURVE = 1e-4  # relative to the longest edge of a facet: coarse points this close to the curve lie on it
IN_PLACE = 1e-6  # relative to an edge: a projection moves its own results by less
ROUNDING = 1e-12  # relative to an edge: new points this close to the curve are not moved
FLAT = 0.1  # cells that become flatter than their coarse ancestor by this factor are refused
ROUNDS = 200  # of alternating projections where two groups meet


def check_curved(curved: Any) -> None:
    """Raises a ValueError unless `Problem.curved` maps groups to curves, functions of x, or lists of them."""
    if not isinstance(curved, Mapping):
        raise ValueError(f"curved is {curved!r}; give a curve by group, {{'hole': Circle((0.3, 0.5), 0.1)}}")
    for group, given in curved.items():
        if not isinstance(group, str | int) or isinstance(group, bool):
            raise ValueError(f"curved names the group {group!r}; a name or a tag is expected")
        curves = given if isinstance(given, list | tuple) else [given]
        if not curves or not all(callable(curve) for curve in curves):
            raise ValueError(
                f"curved[{group!r}] is {given!r}; give a Circle, Cylinder or Sphere, a function that maps points x "
                "(n, d) onto the curve, or a list of them, of which the nearest counts"
            )


def lies_on(curved: Mapping[Any, Any], x: Floats) -> bool | None:
    """Whether all points x (n, d) lie on some curve; None if there is a function, which serves its own group only."""
    curves = [c for given in curved.values() for c in (given if isinstance(given, list | tuple) else [given])]
    if not all(isinstance(curve, READY) for curve in curves):
        return None
    size = float(np.ptp(x, axis=0).max()) if len(x) else 0.0
    away = np.fmin.reduce([np.linalg.norm(curve(x) - x, axis=1) for curve in curves])  # NaN at a centre
    return bool((away <= IN_PLACE * size).all())


@dataclass(frozen=True, eq=False)
class _Group:
    name: str | int
    curves: tuple[Callable[[Floats], npt.ArrayLike], ...]
    facets: npt.NDArray[np.bool_]  # (F of level 0,)

    @property
    def text(self) -> str:
        return f"curved[{self.name!r}]"

    def nearest(self, x: Floats) -> Floats:
        """(n, d) the nearest of the points to which the curves map x (n, d)."""
        found = np.stack([self._mapped(curve, x) for curve in self.curves])  # (curves, n, d)
        closest = np.linalg.norm(found - x, axis=2).argmin(axis=0)
        return np.asarray(found[closest, np.arange(len(x))])

    def _mapped(self, curve: Callable[[Floats], npt.ArrayLike], x: Floats) -> Floats:
        given = x.copy()  # so that a function cannot move the mesh itself
        with calling(self.text, curve, HOW):
            made = np.asarray(curve(given), np.float64)
        if made.shape != x.shape:
            raise ValueError(f"{self.text} gave an array of shape {made.shape} for x of shape {x.shape}; {HOW}")
        wrong = np.flatnonzero(~np.isfinite(made).all(axis=1))
        if len(wrong):
            raise ValueError(
                f"{self.text} is not finite at x = {x[wrong[0]].tolist()}: no point of the curve is nearest; "
                "use a finer coarse mesh there, or fix the curve"
            )
        return made


@dataclass(frozen=True, eq=False)
class CurvedBoundary:
    """The curved groups of a coarse mesh."""

    groups: tuple[_Group, ...]

    @classmethod
    def of(cls, coarse: MeshArrays, facets: Ints, tags: Ints, curved: Mapping[Any, Any]) -> CurvedBoundary:
        """The groups that `curved` names, checked; `facets` (F, d) and `tags` (F,) belong to the coarse boundary."""
        check_curved(curved)
        if curved and coarse.dimension == 1:
            raise ValueError("curved is given, but the boundary of an interval consists of points: leave it out")
        groups = []
        for name, given in curved.items():
            curves = tuple(given) if isinstance(given, list | tuple) else (given,)
            groups.append(_Group(name, curves, _facets_of(name, coarse, tags)))
            _check_coarse(groups[-1], coarse.points, facets[groups[-1].facets])
        return cls(tuple(groups))

    def moved(self, points: Floats, level: Any, shapes: Floats) -> tuple[Floats, Floats]:
        """(N, d) the points of a level from its unmoved ones, and (K,) the shapes of its cells.

        `level` is a `Level`. Shapes are |T| / diam(T)^d relative to an unmoved refinement of the coarse cell that
        contains T; those of the coarser level are given.
        """
        count = len(points) - len(level.ends)
        member = np.zeros((len(self.groups), len(points)), bool)
        for on_group, group in zip(member, self.groups, strict=True):
            on_group[level.facets[group.facets[level.facet_origin]]] = True
        member[:, :count] = False
        found, size = points.copy(), np.ones(len(points))
        size[count:] = np.linalg.norm(points[level.ends[:, 1]] - points[level.ends[:, 0]], axis=1)
        # In space an edge may lie between two groups: its midpoint has to lie on both.
        for pattern in np.unique(member[:, member.any(axis=0)], axis=1).T:
            chosen = np.flatnonzero((member == pattern[:, None]).all(axis=0))
            groups = [group for group, on_it in zip(self.groups, pattern, strict=True) if on_it]
            found[chosen] = _projected(groups, points[chosen], size[chosen])
        shapes = _child_shapes(points, found, level.cells, shapes)
        if shapes.min() < FLAT:
            worst = level.cells[shapes.argmin()]
            name = next(g.name for g, on_it in zip(self.groups, member[:, worst].any(axis=1), strict=True) if on_it)
            raise ValueError(
                f"the projection onto curved[{name!r}] {'inverts' if shapes.min() <= 0 else 'flattens'} a cell at "
                f"x = {points[worst].mean(axis=0).tolist()}: use a finer coarse mesh there, in which every cell has at "
                "most one side on the curve"
            )
        return found, shapes


def _child_shapes(unmoved: Floats, moved: Floats, cells: Ints, shapes: Floats) -> Floats:
    """(K,) shapes of the children of cells with these shapes; negative where a child is inverted."""
    d = moved.shape[1]
    found = np.repeat(shapes, 2**d)
    at = np.flatnonzero((moved != unmoved).any(axis=1)[cells].any(axis=1))
    volumes, before = (signed_volumes(x, cells[at]) for x in (moved, unmoved))
    found[at] *= volumes / before * (diameters(unmoved, cells[at]) / diameters(moved, cells[at])) ** d
    return found


def _facets_of(name: str | int, coarse: MeshArrays, tags: Ints) -> npt.NDArray[np.bool_]:
    """(F,) the boundary facets of a group."""
    if name == ALL:
        return np.ones(len(tags), bool)
    found = tags == (coarse.facet_names.get(name, -1) if isinstance(name, str) else name)
    if name == -1 or not found.any():
        known = set(tags.tolist()) - {-1}
        names = [repr(text) for text, tag in coarse.facet_names.items() if tag in known]
        has = ", ".join([*names, *(str(tag) for tag in sorted(known - set(coarse.facet_names.values())))])
        what = f"is called {name!r}" if isinstance(name, str) else f"carries the tag {name}"
        raise ValueError(f"curved[{name!r}]: no boundary facet {what}; the mesh has {has or 'no facet tags, only all'}")
    return np.asarray(found)


def _check_coarse(group: _Group, points: Floats, facets: Ints) -> None:
    """Raises a ValueError unless the coarse points of a group lie on its curves."""
    size = np.zeros(len(points))
    for i in range(facets.shape[1]):
        np.maximum.at(size, facets[:, i], diameters(points, facets))
    on_group = np.flatnonzero(size)
    x = points[on_group]
    away = np.linalg.norm(group.nearest(x) - x, axis=1)
    if (away > ON_CURVE * size[on_group]).any():
        farthest = int((away / size[on_group]).argmax())
        raise ValueError(
            f"the mesh's points of {group.name!r} are up to {away.max():.2g} away from {group.text}, as at "
            f"x = {x[farthest].tolist()}: give the curve in the coordinates and units of the mesh, or fix the mesh"
        )


def _projected(groups: list[_Group], x: Floats, size: Floats) -> Floats:
    """(n, d) the points x moved onto the curves of all groups; `size` (n,) are the lengths of their edges."""
    found, away = x, np.full(len(x), np.inf)
    for _ in range(ROUNDS if len(groups) > 1 else 1):
        for group in groups:
            found = group.nearest(found)
        away = np.max([np.linalg.norm(group.nearest(found) - found, axis=1) for group in groups], axis=0)
        if (away <= ROUNDING * size).all():
            break
    wrong = np.flatnonzero(away > IN_PLACE * size)
    if len(wrong):
        where = x[wrong[0]].tolist()
        if len(groups) == 1:
            raise ValueError(
                f"{groups[0].text} moves its own result for x = {where} by another {away[wrong[0]]:.1e}: it must leave "
                "points on the curve where they are"
            )
        names = " and ".join(group.text for group in groups)
        raise ValueError(f"{names} meet at x = {where}, but no point nearby lies on both: fix the curves")
    kept = np.linalg.norm(found - x, axis=1) <= ROUNDING * size
    return np.where(kept[:, None], x, found)
