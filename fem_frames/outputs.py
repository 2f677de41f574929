"""Outputs: the few numbers that are wanted of a solution, as data, and their evaluation for batches of y.

Most outputs are affine in u = lift + F w: q(u, y) = ⟨ℓ_y, w⟩ + c_y. Bounds and adjoints use the vectors ℓ_y on the
frame. The classes `PointValues`, `RegionMean`, `BoundaryFlux` and `LinearFunctional` describe outputs, and `Functional`
in `functionals.py`; `OutputMap` evaluates them on a formulation. Needs no DOLFINx.

B samples, s outputs, n nodal values of a field, L of them on a cell, N free ones of all fields, Nhat frame
coefficients, K finest cells, F boundary facets, d dimension.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fem_frames.formulations.formulation import Formulation
from fem_frames.formulations.reactions import Reaction, flux_signs
from fem_frames.frame.arrays import FrameArrays, FrameField
from fem_frames.frame.fields import vector_name
from fem_frames.frame.level_matrices import bubbles_of, flux_field, nodal_places, nodal_states
from fem_frames.frame.sparse import SparseMatrix
from fem_frames.mesh.checks import known_names
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.mesh.location import locate
from fem_frames.operators.linear import dot
from fem_frames.operators.recursion import SparseOperator
from fem_frames.output_groups import group_facets, region_groups

ROUNDING = 1e-14  # barycentric coordinates below this are zero: a point on the boundary has the value given there


class Output(ABC):
    """One or several numbers that are wanted of a solution."""

    @abstractmethod
    def bind(self, formulation: Formulation) -> BoundOutput:
        """The output on the frame of a formulation; raises a ValueError if it does not fit."""


@dataclass(frozen=True, eq=False)
class PointValues(Output):
    """Values of a field at points (n, d) of the domain: n outputs, n c for a vector with c components or a flux.

    See docs/surrogates.md.
    """

    points: npt.ArrayLike
    field: str = "u"

    def bind(self, formulation: Formulation) -> BoundOutput:
        return _of_components(formulation, self.field, self._of)

    def _of(self, formulation: Formulation, f: FrameField) -> BoundOutput:
        arrays = formulation.frame.arrays
        cell, hats = locate(self.points, arrays.points, arrays.levels, nested=not arrays.curved)
        hats = np.where(np.abs(hats) < ROUNDING, 0.0, hats)
        x = np.einsum("nl,nld->nd", hats, arrays.points[arrays.levels[-1].cells[cell]])
        names = [f"({', '.join(f'{value:.6g}' for value in point)})" for point in x]
        places, basis = nodal_places(arrays, f)[cell], hats[..., None]  # (n, L), (n, L, 1)
        labels = [f"{f.name}{name}" for name in names]
        if f.degree:
            states = nodal_states(arrays, f, len(arrays.levels) - 1)[cell]  # (n, L, c)
            values = f.element.cell_values(f.element.shift(states, (x - arrays.centres[cell])[:, None]))
            if values is None:
                raise ValueError(f"the element of {f.name} has no values at points; use a LinearFunctional")
            basis = values  # (n, L, d)
            labels = [f"{f.name}[{i}]{name}" for name in names for i in range(basis.shape[2])]
        found = NodalOutput(formulation, f, _at_points(f, places, basis), labels)
        bubbles = bubbles_of(arrays, f)
        if bubbles is None:
            return found
        states = nodal_states(arrays, bubbles, len(arrays.levels) - 1)[cell]
        basis = bubbles.element.shift(states, (x - arrays.centres[cell])[:, None])[..., :1]
        matrix = _at_points(bubbles, nodal_places(arrays, bubbles)[cell], basis)
        return SumOutput(found, NodalOutput(formulation, bubbles, matrix, labels))


@dataclass(frozen=True, eq=False)
class RegionMean(Output):
    """The mean of a field over a region, by name or tag, or over the domain: exact for P1 and P2; one per component.

    See docs/surrogates.md.
    """

    region: str | int | None = None
    field: str = "u"

    def bind(self, formulation: Formulation) -> BoundOutput:
        return _of_components(formulation, self.field, self._of)

    def _of(self, formulation: Formulation, f: FrameField) -> BoundOutput:
        arrays = formulation.frame.arrays
        if f.degree:
            raise ValueError(f"{f.name} has no nodal values at points; use a LinearFunctional for its mean")
        inside = np.ones(len(arrays.regions), bool) if self.region is None else arrays.regions == self._tag(arrays)
        cells, volumes = arrays.levels[-1].cells[inside], arrays.volumes[inside]
        share = np.repeat(volumes / (volumes.sum() * cells.shape[1]), cells.shape[1])
        weights = np.bincount(cells.ravel(), share, minlength=len(f.lift[-1]))
        label = f"mean {f.name}" if self.region is None else f"mean {f.name} in {self.region}"
        found, bubbles = NodalOutput(formulation, f, _as_row(weights), [label]), bubbles_of(arrays, f)
        if bubbles is None:
            return found
        places, d = nodal_places(arrays, bubbles)[inside], arrays.dimension
        share = np.repeat(4 * volumes / (volumes.sum() * (d + 1) * (d + 2)), places.shape[1])
        weights = np.bincount(places.ravel(), share, minlength=len(bubbles.lift[-1]))
        return SumOutput(found, NodalOutput(formulation, bubbles, _as_row(weights), [label]))

    def _tag(self, arrays: FrameArrays) -> int:
        names, tags = region_groups(arrays)
        found = names.get(self.region) if isinstance(self.region, str) else self.region
        if isinstance(found, bool) or found not in tags:
            others = sorted(tags - set(names.values()))
            there = known_names(str(self.region), names, others)
            raise ValueError(
                f"there is no region {self.region!r}; the frame has {there}; RegionMean() without a region, or "
                "--mean all, is the mean over the domain"
            )
        return int(found)


@dataclass(frozen=True, eq=False)
class BoundaryFlux(Output):
    """∫ a_y ∂u/∂n over a group of boundary facets: a name, a tag, "all", or a function of x (n, d) true at midpoints.

    Where u is given the flux is the reaction, ∫ a_y ∇u · ∇v - load(v) with a discrete v that is 1 at the given points
    of the group; this is more accurate than differentiating u. At a point that the group shares with other facets where
    u is given, v is the group's share of the area of these facets, so that the fluxes of all groups add up. Flux
    through neighbouring facets with Neumann or Robin conditions is subtracted. Facets of the group with Neumann
    conditions add ∫ h, with Robin conditions ∫ k (u_outside - u), insulated ones nothing. A field in RT0 is summed
    over facets instead. For an energy of the user it is the reaction where the field is given, one number per component
    of a vector: the reaction force. See docs/surrogates.md.
    """

    group: str | int | Callable[[Floats], Any]
    field: str | None = None
    """The first field unless given."""

    def bind(self, formulation: Formulation) -> BoundOutput:
        arrays = formulation.frame.arrays
        chosen = group_facets(arrays, self.group)
        name = getattr(self.group, "__name__", "function") if callable(self.group) else str(self.group)
        flux = flux_field(arrays)
        if flux is not None:
            assert arrays.groups is not None
            places, signs = flux_signs(arrays, arrays.groups.facets[chosen])
            weights = np.bincount(places, signs, minlength=len(flux.lift[-1]))
            return NodalOutput(formulation, flux, _as_row(weights), [f"flux {name}"])
        first = arrays.fields[0].name
        fields = output_fields(arrays, self.field or vector_name(first) or first)
        found = [Reaction(formulation, chosen, f) for f in fields]
        if not any(reaction.covers for reaction in found):
            raise ValueError(
                f"{self.field or first} is given nowhere on {name!r}, and the equation's own terms make the flux "
                "there: write it as a Functional with ds, or choose another field if there are several"
            )
        labels = [f"flux {name}" if len(fields) == 1 else f"flux of {f.name} {name}" for f in fields]
        parts = [FluxOutput(reaction, [label]) for reaction, label in zip(found, labels, strict=True)]
        return parts[0] if len(parts) == 1 else VectorOutput(parts)


@dataclass(frozen=True, eq=False)
class LinearFunctional(Output):
    """The product of a vector (n,), or of rows (s, n), with all nodal values of a field, given ones included.

    For a vector field the product with each component. See docs/surrogates.md.
    """

    vector: npt.ArrayLike
    field: str = "u"
    label: str = "functional"

    def bind(self, formulation: Formulation) -> BoundOutput:
        return _of_components(formulation, self.field, self._of)

    def _of(self, formulation: Formulation, f: FrameField) -> BoundOutput:
        given = self.vector.detach().cpu() if isinstance(self.vector, Tensor) else self.vector
        try:
            rows = np.atleast_2d(np.asarray(given, np.float64))
        except (TypeError, ValueError) as error:
            raise ValueError(f"the vector of a LinearFunctional must be numbers: {error}") from error
        n = len(f.lift[-1])
        if rows.ndim != 2 or rows.shape[1] != n or not len(rows):
            raise ValueError(f"the vector has shape {np.shape(given)}, but {f.name} has {n} nodal values: pass ({n},)")
        if not np.isfinite(rows).all():
            raise ValueError(f"entry {int(np.argwhere(~np.isfinite(rows))[0, 1])} of the vector is not finite: fix it")
        row, column = np.nonzero(rows)
        matrix = SparseMatrix.from_entries(row, column, rows[row, column], (len(rows), n))
        label = self.label if f.name == self.field else f"{self.label} of {f.name}"
        labels = [label] if len(rows) == 1 else [f"{label} {i}" for i in range(len(rows))]
        return NodalOutput(formulation, f, matrix, labels)


# ---- fields and matrices


def output_fields(arrays: FrameArrays, name: str) -> list[FrameField]:
    """The fields with this name: one, or the components of a vector field."""
    found = [f for f in arrays.fields if name == f.name] or [f for f in arrays.fields if name == vector_name(f.name)]
    if not found:
        vectors = dict.fromkeys(vector_name(f.name) for f in arrays.fields if vector_name(f.name))
        names = [f.name for f in arrays.fields]
        more = f"; {' and '.join(map(str, vectors))} is all components" if vectors else ""
        raise ValueError(f"there is no field {name!r}; the frame has {', '.join(names)}{more}")
    return found


def _at_points(f: FrameField, places: Ints, basis: Floats) -> SparseMatrix:
    """(n c, nodal values of f) values at n points from the local basis (n, L, c) and its places (n, L)."""
    n, _, c = basis.shape
    rows = np.arange(n)[:, None, None] * c + np.arange(c)
    return _sum_entries(rows, places[..., None], basis, (n * c, len(f.lift[-1])))


def _of_components(
    formulation: Formulation, name: str, make: Callable[[Formulation, FrameField], BoundOutput]
) -> BoundOutput:
    """What `make` gives for a field; for a vector field that of all components, one component after the other."""
    parts = [make(formulation, f) for f in output_fields(formulation.frame.arrays, name)]
    return parts[0] if len(parts) == 1 else VectorOutput(parts)


def _as_row(weights: npt.NDArray) -> SparseMatrix:
    places = np.flatnonzero(weights)
    return SparseMatrix.from_entries(np.zeros_like(places), places, weights[places], (1, len(weights)))


def _sum_entries(rows: npt.ArrayLike, columns: npt.ArrayLike, weights: Floats, shape: tuple[int, int]) -> SparseMatrix:
    """The sparse matrix with these entries, equal places summed."""
    row, column, weight = (np.ravel(a) for a in np.broadcast_arrays(rows, columns, weights))
    place, number = np.unique(row * shape[1] + column, return_inverse=True)
    return SparseMatrix.from_entries(*np.divmod(place, shape[1]), np.bincount(number.ravel(), weight), shape)


# ---- outputs on a formulation


class BoundOutput(ABC):
    """An output on one formulation."""

    labels: list[str]
    is_affine: bool = True
    """Whether the numbers are affine in the solution. Others have no `functional`, and no error bounds."""

    @abstractmethod
    def values(self, w: Tensor, y: Tensor, fields: Callable[[], dict[str, Tensor]]) -> Tensor:
        """(B, s) from w (B, Nhat); `fields` gives the nodal values of all fields."""

    @abstractmethod
    def functional(self, y: Tensor) -> Tensor:
        """(B or 1, s, Nhat) ℓ_y."""


class NodalOutput(BoundOutput):
    """A fixed matrix (s, n) times all nodal values of one field."""

    def __init__(self, formulation: Formulation, f: FrameField, matrix: SparseMatrix, labels: Sequence[str]) -> None:
        frame, arrays = formulation.frame, formulation.frame.arrays
        self._frame, self._field, self.labels = frame, f.name, list(labels)
        self._matrix = SparseOperator(matrix, frame.dtype, frame.device)
        before = arrays.fields[: [g.name for g in arrays.fields].index(f.name)]
        self._place = sum(len(g.free[-1]) for g in before)
        self._free = torch.as_tensor(np.array(f.free[-1]), device=frame.device)

    def values(self, w: Tensor, y: Tensor, fields: Callable[[], dict[str, Tensor]]) -> Tensor:
        return self._matrix(fields()[self._field])

    def functional(self, y: Tensor) -> Tensor:
        s, N = self._matrix.shape[0], self._frame.arrays.nodal_size
        whole = self._matrix.T(torch.eye(s, dtype=self._frame.dtype, device=self._frame.device))[:, self._free]
        after = N - self._place - len(self._free)
        return self._frame.H.T(torch.nn.functional.pad(whole, (self._place, after)))[None]


class SumOutput(BoundOutput):
    """The sum of outputs with the same labels, of the fields that a solution consists of."""

    def __init__(self, *parts: BoundOutput) -> None:
        self._parts, self.labels = parts, parts[0].labels

    def values(self, w: Tensor, y: Tensor, fields: Callable[[], dict[str, Tensor]]) -> Tensor:
        found = [part.values(w, y, fields) for part in self._parts]
        return torch.stack(found).sum(0)

    def functional(self, y: Tensor) -> Tensor:
        found = [part.functional(y) for part in self._parts]
        return torch.stack(found).sum(0)


class VectorOutput(BoundOutput):
    """The same output of all components of a vector field: all components of the first number, then of the next."""

    def __init__(self, parts: Sequence[BoundOutput]) -> None:
        self._parts = parts
        self.labels = [label for labels in zip(*(part.labels for part in parts), strict=True) for label in labels]

    def values(self, w: Tensor, y: Tensor, fields: Callable[[], dict[str, Tensor]]) -> Tensor:
        return torch.stack([part.values(w, y, fields) for part in self._parts], dim=2).flatten(1)

    def functional(self, y: Tensor) -> Tensor:
        return torch.stack([part.functional(y) for part in self._parts], dim=2).flatten(1, 2)


class FluxOutput(BoundOutput):
    """The flux through a group of facets, from the reaction."""

    def __init__(self, reaction: Reaction, labels: Sequence[str]) -> None:
        self._reaction, self.labels = reaction, list(labels)

    def values(self, w: Tensor, y: Tensor, fields: Callable[[], dict[str, Tensor]]) -> Tensor:
        reaction, states = self._reaction, self._reaction.formulation.states(w, y)
        found = dot(states, reaction.on_states(y)) + reaction.constant(y)
        trace = reaction.on_nodes(y)
        return (found if trace is None else found + dot(fields()[reaction.field], trace))[:, None]

    def functional(self, y: Tensor) -> Tensor:
        frame, trace = self._reaction.formulation.frame, self._reaction.on_nodes(y)
        found = frame.D.T(self._reaction.on_states(y))
        if trace is not None:
            free = torch.as_tensor(np.array(frame.arrays.fields[0].free[-1]), device=trace.device)
            found = found + frame.H.T(torch.nn.functional.pad(trace[:, free], (0, frame.arrays.nodal_size - len(free))))
        return found[:, None]


class OutputMap:
    """Evaluates outputs of u = lift + F w on a formulation in float32 or float64. See docs/surrogates.md."""

    def __init__(self, formulation: Formulation, outputs: Output | Sequence[Output] | OutputMap) -> None:
        given = outputs.outputs if isinstance(outputs, OutputMap) else outputs
        several = isinstance(given, Sequence) and not isinstance(given, str)
        self.outputs: tuple[Output, ...] = tuple(given) if several else (given,)  # type: ignore[arg-type, assignment]
        wrong = next((o for o in self.outputs if not isinstance(o, Output)), None)
        if not self.outputs or wrong is not None:
            raise ValueError(
                f"outputs are {outputs!r}; give PointValues, RegionMean, BoundaryFlux, LinearFunctional or Functional, "
                "or several"
            )
        if formulation.frame.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"outputs need float32 or float64, the frame is in {formulation.frame.dtype}: convert it")
        self.formulation = formulation
        self._bound = [output.bind(formulation) for output in self.outputs]
        self.labels = tuple(label for bound in self._bound for label in bound.labels)
        self.is_affine = tuple(bound.is_affine for bound in self._bound for _ in bound.labels)
        """For each number whether it is affine in the solution."""

    def __len__(self) -> int:
        return len(self.labels)

    def on(self, formulation: Formulation) -> OutputMap:
        """The same outputs on a formulation: this object if it is the same formulation."""
        return self if formulation is self.formulation else OutputMap(formulation, self)

    def values(self, w: Tensor, y: Tensor) -> Tensor:
        """(B, s) outputs of w (B, Nhat) for y (B, p); differentiable in both."""
        self.formulation.check_coefficients(w, y)
        w, y = (x if x.ndim == 2 else x[None] for x in (w, y))
        made: list[dict[str, Tensor]] = []

        def fields() -> dict[str, Tensor]:
            if not made:
                made.append(self.formulation.synthesise(w, y))
            return made[0]

        return torch.cat([bound.values(w, y, fields) for bound in self._bound], dim=1)

    def functional(self, y: Tensor) -> Tensor:
        """(B or 1, s, Nhat) the vectors ℓ_y with q(w, y) = ⟨ℓ_y, w⟩ + c_y, of the s outputs that are affine.

        (1, s, Nhat) if they do not depend on y.
        """
        y = self.formulation.check_parameters(y)
        parts = [bound.functional(y) for bound in self._bound if bound.is_affine]
        B = max(len(part) for part in parts)
        return torch.cat([part.expand(B, -1, -1) for part in parts], dim=1)
