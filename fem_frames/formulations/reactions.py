"""The flux through boundary facets: reactions where u is given, boundary data elsewhere.

The solution satisfies ∫ a ∇u · ∇v = load(v) for all v that vanish where u is given. For other v the difference
∫ a ∇u · ∇v - load(v) is the flux through the part where u is given, weighted by the trace of v. How v continues into
the domain does not matter for the discrete solution. For other u a smooth continuation has smaller errors: v is
continued from level to level. For a quadratic energy of the user the same holds for its derivative in the direction v:
this is the reaction force.

B samples, N points, F boundary facets, K finest cells, Q quadrature points, m numbers in a cell's state, d dimension.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fem_frames.formulations.boundary_terms import facet_cells
from fem_frames.formulations.energy import Energy
from fem_frames.formulations.equations import EquationParts
from fem_frames.formulations.formulation import Formulation
from fem_frames.formulations.quadratic import QuadraticFormulation
from fem_frames.frame.arrays import FrameArrays, FrameField
from fem_frames.frame.boundary import FacetIntegrals, areas
from fem_frames.frame.level_matrices import cell_states, flux_field, nodal_states, state_size, state_slices
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.mesh.simplices import find
from fem_frames.operators.checking import is_plain


class Reaction:
    """Flux through some boundary facets as ⟨t_y, states of u⟩ + ⟨m_y, nodal values of u⟩ + c_y."""

    def __init__(self, formulation: Formulation, chosen: npt.NDArray[np.bool_], f: FrameField) -> None:
        """`chosen` (F,) tells which facets of `FrameArrays.groups` count, for the field f."""
        arrays, problem = formulation.frame.arrays, formulation.problem
        groups = arrays.groups
        if f.degree or not isinstance(formulation, Energy | QuadraticFormulation):
            raise ValueError(
                f"fluxes through the boundary of {formulation.problem.name} are not known: only quadratic energies in "
                "P1 have them; write a Functional in UFL instead (--functional on the command line)"
            )
        assert groups is not None
        self.formulation, self.field = formulation, f.name
        kinds = _kinds(arrays, f, formulation)
        self._wide, self._device = formulation.wide, formulation.frame.device
        v = _continued(arrays, f, _shares(arrays, groups.facets, kinds == "dirichlet", chosen))
        self.covers = bool(v.any()) or not isinstance(formulation, EquationParts)
        """Whether the flux is known: an equation has it where u is given."""
        states = np.zeros((len(arrays.volumes), state_size(arrays)))
        states[:, state_slices(arrays)[f.name]] = np.sqrt(arrays.volumes)[:, None] * cell_states(arrays, f, v)
        self._states = self._as_data(states.ravel())[None].to(formulation.frame.dtype)  # (1, K m)
        self._test = self._as_data(v)
        at = v[arrays.levels[-1].cells] @ arrays.rule_points.T  # (K, Q)
        self._weighted = self._as_data(arrays.volumes[:, None] * arrays.rule_weights * at)
        self._fixed_load = float(arrays.neumann_load @ v)
        self._natural: FacetIntegrals | None = None
        own = np.flatnonzero(chosen & np.isin(kinds, ["neumann", "robin"]))
        if len(own):
            own = own[np.argsort(groups.conditions[own], kind="stable")]
            rule = (groups.rule_points, groups.rule_weights)
            self._natural = FacetIntegrals(
                arrays.points, groups.facets[own], groups.conditions[own], rule, problem, self._as_data
            )

    def _as_data(self, array: npt.NDArray) -> Tensor:
        return torch.as_tensor(np.array(array)).to(self._device, self._wide)

    def on_states(self, y: Tensor) -> Tensor:
        """(B, K m) t_y = C_y times the states of v."""
        y = self.formulation.check_parameters(y)
        return self.formulation.C(y)(self._states.expand(y.shape[0], -1))

    def on_nodes(self, y: Tensor) -> Tensor | None:
        """(B, N) m_y: minus the integrals of k times hats over Robin facets; None without such facets."""
        natural = self._natural
        if natural is None or not natural.has_robin:
            return None
        y = self.formulation.check_parameters(y).to(self._wide)
        masses = natural.masses(y).sum(2).flatten(1)  # (B, F d)
        places = torch.as_tensor(np.array(natural.facets[natural.robin]).ravel(), device=self._device)
        empty = masses.new_zeros(y.shape[0], len(self._test))
        return empty.index_add(1, places, -masses).to(self.formulation.frame.dtype)

    def constant(self, y: Tensor) -> Tensor:
        """(B,) c_y: the boundary data on the facets, minus the load of v."""
        y = self.formulation.check_parameters(y)
        found = -self._load(y)
        if self._natural is not None:
            found = found + self._natural.loads(y.to(self._wide), is_plain(y)).sum((1, 2))
        return found.expand(y.shape[0])

    def _load(self, y: Tensor) -> Tensor:
        """(B or 1,) source, Neumann and Robin data on v, and for quadratic densities their load on states."""
        made = self.formulation
        found = torch.full((1,), self._fixed_load, dtype=self._wide, device=self._device)
        if isinstance(made, EquationParts):
            found = found + made.load_on({self.field: self._test[None]}, y.to(self._wide))
        elif isinstance(made, Energy) or getattr(made, "source_at_points", False):
            found = found + (made.source(y) * self._weighted[..., None]).sum((0, 1))
        if made.boundary is not None and made.boundary.loads:
            found = found + (made.boundary.load(y.to(self._wide)) * self._test).sum(-1)
        density = made.state_functional(y)  # (K, m, B) or (K, m, 1)
        if density is not None:
            found = found + (density * self._states[0].to(self._wide).reshape(*density.shape[:2], 1)).sum((0, 1))
        return found


def _kinds(arrays: FrameArrays, f: FrameField, formulation: Formulation) -> npt.NDArray[np.str_]:
    """(F,) the kinds of the conditions on all boundary facets, or "insulated"."""
    groups = arrays.groups
    assert groups is not None
    if isinstance(
        formulation, EquationParts
    ):  # its fields have conditions of their own, and all natural terms are in it
        given = np.ones(len(arrays.points), bool)
        given[f.free[-1]] = False
        return np.where(given[groups.facets].all(axis=1), "dirichlet", "insulated")
    return np.array([*(c.kind for c in formulation.problem.conditions), "insulated"])[groups.conditions]


def _shares(arrays: FrameArrays, facets: Ints, given: npt.NDArray[np.bool_], chosen: npt.NDArray[np.bool_]) -> Floats:
    """(N,) the share of the chosen facets in the area of all facets at a point where u is given."""
    size, own = areas(arrays.points[facets]), np.zeros(len(arrays.points))
    whole = np.zeros(len(arrays.points))
    np.add.at(whole, facets[given], size[given, None])
    np.add.at(own, facets[given & chosen], size[given & chosen, None])
    return np.where(whole > 0, own / np.where(whole > 0, whole, 1.0), 0.0)


def _continued(arrays: FrameArrays, f: FrameField, shares: Floats) -> Floats:
    """(N,) a function with these values where u is given, interpolated from level to level elsewhere."""
    given = np.ones(len(shares), bool)
    given[f.free[-1]] = False
    v = np.zeros(0)
    for j, level in enumerate(arrays.levels):
        before = v
        v = np.zeros(arrays.point_count(j))
        if j:
            v[: len(before)] = before
            v[len(before) :] = before[level.ends].mean(axis=1)
        here = given[: len(v)]
        v[here] = shares[: len(v)][here]
    return v


def flux_signs(arrays: FrameArrays, facets: Ints) -> tuple[Ints, Floats]:
    """(F,) the numbers of boundary facets among the nodal values of the flux, and ±1 to count outward flux positive."""
    f = flux_field(arrays)
    assert f is not None
    table, of_cells = arrays.simplices(len(arrays.levels) - 1, f.degree)
    places, cells = find(facets, table), facet_cells(arrays, facets)
    local = (of_cells[cells] == places[:, None]).argmax(axis=1)
    divergence = nodal_states(arrays, f, len(arrays.levels) - 1)[cells, local, -1]
    return places, np.sign(divergence)
