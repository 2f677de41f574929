"""SOAP: Adam in the eigenbases of Shampoo's preconditioners (arXiv 2409.11321), for many matrices at once.

Each matrix is preconditioned on its shorter side, the rank of a block or the number of parameters; its longer side may
be as large as the frame. Matrices of one shape or its transpose, from any net or block, form one stack (G, r, n), so
that a net of a thousand small ones takes no more products than one of a few large ones. Biases, whose shorter side is
one, are left to Adam.

P parameters, G matrices of one shape, r shorter and n longer side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nets.blocks import HALF


@dataclass(frozen=True)
class _Stack:
    """Matrices of one shape, in the order of `_arrange`."""

    begin: int
    count: int
    side: int
    length: int

    def of(self, vector: Tensor) -> Tensor:
        """(G, r, n) the entries of these matrices in a vector (P,)."""
        size = self.count * self.side * self.length
        return vector[self.begin : self.begin + size].view(self.count, self.side, self.length)


class SOAP(torch.optim.Optimizer):
    """Optimizes a vector of parameters that are matrices of these shapes, one after the other.

    A shape is (n,) for a bias, (m, n) for a matrix, or (G, m, n) for the matrices of G nets. The first step only
    initialises the bases: a gradient is never rotated by a basis computed from itself.
    """

    def __init__(
        self,
        vector: nn.Parameter,
        shapes: Sequence[Sequence[int]],
        lr: float = 3e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        eps: float = 1e-8,
        frequency: int = 10,
    ) -> None:
        super().__init__([vector], dict(lr=lr, betas=betas, eps=eps, frequency=frequency))
        order, self._stacks = _arrange(shapes)
        self._order = order.to(vector.device)
        self._places = torch.argsort(self._order)
        self._sizes = [stack.count * stack.side**2 for stack in self._stacks]
        self._orthonormal = BASES.get(vector.device.type, cholesky_basis)

    @property
    def small_size(self) -> int:
        """Number of entries of all statistics, which is that of all bases."""
        return sum(self._sizes)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        (group,) = self.param_groups
        (vector,) = group["params"]
        state = self.state[vector]
        gradient = vector.grad.index_select(0, self._order)
        first, second = group["betas"]
        if not state:
            small = vector.new_zeros(self.small_size)
            state |= {"step": 0, "moment": torch.zeros_like(gradient), "square": torch.zeros_like(gradient)}
            state |= {"statistics": small, "bases": small.clone()}
            self._observe(state, gradient, second)
            self._find_bases(state)
            return
        state["step"] += 1
        state["moment"].lerp_(gradient, 1 - first)
        state["square"].lerp_(self._turned(state, gradient).square_(), 1 - second)
        direction = self._turned(state, state["moment"]).div_(state["square"].sqrt().add_(group["eps"]))
        direction = self._turned(state, direction, back=True)
        corrections = 1 - first ** state["step"], math.sqrt(1 - second ** state["step"])
        vector.add_(direction.index_select(0, self._places), alpha=-group["lr"] * corrections[1] / corrections[0])
        self._observe(state, gradient, second)
        if state["step"] % group["frequency"] == 0:
            self._improve_bases(state)

    def _turned(self, state: dict[str, Any], vector: Tensor, back: bool = False) -> Tensor:
        """(P,) the vector in the coordinates of the bases, or back from them."""
        turned = vector.clone()
        for stack, _, basis in self._sides(state):
            stack.of(turned).copy_(_product(basis if back else basis.mT, stack.of(vector)))
        return turned

    def _observe(self, state: dict[str, Any], gradient: Tensor, beta: float) -> None:
        """Adds a gradient to the statistics of the shorter sides."""
        for stack, statistics, _ in self._sides(state):
            seen = stack.of(gradient)
            statistics.lerp_(_product(seen, seen.mT), 1 - beta)

    def _find_bases(self, state: dict[str, Any]) -> None:
        for _, statistics, basis in self._sides(state):
            # On the CPU: this happens only in the first step, and devices are slow with many small matrices.
            wide = _wide(statistics).cpu()
            if not torch.isfinite(wide).all():  # squares overflow: the step will not be finite either
                wide = torch.eye(wide.shape[-1], dtype=wide.dtype).expand_as(wide)
            vectors = torch.linalg.eigh(wide).eigenvectors
            basis.copy_(vectors.flip(-1))  # the largest eigenvalue first

    def _improve_bases(self, state: dict[str, Any]) -> None:
        """One sorted step of the power method; the second moments move with their directions."""
        for stack, statistics, basis in self._sides(state):
            image = _product(statistics, basis)
            order = (basis * image).sum(-2, keepdim=True).argsort(-1, descending=True)  # (G, 1, r)
            square = stack.of(state["square"])
            square.copy_(square.gather(-2, order.mT.expand_as(square)))
            sorted_by = order.expand_as(image)
            basis.copy_(self._orthonormal(_wide(image.gather(-1, sorted_by)), basis.gather(-1, sorted_by)))

    def _sides(self, state: dict[str, Any]) -> Iterator[tuple[_Stack, Tensor, Tensor]]:
        """Each stack with its statistics and bases (G, r, r)."""
        pieces = (state[name].split(self._sizes) for name in ("statistics", "bases"))
        for stack, *parts in zip(self._stacks, *pieces, strict=True):
            statistics, basis = (part.view(stack.count, stack.side, stack.side) for part in parts)
            yield stack, statistics, basis


def _arrange(shapes: Sequence[Sequence[int]]) -> tuple[Tensor, tuple[_Stack, ...]]:
    """(P,) the order of a vector's entries with biases first, then the stacks; and the stacks."""
    plain, by_shape, begin = [], dict[tuple[int, int], list[Tensor]](), 0
    for shape in shapes:
        places = torch.arange(begin, begin + math.prod(shape)).view(tuple(shape))
        begin += places.numel()
        if places.ndim < 2 or min(shape[-2:]) <= 1:
            plain.append(places.reshape(-1))
            continue
        lying = places if shape[-2] < shape[-1] else places.mT
        side, length = lying.shape[-2:]
        by_shape.setdefault((side, length), []).append(lying.reshape(-1, side, length))
    stacks, begin = [], sum(map(len, plain))
    for (side, length), matrices in by_shape.items():
        stacks.append(_Stack(begin, sum(map(len, matrices)), side, length))
        begin += stacks[-1].count * side * length
    parts = [*plain, *(m for matrices in by_shape.values() for m in matrices)]
    return torch.cat([part.reshape(-1) for part in parts]), tuple(stacks)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a b, with sums in float32 for half precision."""
    return torch.bmm(_wide(a), _wide(b)).to(a.dtype)


def _wide(a: Tensor) -> Tensor:
    return a.float() if a.dtype in HALF else a


Orthonormal = Callable[[Tensor, Tensor], Tensor]
"""Matrices (G, r, r) and fallback bases to orthonormal bases, whose first k vectors span the first k columns."""


def householder_basis(a: Tensor, before: Tensor) -> Tensor:
    """QR by LAPACK on the CPU, which never fails."""
    return torch.linalg.qr(a.cpu()).Q.to(a.device)


def cholesky_basis(a: Tensor, before: Tensor) -> Tensor:
    """Cholesky factors of AᵀA, for all matrices at once and without waiting, where QR takes them one by one.

    Uses float64 and normalised columns. The first rounds add a small multiple of the identity, so that factors exist
    for nearly dependent columns; the last rounds without it make the columns orthonormal to rounding. Where this
    fails, as for a zero matrix, the previous basis remains.
    """
    rows, eps = a.shape[-1], torch.finfo(torch.float64).eps
    q, unit = a.double(), torch.eye(a.shape[-1], dtype=torch.float64, device=a.device)
    size = torch.linalg.vector_norm(q, dim=-2, keepdim=True)
    q = q / torch.where(size > 0, size, 1.0)
    shift = 11 * rows * (2 * rows + 1) * eps
    for extra in (shift, shift, 0.0, 0.0):
        factor = torch.linalg.cholesky_ex(q.mT @ q + extra * unit).L
        q = torch.linalg.solve_triangular(factor.mT, q, upper=True, left=False)
    off = (q.mT @ q - unit).abs().amax((-2, -1), keepdim=True)
    return torch.where(off < 100 * rows * eps, q, before.double()).to(a.dtype)  # NaN compares false


BASES: dict[str, Orthonormal] = {"cpu": householder_basis, "mps": householder_basis}
"""By device type; other types use `cholesky_basis`."""
