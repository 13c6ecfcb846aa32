# SPDX-License-Identifier: Apache-2.0
"""Decides by paired intervals whether a model is ahead of baselines."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

VERDICT = "verdict"
"""Key in the log that holds `Verdict.sentence`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Lead:
    """How far a model differs from a baseline in a metric.

    Attributes:
        metric: name of the metric.
        baseline: name of the baseline.
        value: the model's metric minus the baseline's.
        low: lower end of the 95% interval of `value`, paired by row or user.
        high: upper end of that interval.
        less_is_better: whether a lower metric is better, as for a loss.
    """

    metric: str
    baseline: str
    value: float
    low: float
    high: float
    less_is_better: bool = False

    def __str__(self) -> str:
        """Returns the difference as text."""
        interval = f"95%: {self.low:+.4f} to {self.high:+.4f}"
        return f"Model less {self.baseline}, {self.metric}: {self.value:+.4f} ({interval})"

    @property
    def outcome(self) -> Literal["ahead", "behind", "level"]:
        """Whether the model is ahead or behind; level if the interval contains zero."""
        if self.low > 0 or self.high < 0:
            return "ahead" if (self.low > 0) != self.less_is_better else "behind"
        return "level"


def verdict(leads: Sequence[Lead]) -> str:
    """Returns a sentence on whether a model is ahead.

    It is behind if it is clearly behind in any metric, and ahead if it is clearly ahead in one and
    behind in none.
    """
    behind, ahead, level = (
        [lead for lead in leads if lead.outcome == where] for where in ("behind", "ahead", "level")
    )
    if behind:
        so_far = f", though ahead of {_named(ahead)}" if ahead else ""
        return f"behind {_named(behind)}{so_far}; train on, or take the baseline"
    even = f"no significant difference from {_named(level)}"
    if ahead:
        return f"ahead of {_named(ahead)}" + (f"; {even}" if level else "")
    return even


def _named(leads: Sequence[Lead]) -> str:
    """Names baselines with their metrics; baselines with the same metrics are joined."""
    metrics: dict[str, list[str]] = {}
    for lead in leads:
        metrics.setdefault(lead.baseline, []).append(lead.metric)
    baselines: dict[str, list[str]] = {}
    for baseline, of_it in metrics.items():
        baselines.setdefault(" and ".join(of_it), []).append(baseline)
    return " and ".join(f"{' and '.join(names)} in {of}" for of, names in baselines.items())
