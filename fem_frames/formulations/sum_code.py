"""The C code of sums over quadrature points, and the tables of numbers that it reads.

Values are told apart by what they vary with. What depends on y alone is computed once per sample, what depends on the
place alone is a table, what is constant on a cell is computed once per cell, and only the rest once per point.

B samples, C cells or facets of an integral, Q quadrature points, m numbers in a cell's state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fem_frames.formulations.places import Factor
from fem_frames.formulations.state_sums import STATES, Share, StateSum
from fem_frames.problem.compiled_functions import bounds, declarations, in_c
from fem_frames.problem.programs import Value

CELL, POINT, SAMPLE = 1, 3, 4
"""What a value varies with, as bits that are joined; a value that varies with the point varies with the cell."""
TOTAL = -1  # stands for an entry of the cell: the integral over everything


@dataclass(frozen=True)
class Table:
    """Numbers per cell or per point: a product of factors of states, each over |T|^{1/2}, and perhaps of others."""

    factors: tuple[Factor, ...] = ()
    value: Value = 1.0
    """A value of the program that does not vary with samples."""
    is_weighted: bool = False
    """Whether quadrature weights are factors too."""
    is_summed: bool = False
    """Whether the points of a cell are added up."""


class SumCode:
    """Two functions in C: `prepare` computes what depends on y alone, `add` everything else for a range of cells."""

    def __init__(self, wanted: StateSum, terms: Sequence[Sequence[tuple[int, Factor]]], real: str) -> None:
        """`terms` has the entries and factors that the states at points consist of, see `Shifts`."""
        self._program, self._terms, self.has_value = wanted.program, terms, wanted.has_value
        self._real, self._F = real, "f" if real == "float" else ""
        self.tables: dict[int, list[Table]] = {CELL: [], POINT: []}
        self.letters = sorted({letter for letter, _ in wanted.program.inputs()} & set(STATES))
        self._varies: list[int] = []
        for operation in self._program.operations:
            found = CELL  # operations on constants alone are tables too
            if any(self._of(a) for a in operation.arguments):
                found = 0
            for a in operation.arguments:
                found |= self._of(a)
            self._varies.append(found)
        self._kept: dict[int, dict[Value, int]] = {SAMPLE: {}, SAMPLE | CELL: {}}
        shares = wanted.shares + ((Share(0, (TOTAL,), ()),) if wanted.has_value else ())
        self._at_points = self._loop(SAMPLE | POINT, shares)
        self._at_cells = self._loop(SAMPLE | CELL, shares)
        self._at_samples = self._lines(SAMPLE)

    @property
    def kept_per_sample(self) -> int:
        """The number of values that depend on y alone and are used for all cells."""
        return len(self._kept[SAMPLE])

    def _of(self, value: Value) -> int:
        """What a value varies with; 0 for a constant."""
        if not isinstance(value, tuple):
            return 0
        letter, number = value
        if letter == "op":
            return self._varies[number]
        if letter in STATES:
            return SAMPLE | (CELL if all(factor is None for _, factor in self._terms[number]) else POINT)
        return {"y": SAMPLE, "x": POINT}.get(letter, CELL)

    def _table(self, kind: int, table: Table) -> str:
        """The name of a table's number for the cell or the point at hand."""
        known = self.tables[kind]
        if table not in known:
            known.append(table)
        return f"{'t' if kind == CELL else 'p'}{known.index(table)}"

    def _named(self, value: Value, loop: int) -> str:
        """A value in a loop: over samples alone, for a cell, or for a point."""
        if not isinstance(value, tuple):
            return f"((real){value!r})"
        varies = self._of(value)
        if not varies & SAMPLE:
            return self._table(varies, Table(value=value))
        letter, number = value
        if letter == "y":
            return f"y[{number} * B + i]"
        if varies == loop:
            return f"{letter}{number}"
        kept = self._kept[varies]
        place = kept.setdefault(value, len(kept))
        return f"of_y[{place} * B + i]" if varies == SAMPLE else f"of_cell[{place}][i]"

    def _lines(self, loop: int) -> list[str]:
        """The operations of a loop, after the states that they see; what later loops use is kept."""
        clips, reads = bounds(self._program), dict[Value, None]()
        lines = []
        for number, operation in enumerate(self._program.operations):
            if self._varies[number] == loop:
                reads |= {a: None for a in operation.arguments if self._is_read(a, loop)}
                arguments = [self._named(a, loop) for a in operation.arguments]
                lines.append(f"const real op{number} = {in_c(operation, arguments, self._F, clips)};")
        reads |= {r: None for r in (*self._program.results, *self._kept.get(loop, {})) if self._is_read(r, loop)}
        for value, place in self._kept.get(loop, {}).items():
            target = f"of_y[{place} * B + i]" if loop == SAMPLE else f"of_cell[{place}][i]"
            lines.append(f"{target} = {self._named(value, loop)};")
        return [*(self._read(value) for value in reads), *lines]

    def _is_read(self, value: Value, loop: int) -> bool:
        return isinstance(value, tuple) and value[0] in STATES and self._of(value) == loop

    def _read(self, value: Value) -> str:
        """The state at a point, from the scaled state of the cell."""
        assert isinstance(value, tuple)
        letter, j = value
        parts = []
        for i, factor in self._terms[j]:
            name = self._table(CELL if factor is None else POINT, Table((factor,)))
            parts.append(f"{name} * {letter}_[{i} * B + i]")
        return f"const real {letter}{j} = {' + '.join(parts)};"

    def _loop(self, loop: int, shares: Sequence[Share]) -> list[str]:
        """The operations for a cell or a point, and what they add to the entries of the cell."""
        sums: dict[int, list[str]] = {}
        for share in shares:
            result = self._program.results[share.result]
            varies = self._of(result)
            own = SAMPLE | (POINT if varies == SAMPLE | POINT else CELL)
            if result == 0.0 or own != loop:
                continue
            if not varies & SAMPLE:
                text = self._table(CELL, Table(share.factors, result, is_weighted=True, is_summed=True))
            else:
                is_cell = own == SAMPLE | CELL
                weight = Table(share.factors, is_weighted=True, is_summed=is_cell)
                text = f"{self._table(CELL if is_cell else POINT, weight)} * {self._named(result, loop)}"
            for entry in share.entries:
                sums.setdefault(entry, []).append(text)
        lines = self._lines(loop)
        for entry, texts in sums.items():
            target = "part[i]" if entry == TOTAL else f"out_[{entry} * B + i]"
            lines.append(f"{target} += {' + '.join(texts)};")
        return lines

    def text(self) -> str:
        """The code."""
        clips = [f"const real c{k} = bound{k};" for k in bounds(self._program).values()]
        lines = [
            "/* Adds integrals of cells [from, to) to out (K, M, B) and total (B), for states (K, m, B). */",
            *declarations(self._program, self._real),
            "enum { MOST = 64 };",
            "void prepare(const real *restrict y, real *restrict of_y, int64_t B) {",
            *_indented(4, clips, _over_samples("B", self._at_samples)),
            "}",
            "void add(const int64_t *restrict cells, const real *restrict tables, const real *restrict points,",
            "    const real *restrict all_y, const real *restrict all_of_y,",
            *(f"    const real *restrict all_{letter}," for letter in self.letters),
            "    real *restrict out, double *restrict total,",
            "    int64_t from, int64_t to, int64_t Q, int64_t m, int64_t M, int64_t B) {",
            *_indented(4, clips),
            "    for (int64_t c = from; c < to; c++) {",
            *_indented(8, _loaded("t", "tables", "c", len(self.tables[CELL]))),
            "        for (int64_t first = 0; first < B; first += MOST) {",
            "            const int64_t n = B - first < MOST ? B - first : MOST;",
            "            const real *restrict y = all_y + first, *restrict of_y = all_of_y + first;",
            *(
                f"            const real *restrict {letter}_ = all_{letter} + cells[c] * m * B + first;"
                for letter in self.letters
            ),
            "            real *restrict out_ = out + cells[c] * M * B + first;",
            *_indented(12, self._body()),
            "        }",
            "    }",
            "}",
            "",
        ]
        return "\n".join(lines)

    def _body(self) -> Iterator[str]:
        """What is done for one cell and at most MOST samples."""
        if self._kept[SAMPLE | CELL]:
            yield f"real of_cell[{len(self._kept[SAMPLE | CELL])}][MOST];"
        if self.has_value:
            yield "real part[MOST];"
            yield from _over_samples("n", ["part[i] = 0;"])
        yield from _over_samples("n", self._at_cells)
        if self._at_points:
            yield "for (int64_t q = 0; q < Q; q++) {"
            points = _loaded("p", "points", "(c * Q + q)", len(self.tables[POINT]))
            yield from _indented(4, points, _over_samples("n", self._at_points))
            yield "}"
        if self.has_value:  # float32 would lose digits of sums over all cells
            yield from _over_samples("n", ["total[first + i] += part[i];"])


def _over_samples(count: str, lines: Sequence[str]) -> list[str]:
    if not lines:
        return []
    loop = f"for (int64_t i = 0; i < {count}; i++) {{"
    return ["#pragma omp simd", loop, *_indented(4, lines), "}"]


def _loaded(name: str, table: str, row: str, size: int) -> list[str]:
    return [f"const real {name}{k} = {table}[{row} * {size} + {k}];" for k in range(size)]


def _indented(spaces: int, *parts: Sequence[str] | Iterator[str]) -> list[str]:
    return [" " * spaces + line for lines in parts for line in lines]
