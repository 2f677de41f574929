"""Circles, cylinders and spheres that curved parts of the boundary follow: each maps points to its nearest points.

n points, d dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fem_frames.mesh.geometry import Floats, as_tuple


@dataclass(frozen=True)
class Circle:
    """x to the nearest point of a circle in the plane: `curved={"hole": Circle((0.3, 0.5), 0.1)}`. See docs/curved.md.

    The domain may lie inside or outside of it.
    """

    centre: tuple[float, float]
    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "centre", _vector(self.centre, 2, "the centre of a Circle"))
        object.__setattr__(self, "radius", _positive(self.radius, "the radius of a Circle"))

    def __call__(self, x: Floats) -> Floats:
        """(n, 2) to (n, 2)."""
        _check_dimension(x, 2, "a Circle", "use Cylinder or Sphere in space")
        return _at_distance(x, np.array(self.centre), self.radius)


@dataclass(frozen=True)
class Sphere:
    """x to the nearest point of a sphere: `curved={"ball": Sphere((0, 0, 0), 1.0)}`. See docs/curved.md."""

    centre: tuple[float, float, float]
    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "centre", _vector(self.centre, 3, "the centre of a Sphere"))
        object.__setattr__(self, "radius", _positive(self.radius, "the radius of a Sphere"))

    def __call__(self, x: Floats) -> Floats:
        """(n, 3) to (n, 3)."""
        _check_dimension(x, 3, "a Sphere", "use Circle in the plane")
        return _at_distance(x, np.array(self.centre), self.radius)


@dataclass(frozen=True)
class Cylinder:
    """x to the nearest point of an infinite cylinder: `curved={"pipe": Cylinder((0, 0, 0), (0, 0, 1), 2.0)}`.

    `point` is any point of its axis, `axis` the direction, of any length. See docs/curved.md.
    """

    point: tuple[float, float, float]
    axis: tuple[float, float, float]
    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "point", _vector(self.point, 3, "the point of a Cylinder"))
        object.__setattr__(self, "axis", _vector(self.axis, 3, "the axis of a Cylinder"))
        object.__setattr__(self, "radius", _positive(self.radius, "the radius of a Cylinder"))
        if not any(self.axis):
            raise ValueError("the axis of a Cylinder is (0, 0, 0); a direction is expected, such as (0, 0, 1)")

    def __call__(self, x: Floats) -> Floats:
        """(n, 3) to (n, 3)."""
        _check_dimension(x, 3, "a Cylinder", "use Circle in the plane")
        direction = np.array(self.axis) / np.linalg.norm(self.axis)
        point = np.array(self.point)
        return _at_distance(x, point + ((x - point) @ direction)[:, None] * direction, self.radius)


def _at_distance(x: Floats, centre: Floats, radius: float) -> Floats:
    """The points at distance `radius` from `centre` (d,) or (n, d) in the direction of x; not finite at the centre."""
    off = x - centre
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(centre + radius * off / np.linalg.norm(off, axis=1, keepdims=True))


def _check_dimension(x: Floats, d: int, what: str, remedy: str) -> None:
    if x.shape[1] != d:
        raise ValueError(f"{what} has points with {d} coordinates, but the mesh has points with {x.shape[1]}: {remedy}")


def _vector(given: object, d: int, what: str) -> tuple[float, ...]:
    try:
        found = as_tuple(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        found = ()
    if len(found) != d or not np.isfinite(found).all():
        raise ValueError(f"{what} is {given!r}; {d} finite coordinates are expected")
    return found


def _positive(given: object, what: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float | np.number) or not 0 < given < np.inf:
        raise ValueError(f"{what} is {given!r}; a positive number is expected")
    return float(given)
