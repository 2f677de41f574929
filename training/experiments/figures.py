"""Figures of an experiment: loss curves by epoch and by time, nets with random weights, losses by level, ablation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from fem_frames.studies.plots import new_figure, save
from fem_frames.studies.solution_plots import COLORS, symbol
from training.experiments.report import EXCESSES
from training.experiments.scaling_tables import DECAY

STYLES = {"float16": ":", "float16 mixed": ":", "float32": "--", "float64": "-"}
SAMPLES = 6  # of random nets


def draw_figures(report: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Draws the figures of the report; returns the captions by file name."""
    captions = {}
    for table in report["tables"]:
        seen = [row for row in table["rows"] if len(report["curves"][row["cell"]]) > 1]
        if not seen:
            continue
        name = f"table-{table['name']}.png"
        if table["name"] == "levels":
            _draw_levels(seen, folder / name)
            captions[name] = "Excess of the loss over its floor after equally many steps, and steps to a fixed excess"
        elif table["name"] == "ablation":
            _draw_ablation(seen, folder / name)
            captions[name] = "Test loss over its floor for each variant of the recipe, one dot per seed"
        elif table["name"] == DECAY:
            _draw_decays(seen, report.get("conditions") or {}, folder / name)
            captions[name] = "Test loss after equally many steps, and condition of the frame, against the decay s"
        else:
            _draw_curves(table, seen, report["curves"], folder / name)
            captions[name] = f"Test loss of the cells of Table {table['name']}, by epoch and by time"
    return captions


def _draw_curves(
    table: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], curves: Mapping[str, Any], path: Path
) -> None:
    """One column per loss, by epoch above and by time below. Colours show the first label, line styles precisions."""
    from matplotlib.lines import Line2D

    losses = list(dict.fromkeys(row["loss_name"] for row in table["rows"]))
    kinds = list(dict.fromkeys(row["labels"][0] for row in table["rows"]))
    width = 1.5 + 4.8 * len(losses)
    figure = new_figure(width, 8.6)
    upper, lower = figure.subfigures(2, 1, height_ratios=[8.0, 0.6])
    grid = upper.subplots(2, len(losses), sharey=True, squeeze=False)
    for row in rows:
        step, seconds, loss = np.array(curves[row["cell"]]).T
        style = STYLES.get(row["precision"], "-.")
        line = dict(color=COLORS[kinds.index(row["labels"][0])], linestyle=style, markersize=3)
        line |= dict(linewidth=1.3, marker=".") if row["seed"] == 0 else dict(linewidth=0.7, marker="o")
        column = losses.index(row["loss_name"])
        for axes, x in ((grid[0, column], step / row["steps_per_epoch"]), (grid[1, column], seconds)):
            axes.plot(x[1:], loss[1:], **line)
            if row["status"] == "diverged":
                axes.plot(x[-1], loss[-1], marker="x", markersize=9, color=line["color"])
    floor = next((row["floor"] for row in rows if row["floor"]), None)
    for axes in grid.flat:
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.grid(alpha=0.3)
        if floor:
            axes.axhline(floor, color="silver", linewidth=3.0, zorder=0)
    for axes, loss in zip(grid[0], losses, strict=True):
        axes.set(title=f"loss {loss}", xlabel="epoch")
    for axes in grid[1]:
        axes.set_xlabel("seconds")
    for axes in grid[:, 0]:
        axes.set_ylabel("test loss")
    keys: list[tuple[str, dict[str, Any]]] = [(kind, dict(color=COLORS[number])) for number, kind in enumerate(kinds)]
    precisions = dict.fromkeys(row["precision"] for row in rows)
    keys += [(precision, dict(color="black", linestyle=STYLES.get(precision, "-."))) for precision in precisions]
    seeds = sorted({row["seed"] for row in rows})
    keys += [(f"seed {s}", dict(color="black", linewidth=0.7, marker="o", markersize=3)) for s in seeds if s]
    keys += [("floor", dict(color="silver", linewidth=3.0))] if floor else []
    lines = [Line2D([], [], label=text, **look) for text, look in keys]
    lower.legend(handles=lines, loc="center", ncols=min(len(lines), 3 + 2 * len(losses)), fontsize=8)
    crosses = " (×: not finite after that)" if any(row["status"] == "diverged" for row in rows) else ""
    upper.suptitle(fill(f"Table {table['name']}: {table['title']}{crosses}", int(9 * width)))
    save(figure, path)


def _draw_levels(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    figure = new_figure(11.0, 4.4)
    left, right = figure.subplots(1, 2)
    for number, loss in enumerate(dict.fromkeys(row["loss_name"] for row in rows)):
        chosen = [row for row in rows if row["loss_name"] == loss and row["excess"] is not None]
        levels = [row["levels"] for row in chosen]
        left.plot(levels, [row["excess"] for row in chosen], "o-", color=COLORS[number], label=loss)
        for excess, marker in zip(EXCESSES, "osv^", strict=True):
            steps = [row["steps_to_excess"][f"{excess:g}"] for row in chosen]
            if any(steps):
                label = f"{loss}, to {excess:g}"
                values = [np.nan if s is None else s for s in steps]
                right.plot(levels, values, f"{marker}-", color=COLORS[number], label=label, markersize=5)
    floors = sorted({(row["levels"], row["floor"]) for row in rows if row["floor"]})
    left.plot([levels for levels, _ in floors], [floor for _, floor in floors], "k:", label="floor")
    left.set_yscale("log")
    left.set(xlabel="J", ylabel="test loss above the floor", title=f"after {max(row['steps'] for row in rows)} steps")
    right.set(xlabel="J", ylabel="steps", title="steps until the excess is below a bound")
    right.set_ylim(bottom=0)
    levels = sorted({row["levels"] for row in rows})
    for axes in (left, right):
        axes.set_xticks(levels)
        axes.set_xlim(levels[0] - 0.5, levels[-1] + 0.5)
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8, **({"loc": "center left", "bbox_to_anchor": (1.0, 0.5)} if axes is right else {}))
    save(figure, path)


def _draw_decays(rows: Sequence[Mapping[str, Any]], conditions: Mapping[str, float], path: Path) -> None:
    figure = new_figure(10.0, 4.0)
    left, right = figure.subplots(1, 2)
    for number, optimizer in enumerate(dict.fromkeys(row["labels"][0] for row in rows)):
        known = [row for row in rows if row["labels"][0] == optimizer and row["loss"] is not None]
        s = [float(row["labels"][-1]) for row in known]
        left.plot(s, [row["loss"] for row in known], "o-", color=COLORS[number], label=optimizer)
    floor = next((row["floor"] for row in rows if row["floor"]), None)
    if floor:
        left.axhline(floor, color="silver", linewidth=3.0, zorder=0, label="floor")
    right.plot([float(s) for s in conditions], list(conditions.values()), "ks-")
    left.set(ylabel="test loss", title=f"after {max(row['steps'] for row in rows)} steps")
    right.set(ylabel="cond HᵀA_yH", title="coefficients of level j scaled by 2^(-s j)")
    for axes in (left, right):
        axes.set_xlabel("s")
        axes.set_yscale("log")
        axes.grid(alpha=0.3)
    left.legend(fontsize=8)
    save(figure, path)


def _draw_ablation(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    kinds = list(dict.fromkeys(row["labels"][0] for row in rows))
    figure = new_figure(8.0, 1.2 + 0.42 * len(kinds))
    axes = figure.subplots()
    for row in rows:
        if row["ratio"] is not None:
            place = kinds.index(row["labels"][0])
            axes.plot(row["ratio"], place, "o", color=COLORS[place % len(COLORS)], markersize=7, alpha=0.8)
    axes.set_xscale("log")
    axes.set_yticks(range(len(kinds)), kinds)
    axes.invert_yaxis()
    axes.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_xlabel("test loss / floor")
    axes.grid(alpha=0.3, axis="x")
    save(figure, path)


def draw_initialisation(values: Mapping[str, Mapping[str, Any]], x: Any, path: Path) -> None:
    """u and σ of nets with random weights: for each basis `values` has the fields (SAMPLES, N)."""
    fields = list(next(iter(values.values())))
    figure = new_figure(4.8 * len(fields), 2.9 * len(values))
    grid = figure.subplots(len(values), len(fields), squeeze=False)
    order = np.argsort(x)
    for line, (basis, by_field) in zip(grid, values.items(), strict=True):
        for axes, name in zip(line, fields, strict=True):
            for number, sample in enumerate(by_field[name]):
                axes.plot(x[order], sample[order], color=COLORS[number % len(COLORS)], linewidth=0.9)
            axes.set(title=f"{basis}: {symbol(name)}", xlabel="x")
            axes.grid(alpha=0.3)
    save(figure, path)
