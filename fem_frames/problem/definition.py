"""A parametric problem −div(a_y ∇u) = f_y: domain, coefficient, source, boundary, parameters.

This module holds plain data and functions and imports neither DOLFINx nor torch. Coefficients and sources are written
once and evaluated with NumPy for reference solutions and with torch for training.

B samples, K cells, Q points per cell, d dimension, p parameters.
"""

from __future__ import annotations

import json
import numbers as numbers_of
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fem_frames.mesh.coarse import Grid, MeshArrays
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.problem.boundary import Condition, Parameter, make_conditions
from fem_frames.problem.callbacks import calling
from fem_frames.problem.coefficients import HOW, Array, ByRegion, Coefficient, Tabulated
from fem_frames.problem.curved import check_curved
from fem_frames.problem.densities import Density
from fem_frames.problem.equation import Equation, equation_conditions, mesh_dimension
from fem_frames.problem.evaluation import PointData
from fem_frames.problem.parameters import Gaussian, Uniform, check_samples, whole_number

if TYPE_CHECKING:
    from fem_frames.studies.overview import ProblemOverview

LEVEL_LIMIT = 60
REFINEMENTS = ("red", "dolfinx")
NORMALISATIONS = ("H1", "energy")
COARSE = ("auto", "none", "dense", "algebraic")


@dataclass(frozen=True, eq=False)
class Problem:
    """−div(a_y ∇u) = f_y in the domain, with Dirichlet, Neumann and Robin conditions on groups of its boundary.

    See docs/problems.md.
    """

    mesh: Grid | MeshArrays | str | Path | Any
    """Coarse mesh: a Grid, arrays, a gmsh file, a DOLFINx mesh, or DOLFINx's (mesh, cell tags, facet tags)."""
    coefficient: Coefficient | Equation
    """a, or an Equation with an energy or a weak form of its own."""
    parameters: Uniform | Gaussian
    source: float | Callable[[Array, Array], Array] = 1.0
    """f: a number, or a function of x (K, Q, d) and y (B, 1, 1, p) like `Pointwise`."""
    dirichlet: Any = "all"
    """Groups with their values, {"inflow": 0.0}. Or where u is `dirichlet_value`: "all" of the boundary, facets with
    these tags, or where a function of x (n, d) is true."""
    dirichlet_value: Any = 0.0
    """g, if `dirichlet` has no values: like the values of groups defined and smooth on the whole domain."""
    neumann: Mapping[Any, Any] = field(default_factory=dict)
    """h by group, {"inflow": 1.0}; {"rest": 1.0} for all of the boundary that no other condition names."""
    robin: Mapping[Any, Any] = field(default_factory=dict)
    """(k, u_outside) by group: a_y ∂u/∂n = k (u_outside - u)."""
    regions: Callable[[Floats], npt.ArrayLike] | None = None
    """Maps midpoints (K, d) of the finest cells to region tags; None: cells inherit the tags of the mesh."""
    refinement: str = "red"
    """"red": triangles into four similar ones, tetrahedra into eight by Bey's rule; "dolfinx": DOLFINx's rule."""
    quadrature_degree: int = 2
    """The quadrature rule for a_y or f that varies inside cells is exact for polynomials of this degree."""
    first_level: int = 0
    """Coarsest level of the frame; 0 is the coarse mesh."""
    coarse: str = "auto"
    """The coarse level below the first mesh of the frame: "auto" where it is needed, "none", "dense", "algebraic"."""
    normalisation: str = "H1"
    """"H1": frame functions have norm one in H1 or H(div). "energy": they have energy one for the nominal y, which is
    better conditioned for strong reactions and for coefficients that differ much between regions."""
    length: float | None = None
    """L, the unit of lengths in norms and functionals; None: the longest side of the box around the domain."""
    resolved_from: int = 0
    """The coarsest level on which every region is a union of cells."""
    name: str = "custom"
    options: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of `make_problem`, for the record."""
    curved: Mapping[Any, Any] = field(default_factory=dict)
    """Curves that groups of the boundary follow, {"hole": Circle((0.3, 0.5), 0.1)}: refinement moves new points onto
    them. A curve is a Circle, Cylinder or Sphere, a function of x (n, d), or a list of them. See docs/curved.md."""
    neumann_value: InitVar[Any] = None
    """Refused: earlier versions let it act on all of the boundary without Dirichlet data."""
    conditions: tuple[Condition, ...] = field(init=False, repr=False, default=())
    """The boundary conditions, Dirichlet ones first; what none of them covers is insulated."""

    def __post_init__(self, neumann_value: Any) -> None:
        if neumann_value is not None:
            raise ValueError(
                "neumann_value acted on all of the boundary without Dirichlet data, holes included: give neumann by "
                "group, {'inflow': h}, or {'rest': h} for all that no other condition names"
            )
        if self.equation is None:
            made = make_conditions(self.dirichlet, self.dirichlet_value, self.neumann, self.robin)
        else:
            others = {"neumann": self.neumann, "robin": self.robin}
            made = equation_conditions(self.equation, self.dirichlet, self.dirichlet_value, others, self.source)
        object.__setattr__(self, "conditions", made)
        _check_transfer(self)
        check_curved(self.curved)
        _check_data(self)

    @property
    def equation(self) -> Equation | None:
        """The equation of the user; None for −div(a_y ∇u) = f_y."""
        return self.coefficient if isinstance(self.coefficient, Equation) else None

    @property
    def dimension(self) -> int:
        """d; reads the mesh if it is a file."""
        return mesh_dimension(self.mesh, self.equation)

    def density(self) -> Density:
        """The programs of the problem's equation."""
        assert self.equation is not None
        return self.equation.compiled(self.dimension, self.parameters.dimension)

    def of_field(self, name: str) -> tuple[Problem, int]:
        """The problem with the boundary conditions of one field of its equation, and the place of the first one."""
        own = [(i, c) for i, c in enumerate(self.conditions) if c.field == name]
        made = replace(self)
        conditions = tuple(replace(condition, field="") for _, condition in own)
        object.__setattr__(made, "conditions", conditions)
        return made, own[0][0] if own else 0

    def with_tags(self, region_names: Mapping[str, int]) -> Problem:
        """The problem whose coefficient has region tags in place of names, for the names of a mesh: {"steel": 1}.

        Everything that discretises a problem starts with this: coefficients are tabulated from tags.
        """
        if not isinstance(self.coefficient, ByRegion) or not self.coefficient.names:
            return self
        return replace(self, coefficient=self.coefficient.with_tags(region_names))

    def show(self, picture: str | Path | None = None) -> ProblemOverview:
        """What the problem consists of, before anything is solved: printing the result shows it.

        Saves a picture of mesh, regions and boundary groups if `picture` is a path. See docs/meshes.md.
        """
        from fem_frames.studies.inspection import inspect_problem

        found = inspect_problem(self)
        if picture is not None:
            found.plot(picture)
        return found

    def check_levels(self, levels: int) -> int:
        """The number of refinements as int, or a ValueError that says what is wrong with it."""
        levels = whole_number(levels, "levels", least=None)
        least = max(0, self.first_level, self.resolved_from)
        if levels < least:
            why = "" if least == 0 else f", because the regions or the first level of {self.name} need them"
            raise ValueError(
                f"levels = {levels}: at least {least} refinement{' is' if least == 1 else 's are'} needed{why}"
            )
        if levels > LEVEL_LIMIT:
            raise ValueError(f"levels = {levels} would make more cells than any memory holds; use fewer levels")
        return levels

    def check_parameters(self, y: npt.ArrayLike) -> Floats:
        """y as (B, p) in float64, or a ValueError that says what is wrong with it."""
        return check_samples(y, self.parameters, self.name)

    def tabulate(self, points: Floats, regions: Ints) -> tuple[npt.NDArray, ...]:
        """The coefficient's tables at points (K, Q, d), after a trial with two y that detects values of wrong shape."""
        if isinstance(self.coefficient, Equation):  # its programs need no tables
            return ()
        if isinstance(self.coefficient, Tabulated):  # it has no functions to try
            return self.coefficient.tabulate(points, regions)
        y = self.parameters.sample(2, 0)
        y.flags.writeable = False  # so that a user's function cannot change y for others
        # This number of points per cell equals no other size here, so a function that confuses its axes fails.
        count = 3 + self.parameters.dimension
        trial = np.resize(points[:2].reshape(-1, points.shape[-1]), (2, count, points.shape[-1]))
        function = getattr(self.coefficient, "function", None)
        with calling("the coefficient", function, HOW):
            tables = self.coefficient.tabulate(trial, np.resize(regions, 2))
        PointData(self, trial, tables).coefficient(y)
        self.source_values(y, trial)
        with calling("the coefficient", function, HOW):
            return self.coefficient.tabulate(points, regions)

    def try_boundary(self, points: Floats) -> None:
        """Raises a ValueError if boundary data are wrong for two y at the first of these points (n, d)."""
        y = self.parameters.sample(2, 0)
        y.flags.writeable = False
        trial = np.resize(points[:2], (2, 3 + self.parameters.dimension, points.shape[-1]))
        for condition in self.conditions:
            for value in condition.values:
                value.try_out(trial, y)

    def coefficient_values(self, tables: tuple[npt.NDArray, ...], y: Floats, points: Floats) -> Floats:
        """(B, K, Q) values of a_y, checked to be finite and positive."""
        data = PointData(self, points, tables)
        a = data.coefficient(y)
        data.check_coefficient(a, y)
        return np.broadcast_to(a, (len(y), *points.shape[:2]))

    def source_values(self, y: Floats, points: Floats) -> Floats:
        """(B, K, Q) values of f_y, checked to be finite."""
        data = PointData(self, points, ())
        f = data.source(y)
        data.check_source(f, y)
        return np.broadcast_to(f, (len(y), *points.shape[:2]))


def _check_data(problem: Problem) -> None:
    """Raises a ValueError for a bad source, coefficient, parameters or options; turns numbers into int."""
    if not callable(problem.source) and not isinstance(problem.source, numbers_of.Real):
        raise ValueError(f"source is {problem.source!r}; it must be a number or a function")
    if problem.regions is not None and not callable(problem.regions):
        raise ValueError(f"regions is {problem.regions!r}; give a function of x, or None for the tags of the mesh")
    try:
        json.dumps(dict(problem.options))
    except (TypeError, ValueError) as error:
        raise ValueError(f"the problem's options cannot be recorded as JSON: {error}") from error
    is_coefficient = hasattr(problem.coefficient, "tabulate") and hasattr(problem.coefficient, "evaluate")
    if not is_coefficient and problem.equation is None:
        raise ValueError(
            "the coefficient must be a ByRegion, Affine, ExpAffine or Pointwise, or an Equation; wrap a function: "
            "Pointwise(f)"
        )
    if not isinstance(problem.parameters, Uniform | Gaussian):
        raise ValueError("parameters must be a Uniform box or Gaussian")
    if isinstance(problem.coefficient, ByRegion):
        highest = max(problem.coefficient.parameter.values(), default=-1)
        if highest >= problem.parameters.dimension:
            raise ValueError(
                f"the coefficient uses parameter {highest}, but there are p = {problem.parameters.dimension}"
            )
    for value in (value for condition in problem.conditions for value in condition.values):
        if isinstance(value.given, Parameter) and value.given.index >= problem.parameters.dimension:
            raise ValueError(
                f"{value.name} is parameter {value.given.index}, but there are p = {problem.parameters.dimension}"
            )
    if problem.refinement not in REFINEMENTS:
        raise ValueError(f"refinement is {problem.refinement!r}; choose from {', '.join(REFINEMENTS)}")
    check_coarse(problem.coarse)
    if problem.normalisation not in NORMALISATIONS:
        raise ValueError(f"normalisation is {problem.normalisation!r}; choose from {', '.join(NORMALISATIONS)}")
    if problem.length is not None:
        if not isinstance(problem.length, numbers_of.Real) or not 0 < problem.length < np.inf:
            raise ValueError(f"length is {problem.length!r}; a positive number is expected, or None")
        object.__setattr__(problem, "length", float(problem.length))
    for name, least in (("quadrature_degree", 1), ("first_level", 0), ("resolved_from", 0)):
        object.__setattr__(problem, name, whole_number(getattr(problem, name), name, least))
    if problem.quadrature_degree > 30:
        raise ValueError(f"quadrature_degree is {problem.quadrature_degree}; at most 30 is supported")


def _check_transfer(problem: Problem) -> None:
    """Raises a ValueError if k of a Robin condition is a parameter that need not be positive."""
    for condition in problem.conditions:
        k, box = condition.value.given, problem.parameters
        if condition.kind != "robin" or not isinstance(k, Parameter) or not isinstance(box, Uniform | Gaussian):
            continue
        if k.index < box.dimension:  # another check refuses higher ones
            ends = [-np.inf, np.inf] if isinstance(box, Gaussian) else [box.lower[k.index], box.upper[k.index]]
            least = float(np.min(k.offset + k.scale * np.asarray(ends))) if k.scale else k.offset
            if least <= 0:
                raise ValueError(
                    f"{condition.value.name} is {least:.3g} for some y in {box}; it must be positive: change the "
                    "parameters, or scale and offset of Parameter"
                )


def check_coarse(choice: Any) -> str:
    """The choice of a coarse level, or a ValueError that lists the choices."""
    if choice not in COARSE:
        raise ValueError(f"coarse is {choice!r}; choose from {', '.join(COARSE)}")
    return str(choice)
