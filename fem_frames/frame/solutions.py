"""ReferenceSolutions: finite element solutions for a batch of y, saved and loaded without DOLFINx.

B samples, N points of the finest mesh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fem_frames.files import load_arrays, save_arrays
from fem_frames.mesh.geometry import Floats

KIND, VERSION = "reference solutions", 2  # 2: points numbered by the cells they lie in


@dataclass(frozen=True, eq=False)
class ReferenceSolutions:
    """Finite element solutions for a batch of parameters: nodal values at all points of the finest mesh.

    See docs/problems.md.
    """

    y: Floats  # (B, p)
    fields: Mapping[str, Floats]  # by name, "u" and for (LS) "sigma": (B, N)
    loss: Floats  # (B,) energy, or for (LS) the squared residual: the least a surrogate can reach
    record: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def stack(
        cls, y: Floats, results: list[tuple[dict[str, Floats], float]], record: Mapping[str, Any]
    ) -> ReferenceSolutions:
        """One batch from the results of `ReferenceSolver` for each y."""
        fields = {name: np.stack([values[name] for values, _ in results]) for name in results[0][0]}
        return cls(y, fields, np.array([loss for _, loss in results]), record)

    @property
    def u(self) -> Floats:
        """(B, N) nodal values of the first field."""
        return next(iter(self.fields.values()))

    def save(self, path: str | Path) -> None:
        """Writes one .npz file, either completely or not at all."""
        arrays = {"y": self.y, "loss": self.loss, **{f"field.{name}": values for name, values in self.fields.items()}}
        save_arrays(path, KIND, VERSION, arrays, dict(self.record), compress=False)

    @classmethod
    def load(cls, path: str | Path) -> ReferenceSolutions:
        """Reads a file of `save`; refuses anything else."""
        arrays, record = load_arrays(path, KIND, VERSION)
        fields = {name.removeprefix("field."): values for name, values in arrays.items() if name.startswith("field.")}
        if not {"y", "loss"} <= set(arrays) or not fields:
            raise ValueError(f"{path} lacks y, loss or fields: it is not a complete file of reference solutions")
        shapes = {name: 1 if name == "loss" else 2 for name in arrays}
        if any(a.dtype != np.float64 or a.ndim != shapes[name] for name, a in arrays.items()):
            raise ValueError(f"{path} holds arrays of other types or shapes than reference solutions: it is damaged")
        if not all(np.isfinite(a).all() for a in arrays.values()):
            raise ValueError(f"{path} has values that are not finite: it is damaged")
        if {len(a) for a in arrays.values()} != {len(arrays["y"])} or not isinstance(record, dict):
            raise ValueError(f"{path} holds arrays of different length, or no record: it is damaged")
        return cls(arrays["y"], fields, arrays["loss"], record)
