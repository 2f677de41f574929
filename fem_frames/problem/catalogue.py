"""The built-in problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fem_frames.mesh.coarse import Grid, MeshArrays
from fem_frames.mesh.geometry import Floats, Ints
from fem_frames.problem.blocks import block_tags, check_count, halvings, positive
from fem_frames.problem.catalogue_equations import anisotropic, elastic, reaction
from fem_frames.problem.coefficients import Array, ByRegion, ExpAffine, Pointwise, namespace
from fem_frames.problem.definition import Gaussian, Problem, Uniform, whole_number
from fem_frames.problem.equation import MOST_COMPONENTS, Equation, Unknown


def quarters(low: float = 0.5, high: float = 1.5) -> Problem:
    """Unit interval with one parameter per quarter, f = 1: the paper's experiments."""
    return Problem(
        mesh=Grid((1,)),
        coefficient=ByRegion.each(4),
        parameters=Uniform((low,) * 4, (high,) * 4),
        regions=lambda x: block_tags(x, 4),
        first_level=1,
        coarse="none",  # as in the paper
        resolved_from=2,
    )


def checkerboard(blocks: int = 2, low: float = 0.5, high: float = 1.5) -> Problem:
    """Unit square with one parameter on each of blocks × blocks squares, f = 1."""
    return _block_problem(2, blocks, low, high)


def cube(blocks: int = 2, low: float = 0.5, high: float = 1.5) -> Problem:
    """Unit cube with one parameter on each of blocks × blocks × blocks cubes, f = 1."""
    return _block_problem(3, blocks, low, high)


def lshape(low: float = 0.5, high: float = 1.5) -> Problem:
    """(-1, 1)² without its lower right quarter, with one parameter on each of the three squares, f = 1."""
    points = np.array([[-1, -1], [0, -1], [-1, 0], [0, 0], [1, 0], [-1, 1], [0, 1], [1, 1]], np.float64)
    cells = np.array([[0, 1, 3], [0, 3, 2], [2, 3, 6], [2, 6, 5], [3, 4, 7], [3, 7, 6]])
    return Problem(
        mesh=MeshArrays(points, cells, regions=np.repeat(np.arange(3), 2)),
        coefficient=ByRegion.each(3),
        parameters=Uniform((low,) * 3, (high,) * 3),
    )


def ring(low: float = 0.5, high: float = 1.5) -> Problem:
    """Unit square without the middle one of its 3 × 3 blocks, with one parameter on each other block, f = 1."""
    points = np.array([(i, j) for j in range(4) for i in range(4)]) / 3
    corners = np.array([i + 4 * j for j in range(3) for i in range(3) if (i, j) != (1, 1)])
    halves = np.array([[0, 1, 5], [0, 5, 4]])
    return Problem(
        mesh=MeshArrays(points, (corners[:, None, None] + halves).reshape(-1, 3), regions=np.repeat(np.arange(8), 2)),
        coefficient=ByRegion.each(8),
        parameters=Uniform((low,) * 8, (high,) * 8),
    )


def cookies(rows: int = 2, radius: float = 0.3, low: float = 0.5, high: float = 1.5) -> Problem:
    """Unit square with rows × rows disks, each with its own parameter, in a background of 1, f = 1.

    The radius is relative to the distance between centres. A cell belongs to a disk if its midpoint does.
    """
    rows = whole_number(rows, "rows")
    check_count("rows", rows, rows**2)
    if not 0 < radius <= 0.5:
        raise ValueError(f"radius is {radius}; disks need 0 < radius <= 0.5, in units of the distance between centres")

    def region(x: Floats) -> Ints:
        cell = np.clip(np.floor(rows * x), 0, rows - 1)
        inside = np.linalg.norm(rows * x - cell - 0.5, axis=-1) < radius
        return np.where(inside, cell[:, 0] + rows * cell[:, 1], rows**2).astype(np.int64)

    return Problem(
        mesh=Grid((1, 1)),
        coefficient=ByRegion({k: k for k in range(rows**2)}, fixed={rows**2: 1.0}),
        parameters=Uniform((low,) * rows**2, (high,) * rows**2),
        regions=region,
    )


def lognormal(terms: int = 8, scale: float = 1.0, decay: float = 2.0) -> Problem:
    """Unit square, log a = scale Σ_k y_k |k|^-decay cos(π k₁x₁) cos(π k₂x₂), y normal, f = 1.

    The sum runs over the `terms` smallest k ≠ 0.
    """
    terms = whole_number(terms, "terms")
    check_count("terms", terms, terms)
    return Problem(mesh=Grid((1, 1)), coefficient=_cosines(terms, scale, decay), parameters=Gaussian(terms))


def waves(terms: int = 64, scale: float = 0.7, quadrature_degree: int = 1) -> Problem:
    """Unit square, log a = scale Σ_k y_k |k|⁻¹ cos(π k₁x₁) cos(π k₂x₂), y uniform with variance one, f = 1.

    The sum runs over the `terms` smallest k ≠ 0. Many parameters matter, as the terms decay slowly.
    """
    terms = whole_number(terms, "terms")
    check_count("terms", terms, terms)
    scale = positive(scale, "scale")
    root = 3.0**0.5
    return Problem(
        mesh=Grid((1, 1)),
        coefficient=_cosines(terms, scale, 1.0),
        parameters=Uniform((-root,) * terms, (root,) * terms),
        quadrature_degree=quadrature_degree,
    )


def inclusion(conductivity: float = 10.0) -> Problem:
    """Unit square with a = 1 outside a disk of given conductivity; y = (centre, radius), f = 1.

    The disk moves with y, which makes linear reduction inefficient.
    """

    def a(x: Array, y: Array) -> Array:
        inside = (x[..., 0] - y[..., 0]) ** 2 + (x[..., 1] - y[..., 1]) ** 2 < y[..., 2] ** 2
        return 1.0 + (conductivity - 1.0) * inside

    return Problem(
        mesh=Grid((1, 1)),
        coefficient=Pointwise(a),
        parameters=Uniform((0.25, 0.25, 0.1), (0.75, 0.75, 0.2)),
        quadrature_degree=4,
    )


def disks(count: int = 1, conductivity: float = 10.0, quadrature_degree: int = 1) -> Problem:
    """Unit square with smooth disks of given conductivity in a background of 1; y = (centre, radius) per disk, f = 1.

    a = 1 + (conductivity - 1) Σ_k ½ (1 + tanh(32 (r_k - |x - x_k|))): disks that overlap add up. The rims are wide
    enough for six levels to resolve them, unlike the rim of `inclusion`.
    """
    count = whole_number(count, "count")
    check_count("count", count, 3 * count)
    conductivity = positive(conductivity, "conductivity")
    if 1.0 + count * (conductivity - 1.0) <= 0:
        raise ValueError(
            f"conductivity is {conductivity:g}, but where {count} disks overlap a is 1 + {count} (conductivity - 1), "
            f"which must be positive: use a conductivity above {1 - 1 / count:g}, or fewer disks"
        )
    rise = conductivity - 1.0

    def a(x: Array, y: Array) -> Array:
        # In units of 1/64, where ½ (1 + tanh(t / 2)) = 1 / (1 + exp(-t)), which is faster than tanh. The number added
        # keeps the root differentiable at the centre of a disk; exp would overflow in float32 without the clip.
        xp, x, y = namespace(y), 64.0 * x, 64.0 * y
        total: Any = 1.0
        for k in range(0, 3 * count, 3):
            square = (x[..., 0] - y[..., k]) ** 2 + (x[..., 1] - y[..., k + 1]) ** 2 + 64.0**2 * 1e-6
            total = total + rise / (1.0 + xp.exp((xp.sqrt(square) - y[..., k + 2]).clip(None, 80.0)))
        return total

    return Problem(
        mesh=Grid((1, 1)),
        coefficient=Pointwise(a),
        parameters=Uniform((0.2, 0.2, 0.1) * count, (0.8, 0.8, 0.2) * count),
        quadrature_degree=quadrature_degree,
    )


def spot(blocks: int = 8, low: float = 0.5, high: float = 1.5, quadrature_degree: int = 1) -> Problem:
    """Unit square with one parameter on each of blocks × blocks squares; f is a Gaussian spot centred at the last two.

    f has integral one and standard deviation 1/24; its centre lies in [0.15, 0.85]².
    """
    board, n, width = _block_problem(2, blocks, low, high), blocks**2, 1 / 24
    unit, height = 0.5**0.5 / width, float(np.log(0.5 / (np.pi * width**2)))

    def f(x: Array, y: Array) -> Array:
        # In units in which the exponent is -|x - y|²; the factor in front is in the exponent too.
        x, y = unit * x, unit * y[..., n:]
        exponent = height - (x[..., 0] - y[..., 0]) ** 2 - (x[..., 1] - y[..., 1]) ** 2
        return namespace(y).exp(exponent.clip(-80.0))  # below, exp is tiny in float32, and ten times slower

    parameters = Uniform((low,) * n + (0.15,) * 2, (high,) * n + (0.85,) * 2)
    return replace(board, source=f, parameters=parameters, quadrature_degree=quadrature_degree)


def carreau(low: float = 0.5, high: float = 1.5, power: float = 3.0, reaction: float = 50.0) -> Problem:
    """Unit square, energy ∫ a_y (1 + |∇u|²)^(power/2) / power + r u⁴/4 - f u: a viscosity that grows with |∇u|.

    The parameters are a_y on each of 2 × 2 squares, the reaction r in [0, reaction], and the load f in [2, 20].
    """
    power, reaction = positive(power, "power"), positive(reaction, "reaction")
    if power < 2.0:
        raise ValueError(f"power is {power:g}; give at least 2, for which the energy is known to be convex")

    def energy(u: Any, y: Any, x: Any, dx: Any, ds: Any) -> Any:
        from fem_frames.fenicsx.door import ufl

        stored = (1 + ufl.inner(ufl.grad(u), ufl.grad(u))) ** (power / 2) / power
        return sum(y[k] * stored * dx(k) for k in range(4)) + (y[4] * u**4 / 4 - y[5] * u) * dx

    return Problem(
        mesh=Grid((1, 1)),
        coefficient=Equation(Unknown("u"), energy=energy),
        parameters=Uniform((low,) * 4 + (0.0, 2.0), (high,) * 4 + (reaction, 20.0)),
        regions=lambda x: block_tags(x, 2),
        quadrature_degree=4,
        resolved_from=1,
    )


def transport(blocks: int = 2, slowest: float = 0.02) -> Problem:
    """Unit square, -div(ε∇u) + b·∇u = f with |b| = 1; y = (angle of b, log₁₀ ε, inflow, f on blocks × blocks squares).

    b points into the first quadrant, ε lies between `slowest` and 1. u is y[2] sin(πx₂) on the left and zero on the
    lower side, and flows out through the others, where ε ∂u/∂n = 0: there are no boundary layers. Cells should be
    smaller than 2ε, which level 5 is for ε = 0.02.
    """
    blocks, slowest = whole_number(blocks, "blocks"), positive(slowest, "slowest")
    check_count("blocks", blocks, 3 + blocks**2)
    if slowest >= 1:
        raise ValueError(f"slowest is {slowest:g}, but ε lies between it and 1: give a smaller one")

    def residual(u: Any, v: Any, y: Any, x: Any, dx: Any, ds: Any) -> Any:
        from fem_frames.fenicsx.door import ufl

        b = ufl.as_vector((ufl.cos(y[0]), ufl.sin(y[0])))
        form = (10.0 ** y[1] * ufl.inner(ufl.grad(u), ufl.grad(v)) + ufl.dot(b, ufl.grad(u)) * v) * dx
        for k in range(blocks**2):
            form = form - y[3 + k] * v * dx(k)
        return form

    def inflow(x: Array, y: Array) -> Array:
        xp = namespace(y)
        return y[..., 2] * (1.0 - x[..., 0]) * xp.sin(np.pi * x[..., 1])

    board = _block_problem(2, blocks, 0.0, 2.0)
    return replace(
        board,
        coefficient=Equation(Unknown("u"), residual=residual),
        parameters=Uniform(
            (0.0, float(np.log10(slowest)), 0.0) + (0.0,) * blocks**2, (np.pi / 2, 0.0, 1.0) + (2.0,) * blocks**2
        ),
        dirichlet=lambda x: np.isclose(x[:, 0], 0.0) | np.isclose(x[:, 1], 0.0),
        dirichlet_value=inflow,
    )


def heat(steps: int = 8, blocks: int = 2, low: float = 0.5, high: float = 1.5, duration: float = 0.2) -> Problem:
    """Unit square, u_t - div(a ∇u) = 1 with one parameter on each of blocks × blocks squares; u = 0 at first.

    Implicit Euler, all steps at once: component k of u is the temperature after k + 1 steps. The functions of the frame
    have norm one in τ ‖∇u‖² + ‖u‖² with the step size τ = duration / steps.
    """
    steps, duration = whole_number(steps, "steps", least=1), positive(duration, "duration")
    if steps > MOST_COMPONENTS:
        raise ValueError(f"steps is {steps}; at most {MOST_COMPONENTS} are solved for at once")
    tau = duration / steps

    def residual(u: Any, v: Any, y: Any, x: Any, dx: Any, ds: Any) -> Any:
        from fem_frames.fenicsx.door import ufl

        before = (0.0, *(u[k] for k in range(steps - 1)))
        form = sum((u[k] - before[k] - tau) * v[k] for k in range(steps)) * dx
        for j in range(blocks**2):
            form = form + tau * y[j] * ufl.inner(ufl.grad(u), ufl.grad(v)) * dx(j)
        return form

    board = _block_problem(2, blocks, low, high)
    equation = Equation(Unknown("u", components=steps), residual=residual)
    return replace(board, coefficient=equation, normalisation="energy")


PROBLEMS: dict[str, Callable[..., Problem]] = {
    make.__name__: make
    for make in (
        *(quarters, checkerboard, lshape, ring, cookies, lognormal, inclusion, cube),
        *(disks, waves, spot),
        *(elastic, anisotropic, reaction, carreau, transport, heat),
    )
}


def _cosines(terms: int, scale: float, decay: float) -> ExpAffine:
    """exp(scale Σ_k y_k |k|^-decay cos(π k₁x₁) cos(π k₂x₂)) with the `terms` smallest k ≠ 0."""
    side = range(int(1.2 * np.sqrt(terms)) + 2)  # a quarter of a disk with this radius has more than enough points
    smallest = sorted(((m, n) for m in side for n in side if m + n > 0), key=lambda k: (k[0] ** 2 + k[1] ** 2, k[1]))
    k = np.array(smallest[:terms], np.float64)  # (terms, 2)
    amplitude = scale * np.linalg.norm(k, axis=1) ** -decay

    def modes(x: Floats) -> Floats:
        return np.asarray(amplitude * np.prod(np.cos(np.pi * k * x[..., None, :]), axis=-1))

    return ExpAffine(0.0, modes)


def _block_problem(d: int, blocks: int, low: float, high: float) -> Problem:
    blocks = whole_number(blocks, "blocks")
    check_count("blocks", blocks, blocks**d)
    return Problem(
        mesh=Grid((blocks >> halvings(blocks),) * d),  # the coarsest one
        coefficient=ByRegion.each(blocks**d),
        parameters=Uniform((low,) * blocks**d, (high,) * blocks**d),
        regions=lambda x: block_tags(x, blocks),
        resolved_from=halvings(blocks),
    )
