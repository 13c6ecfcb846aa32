# SPDX-License-Identifier: Apache-2.0
"""Settings of the evaluation."""

import dataclasses

from recsys.errors import UserError
from recsys.settings import require_known, require_positive, setting

_BASELINES = ("markov", "item_knn", "ease", "ease_recent", "recent")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    """Settings of the evaluation."""

    num_eval_negatives: int = setting(
        100, "Negatives per user in the sampled rankings", resumable=True
    )
    baselines: tuple[str, ...] = setting(
        _BASELINES,
        f"Baselines of a test, in addition to popularity: {' | '.join(_BASELINES)}. ease is as "
        "published, ease_recent scores by the last items only, recent is the popularity of the "
        "last seven days and needs a temporal split; empty for none",
        resumable=True,
        used_with={"mode": ("train", "test")},
    )
    ranks_file: str = setting(
        "",
        "File for the rank of each user's test item, .csv or .parquet; empty writes none",
        resumable=True,
        used_with={"mode": ("train", "test")},
    )
    lists_file: str = setting(
        "",
        "File for each test user's --top_k recommendations, .csv or .parquet; empty writes none",
        resumable=True,
        used_with={"mode": ("train", "test")},
    )

    def __post_init__(self) -> None:
        """Refuses unknown baselines, and result files of another format."""
        require_known(self, "baselines", _BASELINES)
        for name in ("ranks_file", "lists_file"):
            path = getattr(self, name)
            if path and not path.endswith((".csv", ".parquet")):
                raise UserError(f"`{name}` must end in .csv or .parquet, got {path}", setting=name)
        require_positive(self, "num_eval_negatives")
