"""The built-in problems with equations of their own: elasticity, tensor coefficients, reactions.

Their energies import UFL when they are called, so that the catalogue loads without DOLFINx.
"""

from __future__ import annotations

from math import pi
from typing import Any

from fem_frames.problem.blocks import block_tags, check_count, choice, halvings, positive, unit_cube
from fem_frames.problem.definition import Problem, Uniform, whole_number
from fem_frames.problem.equation import Equation, Unknown

MOST_POISSON = 0.45
"""Piecewise linear displacements are too stiff for larger Poisson ratios."""


def elastic(
    blocks: int = 2,
    low: float = 0.5,
    high: float = 1.5,
    poisson_low: float = 0.2,
    poisson_high: float = 0.4,
    clamped: str = "left",
    load: str = "weight",
    dimension: int = 2,
) -> Problem:
    """Linear elasticity on the unit square or cube, with Young's modulus and Poisson's ratio of each block, in turn.

    The displacement is zero on the left side, or on all sides with clamped="all"; the load is the weight, -1 in the
    second direction, or with load="traction" as much on the right side. The square has plane strain.
    """
    d = choice(dimension, "dimension", (2, 3))
    blocks = _check_blocks(blocks, d, 2)
    _check_range(low, high, "low", "high")
    _check_range(poisson_low, poisson_high, "poisson_low", "poisson_high", least=-1.0)
    if poisson_high > MOST_POISSON:
        raise ValueError(
            f"poisson_high is {poisson_high:g}; at most {MOST_POISSON} is offered, because piecewise linear "
            "displacements are too stiff beyond"
        )
    by_weight = choice(load, "load", ("weight", "traction")) == "weight"
    if choice(clamped, "clamped", ("left", "all")) == "all" and not by_weight:
        raise ValueError("load is 'traction' but all sides are clamped: choose clamped='left'")

    def energy(u: Any, y: Any, x: Any, dx: Any, ds: Any) -> Any:
        from fem_frames.fenicsx.door import ufl

        strain = ufl.sym(ufl.grad(u))
        stored = []
        for k in range(blocks**d):
            young, poisson = y[2 * k], y[2 * k + 1]
            first = young * poisson / ((1 + poisson) * (1 - 2 * poisson))
            shear = young / (2 * (1 + poisson))
            stored.append((first * ufl.tr(strain) ** 2 / 2 + shear * ufl.inner(strain, strain)) * dx(k))
        return sum(stored) + u[1] * (dx if by_weight else ds("right"))

    return Problem(
        mesh=unit_cube(d, blocks >> halvings(blocks)),
        coefficient=Equation(Unknown("u", components=d), energy=energy),
        parameters=Uniform((low, poisson_low) * blocks**d, (high, poisson_high) * blocks**d),
        dirichlet="all" if clamped == "all" else {"left": 0.0},
        regions=lambda x: block_tags(x, blocks),
        resolved_from=halvings(blocks),
        quadrature_degree=1,
    )


def anisotropic(
    blocks: int = 1, angle_low: float = 0.0, angle_high: float = pi / 2, low: float = 0.1, high: float = 1.0
) -> Problem:
    """Unit square with conductivity 1 along fibres and y across, at an angle y to the first axis, f = 1.

    Each of blocks × blocks squares has its own angle, in radians, and its own conductivity across, in turn.
    """
    blocks = _check_blocks(blocks, 2, 2)
    _check_range(angle_low, angle_high, "angle_low", "angle_high", least=-float("inf"))
    _check_range(low, high, "low", "high")

    def energy(u: Any, y: Any, x: Any, dx: Any, ds: Any) -> Any:
        from fem_frames.fenicsx.door import ufl

        g, stored = ufl.grad(u), []
        for k in range(blocks**2):
            c, s = ufl.cos(y[2 * k]), ufl.sin(y[2 * k])
            along, across = c * g[0] + s * g[1], c * g[1] - s * g[0]
            stored.append((along**2 + y[2 * k + 1] * across**2) / 2 * dx(k))
        return sum(stored) - u * dx

    return Problem(
        mesh=unit_cube(2, blocks >> halvings(blocks)),
        coefficient=Equation(Unknown("u"), energy=energy),
        parameters=Uniform((angle_low, low) * blocks**2, (angle_high, high) * blocks**2),
        regions=lambda x: block_tags(x, blocks),
        resolved_from=halvings(blocks),
        quadrature_degree=1,
    )


def reaction(
    blocks: int = 2,
    low: float = 0.5,
    high: float = 1.5,
    strength: float = 10.0,
    transfer: float = 1.0,
    fixed: str = "left",
    normalisation: str = "energy",
) -> Problem:
    """Unit square with -div(a ∇u) + c u = 1, a_y ∂u/∂n = -k u where u is not given; a of each block, then c, then k.

    c lies within strength / 2 and 3 strength / 2, k within half and three halves of transfer; zero leaves c or k out.
    u = 0 on the left side, on "all" sides or on "none". With a strong reaction the frame needs normalisation="energy".
    """
    blocks = _check_blocks(blocks, 2, 1)
    _check_range(low, high, "low", "high")
    strength = strength and positive(strength, "strength")
    transfer = transfer and positive(transfer, "transfer")
    around = {"left": {"left": 0.0}, "all": "all", "none": None}[choice(fixed, "fixed", ("left", "all", "none"))]
    sides = {"left": ("right", "bottom", "top"), "all": (), "none": ("left", "right", "bottom", "top")}[fixed]
    n = blocks**2
    exchanged = bool(transfer and sides)
    if fixed == "none" and not (strength or transfer):
        raise ValueError("nothing fixes u: give strength, transfer, or fixed='left'")

    def energy(u: Any, y: Any, x: Any, dx: Any, ds: Any) -> Any:
        from fem_frames.fenicsx.door import ufl

        found = sum(y[k] * ufl.inner(ufl.grad(u), ufl.grad(u)) / 2 * dx(k) for k in range(n)) - u * dx
        if strength:
            found += y[n] * u**2 / 2 * dx
        if exchanged:
            found += y[len(bounds) - 1] * u**2 / 2 * ds(*sides)
        return found

    bounds = [(low, high)] * n
    bounds += [(c / 2, 1.5 * c) for c, there in ((strength, strength), (transfer, exchanged)) if there]
    return Problem(
        mesh=unit_cube(2, blocks >> halvings(blocks)),
        coefficient=Equation(Unknown("u"), energy=energy),
        parameters=Uniform(tuple(b[0] for b in bounds), tuple(b[1] for b in bounds)),
        dirichlet=around,
        regions=lambda x: block_tags(x, blocks),
        resolved_from=halvings(blocks),
        normalisation=normalisation,
    )


def _check_blocks(blocks: int, d: int, each: int) -> int:
    """The number of blocks in each direction, with `each` parameters per block."""
    blocks = whole_number(blocks, "blocks")
    check_count("blocks", blocks, each * blocks**d)
    return blocks


def _check_range(low: float, high: float, first: str, last: str, least: float = 0.0) -> None:
    """Raises a ValueError unless least < low < high."""
    if not least < low < high:
        above = "" if least == -float("inf") else f"{least:g} < "
        raise ValueError(f"{first} is {low:g} and {last} is {high:g}; {above}{first} < {last} is expected")
