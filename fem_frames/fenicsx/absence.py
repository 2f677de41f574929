"""Messages for a missing or unusable FEniCSx or PETSc. Imports neither."""

from __future__ import annotations

from fem_frames.messages import either

WHERE = (
    "get it by conda (conda env create -f environment.yml), by apt (python3-dolfinx) or with the container image "
    "(docker/Dockerfile)"
)


class FEniCSxError(ImportError):
    """FEniCSx is absent or unusable; the message states the fact and the remedy."""

    def __init__(self, fact: str, remedy: str = WHERE) -> None:
        super().__init__(f"{fact}; {remedy}")
        self.fact = fact


def no_fenicsx(reason: object) -> FEniCSxError:
    others = either(
        "commands with --frame do not need it if `fem-frames export` wrote the file elsewhere",
        "FrameArrays.load and Surrogate.load work without it",
    )
    return FEniCSxError(f"FEniCSx is needed for this ({reason})", f"{WHERE}; {others}")


def no_petsc(reason: object) -> FEniCSxError:
    others = either("train and evaluate do not need it", "`fem_frames.solve` does not need it")
    return FEniCSxError(
        f"reference solutions need PETSc, which this DOLFINx lacks ({reason})",
        f"{WHERE}, which include both; {others}",
    )
