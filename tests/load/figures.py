# SPDX-License-Identifier: Apache-2.0
"""What a run shows: latencies, recoveries, wrong and lost answers, memory."""

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tests.load.changes import Event
from tests.load.client import ERROR, LOST, REFUSED, RIGHT, WRONG, Record
from tests.load.memory import Series, Slope, slope
from tests.load.messages import GOOD, LARGEST, SMALL, TOO_LARGE, Message
from tests.load.schedule import KILL_INSTANCE, KILL_SERVER

SERVED_S = 1.0
"""A good request that waits longer counts as one that is not served, for a recovery."""
_AFTER_S = 2.0
"""The window after a kill ends so long after the recovery: what had piled up is answered."""
_SHOWN_FAULTS = 50


@dataclasses.dataclass(frozen=True, slots=True)
class Recovery:
    """A kill and what followed.

    Attributes:
        kind: what was killed.
        model: whose instance; empty for the server.
        start: of the kill, in seconds.
        seconds: until good requests were answered right again, at once and all of them.
        unserved: good requests that got an error, or waited for too long.
    """

    kind: str
    model: str
    start: float
    seconds: float
    unserved: int


def recoveries(
    record: Record, messages: Sequence[Message], events: Sequence[Event]
) -> list[Recovery]:
    """Finds how long good requests were not served after each kill."""
    kills = [event for event in events if event.kind in (KILL_INSTANCE, KILL_SERVER)]
    good = np.array([bool(message.form) for message in messages])[record.numbers]
    models = np.array([message.model for message in messages])[record.numbers]
    served = (record.outcome == RIGHT) & (record.latency <= SERVED_S)
    found = []
    for kill, after in itertools.zip_longest(kills, kills[1:]):
        # From the requests that were under way when it happened up to the next kill.
        of_kill = good & (record.done > kill.start)
        of_kill &= (record.due < (after.start if after else np.inf)) & (
            (models == kill.model) | (kill.model == "")
        )
        unserved = np.flatnonzero(of_kill & ~served & (record.due < kill.end + SERVED_S))
        seconds = 0.0
        if len(unserved):
            later = of_kill & served & (record.due > record.due[unserved[-1]])
            ends = record.done[later] - kill.start
            seconds = float(ends.min(initial=np.inf))
        found.append(Recovery(kill.kind, kill.model, kill.start, seconds, len(unserved)))
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """All that a run has left.

    Attributes:
        memory: name of processes -> samples; the name is that of their kind, then a number.
        seconds: length of the run.
        client_cpu: share of a core that the client took.
    """

    record: Record
    messages: Sequence[Message]
    events: Sequence[Event]
    change_faults: Sequence[str]
    memory: Mapping[str, Series]
    seconds: float
    client_cpu: float

    def figures(self, recovery_s: float) -> dict[str, Any]:
        """Returns the figures as JSON holds them; `faults` is empty if all is well."""
        record = self.record
        kinds = np.array([message.kind for message in self.messages])[record.numbers]
        recovered = recoveries(record, self.messages, self.events)
        windows = [
            (each.start, min(each.start + each.seconds + _AFTER_S, self.seconds))
            for each in recovered
        ]
        in_window = self._within(windows)
        models = np.array([message.model for message in self.messages])[record.numbers]
        excused = np.zeros(len(record.due), np.bool_)  # an instance takes no other model away
        for each, window in zip(recovered, windows, strict=True):
            excused |= self._within([window]) & ((models == each.model) | (each.model == ""))
        excused &= record.outcome == ERROR
        changing = self._within(
            (event.start, event.end)
            for event in self.events
            if event.kind not in (KILL_INSTANCE, KILL_SERVER)
        )
        right = record.outcome == RIGHT
        small = right & np.isin(kinds, SMALL)
        faults = self._faults(excused, recovered, recovery_s)
        return {
            "requests": len(record.due),
            "outcomes": self._outcomes(),
            "errors_after_kills": int(excused.sum()),
            "small_latency_ms": {
                "all": _percentiles(record.latency[small]),
                "without_kills": _percentiles(record.latency[small & ~in_window]),
                "while_changing": _percentiles(record.latency[small & ~in_window & changing]),
                "quiet": _percentiles(record.latency[small & ~in_window & ~changing]),
            },
            "latency_ms": {
                kind: _percentiles(record.latency[right & (kinds == kind)])
                for kind in (*GOOD, LARGEST)
            },
            "refusal_ms": {
                name: _percentiles(record.latency[(record.outcome == REFUSED) & of_kind])
                for name, of_kind in {
                    "bad": kinds != TOO_LARGE,
                    TOO_LARGE: kinds == TOO_LARGE,
                }.items()
            },
            "sent_late_ms": _percentiles((record.sent - record.due)[~in_window]),
            "client_cpu": round(self.client_cpu, 3),
            "events": dict(collections.Counter(event.kind for event in self.events)),
            "windows_s": round(sum(end - start for start, end in windows), 1),
            "recoveries": [
                dataclasses.asdict(each) | {"seconds": _rounded(each.seconds)} for each in recovered
            ],
            "memory": {
                kind: _memory(series, self.seconds)
                for kind, series in self._series_by_kind().items()
            },
            "faults": faults,
        }

    def _within(self, windows: Iterable[tuple[float, float]]) -> Any:
        """Returns which requests were under way in a window."""
        within = np.zeros(len(self.record.due), np.bool_)
        for start, end in windows:
            within |= (self.record.done > start) & (self.record.due < end)
        return within

    def _outcomes(self) -> dict[str, int]:
        names = {RIGHT: "right", REFUSED: "refused", ERROR: "error", WRONG: "wrong", LOST: "lost"}
        return {name: int((self.record.outcome == code).sum()) for code, name in names.items()}

    def _faults(self, excused: Any, recovered: Sequence[Recovery], recovery_s: float) -> list[str]:
        record, faults = self.record, [*self.change_faults]
        for each in recovered:
            if each.seconds > recovery_s:
                what = f"{each.kind} {each.model}".rstrip()
                faults.append(f"{what} at {each.start:.1f} s: recovered after {each.seconds:.1f} s")
        wrong = np.isin(record.outcome, (WRONG, LOST, ERROR)) & ~excused
        for number in np.flatnonzero(wrong).tolist():
            message = self.messages[record.numbers[number]]
            faults.append(
                f"request {number}, due at {record.due[number]:.3f} s, message "
                f"{record.numbers[number]} ({message.kind} of {message.model} over {message.way}, "
                f"{message.form or 'bad'} from row {message.start}): {record.texts[number]}"
            )
        return faults

    def _series_by_kind(self) -> dict[str, list[Series]]:
        kinds: dict[str, list[Series]] = {}
        for name, series in self.memory.items():
            kinds.setdefault(name.partition("#")[0], []).append(series)
        return kinds


def _percentiles(seconds: Any) -> dict[str, float]:
    """Returns percentiles in milliseconds; empty without a request."""
    if not len(seconds):
        return {}
    values = np.percentile(seconds, [50, 90, 99, 99.9, 100]) * 1e3
    names = ("p50", "p90", "p99", "p99.9", "max")
    return {"count": len(seconds)} | dict(zip(names, values.round(2).tolist(), strict=True))


def _rounded(number: float) -> float | None:
    """Returns a number for JSON, which has no others than finite ones."""
    return round(number, 2) if math.isfinite(number) else None


def _memory(series: Sequence[Series], seconds: float) -> dict[str, Any]:
    fitted: Slope = slope(series, seconds / 4, seconds)
    return {
        "first_mib": round(series[0].mib[0], 1),
        "last_mib": round(series[-1].mib[-1], 1),
        "most_mib": round(max(max(each.mib) for each in series), 1),
        "slope_mib_per_h": _rounded(fitted.mib_per_h),
        "slope_error": _rounded(fitted.error),
        "flat": fitted.is_flat,
    }


def lines(figures: Mapping[str, Any]) -> list[str]:
    """Returns the figures as a short text."""
    told = [f"{figures['requests']:,} requests at {figures['rate']:.0f}/s: "
            + ", ".join(f"{count:,} {name}" for name, count in figures["outcomes"].items())
            + f" ({figures['errors_after_kills']:,} errors after a kill)"]  # fmt: skip
    told.append(f"{'':24} {'count':>9} {'p50 ms':>8} {'p90 ms':>8} {'p99 ms':>8} {'max ms':>8}")
    rows = {f"small, {name}": of for name, of in figures["small_latency_ms"].items()}
    rows |= figures["latency_ms"]
    rows |= {f"refused, {name}": of for name, of in figures["refusal_ms"].items()}
    rows |= {"sent late by": figures["sent_late_ms"]}
    for name, of in rows.items():
        if of:
            told.append(
                f"{name:24} {of['count']:9,} {of['p50']:8.2f} {of['p90']:8.2f} {of['p99']:8.2f} "
                f"{of['max']:8.0f}"
            )
    for each in figures["recoveries"]:
        after = "never" if each["seconds"] is None else f"{each['seconds']:.2f} s"
        told.append(
            f"{each['kind']} {each['model']} at {each['start']:.0f} s: recovered after {after}, "
            f"{each['unserved']} requests not served"
        )
    for name, of in figures["memory"].items():
        told.append(
            f"memory of {name}: {of['first_mib']} to {of['last_mib']} MiB, at most "
            f"{of['most_mib']}; {of['slope_mib_per_h']} MiB/h, standard error {of['slope_error']}"
        )
    events = ", ".join(f"{count} x {kind}" for kind, count in figures["events"].items())
    told.append(f"{events}; {figures['windows_s']:.0f} s after kills")
    told.append(f"the client took {figures['client_cpu']:.0%} of a core")
    told.append(f"{len(figures['faults'])} faults")
    return told + [f"  {fault}" for fault in figures["faults"][:_SHOWN_FAULTS]]
