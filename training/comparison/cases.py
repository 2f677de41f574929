"""The problems on which methods are compared, and how much is done for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from fem_frames.problem.definition import Problem
from fem_frames.problem.loading import make_problem


@dataclass(frozen=True)
class Case:
    """A problem on a mesh."""

    name: str
    title: str
    problem: str
    levels: int
    options: Mapping[str, Any] = field(default_factory=dict)
    formulation: str = "energy"
    finer: int = 2
    """How many times the mesh is halved for solutions against which that of this mesh is measured."""
    linear: bool = True
    """Whether the equation is linear in u: reduced bases and learned cycles are for those."""

    @property
    def mesh(self) -> str:
        """The problem with its options, the formulation and the level."""
        options = "".join(f", {name} = {value:g}" for name, value in self.options.items())
        return f"`{self.problem}`{options}, {self.formulation}, J = {self.levels}"

    def make(self) -> Problem:
        return make_problem(self.problem, **self.options)


@dataclass(frozen=True)
class Effort:
    """How much is done for each method."""

    samples: int
    """Samples whose errors are measured."""
    fine_samples: int
    """Those of them that are also solved on the finer mesh."""
    batches: tuple[int, ...]
    """Samples that are asked for at a time where times are measured."""
    seconds: float
    """Time per measurement."""
    petsc: int
    """Samples that methods answer that take one at a time; at least `fine_samples`."""
    training: float
    """Seconds for the training of a frame net, and for snapshots and fit of a net for POD modes or outputs."""
    solves: int
    """Most snapshots of regression."""
    basis: int
    """Snapshots that modes are made of."""
    modes: tuple[int, ...]
    """Sizes of reduced bases; the last one is also that of regression."""
    greedy: int
    """Functions that pyMOR's greedy algorithm chooses, at most."""
    polynomials: int
    """Most polynomials of polynomial chaos, and an eighth of them those of chaospy, which takes them one by one."""
    learn: int
    """Training steps of learned cycles."""

    @property
    def main_batch(self) -> int:
        """The batch for which parts and gradients are timed, and that figures show."""
        return max(batch for batch in self.batches if batch <= 64)


@dataclass(frozen=True)
class Comparison:
    """Cases, and the effort for each."""

    name: str
    text: str
    cases: tuple[Case, ...]
    effort: Effort

    def chosen(self, pattern: str = "*") -> list[tuple[Case, str]]:
        """The cells, a case and a method each, whose names CASE-METHOD match the pattern."""
        from training.comparison.methods import methods_for

        cells = [(case, method) for case in self.cases for method in methods_for(case)]
        found = [(case, method) for case, method in cells if fnmatchcase(cell_name(case, method), pattern)]
        if not found:
            raise ValueError(f"--cells {pattern}: none has such a name; `fem-frames compare --list` shows all names")
        return found


def cell_name(case: Case, method: str) -> str:
    return f"{case.name}-{method}"


def _flat(levels: int) -> tuple[Case, ...]:
    return (
        Case("disks1", "a disk that moves", "disks", levels),
        Case("disks2", "two disks that move", "disks", levels, {"count": 2}),
        Case("disks4", "four disks that move", "disks", levels, {"count": 4}),
        Case("waves", "64 waves", "waves", levels),
        Case("spot", "a checkerboard and a source that moves", "spot", levels),
        Case("hard", "a disk of conductivity 1000", "disks", levels, {"conductivity": 1000.0}),
        Case("elastic", "elasticity", "elastic", levels),
        Case("carreau", "a nonlinear energy", "carreau", levels, linear=False),
    )


def _paper(levels: int) -> Case:
    """The paper's problem."""
    return Case("paper", "the paper's four quarters", "quarters", levels, formulation="least-squares")


COMPARISONS = {
    made.name: made
    for made in (
        Comparison(
            "quick",
            "the pattern on coarser meshes with little effort, in six minutes on two cores",
            (*(case for case in _flat(5) if case.name in ("disks1", "waves", "carreau")), _paper(7)),
            Effort(
                samples=32,
                fine_samples=4,
                batches=(1, 64),
                seconds=0.2,
                petsc=4,
                training=20.0,
                solves=5000,
                basis=400,
                modes=(20, 80),
                greedy=10,
                polynomials=500,
                learn=200,
            ),
        ),
        Comparison(
            "full",
            "all problems, in 2D at J = 6 and one at J = 8, in 3D at J = 4, the paper's at J = 10",
            (
                *_flat(6),
                Case("disks1-fine", "a disk that moves, J = 8", "disks", 8, finer=1),
                Case("cube", "a cube of eight blocks", "cube", 4, finer=1),
                _paper(10),
            ),
            Effort(
                samples=64,
                fine_samples=8,
                batches=(1, 64, 256),
                seconds=0.4,
                petsc=8,
                training=120.0,
                solves=10_000,
                basis=1000,
                modes=(40, 160, 320),
                greedy=40,
                polynomials=2500,
                learn=400,
            ),
        ),
    )
}
