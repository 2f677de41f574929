"""Figures of a comparison: error over time for solutions, outputs and gradients, with the Pareto front, per case."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import fill
from typing import Any

from fem_frames.studies.plots import new_figure, save
from training.comparison.fronts import FAMILIES, Measure, front, gradient, of_family, output, points, solution
from training.comparison.tables import main_batch

LOOKS = dict(
    zip(
        FAMILIES,
        (
            *(("tab:red", "v"), ("tab:brown", "P"), ("tab:blue", "o"), ("tab:blue", "*"), ("tab:orange", "D")),
            *(("tab:purple", "^"), ("magenta", "^"), ("tab:green", "s"), ("tab:olive", "X")),
            *(("black", "<"), ("tab:gray", ">"), ("tab:cyan", "p")),
        ),
        strict=True,
    )
)
DEEP = 1e-4  # of the mesh's error: smaller errors are drawn at the lower edge


def draw_figures(record: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Draws a figure per case into the folder; their captions by file name."""
    captions, batch = {}, main_batch(record)
    for case in record["cases"]:
        name = f"{case['name']}.png"
        _draw(case, batch, folder / name)
        captions[name] = f"{case['name']}: error over time of solutions, outputs and gradients, with the Pareto fronts"
    return captions


def _draw(case: Mapping[str, Any], batch: int, path: Path) -> None:
    from matplotlib.lines import Line2D

    facts = case["facts"]
    panels: list[tuple[str, Measure, float | None]] = [
        ("solutions", solution, facts["superclose"]),
        ("outputs", output, facts["output"]),
        ("gradients of a misfit in y", gradient, None),
    ]
    shown = [panel for panel in panels if points(case["rows"], panel[1], batch)]
    figure = new_figure(1.0 + 4.2 * len(shown), 5.2)
    upper, lower = figure.subfigures(2, 1, height_ratios=[8.0, 1.2])
    seen: list[str] = []
    for axes, (title, measure, bound) in zip(upper.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        _panel(axes, case, batch, measure, bound)
        axes.set(xlabel=f"milliseconds per query, {batch} at a time", title=title)
        seen += [row["kind"] for row, _ in points(case["rows"], measure, batch)]
    upper.axes[0].set_ylabel("relative error")
    upper.suptitle(fill(f"{case['name']}, {case['title']}: {case['mesh'].replace('`', '')}", 100))
    keys = [
        Line2D([], [], color=color, marker=marker, linestyle="none", label=family)
        for family, (color, marker) in LOOKS.items()
        if family in seen
    ]
    keys.append(Line2D([], [], color="black", linewidth=0.9, label="Pareto front"))
    keys.append(Line2D([], [], color="silver", linewidth=3, label="error of the mesh (solutions: superclose)"))
    lower.legend(handles=keys, loc="center", ncols=5, fontsize=8)
    save(figure, path)


def _panel(axes: Any, case: Mapping[str, Any], batch: int, measure: Measure, bound: float | None) -> None:
    """Points by family, the front as steps, and a line for the error of the mesh."""
    all_points = [point for _, point in points(case["rows"], measure, batch)]
    found, lowest = [ms for ms, _ in all_points], min(error for _, error in all_points)
    edge = 0.0 if bound is None else DEEP * bound
    for family, (color, marker) in LOOKS.items():
        mine = points(of_family(case["rows"], family), measure, batch)
        x, y = [ms for _, (ms, _) in mine], [max(error, edge) for _, (_, error) in mine]
        axes.scatter(x, y, color=color, marker=marker, s=38, edgecolors="white", linewidths=0.4, zorder=3)
    ahead = points(front(case["rows"], measure, batch), measure, batch)
    x, y = [ms for _, (ms, _) in ahead], [max(error, edge) for _, (_, error) in ahead]
    axes.step(x, y, where="post", color="black", linewidth=0.9, zorder=2)
    if bound is not None:
        axes.axhline(bound, color="silver", linewidth=3, zorder=1)
    axes.set(xscale="log", yscale="log")
    axes.set_xlim(*_decades(min(found), max(found)))
    axes.margins(y=0.08)
    axes.grid(alpha=0.3)
    if lowest < edge:
        axes.text(0.98, 0.01, "at the lower edge: or less", transform=axes.transAxes, ha="right", fontsize=7)


def _decades(low: float, high: float) -> tuple[float, float]:
    """Limits of a logarithmic axis that spans a decade and a half at least."""
    middle, half = (low * high) ** 0.5, max((high / low) ** 0.5 * 1.35, 10**0.75)
    return middle / half, middle * half
