"""Time and error of queries by methods that learn: reduced bases, polynomial chaos, POD and a net, surrogates.

They are compared with multigrid that takes about as much time per query. Snapshots come from batched multigrid, and
results are synthesised in float32, as those of multigrid are.

B samples, S snapshots, N free nodal values.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from fem_frames.problem.definition import whole_number
from fem_frames.solvers.solution import solve
from training.query_benchmark import Queries, Row
from training.rivals.reduced_bases import PodSpace, Rival, Snapshots, full_system, reduced_basis
from training.rivals.regression import PodNet, PolynomialChaos, affordable_degree
from training.surrogate import Surrogate

BATCH = 256  # of training a net for POD modes
PIECE = 500  # snapshots solved at a time
BASIS = 2000  # snapshots that POD modes are made of
MODES = {"reduced basis": 160, "regression": 320}


def rival_rows(queries: Queries, solves: int = 20_000, steps: int = 20_000, runs: Sequence[Path] = ()) -> Iterator[Row]:
    """One row per rival: `ms` per sample, `error`, `solves` and `offline_s`, the time for snapshots and training.

    `steps` of Adam train the net for POD modes; `runs` are folders of surrogates of the same problem.
    """
    solves = whole_number(solves, "the number of solves", least=100)
    snapshots = _snapshots(queries, solves)
    begin = time.perf_counter()
    basis = snapshots.first(min(BASIS, solves))
    whole = PodSpace.build(queries.exact, basis)
    pod_s = time.perf_counter() - begin
    few, many = (whole.first(min(count, whole.size)) for count in MODES.values())

    def row(rival: Rival, used: Snapshots, begin: float) -> Row:
        offline = used.seconds + pod_s + time.perf_counter() - begin
        rival.space = rival.space.in_float32()  # type: ignore[attr-defined]
        y = queries.samples.numpy()
        error = queries.error(rival.values(y))
        ms = queries.time(lambda: rival.values(y))
        return queries.row("rival", rival.name, ms, error, solves=len(used.y), offline_s=offline)

    begin = time.perf_counter()
    yield row(reduced_basis(full_system(queries.exact), few), basis, begin)
    degree = affordable_degree(queries.problem.parameters.dimension, solves)
    begin = time.perf_counter()
    yield row(PolynomialChaos(queries.problem, many, snapshots, degree), snapshots, begin)
    begin = time.perf_counter()
    net = PodNet(queries.problem, many, snapshots, (256, 256), (steps, 0), batch=min(BATCH, solves))
    yield row(net, snapshots, begin)
    for folder in runs:
        yield _surrogate_row(queries, folder)


def _snapshots(queries: Queries, count: int) -> Snapshots:
    begin, y = time.perf_counter(), queries.problem.parameters.sample(count, 777)
    exact, found = queries.exact, []
    for start in range(0, count, PIECE):
        samples = torch.as_tensor(y[start : start + PIECE])
        found.append(exact.frame.H(solve(queries.formulation, samples.float(), 1e-8).w))
    return Snapshots(y, torch.cat(found), time.perf_counter() - begin)


def _surrogate_row(queries: Queries, folder: Path) -> Row:
    surrogate = Surrogate.load(folder)
    if surrogate.arrays.nodal_size != queries.arrays.nodal_size or surrogate.problem.name != queries.problem.name:
        raise ValueError(
            f"{folder} is a surrogate of {surrogate.problem.name} with {surrogate.arrays.nodal_size} unknowns, but "
            f"{queries.problem.name} with {queries.arrays.nodal_size} is measured: give one of that problem and level"
        )
    y = queries.samples.numpy()
    found = queries.exact.frame.H(surrogate.coefficients(y))
    result = surrogate.record.get("result")
    seconds = result.get("seconds") if isinstance(result, dict) else None
    ms = queries.time(lambda: surrogate(y))
    name = f"surrogate {surrogate.description.name}"
    return queries.row("rival", name, ms, queries.error(found), solves=0, offline_s=seconds)


def error_ratios(rows: Sequence[Row]) -> dict[str, float]:
    """The errors of rivals over that of multigrid in the same time, or in its least time where rivals are faster."""
    ours = [row for row in rows if row["kind"] in ("multigrid", "learned")]
    found: dict[str, float] = {}
    for rival in (row for row in rows if row["kind"] == "rival"):
        allowed = max(rival["ms"], min(row["ms"] for row in ours))
        best = min(row["error"] for row in ours if row["ms"] <= allowed)
        found[f"error of {rival['method']} / error of multigrid in {allowed:.3f} ms"] = rival["error"] / best
    return found
