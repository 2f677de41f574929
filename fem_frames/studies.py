"""Tables over levels: conditioning, iterations, rounding, and how sharp the error bound is.

Each study yields one row at a time, a dictionary; frames on coarser levels are cut from the finest one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fem_frames.arrays import FrameArrays
from fem_frames.bounds import ErrorBound, certify, norm_of
from fem_frames.extended import ExtendedForm
from fem_frames.formulations import Formulation, make_formulation
from fem_frames.frame import Frame, check_dtype
from fem_frames.mesh import Floats
from fem_frames.operators import dot
from fem_frames.problem import Problem, Uniform
from fem_frames.solvers import PATIENCE, conjugate_gradients, solve
from fem_frames.spectra import condition_numbers

Row = dict[str, Any]
ROUTES = ("bpx", "sparse", "gather", "recursive")


def nominal_parameters(problem: Problem) -> Floats:
    """(1, p) the middle of the parameters: the box's centre, or zero."""
    parameters = problem.parameters
    if isinstance(parameters, Uniform):
        return np.mean([parameters.lower, parameters.upper], axis=0)[None]
    return np.zeros((1, parameters.dimension))


def formulations(
    arrays: FrameArrays,
    problem: Problem,
    levels: Iterable[int] | None = None,
    dtype: str = "float64",
    device: torch.device | str = "cpu",
) -> Iterator[tuple[int, Formulation]]:
    """The formulation on each level, from the coarsest that resolves the problem."""
    first = max(arrays.first_level, problem.resolved_from, 1)
    for level in range(first, arrays.finest_level + 1) if levels is None else levels:
        frame = Frame.from_arrays(arrays.coarsened(level, problem.regions), dtype, device)
        yield level, make_formulation(frame, problem)


def kept_frame(
    problem: Problem, levels: int, formulation: str, first_level: int | None = None, folder: Path | None = None
) -> FrameArrays:
    """The frame from a folder if it is there, where no DOLFINx is needed; otherwise made, and kept in the folder."""
    first = problem.first_level if first_level is None else first_level
    options = "".join(f"-{key}={value}" for key, value in sorted(problem.options.items()))
    path = None if folder is None else folder / f"{problem.name}{options}-{formulation}-{first}-{levels}.npz"
    if path is not None and path.exists():
        return FrameArrays.load(path)
    from fem_frames.export import export_frame
    from fem_frames.hierarchy import MeshHierarchy

    arrays = export_frame(MeshHierarchy.from_problem(problem, levels), problem, formulation, first_level)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays.save(path)
    return arrays


def embedded(w: Tensor, coarse: FrameArrays, fine: FrameArrays) -> Tensor:
    """(B, Nhat) coefficients in a frame that goes on to finer levels: those of w come first in each family."""
    parts = []
    for part, short, long in zip(
        w.split([sum(f.level_sizes) for f in coarse.families], dim=1), coarse.families, fine.families, strict=True
    ):
        parts.append(torch.nn.functional.pad(part, (0, sum(long.level_sizes) - sum(short.level_sizes))))
    return torch.cat(parts, dim=1)


def condition_rows(
    arrays: FrameArrays, problem: Problem, y: Floats, tol: float = 1e-3, device: torch.device | str = "cpu"
) -> Iterator[Row]:
    """Condition numbers on each level, the largest over the samples y (B, p)."""
    for level, formulation in formulations(arrays, problem, device=device):
        samples = torch.as_tensor(y).to(formulation.frame.device)
        found = [asdict(condition_numbers(formulation, sample, tol)) for sample in samples]
        worst = {name: max(f[name] for f in found) for name in found[0] if found[0][name] is not None}
        sizes = {"nodal_size": formulation.frame.arrays.nodal_size, "frame_size": formulation.frame.frame_size}
        yield {"level": level, **sizes, **worst}


def iteration_rows(
    arrays: FrameArrays,
    problem: Problem,
    y: Floats,
    tol: float,
    dtypes: Sequence[str],
    limit: int = 5000,
    device: torch.device | str = "cpu",
) -> Iterator[Row]:
    """Iterations of conjugate gradients for the nodal system, HᵀA_yH and DᵀC_yD, the most over the samples y.

    Also the relative residual in the end, evaluated in float64: in low precision the recurrence may not tell. None
    where the tolerance is not reached within the limit, or rounding stops the frame's systems before.
    """
    for dtype in dtypes:
        for level, exact in formulations(arrays, problem, device=device):
            formulation = exact if dtype == "float64" else exact.to(dtype)
            samples = torch.as_tensor(y).to(formulation.frame.device, formulation.frame.dtype)
            y64 = samples.double()
            nodal, load = formulation.nodal_load(samples), formulation.load(samples)
            nodal_true, load_true = exact.nodal_load(y64), exact.load(y64)
            cases = {
                "nodal": (formulation.A(samples), nodal, exact.A(y64), nodal_true),
                "bpx": (formulation.bpx(samples), load, exact.stable(y64), load_true),
                "stable": (formulation.stable(samples), load, exact.stable(y64), load_true),
            }
            row: Row = {"level": level, "dtype": dtype, "nodal_size": exact.frame.arrays.nodal_size}
            for name, (operator, b, true_operator, true_b) in cases.items():
                found = conjugate_gradients(operator, b, tol, limit, None if name == "nodal" else PATIENCE)
                reached = bool((found.residual <= tol).all())
                rest = true_b - true_operator(found.x.double())
                row[f"{name}_iterations"] = int(found.iterations.max()) if reached else None
                size = dot(true_b, true_b)
                row[f"{name}_residual"] = float(torch.where(size > 0, dot(rest, rest) / size, 0.0).sqrt().max())
            yield row


def rounding_rows(
    arrays: FrameArrays,
    problem: Problem,
    y: Floats,
    dtypes: Sequence[str] = ("float16", "float32", "float64"),
    routes: Sequence[str] = ROUTES,
    *,
    working_sums: bool = True,
    levels: Iterable[int] | None = None,
) -> Iterator[Row]:
    """Errors of residual and gradient near the solution, relative to their size at w = 0, and the computed loss.

    The point is the discrete solution, rounded to the dtype; the truth at that very point comes from extended
    precision. `working_sums` lets the routes sparse and gather sum in the dtype itself, as a plain implementation
    would. Errors are the largest and losses the means over the samples y.
    """
    # Exactly representable in every dtype, so that all solve the same problems.
    samples = torch.as_tensor(y).bfloat16().double()
    for level, exact in formulations(arrays, problem, levels):
        solution = solve(exact, samples, 1e-12).w
        extended = ExtendedForm(exact)
        load = dot(exact.load(samples), exact.load(samples)).sqrt()
        if not (load > 0).all():
            raise ValueError(f"the load of {problem.name} is zero for some y: errors relative to it make no sense")
        for dtype in dtypes:
            w = solution.to(check_dtype(dtype))
            truth = [extended(x, s) for x, s in zip(w.double(), samples, strict=True)]
            for route in routes:
                row = {"level": level, "dtype": dtype, "route": route}
                yield row | _rounding_errors(exact, route, w, samples, truth, load, working_sums)


def _rounding_errors(
    exact: Formulation, route: str, w: Tensor, y: Tensor, truth: list[Any], load: Tensor, working_sums: bool
) -> Row:
    options: dict[str, Any] = {}
    if route in ("sparse", "gather") and working_sums:
        options["accumulate"] = w.dtype
        if route == "sparse" and w.dtype in (torch.float16, torch.bfloat16):
            options["layout"] = "coo"
    differential = "recursive" if route == "bpx" else route
    frame = Frame.from_arrays(exact.frame.arrays, w.dtype, "cpu", differential, **options)
    formulation, y = make_formulation(frame, exact.problem), y.to(w.dtype)
    point = w.clone().requires_grad_()
    if route == "bpx":
        residual = formulation.bpx(y)(w) - formulation.load(y)
        loss = formulation.nodal_loss(frame.H(point), y)
    else:
        residual, loss = formulation.residual(w, y), formulation.loss(point, y)
    (gradient,) = torch.autograd.grad(loss.sum(), point)
    errors = {"residual_error": residual, "gradient_error": gradient / (2 * formulation.factor)}
    row: Row = {}
    for name, value in errors.items():
        off = [v.double().numpy() - t for v, (t, _) in zip(value, truth, strict=True)]
        relative = [float(np.sqrt((e**2).sum())) / float(size) for e, size in zip(off, load, strict=True)]
        row[name] = max(relative)
    return row | {
        "loss": float(loss.detach().double().mean()),
        "loss_true": float(np.mean([float(t) for _, t in truth])),
    }


def efficiency_rows(
    arrays: FrameArrays,
    problem: Problem,
    y: Floats,
    sizes: Sequence[float] = (1e-1, 1e-3),
    seed: int = 0,
    norm: str | None = None,
) -> Iterator[Row]:
    """Error bound divided by true error in the same norm, on each level, over the samples y; and the relative bounds.

    (E): against the discrete solution, after perturbing it by random coefficients of the given relative sizes.
    (LS): against the discrete solution two levels finer, so the finest two levels have no row.
    """
    if arrays.formulation != "energy":
        yield from _least_squares_efficiency(arrays, problem, y, norm)
        return
    generator = torch.Generator().manual_seed(seed)
    samples = torch.as_tensor(y)
    for level, formulation in formulations(arrays, problem):
        solution = solve(formulation, samples, 1e-12).w
        bounds, errors = [], []
        for size in sizes:
            noise = torch.randn(solution.shape, dtype=torch.float64, generator=generator)
            noise = size * noise * (dot(solution, solution) / dot(noise, noise)).sqrt()[:, None]
            bounds.append(certify(formulation, solution + noise, samples, norm))
            errors.append(norm_of(formulation, noise, samples, norm))
        yield {"level": level, **_efficiency(bounds, errors)}


def _least_squares_efficiency(arrays: FrameArrays, problem: Problem, y: Floats, norm: str | None) -> Iterator[Row]:
    samples = torch.as_tensor(y)
    fine = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    reference = solve(fine, samples, 1e-12).w
    for level, formulation in formulations(arrays, problem):
        if level > arrays.finest_level - 2:
            return
        solution = solve(formulation, samples, 1e-12).w
        whole = embedded(solution, formulation.frame.arrays, arrays)
        error = norm_of(fine, whole - reference, samples, norm)
        yield {"level": level, **_efficiency([certify(formulation, solution, samples, norm)], [error])}


def _efficiency(bounds: list[ErrorBound], errors: list[Tensor]) -> Row:
    ratios = torch.cat([bound.value / error for bound, error in zip(bounds, errors, strict=True)])
    return {
        "norm": bounds[0].norm.name,
        "against": bounds[0].norm.against,
        "efficiency_least": float(ratios.min()),
        "efficiency_mean": float(ratios.mean()),
        "efficiency_most": float(ratios.max()),
        "relative_most": max(float(bound.relative.max()) for bound in bounds),
    }
