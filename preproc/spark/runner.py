# SPDX-License-Identifier: Apache-2.0
"""Runs tasks and queries on Spark, with progress, Ctrl-C and readable errors.

Tasks return their counts through an accumulator, so progress is exact without polling the storage.
Errors that the user can fix (a damaged file, a full disk) come back the same way, because Spark
would retry an exception four times and then print a page of Java.
"""

import functools
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from preproc.files.disk import is_full
from preproc.files.errors import KernelError, PreprocError
from preproc.files.progress import Tally
from preproc.spark import cluster as spark_cluster

Item = TypeVar("Item")
Result = TypeVar("Result")

_POLL_S = 0.1
_CANCEL_S = 2
_SHOWN_CHARACTERS = 600
_STORAGE_ERRORS = (FileNotFoundError, PermissionError, NotADirectoryError)


class _TallySum:
    """Spark's AccumulatorParam for tallies."""

    def zero(self, _value: Tally) -> Tally:
        return Tally()

    def addInPlace(self, first: Tally, second: Tally) -> Tally:  # noqa: N802
        return first + second


Task = Callable[[list[Item]], Tally]
"""Processes items on an executor; pickled by name, so a module's function or a partial of one."""


class SparkRunner:
    """Runs work on the executors of a SparkSession.

    Attributes:
        session: the connected SparkSession.
        start_timeout: a run fails after this many seconds without an executor.
        task_cpus: cores of a task, and therefore items per task.
        version: Spark's version.
    """

    def __init__(self, session: Any, start_timeout: float) -> None:
        self.session = session
        self._context = session.sparkContext
        self.task_cpus = int(self._context.getConf().get("spark.task.cpus", "1"))
        self.start_timeout = start_timeout
        self.version = str(self._context.version)  # not available once the session is stopped
        self._last_executor_at: float | None = None

    @property
    def is_local(self) -> bool:
        """Whether tasks run in the driver's own process."""
        return str(self._context.master).startswith("local[") or self._context.master == "local"

    def for_sql(self, conf: Iterable[tuple[str, str]]) -> "SparkRunner":
        """Starts an SQL session with a configuration once an executor works.

        Keys that cannot change after Spark's start are ignored.

        Raises:
            PreprocError: no executor runs a task in time.
        """
        runner = SparkRunner(self.session.newSession(), self.start_timeout)
        runner.first_job(lambda: runner.session.range(1).count())
        for key, value in conf:
            if runner.session.conf.isModifiable(key):
                runner.session.conf.set(key, value)
        return runner

    def run_tasks(
        self,
        items: Sequence[Item],
        task: Task[Item],
        on_progress: Callable[[Tally], None] = lambda _tally: None,
    ) -> Tally:
        """Runs `task` on the items, one per core; returns the sum of its counts.

        `on_progress` is called every 0.1 s with the counts so far; it may raise to stop the run.

        Raises:
            PreprocError: an item or a Spark job failed.
        """
        if not items:
            return Tally()
        size = self.task_cpus
        batches = [list(items[i : i + size]) for i in range(0, len(items), size)]
        tally: Any = self._context.accumulator(Tally(), _TallySum())
        tasks = self._context.parallelize(batches, len(batches))

        def watch() -> None:
            done = tally.value
            if done.errors:
                raise PreprocError(done.errors[0])
            on_progress(done)

        self.wait(lambda: tasks.foreach(functools.partial(_do_batch, task, tally)), watch)
        watch()
        total: Tally = tally.value
        return total

    def first_job(self, action: Callable[[], Result]) -> Result:
        """Runs the first action that needs an executor, within `start_timeout`.

        Raises:
            PreprocError: no executor runs a task in time.
        """
        deadline = time.monotonic() + self.start_timeout

        def watch() -> None:
            if time.monotonic() > deadline:
                raise PreprocError(
                    f"Spark at {self._context.master} did not start working within "
                    f"`spark_start_timeout` {self.start_timeout:g} s: "
                    f"{spark_cluster.explain(self._context)}",
                    setting="spark_start_timeout",
                )

        result = self.wait(action, watch)
        self._last_executor_at = time.monotonic()  # from now on executors can be lost
        return result

    def everywhere(self, probe: Callable[[int], Result]) -> list[Result]:
        """Runs `probe` in as many tasks as there are cores, which reaches most executors."""
        count = max(int(self._context.defaultParallelism), 2)
        results: list[Result] = self._context.parallelize(range(count), count).map(probe).collect()
        return results

    def query(self, action: Callable[[], Result], on_fraction: Callable[[float], None]) -> Result:
        """Runs a query; `on_fraction` is called with the finished fraction of its tasks."""
        group = _new_group()
        tracker = self._context.statusTracker()
        seen: dict[int, Any] = {}

        def watch() -> None:
            for job in tracker.getJobIdsForGroup(group):
                info = tracker.getJobInfo(job)
                for stage in info.stageIds if info is not None else ():
                    seen[stage] = tracker.getStageInfo(stage) or seen.get(stage)
            stages = [s for s in seen.values() if s is not None]
            if tasks := sum(s.numTasks for s in stages):
                on_fraction(sum(s.numCompletedTasks for s in stages) / tasks)

        return self.wait(action, watch, group)

    def wait(
        self,
        action: Callable[[], Result],
        watch: Callable[[], None] = lambda: None,
        group: str | None = None,
    ) -> Result:
        """Runs an action in a thread while this one handles Ctrl-C.

        `watch` is called every 0.1 s and may raise to cancel the jobs of `group`.

        Raises:
            PreprocError: a job failed, or every executor is lost.
        """
        group = group or _new_group()

        def call() -> Result:
            self._context.setJobGroup(group, "preproc", interruptOnCancel=True)
            return action()

        thread = InThread(call)
        try:
            while thread.is_alive():
                thread.join(_POLL_S)
                watch()
                self._watch_executors()
        except BaseException:
            if within(lambda: self._context.cancelJobGroup(group), _CANCEL_S):
                thread.join(_CANCEL_S)
            raise
        return thread.result("Spark gave up")

    def _watch_executors(self) -> None:
        """Raises if there has been no executor for `start_timeout` seconds."""
        if self.is_local:
            return
        alive = self._context._jsc.sc().getExecutorMemoryStatus().size() - 1
        now = time.monotonic()
        if alive > 0:
            self._last_executor_at = now
        elif (
            self._last_executor_at is not None and now - self._last_executor_at > self.start_timeout
        ):
            raise PreprocError(
                f"Spark at {self._context.master} has been without an executor for "
                f"{self.start_timeout:g} s: {spark_cluster.explain(self._context)}. The same "
                "command continues"
            )


class InThread(threading.Thread, Generic[Result]):
    """Runs an action in a thread that keeps its result or error."""

    def __init__(self, action: Callable[[], Result]) -> None:
        super().__init__(daemon=True)  # a hanging cluster must not keep the process alive
        self._action = action
        self._results: list[Result] = []
        self._error: Exception | None = None
        self.start()

    def run(self) -> None:
        """Runs the action and keeps its result or error."""
        try:
            self._results.append(self._action())
        except Exception as error:  # noqa: BLE001  (raised by `result`, in another thread)
            self._error = error

    def result(self, failure: str) -> Result:
        """Returns the result of an action that has ended.

        Raises:
            PreprocError: it failed; the message begins with `failure`, unless the action raised
                a PreprocError itself.
        """
        if self._error is None:
            return self._results[0]
        if isinstance(self._error, PreprocError):
            raise self._error
        raise PreprocError(f"{failure}: {cause(str(self._error))}") from self._error


def within(action: Callable[[], object], seconds: float) -> bool:
    """Runs an action in a thread, ignoring its errors; returns whether it ended in time.

    The thread has its own connection to Java. Ctrl-C may have interrupted a call on the current
    thread's connection; the next call there would read the wrong answer or wait forever.
    """
    thread = InThread(action)
    thread.join(seconds)
    return not thread.is_alive()


def _new_group() -> str:
    return f"preproc-{uuid.uuid4()}"


def _do_batch(task: Task[Item], tally: Any, batch: list[Item]) -> None:
    """Runs a task, and adds errors for the user to the tally."""
    try:
        tally.add(task(batch))
    except (PreprocError, KernelError) as error:
        tally.add(Tally(errors=(str(error),)))
    except OSError as error:
        if is_full(error):
            tally.add(Tally(errors=(str(error),)))
            return
        if not isinstance(error, _STORAGE_ERRORS):
            raise
        message = (
            f"executor on {socket.gethostname()}: {error}; the folders of `input`, `output` and "
            "`work_dir` must be on storage that driver and executors see under the same path"
        )
        tally.add(Tally(errors=(message,)))


def cause(text: str) -> str:
    """Extracts the last line of a Python traceback, or else Java's last cause."""
    python = re.search(
        r"Traceback \(most recent call last\):\n(.*?)(?:\n\s*\n|\n\tat |\Z)", text, re.S
    )
    if python is not None:
        return python[1].strip().splitlines()[-1][:_SHOWN_CHARACTERS]
    lines = [line.strip() for line in text.splitlines() if not line.startswith("\tat ")]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    last = causes[-1] if causes else " ".join(line for line in lines[:3] if line)
    return last[:_SHOWN_CHARACTERS]
