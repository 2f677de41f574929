"""The pictures that the commands and demos draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fem_frames.files import check_new, check_writable, one_line, written_whole

Rows = Sequence[Mapping[str, Any]]
ROUTE_STYLES = {
    "bpx": ("HᵀA_yH", "tab:red", "o"),
    "sparse": ("DᵀC_yD, D assembled", "tab:orange", "s"),
    "gather": ("DᵀC_yD, D gathered", "tab:purple", "^"),
    "recursive": ("DᵀC_yD, D recursive", "tab:blue", "D"),
}


def check_plot(path: Path | None, force: bool = True) -> None:
    """A ValueError now if the picture cannot be drawn or written later, or may not take the place of what is there."""
    if path is None:
        return
    plt = pyplot()
    known = plt.figure().canvas.get_supported_filetypes()
    plt.close()
    if path.suffix[1:] not in known:
        raise ValueError(f"cannot draw to {path}: the name must end in .png, .pdf or .svg")
    check_new(path, force)
    check_writable(path)


def plot_conditioning(rows: Rows, path: Path, title: str = "") -> None:
    """Condition numbers over the levels."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
    names = {"cond_A": "A_y", "cond_bpx": "HᵀA_yH = DᵀC_yD", "cond_D": "D on ker(F)^⊥", "cond_C": "C_y on ran D"}
    for (key, label), (_, color, marker) in zip(names.items(), ROUTE_STYLES.values(), strict=True):
        axes.semilogy([r["level"] for r in rows], [r[key] for r in rows], marker=marker, color=color, label=label)
    axes.set(xlabel="level J", ylabel="condition number", title=title)
    _finish(figure, path, axes)


def plot_rounding(rows: Rows, path: Path, title: str = "") -> None:
    """Errors of the gradient over the levels: one panel a precision, one line a route."""
    plt = pyplot()
    dtypes = list(dict.fromkeys(r["dtype"] for r in rows))
    figure, panels = plt.subplots(
        1, len(dtypes), figsize=(1.2 + 3.6 * len(dtypes), 4.2), layout="constrained", squeeze=False
    )
    for axes, dtype in zip(panels[0], dtypes, strict=True):
        for route, (label, color, marker) in ROUTE_STYLES.items():
            mine = [r for r in rows if r["dtype"] == dtype and r["route"] == route and r["gradient_error"] > 0]
            levels, errors = [r["level"] for r in mine], [r["gradient_error"] for r in mine]
            axes.semilogy(levels, errors, marker=marker, color=color, label=label, markersize=5)
        axes.set(xlabel="level J", title=dtype)
    panels[0, 0].set_ylabel("error of the gradient near the solution, relative")
    figure.suptitle(title)
    _finish(figure, path, *panels[0])


def _finish(figure: Any, path: Path, *axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    for a in axes:
        a.grid(alpha=0.3)
        a.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].legend(fontsize=9)
    with written_whole(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=130)
    pyplot().close(figure)


def pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError("drawing needs matplotlib: pip install matplotlib") from error
    try:
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except OSError as error:
        raise ValueError(f"matplotlib cannot write its cache: {one_line(error)}; set MPLCONFIGDIR") from error
    return plt
