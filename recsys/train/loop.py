# SPDX-License-Identifier: Apache-2.0
"""The training loop: prints, evaluates and saves between the steps."""

import contextlib
import dataclasses
import datetime
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor
from tqdm import tqdm

from recsys.errors import DivergenceError, UserError
from recsys.interruption import StopRequest
from recsys.train.divergence import LossMonitor
from recsys.train.measure.timing import ThroughputWindow
from recsys.train.memory import release_unused_memory
from recsys.train.optimizers.schedule import Schedule
from recsys.train.processes import ALONE, Processes, SharedStop
from recsys.train.run_log import RunLog

BatchT = TypeVar("BatchT", bound=Sized)
BatchT_contra = TypeVar("BatchT_contra", contravariant=True)
BatchT_co = TypeVar("BatchT_co", covariant=True)

_LOSS_BUFFER = 1000
"""Most losses that stay on the device before they are printed."""


class TrainStep(Protocol[BatchT_contra]):
    """One optimizer step of a model."""

    def __call__(self, batch: BatchT_contra, lr: float) -> Tensor:
        """Trains on a batch; returns the loss on the device, without synchronising."""
        ...


class BatchSource(Protocol[BatchT_co]):
    """The training batches of each epoch."""

    @property
    def num_batches(self) -> int:
        """Batches in an epoch."""
        ...

    def batches(self, epoch: int, start: int) -> Iterator[BatchT_co]:
        """Yields the batches of an epoch from number `start` on, in fixed order."""
        ...


class StepObserver(Protocol[BatchT_contra]):
    """Measures training steps from outside."""

    def __call__(
        self, batch: BatchT_contra, began: float, waited_s: float
    ) -> Mapping[str, Any] | None:
        """Observes a step that was just launched; returns values to log.

        None means that the call is part of the step. Otherwise its time does not count as training;
        the values are empty while there is nothing to log.

        Args:
            batch: batch of the step.
            began: clock (`time.perf_counter`) when the loop began to wait for the batch.
            waited_s: seconds of that wait.
        """
        ...

    def finish(self) -> Mapping[str, Any] | None:
        """Ends with the run; returns values to log that no step has returned."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """Name and sign of the metric that compares evaluations.

    Attributes:
        name: name for the user.
        sign: evaluations are compared by the metric times this, and higher is better; -1 for a
            metric such as a loss.
    """

    name: str
    sign: int = 1

    def text(self, compared: float) -> str:
        """Returns the metric as text, computed from the compared value."""
        return f"{self.sign * compared:.6f}"


@dataclasses.dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of an evaluation.

    Attributes:
        metric: value that chooses the best checkpoint; higher is better.
        values: values to log, by name.
        samples_per_s: samples evaluated per second.
    """

    metric: float
    values: Mapping[str, float]
    samples_per_s: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LoopConfig:
    """Steps at which to print, evaluate, save and end.

    None means never, or at the end. A run ends after `patience` evaluations in a row without a
    better one, and each of these multiplies the learning rate by `plateau_factor`. With
    `only_epoch_ends_count`, only evaluations at the ends of epochs count for both, and the ends are
    always evaluated. `gc_after_epoch` frees unused memory between epochs.
    """

    epochs: int = 1
    max_steps: int | None = None
    test_freq: int | None = None
    test_after: float = 0.0
    metric_threshold: float | None = None
    patience: int | None = None
    plateau_factor: float = 1.0
    only_epoch_ends_count: bool = False
    print_freq: int = 200
    save_freq: int | None = None
    benchmark_warmup_steps: int = 0
    gc_after_epoch: bool = False

    def steps(self, num_batches: int) -> int:
        """Returns the number of steps of a run, given the batches of an epoch."""
        steps = self.epochs * num_batches
        return min(steps, self.max_steps or steps)


@dataclasses.dataclass(slots=True)
class LoopState:
    """Position and best metric of a run, saved with every checkpoint.

    `ended` says why the run had ended when it was saved: `threshold`, `patience`, `max_steps` or
    `epochs`; empty if it had not. `first_step` counts the steps before the first one on this
    dataset: those on the earlier days of a dataset that grows.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    best_metric: float = -math.inf
    best_epoch: float = 0.0
    evaluations_since_best: int = 0
    plateaus: int = 0
    evaluation_failed: bool = False
    ended: str = ""
    first_step: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON, which has no infinity."""
        values = dataclasses.asdict(self)
        if self.best_metric == -math.inf:
            values["best_metric"] = None
        if not self.first_step:
            del values["first_step"]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "LoopState":
        """Reads the state from a checkpoint's values.

        Raises:
            UserError: a value is missing or of another type.
        """
        known: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            value: Any = values.get(field.name, 0 if field.name == "first_step" else None)
            if value is None and field.name == "best_metric":
                value = -math.inf
            kinds: tuple[Any, ...] = (int, float) if field.type is float else (field.type,)
            if type(value) not in kinds or (field.type is int and value < 0):
                expected = "a text" if field.type is str else "a number"
                raise UserError(f"state, {field.name} must be {expected}, got {value!r}")
            known[field.name] = value
        return cls(**known)


@dataclasses.dataclass(frozen=True, slots=True)
class FitResult:
    """Result of a training.

    Attributes:
        state: position and best metric at the end.
        train_samples_per_s: training throughput over all measured steps.
        test_samples_per_s: mean throughput of the evaluations; NaN if there were none.
        reason: `done`, `threshold`, `patience`, `given up`, or the name of the signal that stopped
            the run.
        metric: metric of `state.best_metric`.
    """

    state: LoopState
    train_samples_per_s: float
    test_samples_per_s: float
    reason: str
    metric: Metric


@dataclasses.dataclass(kw_only=True, slots=True)
class Loop(Generic[BatchT]):
    """A training run.

    Attributes:
        config: steps at which to print, evaluate, save and end.
        schedule: learning rate of each step.
        step: trains on one batch.
        source: training batches; the length of a batch is its number of samples.
        evaluate: evaluates the model after a number of complete epochs; None never evaluates.
        save: saves a checkpoint of a state; the bool is True for the best state so far.
        keep_best: keeps the best weights so far for the test of a run that saves nothing; None
            keeps none.
        device: device of the model.
        metric: name of `Evaluation.metric`, and how to show it.
        state: position at which to start.
        processes: processes of the run; a signal to one of them stops all at the same step.
        print_line: prints a line, on the first process.
        bar: progress bar of the steps; if it is disabled, lines of progress are printed.
        observers: measure the steps.
        begin_epoch: called with the number of an epoch before its first batch.
        goes_on: called after each evaluation with the position; False ends the run.
    """

    config: LoopConfig
    schedule: Schedule
    step: TrainStep[BatchT]
    source: BatchSource[BatchT]
    evaluate: Callable[[int], Evaluation] | None
    save: Callable[[LoopState, bool], None] | None
    log: RunLog
    device: torch.device
    print_line: Callable[[str], None]
    metric: Metric
    keep_best: Callable[[], None] | None = None
    state: LoopState = dataclasses.field(default_factory=LoopState)
    processes: Processes = ALONE
    bar: "tqdm[Any]" = dataclasses.field(default_factory=lambda: tqdm(disable=True))
    observers: Sequence[StepObserver[BatchT]] = ()
    begin_epoch: Callable[[int], None] = lambda _: None
    goes_on: Callable[[LoopState], bool] = lambda _: True
    _monitor: LossMonitor = dataclasses.field(default_factory=LossMonitor)
    _losses: list[Tensor] = dataclasses.field(default_factory=list)
    _test_speeds: list[float] = dataclasses.field(default_factory=list)
    _saved_step: int = -1
    _is_first_step: bool = True
    _window_start: float = 0.0
    _window_steps: int = 0
    _window_loss: float = 0.0
    _window_wait_s: float = 0.0

    def fit(self, stop: StopRequest) -> FitResult:
        """Trains until epochs, steps or patience run out, or the threshold or a signal is reached.

        If reading or evaluating fails, a run of one process saves its state before the error ends
        it.

        Raises:
            DivergenceError: the loss is not finite or constant.
        """
        throughput = ThroughputWindow(self.config.benchmark_warmup_steps, self.device)
        throughput.start()
        self._open_window()
        reason = "done"
        self._begin_where_it_ended()
        if self.state.evaluation_failed:
            reason = self._run_evaluation(self.state.batch == self.source.num_batches) or reason
        shared_stop = SharedStop(self.processes, stop)
        while reason == "done" and not self._finished():
            reason = self._run_epoch(throughput, shared_stop)
        self._log_observed(throughput, [observer.finish for observer in self.observers])
        self._collect_losses()
        rate = throughput.samples_per_s() * self.processes.world_size
        self._save(is_best=False)
        reason = shared_stop.now() or reason  # a signal may have arrived while saving
        speeds = self._test_speeds or [math.nan]
        return FitResult(self.state, rate, sum(speeds) / len(speeds), reason, self.metric)

    def _log_observed(
        self,
        throughput: ThroughputWindow,
        observers: Iterable[Callable[[], Mapping[str, Any] | None]],
    ) -> None:
        """Logs the values of observers; excludes the time that ending them takes."""
        for observe in observers:
            since = time.perf_counter()
            values = observe()
            if values is not None:
                seconds = time.perf_counter() - since
                throughput.exclude(seconds)
                self._window_start += seconds
            if values:
                self.log.record((self.state.epoch, self.state.step), values)

    def _lr(self) -> float:
        return self.schedule.lr(self.state.step) * self.config.plateau_factor**self.state.plateaus

    def _begin_where_it_ended(self) -> None:
        """Reports that a resumed run has ended, or continues past its end; saves no step twice."""
        if self.state.step and not self.state.evaluation_failed:
            self._saved_step = self.state.step
            if ended := self._why_it_ends():
                self.print_line(
                    f"The run has ended at step {self.state.step}: {self._in_words(ended)}; "
                    "nothing is left to train"
                )
            elif self.state.ended:
                self.print_line(
                    f"This run had ended at step {self.state.step} ({self.state.ended}); the "
                    "settings of this command continue it"
                )

    def _finished(self) -> bool:
        return self.state.epoch >= self.config.epochs or self._why_it_ends() not in ("", "epochs")

    def _why_it_ends(self) -> str:
        """Returns why the run ends here, as in `LoopState.ended`; empty if it does not."""
        state, config = self.state, self.config
        if config.metric_threshold is not None and state.best_metric >= config.metric_threshold:
            return "threshold"
        if config.patience is not None and state.evaluations_since_best >= config.patience:
            return "patience"
        if config.max_steps is not None and state.step >= config.max_steps:
            return "max_steps"
        epochs_done = state.epoch + int(state.batch == self.source.num_batches)
        return "epochs" if epochs_done >= config.epochs else ""

    def _in_words(self, ended: str) -> str:
        best = f"{self.metric.name} {self.metric.text(self.state.best_metric)}"
        evaluations = self.state.evaluations_since_best
        return {
            "threshold": f"{best} has reached the threshold {self.config.metric_threshold}",
            "patience": f"{evaluations} evaluations in a row were not better than {best}",
            "max_steps": f"`max_steps` is {self.config.max_steps}",
            "epochs": f"its epochs, {self.config.epochs}, are done",
        }[ended]

    def _run_epoch(self, throughput: ThroughputWindow, stop: SharedStop) -> str:
        state, config = self.state, self.config
        batches = self._open_epoch()
        try:
            while state.batch < self.source.num_batches:
                waiting_since = time.perf_counter()
                with self._saving_on_error():
                    batch = next(batches)
                waited_s = time.perf_counter() - waiting_since
                self._window_wait_s += waited_s
                state.step += 1
                state.batch += 1
                lr = self._lr()
                self._losses.append(self.step(batch, lr).detach())
                self._window_steps += 1
                step = (batch, waiting_since, waited_s)
                observed = (functools.partial(observer, *step) for observer in self.observers)
                self._log_observed(throughput, observed)
                throughput.step(len(batch))
                self.bar.update()
                if len(self._losses) >= _LOSS_BUFFER:
                    self._collect_losses()
                if state.step % config.print_freq == 0:
                    self._record_progress(lr)
                elif self._is_first_step:
                    self._print_progress(lr)  # so that a long first window is not silent
                self._is_first_step = False
                other_work_since = time.perf_counter()
                is_epoch_end = state.batch == self.source.num_batches
                if self._evaluation_is_due(is_epoch_end):
                    ended = self._run_evaluation(is_epoch_end)
                    if ended is not None:
                        return ended
                if config.save_freq and state.step % config.save_freq == 0:
                    self._save(is_best=False)
                throughput.exclude(time.perf_counter() - other_work_since)
                if (signal_name := stop.after_step()) is not None:
                    return signal_name
                if config.max_steps is not None and state.step >= config.max_steps:
                    return "done"
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()
        state.epoch += 1
        state.batch = 0
        if config.gc_after_epoch:
            release_unused_memory(self.device)
        return "done"

    def _open_epoch(self) -> Iterator[BatchT]:
        """Returns the remaining batches of the epoch."""
        if self.state.batch == 0:
            self.begin_epoch(self.state.epoch)
        return self.source.batches(self.state.epoch, self.state.batch)

    def _evaluation_is_due(self, is_epoch_end: bool) -> bool:
        if self.evaluate is None:
            return False
        state, config = self.state, self.config
        if state.epoch + state.batch / self.source.num_batches < config.test_after:
            return False
        last = (config.max_steps is not None and state.step >= config.max_steps) or (
            is_epoch_end and state.epoch + 1 == config.epochs
        )
        if config.test_freq is None:
            return is_epoch_end or last
        # If evaluations come more often than epochs end, the end is evaluated as well: it may be
        # the best model. If only ends count, a lower frequency would miss them, and patience would
        # never end the run.
        at_epoch_end = is_epoch_end and (
            config.only_epoch_ends_count or config.test_freq < self.source.num_batches
        )
        return state.step % config.test_freq == 0 or at_epoch_end or last

    def _run_evaluation(self, is_epoch_end: bool) -> str | None:
        """Evaluates the model; returns the reason to end the training, if there is one."""
        assert self.evaluate is not None
        self._collect_losses()
        state = self.state
        state.evaluation_failed = True  # so that a resumed run evaluates again
        with self._saving_on_error():
            evaluation = self.evaluate(state.epoch + int(is_epoch_end))
        state.evaluation_failed = False
        self._test_speeds.append(evaluation.samples_per_s)
        self.print_line(
            f"Epoch {state.epoch} step {state.batch}. {self.metric.name} "
            f"{self.metric.text(evaluation.metric)}"
        )
        self.log.record((state.epoch, state.step), evaluation.values)
        counts = is_epoch_end or not self.config.only_epoch_ends_count
        counts = counts and not math.isnan(evaluation.metric)  # NaN is not worse than the best
        if not evaluation.metric > state.best_metric:
            state.evaluations_since_best += int(counts)
            state.plateaus += int(counts)
        else:
            state.evaluations_since_best = 0
            state.best_metric = evaluation.metric
            state.best_epoch = state.epoch + state.batch / self.source.num_batches
            if self.keep_best is not None:
                self.keep_best()
            self._save(is_best=True)
        ended = self._why_it_ends()
        if ended == "threshold":
            self.print_line(
                f"Hit target accuracy {self.metric.name.upper()} {self.config.metric_threshold} "
                f"at epoch {state.best_epoch:.2f}"
            )
            return ended
        if ended == "patience":
            at = " at the end of an epoch" if self.config.only_epoch_ends_count else ""
            self.print_line(
                f"No better {self.metric.name} in {state.evaluations_since_best} evaluations{at}: "
                f"stopping; the best was {self.metric.text(state.best_metric)} at epoch "
                f"{state.best_epoch:.2f}"
            )
            return ended
        if not self.goes_on(state):
            return "given up"
        self._open_window()
        return None

    @contextlib.contextmanager
    def _saving_on_error(self) -> Iterator[None]:
        """Saves after an error, unless the model diverged or other processes are waiting."""
        try:
            yield
        except DivergenceError:
            raise
        except Exception:
            if self.save is not None and self.processes.world_size == 1 and self.state.step:
                with contextlib.suppress(Exception):  # report the first error, not this one
                    self._save(is_best=False)
                    self.print_line(
                        f"Saved step {self.state.step}, before the error below. When its cause is "
                        "fixed, repeat the command with `resume` to continue"
                    )
            raise

    def _save(self, is_best: bool) -> None:
        if self.save is None or (self._saved_step == self.state.step and not is_best):
            return
        self._collect_losses()  # a diverged model should not become a checkpoint
        self.state.ended = self._why_it_ends()
        self.save(self.state, is_best)
        self._saved_step = self.state.step

    def _open_window(self) -> None:
        self._window_start = time.perf_counter()
        self._window_steps = 0
        self._window_loss = 0.0
        self._window_wait_s = 0.0

    def _collect_losses(self) -> None:
        """Copies the losses to the host; the loop synchronises only here."""
        if self._losses:
            losses = torch.stack(self._losses).tolist()
            self._losses.clear()
            self._window_loss += sum(losses)
            self._monitor.check(losses, self.state.step, self._lr())

    def _record_progress(self, lr: float) -> None:
        """Prints and logs the progress since the last call."""
        if self._window_steps == 0:
            return
        self.log.record((self.state.epoch, self.state.step), self._print_progress(lr))
        self._open_window()

    def _print_progress(self, lr: float) -> dict[str, Any]:
        """Prints the means over the window's steps, and returns them to log."""
        self._collect_losses()
        steps = self._window_steps
        state, total = self.state, self.source.num_batches
        step_time = (time.perf_counter() - self._window_start) / steps
        wait = self._window_wait_s / steps
        left = (self.config.epochs - state.epoch) * total - state.batch
        if self.config.max_steps is not None:
            left = min(left, self.config.max_steps - state.step)
        eta = datetime.timedelta(seconds=int(left * step_time))
        loss = self._window_loss / steps
        self.bar.set_postfix_str(f"loss {loss:.4f}, lr {lr:.4g}")
        if self.bar.disable:
            self.print_line(
                f"Epoch:[{state.epoch}/{self.config.epochs}] [{state.batch}/{total}]  eta: {eta}  "
                f"loss: {loss:.4f}  step_time: {step_time:.6f}  lr: {lr:.4g}  data_wait: {wait:.6f}"
            )
        return {
            "loss": loss,
            "step_time": step_time,
            "data_wait": wait,
            "compute": step_time - wait,
            "lr": lr,
        }
