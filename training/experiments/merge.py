"""Joins reports of one experiment whose cells were run at several times or on several machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training.experiments.protocol import PRESETS
from training.experiments.report import protocol_lines

SETTINGS = ("optimizer", "loss_name", "precision", "net", "levels", "seed", "epochs", "steps_per_epoch")
COMPLETE = ("done", "diverged")


def fill_in(report: Mapping[str, Any], other: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The report, its cells that are not complete taken from another one, called `name`, that has them complete.

    Both must be of one protocol, or a table would compare what cannot be compared.
    """
    _check_protocol(report, other, name)
    found = {row["cell"]: row for table in other["tables"] for row in table["rows"] if row["status"] in COMPLETE}
    tables, taken = [], set()
    for table in report["tables"]:
        rows = []
        for row in table["rows"]:
            if row["status"] not in COMPLETE and row["cell"] in found:
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
    return {**report, "tables": tables, "curves": curves, "circumstances": circumstances}


def _check_protocol(report: Mapping[str, Any], other: Mapping[str, Any], name: str) -> None:
    if other["preset"] != report["preset"]:
        raise ValueError(f"{name} is of the preset {other['preset']}, this experiment of {report['preset']}")
    optimizers = {row["optimizer"] for table in other["tables"] for row in table["rows"]}
    here = protocol_lines(PRESETS[report["preset"]], optimizers)
    if other["protocol"] != here:
        theirs = next((line for line in other["protocol"] if line not in here), "fewer lines")
        raise ValueError(f"{name} is of another protocol ({theirs}): its cells cannot stand beside those of this one")


def _check_settings(row: Mapping[str, Any], other: Mapping[str, Any], name: str) -> None:
    for key in SETTINGS:
        if row[key] != other[key]:
            raise ValueError(
                f"{name} has {row['cell']} with {key} {other[key]}, here it is {row[key]}: leave it out by --cells, "
                "or run the cell"
            )


def _check_seeds(tables: list[dict[str, Any]], name: str) -> None:
    seeds = sorted({row["fresh"]["seed"] for table in tables for row in table["rows"] if row["fresh"]})
    if len(seeds) > 1:
        raise ValueError(f"nets were evaluated with the seeds {seeds}, some of them in {name}: give one --fresh-seed")
