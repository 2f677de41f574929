"""Everything runs on a device other than the CPU, gives the numbers of the CPU there, and waits no more than it must.

The device is pretended, `pretended.py` says how: what runs on CUDA's own kernels has to be seen on a GPU.
"""

import numpy as np
import pytest
import torch
from frames import case, samples
from pretended import DEVICE, Pretended, counted, on, require

from fem_frames import Frame, make_formulation, solve
from fem_frames.commands import main
from fem_frames.studies.conditioning import condition_rows
from fem_frames.studies.iterations import iteration_rows
from training.configuration import Configuration
from training.description import describe_net
from training.losses import make_loss
from training.metrics import evaluate
from training.objective import Objective
from training.optimizers.steppers import make_stepper
from training.precision import MasterWeights, Weights
from training.references import reference_solutions
from training.registry import OPTIMIZERS
from training.run.trainer import train
from training.surrogate import Surrogate

pytestmark = pytest.mark.serial
FIXED = dict(training_samples=8)
RUNS = {
    **{name: dict(optimizer=name) for name in ("adam", "sgd")},
    "soap": dict(optimizer="soap", epochs=12),  # past its first change of bases
    **{name: dict(optimizer=name, epochs=2) | FIXED for name in ("lbfgs", "ngd")},
    **{name: dict(precision=name) for name in ("float16", "bfloat16", "float32")},
    "soap, float32": dict(optimizer="soap", epochs=12, precision="float32"),
    "lbfgs, float32": dict(optimizer="lbfgs", epochs=1, precision="float32") | FIXED,
    **{name: dict(net=name) for name in ("separate", "separate-frame")},
    **{name: dict(loss=name) for name in ("bpx", "nodal")},
    **{name: dict(loss=name) | FIXED for name in ("supervised", "supervised-nodal")},
    "mixed float16": dict(precision="float16", mixed=True),
    "mixed bfloat16": dict(precision="bfloat16", mixed=True),
    "Sobol points, in pieces": dict(sampling="sobol", micro_batch=3),
    "level decay": dict(level_decay=1.0),
}
ROUNDING = {"float16": 0.1, "bfloat16": 1e-2, "mixed float16": 1e-3, "mixed bfloat16": 1e-2, "lbfgs, float32": 1e-4}
KINDS = ["interval, LS", "interval, mixed", "square, lognormal", "square, weighted, mixed", "cube"]


@pytest.fixture(scope="module", autouse=True)
def device():
    require()


def rounding(name):
    return ROUNDING.get(name, 1e-5 if name.endswith("float32") else 1e-9)


def small(**settings):
    return Configuration(**dict(rank=2, blocks=1, batch=8, test_samples=4, precision="float64", epochs=3) | settings)


def on_both(compute):
    """What a function of the device gives on the CPU and on the pretended one."""
    found = []
    for place in ("cpu", DEVICE):
        with on(place):
            found.append(compute(place))
    return found


# ---- the device itself


def test_the_device_refuses_tensors_of_the_cpu_and_counts_copies_and_waits():
    with on(DEVICE):
        x = torch.ones(3, device=DEVICE)
        assert isinstance(x, Pretended)
        assert x.device.type == DEVICE
        with pytest.raises(RuntimeError, match=r"tensors on pretend and on the CPU in aten\.add"):
            x + torch.ones(3)
        with counted() as events:
            y = 2.0 * x + x.sum()  # neither
        assert not any(events.values())
        for waits, copies, do in (
            (1, 0, lambda: float(y.sum())),
            (1, 0, lambda: bool((y > 0).all())),
            (1, 0, lambda: torch.equal(x, y)),
            (1, 0, lambda: x[y > 0]),
            (1, 0, lambda: (y > 0).nonzero()),
            (1, 1, lambda: y.cpu()),
            (1, 1, lambda: y.tolist()),
            (1, 1, lambda: torch.zeros(3).copy_(y)),
            (0, 1, lambda: torch.zeros(3).to(DEVICE)),
            (0, 1, lambda: y.copy_(torch.zeros(3))),
            (0, 1, lambda: x[torch.tensor([0, 2])]),
            (1, 0, lambda: torch.linalg.eigh(torch.eye(2, device=DEVICE))),
        ):
            with counted() as events:
                do()
            assert (events["waits"], events["copies"]) == (waits, copies)


# ---- the same numbers


@pytest.mark.parametrize("name", RUNS)
def test_a_run_on_a_device_is_the_one_on_the_cpu(tmp_path, frame_file, name):
    def run(place):
        result = train(small(frame=str(frame_file), device=place, **RUNS[name]), tmp_path / place, quiet=True)
        assert result["device"].startswith(place)
        return [result["loss"], result["test"]["mre"], result["steps"]]

    cpu, there = on_both(run)
    assert there == pytest.approx(cpu, rel=rounding(name))


def test_a_run_goes_on_where_another_device_stopped(tmp_path, frame_file):
    """Through a checkpoint of every optimizer; the second half is then the CPU's up to rounding."""
    for name in OPTIMIZERS:
        settings = dict(frame=str(frame_file), optimizer=name, checkpoint_every=2, evaluate_every=10)
        settings |= FIXED if name in ("lbfgs", "ngd") else {}
        whole = train(small(**settings, epochs=4, device="cpu"), tmp_path / f"{name}-whole", quiet=True)
        with on(DEVICE):
            train(small(**settings, epochs=4, device=DEVICE), tmp_path / name, quiet=True)
        for path in (tmp_path / name).glob("checkpoints/step-000000004.pt"):
            path.unlink()
        (tmp_path / name / "result.json").unlink()
        moved = train(small(**settings, epochs=4, device="cpu"), tmp_path / name, resume=True, quiet=True)
        assert moved["device"] == "cpu"
        assert moved["loss"] == pytest.approx(whole["loss"], rel=1e-9)


@pytest.mark.parametrize("precision", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_answers_and_bounds_on_a_device_are_those_of_the_cpu(kind, precision, monkeypatch):
    monkeypatch.setenv("FEM_FRAMES_KERNELS", "torch")  # exact solutions leave rounding errors, which differ otherwise
    problem, arrays = case(kind)
    description = describe_net(small(problem="x", levels=1, precision=precision).resolved(), problem)
    y = problem.parameters.sample(3, 0)
    first = Surrogate(description.build(arrays, torch.device("cpu"), 1), description, arrays, problem)
    tol = float(first.error_bound(y).max()) * (0.2 if arrays.formulation == "energy" else 0.8)

    def ask(place):
        surrogate = first.to(device=place)
        assert surrogate.device.type == place
        assert surrogate.description.precision == precision
        improved = surrogate.improve(y, tol)
        values = [*surrogate(y).values(), surrogate.coefficients(y), surrogate.error_bound(y), surrogate.loss(y)]
        values += [*improved.values.values(), improved.error_bound, improved.iterations]
        return [value.double().cpu().numpy() for value in values]

    close = {"float16": 2e-2, "float32": 1e-4, "float64": 1e-9}[precision]
    for there, here in zip(*reversed(on_both(ask)), strict=True):
        np.testing.assert_allclose(there, here, rtol=close, atol=close * np.abs(here).max())


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_solutions_on_a_device_are_those_of_the_cpu(kind, dtype):
    problem, arrays = case(kind)

    def run(place):
        formulation = make_formulation(Frame.from_arrays(arrays, dtype, place), problem)
        found = solve(formulation, samples(problem, 3, formulation.frame.dtype).to(formulation.frame.device), 1e-9)
        return found.w.cpu(), found.iterations.tolist(), found.refinements

    (w, iterations, refinements), (here, *counts) = on_both(run)
    assert float((w - here).norm() / w.norm()) < 1e-7
    assert counts == [iterations, refinements]


@pytest.mark.parametrize("realisation", ["recursive", "gather"])
def test_realisations_of_d_run_on_a_device(realisation):
    _, arrays = case("square, LS")
    w = torch.linspace(-1, 1, arrays.frame_size)

    def run(place):
        frame = Frame.from_arrays(arrays, "float32", place, realisation)
        there = w.to(frame.device)
        return frame.D(there).cpu(), frame.D.T(frame.D(there)).cpu(), frame.H(there).cpu()

    for here, there in zip(*on_both(run), strict=True):
        torch.testing.assert_close(here, there)


def test_metrics_and_studies_on_a_device_are_those_of_the_cpu():
    problem, arrays = case("interval, LS")
    description = describe_net(small(problem="x", levels=1).resolved(), problem)
    surrogate = Surrogate(description.build(arrays, torch.device("cpu"), 1), description, arrays, problem)
    reference = reference_solutions(surrogate.formulation, problem.parameters.sample(3, 5))
    y, coarse = problem.parameters.sample(1, 0), arrays.coarsened(2, problem.regions)

    def run(place):
        found = [evaluate(surrogate.to(device=place), reference).record()]
        found += condition_rows(coarse, problem, y, device=place)
        found += iteration_rows(coarse, problem, y, 1e-6, ["float32"], device=place)
        return [number for row in found for key, number in row.items() if key != "dtype"]

    cpu, there = on_both(run)
    assert len(cpu) > 20
    assert there == pytest.approx(cpu, rel=1e-5, abs=1e-9)


def test_commands_take_a_device(tmp_path, frame_file, capsys):
    train(small(frame=str(frame_file)), tmp_path / "run", quiet=True)
    problem, arrays = case("interval, LS")
    coarse = tmp_path / "coarse.npz"
    arrays.coarsened(2, problem.regions).save(coarse)

    def run(place):
        for command in (
            ["evaluate", tmp_path / "run", "--samples", 2],
            ["query", tmp_path / "run", "--y", "1,1,1,1"],
            ["query", tmp_path / "run", "--y", "1,1,1,1", "--tol", 1.0],
            ["condition", "--frame", coarse],
            ["iterations", "--frame", coarse, "--dtypes", "float64"],
        ):
            assert main([*map(str, command), "--device", place]) == 0
        lines = capsys.readouterr().out.splitlines()
        return [line for line in lines if "seconds" not in line]

    cpu, there = on_both(run)
    assert there == cpu
    assert len(cpu) > 15


# ---- what is waited for


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("loss", "precision", "mixed"),
    [("stable", "float32", False), ("stable", "float16", True), ("bpx", "float32", False), ("nodal", "float64", False)],
)
def test_an_evaluation_neither_copies_nor_waits(kind, loss, precision, mixed):
    with on(DEVICE):
        objective, _ = make_objective(kind, "adam", precision, mixed, loss=loss)
        objective()  # makes what is made once
        with counted() as events:
            objective()
    assert not any(events.values())


def make_objective(kind, optimizer, precision, mixed=False, **settings):
    """(objective, stepper) on the device."""
    problem, arrays = case(kind)
    c = small(problem="x", levels=1, optimizer=optimizer, precision=precision, mixed=mixed, **settings).resolved()
    frame = Frame.from_arrays(arrays, precision, DEVICE)
    net = describe_net(c, problem).build(arrays, frame.device)
    loss = make_loss(c.loss, make_formulation(frame, problem))
    weights = (MasterWeights if mixed else Weights)(net)
    objective = Objective(net, loss, weights, micro_batch=c.micro_batch)
    objective.take(loss.batch(problem.parameters.sample(8, 0)), 8)
    return objective, make_stepper(optimizer, weights, c.dtype_settings, c.rate)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "soap"])
@pytest.mark.parametrize(
    ("precision", "mixed", "micro_batch"),
    [
        *(("float16", False, None), ("bfloat16", False, None), ("float32", False, None), ("float64", False, None)),
        *(("float16", True, None), ("float32", False, 3), ("float16", True, 3)),
    ],
)
def test_a_step_waits_once(optimizer, precision, mixed, micro_batch):
    with on(DEVICE):
        objective, step = make_objective("interval, LS", optimizer, precision, mixed, micro_batch=micro_batch)
        step(objective)  # makes what is made once
        for _ in range(12):  # SOAP changes its bases in one of them
            with counted() as events:
                assert step(objective).finite
            assert events == {"waits": 1}


def test_lbfgs_waits_once_per_direction_and_evaluation():
    with on(DEVICE):
        objective, step = make_objective("interval, LS", "lbfgs", "float64")
        for _ in range(8):  # until the history is full of pairs
            state = step.optimizer.state[objective.weights.vector]
            before = {key: state.get(key, 0) for key in ("func_evals", "n_iter")}
            with counted() as events:
                step(objective)
            counts = {key: state[key] - value for key, value in before.items()}
            # The first value and gradient are seen by the stepper and the optimizer, the result by the stepper.
            assert events["waits"] <= counts["n_iter"] + counts["func_evals"] + 2
    assert state["history"].count == 100
    assert counts["n_iter"] == 20


@pytest.mark.parametrize("kind", ["interval", "interval, LS", "square, lognormal", "square, mixed"])
def test_improvement_waits_once_per_iteration(kind):
    problem, arrays = case(kind)
    description = describe_net(small(problem="x", levels=1).resolved(), problem)
    y = problem.parameters.sample(3, 0)
    found = []
    with on(DEVICE):
        surrogate = Surrogate(description.build(arrays, torch.device(DEVICE, 0), 1), description, arrays, problem)
        size = float(surrogate.error_bound(y).max())
        for tol in (0.9 * size, 0.2 * size if "LS" in kind else 1e-9 * size):
            with counted() as events:
                iterations = int(surrogate.improve(y, tol).iterations.max())
            found.append((iterations, events["waits"]))
    (few, waits), (many, more) = found
    assert many > few or kind == "interval"  # so small that multigrid solves it at once
    assert more - waits == many - few
