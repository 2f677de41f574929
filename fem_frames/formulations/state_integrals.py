"""Integrals of densities over the cells and boundary facets of a frame's finest mesh, as functions of states.

The state of a cell is a Taylor polynomial, so the state at a quadrature point is its Taylor shift, on the boundary too.

B samples, C cells or facets of an integral, K finest cells, Q quadrature points, m numbers in a cell's state,
d dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fem_frames.formulations.boundary_terms import facet_cells
from fem_frames.frame.arrays import FrameArrays
from fem_frames.frame.boundary import areas
from fem_frames.frame.level_matrices import quadrature_points
from fem_frames.mesh.checks import group_tags
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.problem.densities import CELLS, FACETS, RESIDUAL, Density, Integral
from fem_frames.problem.differentiation import gradient, with_gradient
from fem_frames.problem.program_values import evaluated
from fem_frames.problem.programs import Program

AsData = Callable[[np.ndarray], Tensor]


class Places:
    """The quadrature points of an integral: where they are, and their weights."""

    def __init__(self, arrays: FrameArrays, integral: Integral) -> None:
        self.cells: Ints | None = None
        """(C,) the cell of each entry; None for all cells in order."""
        self.normals: Floats | None = None  # (C, d)
        if integral.kind == CELLS:
            self.points = quadrature_points(arrays)  # (C, Q, d)
            self.weights = arrays.volumes[:, None] * arrays.rule_weights  # (C, Q)
            if integral.groups:
                tags = group_tags(integral.groups, arrays.record.get("region_names", {}), arrays.regions, "region")
                self.cells = np.flatnonzero(np.isin(arrays.regions, tags))
                self.points, self.weights = self.points[self.cells], self.weights[self.cells]
        else:
            groups = arrays.groups
            if groups is None:
                raise ValueError("the frame has no groups of boundary facets: export it again")
            chosen = np.arange(len(groups.facets))
            if integral.groups:
                tags = group_tags(integral.groups, arrays.record.get("facet_names", {}), groups.tags, "boundary facet")
                chosen = np.flatnonzero(np.isin(groups.tags, tags))
            facets = groups.facets[chosen]
            corners = arrays.points[facets]  # (C, d, d)
            self.cells = facet_cells(arrays, facets)
            self.points = np.einsum("qn,fnd->fqd", groups.rule_points, corners)
            self.weights = areas(corners)[:, None] * groups.rule_weights
            self.normals = _normals(corners, corners.mean(axis=1) - arrays.centres[self.cells])
        own = slice(None) if self.cells is None else self.cells
        self.offsets = self.points - arrays.centres[own][:, None]  # (C, Q, d)
        self.volumes = arrays.volumes[own]
        self.corners = arrays.points[arrays.levels[-1].cells[own]]  # (C, d+1, d)
        self.gradients = arrays.levels[-1].gradients[own]  # (C, d+1, d)

    def hats(self) -> Floats:
        """(C, Q, d+1) values of the hats of each cell."""
        return 1 / self.gradients.shape[1] + np.einsum("cqd,cld->cql", self.offsets, self.gradients)

    def sizes(self) -> Floats:
        """(C, 3) diameter, volume and radius of the circumscribed ball of each cell."""
        corners = self.corners
        edges = np.linalg.norm(corners[:, :, None] - corners[:, None], axis=-1)  # (C, d+1, d+1)
        # The centre z of the ball satisfies 2 (p_i - p_0) · z = |p_i|² - |p_0|², relative to the first corner.
        rows = corners[:, 1:] - corners[:, :1]
        centre = np.linalg.solve(2 * rows, (rows**2).sum(axis=2)[..., None])[..., 0]
        return np.stack([edges.max(axis=(1, 2)), self.volumes, np.linalg.norm(centre, axis=1)], axis=1)


def _normals(corners: Floats, outward: Floats) -> Floats:
    """(C, d) unit normals of facets with these corners (C, d, d), on the side of `outward` (C, d)."""
    d = corners.shape[2]
    if d == 1:
        normal = np.ones((len(corners), 1))
    elif d == 2:
        edge = corners[:, 1] - corners[:, 0]
        normal = np.stack([edge[:, 1], -edge[:, 0]], axis=1)
    else:
        normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    normal = normal * np.where((normal * outward).sum(axis=1) < 0, -1.0, 1.0)[:, None]
    return np.asarray(normal / np.linalg.norm(normal, axis=1, keepdims=True))


class StateIntegral:
    """One integral of a density, its derivatives in the states, and the blocks of its second derivatives."""

    def __init__(self, arrays: FrameArrays, density: Density, number: int, as_data: AsData) -> None:
        self.integral, self._density = density.integrals[number], density
        self._hessian = density.hessians[number]
        places = self.places = Places(arrays, self.integral)
        self._cells = None if places.cells is None else torch.as_tensor(places.cells, device=as_data(np.ones(1)).device)
        self.inputs = PointInputs(places, as_data)
        self.weights = as_data(places.weights)[..., None]  # (C, Q, 1)
        self._table = _shifts(arrays, density, places)  # (C, Q, m of the cell, m at the point)
        self._as_data = as_data

    @cached_property
    def _terms(self) -> list[list[tuple[int, Tensor]]]:
        """For each entry of the state at a point, the entries of the cell's state and their factors (C, Q, 1)."""
        found = []
        for j in range(self._table.shape[3]):
            own = []
            for i in range(self._table.shape[2]):
                factor = self._table[:, :, i, j]
                if factor.any():
                    constant = bool((factor == factor[:, :1]).all())
                    own.append((i, self._as_data((factor[:, :1] if constant else factor)[..., None])))
            found.append(own)
        return found

    def _at_points(self, s: Tensor, j: int) -> Tensor:
        """(C, Q or 1, B) entry j of the states at the quadrature points, from states (C, m, B), scaled."""
        total = None
        for i, factor in self._terms[j]:
            part = factor * s[:, i, None]
            total = part if total is None else total + part
        return torch.zeros_like(s[:, :1]) if total is None else total

    def _own(self, s: Tensor) -> Tensor:
        """(C, m, B) the states of this integral's cells."""
        return s if self._cells is None else s[self._cells]

    def _results(self, program: Program, y: Tensor, s: Tensor | None = None, v: Tensor | None = None) -> list[Tensor]:
        """The results (C or 1, Q or 1, B or 1) of a program at the points; s and v (C, m, B)."""
        values = {"s": s, "v": v}

        def read(given: tuple[str, int]) -> Tensor:
            of_states = values.get(given[0])
            return self.inputs(given, y) if of_states is None else self._at_points(of_states, given[1])

        return [torch.as_tensor(r, dtype=y.dtype, device=y.device) for r in evaluated(program, read, y)]

    def _sum(self, values: Tensor) -> Tensor:
        """(C, B) integrals over each cell or facet."""
        if values.ndim < 3:
            values = values.reshape((1,) * (3 - values.ndim) + tuple(values.shape))
        return (self.weights * values).sum(1)

    def value(self, s: Tensor, y: Tensor) -> Tensor:
        """(B,) the integral for states s (K, m, B), scaled, of an energy."""
        (found,) = self._results(self.integral.program, y, self._own(s))
        return self._sum(found).sum(0).expand(s.shape[2])

    def add_slope(self, s: Tensor, y: Tensor, slope: Tensor, v: Tensor | None = None, of: str = "s") -> Tensor:
        """Adds the derivative with respect to s or v to `slope` (K, m, B); returns (B,) the integral."""
        inputs = self._density.states if of == "s" else self._density.tests
        results = self._results(self._with_slopes(of), y, self._own(s), None if v is None else self._own(v))
        for (_, j), found in zip(inputs, results[1:], strict=True):
            if found.ndim == 0 and float(found) == 0.0:
                continue
            for i, factor in self._terms[j]:
                self._add(slope, i, self._sum(factor * found))
        return self._sum(results[0]).sum(0).expand(s.shape[2])

    def _with_slopes(self, of: str) -> Program:
        if of not in self._slopes:
            inputs = self._density.states if of == "s" else self._density.tests
            self._slopes[of] = with_gradient(self.integral.program, inputs)
        return self._slopes[of]

    @cached_property
    def _slopes(self) -> dict[str, Program]:
        return {}

    def _add(self, slope: Tensor, i: int, values: Tensor) -> None:
        if self._cells is None:
            slope[:, i] += values
        else:
            slope[:, i].index_add_(0, self._cells, values.expand(len(self._cells), slope.shape[2]))

    def add_blocks(self, blocks: Tensor, y: Tensor, s: Tensor | None = None) -> None:
        """Adds the second derivatives to `blocks` (K, m, m, B): rows of tests, columns of fields for a weak form."""
        own = None if s is None else self._own(s)
        for j, row in enumerate(self._hessian):
            for k, program in enumerate(row):
                if program.result == 0.0 or (self._density.kind != RESIDUAL and k < j):
                    continue
                (found,) = self._results(program, y, own, own)
                for a, left in self._terms[j]:
                    for b, right in self._terms[k]:
                        part = self._sum(left * right * found)
                        self._add_entry(blocks, a, b, part)
                        if self._density.kind != RESIDUAL and k != j:
                            self._add_entry(blocks, b, a, part)

    def _add_entry(self, blocks: Tensor, a: int, b: int, values: Tensor) -> None:
        if self._cells is None:
            blocks[:, a, b] += values
        else:
            blocks[:, a, b].index_add_(0, self._cells, values.expand(len(self._cells), blocks.shape[3]))


class PointInputs:
    """Reads x, y, the normal and the sizes of cells at the points of an integral, for programs."""

    def __init__(self, places: Places, as_data: AsData) -> None:
        self._x = as_data(places.points)
        self._normals = None if places.normals is None else as_data(places.normals)
        self._places, self._as_data = places, as_data

    @cached_property
    def _sizes(self) -> Tensor:
        return self._as_data(self._places.sizes())

    def __call__(self, given: tuple[str, int], y: Tensor) -> Tensor:
        """The input as a tensor that broadcasts to (C, Q, B), for y (B, p)."""
        letter, i = given
        if letter == "x":
            return self._x[..., i, None]
        if letter == "y":
            return y[None, None, :, i]
        if letter == "n":
            assert self._normals is not None
            return self._normals[:, None, i, None]
        return self._sizes[:, None, i, None]


def _shifts(arrays: FrameArrays, density: Density, places: Places) -> Floats:
    """(C, Q, m, m) states at the points from the scaled states of cells: S[…, i, j] is entry j for unit entry i."""
    m = density.state_size
    table = np.zeros((*places.offsets.shape[:2], m, m))
    for part, field in zip(density.parts, arrays.fields, strict=True):
        element = field.element  # with the unit that it has on this mesh
        if element.state_size != part.size:
            raise ValueError(
                f"the element {part.element!r} of {part.name} has {element.state_size} entries, not {part.size}"
            )
        unit = np.broadcast_to(np.eye(part.size), (*places.offsets.shape[:2], part.size, part.size))
        own = slice(part.start, part.start + part.size)
        table[:, :, own, own] = element.shift(unit, places.offsets[:, :, None])
    return table / np.sqrt(places.volumes)[:, None, None, None]


class LoadIntegral:
    """∫ f v over cells or facets, for programs f of x and y, on the nodal values of one field in P1."""

    def __init__(self, arrays: FrameArrays, integral: Integral, as_data: AsData) -> None:
        self.places = Places(arrays, integral)
        self.inputs, self.program = PointInputs(self.places, as_data), integral.program
        self.depends_on_y = any(letter == "y" for letter, _ in integral.program.inputs())
        weighted = self.places.weights[..., None] * self.places.hats()  # (C, Q, L)
        self._hats = as_data(weighted)
        K = len(arrays.volumes)
        cells = np.arange(K) if self.places.cells is None else self.places.cells
        self._cells, self._K = torch.as_tensor(cells, device=self._hats.device), K

    def local(self, y: Tensor) -> Tensor:
        """(K, L, B or 1) integrals of f times the hats of every cell."""
        (f,) = evaluated(self.program, lambda given: self.inputs(given, y), y)
        f = torch.as_tensor(f, dtype=y.dtype, device=y.device)
        f = f.reshape((1,) * (3 - f.ndim) + tuple(f.shape)) if f.ndim < 3 else f
        C, Q, L = self._hats.shape
        found = torch.einsum("cql,cqb->clb", self._hats, f.expand(C, Q, f.shape[2]))
        whole = found.new_zeros(self._K, L, found.shape[2])
        return whole.index_add_(0, self._cells, found)

    def added_to(self, values: Tensor, y: Tensor) -> Tensor:
        """`values` (K, Q, B) plus those of f in the cells of the integral."""
        (f,) = evaluated(self.program, lambda given: self.inputs(given, y), y)
        C, Q, _ = self._hats.shape
        f = torch.as_tensor(f, dtype=y.dtype, device=y.device).expand(C, Q, len(y))
        return values + f if self.places.cells is None else values.index_add(0, self._cells, f)


def gradient_at_zero(density: Density, number: int) -> Program:
    """∂ψ/∂s of an integral at s = 0, a program of x and y."""
    from fem_frames.problem.programs import ProgramBuilder

    slopes = gradient(density.integrals[number].program, density.states)
    builder = ProgramBuilder()
    return builder.program(*builder.copied(slopes, lambda value: 0.0 if value[0] == "s" else value))


def uses_facets(density: Density) -> bool:
    """Whether boundary facets have integrals."""
    return any(integral.kind == FACETS for integral in density.integrals)
