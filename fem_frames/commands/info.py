"""`fem-frames info`: versions of all libraries in use, BLAS, compiled code and devices."""

from __future__ import annotations

import argparse
import os
import platform
import re
from pathlib import Path
from typing import Any

from fem_frames import __version__
from fem_frames.commands.shared import declare, show


def add(subparsers: Any) -> None:
    declare(subparsers, "info", run, "Versions of DOLFINx, PETSc, MPI, torch and BLAS, and the available devices.")


def run(parsed: argparse.Namespace) -> None:
    show(collect(), parsed.json)


def collect() -> dict[str, Any]:
    """Versions by name; "absent" for what is not installed."""
    found: dict[str, Any] = {"fem-frames": __version__, "python": platform.python_version()}
    devices = ["cpu"]
    try:
        import torch
    except ImportError:
        found["torch"] = "absent"
    else:
        blas = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
        found["torch"] = torch.__version__ + (f" (BLAS: {blas[1]})" if blas else "")
        found["cuda"] = torch.version.cuda or "absent"
        found |= _products(torch) | {"multigrid": _kernels(torch)}
        devices += [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
        devices += ["mps"] if torch.backends.mps.is_available() else []
    for module in ("numpy", "scipy"):
        try:
            found[module] = __import__(module).__version__
        except ImportError:
            found[module] = "absent"
    try:
        from fem_frames.fenicsx import door
    except ImportError as error:
        found["dolfinx"] = f"absent ({error.__cause__ or error})"
    else:
        found |= door.versions() | {"petsc": _petsc()}
    return found | {"blas": _blas(), "devices": devices, "cores": os.cpu_count()}


def _petsc() -> str:
    try:
        from fem_frames.fenicsx import petsc
    except ImportError as error:
        return f"absent ({error.__cause__})"
    return petsc.version()


def _products(torch: Any) -> dict[str, Any]:
    """CUDA's default precision of matrix products, which training uses; empty if torch has no CUDA."""
    if torch.version.cuda is None:
        return {}
    from training.run.devices import product_settings

    return {f"cuda_{name}": value for name, value in product_settings().items()}


def _kernels(torch: Any) -> str:
    """What runs multigrid cycles on the processor."""
    from fem_frames.solvers.compiled_cycles import kernels

    return "in torch" if kernels(torch.float32, torch.device("cpu")) is None else "compiled"


def _blas() -> list[str]:
    """File names of the BLAS libraries in this process; empty if the system does not tell."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    names = {Path(line.split()[-1]).resolve().name for line in maps.read_text().splitlines() if "/" in line}
    return sorted(name for name in names if re.match(r"lib\w*(blas|mkl|blis|lapack)", name))
