"""Pictures of trained surrogates: loss curves, and solutions over their references.

B samples, N points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fem_frames.arrays import FrameArrays
from fem_frames.files import written_whole
from fem_frames.mesh import Floats
from fem_frames.plots import pyplot

COLORS = ("tab:blue", "tab:red", "tab:green", "tab:purple", "tab:orange", "tab:brown", "tab:pink", "tab:gray")


@dataclass(frozen=True)
class RunCurve:
    """What the log of a run says of its losses."""

    label: str
    step: list[int] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    test_step: list[int] = field(default_factory=list)
    test_loss: list[float] = field(default_factory=list)
    floor: float | None = None

    @classmethod
    def from_records(cls, label: str, records: Sequence[Mapping[str, Any]]) -> RunCurve:
        training = [r for r in records if r.get("loss") is not None]
        tests = [r for r in records if "test" in r and r["test"]["loss"] is not None]
        return cls(
            label,
            [r["step"] for r in training],
            [r["loss"] for r in training],
            [r["step"] for r in tests],
            [r["test"]["loss"] for r in tests],
            tests[-1]["test"]["floor"] if tests else None,
        )


@dataclass(frozen=True, eq=False)
class SolutionPanel:
    """Solutions of one surrogate and their references."""

    label: str
    arrays: FrameArrays
    y: Floats  # (B, p)
    values: Mapping[str, Floats]  # of each field (B, N)
    reference: Mapping[str, Floats]


def plot_runs(curves: Sequence[RunCurve], panels: Sequence[SolutionPanel], path: Path, title: str = "") -> None:
    """Loss curves on top, below a row of solutions for each run."""
    plt = pyplot()
    flat = [p for p in panels if p.arrays.dimension < 3]  # solutions in space cannot be drawn flat
    columns = max([2 if p.arrays.dimension == 1 else 2 * len(p.y) for p in flat], default=1)
    width = max(7.0, min(3.2 * columns, 16))
    figure = plt.figure(figsize=(width, 4.4 + 2.9 * len(flat)), layout="constrained")
    grid = figure.add_gridspec(1 + len(flat), columns, height_ratios=[1.5] + [1.0] * len(flat))
    _draw_curves(figure.add_subplot(grid[0, :]), curves, title)
    for row, panel in enumerate(flat, start=1):
        if panel.arrays.dimension == 1:
            _draw_lines(figure, grid, row, panel)
        else:
            _draw_maps(figure, grid, row, panel)
    save(figure, path)


def plot_solution(arrays: FrameArrays, fields: Mapping[str, Floats], path: Path, title: str = "") -> None:
    """All fields (N,) of one solution."""
    if arrays.dimension == 3:
        raise ValueError("solutions in space are not drawn: write them with --out u.xdmf and open that in ParaView")
    plt = pyplot()
    figure, axes = plt.subplots(1, len(fields), figsize=(5.2 * len(fields), 4.0), layout="constrained", squeeze=False)
    for ax, (name, values) in zip(axes[0], fields.items(), strict=True):
        if arrays.dimension == 1:
            order = np.argsort(arrays.points[:, 0])
            ax.plot(arrays.points[order, 0], values[order], color=COLORS[0])
            ax.set(xlabel="x", title=_symbol(name))
            ax.grid(alpha=0.3)
        else:
            figure.colorbar(_map(ax, arrays, values), ax=ax, shrink=0.85)
            ax.set_title(_symbol(name))
    figure.suptitle(title)
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    with written_whole(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=130)
    pyplot().close(figure)


def _draw_curves(axes: Any, curves: Sequence[RunCurve], title: str) -> None:
    losses = [v for c in curves for v in (*c.test_loss, *c.loss)]
    positive = bool(losses) and min((v for c in curves for v in c.test_loss), default=1.0) > 0
    for number, curve in enumerate(curves):
        color = COLORS[number % len(COLORS)]
        step, loss = np.array(curve.step), np.array(curve.loss)
        seen = loss > 0 if positive else np.isfinite(loss)  # an unstable loss may come out negative
        axes.plot(step[seen], loss[seen], color=color, alpha=0.3, linewidth=0.8)
        axes.plot(curve.test_step, curve.test_loss, color=color, marker="o", markersize=3, label=curve.label)
    floors = sorted({c.floor for c in curves if c.floor is not None})
    for number, floor in enumerate(floors):
        axes.axhline(floor, color="black", linewidth=0.8, linestyle=":", label="floor" if number == 0 else None)
    if positive:
        axes.set_yscale("log")
    axes.set(xlabel="step", ylabel="loss; dots: on the test set", title=title)
    axes.grid(alpha=0.3)
    if curves:
        axes.legend(fontsize=8)


def _draw_lines(figure: Any, grid: Any, row: int, panel: SolutionPanel) -> None:
    """One panel a field, one colour a sample; the reference broad and pale under the surrogate."""
    x = panel.arrays.points[:, 0]
    order = np.argsort(x)
    span = grid.ncols // len(panel.values)
    for column, (name, values) in enumerate(panel.values.items()):
        axes = figure.add_subplot(grid[row, column * span : (column + 1) * span])
        for i, value in enumerate(values):
            color = COLORS[i % len(COLORS)]
            axes.plot(x[order], panel.reference[name][i][order], color=color, linewidth=5, alpha=0.25)
            y = ", ".join(f"{v:.2g}" for v in panel.y[i][:4]) + (", …" if panel.y.shape[1] > 4 else "")
            axes.plot(x[order], value[order], color=color, linewidth=1.2, label=f"y = {y}")
        axes.set(xlabel="x", title=f"{panel.label}: {_symbol(name)}")
        axes.grid(alpha=0.3)
        if column == 0:
            axes.legend(fontsize=7)


def _draw_maps(figure: Any, grid: Any, row: int, panel: SolutionPanel) -> None:
    """For every sample u and its error."""
    u, reference = panel.values["u"], panel.reference["u"]
    for i in range(len(u)):
        axes = figure.add_subplot(grid[row, 2 * i])
        figure.colorbar(_map(axes, panel.arrays, u[i]), ax=axes, shrink=0.8)
        axes.set_title(f"{panel.label}: u", fontsize=9)
        axes = figure.add_subplot(grid[row, 2 * i + 1])
        error = u[i] - reference[i]
        largest = float(np.abs(error).max()) or 1.0
        drawn = _map(axes, panel.arrays, error, cmap="RdBu_r", vmin=-largest, vmax=largest)
        figure.colorbar(drawn, ax=axes, shrink=0.8)
        size = np.linalg.norm(reference[i])
        axes.set_title(f"error, relative {np.linalg.norm(error) / size:.1e}", fontsize=9)


def _map(axes: Any, arrays: FrameArrays, values: Floats, **options: Any) -> Any:
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    x = arrays.points
    return axes.tripcolor(x[:, 0], x[:, 1], arrays.levels[-1].cells, values, shading="gouraud", **options)


def _symbol(name: str) -> str:
    return {"sigma": "σ"}.get(name, name)
