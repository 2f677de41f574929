"""Makes the parts of a run from its configuration, or loads them from its folder if they exist."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fem_frames.files import one_line
from fem_frames.formulations.formulation import Formulation
from fem_frames.formulations.registry import formulation_class
from fem_frames.frame.arrays import FrameArrays
from fem_frames.frame.level_matrices import state_size
from fem_frames.frame.solutions import ReferenceSolutions
from fem_frames.frame.sparse import SparseMatrix
from fem_frames.memory import check_memory
from fem_frames.mesh.geometry import Floats
from fem_frames.messages import option
from fem_frames.operators.checking import unchecked
from fem_frames.operators.frame import DTYPES, check_device
from fem_frames.operators.products import SparseProduct
from fem_frames.problem.definition import Problem
from fem_frames.problem.loading import make_problem, recorded_problem, with_programs
from nets import NETS
from nets.frame_net import FrameNet
from nets.own import OwnNet
from training.configuration import MULTIGRID, OWN, Configuration, Resolved
from training.description import describe_net
from training.losses import Batch, FunctionLoss, Loss, loss_kind, make_loss
from training.net_outputs import level_sizes
from training.own import OwnParts
from training.references import check_reference, described, reference_solutions
from training.run import store
from training.run.distributed import World
from training.samples import FixedSamples, FreshSamples, Samples, SobolSamples
from training.surrogate import FRAME, Surrogate

Say = Callable[[str], None]


def choose_device(name: str | None) -> torch.device:
    """The given device, or the best available one; under torchrun every process has its own GPU.

    Under torchrun, too few GPUs or a GPU that does not work are an error: the CPU would silently be slower.
    """
    rank = os.environ.get("LOCAL_RANK")
    gpus = torch.cuda.device_count()  # initialises none of them
    if name == "cuda" or (name is None and gpus):
        own = "cuda" if rank is None else f"cuda:{rank}"
        if rank is not None:
            _check_processes(gpus)
        fault = None if name == "cuda" else _fault(own)
        if fault is None:
            return check_device(own)
        if rank is not None:
            raise ValueError(f"{own} cannot be used: {fault}; choose {option('device', 'cpu')} to train without it")
        warnings.warn(f"there is a GPU, but it cannot be used: {fault}; the CPU is used", stacklevel=2)
    if name is None:
        name = "mps" if torch.backends.mps.is_available() and _fault("mps") is None else "cpu"
    return check_device(name)


def _check_processes(gpus: int) -> None:
    """Raises a ValueError in all processes of this machine unless there is a GPU for each."""
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if 0 < gpus < processes:
        raise ValueError(
            f"torchrun started {processes} processes on this machine, which has {gpus} GPU{'s' * (gpus > 1)}: give "
            f"it --nproc-per-node {gpus}, or train with {option('device', 'cpu')}"
        )


def _fault(device: str) -> str | None:
    """Tries the sparse product of frames on a device; returns the error, or None if the product is correct."""
    rows = SparseMatrix.from_entries([0, 1], [1, 0], [1.0, 2.0], (2, 2))
    try:
        product = SparseProduct(rows, torch.float32, torch.device(device))(torch.eye(2, device=device)).cpu()
    except (RuntimeError, NotImplementedError, TypeError, AssertionError) as error:
        return str(error).splitlines()[0]
    right = product.tolist() == [[0.0, 1.0], [2.0, 0.0]]
    return None if right else f"a product that should be [[0, 1], [2, 0]] is {product.tolist()}"


def problem_of(c: Configuration, folder: Path) -> Problem:
    """The problem that a configuration names, or the problem of its frame."""
    record: Mapping[str, Any] = {}
    if c.frame is not None:
        own = folder / FRAME  # the original file may have moved since
        record = FrameArrays.record_of(own if own.exists() else c.frame)
    if c.problem:
        try:
            problem = with_programs(make_problem(c.problem, **c.options), record.get("equation"))
        except ValueError as error:
            hint = "; if it was made in Python, give it: train(…, problem=…)" if (folder / FRAME).exists() else ""
            raise ValueError(f"{error}{hint}") from error
        refinement = c.refinement or record.get("refinement", problem.refinement)
        return problem if refinement == problem.refinement else replace(problem, refinement=refinement)
    try:
        return recorded_problem(record)
    except ValueError as error:
        raise ValueError(
            f"{c.frame} is a frame of the problem {record.get('problem')!r}, which cannot be made: {error}"
        ) from error


def make_frame(c: Configuration, problem: Problem, folder: Path, world: World) -> FrameArrays:
    """The frame of the run; the first process exports it or copies it into the run's folder."""
    path = folder / FRAME
    if world.leads and not path.exists():
        if c.frame:
            arrays = FrameArrays.load(c.frame)
        else:
            from fem_frames.frame.export import export_frame
            from fem_frames.mesh.hierarchy import MeshHierarchy

            assert c.levels is not None
            formulation_class(c.formulation or "energy")  # the problem's file may define it
            hierarchy = MeshHierarchy.from_problem(problem, c.levels)
            arrays = export_frame(hierarchy, problem, c.formulation or "energy", c.first_level, c.coarse)
        if c.formulation not in (None, arrays.formulation):
            raise ValueError(f"{c.frame} is a frame for {arrays.formulation}, not for {c.formulation}")
        arrays.save(path)
    world.wait()
    return FrameArrays.load(path)


def check_sizes(c: Resolved, arrays: FrameArrays, problem: Problem) -> None:
    """Raises a ValueError before net, batch or test set are made if they need more memory than there is."""
    size = DTYPES[c.precision].itemsize
    if c.net != OWN:
        net = describe_net(c, problem)
        count, modules = net.count(arrays), c.blocks * sum(map(len, level_sizes(arrays, net.nodal).values()))
        # Parameters, gradient and the optimizer's state, and Python objects for every block.
        needed = 4.0 * count * size + 1e4 * modules
        check_memory(f"a net of {count:.3g} parameters", needed, "use fewer blocks or levels")
    states = len(arrays.volumes) * state_size(arrays)
    activations = (2 * c.blocks + 2) * arrays.frame_size + 3 * states
    check_memory(f"a batch of {c.batch} samples", float(c.batch) * activations * size, "use a smaller batch")
    for name, samples in (("test_samples", c.test_samples), ("training_samples", c.training_samples or 0)):
        values = sum(len(f.lift[-1]) for f in arrays.fields)
        check_memory(f"{name} = {samples}", 8.0 * samples * values, f"use fewer {name}")


def make_samples(c: Resolved, problem: Problem, world: World) -> Samples:
    """The training samples."""
    drawn = FreshSamples.BLOCK if c.sampling == "fresh" else 1  # batches at a time
    for name, count in (("batch", drawn * c.batch), ("test_samples", c.test_samples)):
        needed = 8.0 * count * problem.parameters.dimension
        check_memory(f"{name} = {getattr(c, name)}", needed, f"use a smaller {name}")
    if c.batch < world.size:
        raise ValueError(f"batch is {c.batch}, but there are {world.size} processes: give each one sample at least")
    if c.sampling == "fixed":
        assert c.training_samples is not None
        last = c.training_samples % c.batch
        if last and last < world.size:
            raise ValueError(
                f"the last batch of {c.training_samples} samples has {last}, fewer than there are processes: "
                "choose a batch that divides training_samples"
            )
        return FixedSamples(problem.parameters, c.training_samples, c.batch, c.sample_seed)
    kind = SobolSamples if c.sampling == "sobol" else FreshSamples
    return kind(problem.parameters, c.batch, c.steps_per_epoch, c.sample_seed)


def make_run_loss(
    c: Configuration,
    parts: OwnParts,
    formulation: Formulation,
    samples: Samples,
    folder: Path,
    world: World,
    say: Say,
) -> Loss:
    """The loss of the run; a supervised loss needs the training set solved first."""
    first = torch.as_tensor(samples.batch(0)[0][:4]).to(formulation.frame.device, formulation.wide)
    formulation.check_density(first)
    reference = None
    if (parts.loss_kind or loss_kind(c.loss)).supervised:
        assert isinstance(samples, FixedSamples)
        path = folder / store.TRAINING
        if world.leads:
            solved(c, path, samples.y, "training set", formulation.to(torch.float64, "cpu"), say)
        world.wait()
        reference = ReferenceSolutions.load(path)
    if parts.loss is not None:
        return parts.make_loss(formulation, reference)
    return make_loss(c.loss, formulation, reference)


def make_surrogate(
    c: Resolved, parts: OwnParts, loss: Loss, problem: Problem, world: World, resumed: bool
) -> Surrogate:
    """The surrogate before training, with a net that fits the loss.

    Its weights are random, or come from the user's module or the run to start from.
    """
    frame = loss.formulation.frame
    arrays, description = frame.arrays, describe_net(c, problem, loss.nodal)
    net = description.build(arrays, frame.device, c.net_seed, parts.net, frame, problem)
    _try(net, loss, c, problem)
    if isinstance(net, OwnNet):
        world.take_first(net)
        description = replace(description, module=net.module_name)
    if c.start_from is not None and not resumed:
        other = Surrogate.load(c.start_from, problem, net=parts.net)
        theirs, ours = ({**asdict(d), "precision": None} for d in (other.description, description))
        theirs["level_sizes"], ours["level_sizes"] = other.net.level_sizes, net.level_sizes
        differ = [f"{name} {value} instead of {ours[name]}" for name, value in theirs.items() if value != ours[name]]
        if differ:
            raise ValueError(f"the net in {c.start_from} is another one ({', '.join(differ)}): use the settings it has")
        net.load_state_dict(other.net.state_dict())
    return Surrogate(net, description, arrays, problem, {"configuration": c.record()})


def _try(net: FrameNet, loss: Loss, c: Configuration, problem: Problem) -> None:
    """Raises a ValueError if a user's net or loss fails on two samples.

    The net is in evaluation mode, so that its counts and averages begin with the first training step.
    """
    if not isinstance(net, OwnNet) and not isinstance(loss, FunctionLoss):
        return
    y = torch.as_tensor(problem.parameters.sample(2, c.test_seed)).to(loss.formulation.wide)
    y = y.to(loss.formulation.frame.device)
    net.eval()
    with torch.enable_grad():
        w = net(y)
    if isinstance(net, OwnNet) and not w.requires_grad:
        raise ValueError(f"the answer of your net {net.module_name} does not depend on its parameters through autograd")
    if isinstance(loss, FunctionLoss):
        with unchecked():
            loss.with_gradient(w, Batch(y))
    net.train()
    if isinstance(net, OwnNet) and c.optimizer == "ngd":
        parameters = {name: p.detach() for name, p in net.named_parameters() if p.requires_grad}
        others = {name: value.clone() for name, value in net.named_buffers()}
        try:
            torch.func.jvp(
                lambda p: torch.func.functional_call(net, {**p, **others}, (y,)), (parameters,), (parameters,)
            )
        except Exception as error:  # such as batch norm, which updates its averages
            raise ValueError(
                f"the optimizer ngd needs derivatives that your net {net.module_name} does not have: use adam, soap or "
                f"lbfgs ({one_line(error)})"
            ) from error


def hint_of_start(c: Configuration, arrays: FrameArrays, problem: Problem, nodal: bool) -> str | None:
    """Advice if a prolonged net starts on a level with fewer degrees of freedom than parameters; None otherwise."""
    if c.net in (OWN, MULTIGRID) or not NETS[c.net].prolonged or nodal:
        return None
    p, first, sizes = problem.parameters.dimension, arrays.lowest_level, level_sizes(arrays, nodal=False)
    start = first if c.start_level is None else c.start_level
    # For each family, its number of functions on the first level from `start` that has any.
    begins = {name: next(filter(None, own[start - first :])) for name, own in sizes.items()}
    name = min(begins, key=lambda name: begins[name])
    levels = [min(level) for level in zip(*sizes.values(), strict=True)]
    better = next((first + j for j, size in enumerate(levels) if size >= p), arrays.finest_level)
    if begins[name] >= p or better <= start:
        return None
    return (
        f"level {start} has {begins[name]} degree{'s' * (begins[name] > 1)} of freedom of {name} for {p} parameters; "
        f"try {option('start_level', better)}"
    )


def solved(c: Configuration, path: Path, y: Floats, name: str, exact: Formulation, say: Say) -> ReferenceSolutions:
    """The reference solutions for y (B, p) from the file, solved first if it does not exist; `exact` is in float64."""
    if not path.exists():
        start = time.perf_counter()
        made = reference_solutions(exact, y, references=c.references)
        made.save(path)
        seconds = time.perf_counter() - start
        say(f"{name}: {len(y)} reference solutions by {described(made.record)} in {seconds:.1f} s")
    found = ReferenceSolutions.load(path)
    if not np.array_equal(found.y, y):
        raise ValueError(
            f"{path} holds solutions for other samples than those of this problem; is it the problem of the run? "
            "Otherwise remove the file: it will be made again"
        )
    check_reference(exact, found)
    return found
