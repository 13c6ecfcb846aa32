# SPDX-License-Identifier: Apache-2.0
"""The loop around a real, tiny model: one weight that follows the mean of its batches."""

import math
import os
import signal
import time

import pytest
import torch

from recsys.errors import DivergenceError
from recsys.interruption import StopRequest
from recsys.train.loop import Evaluation, Loop, LoopConfig, LoopState, Metric
from recsys.train.optimizers.schedule import WarmupPolynomialDecay
from recsys.train.run_log import RunLog
from tests.harness import read_log, refusal


class Source:
    num_batches = 5
    batch_size = 4

    def batches(self, epoch, start):
        for i in range(start, self.num_batches):
            yield torch.full((4,), float(epoch * 10 + i))


class Step:
    def __init__(self):
        self.weight = torch.zeros(())
        self.seen = []
        self.rates = []

    def __call__(self, batch, lr):
        self.seen.append(int(batch[0]))
        self.rates.append(lr)
        loss = (self.weight - batch).square().mean()
        self.weight += lr * (batch.mean() - self.weight)
        return loss


class Run:
    """A loop with everything it calls recorded."""

    def __init__(self, step=None, state=None, metrics=None, log_path=None, **config):
        self.step = step or Step()
        self.saved = []
        self.lines = []
        self.evaluations = []
        self.metrics = metrics or []
        self.loop = Loop(
            config=LoopConfig(**config),
            schedule=WarmupPolynomialDecay(base_lr=0.1),
            step=self.step,
            source=Source(),
            evaluate=self.evaluate,
            save=lambda state, is_best: self.saved.append((state.step, is_best)),
            log=RunLog(log_path),
            device=torch.device("cpu"),
            print_line=self.lines.append,
            metric=Metric("auc"),
            state=state or LoopState(),
        )

    def evaluate(self, epochs_done):
        self.evaluations.append((self.loop.state.step, epochs_done))
        metric = self.metrics.pop(0) if self.metrics else 0.6
        return Evaluation(metric, {"auc": metric}, 100.0)

    def fit(self):
        with StopRequest() as stop:
            return self.loop.fit(stop)


def test_sees_every_batch_of_every_epoch_once():
    run = Run(epochs=2)
    result = run.fit()
    assert run.step.seen == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    assert result.reason == "done"
    assert (result.state.step, result.state.epoch, result.state.batch) == (10, 2, 0)
    assert run.evaluations == [(5, 1), (10, 2)]


@pytest.mark.parametrize(
    ("epoch", "batch", "begun"),
    [(0, 0, [0, 1, 2]), (0, 3, [1, 2]), (1, 0, [1, 2]), (1, 5, [2])],
)
def test_a_resumed_run_goes_on_and_begins_each_epoch_once(epoch, batch, begun):
    done = 5 * epoch + batch
    run = Run(epochs=3, state=LoopState(step=done, epoch=epoch, batch=batch))
    epochs = []
    run.loop.begin_epoch = epochs.append
    run.fit()
    assert epochs == begun
    assert run.step.seen == [10 * e + i for e in range(3) for i in range(5)][done:]


@pytest.mark.parametrize("max_steps", [1, 4, 5, 6, 10])
def test_max_steps_is_exact(max_steps):
    run = Run(epochs=2, max_steps=max_steps)
    assert run.fit().state.step == max_steps
    assert len(run.step.seen) == max_steps
    assert run.evaluations[-1][0] == max_steps


@pytest.mark.parametrize(
    ("test_freq", "test_after", "steps"),
    [
        (2, 1.0, [5, 6, 8, 10]),
        (3, 0.0, [3, 5, 6, 9, 10]),
        (5, 0.0, [5, 10]),
        (7, 0.0, [7, 10]),
        (9, 0.0, [9, 10]),
    ],
)
def test_steps_between_evaluations_are_those_of_the_run(test_freq, test_after, steps):
    run = Run(epochs=2, test_freq=test_freq, test_after=test_after)
    run.fit()
    assert [step for step, _ in run.evaluations] == steps


def progress(run):
    return [int(line.split("[")[2].split("/")[0]) for line in run.lines if "step_time" in line]


@pytest.mark.parametrize(("print_freq", "printed"), [(3, [1, 3, 1, 4]), (1, [1, 2, 3, 4, 5] * 2)])
def test_the_first_step_is_printed_but_not_logged(tmp_path, print_freq, printed):
    log = tmp_path / "log.json"
    run = Run(epochs=2, print_freq=print_freq, log_path=log)
    run.fit()
    assert progress(run) == printed
    logged = [r["step"][1] for r in read_log(log) if "step_time" in r["data"]]
    assert logged == list(range(print_freq, 11, print_freq))


def test_threshold_ends_the_run_and_saves():
    run = Run(epochs=3, metrics=[0.5, 0.8], metric_threshold=0.75)
    result = run.fit()
    assert result.reason == "threshold"
    assert result.state.step == 10
    assert result.state.best_metric == 0.8
    assert run.saved == [(5, True), (10, True)]


@pytest.mark.parametrize(
    ("config", "saved"),
    [
        ({"epochs": 3, "metrics": [0.7, 0.6, 0.65]}, [(5, True), (15, False)]),
        ({"save_freq": 2, "metrics": [0.7]}, [(2, False), (4, False), (5, True)]),
    ],
)
def test_the_best_the_end_and_every_save_freq_steps_are_saved(config, saved):
    run = Run(**config)
    run.fit()
    assert run.saved == saved


def test_resumes_where_it_stood():
    whole = Run(epochs=2)
    whole.fit()
    first = Run(epochs=2, max_steps=7)
    stopped = first.fit().state
    second = Run(step=first.step, state=stopped, epochs=2)
    second.fit()
    assert first.step.seen == whole.step.seen
    assert torch.equal(first.step.weight, whole.step.weight)


@pytest.fixture
def handlers():
    """Restores the handlers that a stopped run leaves in a process that was to end."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_the_step_and_saves(number, handlers):
    class Interrupted(Step):
        def __call__(self, batch, lr):
            if len(self.seen) == 2:
                os.kill(os.getpid(), number)
            return super().__call__(batch, lr)

    run = Run(step=Interrupted(), epochs=2)
    result = run.fit()
    assert result.reason == signal.Signals(number).name
    assert len(run.step.seen) == 3
    assert run.saved == [(3, False)]
    assert signal.getsignal(signal.SIGINT) == handlers[signal.SIGINT]
    os.kill(os.getpid(), signal.SIGTERM)  # the same request, passed on by torchrun: nobody dies


def test_nan_stops_the_run_before_a_checkpoint():
    class Diverging(Step):
        def __call__(self, batch, lr):
            loss = super().__call__(batch, lr)
            return loss * math.nan if len(self.seen) == 3 else loss

    run = Run(step=Diverging(), epochs=1, save_freq=4)
    with refusal("nan", "step 3", kind=DivergenceError):
        run.fit()
    assert run.saved == []


def test_constant_loss_stops_the_run():
    class Constant(Step):
        def __call__(self, batch, lr):
            return torch.tensor(0.693)

    with pytest.raises(DivergenceError, match=r"0\.693"):
        Run(step=Constant(), epochs=100, print_freq=50).fit()


def test_line_and_log_have_the_recipe_s_form(tmp_path):
    run = Run(epochs=1, print_freq=2, log_path=tmp_path / "log.json")
    run.fit()
    assert run.lines[1].startswith("Epoch:[0/1] [2/5]  eta: 0:00:0")
    for part in ("loss: ", "step_time: ", "lr: 0.1", "data_wait: "):
        assert part in run.lines[0]
    assert "Epoch 0 step 5. auc 0.600000" in run.lines
    records = read_log(tmp_path / "log.json")
    assert [r["step"] for r in records] == [[0, 2], [0, 4], [0, 5]]
    assert set(records[0]["data"]) == {"loss", "step_time", "data_wait", "compute", "lr"}
    assert records[0]["data"]["loss"] == pytest.approx((0.0 + 1.0) / 2)


def test_the_logged_loss_is_a_mean_over_steps_of_several_short_epochs(tmp_path):
    run = Run(epochs=2, print_freq=8, test_after=2.0, log_path=tmp_path / "log.json")
    run.fit()
    step = Step()
    losses = [float(step(b, 0.1)) for epoch in (0, 1) for b in Source().batches(epoch, 0)]
    record = read_log(tmp_path / "log.json")[0]
    assert record["step"] == [1, 8]
    assert record["data"]["loss"] == pytest.approx(sum(losses[:8]) / 8, rel=1e-6)


def test_throughput_covers_the_whole_window_after_the_warmup():
    result = Run(epochs=2, benchmark_warmup_steps=3).fit()
    assert result.train_samples_per_s > 0
    assert math.isnan(Run(epochs=1, benchmark_warmup_steps=100).fit().train_samples_per_s)


def test_what_an_observer_does_at_its_end_is_no_training(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    class TimedStep(Step):
        def __call__(self, batch, lr):
            clock[0] += 1
            return super().__call__(batch, lr)

    class Observer:
        steps = 0

        def __call__(self, batch, began, waited_s):
            self.steps += 1
            clock[0] += 1000 * (self.steps in (2, 3))
            return {2: {}, 3: {"profile_steps": 3}}.get(self.steps)

        def finish(self):
            clock[0] += 1000
            return {"profile_steps": 5}

    run = Run(TimedStep(), log_path=tmp_path / "log.json", epochs=1, print_freq=5)
    run.loop.observers = [Observer()]
    assert run.fit().train_samples_per_s == Source.batch_size
    values = [record["data"] for record in read_log(tmp_path / "log.json")]
    assert [v["step_time"] for v in values if "step_time" in v] == [1.0]
    assert [v["profile_steps"] for v in values if "step_time" not in v and "auc" not in v] == [3, 5]


ENDS = {
    "threshold": ({"metric_threshold": 0.7}, {"metric_threshold": 0.9}, 10),
    "patience": ({"patience": 1}, {"patience": 3}, 15),
    "max_steps": ({"max_steps": 7}, {"max_steps": 12}, 7),
    "epochs": ({"epochs": 2}, {"epochs": 3}, 10),
}
"""Why a run ends, the setting of that, one that lets it go on, and the step of the end."""


@pytest.mark.parametrize(("ended", "at"), [(name, case[2]) for name, case in ENDS.items()])
def test_a_run_that_has_ended_goes_on_only_with_another_setting(ended, at):
    config, changed, _ = ENDS[ended]
    first = Run(**{"epochs": 4, "metrics": [0.6, 0.8, 0.7, 0.7]} | config)
    states = []
    first.loop.save = lambda state, _: states.append(state.to_dict())
    first.fit()
    assert (states[-1]["step"], states[-1]["ended"]) == (at, ended)
    assert [state["ended"] for state in states[:-1]] == [""] * len(states[:-1])
    again = Run(**{"epochs": 4} | config, state=LoopState.from_dict(states[-1]))
    again.fit()
    assert (again.step.seen, again.saved, again.evaluations) == ([], [], [])
    further = Run(**{"epochs": 4} | changed, state=LoopState.from_dict(states[-1]))
    further.fit()
    assert further.loop.state.step > at
    assert further.saved


def test_patience_stops_after_evaluations_without_a_better_one():
    run = Run(epochs=9, patience=2, metrics=[0.6, 0.7, 0.7, 0.65, 0.9])
    result = run.fit()
    assert result.reason == "patience"
    assert [step for step, _ in run.evaluations] == [5, 10, 15, 20]
    assert result.state.best_metric == 0.7
    assert "No better auc in 2 evaluations" in run.lines[-1]


def test_an_undefined_metric_is_no_evaluation():
    result = Run(epochs=4, patience=2, metrics=[math.nan, 0.6, math.nan, math.nan]).fit()
    assert (result.reason, result.state.best_metric) == ("done", 0.6)
    assert (result.state.evaluations_since_best, result.state.plateaus) == (0, 0)


@pytest.mark.parametrize(
    ("test_freq", "at"), [(2, [2, 4, 5, 6, 8, 10, 12, 14, 15]), (7, [5, 7, 10, 14, 15])]
)
def test_patience_and_rate_can_follow_the_ends_of_epochs_alone(test_freq, at):
    """Also with fewer evaluations than epochs, or patience would never end the run."""
    metrics = iter([0.7, 0.69, 0.68])
    run = Run(
        epochs=9, patience=2, test_freq=test_freq, only_epoch_ends_count=True, plateau_factor=0.5
    )
    run.metrics = [next(metrics) if step % 5 == 0 else 0.1 for step in at]
    result = run.fit()
    assert [step for step, _ in run.evaluations] == at
    assert (result.reason, result.state.plateaus) == ("patience", 2)


def test_patience_counts_on_after_a_resume():
    first = Run(epochs=9, patience=3, max_steps=10, metrics=[0.7, 0.6]).fit()
    assert first.state.evaluations_since_best == 1
    rest = Run(state=first.state, epochs=9, patience=3, metrics=[0.6, 0.5, 0.9])
    assert rest.fit().reason == "patience"
    assert rest.loop.state.step == 20
    over = Run(state=rest.loop.state, epochs=9, patience=3)
    over.fit()
    assert over.step.seen == []


def test_the_rate_falls_after_each_evaluation_without_a_better_one():
    metrics = [0.6, 0.5, 0.7, 0.7, 0.6]
    whole = Run(epochs=5, plateau_factor=0.5, metrics=list(metrics))
    whole.fit()
    expected = [rate for rate in (0.1, 0.1, 0.05, 0.05, 0.025) for _ in range(5)]
    assert whole.step.rates == pytest.approx(expected)
    first = Run(epochs=5, plateau_factor=0.5, metrics=metrics[:2], max_steps=10)
    state = LoopState.from_dict(first.fit().state.to_dict())
    rest = Run(state=state, epochs=5, plateau_factor=0.5, metrics=metrics[2:])
    rest.fit()
    assert first.step.rates + rest.step.rates == pytest.approx(expected)


class SlowStep(Step):
    def __call__(self, batch, lr):
        time.sleep(0.02)
        return super().__call__(batch, lr)


@pytest.mark.parametrize(("limits", "is_soon"), [({}, False), ({"max_steps": 3}, True)])
def test_the_time_left_is_that_of_the_run(limits, is_soon):
    run = Run(SlowStep(), epochs=1000, test_freq=2, metric_threshold=0.5, **limits)
    run.fit()
    assert ("eta: 0:00:00 " in run.lines[0]) == is_soon
