"""The picture of demo_inverse.py: disks and sensors, the posterior by pairs, the model's error, the costs.

s sensors, p = 6 parameters: centre and radius of two disks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fem_frames.studies.plots import new_figure

Floats = npt.NDArray[np.float64]
NAMES = ("x₁", "y₁", "r₁", "x₂", "y₂", "r₂")


@dataclass(frozen=True, eq=False)
class Result:
    """What is drawn."""

    sensors: Floats  # (s, 2)
    data: Floats  # (s,)
    truth: Floats  # (p,)
    best: Floats  # (p,) the most probable parameters
    posterior: Floats  # (states, p)
    worth: str  # of the states, in words
    errors: Floats  # (samples, s) bounds of the model's error, divided by the noise
    evaluations: int


def draw(result: Result, seconds: Mapping[str, float]) -> Any:
    """The figure; `seconds` are the costs of all likelihoods by label."""
    figure = new_figure(15.5, 8.2)
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.45))
    top, bottom = left.subfigures(2, 1, height_ratios=(2.1, 1))
    _draw_domain(top, result)
    errors, costs = bottom.subplots(1, 2)
    _draw_errors(errors, result.errors)
    bars = costs.barh([*seconds], [*seconds.values()], color=["0.6", "tab:blue"])
    costs.bar_label(bars, [f"{value:.0f} s" for value in seconds.values()], padding=3, fontsize=8)
    costs.set(title=f"{result.evaluations} likelihoods", xlim=(0, 1.3 * max(seconds.values())), xlabel="s")
    _draw_pairs(right, result)
    return figure


def _draw_domain(figure: Any, result: Result) -> None:
    axes, angle = figure.subplots(), np.linspace(0, 2 * np.pi, 100)

    def outline(y: Floats, k: int, **style: Any) -> None:
        x, centre, radius = y[3 * k : 3 * k + 3]
        axes.plot(x + radius * np.cos(angle), centre + radius * np.sin(angle), **style)

    for k in range(2):
        for i, y in enumerate(result.posterior[:: max(1, len(result.posterior) // 150)]):
            label = "posterior samples" if i == k == 0 else None
            outline(y, k, color="tab:blue", linewidth=0.4, alpha=0.25, label=label)
        outline(result.truth, k, color="k", linewidth=1.6, label=None if k else "truth")
        outline(result.best, k, color="tab:red", linestyle="--", linewidth=1.6, label=None if k else "MAP")
    drawn = axes.scatter(*result.sensors.T, c=result.data, cmap="inferno", edgecolor="0.4", s=45, zorder=3)
    figure.colorbar(drawn, ax=axes, label="measured u at the sensors", shrink=0.85)
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", title=f"Two disks, seen by {len(result.data)} sensors")
    legend = axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.07), ncols=3, fontsize=9, frameon=False)
    for line in legend.get_lines():
        line.set_alpha(1)


def _draw_errors(axes: Any, errors: Floats) -> None:
    order = np.argsort(errors.max(axis=0))
    axes.semilogy(errors.max(axis=0)[order], "o", markersize=4, label=f"largest of {len(errors)} samples")
    axes.semilogy(errors.mean(axis=0)[order], "_", color="0.4", label="mean")
    axes.axhline(1, color="k", linewidth=0.8)
    axes.text(0, 1.12, "noise", fontsize=8)
    axes.set(xlabel="sensor", ylabel="bound / noise", title="Certified model error", ylim=(None, 2.5))
    axes.legend(fontsize=7, loc="lower right")


def _draw_pairs(figure: Any, result: Result) -> None:
    posterior, truth, best, p = result.posterior, result.truth, result.best, len(NAMES)
    panels = figure.subplots(p, p)
    shown = posterior[:: max(1, len(posterior) // 4000)]
    low, high = np.quantile(posterior, [0.001, 0.999], axis=0)
    low, high = np.minimum(low, truth), np.maximum(high, truth)
    low, high = low - 0.05 * (high - low), high + 0.05 * (high - low)
    for i in range(p):
        for k in range(p):
            axes = panels[i, k]
            if k > i:
                axes.remove()
                continue
            if i == k:
                axes.hist(posterior[:, i], 50, (low[i], high[i]), color="tab:blue", alpha=0.6)
                axes.axvline(truth[i], color="k", linewidth=1.2)
                axes.axvline(best[i], color="tab:red", linestyle="--", linewidth=1.2)
                axes.set(xlim=(low[i], high[i]), yticks=[])
            else:
                axes.plot(shown[:, k], shown[:, i], ".", color="tab:blue", markersize=1, alpha=0.25)
                axes.plot(truth[k], truth[i], "k+", markersize=9, markeredgewidth=1.6)
                axes.plot(best[k], best[i], "x", color="tab:red", markersize=7, markeredgewidth=1.4)
                axes.set(xlim=(low[k], high[k]), ylim=(low[i], high[i]))
            axes.locator_params(nbins=3)
            axes.tick_params(labelsize=7, labelbottom=i == p - 1, labelleft=k == 0 and i > 0)
            if i == p - 1:
                axes.set_xlabel(NAMES[k])
                axes.tick_params(axis="x", rotation=45)
            if k == 0 and i > 0:
                axes.set_ylabel(NAMES[i])
    figure.suptitle(f"Posterior: {len(posterior)} states, {result.worth}; truth black, MAP red")
