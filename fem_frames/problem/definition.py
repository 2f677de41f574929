"""A parametric problem −div(a_y ∇u) = f_y: domain, coefficient, source, boundary, parameters.

Plain data and functions: neither DOLFINx nor torch is imported. Coefficients and sources are written once
and evaluated in NumPy for reference solutions and in torch for training.

B samples, K cells, Q points in a cell, d dimension, p parameters.
"""

from __future__ import annotations

import json
import numbers as numbers_of
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fem_frames.mesh.coarse import Grid, MeshArrays
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.problem.callbacks import calling
from fem_frames.problem.coefficients import HOW, Array, ByRegion, Coefficient, Tabulated, spread
from fem_frames.problem.parameters import Gaussian, Uniform, numbers, whole_number

LEVEL_LIMIT = 60
REFINEMENTS = ("red", "dolfinx")


# ---- the problem ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Problem:
    """−div(a_y ∇u) = f_y in the domain, u = g on its Dirichlet part, a_y ∂u/∂n = h on the rest."""

    mesh: Grid | MeshArrays | str | Path | Any
    """Coarse mesh: a Grid, arrays, a gmsh file, a DOLFINx mesh, or DOLFINx's (mesh, cell tags, facet tags)."""
    coefficient: Coefficient
    parameters: Uniform | Gaussian
    source: float | Callable[[Array, Array], Array] = 1.0
    """f: a number, or a function of x (K, Q, d) and y (B, 1, 1, p) like `Pointwise`."""
    dirichlet: str | tuple[int, ...] | Callable[[Floats], npt.ArrayLike] = "all"
    """Where u is given: "all" of the boundary, facet tags, or a function of x (n, d) that is true there."""
    dirichlet_value: float | Callable[[Floats], npt.ArrayLike] = 0.0
    """g: a number, or a function of x (n, d), defined and smooth on the whole domain."""
    neumann_value: float | Callable[[Floats], npt.ArrayLike] = 0.0
    """h: a number, or a function of x (n, d)."""
    regions: Callable[[Floats], npt.ArrayLike] | None = None
    """Region tags from the midpoints (K, d) of the finest cells; None: the mesh's tags, inherited."""
    refinement: str = "red"
    """"red": triangles into four similar ones, tetrahedra into eight after Bey; "dolfinx": by DOLFINx's rule."""
    quadrature_degree: int = 2
    """Polynomials of this degree are integrated exactly when a_y or f varies inside cells."""
    first_level: int = 0
    """Coarsest level of the frame; 0 is the coarse mesh."""
    resolved_from: int = 0
    """Level from which on the regions are unions of cells."""
    name: str = "custom"
    options: Mapping[str, Any] = field(default_factory=dict)
    """What `make_problem` was called with, for the record."""

    def __post_init__(self) -> None:
        if isinstance(self.dirichlet, str) and self.dirichlet != "all":
            raise ValueError(f"dirichlet is {self.dirichlet!r}; give 'all', facet tags, or a function of x")
        if not isinstance(self.dirichlet, str) and not callable(self.dirichlet):
            tags = np.atleast_1d(
                np.asarray(list(self.dirichlet) if isinstance(self.dirichlet, set) else self.dirichlet)
            )
            if not np.issubdtype(tags.dtype, np.integer):
                raise ValueError(
                    f"dirichlet is {self.dirichlet!r}; give 'all', at least one facet tag, (1, 2), or a function of x"
                )
            object.__setattr__(self, "dirichlet", tuple(int(tag) for tag in tags))
        for name in ("dirichlet_value", "neumann_value", "source"):
            if not callable(getattr(self, name)) and not isinstance(getattr(self, name), numbers_of.Real):
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be a number or a function")
        if self.regions is not None and not callable(self.regions):
            raise ValueError(f"regions is {self.regions!r}; give a function of x, or None for the tags of the mesh")
        if isinstance(self.dirichlet, str) and (callable(self.neumann_value) or self.neumann_value != 0):
            raise ValueError(
                "neumann_value is given, but u is on all of the boundary: choose a part of it as dirichlet"
            )
        try:
            json.dumps(dict(self.options))
        except (TypeError, ValueError) as error:
            raise ValueError(f"the problem's options are recorded as JSON, which fails: {error}") from error
        if not (hasattr(self.coefficient, "tabulate") and hasattr(self.coefficient, "evaluate")):
            raise ValueError(
                "the coefficient must be a ByRegion, Affine, ExpAffine or Pointwise; wrap a function: Pointwise(f)"
            )
        if not isinstance(self.parameters, Uniform | Gaussian):
            raise ValueError("parameters must be a Uniform box or Gaussian")
        if isinstance(self.coefficient, ByRegion):
            highest = max(self.coefficient.parameter.values(), default=-1)
            if highest >= self.parameters.dimension:
                raise ValueError(
                    f"the coefficient uses parameter {highest}, but there are p = {self.parameters.dimension}"
                )
        if self.refinement not in REFINEMENTS:
            raise ValueError(f"refinement is {self.refinement!r}; choose from {', '.join(REFINEMENTS)}")
        for name, least in (("quadrature_degree", 2), ("first_level", 0), ("resolved_from", 0)):
            object.__setattr__(self, name, whole_number(getattr(self, name), name, least))
        if self.quadrature_degree > 30:
            raise ValueError(f"quadrature_degree is {self.quadrature_degree}; at most 30 is supported")

    def check_levels(self, levels: int) -> int:
        """The number of refinements, or a ValueError that says what is wrong with it."""
        levels = whole_number(levels, "levels", least=None)
        least = max(1, self.first_level, self.resolved_from)
        if levels < least:
            why = "" if least == 1 else f", because the regions or the first level of {self.name} need them"
            raise ValueError(
                f"levels = {levels}: at least {least} refinement{'s are' if least > 1 else ' is'} needed{why}"
            )
        if levels > LEVEL_LIMIT:
            raise ValueError(f"levels = {levels} would make more cells than any memory holds; use fewer levels")
        return levels

    def check_parameters(self, y: npt.ArrayLike) -> Floats:
        """y as (B, p) in float64, or a ValueError that says what is wrong with it."""
        try:
            checked = np.asarray(y, np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"y must be an array of numbers: {error}") from error
        if checked.ndim == 1:
            checked = checked[None]
        p = self.parameters.dimension
        if checked.ndim != 2 or checked.shape[1] != p:
            raise ValueError(
                f"y has shape {np.shape(y)}, but {self.name} has p = {p} parameters: pass (B, {p}) or ({p},)"
            )
        if len(checked) == 0:
            raise ValueError("y is empty: pass at least one sample")
        if not np.isfinite(checked).all():
            raise ValueError(f"y of sample {int(np.argwhere(~np.isfinite(checked))[0, 0])} is not finite")
        outside = np.flatnonzero(self.parameters.outside(checked))
        if len(outside):
            raise ValueError(
                f"y of sample {outside[0]} = {numbers(checked[outside[0]])} is outside the parameters "
                f"{self.parameters} of {self.name}"
            )
        return checked

    def tabulate(self, points: Floats, regions: Ints) -> tuple[npt.NDArray, ...]:
        """The coefficient's tables at points (K, Q, d); tried for two y, so that what does not fit is found now."""
        if isinstance(self.coefficient, Tabulated):  # it has no functions to try
            return self.coefficient.tabulate(points, regions)
        y = self.parameters.sample(2, 0)
        y.flags.writeable = False  # a function that changes it would change it for all others
        # As many points in a cell as no other number here: a function that mixes up its axes does not fit.
        count = 3 + self.parameters.dimension
        trial = np.resize(points[:2].reshape(-1, points.shape[-1]), (2, count, points.shape[-1]))
        with calling("the coefficient", getattr(self.coefficient, "function", None), HOW):
            tables = self.coefficient.tabulate(trial, np.resize(regions, 2))
            values = self.coefficient.evaluate(tables, y)
        spread(values, (2, 2, count), "the coefficient a")
        self.source_values(y, trial)
        with calling("the coefficient", getattr(self.coefficient, "function", None), HOW):
            return self.coefficient.tabulate(points, regions)

    def coefficient_values(self, tables: tuple[npt.NDArray, ...], y: Floats, points: Floats) -> Floats:
        """(B, K, Q) values of a_y, checked to be finite and positive."""
        shape = (len(y), *points.shape[:2])
        with calling("the coefficient", getattr(self.coefficient, "function", None), HOW):
            values = self.coefficient.evaluate(tables, y)
        a = spread(values, shape, "the coefficient a")
        wrong = np.argwhere(~(a > 0) | ~np.isfinite(a))
        if len(wrong):
            sample, cell, q = wrong[0]
            raise ValueError(
                f"a_y must be positive and finite, but it is {a[sample, cell, q]:.3g} for y = {numbers(y[sample])} "
                f"in cell {cell} at x = {numbers(points[cell, q])}; fix the coefficient or the parameter box"
            )
        return a

    def source_values(self, y: Floats, points: Floats) -> Floats:
        """(B, K, Q) values of f_y, checked to be finite."""
        with calling("the source", self.source, HOW):
            values = self.source(points, y[:, None, None, :]) if callable(self.source) else self.source
        f = spread(values, (len(y), *points.shape[:2]), "the source f")
        if not np.isfinite(f).all():
            sample, cell, q = np.argwhere(~np.isfinite(f))[0]
            raise ValueError(
                f"f is {f[sample, cell, q]} for y = {numbers(y[sample])} at x = {numbers(points[cell, q])}: "
                "fix the source"
            )
        return f

    def boundary_values(self, name: Literal["dirichlet_value", "neumann_value"], points: Floats) -> Floats:
        """(n,) values of g or h at points (n, d)."""
        data = getattr(self, name)
        with calling(name, data, "it is a number or a function of x (n, d), x[:, i], with n values"):
            found = data(points) if callable(data) else data
        try:
            values = np.broadcast_to(np.asarray(found, np.float64), len(points))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name} has values of shape {np.shape(found)} for x of shape {points.shape}; it is a number or a "
                "function of x (n, d), x[:, i], with n values"
            ) from error
        if not np.isfinite(values).all():
            raise ValueError(f"{name} is not finite at x = {points[~np.isfinite(values)][0].tolist()}")
        return values
