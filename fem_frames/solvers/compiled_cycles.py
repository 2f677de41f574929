"""Multigrid cycles in compiled code, for float32 and float64 on processors: `matrices.c`, `sweeps.c`, `cycles.c`.

A vector holds one number of up to 16 samples in float32, or of 8 in float64: a block. All levels of one block are
worked on before the next block, so that they stay in the cache; where a level is too large for that, its steps go
through it together, chunk after chunk. Threads take different blocks, and few samples get short vectors.

B samples, n unknowns of a level, N of the finest one, E weights of a level.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fem_frames.compiling import Source, compiled, in_threads
from fem_frames.frame.graph_order import Chunks, reordered
from fem_frames.frame.graphs import Graph, GraphHierarchy, GraphLevel
from fem_frames.frame.sparse import SparseMatrix
from fem_frames.mesh.geometry import Ints
from fem_frames.operators.checking import is_recorded
from fem_frames.operators.linear import RowOperator, batch_last
from fem_frames.solvers.cycle_plans import Chebyshev, Cycle, Plan
from fem_frames.solvers.sample_multigrid import INDEFINITE, SampleMultigrid, relative_estimate

PARTS = "matrices.c", "sweeps.c", "cycles.c"  # of the source, in this order
ELSE = "multigrid runs in torch operations, which are slower"
REALS = {torch.float32: ("float", np.float32), torch.float64: ("double", np.float64)}
CHUNK = 256  # points
VECTORS = 4  # that a sweep reads or writes, with the inverse diagonal
CACHED = 2**23  # bytes that a sweep needs of a level, up to which the level is one chunk
WIDTHS = (16, 32, 64)  # bytes of a vector
TOGETHER = 2**24  # bytes of matrices that an answer makes before it solves; more would be new memory in every call
COPIED = 2**26  # bytes of data up to which they are copied before a set-up that reads them several times
FULL, FROM_ZERO, FROM_GIVEN = 0, 1, 2  # starts of an answer

_Pointer, _Number = ctypes.c_void_p, ctypes.c_int64


class _Table(ctypes.Structure):
    _fields_ = [(name, _Pointer) for name in ("starts", "columns", "weights")]


class _Chunks(ctypes.Structure):
    _fields_ = [
        ("count", _Number),
        *((name, _Pointer) for name in ("points", "inverses", "edges", "reach", "coarse")),
    ]


class _Level(ctypes.Structure):
    _fields_ = [
        *((name, _Number) for name in ("unknowns", "weights", "data")),
        *((name, _Pointer) for name in ("first", "starts", "neighbours", "rows")),
        ("chunks", _Chunks),
        *((name, _Table) for name in ("set_up", "prolongation", "restriction")),
        *((name, _Number) for name in ("signed_weights", "weights_at", "inverse_at")),
    ]


class _Hierarchy(ctypes.Structure):
    _fields_ = [
        ("levels", _Pointer),
        ("order", _Pointer),
        *((name, _Number) for name in ("count", "given", "copied", "factor_at", "block")),
    ]


class _Plan(ctypes.Structure):
    _fields_ = [("weights", _Pointer), *((name, _Number) for name in ("pre", "post", "visits"))]


# Arguments: the hierarchy, arrays, B, blocks from and to, numbers, scratch memory.
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "set_up": (_Number, [_Pointer, _Pointer, _Number, _Number, _Number, _Pointer, _Pointer]),
    "room": (_Number, [_Pointer]),
    "answer": (None, [*[_Pointer] * 6, *[_Number] * 5, _Pointer]),
    "multiply_by_A": (None, [*[_Pointer] * 4, *[_Number] * 3, _Pointer]),
    "estimate": (None, [*[_Pointer] * 5, *[_Number] * 3, _Pointer]),
}


def source_code() -> str:
    """The compiled functions in C."""
    return "".join(Path(__file__).with_name(part).read_text() for part in PARTS)


def kernels(dtype: torch.dtype, device: torch.device, width: int = WIDTHS[-1], at_point: int = 1) -> ctypes.CDLL | None:
    """The compiled functions for this precision and at most `at_point` unknowns at a point.

    None on devices, in half precision, and without a C compiler.
    """
    if device.type != "cpu" or dtype not in REALS:
        return None
    flags = (f"-DREAL={REALS[dtype][0]}", f"-DWIDTH={width}", f"-DPOINT={at_point}")
    library = compiled(Source("cycles", source_code(), flags, else_=ELSE))
    if library is not None:
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    return library


class CompiledMultigrids:
    """The compiled multigrid of a hierarchy, with vectors that suit the number of samples."""

    def __init__(self, tables: GraphHierarchy, dtype: torch.dtype, device: torch.device) -> None:
        """`kernels` must not be None for the precision and the device."""
        self._tables, self._order = reordered(tables, as_wave=_is_large(tables.levels[-1].graph, WIDTHS[-1]))
        self._dtype, self._device = dtype, device
        self._at_point = max(len(level.graph.at_points) for level in tables.levels)
        self._rows = sum(len(g.edges) + len(g.grounds) + g.size for g in (level.graph for level in tables.levels))
        self._levels: dict[int, CompiledLevels] = {}

    @property
    def together(self) -> int:
        """How many samples an answer takes at a time."""
        block = WIDTHS[-1] * self._rows
        threads, lanes = torch.get_num_threads(), WIDTHS[-1] // self._dtype.itemsize
        return lanes * threads * max(1, TOGETHER // (block * threads))

    def at(self, data: Tensor) -> CompiledMultigrid:
        """The matrices for data (n, B) of the finest level."""
        needed = data.shape[1] * self._dtype.itemsize
        width = next((width for width in WIDTHS if needed <= width), WIDTHS[-1])
        if width not in self._levels:
            library = kernels(self._dtype, self._device, width, self._at_point)
            assert library is not None
            self._levels[width] = CompiledLevels(self._tables, self._order, self._dtype, library, width)
        return CompiledMultigrid(self._levels[width], data.to(self._dtype).contiguous())


class CompiledLevels:
    """The tables of all levels for the compiled functions with vectors of `width` bytes."""

    def __init__(
        self, tables: GraphHierarchy, order: Ints, dtype: torch.dtype, library: ctypes.CDLL, width: int
    ) -> None:
        """`order` (N,) has the caller's numbers of the finest unknowns."""
        self.dtype, self.library = dtype, library
        self.lanes = width // dtype.itemsize
        self._real = REALS[dtype][1]
        self._kept: list[Any] = []  # arrays that the structures point to
        self._spare: list[Tensor] = []  # scratch memory of earlier calls
        levels, place = (_Level * len(tables.levels))(), 0
        for made, level, signed in zip(levels, tables.levels, tables.signed, strict=True):
            graph = level.graph
            made.unknowns, made.weights = graph.size, len(graph.edges) + len(graph.grounds)
            parts = Chunks.of(level, CHUNK if _is_large(graph, width) else graph.size)
            made.first = self._pointer(parts.first)
            fields = (parts.points, parts.inverses, parts.edges, parts.reach, parts.coarse)
            made.chunks = _Chunks(len(parts.reach), *(self._pointer(a.astype(np.int64)) for a in fields))
            made.starts, made.neighbours, made.rows = (self._pointer(a) for a in _incident(graph))
            made.set_up, made.data = self._set_up(level)
            if level.prolongation is not None:
                made.prolongation = self._table(level.prolongation)
                made.restriction = self._table(level.prolongation.transposed())
            made.signed_weights = int(signed)
            made.weights_at, made.inverse_at = place, place + made.weights
            place += made.weights + int(parts.inverses[-1])
        first, last = levels[0], levels[-1]
        block = place + first.unknowns**2
        self.count, self.size, self.given = len(levels), last.unknowns, last.data
        self._levels = levels
        means = max((level.data for level in levels[:-1]), default=0)
        copied = not means and self.given * width <= COPIED
        self._hierarchy = _Hierarchy(
            ctypes.addressof(levels),
            self._pointer(order.astype(np.int32)),
            self.count,
            self.given,
            int(copied),
            place,
            block,
        )
        self.pointer, self.block_bytes = ctypes.addressof(self._hierarchy), block * width
        self._room = max(int(library.room(self.pointer)), self.given if copied else means) * width

    def _set_up(self, level: GraphLevel) -> tuple[_Table, int]:
        if level.of_data is not None:
            return self._table(level.of_data), level.of_data.shape[1]
        assert level.of_finer is not None
        return self._table(level.of_finer), 0

    def _table(self, matrix: SparseMatrix) -> _Table:
        parts = (matrix.starts.astype(np.int64), matrix.columns.astype(np.int32), matrix.weights.astype(self._real))
        return _Table(*(self._pointer(a) for a in parts))

    def _pointer(self, array: np.ndarray) -> int:
        self._kept.append(np.ascontiguousarray(array))
        return int(self._kept[-1].ctypes.data)

    def over_blocks(self, samples: int, run: Callable[[int, int, int], Any]) -> list[Any]:
        """run(from, to, scratch) over all blocks of the samples, shared among torch's number of threads."""
        blocks = -(-samples // self.lanes)
        threads = min(torch.get_num_threads(), blocks)
        cuts = [blocks * k // threads for k in range(threads + 1)]
        return in_threads(threads, lambda k: self._with_scratch(run, cuts[k], cuts[k + 1]))

    def _with_scratch(self, run: Callable[[int, int, int], Any], first: int, last: int) -> Any:
        try:
            scratch = self._spare.pop()  # atomic
        except IndexError:
            scratch = torch.empty(self._room, dtype=torch.uint8)
        try:
            return run(first, last, scratch.data_ptr())
        finally:
            self._spare.append(scratch)


def _is_large(graph: Graph, width: int) -> bool:
    """Whether a level does not fit into the cache, and steps should go through it together."""
    return width * (VECTORS * graph.size + len(graph.edges) + len(graph.grounds)) > CACHED


def _incident(graph: Graph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For every unknown the rows of G that meet it: starts (n + 1,), the other unknowns (n if none), their numbers."""
    m, g = len(graph.edges), len(graph.grounds)
    own = np.concatenate([graph.edges[:, 0], graph.edges[:, 1], graph.grounds])
    other = np.concatenate([graph.edges[:, 1], graph.edges[:, 0], np.full(g, graph.size)])
    row = np.concatenate([np.arange(m), np.arange(m), m + np.arange(g)])
    order = np.lexsort((row, own))
    starts = np.concatenate([[0], np.cumsum(np.bincount(own, minlength=graph.size))])
    return starts.astype(np.int64), other[order].astype(np.int32), row[order].astype(np.int32)


class CompiledMultigrid(SampleMultigrid):
    """Cycles by compiled functions, which record no gradients."""

    def __init__(self, levels: CompiledLevels, data: Tensor) -> None:
        """`data` (n, B) are those of the finest level, in the working precision."""
        self.levels = levels
        self.dtype = self.wide = levels.dtype
        assert len(data) == levels.given
        self.samples = data.shape[1]
        blocks = -(-self.samples // levels.lanes)
        self._packed = torch.empty(blocks * levels.block_bytes, dtype=torch.uint8)

        def run(first: int, last: int, scratch: int) -> int:
            place = self._block(first)
            return int(
                levels.library.set_up(levels.pointer, data.data_ptr(), self.samples, first, last, place, scratch)
            )

        if max(levels.over_blocks(self.samples, run), default=-1) >= 0:
            raise ValueError(INDEFINITE)

    def _block(self, number: int) -> int:
        return int(self._packed.data_ptr()) + number * self.levels.block_bytes

    @property
    def A(self) -> CompiledMatrix:
        return CompiledMatrix(self)

    def full_cycle(self, b: Tensor, plan: Plan) -> Tensor:
        return self._one_by_one(b, lambda x: self._answer(x, torch.empty_like(x), plan, FULL, 0))

    def preconditioned(self, r: Tensor, plan: Plan) -> Tensor:
        return self._one_by_one(r, lambda x: self._answer(x, torch.empty_like(x), plan, FROM_ZERO, 0))

    def refined(self, b: Tensor, v: Tensor, steps: int, cycle: Cycle = Cycle()) -> Tensor:  # noqa: B008 (frozen)
        if steps == 0:
            return v
        start = v.T.clone(memory_format=torch.contiguous_format)
        return self._answer(batch_last(self.scaled(b)), start, Chebyshev(cycle), FROM_GIVEN, steps).T

    def answer(self, b: Tensor, steps: int, cycle: Cycle = Cycle()) -> Tensor:  # noqa: B008 (frozen)
        rhs = batch_last(self.scaled(b))
        return self._answer(rhs, torch.empty_like(rhs), Chebyshev(cycle), FULL, steps).T

    def judged_cycle(self, b: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        squares = torch.empty(2, self.samples, dtype=self.dtype)
        v = self._answer(b, torch.empty_like(b), plan, FULL, 0, squares)
        return v, relative_estimate(*squares)

    def _answer(
        self, b: Tensor, v: Tensor, plan: Plan, start: int, steps: int, squares: Tensor | None = None
    ) -> Tensor:
        """(N, B) v, overwritten, and squares (2, B) of the estimate and of the energy norm where wanted."""
        levels, (weights, described) = self.levels, _described(plan, self.levels.count)
        self._check(b, v)

        def run(first: int, last: int, scratch: int) -> None:
            levels.library.answer(
                levels.pointer,
                self._block(first),
                ctypes.addressof(described),
                b.data_ptr(),
                v.data_ptr(),
                None if squares is None else squares.data_ptr(),
                self.samples,
                first,
                last,
                start,
                steps,
                scratch,
            )

        levels.over_blocks(self.samples, run)
        del weights  # `described` points to it
        return v

    def product(self, v: Tensor) -> Tensor:
        """(N, B) A v."""
        return self._one_by_one(v, self._product)

    def _product(self, v: Tensor) -> Tensor:
        levels, out = self.levels, torch.empty_like(v)
        self._check(v)

        def run(first: int, last: int, scratch: int) -> None:
            arrays = v.data_ptr(), out.data_ptr()
            levels.library.multiply_by_A(
                levels.pointer, self._block(first), *arrays, self.samples, first, last, scratch
            )

        levels.over_blocks(self.samples, run)
        return out

    def _one_by_one(self, x: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
        """run(x), column by column where one sample's matrix serves several vectors."""
        if self.samples != 1 or x.shape[-1] == 1:
            return run(x)
        return torch.cat([run(column.contiguous()) for column in x.split(1, dim=1)], dim=1)

    def estimated_square(self, v: Tensor, b: Tensor) -> Tensor:
        levels, out = self.levels, torch.empty(self.samples, dtype=self.dtype)
        self._check(v, b)

        def run(first: int, last: int, scratch: int) -> None:
            arrays = v.data_ptr(), b.data_ptr(), out.data_ptr()
            levels.library.estimate(levels.pointer, self._block(first), *arrays, self.samples, first, last, scratch)

        levels.over_blocks(self.samples, run)
        return out

    def _check(self, *vectors: Tensor) -> None:
        shape = (self.levels.size, self.samples)
        for v in vectors:  # the compiled code reads memory without looking
            if is_recorded(v):
                raise ValueError("compiled cycles record no gradients: use Multigrid.recorded(y) instead of at(y)")
            if v.shape != shape or v.dtype != self.dtype or not v.is_contiguous() or v.device.type != "cpu":
                raise ValueError(
                    f"multigrid takes {self.samples} vectors of length {self.levels.size} in {self.dtype}, but got "
                    f"{v.shape[-1]} of length {len(v)} in {v.dtype}"
                )


class CompiledMatrix(RowOperator):
    """A_y of the finest level."""

    def __init__(self, multigrid: CompiledMultigrid) -> None:
        self._multigrid, size = multigrid, multigrid.levels.size
        self.shape, self.dtype, self.device = (size, size), multigrid.dtype, torch.device("cpu")
        self.batch = multigrid.samples

    def rows(self, x: Tensor) -> Tensor:
        return self._multigrid.product(x)

    def rows_transposed(self, z: Tensor) -> Tensor:
        return self.rows(z)


def _described(plan: Plan, count: int) -> tuple[np.ndarray, _Plan]:
    """The weights (levels, levels, pre + post + 2) of a plan by level of start and level, and their description."""
    pre, post, _ = plan.weights(count - 1, count - 1, count - 1)
    rows = [1.0] * (count * count * (width := len(pre) + len(post) + 2))
    for top in range(1, count):
        start = plan.start(top, count - 1)
        for j in range(1, top + 1):
            before, after, correction = plan.weights(j, top, count - 1)
            begin = (top * count + j) * width
            row = [*before, *after, 1.0 if correction is None else correction]
            rows[begin : begin + width - 1] = map(float, row)
        rows[(top * count + top + 1) * width - 1] = 1.0 if start is None else float(start)
    weights = np.array(rows, np.float64)
    return weights, _Plan(weights.ctypes.data, len(pre), len(post), plan.visits)
