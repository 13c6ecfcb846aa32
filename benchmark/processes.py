# SPDX-License-Identifier: Apache-2.0
"""Measures time and memory of processes."""

import contextlib
import ctypes
import dataclasses
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

SAMPLE_S = 0.01
_ORPHANS_S = 60
_PR_SET_CHILD_SUBREAPER = 36


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessUsage:
    """Resources used by a process and its children.

    Attributes:
        wall_s: seconds from start to end of the process.
        cpu_s: user and system seconds, also of children that outlive it (Spark's Java).
        peak_anon_mib: peak of the summed anonymous memory, sampled every 10 ms. Mapped files, which
            the kernel can drop, do not count; pages shared by forked processes count for each.
        exit_status: exit status, or minus the number of the signal that ended the process.
        output: last 4,000 characters of output and errors.
    """

    wall_s: float
    cpu_s: float
    peak_anon_mib: float
    exit_status: int
    output: str


def run_process(
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
    timeout_s: float | None = None,
) -> ProcessUsage:
    """Measures the resources of a command; kills its group after `timeout_s`."""
    with tempfile.TemporaryFile() as log, _adopted_orphans() as wait_for_orphans:
        start = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            cwd=folder,
            start_new_session=True,
        )
        stop = threading.Event()
        peak_kib = [0]

        def sample() -> None:
            while True:
                peak_kib[0] = max(peak_kib[0], anonymous_kib(process.pid))
                if stop.wait(SAMPLE_S):
                    return

        sampler = threading.Thread(target=sample, daemon=True)
        sampler.start()
        killer = threading.Timer(timeout_s or 0, _kill_group, (process.pid,))
        if timeout_s is not None:
            killer.start()
        try:
            # wait4 returns the time of this child and its reaped children; getrusage would return
            # the sum over all children that this process ever had.
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:  # Ctrl-C does not reach the process: it has its own session
            _kill_group(process.pid)
            raise
        finally:
            wall_s = time.perf_counter() - start
            killer.cancel()
            stop.set()
            sampler.join()
        process.returncode = os.waitstatus_to_exitcode(status)
        cpu_s = usage.ru_utime + usage.ru_stime + wait_for_orphans()
        log.seek(0)
        return ProcessUsage(
            wall_s=wall_s,
            cpu_s=cpu_s,
            peak_anon_mib=peak_kib[0] / 1024,
            exit_status=process.returncode,
            output=log.read().decode(errors="replace")[-4000:],
        )


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


@contextlib.contextmanager
def _adopted_orphans() -> Iterator[Callable[[], float]]:
    """Makes this process the parent of orphaned descendants.

    Otherwise their CPU time would be lost, and they could run on into the next measurement.

    Yields:
        A function that waits for orphans, kills them after a minute, and returns their CPU seconds.
    """
    before = set(_children(os.getpid()))

    def wait() -> float:
        cpu_s, deadline = 0.0, time.monotonic() + _ORPHANS_S
        while orphans := set(_children(os.getpid())) - before:
            for orphan in orphans:
                pid, _, usage = os.wait4(orphan, os.WNOHANG)
                if pid:
                    cpu_s += usage.ru_utime + usage.ru_stime
                elif time.monotonic() > deadline:
                    os.kill(orphan, signal.SIGKILL)
            time.sleep(SAMPLE_S)
        return cpu_s

    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield wait
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _children(pid: int) -> list[int]:
    """Returns the process ids of a process's children.

    Raises:
        OSError: the process has ended.
    """
    children: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread may have ended in between
            children += map(int, (thread / "children").read_text().split())
    return children


def anonymous_kib(pid: int) -> int:
    """Returns the anonymous memory of a process tree in KiB."""
    total = 0
    waiting = [pid]
    while waiting:
        process = waiting.pop()
        try:
            status = Path(f"/proc/{process}/status").read_text()
            children = _children(process)
        except OSError:
            continue  # the process has ended meanwhile
        for line in status.splitlines():
            if line.startswith("RssAnon:"):
                total += int(line.split()[1])
        waiting += children
    return total


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of a process, such as a server or one of its instances, in bytes.

    Attributes:
        pss: proportional set size: a page that n processes map counts 1/n.
        rss: resident set size: all mapped pages in memory.
        anonymous: pages that no file backs, such as a copied table.
    """

    pss: int
    rss: int
    anonymous: int


def process_memory(pid: int) -> ProcessMemory:
    """Returns the memory of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.partition(":")[0]: line.split()[1] for line in lines}
    return ProcessMemory(*(int(sizes[key]) << 10 for key in ("Pss", "Rss", "Anonymous")))
