"""Pictures of problems: the mesh coloured by region, with the groups of its boundary.

N points, K cells, F boundary facets, d dimension.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fem_frames.mesh.geometry import Floats
from fem_frames.studies.overview import GroupSummary, ProblemOverview
from fem_frames.studies.plots import check_plot, new_figure, save

if TYPE_CHECKING:
    from fem_frames.studies.picture import Picture

GROUP_COLORS = ("tab:red", "tab:blue", "tab:green", "tab:purple", "tab:orange", "tab:brown", "tab:pink", "tab:olive")
REGION_COLORS = ("#dbe4ee", "#f3e3c3", "#d9ead3", "#ead7e6", "#cfe8e8", "#f2d5cd", "#e4e4d0", "#d8d4ee")
_WITH_EDGES = 20_000  # with more cells than these, edges of cells would hide the colours
_LEGEND = 20  # entries


def plot_overview(shown: ProblemOverview, path: Path | None = None) -> Picture:
    """Draws cells in the colour of their region and boundary facets in the colour of their group.

    In three dimensions it draws the surface alone, coloured by group. Saves the picture if there is a path.
    """
    check_plot(path)
    d = shown.mesh.dimension
    low, high = np.array(shown.mesh.lower), np.array(shown.mesh.upper)
    height = (
        4.6 if d == 3 else 2.2 if d == 1 else float(np.clip(6.0 * (high - low)[1] / (high - low)[0], 1.8, 7.0)) + 0.8
    )
    figure = new_figure(10.0, height)
    axes = figure.add_subplot(projection="3d") if d == 3 else figure.subplots()
    (_draw_interval, _draw_triangles, _draw_surface)[d - 1](axes, shown)
    _legend(axes, shown)
    axes.set_title(shown.name, fontsize=11)
    save(figure, path)
    return figure


def _colors_of_regions(shown: ProblemOverview) -> dict[int, str]:
    present = [r.tag for r in shown.regions if r.cells]
    return {tag: REGION_COLORS[k % len(REGION_COLORS)] for k, tag in enumerate(present)}


def _drawn_groups(shown: ProblemOverview) -> list[tuple[GroupSummary, str, np.ndarray]]:
    """Groups on the boundary with their colours and facets (F,)."""
    found, tags = [], shown.hierarchy.coarse_facet_tags
    for k, group in enumerate(shown.groups):
        own = tags == (-1 if group.tag is None else group.tag)
        if own.any():
            color = (
                ("0.7" if shown.mesh.dimension == 3 else "0.35")
                if group.tag is None
                else GROUP_COLORS[k % len(GROUP_COLORS)]
            )
            found.append((group, color, own))
    return found


def _draw_interval(axes: Any, shown: ProblemOverview) -> None:
    hierarchy, colors = shown.hierarchy, _colors_of_regions(shown)
    cells = hierarchy.points[hierarchy.finest.cells][:, :, 0]  # (K, 2)
    for (left, right), tag in zip(np.sort(cells, axis=1), shown.cell_regions.tolist(), strict=True):
        axes.axvspan(left, right, ymin=0.3, ymax=0.7, color=colors[tag], linewidth=0)
    coarse = hierarchy.level_points(0)[:, 0]
    axes.plot(coarse, np.zeros_like(coarse), "|", color="0.4", markersize=14)
    for _, color, own in _drawn_groups(shown):
        ends = hierarchy.points[hierarchy.levels[0].facets[own, 0], 0]
        axes.plot(ends, np.zeros_like(ends), "o", color=color, markersize=9)
    axes.set(ylim=(-1, 1), yticks=[], xlabel="x")
    _label_regions(axes, shown)


def _draw_triangles(axes: Any, shown: ProblemOverview) -> None:
    from matplotlib.collections import LineCollection, PolyCollection

    hierarchy, colors = shown.hierarchy, _colors_of_regions(shown)
    x, cells = hierarchy.points, hierarchy.finest.cells
    faces = [colors[tag] for tag in shown.cell_regions.tolist()]
    axes.add_collection(PolyCollection(x[cells], facecolors=faces, edgecolors="face", linewidths=0.3))
    coarse = hierarchy.levels[0].cells
    if len(coarse) <= _WITH_EDGES:
        axes.add_collection(PolyCollection(x[coarse], facecolors="none", edgecolors="0.7", linewidths=0.4))
    for _, color, own in _drawn_groups(shown):
        lines = x[hierarchy.levels[0].facets[own]]
        axes.add_collection(LineCollection(lines, colors=color, linewidths=3.0, capstyle="round"))
    axes.set_aspect("equal")
    axes.autoscale_view()
    _label_regions(axes, shown)


def _draw_surface(axes: Any, shown: ProblemOverview) -> None:
    from mpl_toolkits.mplot3d.art3d import Poly3DCollection

    hierarchy = shown.hierarchy
    colors = np.empty(len(hierarchy.levels[0].facets), object)
    for _, color, own in _drawn_groups(shown):
        colors[own] = color
    # All facets in one collection: matplotlib sorts by depth only inside of collections.
    faces = hierarchy.points[hierarchy.levels[0].facets]
    axes.add_collection3d(
        Poly3DCollection(faces, facecolors=colors.tolist(), edgecolors="white", linewidths=0.4, alpha=0.8)
    )
    low, high = shown.mesh.lower, shown.mesh.upper
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), zlim=(low[2], high[2]))
    axes.set_box_aspect([b - a for a, b in zip(low, high, strict=True)])


def _label_regions(axes: Any, shown: ProblemOverview) -> None:
    """Writes the names of regions, or their tags, into them."""
    rows = [r for r in shown.regions if r.cells]
    if not 1 < len(rows) <= _LEGEND:
        return
    for row in rows:
        where = _inside(shown, row.tag)
        x, y = (where[0], 0.0) if shown.mesh.dimension == 1 else where
        box = dict(boxstyle="round,pad=0.15", facecolor="white", edgecolor="none", alpha=0.7)
        axes.text(x, y, row.name or str(row.tag), ha="center", va="center", fontsize=9, bbox=box)


def _inside(shown: ProblemOverview, tag: int) -> Floats:
    """(d,) midpoint of the cell of a region that is farthest from the region's edge: a place for a label."""
    points, finest, own = shown.hierarchy.points, shown.hierarchy.finest, shown.cell_regions == tag
    edge = np.union1d(np.intersect1d(finest.cells[own], finest.cells[~own]), finest.facets)
    edge = points[np.intersect1d(edge, finest.cells[own])]
    centres = points[finest.cells[own]].mean(axis=1)
    thin = [a[:: max(1, len(a) // 1000)] for a in (centres, edge)]  # a thousand of each are enough for a label
    if len(edge) == 0:
        return np.asarray(centres[0])
    distance = np.linalg.norm(thin[0][:, None] - thin[1], axis=-1).min(axis=1)
    return np.asarray(thin[0][distance.argmax()])


def _legend(axes: Any, shown: ProblemOverview) -> None:
    """Groups with their conditions, then regions with the coefficient."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries: list[Any] = []
    for group, color, _ in _drawn_groups(shown):
        name = group.name or ("boundary" if group.tag is None else f"group {group.tag}")
        entries.append(Line2D([], [], color=color, linewidth=3, label=_wrapped(f"{name}: {group.condition}")))
    colors = _colors_of_regions(shown)
    for r in shown.regions if shown.mesh.dimension < 3 else ():
        if r.cells:
            of = "a =" if shown.equation is None else "∫"
            text = f"{r.name or f'region {r.tag}'}: {of} {r.coefficient}"
            entries.append(Patch(color=colors[r.tag], label=_wrapped(text)))
    hidden = len(entries) - _LEGEND
    if hidden > 0:
        entries = [*entries[:_LEGEND], Line2D([], [], linestyle="", label=f"… {hidden} more")]
    side = 1.15 if shown.mesh.dimension == 3 else 1.02
    axes.legend(handles=entries, loc="center left", bbox_to_anchor=(side, 0.5), fontsize=9, frameon=False)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 36, subsequent_indent="   ")
