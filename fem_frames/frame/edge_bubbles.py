"""Edge bubbles: what quadratic elements (P2) have in addition to P1.

A function in P2 is the sum of two fields of the frame, its interpolant in P1 and a combination of bubbles 4 λ_a λ_b,
one for each edge from a to b. Bubbles vanish at all points and are 1 at the midpoint of their edge, so the nodal value
of an edge is the value of the function at the midpoint minus the mean of its values at the ends. In one dimension the
edges are the cells.

Bubbles of one mesh are no sums of bubbles of finer meshes. Together with the hats of all levels, those of the finest
mesh span P2 there, and they are well conditioned: normalised in H1 they are nearly orthogonal.

K cells, E edges, L edges of a cell, d dimension, j a level.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from fem_frames.frame.boundary import LiftShape, Rule
from fem_frames.frame.elements import Element
from fem_frames.frame.families import FieldLevel, FrameFamily, nodal_family
from fem_frames.frame.fields import EssentialData
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.mesh.hierarchy import MeshHierarchy
from fem_frames.mesh.simplices import SimplexMesh, find, local_simplices
from fem_frames.problem.boundary import Parameter
from fem_frames.problem.definition import Problem

SURPLUS: Rule = (np.array([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]]), np.array([1.0, -0.5, -0.5]))
"""The value at the midpoint of an edge minus the mean of the values at its ends."""


@dataclass(frozen=True)
class EdgeBubbles(Element):
    """The functions 4 λ_a λ_b on the cells at an edge: with P1Values they make quadratic elements.

    Its state is the value at the centre, the gradient, and `unit` times the second derivatives ∂_i ∂_j with i ≤ j. With
    the size of a cell as the unit, all entries of a state are of order one, as half precision needs it.
    See docs/formulations.md.
    """

    unit: float = 1.0
    name = "edge bubbles"
    nested = False

    @classmethod
    def for_mesh(cls, dimension: int, volumes: Floats) -> Self:
        """The element whose unit is the size of most cells, as a power of two, so that it causes no rounding."""
        size = (math.factorial(dimension) * float(np.median(volumes))) ** (1 / dimension)
        return cls(dimension, 2.0 ** math.floor(math.log2(size) + 0.4))  # 0.4: rounding does not change powers of two

    @property
    def degree(self) -> int:
        return 1

    @property
    def state_size(self) -> int:
        return 1 + self.dimension + len(self._pairs[0])

    @property
    def dolfinx_family(self) -> str:
        raise ValueError('DOLFINx has no edge bubbles: with P1 they are its space ("P", 2), see fenicsx/dofs.py')

    @property
    def _pairs(self) -> tuple[Ints, Ints]:
        """i and j of the second derivatives in a state."""
        return np.triu_indices(self.dimension)

    def _parts(self, states: Floats) -> tuple[Floats, Floats, Floats]:
        """(…, 1) values, (…, d) gradients and (…, d, d) second derivatives."""
        d, (rows, columns) = self.dimension, self._pairs
        place = np.zeros((d, d), np.int64)
        place[rows, columns] = place[columns, rows] = np.arange(len(rows))
        return states[..., :1], states[..., 1 : 1 + d], states[..., 1 + d :][..., place] / self.unit

    def _joined(self, values: Floats, slopes: Floats, bends: Floats) -> Floats:
        """The states (…, c) with these parts."""
        parts = (values, slopes, self.unit * bends[..., *self._pairs])
        axes = np.broadcast_shapes(*(part.shape[:-1] for part in parts))
        return np.concatenate([np.broadcast_to(part, (*axes, part.shape[-1])) for part in parts], axis=-1)

    def states(self, points: Floats, cells: Ints, gradients: Floats) -> Floats:
        d = self.dimension
        first, second = np.array(list(itertools.combinations(range(d + 1), 2))).T
        g, h = gradients[:, first], gradients[:, second]  # (K, L, d)
        product = 4 * g[..., :, None] * h[..., None, :]
        values = np.full((*g.shape[:2], 1), 4 / (d + 1) ** 2)
        return self._joined(values, 4 / (d + 1) * (g + h), product + np.swapaxes(product, -1, -2))

    def shift(self, states: Floats, offset: Floats) -> Floats:
        values, slopes, bends = self._parts(states)
        turn = np.einsum("...ij,...j->...i", bends, offset)
        return self._joined(values + ((slopes + turn / 2) * offset).sum(axis=-1, keepdims=True), slopes + turn, bends)

    def transport(self, states: Floats, jacobian: Floats) -> Floats:
        values, slopes, bends = self._parts(states)
        inverse = np.linalg.inv(jacobian)
        slopes = np.einsum("...i,...ij->...j", slopes, inverse)
        return self._joined(values, slopes, np.einsum("...ki,...kl,...lj->...ij", inverse, bends, inverse))

    def families(self, field: str, levels: Sequence[FieldLevel]) -> list[FrameFamily]:
        return [nodal_family(field, 1, levels, bubble_norms)]

    def tabulate(self, reference: Floats, jacobian: Floats) -> Floats:
        from fem_frames.fenicsx import tabulation

        K, Q, d = reference.shape
        values, slopes, bends = (
            a.reshape(K, Q, *a.shape[1:]) for a in tabulation.tabulate_edges(d, reference.reshape(-1, d))
        )
        inverse = np.linalg.inv(jacobian)
        slopes = np.einsum("kqni,kij->kqnj", slopes, inverse)
        bends = np.einsum("kri,kqnrs,ksj->kqnij", inverse, bends, inverse)
        return self._joined(values[..., None], slopes, bends)

    def norm_weights(self, points: Floats, cells: Ints) -> Floats:
        return np.ones((len(cells), self.state_size))

    def state_units(self, length: float) -> Floats:
        return np.concatenate([[1 / length], np.ones(self.state_size - 1)])

    def data_rule(self, on_facets: Rule) -> Rule:
        return SURPLUS


def bubble_norms(mesh: SimplexMesh, length: float = 1.0) -> Floats:
    """(E,) full H1 norms of the bubbles, (‖∇v‖² + ‖v‖²/L²)^{1/2}."""
    d, (gradients, volumes) = mesh.dimension, mesh.hats
    edges, of_cells = mesh.simplices(1)
    first, second = np.array(list(itertools.combinations(range(d + 1), 2))).T
    g, h = gradients[:, first], gradients[:, second]  # (K, L, d)
    # Means of λ_a², λ_a λ_b and λ_a² λ_b² over a cell are 2, 1 over (d+1)(d+2), and 4 over (d+1)(d+2)(d+3)(d+4).
    slopes = 32 / ((d + 1) * (d + 2)) * (g**2 + g * h + h**2).sum(axis=-1)
    values = 64 / ((d + 1) * (d + 2) * (d + 3) * (d + 4) * length**2)
    square = volumes[:, None] * (slopes + values)
    return np.sqrt(np.bincount(of_cells.ravel(), weights=square.ravel(), minlength=len(edges)))


def given_bubbles(hierarchy: MeshHierarchy, problem: Problem) -> EssentialData:
    """The data of `fields.bubble_values`; on coarser levels than the finest no bubble is free."""
    edges = [mesh.simplices(1)[0] for mesh in hierarchy.meshes]
    owners = [_owners(hierarchy, problem, j, table) for j, table in enumerate(edges)]
    fixed = [np.ones(len(owner), bool) for owner in owners]
    fixed[-1] = owners[-1] >= 0
    dirichlet = {i: c.value for i, c in enumerate(problem.conditions) if c.kind == "dirichlet"}
    lift, shapes = [np.zeros(len(owner)) for owner in owners], []
    for number, value in dirichlet.items():
        if not callable(value.given) or isinstance(value.given, Parameter):  # constant data are in P1
            continue
        # The only data are interpolated everywhere, as those of P1 are.
        carrier = tuple(np.ones(len(owner)) if len(dirichlet) == 1 else 1.0 * (owner == number) for owner in owners)
        if value.depends_on_y:
            shapes.append(LiftShape(number, carrier))
            continue
        for own, table, values in zip(carrier, edges, lift, strict=True):
            x = np.einsum("qn,end->qed", SURPLUS[0], hierarchy.points[table])  # (3, E, d)
            at = value.at(x.reshape(-1, x.shape[2])).reshape(x.shape[:2])
            values += own * (SURPLUS[1] @ at)
    return EssentialData(tuple(fixed), tuple(lift), tuple(shapes))


def _owners(hierarchy: MeshHierarchy, problem: Problem, j: int, edges: Ints) -> Ints:
    """(E,) the Dirichlet condition that gives u on each edge of level j, the first one if there are several; or -1."""
    level, found = hierarchy.levels[j], np.full(len(edges), -1)
    if hierarchy.dimension == 1:  # the boundary consists of points
        return found
    part = hierarchy.condition_facets(problem)[level.facet_origin]
    for number in reversed([i for i, c in enumerate(problem.conditions) if c.kind == "dirichlet"]):
        found[find(local_simplices(level.facets[part == number], 1).reshape(-1, 2), edges)] = number
    return found
