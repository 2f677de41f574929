"""L-BFGS with a strong Wolfe line search that waits for the device once per direction and once per evaluation.

The iterates equal those of `torch.optim.LBFGS` up to rounding, but that one waits for the device at every inner
product, four times per pair of its history. Here one matrix product yields all inner products of a direction, which
are read at once. The two-loop recursion becomes two triangular systems in these numbers, solved on the CPU in float64,
and the direction is one more product.

P parameters, n pairs (s, y) in the history: a step s and the change y of the gradient along it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fem_frames.operators.products import accumulation_dtype
from training.optimizers.line_search import Line, Trial, read, strong_wolfe

LEAST_CURVATURE = 1e-10  # smallest ⟨y, s⟩ of pairs that enter the history
CHUNK = 2**16  # columns of half precision that are widened at a time


class LBFGS(torch.optim.Optimizer):
    """θ ← θ + t d with d = -B ∇, where B is the inverse Hessian from the pairs of the history.

    A step has up to `max_iter` directions and `max_eval` evaluations. `reason` says why the last step ended before
    these limits, if it did. The state of `torch.optim.LBFGS` can be loaded too.
    """

    def __init__(
        self,
        vector: nn.Parameter,
        lr: float = 1.0,
        max_iter: int = 20,
        max_eval: int = 25,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
    ) -> None:
        if not lr > 0:
            raise ValueError(f"lr is {lr}; a positive number is expected")
        settings = dict(lr=lr, max_iter=max_iter, max_eval=max_eval, history_size=history_size)
        tolerances = dict(tolerance_grad=tolerance_grad, tolerance_change=tolerance_change)
        super().__init__([vector], settings | tolerances | dict(line_search_fn="strong_wolfe"))
        self.reason: str | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor]) -> Tensor:  # type: ignore[override]
        """Takes one step; returns the loss before it. The closure stores the gradient at the parameter."""
        (group,) = self.param_groups
        (vector,) = group["params"]
        self.reason = None
        before = closure()
        gradient = vector.grad.clone()
        size = gradient.abs()
        value, largest, total = read(before, size.max(), size.sum(dtype=accumulation_dtype(size.dtype)))
        state = self.state[vector]
        state["func_evals"] = state.get("func_evals", 0) + 1
        state.setdefault("n_iter", 0)
        here, evaluations = Trial(0.0, value, math.nan, gradient, largest), 1
        if largest <= group["tolerance_grad"]:
            self.reason = _small_gradient(largest, group)
            return before
        for iteration in range(1, group["max_iter"] + 1):
            state["n_iter"] += 1
            if state["n_iter"] == 1:
                d, t = -here.gradient, min(1.0, 1.0 / total) * group["lr"]
            else:
                d, t = self._direction(state, here.gradient, group["history_size"]), group["lr"]
            line = Line(closure, vector, here, d)
            trial = line(t)
            state |= {"prev_flat_grad": here.gradient, "prev_loss": here.loss, "d": d, "t": t}
            if not line.start.slope <= -group["tolerance_change"]:
                line.move(0.0)
                self.reason = _no_descent(line.start.slope, group)
                break
            found = strong_wolfe(line, trial, group["tolerance_change"], group["max_eval"] - evaluations)
            line.move(found.t)
            state["t"] = found.t
            state["func_evals"] += line.evaluations
            evaluations += line.evaluations
            here, last = replace(found, t=0.0), here
            if iteration == group["max_iter"] or evaluations >= group["max_eval"]:
                break
            self.reason = _arrived(here, abs(found.t) * line.longest, abs(here.loss - last.loss), group)
            if self.reason is not None:
                break
        return before

    def _direction(self, state: dict[str, Any], gradient: Tensor, size: int) -> Tensor:
        """(P,) -B ∇, after adding the last step to the history if its curvature permits."""
        history = state.setdefault("history", History(gradient.new_empty(0, 2, len(gradient))))
        step, change = state["d"] * state["t"], gradient - state["prev_flat_grad"]
        return history.direction(torch.stack([step, change, gradient]), size)

    # ---- saved state

    def state_dict(self) -> dict[str, Any]:
        content = super().state_dict()
        for key, own in content["state"].items():
            plain = {name: value for name, value in own.items() if name != "history"}
            content["state"][key] = plain | (own["history"].record() if "history" in own else {})
        return content

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads the result of `state_dict`, or of `torch.optim.LBFGS.state_dict`."""
        # Bypasses torch's loading, which would round the inner products to the precision of the parameters.
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
        (vector,) = self.param_groups[0]["params"]
        for own in state_dict["state"].values():
            state = self.state[vector]
            state |= {name: int(own.get(name, 0)) for name in ("func_evals", "n_iter")}
            if own.get("d") is None:
                continue
            state |= {name: own[name].detach().to(vector, copy=True) for name in ("d", "prev_flat_grad")}
            state |= {name: float(own[name]) for name in ("t", "prev_loss")}
            if "pairs" in own:
                state["history"] = History.from_record(own, vector)
            elif own["old_dirs"]:
                pairs = torch.stack([torch.stack(own["old_stps"]), torch.stack(own["old_dirs"])], dim=1)
                state["history"] = History.from_pairs(pairs.to(vector), state["prev_flat_grad"], float(own["H_diag"]))


class History:
    """The last pairs (s, y), and directions that need only their inner products."""

    def __init__(
        self,
        pairs: Tensor,
        inner: Tensor | None = None,
        on_gradient: Tensor | None = None,
        oldest: int = 0,
        scale: float = 1.0,
    ) -> None:
        """`pairs` (n, 2, P); `inner` (2, n, n) ⟨s_i, y_j⟩ for s_i not newer than y_j, and ⟨y_i, y_j⟩.

        `on_gradient` (n, 2) ⟨s_i, ∇⟩ and ⟨y_i, ∇⟩ for the last gradient; the next y is the change from this gradient.
        """
        n = self.count = len(pairs)
        self.oldest, self.scale = oldest, scale
        self._pairs = pairs  # (n or more, 2, P): it grows by doubling
        self._inner = torch.zeros(2, n, n, dtype=torch.float64) if inner is None else inner
        self._on_gradient = torch.zeros(n, 2, dtype=torch.float64) if on_gradient is None else on_gradient

    @classmethod
    def from_pairs(cls, pairs: Tensor, gradient: Tensor, scale: float) -> History:
        """From pairs ordered from old to new; computes their inner products."""
        steps, changes = pairs.unbind(1)
        inner = torch.stack([_products(rows, changes) for rows in (steps, changes)])
        on_gradient = _products(pairs.flatten(0, 1), gradient[None]).view(-1, 2)
        return cls(pairs, inner.cpu().double(), on_gradient.cpu().double(), 0, scale)

    def record(self) -> dict[str, Any]:
        """Tensors and numbers to save in a file."""
        pairs = self._pairs[: self.count].clone()  # saving a view would save the whole buffer
        products = {"inner": self._inner.clone(), "on_gradient": self._on_gradient.clone()}
        return {"pairs": pairs, **products, "oldest": self.oldest, "H_diag": self.scale}

    @classmethod
    def from_record(cls, record: Mapping[str, Any], like: Tensor) -> History:
        pairs, inner, on_gradient = (record[name].detach().clone() for name in ("pairs", "inner", "on_gradient"))
        return cls(pairs.to(like), inner, on_gradient, record["oldest"], record["H_diag"])

    def direction(self, new: Tensor, size: int) -> Tensor:
        """(P,) -B ∇ for `new` (3, P): a pair s, y, which enters the history if ⟨s, y⟩ > 0, and ∇; keeps `size` pairs.

        Passes over the pairs once for ⟨·, ∇⟩ and once for the direction, as often as the two loops. ⟨·, y⟩ is the
        change of ⟨·, ∇⟩.
        """
        rows = self._pairs[: self.count].flatten(0, 1)  # (2 n, P)
        products = torch.cat([_products(rows, new[2:])[:, 0], _products(new[:2], new[1:]).flatten()])
        found = products.cpu().double()  # the only wait for the device
        on_gradient, own = found[:-4].view(-1, 2), found[-4:].view(2, 2)  # own: s and y with y and ∇
        on_change = on_gradient - self._on_gradient
        if float(own[0, 0]) > LEAST_CURVATURE:
            slot = self._insert(new[:2], size)
            on_change, on_gradient = (
                _with_row(x, slot, o) for x, o in zip((on_change, on_gradient), own.T, strict=True)
            )
            self._inner[0, :, slot] = on_change[:, 0]
            self._inner[1, :, slot] = self._inner[1, slot, :] = on_change[:, 1]
            self.scale = float(own[0, 0] / own[1, 0])
        self._on_gradient = on_gradient
        weights = self._weights().flatten().to(accumulation_dtype(new.dtype)).to(new.device)
        made = _combination(weights, self._pairs[: self.count].flatten(0, 1))
        return made.sub_(new[2], alpha=self.scale).to(new.dtype)

    def _insert(self, pair: Tensor, size: int) -> int:
        """Stores the pair at the end of the history, or in place of the oldest if it is full; returns its position."""
        if self.count == size:
            slot, self.oldest = self.oldest, (self.oldest + 1) % size
        else:
            slot, self.count = self.count, self.count + 1
            if self.count > len(self._pairs):
                larger = pair.new_empty(min(max(2 * slot, 4), size), *pair.shape)
                larger[:slot] = self._pairs
                self._pairs = larger
            self._inner = nn.functional.pad(self._inner, (0, 1, 0, 1))
        self._pairs[slot] = pair
        return slot

    def _weights(self) -> Tensor:
        """(n, 2) weights of s and y in d + scale · ∇.

        The two loops, over the pairs from new to old and back, are substitutions: U α = -⟨s, ∇⟩ for the upper triangle
        U of ⟨s_i, y_j⟩ from old to new, then Uᵀ c = diag(U) α + scale · (⟨y, ∇⟩ + ⟨y, y⟩ α).
        """
        order = (torch.arange(self.count) + self.oldest) % max(self.count, 1)
        U, changes = (matrix[order][:, order] for matrix in self._inner)
        U, (on_steps, on_changes) = U.triu(), self._on_gradient[order].T[..., None]
        alpha = torch.linalg.solve_triangular(U, -on_steps, upper=True)
        right = U.diag()[:, None] * alpha + self.scale * (on_changes + changes @ alpha)
        c = torch.linalg.solve_triangular(U.T, right, upper=False)
        found = torch.empty_like(self._on_gradient)
        found[order] = torch.cat([c, -self.scale * alpha], dim=1)
        return found


def _arrived(here: Trial, change: float, improvement: float, group: Mapping[str, Any]) -> str | None:
    """Why the search ends after a direction, or None; `change` is the largest change of a parameter."""
    tolerance = group["tolerance_change"]
    if here.largest <= group["tolerance_grad"]:
        return _small_gradient(here.largest, group)
    if change == 0:
        return "the line search failed: no step gave a smaller loss"
    if change <= tolerance:
        return f"parameters change by at most {change:.1e}, below the tolerance {tolerance:.0e}"
    if improvement < tolerance:
        return f"the loss changes by less than the tolerance {tolerance:.0e}"
    return None


def _small_gradient(largest: float, group: Mapping[str, Any]) -> str:
    return f"the gradient, at most {largest:.1e}, is below the tolerance {group['tolerance_grad']:.0e}"


def _no_descent(slope: float, group: Mapping[str, Any]) -> str:
    if not slope < 0:
        return "no curvature: the direction of L-BFGS does not descend"
    return f"the slope of L-BFGS's direction, {slope:.1e}, is below the tolerance {group['tolerance_change']:.0e}"


def _with_row(rows: Tensor, place: int, row: Tensor) -> Tensor:
    """The rows with another one at this position, or at the end."""
    made = rows.clone() if place < len(rows) else nn.functional.pad(rows, (0, 0, 0, 1))
    made[place] = row
    return made


def _products(rows: Tensor, columns: Tensor) -> Tensor:
    """(a, b) inner products of (a, P) and (b, P), in float32 for half precision."""
    wide = accumulation_dtype(rows.dtype)
    if rows.dtype == wide:
        return rows @ columns.T
    parts = zip(rows.split(CHUNK, 1), columns.split(CHUNK, 1), strict=True)
    return torch.stack([a.to(wide) @ b.to(wide).T for a, b in parts]).sum(0)


def _combination(weights: Tensor, rows: Tensor) -> Tensor:
    """(P,) Σ weights_i rows_i for (a,) and (a, P), in the precision of the weights."""
    if rows.dtype == weights.dtype:
        return (weights[None] @ rows)[0]
    return torch.cat([(weights[None] @ part.to(weights.dtype))[0] for part in rows.split(CHUNK, 1)])
