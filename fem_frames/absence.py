"""What is said where FEniCSx, or its PETSc, is absent or cannot be used. Needs neither."""

from __future__ import annotations

WHERE = (
    "get it by conda (conda env create -f environment.yml), by apt (python3-dolfinx) or with the container image "
    "(docker/Dockerfile)"
)


class FEniCSxError(ImportError):
    """FEniCSx is absent or cannot be used: the fact, and for users of Python and of the command line what to do."""

    def __init__(self, fact: str, in_python: str, on_command_line: str) -> None:
        super().__init__(f"{fact}; {in_python}")
        self.fact = fact
        self.on_command_line = f"{fact}; {on_command_line}"


def no_fenicsx(reason: object) -> FEniCSxError:
    return FEniCSxError(
        f"FEniCSx is needed for this ({reason})",
        f"{WHERE}; FrameArrays.load, Surrogate.load and all that is made from them need none",
        f"{WHERE}; commands that take --frame need none with a file that `fem-frames export` wrote elsewhere",
    )


def no_petsc(reason: object) -> FEniCSxError:
    return FEniCSxError(
        f"reference solutions need PETSc, which this DOLFINx comes without ({reason})",
        f"{WHERE}, which have both; `fem_frames.solve` needs none",
        f"{WHERE}, which have both; train and evaluate need none",
    )
