"""Pictures of trained surrogates: loss curves, and solutions with their references.

B samples, N points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fem_frames.frame.arrays import FrameArrays
from fem_frames.mesh.geometry import Floats
from fem_frames.messages import either
from fem_frames.studies.plots import new_figure, save

if TYPE_CHECKING:
    from fem_frames.studies.picture import Picture

DRAWN = 12  # solutions in one picture
COLORS = ("tab:blue", "tab:red", "tab:green", "tab:purple", "tab:orange", "tab:brown", "tab:pink", "tab:gray")


@dataclass(frozen=True)
class RunCurve:
    """The losses in the log of a run."""

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
    values: Mapping[str, Floats]  # of each field at points (B, N), or vectors on cells (B, K, d)
    reference: Mapping[str, Floats]


def plot_runs(
    curves: Sequence[RunCurve], panels: Sequence[SolutionPanel], path: Path | None = None, title: str = ""
) -> Picture:
    """Draws loss curves and, below them, the solutions of each run; saves the picture if there is a path."""
    flat = [p for p in panels if p.arrays.dimension < 3]  # solutions in 3D are not drawn
    heights = [4.4, *(2.9 if p.arrays.dimension == 1 else 8.4 * len(p.values) for p in flat)]
    width = max([7.0, *(0.6 + 3.2 * len(p.y) for p in flat if p.arrays.dimension == 2)])
    figure = new_figure(width, sum(heights))
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    _draw_curves(parts[0].subplots(), curves, title)
    for part, panel in zip(parts[1:], flat, strict=True):
        (_draw_lines if panel.arrays.dimension == 1 else _draw_maps)(part, panel)
    save(figure, path)
    return figure


def plot_solutions(
    arrays: FrameArrays, fields: Mapping[str, Floats], y: Floats, path: Path | None = None, title: str = ""
) -> Picture:
    """Draws all fields for y (B, p), values (B, N) or vectors (B, N or K, d); saves the picture if there is a path.

    In one dimension there is a panel per field with a line per y. In two dimensions there is a map per field and y,
    with a column per y and one colour scale per field.
    """
    check_drawable(arrays, len(y))
    if arrays.dimension == 1:
        figure = new_figure(5.2 * len(fields), 4.0)
        for axes, (name, values) in zip(figure.subplots(1, len(fields), squeeze=False)[0], fields.items(), strict=True):
            for i, value in enumerate(values):
                _line(axes, arrays, value, color=COLORS[i % len(COLORS)], label=_short(y[i]))
            axes.set(xlabel="x", title=symbol(name))
            axes.grid(alpha=0.3)
            if len(y) > 1:
                axes.legend(fontsize=7)
    else:
        alone = len(y) == 1  # then the fields stand side by side
        shape = (1, len(fields)) if alone else (len(fields), len(y))
        width, height = (5.2, 4.0) if alone else (3.4, 3.3)
        figure = new_figure(width * shape[1], height * shape[0])
        grid = figure.subplots(*shape, squeeze=False)
        for row, (name, values) in zip(grid.T if alone else grid, fields.items(), strict=True):
            sizes = values if values.ndim == 2 else np.linalg.norm(values, axis=2)
            limits = dict(vmin=float(sizes.min()), vmax=float(sizes.max()))
            drawn = [_map(axes, arrays, value, **limits) for axes, value in zip(row, values, strict=True)]
            figure.colorbar(drawn[0], ax=list(row), shrink=0.85)
            for axes, sample in zip(row, y, strict=True):
                what = symbol(name) if values.ndim == 2 else f"|{symbol(name)}| and its direction"
                axes.set_title(what if alone else f"{what}\n{_short(sample)}", fontsize=12 if alone else 9)
    figure.suptitle(title)
    save(figure, path)
    return figure


def check_drawable(arrays: FrameArrays, samples: int = 1) -> None:
    """Raises a ValueError if the solutions have the wrong dimension, or are too many, to be drawn."""
    if arrays.dimension == 3:
        how = either("--out u.xdmf", "write(y, 'u.xdmf')")
        raise ValueError(f"solutions in space are not drawn: write them with {how} and open that in ParaView")
    if samples > DRAWN:
        raise ValueError(f"{samples} solutions are too many for one picture: draw at most {DRAWN}")


def _draw_curves(axes: Any, curves: Sequence[RunCurve], title: str) -> None:
    """Draws losses if all floors are positive; otherwise, as for energies, their distance to the floor."""
    floors = sorted({c.floor for c in curves if c.floor is not None})
    positive = not floors or floors[0] > 0
    for number, curve in enumerate(curves):
        color = COLORS[number % len(COLORS)]
        if positive:
            step, loss = np.array(curve.step), np.array(curve.loss)
            seen = loss > 0  # an unstable loss may come out negative
            axes.plot(step[seen], loss[seen], color=color, alpha=0.3, linewidth=0.8)
        above = np.array(curve.test_loss) - (0.0 if positive or curve.floor is None else curve.floor)
        axes.plot(curve.test_step, above, color=color, marker="o", markersize=3, label=curve.label)
    for number, floor in enumerate(floors if positive else []):
        axes.axhline(floor, color="black", linewidth=0.8, linestyle=":", label="floor" if number == 0 else None)
    axes.set_yscale("log")
    what = "loss; dots: on the test set" if positive else "test loss above that of the reference"
    axes.set(xlabel="step", ylabel=what, title=title)
    axes.grid(alpha=0.3)
    if curves:
        axes.legend(fontsize=8)


def _draw_lines(part: Any, panel: SolutionPanel) -> None:
    """One panel per field, one colour per sample; the reference is a broad pale line under the surrogate."""
    all_axes = part.subplots(1, len(panel.values), squeeze=False)[0]
    for axes, (name, values) in zip(all_axes, panel.values.items(), strict=True):
        for i, value in enumerate(values):
            color = COLORS[i % len(COLORS)]
            _line(axes, panel.arrays, panel.reference[name][i], color=color, linewidth=5, alpha=0.25)
            _line(axes, panel.arrays, value, color=color, linewidth=1.2, label=_short(panel.y[i]))
        axes.set(xlabel="x", title=f"{panel.label}: {symbol(name)}")
        axes.grid(alpha=0.3)
    all_axes[0].legend(fontsize=7)


def _draw_maps(part: Any, panel: SolutionPanel) -> None:
    """One column per sample; for each field a row of solutions, one of references and one of differences."""
    grid = part.subplots(3 * len(panel.values), len(panel.y), squeeze=False)
    for k, (name, values) in enumerate(panel.values.items()):
        for i, value in enumerate(values):
            _draw_difference(part, grid[3 * k : 3 * k + 3, i], panel.arrays, value, panel.reference[name][i])
            title = f"{panel.label}: {symbol(name)}\n{_short(panel.y[i])}"
            grid[3 * k, i].set_title(title, fontsize=9)


def _draw_difference(part: Any, axes: Any, arrays: FrameArrays, value: Floats, reference: Floats) -> None:
    error = value - reference
    sizes = [v if v.ndim == 1 else np.linalg.norm(v, axis=1) for v in (value, reference, error)]
    low, high = (float(f(np.concatenate(sizes[:2]))) for f in (np.min, np.max))
    _map(axes[0], arrays, value, vmin=low, vmax=high)
    drawn = _map(axes[1], arrays, reference, vmin=low, vmax=high)
    part.colorbar(drawn, ax=list(axes[:2]), location="bottom", shrink=0.8, aspect=30)
    axes[1].set_title("reference", fontsize=9)
    largest = float(np.abs(sizes[2]).max()) or 1.0
    least = -largest if value.ndim == 1 else 0.0
    drawn = _map(axes[2], arrays, error, cmap="RdBu_r" if value.ndim == 1 else "Reds", vmin=least, vmax=largest)
    ticks = sorted({least, 0.0, largest})
    part.colorbar(drawn, ax=axes[2], location="bottom", shrink=0.8, aspect=30, format="%.0e", ticks=ticks)
    relative = np.linalg.norm(error) / (np.linalg.norm(reference) or 1.0)
    axes[2].set_title(f"difference, relative {relative:.1e}", fontsize=9)


def _short(y: Floats) -> str:
    return "y = " + ", ".join(f"{v:.2g}" for v in y[:4]) + (", …" if len(y) > 4 else "")


def _line(axes: Any, arrays: FrameArrays, values: Floats, **options: Any) -> None:
    """Draws a field over the interval: values at points as a polygon, values (K, 1) on cells as steps."""
    if len(values) == len(arrays.points):
        order = np.argsort(arrays.points[:, 0])
        axes.plot(arrays.points[order, 0], values.reshape(len(values))[order], **options)
    else:
        order = np.argsort(arrays.centres[:, 0])
        axes.stairs(values[order, 0], np.sort(arrays.points[:, 0]), baseline=None, **options)


def _map(axes: Any, arrays: FrameArrays, values: Floats, **options: Any) -> Any:
    axes.set_aspect("equal")
    axes.set_axis_off()
    x, cells = arrays.points, arrays.levels[-1].cells
    if values.ndim == 1:
        return axes.tripcolor(x[:, 0], x[:, 1], cells, values, shading="gouraud", **options)
    if len(values) == len(x):  # vectors at points
        drawn = axes.tripcolor(x[:, 0], x[:, 1], cells, np.linalg.norm(values, axis=1), shading="gouraud", **options)
        if "cmap" not in options:
            _arrows(axes, arrays, values[cells].mean(axis=1))
        return drawn
    drawn = axes.tripcolor(x[:, 0], x[:, 1], cells, facecolors=np.linalg.norm(values, axis=1), **options)
    if "cmap" not in options:  # no arrows on differences
        _arrows(axes, arrays, values)
    return drawn


def _arrows(axes: Any, arrays: FrameArrays, vectors: Floats, across: int = 14) -> None:
    """Draws vectors (K, 2) on cells as arrows, averaged over boxes so that about `across` fit side by side."""
    low, high = arrays.points.min(axis=0), arrays.points.max(axis=0)
    place = np.floor((arrays.centres - low) / float((high - low).max()) * across * 0.999).astype(np.int64)
    _, group = np.unique(place[:, 0] * across + place[:, 1], return_inverse=True)
    count = np.bincount(group)
    at = [np.bincount(group, weights=arrays.centres[:, i]) / count for i in range(2)]
    mean = [np.bincount(group, weights=vectors[:, i]) / count for i in range(2)]
    axes.quiver(*at, *mean, color="white", width=0.005, pivot="middle")


def symbol(name: str) -> str:
    return {"sigma": "σ", "flux": "a∇u"}.get(name, name)
