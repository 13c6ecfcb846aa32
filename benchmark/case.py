# SPDX-License-Identifier: Apache-2.0
"""A case of a benchmark: its settings, candidates and values.

A case is a module of benchmark/cases with a class `CASE`, whose fields are its flags, or a YAML
file there (`benchmark.commands`). The runner does the rest.
"""

import abc
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from benchmark.record import Direction, Record

LOWER_UNITS = frozenset(("s", "ms", "us", "min", "bytes", "MiB"))
"""Units in which less is better."""


class Key(NamedTuple):
    """Names a value: row and column of the table, and its unit."""

    row: str
    metric: str
    unit: str = ""


Values = Mapping[Key, float]
"""Measured values; NaN where a measurement failed."""

Measure = Callable[[int], Values]
"""Measures a candidate once, with the seed of this run."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Candidates that are measured in turns.

    Attributes:
        candidates: name -> function that measures it once.
        derive: computes further values of a round from those of its candidates, such as ratios, in
            which the drift of the machine cancels.
        once: measure only one round.
        warmup: unmeasured calls of each candidate before the first round.
    """

    candidates: Mapping[str, Measure]
    derive: Callable[[Mapping[str, Values]], Values] = lambda _: {}
    once: bool = False
    warmup: int = 0


class Case(abc.ABC):
    """A benchmark.

    Attributes:
        repeats: default number of rounds.
        lower: metrics in which less is better although their unit does not show it.
    """

    repeats: ClassVar[int] = 5
    lower: ClassVar[frozenset[str]] = frozenset()

    @property
    def name(self) -> str:
        """Name of the benchmark and of its results: the module's."""
        return type(self).__module__.rpartition(".")[2]

    @property
    def seeded(self) -> bool:
        """Whether the seed of a round changes its values."""
        return False

    @property
    def processes(self) -> int:
        """Processes that measure together, started by torchrun if more than one."""
        return 1

    @abc.abstractmethod
    def config(self) -> dict[str, Any]:
        """Returns the settings that change the values, for the records."""

    @abc.abstractmethod
    def groups(self, folder: Path) -> Iterator[Group]:
        """Yields the candidates; each group is measured before the next is made."""

    def judge(self, key: Key) -> tuple[Direction, str]:
        """Returns the better direction and the largest change that does not count."""
        is_lower = key.unit in LOWER_UNITS or key.metric in self.lower
        return "lower" if is_lower else "higher", "5%"

    def fault(self, records: Sequence[Record]) -> str:  # noqa: ARG002
        """Returns why the results are wrong; empty if they are right."""
        return ""
