"""The space of all fields on a distributed mesh, and its dofs as nodal values in the numbering of the frame.

N points of the finest mesh, n nodal values of a field, d dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fem_frames.fenicsx import door
from fem_frames.fenicsx.dofs import bubbles_from_middles, edge_dofs, facet_dofs, middles_from_bubbles, node_dofs
from fem_frames.fenicsx.door import MPI, fem
from fem_frames.frame.edge_bubbles import EdgeBubbles
from fem_frames.frame.elements import P1, Element
from fem_frames.mesh.geometry import Floats, Ints


@dataclass(frozen=True, eq=False)
class NodalField:
    """The nodal values of a field on the finest mesh."""

    name: str
    element: Element
    simplices: Ints  # (n, k+1) points of the simplices that carry them
    fixed: npt.NDArray[np.bool_]  # (n,) where nodal values are given


class FieldSpace:
    """The mixed space of all fields on a mesh that is distributed over `comm`, and the function for solutions."""

    def __init__(self, mesh: Any, fields: Sequence[NodalField], points: int, comm: MPI.Comm) -> None:
        self.mesh, self.fields, self.comm = mesh, fields, comm
        self.points = points
        """N of all ranks."""
        families, place = _families(fields)
        V = self.V = door.space(mesh, *families)
        self.solution = fem.Function(V)
        parts = [V if len(families) == 1 else V.sub(i) for i in place]
        self.dofs = [_nodal_dofs(f, part, V) for f, part in zip(fields, parts, strict=True)]
        """For each field owned dofs, the nodal value of each, and its factor: a dof is its nodal value times that."""

    @property
    def first(self) -> int:
        """The global number of the first dof that this rank owns."""
        return int(self.V.dofmap.index_map.local_range[0])

    def place(self, lifts: Sequence[Floats], x: Floats) -> Ints:
        """Writes given values into the dofs x of this rank, from nodal values (n,) of fields; returns their places."""
        places = []
        for f, lift, (owned, place, factor) in zip(self.fields, self._values(lifts), self.dofs, strict=True):
            given = f.fixed[place]
            x[owned[given]] = (factor * lift[place])[given]
            places.append(owned[given])
        return np.concatenate(places)

    def extend(self, lifts: Sequence[Floats], x: Floats) -> None:
        """Writes the nodal values (n,) of all fields into the dofs x of this rank."""
        for lift, (owned, place, factor) in zip(self._values(lifts), self.dofs, strict=True):
            x[owned] = factor * lift[place]

    def _values(self, lifts: Sequence[Floats]) -> list[Floats]:
        """The same with values at midpoints of edges in place of edge bubbles."""
        found = list(lifts)
        for k, f in enumerate(self.fields):
            if isinstance(f.element, EdgeBubbles):
                found[k] = middles_from_bubbles(lifts[k - 1], lifts[k], f.simplices)
        return found

    def set_solution(self, x: Floats) -> None:
        """Sets `solution` from the dofs x of this rank. Collective."""
        self.solution.x.array[: len(x)] = x
        self.solution.x.scatter_forward()

    def gathered(self) -> dict[str, Floats]:
        """Nodal values (n,) of every field of `solution`, on every rank. Collective."""
        found = [self._gather(f, dofs) for f, dofs in zip(self.fields, self.dofs, strict=True)]
        for k, f in enumerate(self.fields):
            if isinstance(f.element, EdgeBubbles):
                found[k] = bubbles_from_middles(found[k - 1], found[k], f.simplices)
        return {f.name: values for f, values in zip(self.fields, found, strict=True)}

    def _gather(self, field: NodalField, dofs: tuple[Ints, Ints, Floats]) -> Floats:
        owned, place, factor = dofs
        values = np.zeros(len(field.fixed))
        for part, places in self.comm.allgather((self.solution.x.array[owned] / factor, place)):
            values[places] = part
        return values

    def global_nodes(self) -> Ints:
        """(N,) global dofs of the first field, which is nodal. Collective."""
        found = np.zeros(self.points, np.int64)
        owned, node, _ = self.dofs[0]
        for part, nodes in self.comm.allgather((self.first + owned, node)):
            found[nodes] = part
        return found

    def node_points(self) -> Floats:
        """(N, d) points of this rank in the numbering of the frame, zero elsewhere."""
        x = np.zeros((self.points, self.mesh.topology.dim))
        x[door.input_nodes(self.mesh)] = door.coordinates(self.mesh)
        return x


def _families(fields: Sequence[NodalField]) -> tuple[list[str | tuple[str, int]], list[int]]:
    """DOLFINx's elements, and for each field the number of its own: P1 and the edge bubbles after it are P2."""
    found: list[str | tuple[str, int]] = []
    place = []
    for k, f in enumerate(fields):
        if not isinstance(f.element, EdgeBubbles):
            found.append(f.element.dolfinx_family)
        elif k and isinstance(fields[k - 1].element, P1):
            found[-1] = (fields[k - 1].element.dolfinx_family, 2)
        else:
            raise ValueError(f"the field before {f.name} is not in P1: edge bubbles follow the P1 part of their field")
        place.append(len(found) - 1)
    return found, place


def _nodal_dofs(field: NodalField, part: Any, whole: Any) -> tuple[Ints, Ints, Floats]:
    """Owned dofs, the nodal value of each, and factors: a dof is its nodal value times its factor.

    For edge bubbles the dofs are the values at midpoints.
    """
    if isinstance(field.element, EdgeBubbles):
        owned, edge = edge_dofs(part, whole, field.simplices)
        return owned, edge, np.ones(len(owned))
    if field.element.degree:
        return facet_dofs(part, whole, field.simplices)
    owned, node = node_dofs(part, whole)
    return owned, node, np.ones(len(owned))
