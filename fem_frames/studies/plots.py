"""Pictures of the studies, for commands and demos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fem_frames.files import check_new, check_writable, one_line, written_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fem_frames.studies.picture import Picture

Rows = Sequence[Mapping[str, Any]]
ROUTE_STYLES = {
    "bpx": ("HᵀA_yH", "tab:red", "o"),
    "sparse": ("DᵀC_yD, D assembled", "tab:orange", "s"),
    "gather": ("DᵀC_yD, D gathered", "tab:purple", "^"),
    "recursive": ("DᵀC_yD, D recursive", "tab:blue", "D"),
}


def check_plot(path: Path | None, force: bool = True) -> None:
    """Raises a ValueError early if the picture cannot be drawn or written, or may not replace an existing file."""
    if path is None:
        return
    known = new_figure().canvas.get_supported_filetypes()
    if path.suffix[1:] not in known:
        raise ValueError(f"cannot draw to {path}: the name must end in .png, .pdf or .svg")
    check_new(path, force)
    check_writable(path)


def plot_conditioning(rows: Rows, path: Path | None = None, title: str = "") -> Picture:
    """Draws condition numbers over the levels; saves the picture if there is a path."""
    figure = new_figure(6.4, 4.4)
    axes = figure.subplots()
    names = {"cond_A": "A_y", "cond_bpx": "HᵀA_yH = DᵀC_yD", "cond_D": "D on ker(F)^⊥", "cond_C": "C_y on ran D"}
    for (key, label), (_, color, marker) in zip(names.items(), ROUTE_STYLES.values(), strict=True):
        axes.semilogy([r["level"] for r in rows], [r[key] for r in rows], marker=marker, color=color, label=label)
    axes.set(xlabel="level J", ylabel="condition number", title=title)
    return _finish(figure, path, axes)


def plot_rounding(rows: Rows, path: Path | None = None, title: str = "") -> Picture:
    """Draws gradient errors over the levels, a panel per precision, a line per route; saves them if there is a path."""
    dtypes = list(dict.fromkeys(r["dtype"] for r in rows))
    figure = new_figure(1.2 + 3.6 * len(dtypes), 4.2)
    panels = figure.subplots(1, len(dtypes), squeeze=False)
    for axes, dtype in zip(panels[0], dtypes, strict=True):
        for route, (label, color, marker) in ROUTE_STYLES.items():
            mine = [r for r in rows if r["dtype"] == dtype and r["route"] == route and r["gradient_error"] > 0]
            levels, errors = [r["level"] for r in mine], [r["gradient_error"] for r in mine]
            axes.semilogy(levels, errors, marker=marker, color=color, label=label, markersize=5)
        axes.set(xlabel="level J", title=dtype)
    panels[0, 0].set_ylabel("error of the gradient near the solution, relative")
    figure.suptitle(title)
    return _finish(figure, path, *panels[0])


def new_figure(width: float = 6.4, height: float = 4.8) -> Picture:
    """An empty figure of this size in inches, with constrained layout.

    It does not belong to pyplot: the user's backend and figures stay unchanged, and no display is needed.
    """
    try:
        from fem_frames.studies.picture import Picture
    except ImportError as error:
        raise ValueError("drawing needs matplotlib: pip install matplotlib") from error
    except OSError as error:
        raise ValueError(f"matplotlib cannot write its cache: {one_line(error)}; set MPLCONFIGDIR") from error
    return Picture(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: Path | None) -> None:
    """Writes the figure in the format of the path's suffix, completely or not at all; does nothing without a path."""
    if path is None:
        return
    with written_whole(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=130)


def _finish(figure: Picture, path: Path | None, *axes: Any) -> Picture:
    from matplotlib.ticker import MaxNLocator

    for a in axes:
        a.grid(alpha=0.3)
        a.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].legend(fontsize=9)
    save(figure, path)
    return figure
