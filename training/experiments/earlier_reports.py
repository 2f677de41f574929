"""Reads and checks earlier reports, and merges reports whose cells ran at several times or places."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fem_frames.files import check_file, one_line
from training.experiments.protocol import BEFORE_SCALINGS, known_preset
from training.experiments.report import SCALING_LINES, page_text, protocol_lines

SETTINGS = ("optimizer", "loss_name", "precision", "net", "levels", "seed", "epochs", "steps_per_epoch")
COMPLETE = ("done", "diverged")


def read_report(path: Path) -> dict[str, Any]:
    """Reads a file of `fem-frames report` about an experiment; a ValueError names the file."""
    try:
        report = json.loads(check_file(path).read_text(), parse_constant=_refuse)
        if not isinstance(report, dict):
            raise ValueError("it is no JSON object")
        if "problems" in report:
            raise ValueError("it is of demo_comparison.py, which `fem-frames compare` has replaced: run that instead")
        if "cases" in report:
            raise ValueError("it is a comparison, not the report of an experiment")
        _add_scaling(report)
        _check_whole(report)
    except KeyError as error:
        raise ValueError(f"{path} cannot be read as a report: it has no {error.args[0]!r}") from error
    except Exception as error:  # wrong types in the file can raise anything
        raise ValueError(f"{path} cannot be read as a report: {one_line(error)}") from error
    return report


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number of a report")


def _add_scaling(report: dict[str, Any]) -> None:
    """Adds what reports lack that are older than the choice of the scaling."""
    preset = known_preset(report["preset"], BEFORE_SCALINGS)
    if "scaling" not in report and preset is not None and isinstance(report["protocol"], list):
        report["scaling"] = preset.scaling
        if preset.scaling is not None:
            report["protocol"].insert(1, SCALING_LINES[preset.scaling])


def _check_whole(report: Mapping[str, Any]) -> None:
    """Raises an error if the page or the figures of the report cannot be made."""
    preset = known_preset(report["preset"], report.get("scaling"))
    if preset is None or not isinstance(report["protocol"], list):
        raise ValueError("this fem-frames does not know its preset, scaling or protocol")
    page_text(report)
    known = {table.name for table in preset.tables()}
    if not {table["name"] for table in report["tables"]} <= known:  # table names become file names of figures
        raise ValueError("this fem-frames does not know its tables")
    for row in (row for table in report["tables"] for row in table["rows"]):
        if not all(isinstance(row[key], int | str) for key in SETTINGS) or not row["labels"]:
            raise ValueError(f"the settings or labels of {row['cell']} are not valid")
        if any(len([float(number) for number in point]) != 3 for point in report["curves"][row["cell"]]):
            raise ValueError(f"the curve of {row['cell']} has no triples of step, seconds and loss")


def fill_in(report: Mapping[str, Any], other: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The report with its incomplete cells taken from another report, called `name`, if they are complete there.

    Both must follow the same protocol, otherwise a table would compare results that are not comparable. With the other
    scaling of the hats only cells without a frame are taken, if their settings agree.
    """
    _check_protocol(report, other, name)
    found = {row["cell"]: row for table in other["tables"] for row in table["rows"] if row["status"] in COMPLETE}
    if other["scaling"] != report["scaling"]:  # without a frame there are no hats to scale
        found = {cell: row for cell, row in found.items() if row["loss_name"] == "nodal"}
    tables, taken = [], set()
    for table in report["tables"]:
        rows = []
        for row in table["rows"]:
            if row["status"] not in COMPLETE and row["cell"] in found:
                if other["scaling"] != report["scaling"] and _differ(row, found[row["cell"]]):
                    rows.append(row)
                    continue
                _check_settings(row, found[row["cell"]], name)
                taken.add(row["cell"])
                row = found[row["cell"]] | {"labels": row["labels"], "paper": row["paper"]}
            rows.append(row)
        tables.append({**table, "rows": rows})
    _check_seeds(tables, name)
    circumstances = list(report["circumstances"])
    if taken:
        circumstances += [known for known in other["circumstances"] if known not in circumstances]
    curves = {cell: (other if cell in taken else report)["curves"][cell] for cell in report["curves"]}
    added = sorted({*report.get("added", []), *taken})
    return {**report, "tables": tables, "curves": curves, "circumstances": circumstances, "added": added}


def _check_protocol(report: Mapping[str, Any], other: Mapping[str, Any], name: str) -> None:
    if other["preset"] != report["preset"]:
        raise ValueError(f"{name} is of the preset {other['preset']}, this experiment of {report['preset']}")
    optimizers = {row["optimizer"] for table in other["tables"] for row in table["rows"]}
    preset = known_preset(other["preset"], other["scaling"])
    assert preset is not None
    here = protocol_lines(preset, optimizers)
    if other["protocol"] != here:
        theirs = next((line for line in other["protocol"] if line not in here), "fewer lines")
        raise ValueError(f"{name} has another protocol ({theirs}): its cells cannot be compared with these")


def _differ(row: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [key for key in SETTINGS if row[key] != other[key]]


def _check_settings(row: Mapping[str, Any], other: Mapping[str, Any], name: str) -> None:
    for key in _differ(row, other):
        raise ValueError(
            f"{name} has {row['cell']} with {key} {other[key]}, here it is {row[key]}: exclude it with --cells, "
            "or run the cell"
        )


def _check_seeds(tables: list[dict[str, Any]], name: str) -> None:
    seeds = sorted({row["fresh"]["seed"] for table in tables for row in table["rows"] if row["fresh"]})
    if len(seeds) > 1:
        raise ValueError(f"nets were evaluated with the seeds {seeds}, some of them in {name}: give one --fresh-seed")
