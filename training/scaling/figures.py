"""Figures of a scaling study, one for each of its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fem_frames.studies.plots import new_figure, save
from fem_frames.studies.solution_plots import COLORS
from training.scaling.machine_sections import DIMENSION, ROOM, growth, predicted_peak
from training.scaling.model import BATCHES, COUNTS, DEVICES, step_seconds
from training.scaling.sections import (
    DIMENSIONS,
    EXCESSES,
    LEARNED,
    QUERIES,
    SHORT,
    SHOWN,
    Records,
    first_step,
    merged,
    of_study,
    series,
)

STYLES = dict(zip(QUERIES, zip(COLORS, "osvD^P", strict=False), strict=True))


def draw_figures(report: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Draws what the cells allow; the captions by file name."""
    records = [record for record in report["cells"].values() if record is not None]
    captions = {}
    for name, (draw, caption) in FIGURES.items():
        figure = draw(of_study(records, name))
        if figure is not None:
            save(figure, folder / f"{name}.png")
            captions[f"{name}.png"] = caption
    return captions


def _levels(records: Records) -> Any:
    tables = {p: merged(of_study(records, "levels", problem=p), "levels") for p in DIMENSIONS}
    tables = {problem: table for problem, table in tables.items() if len(table) > 1}
    if not tables:
        return None
    figure = new_figure(10.0, 3.9 * len(tables))
    panels = figure.subplots(len(tables), 2, squeeze=False)
    for (problem, table), (left, right) in zip(tables.items(), panels, strict=True):
        _draw_queries(left, right, table, f"{DIMENSION[problem]}D: J", log_base=None)
    panels[0, 1].legend(*panels[0, 0].get_legend_handles_labels(), fontsize=8)
    return figure


def _parameters(records: Records) -> Any:
    table = merged(records, "terms")
    if len(table) < 2:
        return None
    figure = new_figure(10.0, 3.9)
    left, right = figure.subplots(1, 2)
    _draw_queries(left, right, table, "number of parameters", log_base=4)
    right.legend(*left.get_legend_handles_labels(), fontsize=8)
    return figure


def _draw_queries(left: Any, right: Any, table: Mapping[Any, Mapping[str, Any]], label: str, log_base: Any) -> None:
    for method, (color, marker) in STYLES.items():
        for axes, key in ((left, "error"), (right, "ms")):
            points = series(table, method, key)
            if points:
                axes.plot(*zip(*points, strict=True), color=color, marker=marker, markersize=5, label=SHORT[method])
    for key, words, style in (("error", "mesh", "--"), ("superclose", "superclose", ":")):
        points = [(at, own["facts"][key]) for at, own in table.items()]
        left.plot(*zip(*points, strict=True), color="0.4", linestyle=style, label=words)
    left.set_ylabel("error in the energy norm, relative")
    right.set_ylabel("milliseconds per query, 64 at a time")
    for axes in (left, right):
        axes.set(yscale="log", xlabel=label)
        if log_base is None:
            axes.set_xticks(list(table))
        else:
            axes.set_xscale("log", base=log_base)
            axes.set_xticks(list(table), map(str, table))
        axes.grid(alpha=0.3)


def _contrast(records: Records) -> Any:
    tables = {p: merged(of_study(records, "contrast", problem=p), "contrast") for p in ("disks", "blocks")}
    if not any(len(table) > 1 for table in tables.values()):
        return None
    figure = new_figure(13.0, 4.2)
    first, second, third = figure.subplots(1, 3)
    for table, line in zip(tables.values(), ("-", "--"), strict=True):
        told = "_" if line == "--" else ""  # the legend names solid lines
        for solver, color in (("multigrid", "tab:blue"), ("frame", "tab:purple")):
            counts = [(at, own["facts"]["iterations"][solver]) for at, own in table.items()]
            points = [(at, count["mean"]) for at, count in counts if count is not None]
            _line(first, points, color=color, linestyle=line, marker="o", label=told + solver)
        for method in (*SHOWN, LEARNED):
            color, marker = STYLES[method]
            style = dict(color=color, linestyle=line, marker=marker, label=told + SHORT[method])
            _line(second, series(table, method, "error"), **style)
        for key, color in (("least", "tab:green"), ("most", "tab:red")):
            bounds = [(at, own["facts"]["bound"]) for at, own in table.items()]
            points = [(at, bound[key]) for at, bound in bounds if bound is not None]
            _line(third, points, color=color, linestyle=line, marker="s", label=told + key)
    first.set_ylabel("iterations to 1e-8")
    second.set_ylabel("error in the energy norm, relative")
    third.set_ylabel("bound / error")
    for axes in (first, second, third):
        axes.set(xscale="log", yscale="log", xlabel="contrast")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, title="solid: disks, dashed: blocks", title_fontsize=8)
    return figure


def _line(axes: Any, points: Sequence[tuple[float, float]], **style: Any) -> None:
    if points:
        axes.plot(*zip(*points, strict=True), markersize=4, **style)


def _training(records: Records) -> Any:
    if len(records) < 2:
        return None
    found = sorted(records, key=lambda record: record["settings"]["levels"])
    figure = new_figure(13.0, 4.0)
    curves, steps, times = figure.subplots(1, 3)
    for record, color in zip(found, COLORS, strict=False):
        count, excess = zip(*record["curve"], strict=True)
        curves.semilogy(count, excess, color=color, label=f"J = {record['settings']['levels']}")
    for limit, color in zip(EXCESSES, COLORS, strict=False):
        own = [(r["settings"]["levels"], first_step(r, limit)) for r in found]
        points = [(J, step) for J, step in own if step is not None]
        _line(steps, points, color=color, marker="o", label=f"excess {limit:g}")
    _line(times, [(r["facts"]["unknowns"], r["step_ms"]) for r in found], color="tab:blue", marker="o")
    curves.set(xlabel="step", ylabel="excess of the loss, relative to its floor")
    steps.set(xlabel="J", ylabel="steps to the excess", yscale="log")
    times.set(xlabel="unknowns", ylabel="milliseconds per step", xscale="log", yscale="log")
    steps.set_xticks([r["settings"]["levels"] for r in found])
    for axes in (curves, steps):
        axes.legend(fontsize=8)
    for axes in (curves, steps, times):
        axes.grid(alpha=0.3)
    return figure


def _processes(records: Records) -> Any:
    counts = sorted({record["settings"]["processes"] for record in records})
    if not counts:
        return None
    figure = new_figure(6.4, 4.2)
    axes = figure.subplots()
    for count, color in zip(counts, COLORS, strict=False):
        own = of_study(records, "processes", processes=count)
        points = sorted((record["settings"]["levels"], record["step_ms"]) for record in own)
        _line(axes, points, color=color, marker="o", label=f"{count} process{'es' * (count > 1)}")
    axes.set(yscale="log", xlabel="J", ylabel="milliseconds per step of 64 samples")
    axes.set_xticks(sorted({record["settings"]["levels"] for record in records}))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def _work(records: Records) -> Any:
    finest = {p: of_study(records, "work", problem=p) for p in DIMENSION}
    finest = {problem: own for problem, own in finest.items() if own}
    if not finest:
        return None
    figure = new_figure(6.0 * len(finest), 4.2)
    for axes, (problem, own) in zip(figure.subplots(1, len(finest), squeeze=False)[0], finest.items(), strict=True):
        work = max(own, key=lambda record: record["settings"]["levels"])
        for device, color in zip(DEVICES, COLORS, strict=False):
            for batch, line in zip(BATCHES, ("--", "-"), strict=True):
                seconds = [(n, 1e3 * step_seconds(work, device, n, batch)["all"]) for n in COUNTS if n <= batch]
                _line(axes, seconds, color=color, linestyle=line, marker="o", label=f"{device.name}, {batch} samples")
        axes.set(yscale="log", xlabel="devices", ylabel="milliseconds per step")
        axes.set_xscale("log", base=2)
        axes.set_xticks(COUNTS, map(str, COUNTS))
        axes.set_title(f"model, not measured: {problem}, J = {work['settings']['levels']}", fontsize=10)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return figure


def _memory(records: Records) -> Any:
    figure = new_figure(7.6, 5.0)
    axes = figure.subplots()
    colors = iter(COLORS)
    for problem, marker in zip(DIMENSION, ("o", "s"), strict=True):
        for task, line in (("training", "-"), ("query", "--")):
            own = [r for r in of_study(records, "memory", problem=problem, task=task) if "peak" in r]
            found = growth(records, problem, task)
            if found is None:
                continue
            color = next(colors)
            points = sorted((r["unknowns"], r["peak"] / 2**30) for r in own)
            _line(axes, points, color=color, linestyle=line, marker=marker, label=f"{DIMENSION[problem]}D, {task}")
            fine, each = found
            next_one = fine["unknowns"] * 2.0 ** DIMENSION[problem]
            beyond = [points[-1], (next_one, predicted_peak(fine, each, problem, 1) / 2**30)]
            axes.plot(*zip(*beyond, strict=True), color=color, linestyle=":", marker="x", linewidth=1)
    if not axes.lines:
        return None
    axes.axhline(ROOM / 2**30, color="0.4", linewidth=1)
    axes.annotate("24 GiB", (0.01, ROOM / 2**30), xycoords=("axes fraction", "data"), va="bottom", fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="unknowns", ylabel="peak of memory, GiB")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, title="dotted: extrapolated", title_fontsize=8)
    return figure


FIGURES: dict[str, tuple[Callable[[Records], Any], str]] = {
    "levels": (_levels, "Error and time per query against J, in 2D and 3D"),
    "parameters": (_parameters, "Error and time per query against the number of parameters"),
    "contrast": (_contrast, "Iterations, errors, and bounds over errors, against the contrast"),
    "training": (_training, "Excess of the loss, steps to a fixed excess, and time of a step, for several J"),
    "processes": (_processes, "Time of a training step shared by processes on one machine, against J"),
    "work": (_work, "Predicted time of a step against the number of devices: a model, not measured"),
    "memory": (_memory, "Peak of memory against the number of unknowns"),
}
