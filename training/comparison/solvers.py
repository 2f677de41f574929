"""Methods that solve for every query: PETSc, direct solvers, multigrid with Chebyshev's and with learned weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fem_frames.formulations.formulation import Formulation
from fem_frames.solvers.cycle_plans import Cycle
from fem_frames.solvers.differentiable import differentiable_solve
from fem_frames.solvers.multigrid import Multigrid, has_multigrid, matrix_data
from fem_frames.solvers.solution import solve
from nets.multigrid import MultigridNet
from training.comparison.methods import Method
from training.comparison.yardstick import Yardstick
from training.query_benchmark import trained_multigrid
from training.references import has_petsc
from training.rivals.reduced_bases import direct_solves, full_system

CYCLES = ((1, 1), (2, 2), (3, 3))
STEPS = range(5)
TOLS = (1e-2, 1e-4, 1e-6)
PETSC = {"lu": ("lu", {}), "cg with hypre": ("cg", {"pc_type": "hypre"}), "cg with icc": ("cg", {"pc_type": "icc"})}
PETSC_TOLS = (1e-2, 1e-4, 1e-6)
PETSC_TOLS_OF_EQUATIONS = (1e-6, 1e-8)  # the solver of equations in UFL takes larger residuals for a failure


def by_petsc(yard: Yardstick, folder: Path) -> Iterator[Method]:
    """PETSc's solvers, one sample at a time, assembly included."""
    if not has_petsc():
        raise ValueError("there is no PETSc here: run the cells of the method petsc where DOLFINx has it")
    from fem_frames.fenicsx.reference import ReferenceSolver

    nonlinear, energy = not yard.case.linear, yard.case.formulation == "energy"
    tols = PETSC_TOLS if yard.problem.equation is None else PETSC_TOLS_OF_EQUATIONS
    for name, (solver, options) in PETSC.items():
        if solver != "lu" and (nonlinear or not energy):
            continue
        for tol in tols if solver == "cg" else (None,):
            given = {**options, "ksp_rtol": tol} if tol is not None else None
            found = ReferenceSolver.on_frame(yard.arrays, yard.problem, solver=solver, petsc_options=given)
            title = f"PETSc, SNES with {name}" if nonlinear else f"PETSc, {name}" + (f" to {tol:g}" if tol else "")

            def values(y: Tensor, found: Any = found) -> Tensor:
                fields: dict[str, list[Any]] = {}
                for one in y.numpy():
                    found.solve(one)
                    for field, own in found.gathered().items():
                        fields.setdefault(field, []).append(own)
                stacked = {field: np.array(own) for field, own in fields.items()}
                return yard.exact.coordinates.free(stacked, "cpu", y.numpy())

            def timed(y: Tensor, found: Any = found) -> None:
                for one in y.numpy():
                    found.solve(one)

            yield Method(title, "PETSc", values, timed=timed, most=yard.effort.petsc)


def direct(yard: Yardstick, folder: Path) -> Iterator[Method]:
    """SciPy's banded Cholesky, or SuperLU in 3D."""
    solver = direct_solves(full_system(yard.exact))

    def values(y: Tensor) -> Tensor:
        return solver(y.numpy())

    yield Method("SciPy, direct", "direct solves", values, most=yard.effort.petsc)


def by_multigrid(yard: Yardstick, folder: Path) -> Iterator[Method]:
    """Full multigrid with Chebyshev smoothing in float32, and steps of conjugate gradients."""
    F, multigrid = yard.formulation, Multigrid(yard.formulation)
    for smoothing in CYCLES:
        for steps in STEPS:
            cycle = Cycle(*smoothing)

            def values(y: Tensor, steps: int = steps, cycle: Cycle = cycle) -> Tensor:
                return multigrid.answer(y.float(), steps, cycle)

            def parts(y: Tensor, steps: int = steps, cycle: Cycle = cycle) -> dict[str, Callable[[], object]]:
                at, b = multigrid.at(y.float()), F.nodal_load(y.float())
                return {**_set_up_parts(F, multigrid, y), "solve": partial(at.answer, b, steps, cycle)}

            name = f"multigrid {smoothing}" + (f" + {steps}" if steps else "")
            yield Method(name, "multigrid", values, parts=parts)


def to_tolerance(yard: Yardstick, folder: Path) -> Iterator[Method]:
    """The library's `solve`, to relative residuals; by Newton's method where the equation is not linear."""
    for tol in TOLS:

        def values(y: Tensor, tol: float = tol) -> Tensor:
            return yard.formulation.frame.H(solve(yard.formulation, y.float(), tol).w.float())

        def differentiable(y: Tensor, tol: float = tol) -> Tensor:
            return yard.sensors.values(differentiable_solve(yard.exact, y, tol), y)

        kind = "multigrid" if has_multigrid(yard.formulation) else "frame solve"
        yield Method(f"solve to {tol:g}", kind, values, differentiable=differentiable)


def learned(
    yard: Yardstick, folder: Path, cycles: Sequence[tuple[int, int]] = ((1, 1), (2, 1), (2, 2))
) -> Iterator[Method]:
    """Learned cycles, trained on the energy without solutions."""
    F, multigrid = yard.formulation, Multigrid(yard.formulation)
    for steps in cycles:
        begin = time.perf_counter()
        net = trained_multigrid(F, steps, yard.effort.learn)
        seconds = time.perf_counter() - begin

        def values(y: Tensor, net: MultigridNet = net) -> Tensor:
            with torch.no_grad():
                return net.nodal_values(y.float())

        def parts(y: Tensor, net: MultigridNet = net) -> dict[str, Callable[[], object]]:
            return {**_set_up_parts(F, multigrid, y), "solve": net.solved(y.float())}

        def differentiable(y: Tensor, net: MultigridNet = net) -> Tensor:
            with torch.no_grad():
                w = yard.coefficients(net.nodal_values(y.detach().float()))
            return yard.sensors.values(differentiable_solve(yard.exact, y, 1e-4, w), y)

        yield Method(
            f"learned {steps}",
            "learned cycles",
            values,
            offline_s=seconds,
            parts=parts,
            differentiable=differentiable,
            remarks={"steps": yard.effort.learn},
        )


def _set_up_parts(F: Formulation, multigrid: Multigrid, y: Tensor) -> dict[str, Callable[[], object]]:
    samples = y.float()
    return {
        "coefficient": lambda: (matrix_data(F, samples), F.nodal_load(samples)),
        "coefficient and set-up": lambda: (multigrid.at(samples), F.nodal_load(samples)),
    }
