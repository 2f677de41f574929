"""Error over time per query, for the rows of `fem-frames bench --queries`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fem_frames.studies.plots import new_figure, save

if TYPE_CHECKING:
    from fem_frames.studies.picture import Picture

LINES = {"multigrid": ("multigrid, Chebyshev weights", "tab:blue", "o"), "learned": ("learned", "tab:orange", "D")}
POINTS = {"rival": ("tab:green", "s"), "frame": ("tab:purple", "^"), "PETSc": ("tab:red", "v")}


def plot_queries(rows: Sequence[Mapping[str, Any]], path: Path | None = None, title: str = "") -> Picture:
    """Draws errors over milliseconds per query, a line for the fastest multigrid of each accuracy.

    Only rows with an error are drawn. Saves the picture if there is a path.
    """
    figure = new_figure(8.4, 5.0)
    axes = figure.subplots()
    for kind, (label, color, marker) in LINES.items():
        mine = [row for row in rows if row["kind"] == kind]
        if not mine:
            continue
        axes.scatter([r["ms"] for r in mine], [r["error"] for r in mine], color=color, marker=marker, s=22, label=label)
        front = fastest(mine)
        axes.plot([r["ms"] for r in front], [r["error"] for r in front], color=color, linewidth=1)
    slow = 0.2 * max(row["ms"] for row in rows)  # on the right, where labels have no room beside their points
    points = sorted((row for row in rows if row["kind"] in POINTS), key=lambda row: row["ms"])
    for number, row in enumerate(points):
        color, marker = POINTS[row["kind"]]
        axes.scatter(row["ms"], row["error"], color=color, marker=marker, s=34)
        side, right = ("right", -6) if row["ms"] > slow else ("left", 6)
        up = 5 if number % 2 else -11  # neighbours have labels on different sides
        place = dict(xytext=(right, up), textcoords="offset points", ha=side, fontsize=7)
        axes.annotate(row["method"], (row["ms"], row["error"]), **place)
    axes.set(xscale="log", yscale="log", xlabel="milliseconds per query", title=title)
    axes.set_ylabel("error in the energy norm, relative to the discrete solution")
    axes.margins(x=0.16)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower left")
    save(figure, path)
    return figure


def fastest(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows that no other row beats in both time and error, from fast to accurate."""
    found: list[Mapping[str, Any]] = []
    for row in sorted(rows, key=lambda row: (row["ms"], row["error"])):
        if not found or row["error"] < found[-1]["error"]:
            found.append(row)
    return found
