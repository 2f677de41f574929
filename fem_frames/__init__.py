"""Neural surrogates for parametric PDEs on FEniCSx, preconditioned and stable by multilevel frames.

Importing this package needs NumPy only; what needs torch, DOLFINx, PETSc or MPI is imported when it is first used, and
an ImportError says then what is missing. `from fem_frames import *` takes the names that can be had here.
"""

from __future__ import annotations

import importlib

__version__ = "0.1.0"

_HOMES = {
    "FrameArrays": "frame.arrays",
    "BoundaryFlux": "outputs",
    "Functional": "functionals",
    "load_outputs": "output_records",
    "save_outputs": "output_records",
    "LinearFunctional": "outputs",
    "OutputMap": "outputs",
    "PointValues": "outputs",
    "RegionMean": "outputs",
    "OutputValues": "solvers.output_bounds",
    "certify_outputs": "solvers.output_bounds",
    "differentiable_solve": "solvers.differentiable",
    "tangent_solve": "solvers.differentiable",
    "solve_linear": "solvers.solution",
    "ErrorBound": "solvers.bounds",
    "certify": "solvers.bounds",
    "error_bound": "solvers.bounds",
    "Energy": "formulations.energy",
    "export_frame": "frame.export",
    "ErrorNorm": "formulations.formulation",
    "make_formulation": "formulations.registry",
    "Element": "frame.elements",
    "EssentialData": "frame.fields",
    "Field": "frame.fields",
    "dirichlet_values": "frame.fields",
    "neumann_fluxes": "frame.fields",
    "bubble_values": "frame.fields",
    "EdgeBubbles": "frame.edge_bubbles",
    "P1": "frame.elements",
    "P1Values": "frame.elements",
    "RT0": "frame.elements",
    "Formulation": "formulations.formulation",
    "P2Energy": "formulations.quadratic_elements",
    "QuadraticFormulation": "formulations.quadratic",
    "Frame": "operators.frame",
    "friedrichs_constant": "solvers.friedrichs",
    "MeshHierarchy": "mesh.hierarchy",
    "LeastSquares": "formulations.least_squares",
    "WeightedLeastSquares": "formulations.least_squares",
    "Circle": "mesh.curves",
    "Cylinder": "mesh.curves",
    "Sphere": "mesh.curves",
    "Grid": "mesh.coarse",
    "MeshArrays": "mesh.coarse",
    "read_gmsh": "mesh.gmsh",
    "error_norms": "fenicsx.norms",
    "flux_error_norms": "fenicsx.norms",
    "Congruent": "operators.cells",
    "LinearOperator": "operators.linear",
    "Affine": "problem.coefficients",
    "ByRegion": "problem.coefficients",
    "ExpAffine": "problem.coefficients",
    "Equation": "problem.equation",
    "Gaussian": "problem.parameters",
    "Parameter": "problem.boundary",
    "Pointwise": "problem.coefficients",
    "Problem": "problem.definition",
    "Uniform": "problem.parameters",
    "namespace": "problem.coefficients",
    "PROBLEMS": "problem.catalogue",
    "make_problem": "problem.loading",
    "ReferenceSolutions": "frame.solutions",
    "ReferenceSolver": "fenicsx.reference",
    "solve_reference": "fenicsx.reference",
    "conjugate_gradients": "solvers.conjugate_gradients",
    "Cycle": "solvers.cycle_plans",
    "Multigrid": "solvers.multigrid",
    "Solution": "solvers.solution",
    "solve": "solvers.solution",
    "condition_numbers": "solvers.spectra",
    "flux_bounds": "solvers.spectra",
    "frame_bounds": "solvers.spectra",
    "frame_condition": "solvers.spectra",
    "Sweep": "fenicsx.sweep",
    "run_sweep": "fenicsx.sweep",
    "flux_at_centres": "frame.level_matrices",
}

TYPE_CHECKING = False  # type checkers take it for true; the module typing takes time that Ctrl-C would fall into
if TYPE_CHECKING:
    from typing import Any

    from fem_frames.fenicsx.norms import error_norms, flux_error_norms
    from fem_frames.fenicsx.reference import ReferenceSolver, solve_reference
    from fem_frames.fenicsx.sweep import Sweep, run_sweep
    from fem_frames.formulations.energy import Energy
    from fem_frames.formulations.formulation import ErrorNorm, Formulation
    from fem_frames.formulations.least_squares import LeastSquares, WeightedLeastSquares
    from fem_frames.formulations.quadratic import QuadraticFormulation
    from fem_frames.formulations.quadratic_elements import P2Energy
    from fem_frames.formulations.registry import make_formulation
    from fem_frames.frame.arrays import FrameArrays
    from fem_frames.frame.edge_bubbles import EdgeBubbles
    from fem_frames.frame.elements import P1, RT0, Element, P1Values
    from fem_frames.frame.export import export_frame
    from fem_frames.frame.fields import EssentialData, Field, bubble_values, dirichlet_values, neumann_fluxes
    from fem_frames.frame.level_matrices import flux_at_centres
    from fem_frames.frame.solutions import ReferenceSolutions
    from fem_frames.functionals import Functional
    from fem_frames.mesh.coarse import Grid, MeshArrays
    from fem_frames.mesh.curves import Circle, Cylinder, Sphere
    from fem_frames.mesh.gmsh import read_gmsh
    from fem_frames.mesh.hierarchy import MeshHierarchy
    from fem_frames.operators.cells import Congruent
    from fem_frames.operators.frame import Frame
    from fem_frames.operators.linear import LinearOperator
    from fem_frames.output_records import load_outputs, save_outputs
    from fem_frames.outputs import BoundaryFlux, LinearFunctional, OutputMap, PointValues, RegionMean
    from fem_frames.problem.boundary import Parameter
    from fem_frames.problem.catalogue import PROBLEMS
    from fem_frames.problem.coefficients import Affine, ByRegion, ExpAffine, Pointwise, namespace
    from fem_frames.problem.definition import Gaussian, Problem, Uniform
    from fem_frames.problem.equation import Equation
    from fem_frames.problem.loading import make_problem
    from fem_frames.solvers.bounds import ErrorBound, certify, error_bound
    from fem_frames.solvers.conjugate_gradients import conjugate_gradients
    from fem_frames.solvers.cycle_plans import Cycle
    from fem_frames.solvers.differentiable import differentiable_solve, tangent_solve
    from fem_frames.solvers.friedrichs import friedrichs_constant
    from fem_frames.solvers.multigrid import Multigrid
    from fem_frames.solvers.output_bounds import OutputValues, certify_outputs
    from fem_frames.solvers.solution import Solution, solve, solve_linear
    from fem_frames.solvers.spectra import condition_numbers, flux_bounds, frame_bounds, frame_condition

    __all__ = [
        "P1",
        "PROBLEMS",
        "RT0",
        "Affine",
        "BoundaryFlux",
        "ByRegion",
        "Circle",
        "Congruent",
        "Cycle",
        "Cylinder",
        "EdgeBubbles",
        "Element",
        "Energy",
        "Equation",
        "ErrorBound",
        "ErrorNorm",
        "EssentialData",
        "ExpAffine",
        "Field",
        "Formulation",
        "Frame",
        "FrameArrays",
        "Functional",
        "Gaussian",
        "Grid",
        "LeastSquares",
        "LinearFunctional",
        "LinearOperator",
        "MeshArrays",
        "MeshHierarchy",
        "Multigrid",
        "OutputMap",
        "OutputValues",
        "P1Values",
        "P2Energy",
        "Parameter",
        "PointValues",
        "Pointwise",
        "Problem",
        "QuadraticFormulation",
        "ReferenceSolutions",
        "ReferenceSolver",
        "RegionMean",
        "Solution",
        "Sphere",
        "Sweep",
        "Uniform",
        "WeightedLeastSquares",
        "bubble_values",
        "certify",
        "certify_outputs",
        "condition_numbers",
        "conjugate_gradients",
        "differentiable_solve",
        "dirichlet_values",
        "error_bound",
        "error_norms",
        "export_frame",
        "flux_at_centres",
        "flux_bounds",
        "flux_error_norms",
        "frame_bounds",
        "frame_condition",
        "friedrichs_constant",
        "load_outputs",
        "make_formulation",
        "make_problem",
        "namespace",
        "neumann_fluxes",
        "read_gmsh",
        "run_sweep",
        "save_outputs",
        "solve",
        "solve_linear",
        "solve_reference",
        "tangent_solve",
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
