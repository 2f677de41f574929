"""What a method is here, how it is measured, and the list of methods.

B samples, p parameters, N free nodal values, s outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from training.comparison.cases import Case

if TYPE_CHECKING:
    from training.comparison.yardstick import Yardstick

Row = dict[str, Any]
Answers = Callable[[Tensor], Tensor]
Parts = Callable[[Tensor], dict[str, Callable[[], object]]]


@dataclass(frozen=True)
class Method:
    """A way to answer queries."""

    name: str
    kind: str
    """The family that it is drawn with."""
    values: Answers | None
    """y (B, p) in float64 to free nodal values (B, N); None if it knows outputs only."""
    solves: int = 0
    """Discrete solutions that it was made from."""
    offline_s: float = 0.0
    """Seconds for these and for all else before the first query."""
    timed: Callable[[Tensor], object] | None = None
    """What is timed instead of `values`, if errors are measured for more than a query needs."""
    parts: Parts | None = None
    """For y (B, p) functions whose times are of interest besides, such as the solve alone, by name."""
    outputs: Answers | None = None
    """y (B, p) to outputs (B, s), where that takes less than all nodal values."""
    differentiable: Answers | None = None
    """y (B, p) to outputs (B, s), with gradients in y by autograd."""
    most: int | None = None
    """Samples that are answered at most, by methods that take one at a time."""
    remarks: dict[str, Any] = field(default_factory=dict)
    """Numbers of its own: modes, terms, steps."""


def measured(yard: Yardstick, method: Method) -> Row:
    """All errors and times of a method."""
    row: Row = {
        "method": method.name,
        "kind": method.kind,
        "solves": method.solves,
        "offline_s": method.offline_s,
        "D_ms": yard.D_ms,
        **{f"remark_{name}": value for name, value in method.remarks.items()},
    }
    count = len(yard.y) if method.most is None else min(method.most, len(yard.y))
    with torch.no_grad():
        if method.values is not None:
            nodal = method.values(yard.y[:count])
            errors = yard.errors(nodal)
            row |= {"error": float(errors.mean()), "error_most": float(errors.max())}
            row |= {"finer_error": float(yard.finer_errors(nodal).mean()), "bound": yard.bounds(nodal)}
            row["times"] = _times(yard, method.timed or method.values, method.parts, method.most)
        if method.outputs is not None and method.most is None:
            row["output_error"] = yard.output_error(method.outputs(yard.y))
            row["output_ms"] = _at_batches(yard, method.outputs)
        elif method.values is not None and method.most is None:
            row["output_error"] = yard.output_error(yard.sensors.values(yard.coefficients(nodal), yard.y))
            row["output_ms"] = {batch: times["query"] for batch, times in row["times"].items()}
    if method.differentiable is not None:
        found, y = method.differentiable, yard.asked(yard.effort.main_batch)
        row["gradient_error"] = yard.gradient_error(found)
        row["gradient_ms"] = yard.time(lambda: yard.misfit_gradient(found, y), len(y))
    return row


def _times(yard: Yardstick, run: Callable[[Tensor], object], parts: Parts | None, most: int | None) -> dict[str, Any]:
    """Milliseconds per sample by size of the batch: of a query, and for one of them also of its parts."""
    found, apart = {}, yard.effort.main_batch
    for batch in yard.effort.batches:
        if most is not None and batch > 1:
            break
        y = yard.asked(batch)
        times = {"query": yard.time(partial(run, y), batch)}
        for name, part in (parts(y) if parts is not None and batch == apart else {}).items():
            times[name] = yard.time(part, batch)
        found[str(batch)] = times
    return found


def _at_batches(yard: Yardstick, run: Answers) -> dict[str, float]:
    return {str(batch): yard.time(partial(run, yard.asked(batch)), batch) for batch in yard.effort.batches}


# ---- the list of methods


LINEAR_ONLY = ("direct", "multigrid", "learned", "reduced")
ENERGY_ONLY = ("multigrid", "learned")


def methods_for(case: Case) -> list[str]:
    """The methods that a case is answered by."""
    names = ["petsc", "direct", "multigrid", "solve", "learned", "frame-paper", "frame-best", "regression"]
    names += ["reduced", "outputs"]
    without = (() if case.linear else LINEAR_ONLY) + (() if case.formulation == "energy" else ENERGY_ONLY)
    return [name for name in names if name not in without]


def make_methods(name: str, yard: Yardstick, folder: Path) -> Iterator[Method]:
    """The methods of one name; what they learn from is kept in the folder."""
    from training.comparison import bases, solvers, trained

    makers: dict[str, Callable[[Yardstick, Path], Iterator[Method]]] = {
        "petsc": solvers.by_petsc,
        "direct": solvers.direct,
        "multigrid": solvers.by_multigrid,
        "solve": solvers.to_tolerance,
        "learned": solvers.learned,
        "frame-paper": trained.paper_net,
        "frame-best": trained.best_net,
        "regression": trained.regression,
        "reduced": bases.reduced_bases,
        "outputs": trained.output_net,
    }
    return makers[name](yard, folder)
