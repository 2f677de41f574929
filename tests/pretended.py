"""A device that is pretended: its tensors say that they are on it, their numbers are computed on the CPU.

What it tests is what a GPU would refuse or slow down. Tensors of two devices in one operation raise, as they do with
CUDA, and `events` counts what costs time there: copies between the devices, and waits, when the CPU asks for a number
that the device has to compute first. Everything runs the kernels of the CPU, so results are those of the CPU up to
rounding; what CUDA's own kernels would give it cannot say.
"""

import collections
import contextlib

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

DEVICE = "pretend"
ACROSS = ("copy_", "_to_copy", "_foreach_copy_", "index", "index_put_", "_index_put_impl_")
"""Operations that CUDA lets have tensors of the CPU among their arguments; they are copied first."""
READING = ("_local_scalar_dense", "equal", "nonzero", "masked_select", "_linalg_check_errors", "_linalg_eigh")
"""Operations that give the CPU a number, or need one to know the shape of what they give."""
events: collections.Counter[str] = collections.Counter()


class Pretended(torch.Tensor):
    """A tensor on the device; `raw` has its numbers."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    data = property(lambda self: self.detach(), lambda self, new: setattr(self, "raw", new.raw))

    @staticmethod
    def __new__(cls, raw):
        place = dict(strides=raw.stride(), storage_offset=raw.storage_offset(), device=f"{DEVICE}:0")
        made = torch.Tensor._make_wrapper_subclass(cls, raw.shape, dtype=raw.dtype, **place)
        made.raw = raw
        return made

    def tolist(self):
        return self.cpu().tolist()

    def __reduce_ex__(self, protocol):  # files hold the numbers, as those of other devices do
        return self.raw.detach().__reduce_ex__(protocol)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _dispatch(func, args, kwargs or {})


class Pretend(TorchDispatchMode):
    """While it is entered, tensors may be made on the device."""

    def __enter__(self):
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(1.0, device=…) is dispatched too
        return super().__enter__()

    def __exit__(self, *error):
        torch._C._set_only_lift_cpu_tensors(False)
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _dispatch(func, args, kwargs or {})


def _dispatch(func, args, kwargs):
    """The operation on the raw tensors; the result is on the device if an argument or `device` says so."""
    name, device = func.overloadpacket.__name__, kwargs.get("device")
    tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    here = [t for t in tensors if isinstance(t, Pretended)]
    elsewhere = [t for t in tensors if not isinstance(t, Pretended)]
    if here and name not in ACROSS and any(t.ndim for t in elsewhere):  # numbers may come from the CPU
        raise RuntimeError(f"tensors on {DEVICE} and on the CPU in {func}")
    result_here = bool(here) if device is None else torch.device(device).type == DEVICE
    _count(name, here, elsewhere, result_here, args)
    raw_args, raw_kwargs = pytree.tree_map_only(Pretended, lambda t: t.raw, (args, dict(kwargs)))
    if device is not None:
        raw_kwargs["device"] = "cpu"
    if name == "_efficientzerotensor":  # tangents without memory
        func = torch.ops.aten.zeros.default
    found = func(*raw_args, **raw_kwargs)
    if not result_here:
        return found
    found = pytree.tree_map_only(torch.Tensor, Pretended, found)
    return return_and_correct_aliasing(func, args, kwargs, found) if here else found


def _count(name, here, elsewhere, result_here, args):
    """Copies to the device and from it; the latter wait, as reading does, and as masks do."""
    both = bool(here) and bool(elsewhere)
    first = pytree.tree_leaves(args[:1])
    to_cpu = (name == "_to_copy" and here and not result_here) or (
        name in ("copy_", "_foreach_copy_") and both and not isinstance(first[0], Pretended)
    )
    to_device = (name == "_to_copy" and not here and result_here) or (name in ACROSS and both and not to_cpu)
    masked = name in ("index", "index_put_", "_index_put_impl_") and any(
        t is not None and t.dtype == torch.bool for t in args[1]
    )
    events["copies"] += bool(to_cpu or to_device)
    events["waits"] += bool(to_cpu or (here and (name in READING or masked)))


# As soon as tests are collected: the first backward pass of a process counts its devices, once for all.
KNOWN = hasattr(backend_registration, "_setup_privateuseone_for_python_backend")
if KNOWN and torch._C._get_privateuse1_backend_name() != DEVICE:
    backend_registration._setup_privateuseone_for_python_backend(DEVICE)


def require():
    """Skips the test where torch has no devices written in Python."""
    if not KNOWN:
        pytest.skip("this torch has no devices written in Python")


@contextlib.contextmanager
def on(device):
    """Where `device` is the pretended one, tensors may be made on it inside; elsewhere nothing changes."""
    with Pretend() if device == DEVICE else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def counted():
    """The events inside, as a counter that is filled when it ends."""
    found = collections.Counter()
    before = events.copy()
    yield found
    found.update(events - before)
