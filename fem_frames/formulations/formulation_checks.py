"""Checks of formulations: their classes when they are defined, and frames and problems when they are made."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fem_frames.frame.arrays import FrameArrays, FrameField
from fem_frames.frame.fields import Field, dirichlet_values, neumann_fluxes
from fem_frames.frame.witnesses import differing_neumann
from fem_frames.mesh.geometry import Floats
from fem_frames.messages import option
from fem_frames.operators.checking import is_plain, is_watched
from fem_frames.problem.compiled_values import extremes
from fem_frames.problem.definition import Problem
from fem_frames.problem.evaluation import NotFiniteError

if TYPE_CHECKING:
    from fem_frames.formulations.formulation import Formulation


def check_class(kind: type[Formulation]) -> None:
    """Raises a ValueError if the name or the fields of a formulation are not usable."""
    if not isinstance(kind.name, str) or not kind.name:
        raise ValueError(f"the name of {kind.__name__} is {kind.name!r}; a text is expected")
    fields = getattr(kind, "fields", None)
    if not isinstance(fields, tuple) or not fields or not all(isinstance(f, Field) for f in fields):
        raise ValueError(f"the fields of {kind.__name__} are {fields!r}; a tuple is expected: (Field('u', P1),)")
    names = [f.name for f in fields]
    if len(set(names)) < len(names):
        raise ValueError(f"two fields of {kind.__name__} are called {max(names, key=names.count)!r}: rename one")


def check_fields(arrays: FrameArrays, kind: type[Formulation]) -> None:
    """Raises a ValueError unless the frame has the fields of the formulation."""
    found = [(f.name, f.element.name) for f in arrays.fields]
    expected = [(f.name, f.kind.name) for f in kind.fields]
    if found != expected:
        shown, wanted = (", ".join(f"{name} in {element}" for name, element in pairs) for pairs in (found, expected))
        raise ValueError(f"the frame has the fields {shown}, but {kind.name} has {wanted}: export it again")


def check_quadratic(formulation: Formulation, what: str) -> None:
    """Raises a ValueError for nonlinear energies, where one matrix per y does not have the solution."""
    if not formulation.is_quadratic:
        raise ValueError(
            f"{what} solves linear equations, but that of {formulation.problem.name} is not linear in u: use "
            "fem_frames.solve, or on the command line a run with another net and --tol"
        )


def check_variant(kind: type[Formulation], problem: Problem) -> None:
    """Raises a ValueError if the problem has an equation or boundary conditions that the formulation does not take."""
    if getattr(problem, "equation", None) is not None and not hasattr(kind, "density"):
        raise ValueError(
            f"the problem {problem.name} has an equation of its own, and {kind.name} is a formulation of another one: "
            f"use {option('formulation', 'energy')}"
        )
    conditions = getattr(problem, "conditions", ())
    varying = next((c for c in conditions if c.depends_on_y), None)
    if varying is not None and not kind.data_of_y:
        raise ValueError(
            f"{varying.text} depends on y, but the formulation {kind.name} does not say that it can have such data: "
            "derive it from QuadraticFormulation, or declare data_of_y = True and use lift(y)"
        )
    condition = next((c for c in conditions if c.kind == "robin"), None)
    if condition is not None and not kind.robin:
        raise ValueError(
            f"{condition.text} is given, but the formulation {kind.name} has no Robin conditions: "
            "use formulation='energy', or declare robin = True in a QuadraticFormulation of your own on P1Values"
        )


def checked_parameters(formulation: Formulation, y: Tensor) -> Tensor:
    """y as (B, p); raises a ValueError if y does not fit the problem of the formulation."""
    problem, frame = formulation.problem, formulation.frame
    p = problem.parameters.dimension
    if not isinstance(y, Tensor):
        raise ValueError(f"y must be a torch tensor, not {type(y).__name__}: use torch.as_tensor(y, dtype=…)")
    if y.ndim not in (1, 2) or y.shape[-1] != p:
        raise ValueError(
            f"y has shape {tuple(y.shape)}, but {problem.name} has p = {p} parameters: "
            f"pass (B, {p}) or ({p},); is it another problem's y?"
        )
    if y.dtype not in (frame.dtype, formulation.wide):  # y is widened before use
        raise ValueError(f"y is in {y.dtype}, the frame in {frame.dtype}: pass y.to({frame.dtype})")
    if y.device != frame.device:
        raise ValueError(f"y is on {y.device}, the frame on {frame.device}: move one of them")
    if y.numel() == 0:
        raise ValueError("y is empty: pass at least one sample")
    y = y if y.ndim == 2 else y[None]
    if is_plain(y) and not torch.isfinite(y).all():
        sample = int((~torch.isfinite(y)).any(1).nonzero()[0, 0])
        raise NotFiniteError(f"y of sample {sample} is not finite: {y[sample].tolist()}")
    return y


def check_coefficients(formulation: Formulation, w: Tensor, y: Tensor) -> None:
    """Raises a ValueError unless frame coefficients w (B, Nhat) are finite and belong to the samples y."""
    formulation.check_parameters(y)
    formulation.frame.D.check(w, formulation.frame.frame_size)
    rows, samples = (w.shape[0] if w.ndim == 2 else 1), (y.shape[0] if y.ndim == 2 else 1)
    if w.ndim > 2 or (rows != samples and samples != 1):
        raise ValueError(
            f"w has shape {tuple(w.shape)} for {samples} samples y: pass (B, Nhat) = ({samples}, {w.shape[-1]})"
        )
    if is_plain(w) and not _is_finite(w.detach()):
        sample = int((~torch.isfinite(w.reshape(-1, w.shape[-1]))).any(1).nonzero()[0, 0])
        raise NotFiniteError(
            f"frame coefficients of sample {sample} are not finite: the net or solver overflowed in "
            f"{w.dtype}; try a smaller rate or a wider dtype"
        )


def _is_finite(w: Tensor) -> bool:
    """torch.isfinite makes temporaries, and would take a fifth of the time of loss and residual."""
    if is_watched(w) or not w.numel():
        return bool(torch.isfinite(w).all())
    rows = w.reshape(-1, w.shape[-1]).T  # (Nhat, B), contiguous where the batch is last in memory
    return all(math.isfinite(bound) for bound in extremes(rows))


def check_boundary(arrays: FrameArrays, kind: type[Formulation], problem: Problem) -> None:
    """Raises a ValueError if the frame has other boundary data than the problem, in fields that take them."""
    conditions = problem.conditions
    evaluated = {i for i, c in enumerate(conditions) if c.kind == "robin" or (c.kind == "neumann" and c.depends_on_y)}
    known = set() if arrays.boundary is None else set(arrays.boundary.conditions[-1].tolist())
    for field, f in zip(kind.fields, arrays.fields, strict=True):
        carried = {shape.condition for shape in f.shapes}
        if field.essential is dirichlet_values:
            expected = {i for i, c in enumerate(conditions) if c.kind == "dirichlet" and c.depends_on_y}
            if carried != expected or not _has_dirichlet_data(f, arrays.points, problem):
                raise arrays.misfit(problem, "its Dirichlet data differ")
        if field.essential is neumann_fluxes:
            known |= carried
        given = field.essential is neumann_fluxes and f.lift[-1].any()
        without = all(c.value.is_zero for c in conditions if c.kind == "neumann" and not c.depends_on_y)
        if without and (given or arrays.neumann_load.any()):
            raise arrays.misfit(problem, "it has no Neumann data, but the frame has")
    # A condition that no facet of the mesh has is in no table.
    if not known <= evaluated or (evaluated and arrays.boundary is None):
        raise arrays.misfit(problem, "other conditions of its boundary are Robin conditions, or depend on y")
    differing = differing_neumann(arrays, problem)
    if differing is not None:
        raise arrays.misfit(problem, differing)


def _has_dirichlet_data(f: FrameField, points: Floats, problem: Problem) -> bool:
    """Whether the lift of the frame has the Dirichlet data that do not depend on y."""
    dirichlet = [c.value for c in problem.conditions if c.kind == "dirichlet"]
    fixed = [value for value in dirichlet if not value.depends_on_y]
    if len(dirichlet) == 1:
        return all(np.allclose(value.at(points), f.lift[-1]) for value in fixed)
    given = np.ones(len(points), bool)
    given[f.free[-1]] = False
    for shape in f.shapes:
        given &= shape.values[-1] != 1  # data that depend on y
    found = [np.isclose(value.at(points), f.lift[-1]) for value in fixed]
    return not given.any() or (bool(found) and bool(np.any(found, axis=0)[given].all()))
