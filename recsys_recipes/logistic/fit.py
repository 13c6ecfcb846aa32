# SPDX-License-Identifier: Apache-2.0
"""Fits a logistic regression to all training rows of a dataset."""

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dlrm.data.check_rows import name_only_class
from dlrm.model.groups import WEIGHT, table_group
from dlrm.nn.embedding import read_tables
from dlrm.train.baselines.fit_rows import FitRows, chosen_by
from recsys.data.click_columns import ClickColumns
from recsys.data.row_reader import BLOCK_ROWS
from recsys.errors import UserError
from recsys.models.logistic.regression import LogisticRegression
from recsys.resources import memory_limits
from recsys.sizes import format_bytes
from recsys.train.recipe import PrintLine
from recsys_recipes.logistic.config import LogisticSettings
from recsys_recipes.logistic.network import LogisticNetwork

GROUP = "linear"
"""Group of the tensors that are not tables."""
_MOST_CHOOSING = 1 << 18
"""Validation rows that choose the penalty."""
_USABLE = 0.9
"""Fraction of the available memory that the rows may fill, if a part of them is advised."""
_BYTES_OF_VALUE = 3 * (8 + 4)
"""For a value of the matrix: number and column, three times, since joining blocks copies them."""
_BYTES_OF_ID = 8 + 4 + 8 + 4
"""For an id: its count, column and weight, in float64 and float32."""


@dataclasses.dataclass(frozen=True, slots=True)
class FittedLogistic:
    """A logistic regression that was just fitted; see `FittedClicks`.

    Attributes:
        settings: settings of the model.
        network: the model.
        story: how it was fitted, in words.
        penalty: strength of L2.
    """

    settings: LogisticSettings
    network: LogisticNetwork
    story: str
    penalty: float

    def __str__(self) -> str:
        return self.story

    def groups(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Returns the tensors of a checkpoint by group and name."""
        tables = read_tables(self.network.embeddings)
        return {
            GROUP: self.network.linear_state(),
            **{table_group(i): {WEIGHT: table} for i, table in tables.items()},
        }

    def values(self) -> Mapping[str, Any]:
        """Returns plain values that the checkpoint keeps."""
        return {"penalty": self.penalty}

    def add_files(self, folder: Path) -> None:
        """Adds nothing."""


def fit(rows: FitRows, settings: LogisticSettings, print_line: PrintLine) -> FittedLogistic:
    """Fits a model to all training rows; validation rows choose its penalty.

    Raises:
        DatasetError: a file is damaged.
        UserError: the rows do not fit in memory, or nothing can be learned from them.
    """
    dataset, count = rows.dataset, rows.count()
    _require_memory(rows, count)
    validation = rows.count_validation()
    print_line(f"Fitting a logistic regression to {count:,} training rows")
    few = _MOST_CHOOSING if validation else sys.maxsize
    train, choosing = rows.read(validation, sys.maxsize, few)
    only_class = name_only_class(float(train.labels.mean())) if len(train) else "no rows"
    if only_class or not len(choosing):
        raise UserError(
            f"`dataset` {dataset.root}: the training rows are too few, or all of one class "
            f"({only_class or f'{count} rows'}); nothing can be learned from them",
            setting="dataset",
        )
    model = LogisticRegression.fit(train, choosing, dataset.spec.table_sizes, refit=validation == 0)
    network = LogisticNetwork.of(
        model, hash_indices=settings.hash_indices, has_lists=bool(dataset.spec.lists)
    )
    story = (
        f"{count:,} training rows, {model.one_hot.width:,} columns, L2 {model.penalty:g} chosen "
        f"by {chosen_by(validation)}"
    )
    return FittedLogistic(settings, network, story, model.penalty)


def _require_memory(rows: FitRows, count: int) -> None:
    """Refuses training rows that do not fit in memory, estimated from the first of them."""
    block = rows.reader("train").read(0, min(count, BLOCK_ROWS))
    of_rows = _bytes_of(block) * count // max(len(block), 1)
    of_ids = sum(rows.dataset.spec.table_sizes) * _BYTES_OF_ID
    limit = memory_limits()[0]
    if (needed := of_rows + of_ids) > limit.available:
        share = _USABLE * max(limit.available - of_ids, 0) / max(of_rows, 1)
        advice = f"`dataset_subset` {share:.2g} uses the first of them, which fit"
        if not share:
            advice = "`hash_indices` and fewer `num_embeddings_per_feature` need less"
        raise UserError(
            f"`dataset` {rows.dataset.root}: a fit to all {count:,} training rows at once needs "
            f"{format_bytes(needed)} of memory; {format_bytes(max(limit.available, 0))} are "
            f"{limit.name}. {advice}",
            settings=("dataset", "dataset_subset", "hash_indices", "num_embeddings_per_feature"),
        )


def _bytes_of(block: ClickColumns) -> int:
    """Returns the bytes of rows and of their part of the matrix."""
    arrays = [block.label, block.numerical, *block.categorical]
    arrays += [each for column in block.lists for each in (column.ids, column.offsets)]
    values = block.numerical.size + sum(
        len(ids) for ids in (*block.categorical, *(column.ids for column in block.lists))
    )
    return sum(array.nbytes for array in arrays) + values * _BYTES_OF_VALUE
