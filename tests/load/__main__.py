# SPDX-License-Identifier: Apache-2.0
"""Loads a real server with good, bad and huge requests while its models change and it is killed.

    python -m tests.load [--minutes N] [--seed N] [--rate N] [--output FILE]

Run it with the Python that has Triton (.venv-triton/bin/python). Requests are due at random moments
(a Poisson process), whatever the server does, and latency counts from then. Each answer is compared
with the offline one of the version that gave it. Without --rate, 70% of the largest rate is taken
whose p99 of small requests stays within 10 ms. Meanwhile versions are deployed, deltas applied,
models rolled back, old versions removed, and instances and the server killed. The seed draws the
requests, and what happens when.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import multiprocessing
import resource
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from recsys.interruption import send_when_parent_ends
from recsys.serve.client.arrivals import ArrivalsResult, find_largest_rate
from recsys.serve.server.instances import find_instances
from recsys.train.measure.timing import LatencySummary
from tests.load.changes import Changes
from tests.load.client import RIGHT, Client, Record
from tests.load.figures import Run, lines
from tests.load.memory import MemorySampler
from tests.load.messages import SMALL, messages
from tests.load.models import Model, serving_models
from tests.load.schedule import draw, plan
from tests.triton.test_supervisor import Served

_P99_S = 0.010
_SHARE = 0.7
"""Of the largest rate within the limit."""
_FIRST_RATE, _LEAST_RATE = 50.0, 5.0
_SEARCH_S = 15.0
"""Length of each measurement of the search for that rate."""
_AFTER_CHANGES_S = 60.0
"""Nothing changes at the end, so that every kill's recovery is seen."""
_WARM_RATE, _WARM_S = 20.0, 5.0


class Load:
    """A running server and all requests to it.

    Attributes:
        interrupted: whether somebody asked to end before the time.
    """

    def __init__(self, served: Served, repository: Path, models: Sequence[Model], seed: int):
        self._served, self._repository, self._models = served, repository, models
        self._seed = seed
        self.interrupted = False
        self._messages, self._shares = messages(models)
        gc.collect()
        gc.freeze()  # a collection of all the prepared requests would delay some

    def _send(self, record: Record, start: float) -> tuple[Record, float]:
        """Sends requests; returns what became of them, and the share of a core that this took.

        A process of its own sends them: watching the server would delay them.

        Args:
            record: the requests.
            start: time of `time.perf_counter` from which they are due.
        """
        forked = multiprocessing.get_context("fork")
        reader, writer = forked.Pipe(duplex=False)
        process = forked.Process(target=self._client, args=(record, start, writer), daemon=True)
        process.start()
        writer.close()
        try:
            reader.poll(None)
        except KeyboardInterrupt:
            print("interrupted; the figures are of what was done so far", flush=True)
            self.interrupted = True
            process.terminate()
        sent: tuple[Record, float] = reader.recv()
        process.join()
        return sent

    def _client(self, record: Record, start: float, writer: Connection) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process asks by SIGTERM
        send_when_parent_ends(signal.SIGKILL)

        async def send() -> None:
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
            http = self._served.http.removeprefix("http://")
            async with Client(http, self._served.grpc, self._messages, self._models) as client:
                with contextlib.suppress(asyncio.CancelledError):
                    await client.run(record, start)

        began, used = time.perf_counter(), time.process_time()
        # Of the selectors, only this one does not round times up to milliseconds.
        selector = selectors.SelectSelector()
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
            runner.run(send())
        cpu = (time.process_time() - used) / (time.perf_counter() - began)
        writer.send((record, cpu))

    def find_rate(self) -> float:
        """Returns 70% of the largest rate whose p99 of small requests is within the limit."""
        small = np.array([message.kind in SMALL for message in self._messages])

        def measure(rate: float) -> ArrivalsResult:
            if rate < _LEAST_RATE:
                raise SystemExit(f"no rate has a p99 within {_P99_S * 1e3:.0f} ms")
            drawn = draw(self._shares, rate, _SEARCH_S, self._seed)
            record, _ = self._send(drawn, soon())
            if self.interrupted:
                raise KeyboardInterrupt
            counted = small[record.numbers] & (record.outcome == RIGHT)
            latency = LatencySummary.of(record.latency[counted].tolist())
            print(f"{rate:.0f}/s: p99 {latency.p99_s * 1e3:.2f} ms", flush=True)
            ends = float(record.due[-1]), float(record.done.max())
            return ArrivalsResult(1, rate, 1, latency, len(record.due), *ends)

        found = find_largest_rate(measure, _P99_S, _FIRST_RATE)
        assert found is not None
        return _SHARE * found.rate

    def run(self, rate: float, seconds: float) -> Run:
        """Loads the server while it changes."""
        self._send(draw(self._shares, _WARM_RATE, _WARM_S, self._seed), soon())
        record = draw(self._shares, rate, seconds, self._seed)
        changes = Changes(self._served, self._repository, self._models, self._seed)
        stop = threading.Event()
        last = seconds - min(_AFTER_CHANGES_S, seconds / 4)
        began = soon()
        todo = (plan(last, self._seed), began, last, stop)
        changing = threading.Thread(target=changes.run, args=todo)
        with MemorySampler(self._processes(), began) as memory:
            changing.start()
            try:
                record, cpu = self._send(record, began)
            finally:
                took = time.perf_counter() - began
                stop.set()
                changing.join()
        faults = [] if self.interrupted else changes.faults  # what is under way fails then
        return Run(
            record.finished(), self._messages, changes.events, faults, memory.series, took, cpu
        )

    def _processes(self) -> Callable[[], dict[str, list[int]]]:
        """Returns a function that finds the processes; each start of the server is a new series."""
        numbers: dict[int, int] = {}

        def find() -> dict[str, list[int]]:
            server, found = self._served.server_pid, {"supervisor": [self._served.pid]}
            if server is not None:
                number = numbers.setdefault(server, len(numbers))
                found[f"server#{number}"] = [server]
                instances = [i.pid for i in find_instances(server) if not i.fault]
                if instances:
                    found[f"instances#{number}"] = instances
            return found

        return find


def soon() -> float:
    """Returns a moment that is far enough away to prepare for."""
    return time.perf_counter() + 1.0


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns 1 if there was a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.load", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, help="requests a second; by default searched")
    parser.add_argument("--recovery_s", type=float, default=5.0, help="longest after a kill")
    parser.add_argument("--output", type=Path, help="JSON file of the figures")
    options = parser.parse_args(arguments)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with serving_models() as (served, repository, models):
        load = Load(served, repository, models, options.seed)
        rate = options.rate or load.find_rate()
        run = load.run(rate, 60 * options.minutes)
    asked = {"seed": options.seed, "minutes": options.minutes, "rate": round(rate, 1)}
    figures: dict[str, Any] = asked | run.figures(options.recovery_s)
    print("\n".join(lines(figures)))
    if options.output is not None:
        options.output.write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if figures["faults"] else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
