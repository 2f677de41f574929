"""Reduced bases by pyMOR: POD and the greedy algorithm, with empirical interpolation where A_y is not affine.

A_y = Σ_q θ_q(y) A_q and b_y = Σ_q θ_q(y) b_q. Where A_y is affine the θ_q are known. Otherwise they are the coefficient
and the source at the points that discrete empirical interpolation chooses, and the terms are fitted to A_y and b_y.

B samples, p parameters, Q terms, n modes, N free nodal values.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fem_frames.mesh.geometry import Floats
from fem_frames.problem.equation import Equation
from training.comparison.methods import Method
from training.comparison.trained import basis_size, snapshots
from training.comparison.yardstick import Yardstick
from training.rivals.reduced_bases import (
    AffineReducedBasis,
    AffineSystem,
    AssembledReducedBasis,
    NodalSystem,
    PodSpace,
    ReducedBasis,
    TermWeights,
)

FEW_TERMS = 20  # for more, the terms of the residual's norm would take pyMOR too long
LEAST_SHARE = 1e-6  # of the largest singular value: what empirical interpolation takes no notice of
MOST_PRODUCTS = 5e11  # of numbers, to reduce all terms to a basis
EXACT = 1e-9  # relative errors of A_y below this are those of rounding
SEED = 98
MOST_TERMS = 150  # of the coefficient, and of the source
TRAINING = 100  # samples among which the greedy algorithm chooses


def is_there() -> bool:
    """Whether pyMOR is installed: `pip install "fem-frames[compare]"`."""
    return find_spec("pymor") is not None


def reduced_bases(yard: Yardstick, folder: Path) -> Iterator[Method]:
    """Galerkin's solutions in bases by pyMOR: its own, and the same bases for batches in torch."""
    if not is_there():
        raise ValueError('there is no pyMOR here: pip install "fem-frames[compare]"')
    from pymor.algorithms.pod import pod

    logging.getLogger("pymor").setLevel(logging.WARNING)
    effort = yard.effort
    data = snapshots(yard, folder, basis_size(yard))
    begin = time.perf_counter()
    weights = term_weights(yard, data.y)
    system = AffineSystem(yard.exact, weights)
    full = _FullModel(yard, system)
    terms_s = time.perf_counter() - begin
    solutions = full.space.from_numpy(data.values.numpy().T)
    begin = time.perf_counter()
    modes, _ = pod(solutions, product=full.product, modes=effort.modes[-1], rtol=1e-10)
    pod_s = time.perf_counter() - begin
    solves = len(data.y)
    for size in effort.modes:
        if size > len(modes) or size**2 * full.space.dim * len(system.terms) > MOST_PRODUCTS:
            break
        yield from full.methods("POD", modes[:size], solves, data.seconds + terms_s + pod_s)
    begin = time.perf_counter()
    chosen = full.greedy(yard.problem.parameters.sample(TRAINING, 99), effort.greedy)
    greedy_s = time.perf_counter() - begin
    yield from full.methods("greedy", chosen, full.greedy_solves, terms_s + greedy_s)


# ---- terms


def term_weights(yard: Yardstick, y: Floats) -> TermWeights:
    """θ (B, Q) for the case; `y` are samples to choose interpolation points with."""
    known = yard.exact.affine_weights()
    if known is not None:
        return known
    if yard.case.problem == "elastic":
        return _lame
    return _interpolated(yard, y)


def _lame(y: Floats) -> Floats:
    """One, and Lamé's two parameters for Young's modulus and Poisson's ratio of each block."""
    young, poisson = y[:, ::2], y[:, 1::2]
    first = young * poisson / ((1 + poisson) * (1 - 2 * poisson))
    return np.concatenate([np.ones((len(y), 1)), first, young / (2 * (1 + poisson))], axis=1)


def _interpolated(yard: Yardstick, y: Floats) -> TermWeights:
    """The coefficient and the source at points of empirical interpolation, and one."""
    problem, arrays = yard.problem, yard.arrays
    points = arrays.points[arrays.levels[-1].cells].mean(1)[:, None]  # (K, 1, d)
    regions = arrays.regions
    coefficient = problem.coefficient
    assert not isinstance(coefficient, Equation)  # those with affine terms are known
    tables = coefficient.tabulate(points, regions)

    def a(places: Any, y: Floats) -> Floats:
        some = tuple(table[places] for table in tables)
        return np.asarray(coefficient.evaluate(some, y))[..., 0]

    source = problem.source

    def f(places: Any, y: Floats) -> Floats:
        assert callable(source)
        return np.asarray(source(points[places, 0][None], y[:, None]))

    parts = [a, f] if callable(source) else [a]
    chosen = [(part, _magic_points(part(slice(None), y))) for part in parts]

    def weights(y: Floats) -> Floats:
        return np.concatenate([np.ones((len(y), 1)), *(part(places, y) for part, places in chosen)], axis=1)

    return weights


def _magic_points(values: Floats) -> Any:
    """The numbers of points from which the functions (S, K) are interpolated."""
    from pymor.algorithms.ei import deim
    from pymor.vectorarrays.numpy import NumpyVectorSpace

    functions = NumpyVectorSpace(values.shape[1]).from_numpy(values.T)
    places, _, _ = deim(functions, modes=min(MOST_TERMS, len(values)), rtol=LEAST_SHARE)
    return places


# ---- models


@dataclass(eq=False)
class _FullModel:
    """pyMOR's model of the discrete problem, whose parameter is θ."""

    yard: Yardstick
    system: AffineSystem

    def __post_init__(self) -> None:
        from pymor.models.basic import StationaryModel
        from pymor.operators.constructions import LincombOperator, VectorOperator
        from pymor.operators.numpy import NumpyMatrixOperator
        from pymor.parameters.functionals import ProjectionParameterFunctional
        from pymor.vectorarrays.numpy import NumpyVectorSpace

        system, Q = self.system, len(self.system.terms)
        theta = [ProjectionParameterFunctional("theta", Q, q) for q in range(Q)]
        self.space = NumpyVectorSpace(system.size)
        matrices = [NumpyMatrixOperator(system.matrix(own).tocsc()) for own in system.terms]
        loads = [VectorOperator(self.space.from_numpy(own[:, None])) for own in system.load_terms]
        self.full = NodalSystem(self.yard.exact)
        # Not from the terms: where they are interpolated, their sum need not be positive.
        (nominal,) = self.full.entries(self.yard.problem.parameters.nominal)
        self.product = NumpyMatrixOperator(self.full.matrix(nominal).tocsc(), name="energy")
        self.model = StationaryModel(
            LincombOperator(matrices, theta), LincombOperator(loads, theta), products={"energy": self.product}
        )
        self.greedy_solves = 0
        y = self.yard.problem.parameters.sample(4, SEED)
        entries = self.full.entries(y)
        self.interpolation_error = float(np.abs(system.entries(y) - entries).max() / np.abs(entries).max())

    @property
    def affine(self) -> bool:
        """Whether the terms give A_y up to rounding."""
        return self.interpolation_error < EXACT

    def theta(self, y: Floats) -> Any:
        """pyMOR's parameter for y (p,)."""
        return self.model.parameters.parse({"theta": self.system.weights(y[None])[0]})

    def reductor(self, basis: Any, bounds: bool = False) -> Any:
        from pymor.reductors.basic import StationaryRBReductor
        from pymor.reductors.coercive import CoerciveRBReductor

        if bounds:
            return CoerciveRBReductor(self.model, basis, product=self.product)
        return StationaryRBReductor(self.model, basis, product=self.product)

    def greedy(self, samples: Floats, most: int) -> Any:
        """The basis of pyMOR's greedy algorithm: by its error estimator if there are few terms, else by true errors."""
        from pymor.algorithms.greedy import rb_greedy

        bounds = len(self.system.terms) <= FEW_TERMS
        if not bounds:
            self.model.enable_caching("memory")
        reductor = self.reductor(self.space.empty(), bounds)
        found = rb_greedy(
            self.model,
            reductor,
            [self.theta(y) for y in samples],
            use_error_estimator=bounds,
            error_norm=None if bounds else lambda U: U.norm(self.product),
            atol=1e-12,
            max_extensions=most,
        )
        self.model.disable_caching()
        self.greedy_solves = found["extensions"] if bounds else len(samples)
        return reductor.bases["RB"]

    def methods(self, how: str, basis: Any, solves: int, offline_s: float) -> Iterator[Method]:
        """pyMOR's reduced model, one sample at a time, and Galerkin's solutions in its basis in torch.

        The second ones assemble A_y where terms are interpolated: they have no error of interpolation.
        """
        begin = time.perf_counter()
        reductor = self.reductor(basis)
        reduced = reductor.reduce()
        seconds = offline_s + time.perf_counter() - begin
        size = len(basis)
        remarks: dict[str, Any] = {"modes": size, "terms": len(self.system.terms)}
        remarks["interpolation_error"] = self.interpolation_error

        def values(y: Tensor) -> Tensor:
            found = [reductor.reconstruct(reduced.solve(self.theta(one))).to_numpy()[:, 0] for one in y.numpy()]
            return torch.as_tensor(np.array(found))

        yield Method(
            f"pyMOR, {how}, {size} modes",
            "reduced basis by pyMOR",
            values,
            solves=solves,
            offline_s=seconds,
            timed=values,
            most=8 * self.yard.effort.petsc,
            remarks=remarks,
        )
        begin = time.perf_counter()
        space = self._pod_space(basis, solves)
        batched = AffineReducedBasis(self.system, space) if self.affine else AssembledReducedBasis(self.full, space)
        seconds = offline_s + time.perf_counter() - begin

        def answer(y: Tensor) -> Tensor:
            return batched.values(y.numpy())

        yield Method(
            f"{how}, {size} modes, {'batched' if self.affine else 'assembled'}",
            "reduced basis, batched",
            answer,
            solves=solves,
            offline_s=seconds,
            outputs=self._outputs(batched),
            remarks=remarks,
        )

    def _pod_space(self, basis: Any, solves: int) -> PodSpace:
        """The basis as modes around zero."""
        modes = torch.as_tensor(np.ascontiguousarray(basis.to_numpy().T))
        mean = torch.zeros(modes.shape[1], dtype=torch.float64)
        return PodSpace(mean, modes, torch.linalg.pinv(modes), torch.ones(len(modes)), solves)

    def _outputs(self, batched: ReducedBasis) -> Callable[[Tensor], Tensor]:
        yard, first = self.yard, self.yard.y[:1]
        modes = batched.space.modes
        zero = yard.sensors.values(yard.coefficients(0 * modes[:1]), first)
        S = yard.sensors.values(yard.coefficients(modes), first.expand(len(modes), -1)) - zero  # (n, s)

        def outputs(y: Tensor) -> Tensor:
            matrices, loads = batched.systems(y.numpy())
            c = torch.cholesky_solve(loads[..., None], torch.linalg.cholesky(matrices))[..., 0]
            return c @ S + zero

        return outputs
