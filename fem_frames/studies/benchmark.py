"""Time and peak memory of D and its gradient by every route, compared with a plain copy of its input and output.

Absolute times depend on the machine; only the ratios within one run matter.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fem_frames.formulations.registry import make_formulation
from fem_frames.frame.arrays import FrameArrays
from fem_frames.frame.level_matrices import state_size
from fem_frames.memory import check_memory
from fem_frames.operators.frame import Frame, check_dtype
from fem_frames.problem.definition import Problem
from fem_frames.studies.levels import nominal_parameters

Row = dict[str, Any]
ROUTES = ("copy", "recursive", "gather", "csr", "coo", "bpx")
SUITE = (  # dimension, formulation, levels
    (1, "energy", (10, 14)),
    (2, "energy", (5, 6, 7, 8)),
    (2, "least-squares", (5, 6, 7)),
    (3, "energy", (3, 4, 5)),
)
PROBLEMS = {1: "quarters", 2: "checkerboard", 3: "cube"}


def benchmark_rows(
    arrays: FrameArrays,
    problem: Problem | None,
    dtypes: Sequence[str] = ("float32", "float16"),
    routes: Sequence[str] = ROUTES,
    batch: int = 64,
    seconds: float = 1.0,
    device: str = "cpu",
) -> Iterator[Row]:
    """One row per dtype and route.

    Forward is z = D w; backward adds the gradient Dᵀ z' through autograd. For `bpx`, which alone needs the problem,
    forward is A_y H w and backward goes through both factors. `copy` copies w and z once forward and again backward.
    """
    needed = 16.0 * batch * (arrays.frame_size + state_size(arrays) * len(arrays.volumes))
    check_memory(f"a batch of {batch} samples", needed, "use a smaller batch")
    for dtype in dtypes:
        frame = Frame.from_arrays(arrays, dtype, device)
        # The batch is contiguous in memory, as the operators expect.
        w = torch.randn(frame.frame_size, batch).to(frame.device, frame.dtype).T
        z = torch.randn(frame.D.shape[0], batch).to(frame.device, frame.dtype).T
        for route in routes:
            forward, backward = _runs(frame, problem, route, w, z)
            yield {
                "dim": arrays.dimension,
                "formulation": arrays.formulation,
                "levels": arrays.finest_level,
                "dtype": dtype,
                "route": route,
                "cells": len(arrays.volumes),
                "input_output_bytes": (w.numel() + z.numel()) * w.element_size(),
                "forward_s": _time(forward, frame.device, seconds),
                "forward_backward_s": _time(backward, frame.device, seconds),
                "peak_bytes": _peak_bytes(backward, frame.device),
            }


def _runs(
    frame: Frame, problem: Problem | None, route: str, w: Tensor, z: Tensor
) -> tuple[Callable[[], object], Callable[[], object]]:
    if route == "copy":
        to_w, to_z = torch.empty_like(w), torch.empty_like(z)

        def copy() -> None:
            to_w.copy_(w)
            to_z.copy_(z)

        def copy_twice() -> None:
            copy()
            copy()

        return copy, copy_twice
    leaf = w.clone(memory_format=torch.preserve_format).requires_grad_()
    operator: Callable[[Tensor], Tensor]
    if route == "bpx":
        assert problem is not None
        formulation = make_formulation(frame, problem)
        y = torch.as_tensor(nominal_parameters(problem)).to(frame.device, frame.dtype)
        A = formulation.A(y.expand(w.shape[0], -1))
        operator, z = lambda x: A(frame.H(x)), w.new_ones(A.shape[0], w.shape[0]).T
    elif route in ("csr", "coo"):
        operator = frame.with_differential("sparse", layout=route).D
    else:
        operator = frame.with_differential(route).D

    def forward() -> Tensor:
        with torch.no_grad():
            return operator(w)

    def forward_backward() -> Tensor:
        (gradient,) = torch.autograd.grad(operator(leaf), leaf, z)
        return gradient

    return forward, forward_backward


def _time(run: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Median of at least three runs, and of more if they fit into the time."""
    run()  # the first run touches new memory
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < 3 or (time.perf_counter() < until and len(times) < 200):
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """The largest memory that tensors made during a run hold at one time, including its result."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        result = run()
    del result
    assert profile.profiler is not None
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def check_routes(dtypes: Sequence[str], routes: Sequence[str], batch: int) -> None:
    for dtype in dtypes:
        check_dtype(dtype)
    unknown = sorted(set(routes) - set(ROUTES))
    if unknown:
        raise ValueError(f"there is no route {unknown[0]!r}; choose from {', '.join(ROUTES)}")
    if batch < 1:
        raise ValueError(f"batch is {batch}; at least one sample is needed")
