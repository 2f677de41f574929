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
from fem_frames.fenicsx.dofs import facet_dofs, node_dofs
from fem_frames.fenicsx.door import MPI, fem
from fem_frames.frame.elements import Element
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
        V = self.V = door.space(mesh, *(f.element.dolfinx_family for f in fields))
        self.solution = fem.Function(V)
        parts = [V] if len(fields) == 1 else [V.sub(i) for i in range(len(fields))]
        self.dofs = [_nodal_dofs(f, part, V) for f, part in zip(fields, parts, strict=True)]
        """For each field owned dofs, the nodal value of each, and its factor: a dof is its nodal value times that."""

    @property
    def first(self) -> int:
        """The global number of the first dof that this rank owns."""
        return int(self.V.dofmap.index_map.local_range[0])

    def place(self, lifts: Sequence[Floats], x: Floats) -> Ints:
        """Writes given values into the dofs x of this rank, from nodal values (n,) of fields; returns their places."""
        places = []
        for f, lift, (owned, place, factor) in zip(self.fields, lifts, self.dofs, strict=True):
            given = f.fixed[place]
            x[owned[given]] = (factor * lift[place])[given]
            places.append(owned[given])
        return np.concatenate(places)

    def extend(self, lifts: Sequence[Floats], x: Floats) -> None:
        """Writes the nodal values (n,) of all fields into the dofs x of this rank."""
        for lift, (owned, place, factor) in zip(lifts, self.dofs, strict=True):
            x[owned] = factor * lift[place]

    def set_solution(self, x: Floats) -> None:
        """Sets `solution` from the dofs x of this rank. Collective."""
        self.solution.x.array[: len(x)] = x
        self.solution.x.scatter_forward()

    def gathered(self) -> dict[str, Floats]:
        """Nodal values (n,) of every field of `solution`, on every rank. Collective."""
        return {f.name: self._gather(f, dofs) for f, dofs in zip(self.fields, self.dofs, strict=True)}

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


def _nodal_dofs(field: NodalField, part: Any, whole: Any) -> tuple[Ints, Ints, Floats]:
    """Owned dofs, the nodal value of each, and factors: a dof is its nodal value times its factor."""
    if field.element.degree:
        return facet_dofs(part, whole, field.simplices)
    owned, node = node_dofs(part, whole)
    return owned, node, np.ones(len(owned))
