"""Decides when values of tensors may be read: not while torch traces, and not inside a training step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.autograd import forward_ad


def is_plain(x: Tensor) -> bool:
    """Whether the values of x may be read: not inside `unchecked`, and not while torch compiles or transforms x."""
    return not is_traced(x) and _UNSEEN.get() is None


def unseen(x: Tensor) -> list[Tensor] | None:
    """The list that collects tests of x inside `unchecked`; None elsewhere, and while torch traces."""
    return None if is_traced(x) else _UNSEEN.get()


def is_traced(x: Tensor) -> bool:
    """Whether torch compiles or transforms operations on x, as by `torch.func`."""
    return torch.compiler.is_compiling() or bool(torch._C._functorch.is_functorch_wrapped_tensor(x))


def is_transforming() -> bool:
    """Whether torch.func or forward differentiation is at work: results may have no memory to read then."""
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def is_recorded(x: Tensor) -> bool:
    """Whether torch traces or differentiates operations on x itself."""
    return is_traced(x) or (torch.is_grad_enabled() and x.requires_grad)


def is_watched(x: Tensor) -> bool:
    """Whether torch traces, differentiates or maps over operations on x, or on what they are combined with."""
    return is_recorded(x) or is_transforming()


_UNSEEN: ContextVar[list[Tensor] | None] = ContextVar("unseen", default=None)


@contextlib.contextmanager
def unchecked() -> Iterator[list[Tensor]]:
    """Postpones checks of values, so that a training step need not wait for the device.

    Yields a list that collects the postponed tests: tensors that are true or false, to be read later.
    """
    tests: list[Tensor] = []
    token = _UNSEEN.set(tests)
    try:
        yield tests
    finally:
        _UNSEEN.reset(token)
