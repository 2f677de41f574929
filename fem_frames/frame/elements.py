"""Elements describe a field on one simplex; no other module depends on these details.

**State of a cell.** The Taylor polynomial of a field at the centre of a cell T, times |T|^{1/2}. With this scaling the
Euclidean norm of all states is a norm in L2, normalised frame functions have states of order one on every level and in
every dimension, and C_y is free of |T|, so nothing over- or underflows in half precision. The state of a child is the
Taylor shift of its parent's state, which makes D a recursion over levels.

K cells, L nodal values of a cell, c numbers in the state of a cell, d dimension.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from fem_frames.frame.boundary import POINT_RULE, Rule
from fem_frames.frame.families import FieldLevel, FrameFamily, hat_families
from fem_frames.frame.sparse import SparseMatrix
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.mesh.simplices import facet_states, spreads
from fem_frames.messages import either

_ELEMENTS: dict[str, type[Element]] = {}


@dataclass(frozen=True)
class Element(ABC):
    """A finite element on simplices of one dimension. Users subclass it for elements of their own.

    See docs/formulations.md.
    """

    dimension: int
    name: ClassVar[str]
    """The name of the element in frame files."""
    nested: ClassVar[bool] = True
    """Whether functions on one level are combinations of functions on the next. If not, only the finest level has any.
    """

    @classmethod
    def for_mesh(cls, dimension: int, volumes: Floats) -> Self:
        """The element for a finest mesh with cells of these volumes (K,), by which it may choose units."""
        return cls(dimension)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" in vars(cls):
            other = _ELEMENTS.get(cls.name, cls)
            if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
                raise ValueError(f"there is an element {cls.name!r} already: choose another name for {cls.__name__}")
            _ELEMENTS[cls.name] = cls

    @property
    @abstractmethod
    def degree(self) -> int:
        """Dimension of the simplices that carry nodal values: 0 for points, d - 1 for facets."""

    @property
    @abstractmethod
    def state_size(self) -> int:
        """c, the number of entries in the state of a cell."""

    @property
    @abstractmethod
    def dolfinx_family(self) -> str:
        """The name of the element in DOLFINx."""

    @abstractmethod
    def states(self, points: Floats, cells: Ints, gradients: Floats) -> Floats:
        """(K, L, c) states of the nodal basis, not scaled; `gradients` (K, d+1, d) belong to the hats."""

    @abstractmethod
    def shift(self, states: Floats, offset: Floats) -> Floats:
        """(…, c) states about a centre that lies at `offset` (…, d) from the old one."""

    def transport(self, states: Floats, jacobian: Floats) -> Floats:
        """(…, c) states on the image of a cell under an affine map with `jacobian` (…, d, d), det > 0, at its centre.

        Nodal values stay the same. Frames on curved boundaries need it; see docs/curved.md.
        """
        raise ValueError(f"the element {self.name!r} has no transport, which frames on curved boundaries need")

    @abstractmethod
    def families(self, field: str, levels: Sequence[FieldLevel]) -> list[FrameFamily]:
        """The frame functions of a field; the first family is nodal and named like the field."""

    @abstractmethod
    def tabulate(self, reference: Floats, jacobian: Floats) -> Floats:
        """(K, Q, L, c) the nodal basis at points (K, Q, d) of the reference cell, by basix; `jacobian` (K, d, d).

        The components are the entries of a state, at each point instead of the centre.
        """

    @abstractmethod
    def norm_weights(self, points: Floats, cells: Ints) -> Floats:
        """(K, c) weights ω: the norm that normalises the frame is equivalent to (Σ ω state²)^{1/2}, states scaled."""

    def cell_values(self, states: Floats) -> Floats | None:
        """(…, d) vectors at the centres from states (…, c); None if nodal values are values at points."""
        return None

    def state_units(self, length: float) -> Floats:
        """(c,) factors that give all entries of a state one unit, for a domain of this length."""
        return np.ones(self.state_size)

    def data_rule(self, on_facets: Rule) -> Rule:
        """Points and weights that map given data to the nodal value of a simplex; `on_facets` takes means over facets.

        The weights sum to 1, or to 0 if the nodal value of a constant is zero.
        """
        return on_facets if self.degree else POINT_RULE

    def norm_matrix(self, level: FieldLevel) -> Any:
        """The matrix of the norm that normalises the frame, on all nodal values; None: there is no coarse level."""
        return None

    def coarse_functions(self, level: FieldLevel, limit: int, norm: Any) -> SparseMatrix:
        """The functions of the coarse level, for elements with a `norm_matrix`, normalised by the matrix `norm`.

        `limit` is the size of the smallest space. See `coarse_space.py`.
        """
        raise ValueError(f"{self.name} has a norm_matrix, but no coarse_functions: define both, or neither")


class P1(Element):
    """Continuous and linear on cells, with values at points. Its state is the gradient. See docs/formulations.md."""

    name = "P1"
    dolfinx_family = "P"

    @property
    def degree(self) -> int:
        return 0

    @property
    def state_size(self) -> int:
        return self.dimension

    def states(self, points: Floats, cells: Ints, gradients: Floats) -> Floats:
        return gradients

    def shift(self, states: Floats, offset: Floats) -> Floats:
        return states

    def transport(self, states: Floats, jacobian: Floats) -> Floats:
        return _pulled_back(states, jacobian)

    def families(self, field: str, levels: Sequence[FieldLevel]) -> list[FrameFamily]:
        return hat_families(field, levels)

    def tabulate(self, reference: Floats, jacobian: Floats) -> Floats:
        return _tabulated_hats(reference, jacobian)[1]

    def norm_weights(self, points: Floats, cells: Ints) -> Floats:
        return np.ones((len(cells), self.state_size))

    def norm_matrix(self, level: FieldLevel) -> Any:
        from fem_frames.frame.coarse_space import h1_matrix

        return h1_matrix(level.mesh, level.length)

    def coarse_functions(self, level: FieldLevel, limit: int, norm: Any) -> SparseMatrix:
        from fem_frames.frame.coarse_space import coarse_level, scalar_chain

        return coarse_level([scalar_chain(norm, level.free, limit)], norm, level.free)


class P1Values(P1):
    """P1 for equations that need u itself. Its state is the value at the centre, then the gradient.

    See docs/formulations.md.
    """

    name = "P1 with values"

    @property
    def state_size(self) -> int:
        return 1 + self.dimension

    def states(self, points: Floats, cells: Ints, gradients: Floats) -> Floats:
        values = np.full((*gradients.shape[:2], 1), 1 / (self.dimension + 1))
        return np.concatenate([values, gradients], axis=2)

    def state_units(self, length: float) -> Floats:
        return np.concatenate([[1 / length], np.ones(self.dimension)])

    def shift(self, states: Floats, offset: Floats) -> Floats:
        value = states[..., :1] + (states[..., 1:] * offset).sum(axis=-1, keepdims=True)
        return np.concatenate([value, states[..., 1:]], axis=-1)

    def transport(self, states: Floats, jacobian: Floats) -> Floats:
        return np.concatenate([states[..., :1], _pulled_back(states[..., 1:], jacobian)], axis=-1)

    def tabulate(self, reference: Floats, jacobian: Floats) -> Floats:
        values, gradients = _tabulated_hats(reference, jacobian)
        return np.concatenate([values[..., None], gradients], axis=3)


class RT0(Element):
    """Raviart-Thomas of lowest order, with fluxes through facets; P1 in one dimension.

    Its state is the value at the centre, then the divergence q: τ(x) = τ_c + (q/d)(x - x_c). See docs/formulations.md.
    """

    name = "RT0"

    @property
    def degree(self) -> int:
        return self.dimension - 1

    @property
    def state_size(self) -> int:
        return self.dimension + 1

    @property
    def dolfinx_family(self) -> str:
        return "P" if self.dimension == 1 else "RT"

    def states(self, points: Floats, cells: Ints, gradients: Floats) -> Floats:
        return facet_states(points, cells)

    def shift(self, states: Floats, offset: Floats) -> Floats:
        d = self.dimension
        centre, divergence = states[..., :d], states[..., d:]
        return np.concatenate([centre + divergence * offset / d, divergence], axis=-1)

    def transport(self, states: Floats, jacobian: Floats) -> Floats:
        d, determinant = self.dimension, np.linalg.det(jacobian)[..., None]
        centre = np.einsum("...ij,...j->...i", jacobian, states[..., :d])  # Piola: fluxes stay the same
        return np.concatenate([centre, states[..., d:]], axis=-1) / determinant

    def families(self, field: str, levels: Sequence[FieldLevel]) -> list[FrameFamily]:
        from fem_frames.frame.raviart_thomas import flux_families

        return flux_families(field, levels)

    def tabulate(self, reference: Floats, jacobian: Floats) -> Floats:
        from fem_frames.fenicsx import tabulation

        (K, Q, d), local = reference.shape, self.dimension + 1
        values, divergences = tabulation.tabulate_facets(d, reference.reshape(-1, d))
        determinant = np.linalg.det(jacobian)[:, None, None, None]
        values = np.einsum("kij,kqnj->kqni", jacobian, values.reshape(K, Q, local, d)) / determinant  # Piola
        return np.concatenate([values, divergences.reshape(K, Q, local, 1) / determinant], axis=3)

    def state_units(self, length: float) -> Floats:
        return np.concatenate([np.ones(self.dimension), [length]])

    def norm_weights(self, points: Floats, cells: Ints, length: float = 1.0) -> Floats:
        """(K, d+1) weights of the H(div) norm, (‖τ‖² + L² ‖div τ‖²)^{1/2}."""
        weights = np.ones((len(cells), self.state_size))
        weights[:, -1] *= length**2
        weights[:, -1] += spreads(points, cells) / self.dimension**2
        return weights

    def norm_matrix(self, level: FieldLevel) -> Any:
        from fem_frames.frame.raviart_thomas import FluxLevel

        return FluxLevel(level.mesh, level.fixed, level.length).norm_matrix()

    def coarse_functions(self, level: FieldLevel, limit: int, norm: Any) -> SparseMatrix:
        from fem_frames.frame.coarse_fluxes import coarse_fluxes
        from fem_frames.frame.raviart_thomas import FluxLevel

        return coarse_fluxes(FluxLevel(level.mesh, level.fixed, level.length), limit, norm)

    def cell_values(self, states: Floats) -> Floats | None:
        return None if self.dimension == 1 else states[..., : self.dimension]


def _pulled_back(gradients: Floats, jacobian: Floats) -> Floats:
    """(…, d) gradients g J⁻¹ on the image of a cell."""
    return np.einsum("...i,...ij->...j", gradients, np.linalg.inv(jacobian))


def _tabulated_hats(reference: Floats, jacobian: Floats) -> tuple[Floats, Floats]:
    """(K, Q, d+1) values and (K, Q, d+1, d) gradients of the hats at points of the reference cell."""
    from fem_frames.fenicsx import tabulation

    K, Q, d = reference.shape
    values, derivatives = tabulation.tabulate(d, reference.reshape(-1, d))
    gradients = np.einsum("kqni,kij->kqnj", derivatives.reshape(K, Q, d + 1, d), np.linalg.inv(jacobian))
    return values.reshape(K, Q, d + 1), gradients


def element_class(name: str) -> type[Element]:
    """The class of elements with this name, from the library or an imported subclass of `Element`."""
    from fem_frames.frame import edge_bubbles  # noqa: F401 (defines an element)

    if name not in _ELEMENTS:
        remedy = either("give --problem FILE.py that defines it", "import the module that defines it first")
        raise ValueError(f"there is no element {name!r}, only {', '.join(_ELEMENTS)}: {remedy}")
    return _ELEMENTS[name]


def unrecorded_element(number: int) -> type[Element]:
    """The element of field `number` in files that do not name elements: u comes first, then its flux."""
    return (P1, RT0)[min(number, 1)]
