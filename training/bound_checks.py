"""Error bounds compared with true errors: against the discrete solutions that PETSc finds by LU.

B samples, p parameters, s outputs, Nhat frame coefficients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fem_frames.frame.solutions import ReferenceSolutions
from fem_frames.mesh.geometry import Floats
from fem_frames.outputs import Output, OutputMap
from fem_frames.solvers.bounds import error_bound
from fem_frames.solvers.output_bounds import certify_outputs
from training.metrics import Answers
from training.references import CHUNK, Progress, check_reference, petsc_lacks

KINDS = {"plain": False, "adjoint": True}  # bounds of outputs


def bound_rows(
    surrogate: Answers, y: Floats, outputs: Sequence[Output] = (), progress: Progress | None = None
) -> Iterator[dict[str, Any]]:
    """Bounds divided by true errors over the samples y (B, p): of u in the energy norm, and of every output.

    A row has the number of violations, that is of samples whose error exceeds its bound, and the least, the median and
    the largest ratio; outputs have a row for plain bounds and one for those that an adjoint solve corrects.
    """
    exact = surrogate.formulation
    if not any((norm.name, norm.against) == ("energy", "discrete solution") for norm in exact.norms):
        raise ValueError(f"the formulation {exact.name} has no bounds against the discrete solution, which PETSc finds")
    truth = _by_lu(surrogate, y, progress)
    samples = torch.as_tensor(y, device=exact.frame.device)
    made = OutputMap(exact, outputs) if outputs else None
    kinds = {name: adjoint for name, adjoint in KINDS.items() if exact.is_quadratic or not adjoint}
    bounds: dict[tuple[str, str], list[Tensor]] = {}
    errors: dict[tuple[str, str], list[Tensor]] = {}

    def note(what: str, kind: str, bound: Tensor, error: Tensor) -> None:
        bounds.setdefault((what, kind), []).append(bound)
        errors.setdefault((what, kind), []).append(error)

    for start in range(0, len(y), CHUNK):
        part = slice(start, start + CHUNK)
        own, w = samples[part], surrogate.coefficients(samples[part])
        off = exact.energy_norm(exact.frame.D(w - truth[part]), own)
        note("u in the energy norm", "residual", error_bound(exact, w, own, "energy"), off)
        if made is None:
            continue
        right = made.values(truth[part], own)  # (B, s)
        for kind, adjoint in kinds.items():
            found = certify_outputs(exact, w, own, made, adjoint)
            for k, label in enumerate(found.labels):
                if found.has_bound[k]:
                    note(label, kind, found.error_bound[:, k], (found.values - right).abs()[:, k])
    for (what, kind), parts in bounds.items():
        yield {"quantity": what, "bound": kind, **_ratios(torch.cat(parts), torch.cat(errors[what, kind]))}


def _by_lu(surrogate: Answers, y: Floats, progress: Progress | None) -> Tensor:
    """(B, Nhat) frame coefficients of the discrete solutions; LU leaves rounding errors only."""
    exact = surrogate.formulation
    lack = petsc_lacks(exact)
    if lack is not None:
        raise ValueError(f"PETSc cannot check these bounds: {lack}")
    from fem_frames.fenicsx.reference import ReferenceSolver

    solver = ReferenceSolver.on_frame(exact.frame.arrays, exact.problem, solver="lu")
    results = []
    for number, sample in enumerate(y):
        if progress is not None:
            progress(number, len(y))
        results.append(solver(sample))
    if progress is not None:
        progress(len(y), len(y))
    found = ReferenceSolutions.stack(y, results, {"reference": "PETSc"})
    check_reference(exact, found)
    return exact.coordinates.coefficients(exact.coordinates.free(found.fields, exact.frame.device, y))


def _ratios(bound: Tensor, error: Tensor) -> dict[str, Any]:
    ratio = (bound / error).cpu().numpy()  # infinite where there is no error
    return {
        "violations": int((error > bound).sum()),
        "least": float(ratio.min()),
        "median": float(np.median(ratio)),
        "most": float(ratio.max()),
        "median_error": float(error.median()),
    }
