"""Reference solutions for test sets, training sets and snapshots: batched multigrid, PETSc, or conjugate gradients.

Multigrid solves many samples at once; a few of them are solved by PETSc too, where it is at hand, and have to agree.

B samples, p parameters, N points.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from fem_frames.files import one_line
from fem_frames.formulations.formulation import Formulation
from fem_frames.frame.level_matrices import state_size
from fem_frames.frame.solutions import ReferenceSolutions
from fem_frames.memory import check_memory
from fem_frames.mesh.geometry import Floats
from fem_frames.messages import option
from fem_frames.problem.description import RecordedProblem
from fem_frames.solvers.conjugate_gradients import ConvergenceError
from fem_frames.solvers.multigrid import has_multigrid, trusts_multigrid
from fem_frames.solvers.solution import solve
from training.registry import REFERENCES

Progress = Callable[[int, int], None]
CHUNK = 128  # samples evaluated at a time
CHUNK_BYTES = 2**30  # a batch of solves takes about as much memory at most
TOLERANCE = 1e-12  # of the relative residual
CHECKED = 2  # samples of a set by multigrid that PETSc solves too
AGREEMENT = 1e-8  # largest difference of nodal values, relative to the largest value


def has_petsc() -> bool:
    try:
        import fem_frames.fenicsx.reference  # noqa: F401
    except ImportError:
        return False
    return True


def petsc_lacks(exact: Formulation) -> str | None:
    """What PETSc lacks to solve this formulation; None if it can."""
    equation = exact.problem.equation
    if equation is None and not exact.has_forms():
        return f"the formulation {exact.name} has no forms"
    if isinstance(exact.problem, RecordedProblem) or (equation is not None and not equation.has_function):
        return "the problem was read with its surrogate or frame and has no mesh for it: give the problem too"
    return None if has_petsc() else "it is not installed"


def reference_solutions(
    exact: Formulation, y: Floats, progress: Progress | None = None, references: str = "auto"
) -> ReferenceSolutions:
    """Solutions for y (B, p) on the mesh of the frame; `exact` is the formulation in float64.

    `references` is "multigrid", "petsc", or "auto": multigrid where the formulation has one, otherwise PETSc, otherwise
    conjugate gradients in frame coordinates. Their record says which solver it was. See docs/training.md.
    """
    source = REFERENCES.find(references)
    needed = 8.0 * len(y) * sum(len(f.lift[-1]) for f in exact.frame.arrays.fields)
    check_memory(f"{len(y)} reference solutions", needed, "use fewer samples")
    tell = progress or (lambda done, count: None)
    found = source(exact)(y, tell)
    tell(len(y), len(y))
    return found


def described(record: Mapping[str, Any]) -> str:
    """The solver of reference solutions, and how it was checked, from their record."""
    solver, count = str(record.get("reference", "PETSc")), record.get("checked_by_petsc", 0)
    return f"{solver}, {count} checked by PETSc," if count else solver


# ---- solvers of sets ------------------------------------------------------------------------------------


class ReferenceSource(ABC):
    """Solves for a set of samples."""

    def __init__(self, exact: Formulation) -> None:
        self.exact = exact

    @abstractmethod
    def __call__(self, y: Floats, tell: Progress) -> ReferenceSolutions:
        """Solutions for y (B, p); `tell` hears how many there are."""


class ByPetsc(ReferenceSource):
    """PETSc, one sample after the other."""

    def __init__(self, exact: Formulation) -> None:
        super().__init__(exact)
        lack = petsc_lacks(exact)
        if lack is not None:
            raise ValueError(
                f"PETSc cannot make these reference solutions: {lack}; leave out {option('references', 'petsc')}"
            )
        from fem_frames.fenicsx.reference import ReferenceSolver

        self._solve = ReferenceSolver.on_frame(exact.frame.arrays, exact.problem)

    def __call__(self, y: Floats, tell: Progress) -> ReferenceSolutions:
        results: list[tuple[dict[str, Floats], float]] = []
        for sample in y:
            tell(len(results), len(y))
            results.append(self._solve(sample))
        found = ReferenceSolutions.stack(y, results, {"reference": "PETSc"})
        check_reference(self.exact, found)
        return found


class InTorch(ReferenceSource):
    """A solver of `fem_frames.solve`, in batches whose size is limited by memory."""

    solver: str
    name: str

    def __call__(self, y: Floats, tell: Progress) -> ReferenceSolutions:
        exact, chunk = self.exact, chunk_size(self.exact)
        fields: dict[str, Floats] = {}
        loss = np.empty(len(y))
        for start in range(0, len(y), chunk):
            tell(start, len(y))
            part = slice(start, start + chunk)
            samples = torch.as_tensor(y[part], device=exact.frame.device)
            w = solve(exact, samples, TOLERANCE, solver=self.solver).w
            for name, values in exact.synthesise(w, samples).items():
                if name not in fields:
                    fields[name] = np.empty((len(y), values.shape[1]))
                fields[name][part] = values.cpu().numpy()
            loss[part] = exact.loss(w, samples).cpu().numpy()
        name = self.name if exact.is_quadratic else f"Newton's method and {self.name}"
        return ReferenceSolutions(y, fields, loss, {"reference": name, "tolerance": TOLERANCE})


class ByFrame(InTorch):
    """Conjugate gradients in frame coordinates, for all formulations."""

    solver, name = "frame", "conjugate gradients"


class ByMultigrid(InTorch):
    """Batched multigrid; some samples are compared with PETSc where it is at hand."""

    solver, name = "multigrid", "multigrid"

    def __init__(self, exact: Formulation) -> None:
        super().__init__(exact)
        if not has_multigrid(exact):
            names = " and ".join(field.name for field in exact.frame.arrays.fields)
            raise ValueError(
                f"multigrid is for fields with values at points, but {exact.name} has {names}: leave out "
                + option("references", "multigrid")
            )

    def __call__(self, y: Floats, tell: Progress) -> ReferenceSolutions:
        found = super().__call__(y, tell)
        checked = 0 if petsc_lacks(self.exact) is not None else self._check(found)
        return ReferenceSolutions(y, found.fields, found.loss, {**found.record, "checked_by_petsc": checked})

    def _check(self, found: ReferenceSolutions) -> int:
        """The number of samples that were compared; raises a ValueError if PETSc disagrees."""
        places = np.unique(np.linspace(0, len(found.y) - 1, CHECKED).astype(int)) if len(found.y) else []
        if not len(places):
            return 0
        by_petsc = ByPetsc(self.exact)(found.y[places], lambda done, count: None)
        for row, place in enumerate(places):
            for name, values in by_petsc.fields.items():
                size = np.abs(values[row]).max()
                off = np.abs(found.fields[name][place] - values[row]).max()
                if not off <= AGREEMENT * size:
                    raise ValueError(
                        f"multigrid and PETSc disagree for sample {place}: nodal values of {name} differ by {off:.1e}, "
                        f"where the largest is {size:.1e}; one of them is wrong: to take PETSc's, use "
                        + option("references", "petsc")
                    )
        # The loss too: that of PETSc has to be the loss in the frame of the solutions by multigrid.
        own = {name: values[places] for name, values in found.fields.items()}
        check_reference(self.exact, ReferenceSolutions(by_petsc.y, own, by_petsc.loss))
        return len(places)


class Automatic(ReferenceSource):
    """Multigrid where the formulation has one, otherwise PETSc, otherwise conjugate gradients.

    Where rounding keeps multigrid from its tolerance, as for extreme coefficients, PETSc takes over if it is at hand.
    """

    def __call__(self, y: Floats, tell: Progress) -> ReferenceSolutions:
        petsc = petsc_lacks(self.exact) is None
        if not trusts_multigrid(self.exact):
            return (ByPetsc if petsc else ByFrame)(self.exact)(y, tell)
        try:
            return ByMultigrid(self.exact)(y, tell)
        except ConvergenceError as error:
            if not petsc:
                raise
            found = ByPetsc(self.exact)(y, tell)
            return ReferenceSolutions(y, found.fields, found.loss, {**found.record, "multigrid": one_line(error)})


def chunk_size(exact: Formulation) -> int:
    """The number of samples that a solver in torch takes at a time."""
    arrays = exact.frame.arrays
    # Some six times the states of all cells and the coefficient at their points, as measured.
    size = state_size(arrays)
    numbers = 6 * (size + len(arrays.rule_weights) * exact.point_values)
    if size >= 10:  # blocks of many fields
        numbers += 6 * size**2 // 10
    if len(arrays.fields) > 1 and has_multigrid(exact):  # local matrices of several fields are large, as measured
        numbers += 4 * ((arrays.dimension + 1) * len(arrays.fields)) ** 2
    return int(min(CHUNK, max(1, CHUNK_BYTES // (8 * (len(arrays.volumes) * numbers + 6 * arrays.frame_size)))))


def check_reference(exact: Formulation, reference: ReferenceSolutions) -> None:
    """Raises a ValueError if the solutions belong to another mesh or problem, since their loss in the frame differs."""
    free = exact.coordinates.free(reference.fields, exact.frame.device, reference.y)
    w = exact.coordinates.coefficients(free)
    for start in range(0, len(w), CHUNK):
        part = slice(start, start + CHUNK)
        y = torch.as_tensor(reference.y[part], device=exact.frame.device)
        found, told = exact.loss(w[part], y).cpu().numpy(), reference.loss[part]
        size = exact.constant(y).abs().cpu().numpy()
        wrong = np.abs(found - told) > 1e-5 * np.abs(told) + 1e-11 * size
        if not wrong.any():
            continue
        loss, reference_loss = float(found[wrong][0]), float(told[wrong][0])
        raise ValueError(
            f"reference solutions do not fit the frame: loss {reference_loss:.3e}, in the frame {loss:.3e}; "
            "was the frame exported with the same problem, levels and refinement?"
        )
