"""Reference solutions for many samples, solved in shards so that a killed run continues where it stopped.

During a run, FILE.parts holds its plan and the finished shards; at the end they become FILE in one step.
Shards do not depend on the number of ranks, so a run may continue with more or fewer ranks.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from fem_frames.fenicsx import door, petsc
from fem_frames.fenicsx.boundary import BoundaryData
from fem_frames.fenicsx.door import MPI
from fem_frames.fenicsx.parallel import end_if_orphaned, on_root, together, together_in_steps
from fem_frames.fenicsx.reference import ReferenceSolver
from fem_frames.fenicsx.refinement import coarse_mesh
from fem_frames.fenicsx.solvers import choose_solver
from fem_frames.files import check_writable, is_there, lock, refuse_links, written_whole
from fem_frames.frame.discretisation import Discretisation
from fem_frames.frame.solutions import ReferenceSolutions
from fem_frames.mesh.coarse import Grid, MeshArrays
from fem_frames.mesh.geometry import Floats
from fem_frames.mesh.hierarchy import MeshHierarchy
from fem_frames.messages import option
from fem_frames.problem.definition import Problem, whole_number
from fem_frames.problem.densities import Density
from fem_frames.problem.program_values import evaluated

SAMPLE_LIMIT = 10**7
OUR_FILES = ("plan.json", "shard-*.npz", ".*.part", "lock")  # in the folder of shards
Progress = Callable[[int, int], None]  # samples done, samples in total


@dataclass(frozen=True)
class Sweep:
    """Which samples of which problem to solve, and how. See docs/problems.md."""

    problem: Problem
    levels: int
    samples: int
    seed: int = 0
    formulation: str = "energy"
    solver: str | None = None
    petsc_options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", self.problem.check_levels(self.levels))
        object.__setattr__(self, "samples", whole_number(self.samples, "samples"))
        object.__setattr__(self, "seed", whole_number(self.seed, "seed", least=0))
        if self.samples > SAMPLE_LIMIT:
            raise ValueError(f"samples is {self.samples}; one sweep takes at most {SAMPLE_LIMIT}")
        mesh = self.problem.mesh  # the dimension of other meshes is known only after reading them
        dimension = mesh.box.shape[1] if isinstance(mesh, Grid | MeshArrays) else None
        object.__setattr__(self, "solver", choose_solver(self.formulation, self.solver, dimension, self.problem))

    def plan(self) -> dict[str, Any]:
        """Everything that determines the numbers, as JSON: a run continues only with an equal plan."""
        plan = {
            "problem": self.problem.name,
            "options": dict(self.problem.options),
            "refinement": self.problem.refinement,
            "digest": problem_digest(self.problem, self.levels, self.formulation),
            "levels": self.levels,
            "samples": self.samples,
            "seed": self.seed,
            "formulation": self.formulation,
            "solver": self.solver,
            # Options that only print something do not change the numbers.
            "petsc_options": {
                name: str(value)
                for name, value in (self.petsc_options or {}).items()
                if not re.search(r"monitor|view|log|left", name)
            },
        }
        return dict(json.loads(json.dumps(plan)))

    def shards(self) -> list[range]:
        """Ranges of consecutive samples: at most 64 shards, or more shards of at most 64 samples each."""
        size = int(np.clip(-(-self.samples // 64), 1, 64))
        return [range(i, min(i + size, self.samples)) for i in range(0, self.samples, size)]


def run_sweep(
    sweep: Sweep,
    out: str | Path,
    *,
    distribute: str = "samples",
    force: bool = False,
    progress: Progress | None = None,
    comm: MPI.Comm = MPI.COMM_WORLD,
) -> ReferenceSolutions:
    """Solves the missing samples, writes `out`, and returns its content on every rank. Collective.

    `distribute`: "samples" gives each rank its own shards, "mesh" solves each sample on all ranks.
    A complete `out` of an equal sweep is reused; any other file is replaced only with `force`. See docs/problems.md.
    """
    if distribute not in ("samples", "mesh"):
        raise ValueError(f"distribute is {distribute!r}; choose samples or mesh")
    out = Path(out).absolute()
    parts = out.with_name(out.name + ".parts")
    # A distributed DOLFINx mesh must be gathered while all ranks still work together.
    sweep = replace(sweep, problem=replace(sweep.problem, mesh=coarse_mesh(sweep.problem.mesh)))
    plan = on_root(comm, sweep.plan)
    held = together(comm, lambda: _hold(out, parts, plan, force) if comm.rank == 0 else None)
    try:
        if not comm.bcast(held is not None):
            return on_root(comm, lambda: ReferenceSolutions.load(out))
        _solve_missing(sweep, plan, parts, distribute, progress, comm)
        return on_root(comm, lambda: _join(plan, len(sweep.shards()), out, parts))
    except BaseException:
        if held is not None and not any(parts.glob("shard-*")):  # no finished shard is lost with the folder
            _remove(parts)
        raise
    finally:
        if held is not None:
            held.release()


def _solve_missing(
    sweep: Sweep, plan: dict[str, Any], parts: Path, distribute: str, progress: Progress | None, comm: MPI.Comm
) -> None:
    y = sweep.problem.parameters.sample(sweep.samples, sweep.seed)
    shards = sweep.shards()
    missing = on_root(comm, lambda: [i for i, _ in enumerate(shards) if not _complete(parts, i, y[shards[i]])])

    def show_progress() -> None:
        if progress is not None and comm.rank == 0:
            progress(_done(parts, shards), sweep.samples)

    def solve_shard(solve: ReferenceSolver, i: int) -> ReferenceSolutions:
        return ReferenceSolutions.stack(y[shards[i]], [solve(y[k]) for k in shards[i]], plan)

    def share() -> Iterator[int]:
        solve = _solver(sweep, MPI.COMM_SELF)
        for i in missing[comm.rank :: comm.size]:
            solve_shard(solve, i).save(_shard_file(parts, i))
            show_progress()
            yield i

    together(comm, show_progress)
    if distribute == "samples":
        together_in_steps(comm, share())
        together(comm, show_progress)
        return
    launcher = os.getppid()
    solve = _solver(sweep, comm)
    for i in missing:
        solutions = solve_shard(solve, i)
        if comm.size > 1:
            end_if_orphaned(launcher)

        def finish(i: int = i, solutions: ReferenceSolutions = solutions) -> None:
            if comm.rank == 0:
                solutions.save(_shard_file(parts, i))
            show_progress()

        together(comm, finish)


def problem_digest(problem: Problem, levels: int, formulation: str) -> str:
    """A short hash of mesh, coefficient, source or equation, and boundary data: problems of equal name differ in it.

    Functions have no other identity than their values, so it hashes rounded values on the finest mesh for three y.
    """
    hierarchy = MeshHierarchy.from_problem(problem, levels)
    problem = problem.with_tags(hierarchy.region_names)
    y, x, regions = problem.parameters.sample(3, 0), hierarchy.centres()[:, None], hierarchy.regions(problem)
    data = Discretisation.from_hierarchy(hierarchy, problem, formulation)
    if problem.equation is None:
        inside = [problem.coefficient_values(problem.tabulate(x, regions), y, x), problem.source_values(y, x)]
    else:
        inside = _density_values(problem.density(), x[:, 0], y)
    values = [
        hierarchy.points,
        hierarchy.levels[0].cells,
        *inside,
        *(f.fixed[-1] for f in data.fields),
        *(f.lift[-1] for f in data.fields),
        data.neumann_load,
        y,
        problem.quadrature_degree,
        *_boundary_values(data, problem, y),
    ]
    digest = hashlib.sha256()
    if problem.equation is not None:
        kinds = [(integral.kind, integral.groups) for integral in problem.density().integrals]
        digest.update(f"{problem.density().kind} {kinds}".encode())
    for value in values:
        array = np.asarray(value, np.float64)
        size = np.abs(array).max(initial=0.0)
        digest.update(f"{array.shape} {size:.6e}".encode())
        digest.update((np.round(array / (size or 1.0), 9) + 0.0).tobytes())
    return digest.hexdigest()[:16]


def _density_values(density: Density, x: Floats, y: Floats) -> list[Floats]:
    """(B, K) or smaller values of all integrands at points x (K, d) for y (B, p), for states that vary with x."""

    def read(given: tuple[str, int]) -> Floats:
        letter, i = given
        if letter == "y":
            return y[:, i, None]
        # Positive numbers that differ between the entries; sizes of cells and normals need not be right either.
        return x[:, i] if letter == "x" else 1.5 + np.sin(x.sum(axis=1) + i + 10 * "shnv".index(letter))

    with np.errstate(all="ignore"):
        return [np.nan_to_num(evaluated(i.program, read, x)[0]) for i in density.integrals]


def _boundary_values(data: Discretisation, problem: Problem, y: Floats) -> list[Floats]:
    """Boundary data that are evaluated for each y, for these y; empty if there are none."""
    if data.boundary is None:
        return []
    values = [BoundaryData(data).of(problem)(sample[None]) for sample in y]
    return [array for found in values for array in (*found.lifts, found.load, found.masses)]


def _solver(sweep: Sweep, comm: MPI.Comm) -> ReferenceSolver:
    return ReferenceSolver(
        sweep.problem,
        sweep.levels,
        sweep.formulation,
        solver=sweep.solver,
        petsc_options=sweep.petsc_options,
        comm=comm,
    )


def _hold(out: Path, parts: Path, plan: dict[str, Any], force: bool) -> FileLock | None:
    """Prepares and locks the folder of shards; None if `out` is already complete."""
    if not force and _is_complete(out, plan) and not parts.exists():
        return None
    check_writable(out)
    if parts.exists():
        _check_ours(parts)
    held = lock(parts / "lock")
    try:
        # The previous holder may have completed it, or died before removing the folder.
        complete = not force and _is_complete(out, plan)
        if not complete:
            _check_parts(parts, plan, force)
    except BaseException:
        held.release()
        raise
    for rest in [*parts.glob(".*.part"), *out.resolve().parent.glob(f".{out.resolve().name}.*.part")]:
        rest.unlink()  # left by a killed write
    if complete:
        _remove(parts)
        held.release()
        return None
    return held


def _is_complete(out: Path, plan: dict[str, Any]) -> bool:
    """Whether `out` holds this sweep; a ValueError if it holds something else."""
    if not is_there(out) or not out.is_file():
        return False
    try:
        found = ReferenceSolutions.load(out).record
    except ValueError as error:
        raise ValueError(
            f"{error}; it was left as it is: remove it, choose another name, or replace it by {option('force')}"
        ) from error
    if {key: found.get(key) for key in plan} != plan:
        raise ValueError(
            f"{out} holds another sweep ({_difference(found, plan)}): "
            f"choose another name, or replace it by {option('force')}"
        )
    return True


def _check_ours(parts: Path) -> None:
    """Raises a ValueError if `parts` is not a folder, or contains files that no sweep writes."""
    advice = "remove it, or choose another name than " + parts.name.removesuffix(".parts")
    if parts.exists() and not parts.is_dir():
        raise ValueError(f"{parts} is in the way of the folder for unfinished work: {advice}")
    try:
        names = [p.name for p in parts.iterdir()]
    except FileNotFoundError:  # the run that held it has just removed it
        return
    refuse_links(parts)
    foreign = [name for name in names if not any(fnmatch.fnmatch(name, known) for known in OUR_FILES)]
    if foreign:
        raise ValueError(f"{parts} holds {foreign[0]}, which no sweep wrote: {advice}")


def _remove(parts: Path) -> None:
    """Removes the files of sweeps from the folder, and the folder itself if it is then empty."""
    for known in OUR_FILES:
        for file in parts.glob(known):
            file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        parts.rmdir()


def _check_parts(parts: Path, plan: dict[str, Any], force: bool) -> None:
    """Writes the plan into the folder of shards; a ValueError if it already holds shards of another plan."""
    head, shards = parts / "plan.json", list(parts.glob("shard-*"))
    if shards and not force:
        try:
            found = dict(json.loads(head.read_text()))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{parts} holds shards but no readable plan: remove it, or replace it by {option('force')}"
            ) from error
        if found != plan:
            raise ValueError(
                f"{parts} is an unfinished run of another sweep ({_difference(found, plan)}): "
                f"remove it, or replace it by {option('force')}"
            )
    else:
        for old in shards:
            old.unlink()
        with written_whole(head) as file:
            file.write(json.dumps(plan, indent=2).encode())


def _difference(found: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key} {found.get(key)!r} instead of {value!r}" for key, value in plan.items() if found.get(key) != value
    )


def _shard_file(parts: Path, i: int) -> Path:
    return parts / f"shard-{i:04d}.npz"


def _complete(parts: Path, i: int, y: Floats) -> bool:
    file = _shard_file(parts, i)
    if not file.exists():
        return False
    try:
        return bool(np.array_equal(ReferenceSolutions.load(file).y, y))
    except ValueError:  # damaged, so it is solved again
        return False


def _done(parts: Path, shards: list[range]) -> int:
    return sum(len(shard) for i, shard in enumerate(shards) if _shard_file(parts, i).exists())


def _join(plan: dict[str, Any], count: int, out: Path, parts: Path) -> ReferenceSolutions:
    pieces = [ReferenceSolutions.load(_shard_file(parts, i)) for i in range(count)]
    joined = ReferenceSolutions(
        y=np.concatenate([piece.y for piece in pieces]),
        fields={name: np.concatenate([piece.fields[name] for piece in pieces]) for name in pieces[0].fields},
        loss=np.concatenate([piece.loss for piece in pieces]),
        record={**plan, **door.versions(), "petsc": petsc.version()},
    )
    joined.save(out)
    _remove(parts)
    return joined
