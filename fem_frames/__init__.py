"""Neural surrogates for parametric PDEs on FEniCSx, preconditioned and stable by multilevel frames.

Importing this package needs NumPy only; what needs torch, DOLFINx, PETSc or MPI is imported when it is first used, and
an ImportError says then what is missing. `from fem_frames import *` takes the names that can be had here.
"""

from __future__ import annotations

import importlib

__version__ = "0.1.0"

_HOMES = {
    "FrameArrays": "arrays",
    "ErrorBound": "bounds",
    "certify": "bounds",
    "error_bound": "bounds",
    "Energy": "energy",
    "export_frame": "export",
    "ErrorNorm": "formulations",
    "make_formulation": "formulations",
    "Frame": "frame",
    "friedrichs_constant": "friedrichs",
    "MeshHierarchy": "hierarchy",
    "LeastSquares": "least_squares",
    "WeightedLeastSquares": "least_squares",
    "Grid": "mesh",
    "MeshArrays": "mesh",
    "read_gmsh": "mesh",
    "error_norms": "norms",
    "flux_error_norms": "norms",
    "Congruent": "operators",
    "LinearOperator": "operators",
    "Affine": "problem",
    "ByRegion": "problem",
    "ExpAffine": "problem",
    "Gaussian": "problem",
    "Pointwise": "problem",
    "Problem": "problem",
    "Uniform": "problem",
    "namespace": "problem",
    "PROBLEMS": "problems",
    "make_problem": "problems",
    "ReferenceSolutions": "solutions",
    "ReferenceSolver": "reference",
    "solve_reference": "reference",
    "conjugate_gradients": "solvers",
    "solve": "solvers",
    "condition_numbers": "spectra",
    "flux_bounds": "spectra",
    "frame_bounds": "spectra",
    "Sweep": "sweep",
    "run_sweep": "sweep",
    "flux_at_centres": "tables",
}

TYPE_CHECKING = False  # type checkers take it for true; the module typing takes time that Ctrl-C would fall into
if TYPE_CHECKING:
    from typing import Any

    from fem_frames.arrays import FrameArrays
    from fem_frames.bounds import ErrorBound, certify, error_bound
    from fem_frames.energy import Energy
    from fem_frames.export import export_frame
    from fem_frames.formulations import ErrorNorm, make_formulation
    from fem_frames.frame import Frame
    from fem_frames.friedrichs import friedrichs_constant
    from fem_frames.hierarchy import MeshHierarchy
    from fem_frames.least_squares import LeastSquares, WeightedLeastSquares
    from fem_frames.mesh import Grid, MeshArrays, read_gmsh
    from fem_frames.norms import error_norms, flux_error_norms
    from fem_frames.operators import Congruent, LinearOperator
    from fem_frames.problem import (
        Affine,
        ByRegion,
        ExpAffine,
        Gaussian,
        Pointwise,
        Problem,
        Uniform,
        namespace,
    )
    from fem_frames.problems import PROBLEMS, make_problem
    from fem_frames.reference import ReferenceSolver, solve_reference
    from fem_frames.solutions import ReferenceSolutions
    from fem_frames.solvers import conjugate_gradients, solve
    from fem_frames.spectra import condition_numbers, flux_bounds, frame_bounds
    from fem_frames.sweep import Sweep, run_sweep
    from fem_frames.tables import flux_at_centres

    __all__ = [
        "PROBLEMS",
        "Affine",
        "ByRegion",
        "Congruent",
        "Energy",
        "ErrorBound",
        "ErrorNorm",
        "ExpAffine",
        "Frame",
        "FrameArrays",
        "Gaussian",
        "Grid",
        "LeastSquares",
        "LinearOperator",
        "MeshArrays",
        "MeshHierarchy",
        "Pointwise",
        "Problem",
        "ReferenceSolutions",
        "ReferenceSolver",
        "Sweep",
        "Uniform",
        "WeightedLeastSquares",
        "certify",
        "condition_numbers",
        "conjugate_gradients",
        "error_bound",
        "error_norms",
        "export_frame",
        "flux_at_centres",
        "flux_bounds",
        "flux_error_norms",
        "frame_bounds",
        "friedrichs_constant",
        "make_formulation",
        "make_problem",
        "namespace",
        "read_gmsh",
        "run_sweep",
        "solve",
        "solve_reference",
    ]
else:  # type checkers would take it to mean that there is every name

    def __getattr__(name: str) -> Any:
        if name == "__all__":
            return _at_hand()
        if name not in _HOMES:
            raise AttributeError(f"module fem_frames has no attribute {name!r}")
        return getattr(importlib.import_module(f"fem_frames.{_HOMES[name]}"), name)


def _at_hand() -> list[str]:
    """The public names whose modules can be imported here; a warning says why others cannot."""
    names, reasons = [], {}
    for name, home in sorted(_HOMES.items()):
        try:
            importlib.import_module(f"fem_frames.{home}")
        except ImportError as error:
            reasons[name] = error
        else:
            names.append(name)
    if reasons:
        import warnings

        reason = next(iter(reasons.values()))
        warnings.warn(f"fem_frames comes without {', '.join(reasons)} here: {reason}", UserWarning, stacklevel=3)
    return names


def __dir__() -> list[str]:
    return [*sorted(_HOMES), "__version__"]
