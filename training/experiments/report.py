"""Collects the results of an experiment's runs as JSON, and writes them as Markdown.

Every number comes from `result.json` or the log of a run, whose name is next to it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

from fem_frames.files import written_whole
from training.experiments.beside import PICTURE as BESIDE
from training.experiments.beside import beside_lines
from training.experiments.cells import Cell
from training.experiments.markdown import markdown_row, short
from training.experiments.overview import duration
from training.experiments.paper_tables import OPTIMIZERS
from training.experiments.presets import WORDS, Preset, Row, Scaling
from training.experiments.protocol import PAPER_LEVELS
from training.experiments.runner import preset_of
from training.experiments.scaling_tables import DECAY
from training.run import store

REPORT, PAGE = "report.json", "report.md"
POINTS = 200  # at most, per curve
EXCESSES = (1e-3, 1e-4, 1e-5, 1e-6)
"""The report counts the steps until the test loss is this much above its floor."""

SCALING_LINES: dict[Scaling, str] = {
    "printed": "hats of level j are scaled by 2^-j, as the paper prints them: those normalised in H1 times 2^(-j/2)",
    "normalised": "hats are normalised in H1, as the paper's text says",
}
"""Lines of the protocol; reports without a scaling lack theirs."""


def collect(
    out: Path, preset: Preset | None = None, fresh: Mapping[str, Any] | None = None, cells: str = "*"
) -> dict[str, Any]:
    """All results of an experiment in the form of its JSON; the folder names the preset unless it is given.

    `fresh` has metrics on new samples by cell; `cells` is a pattern for their names.
    """
    preset = preset or preset_of(out)
    tables, curves, circumstances, optimizers = [], {}, set(), set()
    for table in preset.tables(cells=cells):
        rows = []
        for row in table.rows:
            cell = Cell(row.cell, row.configuration, out)
            rows.append(_collect_row(row, cell) | {"fresh": (fresh or {}).get(row.cell)})
            optimizers.add(row.configuration.optimizer)
            curves[row.cell] = _curve(cell)
            done = cell.read(store.RESULT) or cell.read(store.FAILURE)
            if done is not None:
                known = {key: done.get(key) for key in ("device", "threads", "machine", "versions")}
                circumstances.add(json.dumps(known, sort_keys=True))
        tables.append({"name": table.name, "title": table.title, "columns": list(table.columns), "rows": rows})
    return {
        "preset": preset.name,
        "scaling": preset.scaling,
        "text": preset.text,
        "cells": cells,
        "protocol": protocol_lines(preset, optimizers),
        "tables": tables,
        "curves": curves,
        "circumstances": [json.loads(text) for text in sorted(circumstances)],
        "figures": {},
        "added": [],
    }


def protocol_lines(preset: Preset, optimizers: Container[str] = OPTIMIZERS) -> list[str]:
    """Describes in words what the preset runs with these optimizers, from the configurations themselves."""
    base = preset.base
    lines = [
        f"problem {base.problem}, {base.formulation}, J = {base.levels}; test set of {base.test_samples} samples, seed "
        f"{base.test_seed}; seed of nets and samples {base.seed}, where a table does not say otherwise"
    ]
    if preset.scaling is not None:
        lines.append(SCALING_LINES[preset.scaling])
    for group in (("sgd", "adam"), ("lbfgs",), ("ngd",)):
        names = [name for name in group if name in preset.optimizers and name in optimizers]
        if names:
            c = preset.configuration(names[0], "stable", "float32").resolved()
            words = " and ".join(WORDS[name] for name in names)
            samples = "fresh samples" if c.sampling == "fresh" else f"all {c.training_samples} samples of a fixed set"
            steps = (
                f"{c.steps_per_epoch} steps of {c.batch} {samples}" if c.sampling == "fresh" else f"a step, {samples}"
            )
            rate = f"; rate {c.rate:g} at first" if c.sampling == "fresh" else ""
            lines.append(f"{words}: {c.epochs} epochs, in each {steps}{rate}")
    lines += preset.lines(base)
    inputs = "mapped to [-1, 1] by the box of the parameters" if base.map_inputs else "y as they are"
    lines.append(f"inputs of nets are {inputs}")
    lines.append("SGD, Adam and SOAP: the rate falls by half a cosine in five sixths of the epochs, then stays")
    if base.levels != PAPER_LEVELS:
        lines.append(f"the paper's values are for J = {PAPER_LEVELS}: loss and MSE, a sum over points, are others here")
    return lines


def _collect_row(row: Row, cell: Cell) -> dict[str, Any]:
    state, c = cell.state(), cell.resolved
    try:
        cell.check_settings()
        status: str = state.status
    except ValueError:
        status = "other settings"
    result, failure = cell.read(store.RESULT) or {}, cell.read(store.FAILURE) or {}
    test = result.get("test") or {}
    return {
        "labels": list(row.labels),
        "cell": row.cell,
        "status": status,
        "optimizer": c.optimizer,
        "loss_name": c.loss,
        "precision": c.precision + (" mixed" if c.mixed else ""),
        "net": c.net,
        "levels": c.levels,
        "seed": c.seed,
        "parameters": result.get("parameters", failure.get("parameters")),
        "epochs": c.epochs,
        "steps_per_epoch": c.steps_per_epoch,
        "steps": state.step,
        "seconds": state.seconds,
        **{key: test.get(key) for key in ("mre", "mse", "loss", "floor", "ratio", "excess")},
        "last_test": (failure.get("test") or {}).get("loss"),
        "device": result.get("device", failure.get("device")),
        "stopped": result.get("stopped") or failure.get("reason", "").partition("; checkpoints are kept")[0] or None,
        "steps_to_excess": _steps_to_excess(cell),
        "paper": row.paper._asdict() if row.paper else None,
    }


def _curve(cell: Cell) -> list[list[float]]:
    """[step, seconds, test loss] of a run, at most `POINTS` of them."""
    tests = [r for r in cell.records() if "test" in r and r["test"]["loss"] is not None]
    every = max(1, math.ceil(len(tests) / POINTS))
    kept = [r for i, r in enumerate(tests) if i % every == 0 or i == len(tests) - 1]
    return [[r["step"], r["seconds"], float(f"{r['test']['loss']:.5g}")] for r in kept]


def _steps_to_excess(cell: Cell) -> dict[str, int | None]:
    seen = [(r["step"], r["test"]) for r in cell.records() if "test" in r and r["test"]["loss"] is not None]
    tests = [(step, test["loss"] - test["floor"]) for step, test in seen]
    return {f"{e:g}": next((step for step, excess in tests if excess <= e), None) for e in EXCESSES}


# ---- Markdown


def page_text(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    return "\n".join(_page(report)) + "\n"


def write_report(report: Mapping[str, Any], folder: Path) -> None:
    """Writes JSON and page, after making both."""
    texts = {REPORT: json.dumps(report, indent=1, allow_nan=False) + "\n", PAGE: page_text(report)}
    for name, text in texts.items():
        with written_whole(folder / name) as file:
            file.write(text.encode())


def _page(report: Mapping[str, Any]) -> Iterator[str]:
    figures = report["figures"]
    rows = [row for table in report["tables"] for row in table["rows"]]
    cells = {row["cell"]: row for row in rows}
    complete = sum(row["status"] in ("done", "diverged") for row in cells.values())
    yield f"# Preset {report['preset']}: {report['text']}"
    yield ""
    chosen = report.get("cells", "*")
    command = f"fem-frames tables --table all --preset {report['preset']}"
    if report["scaling"] is not None:
        command += f" --scaling {report['scaling']}"
    if chosen != "*":
        command += f" --cells '{chosen}'"
    yield f"Written by `fem-frames report` from the runs of `{command}`."
    yield ""
    yield from (f"- {line}" for line in report["protocol"])
    total = sum(row["seconds"] for row in cells.values())
    added = f", {len(report['added'])} of them taken from their reports" if report.get("added") else ""
    yield f"- {complete} of {len(cells)} cells complete{added}, {duration(total)} of training in all"
    for found in report["circumstances"]:
        machine = found["machine"]
        cores = f", {machine['cores']} cores ({machine['architecture']})" if machine else ""
        versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
        yield f"- run on {found['device'] or 'cpu'} with {found['threads']} thread(s) each{cores}; {versions}"
    for table in report["tables"]:
        yield ""
        yield f"## Table {table['name']}: {table['title']}"
        yield ""
        yield from _table_lines(table, report.get("conditions") if table["name"] == DECAY else None)
        yield from _notes(table)
        for name, caption in figures.items():
            if name.startswith(f"table-{table['name']}"):
                yield ""
                yield f"![{caption}]({name})"
    if report.get("beside"):
        yield ""
        yield from beside_lines(report)
        if BESIDE in figures:
            yield ""
            yield f"![{figures[BESIDE]}]({BESIDE})"
    yield from _ratio_lines(cells)
    for name, caption in figures.items():
        if name != BESIDE and not name.startswith("table-"):
            yield ""
            yield f"## {caption}"
            yield ""
            yield f"![{caption}]({name})"


def _notes(table: Mapping[str, Any]) -> Iterator[str]:
    """The lines below a table: its floor, and why runs ended early."""
    floors = {f"{row['floor']:.4e}" for row in table["rows"] if row["floor"] is not None}
    if len(floors) == 1:
        yield ""
        yield f"Floor of the loss, that of the finite element solutions: {floors.pop()}."
    stopped = [row for row in table["rows"] if row["stopped"] and row["status"] == "done"]
    if stopped:
        yield ""
        yield from (f"- `{row['cell']}` stopped at step {row['steps']}: {row['stopped']}" for row in stopped)


def _table_lines(table: Mapping[str, Any], conditions: Mapping[str, float] | None) -> Iterator[str]:
    """The table; `conditions` are condition numbers by its last label."""
    printed = any(row["paper"] for row in table["rows"])
    by_steps = table["name"] == "levels"
    seeds = sorted({row["fresh"]["seed"] for row in table["rows"] if row["fresh"]})
    fresh = [f"loss, MRE with seed {seeds[0]}"] if seeds else []
    counts = ["parameters"] if "net" in table["columns"] else []
    last = [*fresh, *counts, *(["cond HᵀA_yH"] if conditions else []), "time", "cell"]
    headings = [*table["columns"], "epochs", "MRE", "MSE", "loss", "loss / floor", *last]
    if printed:
        headings = [*table["columns"], "epochs", "MRE", "paper", "MSE", "paper", "loss", "paper", *last]
    if by_steps:
        steps = [f"steps to {e:g}" for e in EXCESSES]
        headings = [*table["columns"], "parameters", "loss", "floor", "excess", *steps, *last]
    yield markdown_row(headings)
    yield markdown_row(["---"] * len(headings))
    for row in table["rows"]:
        labels, tail = row["labels"], [duration(row["seconds"]) if row["seconds"] else "–", f"`{row['cell']}`"]
        if conditions:
            tail.insert(0, f"{conditions[labels[-1]]:.3g}" if labels[-1] in conditions else "–")
        if counts:
            tail.insert(0, str(row["parameters"] or "–"))
        if fresh:
            tail.insert(0, f"{short(row['fresh']['loss'])}, {short(row['fresh']['mre'])}" if row["fresh"] else "–")
        epochs = _epochs(row)
        if by_steps:
            steps = [row["steps_to_excess"][f"{e:g}"] for e in EXCESSES]
            numbers = [row["parameters"] or "–", _loss(row), *(short(row[key]) for key in ("floor", "excess"))]
            yield markdown_row([*labels, *numbers, *("–" if s is None else s for s in steps), *tail])
        elif printed:
            paper = row["paper"] or {}
            numbers = [
                *(short(row["mre"]), short(paper.get("mre")), short(row["mse"]), short(paper.get("mse"))),
                *(_loss(row), short(paper.get("loss"))),
            ]
            yield markdown_row([*labels, epochs, *numbers, *tail])
        else:
            ratio = "–" if row["ratio"] is None else f"{row['ratio']:.2f}"
            yield markdown_row([*labels, epochs, short(row["mre"]), short(row["mse"]), _loss(row), ratio, *tail])


def _epochs(row: Mapping[str, Any]) -> str:
    """The number of epochs; for a run that ended early, with the planned number."""
    taken = row["steps"] / row["steps_per_epoch"]
    whole = row["status"] == "done" and row["steps"] == row["epochs"] * row["steps_per_epoch"]
    return str(row["epochs"]) if whole else f"{taken:.4g} of {row['epochs']}"


def _loss(row: Mapping[str, Any]) -> str:
    if row["status"] == "diverged":
        before = f", {row['last_test']:.2e} before" if row["last_test"] is not None else ""
        return f"not finite at step {row['steps'] + 1}{before}"
    others = {"new": "not run", "partial": "not finished", "other settings": "run with other settings"}
    return others.get(row["status"], short(row["loss"]))


def _ratio_lines(cells: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Loss without preconditioning divided by loss with it, where both are known."""
    found = []
    for without in cells.values():
        if without["loss_name"] != "nodal" or not without["paper"]:
            continue
        row = [without["labels"][0], without["precision"]]
        for loss in ("bpx", "stable"):
            other = cells.get(without["cell"].replace("-nodal-", f"-{loss}-"))
            for values, others in ((without, other), (without["paper"], (other or {}).get("paper"))):
                pair = values["loss"], (others or {}).get("loss")
                row.append(f"{pair[0] / pair[1]:.3g}" if all(pair) else "–")
        found.append(row)
    if not found:
        return
    yield ""
    yield "## Loss without preconditioning over loss with it"
    yield ""
    yield markdown_row(["optimizer", "precision", "bpx", "paper", "stable", "paper"])
    yield markdown_row(["---"] * 6)
    yield from map(markdown_row, found)
