"""Motions of fields: constants, and small rotations of vectors with d components. They are affine functions of x.

r motions, q of which all others are combinations, N points, K cells, d dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fem_frames.frame.discretisation import DiscreteField
from fem_frames.frame.elements import P1
from fem_frames.frame.fields import vector_name
from fem_frames.mesh.geometry import Floats

HELD = 1e-9  # of a motion's size: larger values at given points are not zero


@dataclass(frozen=True, eq=False)
class Motions:
    """Combinations of the constants of some fields and the rotations of vectors, about the centre of the points."""

    constants: tuple[str, ...]
    """The fields that each have a constant."""
    rotations: tuple[tuple[str, str], ...]
    """Pairs of components i > j: -(x_j - c_j) of the first and x_i - c_i of the second, divided by the length."""
    centre: Floats  # (d,)
    length: float
    weights: Floats  # (r, q)

    @classmethod
    def of_fields(cls, points: Floats, names: Sequence[str], length: float) -> Motions:
        """All motions of fields with values at points."""
        d, rotations = points.shape[1], list[tuple[str, str]]()
        for base in dict.fromkeys(filter(None, map(vector_name, names))):
            own = [name for name in names if vector_name(name) == base]
            if len(own) == d:
                rotations += [(own[i], own[j]) for i in range(d) for j in range(i)]
        centre = 0.5 * (points.min(axis=0) + points.max(axis=0))
        return cls(tuple(names), tuple(rotations), centre, length, np.eye(len(names) + len(rotations)))

    def __len__(self) -> int:
        return len(self.weights)

    def combined(self, weights: Floats) -> Motions:
        """The motions with these weights (s, r)."""
        return Motions(self.constants, self.rotations, self.centre, self.length, weights @ self.weights)

    def value(self, name: str) -> Floats:
        """(r,) values of a field at the centre."""
        return np.asarray(self.weights[:, self.constants.index(name)])

    def gradient(self, name: str) -> Floats:
        """(r, d) its gradient."""
        found = np.zeros((len(self), len(self.centre)))
        for number, (first, second) in enumerate(self.rotations, start=len(self.constants)):
            i, j = _component(first), _component(second)
            if name == first:
                found[:, j] -= self.weights[:, number] / self.length
            if name == second:
                found[:, i] += self.weights[:, number] / self.length
        return found

    def at(self, name: str, points: Floats) -> Floats:
        """(r, n) its values at points (n, d)."""
        return self.value(name)[:, None] + self.gradient(name) @ (points - self.centre).T

    def unseen(self, matrix: Floats, tol: float) -> Motions:
        """The combinations that a matrix (n, r) maps to less than tol."""
        if not len(self):
            return self
        _, sizes, rows = np.linalg.svd(np.vstack([matrix, np.zeros((len(self),) * 2)]), full_matrices=False)
        return self.combined(rows[sizes <= tol])

    def texts(self) -> list[str]:
        """What each motion of a basis does, translations first: u may still be moved along (0, 1)."""
        n = len(self.constants)
        left, sizes, _ = np.linalg.svd(self.weights[:, n:])
        turning = int((sizes > HELD).sum())
        turned, moved = left.T[:turning] @ self.weights, left.T[turning:] @ self.weights
        turned = np.roll(_reduced(np.roll(turned, len(self.rotations), axis=1)), -len(self.rotations), axis=1)
        return [*map(self._translation, _reduced(moved[:, :n])), *map(self._rotation, turned)]

    def _translation(self, weights: Floats) -> str:
        involved = [name for name, weight in zip(self.constants, weights, strict=True) if weight]
        bases = {vector_name(name) for name in involved}
        (base,) = bases if len(bases) == 1 else (None,)
        if base is not None:
            whole = [w for name, w in zip(self.constants, weights, strict=True) if vector_name(name) == base]
            return f"{base} may still be moved along {_numbers(whole)}"
        if len(involved) == 1:
            return f"{involved[0]} may still be changed by a constant"
        return f"{' and '.join(involved)} may still be changed by {_numbers([w for w in weights if w])} together"

    def _rotation(self, weights: Floats) -> str:
        motion = Motions(self.constants, self.rotations, self.centre, self.length, weights[None])
        turned = [pair for pair, weight in zip(self.rotations, weights[len(self.constants) :], strict=True) if weight]
        base = vector_name(turned[0][0])
        own = [name for name in self.constants if vector_name(name) == base]
        value = np.array([motion.value(name)[0] for name in own])
        gradient = np.array([motion.gradient(name)[0] for name in own])
        fixed = self.centre - np.linalg.pinv(gradient) @ value  # where the motion is zero, or along the axis
        if len(own) == 2:
            return f"{base} may still be turned about {_numbers(fixed)}"
        axis = np.array(
            [gradient[2, 1] - gradient[1, 2], gradient[0, 2] - gradient[2, 0], gradient[1, 0] - gradient[0, 1]]
        )
        axis = axis / axis[np.argmax(np.abs(axis))]
        return f"{base} may still be turned about the axis through {_numbers(fixed)} along {_numbers(axis)}"


def motions_left_free(points: Floats, fields: Sequence[DiscreteField], length: float) -> Motions:
    """The motions of fields with values at points that are zero wherever values are given on the finest mesh."""
    fixed = {f.name: f.fixed[-1] for f in fields if isinstance(f.element, P1)}
    candidates = Motions.of_fields(points, list(fixed), length)
    given = [candidates.at(name, points[mask]).T for name, mask in fixed.items()]
    return candidates.unseen(np.concatenate([np.zeros((0, len(candidates))), *given]), HELD)


def _component(name: str) -> int:
    """The number of a component: 1 of u[1]."""
    return int(name[name.rindex("[") + 1 : -1])


def _reduced(rows: Floats) -> Floats:
    """The reduced echelon form of rows that are linearly independent, with exact zeros."""
    rows, done = rows.copy(), 0
    for column in range(rows.shape[1]):
        if done == len(rows):
            break
        pivot = done + int(np.argmax(np.abs(rows[done:, column])))
        if abs(rows[pivot, column]) < HELD:
            continue
        rows[[done, pivot]] = rows[[pivot, done]]
        rows[done] /= rows[done, column]
        others = np.arange(len(rows)) != done
        rows[others] -= rows[others, column, None] * rows[done]
        done += 1
    return np.where(np.abs(rows) < 10 * HELD, 0.0, rows)


def _numbers(values: npt.ArrayLike) -> str:
    """(0, 0.5)"""
    return f"({', '.join(f'{round(float(value), 6) + 0.0:g}' for value in np.asarray(values))})"
