# SPDX-License-Identifier: Apache-2.0
"""Whether a model is ahead of baselines, by paired intervals."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

VERDICT = "verdict"
"""Key of the log under which `Verdict.sentence` stands."""


@dataclasses.dataclass(frozen=True, slots=True)
class Lead:
    """By how much a model differs from a baseline in a metric.

    Attributes:
        metric: name of the metric.
        baseline: name of the baseline.
        value: the model's metric less the baseline's.
        low: low end of the 95% interval of that, paired by row or user.
        high: high end.
        less_is_better: whether the metric is a loss.
    """

    metric: str
    baseline: str
    value: float
    low: float
    high: float
    less_is_better: bool = False

    def __str__(self) -> str:
        """Returns it in words."""
        interval = f"95%: {self.low:+.4f} to {self.high:+.4f}"
        return f"Model less {self.baseline}, {self.metric}: {self.value:+.4f} ({interval})"

    @property
    def stands(self) -> Literal["ahead", "behind", "level"]:
        """Where the model stands: an interval with zero in it tells neither."""
        if self.low > 0 or self.high < 0:
            return "ahead" if (self.low > 0) != self.less_is_better else "behind"
        return "level"


def verdict(leads: Sequence[Lead]) -> str:
    """Tells in words where a model stands.

    It is behind if it is clearly so in one metric, ahead if it is clearly so in one and behind in
    none.
    """
    behind, ahead, level = (
        [lead for lead in leads if lead.stands == where] for where in ("behind", "ahead", "level")
    )
    if behind:
        so_far = f", though ahead of {_named(ahead)}" if ahead else ""
        return f"behind {_named(behind)}{so_far}; train on, or take the baseline"
    if ahead:
        return f"ahead of {_named(ahead)}" + (f"; level with {_named(level)}" if level else "")
    return f"no clear lead, level with {_named(level)}"


def _named(leads: Sequence[Lead]) -> str:
    """Names baselines, each with its metrics, those of the same metrics together."""
    metrics: dict[str, list[str]] = {}
    for lead in leads:
        metrics.setdefault(lead.baseline, []).append(lead.metric)
    baselines: dict[str, list[str]] = {}
    for baseline, of_it in metrics.items():
        baselines.setdefault(" and ".join(of_it), []).append(baseline)
    return " and ".join(f"{' and '.join(names)} in {of}" for of, names in baselines.items())
