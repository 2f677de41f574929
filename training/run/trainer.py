"""Training: one loop for all nets, losses, optimizers and precisions, on one process or many.

train(Configuration(problem="quarters", formulation="least-squares", levels=8, optimizer="soap"), "run")
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fem_frames.files import one_line
from fem_frames.formulations.registry import make_formulation
from fem_frames.frame.solutions import ReferenceSolutions
from fem_frames.mesh.geometry import Floats
from fem_frames.messages import either, option
from fem_frames.operators.frame import Frame
from fem_frames.problem.definition import Problem
from fem_frames.problem.evaluation import NotFiniteError
from fem_frames.problem.loading import is_file
from training.configuration import Configuration, Resolved
from training.losses import Loss, OwnFunction
from training.metrics import Metrics, evaluate
from training.objective import Objective
from training.optimizers.steppers import LINE_SEARCH, cosine_rate, make_stepper
from training.own import OptimizerFactory, OwnModule, OwnParts, check_names
from training.precision import MasterWeights, Weights
from training.run import building, store
from training.run.checkpoints import Checkpoints, check_content
from training.run.devices import full_products
from training.run.distributed import ProcessLostError, World
from training.run.failure import LossFall, TrainingError, diverged
from training.run.log import Display, RunLog, display
from training.run.signals import StopSignals
from training.saved_problem import fingerprint


def train(
    configuration: Configuration | None,
    out: str | Path,
    *,
    problem: Problem | None = None,
    resume: bool = False,
    force: bool = False,
    quiet: bool = False,
    net: OwnModule | None = None,
    loss: OwnFunction | type[Loss] | None = None,
    optimizer: OptimizerFactory | None = None,
) -> dict[str, Any]:
    """Trains a surrogate in the folder `out`, or continues its run with `resume`; returns the content of result.json.

    Give `problem` if it was made in Python. With `resume` the configuration may be None. Under torchrun all processes
    make the same call. Your own parts replace those in the settings; give them again to resume the run:

    - `net`: a torch module from y (B, p) to frame coefficients (B, Nhat), trained in place from its present weights, or
      a function that makes it for the `fem_frames.Frame`, `lambda frame: MyNet(frame.frame_size)`. It sees y mapped to
      [-1, 1] unless map_inputs is off, and is converted to the precision of the run.
    - `loss`: a function of w (B, Nhat), y (B, p) and the formulation that returns (B,) losses, which autograd can
      differentiate, or a subclass of `training.losses.Loss`.
    - `optimizer`: a function from parameters to a torch optimizer, `lambda p: torch.optim.AdamW(p, lr=1e-3)`. The
      schedule starts with its rate unless the settings have one; in float16 Adam needs an eps of 1e-4.
    See docs/training.md.
    """
    folder, parts = Path(out), OwnParts(net, loss, optimizer)
    if resume and force:
        raise ValueError("resume=True continues a run, force=True replaces it: give one of them")
    if problem is not None and not isinstance(problem, Problem):
        raise ValueError(f"problem is a {type(problem).__name__}; a Problem is expected, as make_problem gives it")
    if resume:
        saved = store.saved_configuration(folder)
        complete = store.read_record(folder / store.RESULT)
        named = is_file(saved.problem) and problem is None
        if configuration is not None:
            given = parts.in_settings(configuration).resolved()
            store.check_same(saved.record(), given.record(), str(folder))
            saved = replace(saved, **{name: getattr(given, name) for name in (*store.FREE, *(["problem"] * named))})
        elif named and complete is None:
            raise ValueError(
                f"{folder} is a run of the problem {saved.problem}, and files do not choose code to run: "
                f"give it again, problem=make_problem({saved.problem!r})"
            )
        if complete is not None:
            return complete  # its checkpoints may be gone
        configuration = saved
    if not isinstance(configuration, Configuration):
        raise ValueError("a Configuration is needed, unless a run is resumed: Configuration(problem=…, levels=…)")
    if problem is not None and not configuration.problem:
        configuration = replace(configuration, problem=problem.name)
    resolved = (configuration if resume else parts.in_settings(configuration)).resolved()
    parts.check_given(resolved, folder, Checkpoints(folder / store.CHECKPOINTS).own_names if resume else None)
    device = building.choose_device(configuration.device)
    world = World.join(device)
    held = store.open_run(folder, resolved, resume, force) if world.leads else None
    try:
        try:
            with StopSignals(_end_set_up):  # SIGTERM too: the new files are removed
                training = Training(resolved, folder, device, world, problem, parts, quiet or not world.leads)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"interrupted before the first step; {folder} is as it was before") from None
        if held is not None:
            held.begin()
        with full_products(device):
            return training.run()
    finally:
        if held is not None:
            held.close()
        world.leave()


def _end_set_up() -> None:
    raise KeyboardInterrupt


class Training:
    """The state of one run, and its loop."""

    def __init__(
        self,
        configuration: Resolved,
        folder: Path,
        device: torch.device,
        world: World,
        problem: Problem | None,
        parts: OwnParts,
        quiet: bool,
    ) -> None:
        c = self.configuration = configuration
        self.folder, self.world, self.device, self._quiet = folder, world, device, quiet
        self._say: Callable[[str], None] = (lambda text: None) if quiet else Display().say
        problem = building.problem_of(c, folder) if problem is None else problem
        self.samples = building.make_samples(c, problem, world)
        arrays = building.make_frame(c, problem, folder, world)
        building.check_sizes(c, arrays, problem)
        formulation = make_formulation(Frame.from_arrays(arrays, c.precision, device), problem)
        self.loss = building.make_run_loss(c, parts, formulation, self.samples, folder, world, self._say)
        self.checkpoints = Checkpoints(folder / store.CHECKPOINTS)
        resumed = bool(self.checkpoints.steps())
        self.surrogate = building.make_surrogate(c, parts, self.loss, problem, world, resumed)
        self.net = self.surrogate.net
        hint = None if resumed else building.hint_of_start(c, arrays, problem, self.loss.nodal)
        if hint is not None:
            self._say(hint)
        self.weights = (MasterWeights if c.mixed else Weights)(self.net)
        self.objective = Objective(self.net, self.loss, self.weights, world, c.micro_batch)
        self.stepper = make_stepper(c.optimizer, self.weights, c.dtype_settings, c.rate, parts.optimizer)
        self._own = parts.names(self.surrogate.description.module, self.stepper.optimizer)
        self.step, self.seconds, self.skipped = 0, 0.0, 0
        self.best, self._fall = float("inf"), LossFall()
        self.metrics: Metrics | None = None
        self.tested, self._stopping = -1, False  # step of the last test; whether a signal came
        self.stopped: str | None = None
        self._fingerprint = fingerprint(self.surrogate.formulation)
        self._load_checkpoint()
        self.test: ReferenceSolutions | None = None
        if world.leads and c.test_samples:
            y = problem.parameters.sample(c.test_samples, c.test_seed)
            self.test = building.solved(c, folder / store.TEST, y, "test set", self.surrogate.formulation, self._say)

    # ---- the loop

    def run(self) -> dict[str, Any]:
        c, total = self.configuration, self.configuration.total_steps
        log = RunLog(self.folder, self.step, c.tensorboard) if self.world.leads else None
        before, begin = self.seconds, time.perf_counter()
        with display(self.step, total, not self._quiet) as screen, self._signals():
            self._say = screen.say
            try:
                if self._own and self.step == 0:
                    self._save_checkpoint(False)  # the first weights of a user's module cannot be drawn again
                if self.step == 0 and total:
                    self._evaluate(log)
                while self.step < total and self.stopped is None and not self._told_to_stop():
                    rate = self._set_rate()
                    y, rows = self.samples.batch(self.step)
                    mine = self.world.share(len(y))
                    batch = self.loss.batch(y[mine], None if rows is None else rows[mine])
                    self.objective.take(batch, len(y), self._seed())
                    outcome = self.stepper(self.objective)
                    if outcome.finite:
                        self.weights.succeeded()
                        self._fall.note(outcome.loss)
                    else:
                        self._not_finite(float(outcome.loss), y, rows)
                    self.step += 1
                    self.seconds = before + time.perf_counter() - begin
                    if outcome.reason and not outcome.moved and self.samples.repeats:
                        self.stopped = outcome.reason  # all further steps would be the same
                    if log is not None and (self.step % c.log_every == 0 or self.step == total or outcome.reason):
                        more = {"reason": outcome.reason} if outcome.reason else {}
                        log.step(self.step, float(outcome.loss), rate, self.seconds, **more)
                        screen.update(self.step, float(outcome.loss), rate)
                    ended = self.step == total or self.stopped is not None
                    improved = False
                    if self.step % (c.evaluate_every * c.steps_per_epoch) == 0 or ended:
                        improved = self._evaluate(log)
                    if self.step % (c.checkpoint_every * c.steps_per_epoch) == 0 or ended or improved:
                        self._save_checkpoint(improved)
                if self._stopping:
                    self._save_checkpoint(False)
                    raise KeyboardInterrupt(f"interrupted after step {self.step} of {total}; {self._how_to_go_on()}")
                if self.metrics is None:
                    self._evaluate(None)
                return self._finish(log)
            except TrainingError as error:
                self._record_failure(str(error), log)
                raise
            except ProcessLostError as error:
                # The error comes from the sum of gradients, before a first-order step but within a line search.
                if c.optimizer not in LINE_SEARCH:
                    self._save_checkpoint(False)
                saved = self.checkpoints.steps()
                kept = f"saved up to step {saved[-1]}; {self._how_to_go_on()}" if saved else "nothing was saved yet"
                raise ProcessLostError(f"{error}; {kept}") from error
            finally:
                if log is not None:
                    log.close()

    def _how_to_go_on(self) -> str:
        out, name = str(self.folder), self.configuration.problem
        own = (f" --problem {name}", ", problem=…") if is_file(name) else ("", "")
        python = f"train(None, {out!r}, resume=True{own[1]}{''.join(f', {part}=…' for part in self._own)})"
        return f"{either(f'fem-frames train --out {out} --resume{own[0]}', python)} goes on"

    def _seed(self) -> tuple[int, ...] | None:
        """The seed of net and loss in this step and process: a resumed run draws the same numbers."""
        return (self.configuration.sample_seed, self.step, self.world.rank) if self._own else None

    def _set_rate(self) -> float:
        c = self.configuration
        if c.optimizer in LINE_SEARCH:
            return c.rate
        rate = cosine_rate(self.step / self.samples.steps_per_epoch, c.period, c.rate, c.minimum_rate)
        self.stepper.set_rate(rate)
        return rate

    def _not_finite(self, loss: float, y: Floats, rows: np.ndarray | None) -> None:
        """Checks the samples of all processes first, so that all processes stop with the same message."""
        size = self.configuration.micro_batch or self.configuration.batch
        for first in range(0, len(y), size):
            part = slice(first, first + size)
            self.loss.check(self.loss.batch(y[part], None if rows is None else rows[part]))
        self.skipped += 1
        if not self.weights.failed():
            raise self._diverged(loss)

    def _diverged(self, loss: float, *, tested: bool = False) -> TrainingError:
        kept = self.folder if self.checkpoints.steps() else None
        step = self.step if tested else self.step + 1
        return diverged(self.configuration, step, loss, kept, tested=tested, hint=self._fall.hint())

    def _evaluate(self, log: RunLog | None) -> bool:
        """Tests the net on rank 0; returns whether it is the best so far."""
        if self.test is None:
            return False
        self.weights.push()
        self.net.eval()
        try:
            self.metrics = m = evaluate(self.surrogate, self.test)
        except NotFiniteError:
            raise self._diverged(float("nan"), tested=True) from None
        finally:
            self.net.train()
        self.tested = self.step
        if not math.isfinite(m.loss):
            raise self._diverged(m.loss, tested=True)
        if log is not None:
            log.test(self.step, m, self.seconds)
        above = f"{m.ratio:.3g} times the floor" if math.isfinite(m.ratio) else f"{m.excess:.2e} above the floor"
        self._say(f"step {self.step}: test loss {m.loss:.3e}, {above}, MRE {m.mre:.2e}")
        better = m.loss < self.best
        self.best = min(self.best, m.loss)
        return better

    def _finish(self, log: RunLog | None) -> dict[str, Any]:
        m = self.metrics
        result: dict[str, Any] = {
            "parameters": self.net.parameter_count(),
            "steps": self.step,
            "seconds": round(self.seconds, 3),
            "loss": m.loss if m else None,
            "floor": m.floor if m else None,
            "run": str(self.folder),
            "test": m.record() if m else None,
            "skipped_steps": self.skipped,
            "stopped": self.stopped,
            **self._circumstances(),
        }
        if self.stopped:
            self._say(f"stopped at step {self.step}: {self.stopped}")
        if self.world.leads:
            self.weights.push()
            self.surrogate.record |= {"result": result}
            self.surrogate.save_net(self.folder)
            store.write_record(self.folder / store.RESULT, result)
        self.world.wait()
        return result

    def _record_failure(self, reason: str, log: RunLog | None) -> None:
        """Writes failure.json with all that is known of a failed run."""
        if not self.world.leads:
            return
        if self.tested != self.step:
            with contextlib.suppress(TrainingError):
                self._evaluate(log)  # the failed step did not change the weights
        failure = {
            "step": self.step,
            "steps": self.configuration.total_steps,
            "seconds": round(self.seconds, 3),
            "reason": reason,
            "parameters": self.net.parameter_count(),
            "test": self.metrics.record() if self.metrics else None,
            **self._circumstances(),
        }
        store.write_record(self.folder / store.FAILURE, failure)

    def _circumstances(self) -> dict[str, Any]:
        return {
            "precision": self.configuration.precision + (" mixed" if self.configuration.mixed else ""),
            "device": str(self.device),
            "processes": self.world.size,
            "threads": torch.get_num_threads(),
            "machine": store.machine(self.device),
            "versions": store.versions(),
        }

    # ---- checkpoints and signals

    def _save_checkpoint(self, best: bool) -> None:
        if not self.world.leads:
            return
        content = {
            "step": self.step,
            "net": self.net.state_dict(),
            "weights": self.weights.state_dict(),
            "optimizer": self.stepper.optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "seconds": self.seconds,
            "skipped": self.skipped,
            "best": self.best,
            "stopped": self.stopped,
            "configuration": self.configuration.record(),
            "fingerprint": self._fingerprint,
            "versions": store.versions(),
            **({"own": self._own} if self._own else {}),
        }
        self.checkpoints.save(self.step, content, best)

    def _load_checkpoint(self) -> None:
        def fits(content: dict[str, Any]) -> None:
            check_content(content, self.configuration.total_steps)
            store.check_same(content["configuration"], self.configuration.record(), "the checkpoint")

        content = self.checkpoints.newest(fits, self._say)
        if content is None:
            return
        check_names(self._own, content.get("own", {}), self.folder)
        if self.world.leads:
            self.checkpoints.refuse_after(content["step"])
        if not np.allclose(content["fingerprint"], self._fingerprint, rtol=1e-8, atol=0):
            raise ValueError(
                f"the problem {self.surrogate.problem.name} is not the one that {self.folder} was trained for, its "
                "coefficient, source, boundary data or parameters are others; give that one: "
                + either("--problem", "problem=…")
            )
        try:
            self.net.load_state_dict(content["net"])
            self.weights.load_state_dict(content["weights"])
            self.stepper.load(content["optimizer"])
            torch.set_rng_state(content["random"])
        except Exception as error:  # the checkpoint does not fit net or optimizer
            again = f"give {' and '.join(self._own)} as before, " if self._own else ""
            why = f"{self.checkpoints.path(content['step'])} does not fit the run: {one_line(error)}"
            raise ValueError(f"{why}; {again}remove it, or start anew with {option('force')}") from error
        self.step, self.seconds, self.skipped = content["step"], content["seconds"], content["skipped"]
        self.best, self.stopped = content["best"], content["stopped"]
        self._say(f"resumed at step {self.step} of {self.configuration.total_steps}")

    def _told_to_stop(self) -> bool:
        """Whether any process was told to stop, or lost torchrun; all processes stop after the same step."""
        if self.world.orphaned:
            self.objective.asked_to_stop = True
        self._stopping = self.objective.stopping
        return self._stopping

    def _signals(self) -> StopSignals:
        """The first signal stops the run after the current step, the second stops it at once."""

        def stop() -> None:
            if self.objective.asked_to_stop:
                raise KeyboardInterrupt("interrupted twice; the last checkpoint is kept")
            self.objective.asked_to_stop = True

        return StopSignals(stop)
