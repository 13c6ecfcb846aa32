# SPDX-License-Identifier: Apache-2.0
"""Settings of the data."""

import dataclasses
from typing import Literal

from recsys.ratings.config import HistoriesConfig
from recsys.settings import require_below, require_not_negative, require_positive, setting

WindowKind = Literal["recent", "random", "sliding", "prefix"]

_MOST_WORKERS = 1025
"""Exclusive upper bound; even one worker makes a batch in much less time than a step takes."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig(HistoriesConfig):
    """Settings of the data."""

    windows: WindowKind = setting(
        "sliding",
        "Windows of each history that an epoch trains on: its end (recent), one at a random "
        "position (random), overlapping ones (sliding), or the items before each item (prefix)",
    )
    dupe_factor: int = setting(3, "Times that an epoch uses each window, masked anew each time")
    train_batch_size: int = setting(128, "Sequences of a training batch")
    val_batch_size: int = setting(128, "Sequences of a validation batch", resumable=True)
    test_batch_size: int = setting(128, "Sequences of a test batch", resumable=True)
    num_workers: int | None = setting(
        None,
        "Threads per process that make the next training batches during a step; 0 makes each batch "
        "between two steps. By default 1 with a GPU, and 0 on a CPU, which the step itself needs. "
        "The batches do not depend on it",
        resumable=True,
    )

    def __post_init__(self) -> None:
        """Refuses counts below their minimum."""
        HistoriesConfig.__post_init__(self)
        require_positive(
            *(self, "dupe_factor", "train_batch_size", "val_batch_size", "test_batch_size")
        )
        require_not_negative(self, "num_workers")
        if self.num_workers is not None:
            require_below(self, "num_workers", _MOST_WORKERS)
