# SPDX-License-Identifier: Apache-2.0
"""Work on the executors of a connected Spark: started, watched, counted, and stopped by Ctrl-C.

What a task did comes back through one accumulator, so progress is exact and nothing is polled on
the storage. What the user has to mend (a damaged file, a full disk) comes back the same way: as an
exception it would be tried again four times and end in a page of Java.
"""

import contextlib
import functools
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

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
    """How Spark adds tallies up (its AccumulatorParam)."""

    def zero(self, _value: Tally) -> Tally:
        return Tally()

    def addInPlace(self, first: Tally, second: Tally) -> Tally:  # noqa: N802
        return first + second


Task = Callable[[list[Item]], Tally]
"""Does some items on an executor; looked up there by its name, so it is a module's function or a
partial of one."""


class _Accumulator(Protocol):
    @property
    def value(self) -> Tally: ...

    def add(self, term: Tally) -> None: ...


class SparkRunner:
    """Runs work on executors and waits for it.

    Args:
        session: the SparkSession.
        start_timeout: seconds without any executor after which the run ends.

    Attributes:
        session: the SparkSession.
        start_timeout: seconds without any executor after which the run ends.
        task_cpus: cores of a task; so many items are given to each.
    """

    def __init__(self, session: Any, start_timeout: float) -> None:
        self.session = session
        self._context = session.sparkContext
        self.task_cpus = int(self._context.getConf().get("spark.task.cpus", "1"))
        self.start_timeout = start_timeout
        self.version = str(self._context.version)
        """Spark's version; read at once, for a stopped session no longer tells it."""
        self._without_executor: float | None = None

    @property
    def is_local(self) -> bool:
        """Whether tasks run in the driver's own process."""
        return str(self._context.master).startswith("local[") or self._context.master == "local"

    def for_sql(self, conf: Iterable[tuple[str, str]]) -> "SparkRunner":
        """Returns a runner with views and settings of its own, once an executor works.

        Args:
            conf: keys and values; those that only a new Spark could take are left out.

        Raises:
            PreprocError: no executor works in time.
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
        """Does every item on some executor.

        Args:
            items: in the order in which they are to be started.
            task: does as many as a task has cores.
            on_progress: told now and then what is done; may raise, which ends the rest.

        Raises:
            PreprocError: an item cannot be done, or Spark gave up.
        """
        if not items:
            return Tally()
        size = self.task_cpus
        batches = [list(items[i : i + size]) for i in range(0, len(items), size)]
        tally: _Accumulator = self._context.accumulator(Tally(), _TallySum())
        tasks = self._context.parallelize(batches, len(batches))

        def watch() -> None:
            done = tally.value
            if done.errors:
                raise PreprocError(done.errors[0])
            on_progress(done)

        self.wait(lambda: tasks.foreach(functools.partial(_do_batch, task, tally)), watch)
        watch()
        return tally.value

    def first_job(self, action: Callable[[], Result]) -> Result:
        """Returns what an action gives, which needs an executor; Spark would wait for ever.

        Raises:
            PreprocError: no executor works in time.
        """
        deadline = time.monotonic() + self.start_timeout

        def watch() -> None:
            if time.monotonic() > deadline:
                raise PreprocError(
                    f"Spark at {self._context.master} did not start working within "
                    f"`spark_start_timeout` {self.start_timeout:g} s: "
                    f"{spark_cluster.explain(self._context)}"
                )

        result = self.wait(action, watch)
        self._without_executor = time.monotonic()  # from now on it can be lost
        return result

    def everywhere(self, look: Callable[[int], Result]) -> list[Result]:
        """Calls `look` in as many tasks as there are cores: most executors get one."""
        count = max(int(self._context.defaultParallelism), 2)
        found: list[Result] = self._context.parallelize(range(count), count).map(look).collect()
        return found

    def query(self, action: Callable[[], Result], on_fraction: Callable[[float], None]) -> Result:
        """Returns what an action of Spark SQL gives; tells now and then how far its tasks are."""
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
        """Returns what an action of Spark gives; meanwhile the main thread stays awake.

        Args:
            action: starts jobs and waits for them.
            watch: called now and then; may raise, which cancels the jobs, as Ctrl-C does.
            group: name of the jobs; None makes one.

        Raises:
            PreprocError: Spark gave up, or every executor is lost.
        """
        group = group or _new_group()
        results: list[Result] = []
        errors: list[Exception] = []

        def call() -> None:
            try:
                self._context.setJobGroup(group, "preproc", interruptOnCancel=True)
                results.append(action())
            except Exception as error:  # noqa: BLE001  (raised below, by the main thread)
                errors.append(error)

        # A daemon: where the cluster hangs, the process must still be able to end.
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(_POLL_S)
                watch()
                self._watch_executors()
        except BaseException:
            if within(lambda: self._context.cancelJobGroup(group), _CANCEL_S):
                thread.join(_CANCEL_S)
            raise
        if errors:
            if isinstance(errors[0], PreprocError):
                raise errors[0]
            raise PreprocError(f"Spark gave up: {cause(str(errors[0]))}") from errors[0]
        return results[0]

    def _watch_executors(self) -> None:
        """Ends the run when all executors are lost and no other comes."""
        if self.is_local:
            return
        alive = self._context._jsc.sc().getExecutorMemoryStatus().size() - 1
        now = time.monotonic()
        if alive > 0:
            self._without_executor = now
        elif (
            self._without_executor is not None and now - self._without_executor > self.start_timeout
        ):
            raise PreprocError(
                f"Spark at {self._context.master} has had no executor for "
                f"{self.start_timeout:g} s: {spark_cluster.explain(self._context)}. The same "
                "command continues"
            )


def within(action: Callable[[], object], seconds: float) -> bool:
    """Returns whether an action was done in time; it goes on by itself where not.

    In a thread of its own, so on a connection to Java of its own: Ctrl-C may have hit this thread
    in the middle of a call, and the next call would read the answer to that one, or wait for ever.
    """

    def call() -> None:
        with contextlib.suppress(Exception):  # Java may be gone already
            action()

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _new_group() -> str:
    return f"preproc-{uuid.uuid4()}"


def _do_batch(task: Task[Item], tally: _Accumulator, batch: list[Item]) -> None:
    """Does the items of one task; what the user has to mend is counted, not raised."""
    try:
        tally.add(task(batch))
    except (PreprocError, KernelError) as error:
        tally.add(Tally(errors=(str(error),)))
    except _STORAGE_ERRORS as error:
        message = (
            f"executor on {socket.gethostname()}: {error}; the folders of `input`, `output` and "
            "`work_dir` must be on storage that driver and executors see under the same path"
        )
        tally.add(Tally(errors=(message,)))


def cause(text: str) -> str:
    """Returns what a page of Java says: the last line of Python's traceback, else the cause."""
    python = re.search(
        r"Traceback \(most recent call last\):\n(.*?)(?:\n\s*\n|\n\tat |\Z)", text, re.S
    )
    if python is not None:
        found = python[1].strip().splitlines()[-1]
    else:
        lines = [line.strip() for line in text.splitlines() if not line.startswith("\tat ")]
        causes = [line for line in lines if line.startswith("Caused by: ")]
        found = causes[-1] if causes else " ".join(line for line in lines[:3] if line)
    return found[:_SHOWN_CHARACTERS]
