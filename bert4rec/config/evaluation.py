# SPDX-License-Identifier: Apache-2.0
"""Settings of the evaluation."""

import dataclasses
from typing import Literal

from recsys.errors import UserError
from recsys.settings import (
    joined,
    require_below,
    require_not_negative,
    require_positive,
    setting,
)

Ranking = Literal["full", "popular", "uniform"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    """Settings of the evaluation."""

    metric_ks: tuple[int, ...] = setting(
        (1, 5, 10, 20, 50, 100), "Lengths K of the lists that HR@K and NDCG@K judge", resumable=True
    )
    num_eval_negatives: int = setting(
        100, "Negatives per user of the sampled rankings", resumable=True
    )
    eval_seed: int = setting(
        12345,
        "Seed of the negatives and of the resampling, so that trainings with several seeds are "
        "judged alike",
        resumable=True,
    )
    choose_by: Ranking = setting(
        "full",
        "Ranking whose NDCG@10 on the validation items decides which checkpoint is best",
    )
    bootstrap_samples: int = setting(
        1000, "Resamplings of the users behind each interval", resumable=True
    )
    ranks_file: str = setting(
        "",
        "File for the rank of each user's test item, .csv or .parquet; empty writes none",
        resumable=True,
    )
    report_slices: bool = setting(
        False,
        "Report the test by length of the history and frequency of the item, cold ones included, "
        "and the share of items in the best --top_k of any user",
        resumable=True,
    )

    def __post_init__(self) -> None:
        """Refuses lists without a length, and ranks in another format."""
        if self.ranks_file and not self.ranks_file.endswith((".csv", ".parquet")):
            raise UserError(f"`ranks_file` must end in .csv or .parquet, got {self.ranks_file}")
        require_positive(self, "num_eval_negatives")
        require_not_negative(self, "eval_seed")
        require_below(self, "eval_seed", 2**63)
        if not self.metric_ks or min(self.metric_ks) < 1:
            raise UserError(f"`metric_ks` must be positive, got {joined(self.metric_ks)!r}")
