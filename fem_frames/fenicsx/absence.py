"""What is said where FEniCSx, or its PETSc, is absent or cannot be used. Needs neither."""

from __future__ import annotations

from fem_frames.messages import either

WHERE = (
    "get it by conda (conda env create -f environment.yml), by apt (python3-dolfinx) or with the container image "
    "(docker/Dockerfile)"
)


class FEniCSxError(ImportError):
    """FEniCSx is absent or cannot be used: the fact, and what to do."""

    def __init__(self, fact: str, remedy: str = WHERE) -> None:
        super().__init__(f"{fact}; {remedy}")
        self.fact = fact


def no_fenicsx(reason: object) -> FEniCSxError:
    others = either(
        "commands that take --frame need none with a file that `fem-frames export` wrote elsewhere",
        "FrameArrays.load, Surrogate.load and all that is made from them need none",
    )
    return FEniCSxError(f"FEniCSx is needed for this ({reason})", f"{WHERE}; {others}")


def no_petsc(reason: object) -> FEniCSxError:
    others = either("train and evaluate need none", "`fem_frames.solve` needs none")
    return FEniCSxError(
        f"reference solutions need PETSc, which this DOLFINx comes without ({reason})",
        f"{WHERE}, which have both; {others}",
    )
