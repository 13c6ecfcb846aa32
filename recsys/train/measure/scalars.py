# SPDX-License-Identifier: Apache-2.0
"""Numbers of a log under the tags that TensorBoard users expect: train/loss, test/auc."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_GROUPS = ("test", "benchmark", "profile")
"""Prefixes of names in the log that are the group of a tag."""

_SCORE = re.compile(
    r"(?:(?P<who>\w+?)_)??"
    r"(?:(?P<protocol>full_with_seen|full|popular|uniform)_)?"
    r"(?P<metric>[a-z]+@\d+|mrr|auc|gauc|log_loss|normalised_entropy|calibration|accuracy|base_rate)"
    r"(?:_(?P<end>low|high))?"
)


class Score(NamedTuple):
    """Describes a number of an evaluation.

    Attributes:
        metric: name of the metric, such as auc or ndcg@10.
        who: `model`, a baseline, or the lead of the model over a baseline.
        protocol: the ranking, or "all rows" for a click log.
        end: `low` or `high` of a 95% interval; empty for the value itself.
    """

    metric: str
    who: str = "model"
    protocol: str = ""
    end: str = ""

    @property
    def is_of_model(self) -> bool:
        """Whether the value is one of the model itself."""
        return (self.who, self.end) == ("model", "")


def score_of(name: str) -> Score | None:
    """Parses the name of a number in the log, such as lead_hr@10_low; None for other numbers."""
    if (match := _SCORE.fullmatch(name)) is None:
        return None
    who, protocol, metric, end = match.group("who", "protocol", "metric", "end")
    of_ranking = "@" in metric or metric == "mrr"
    protocol = protocol or ("full" if of_ranking else "all rows")
    return Score(metric, who or "model", protocol, end or "")


class Scalars:
    """Reads entries of a log, in their order."""

    def __init__(self) -> None:
        self.split = "validation"
        self._step = 0

    def of(self, step: Any, data: Mapping[str, Any]) -> Iterator[tuple[str, int, float]]:
        """Yields (tag, step, value) of every number of an entry."""
        if step == "PARAMETER":
            self.split = data.get("eval_split", "validation")
            return
        self._step = step[1] if step else data.get("tested_step", self._step)
        for name, value in data.items():
            if isinstance(value, int | float):
                yield self._tag(name, step, "loss" in data), self._step, value

    def _tag(self, name: str, step: Any, is_of_training: bool) -> str:
        group, _, rest = name.partition("_")
        if group in _GROUPS:
            return f"{group}/{rest}"
        if is_of_training:
            return f"train/{name}"
        return f"{self.split if step or score_of(name) else 'run'}/{name}"
