# SPDX-License-Identifier: Apache-2.0
"""The nearest neighbours of each item, by the users who interacted with both."""

import dataclasses
import itertools
from typing import Self

import numpy as np
from scipy import sparse

from recsys.data.sequences.histories import Sequences
from recsys.ratings.data.interactions import met_items
from recsys.ratings.fitted.item_to_item import HistorySettings, ItemToItem
from recsys.settings import require_not_negative, require_positive, setting
from recsys.train.config import OF_TRAINING

_BLOCK = 1 << 22
"""Upper bound on the entries of the matrix that are computed at once."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ItemKnnSettings(HistorySettings):
    """Settings of the neighbours."""

    neighbours: int = setting(100, "Nearest neighbours kept for each item", used_with=OF_TRAINING)
    shrinkage: float = setting(
        10, "Added to a cosine's denominator; lowers cosines of few users", used_with=OF_TRAINING
    )

    def __post_init__(self) -> None:
        """Refuses items without neighbours, and a negative shrinkage."""
        HistorySettings.__post_init__(self)
        require_positive(self, "neighbours")
        require_not_negative(self, "shrinkage")


class ItemKnn(ItemToItem[ItemKnnSettings]):
    """Shrunk cosines of each item's nearest neighbours, by the users of the items.

    Source: Sarwar et al., "Item-based collaborative filtering", 2001; the shrinkage is Bell and
    Koren's, 2007.
    """

    __slots__ = ()
    name = "item_knn"
    title = "ItemKNN"
    settings_class = ItemKnnSettings

    @classmethod
    def fit(cls, sequences: Sequences, settings: ItemKnnSettings) -> Self:
        """Computes the cosines of all items, and keeps the largest ones of each item."""
        met, blocks, kept = met_items(sequences), [], settings.neighbours
        by_item, users = met.T.tocsr(), met.sum(0)
        size = max(_BLOCK // sequences.num_items, 1)
        for begin in range(0, sequences.num_items, size):
            cosines = by_item[begin : begin + size] @ met  # so far, the users who met both
            cosines.sort_indices()  # of equal cosines, those of the first items are kept
            row = np.repeat(np.arange(cosines.shape[0]), np.diff(cosines.indptr)) + begin
            column = cosines.indices
            cosines.data /= np.sqrt(users[row] * users[column]) + settings.shrinkage
            cosines.data[row == column] = 0
            for start, end in itertools.pairwise(cosines.indptr):
                if end - start > kept:
                    of_item = cosines.data[start:end]
                    of_item[np.argpartition(of_item, -kept)[:-kept]] = 0
            cosines.eliminate_zeros()
            blocks.append(cosines)
        return cls(settings, sparse.vstack(blocks).T.tocsr())
