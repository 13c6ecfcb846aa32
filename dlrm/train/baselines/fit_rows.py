# SPDX-License-Identifier: Apache-2.0
"""The rows that a model is fitted to at once, and those that choose its settings."""

import dataclasses

from dlrm.config import DataConfig
from dlrm.data.opened import OpenedDataset
from recsys.data.errors import DatasetError
from recsys.data.row_reader import RowReader
from recsys.models.logistic.rows import SplitRows, spread

HELD_OUT = 10
"""One of so many training rows chooses settings, where no validation row does."""
MOST_LOOKED_AT = 1 << 20
"""Rows in which both classes are looked for."""


@dataclasses.dataclass(frozen=True, slots=True)
class FitRows:
    """Training rows and those that choose.

    Attributes:
        data: settings of the dataset.
        dataset: the dataset.
        check_ids: refuse ids outside their tables.
    """

    data: DataConfig
    dataset: OpenedDataset
    check_ids: bool

    def reader(self, split: str) -> RowReader:
        """Opens the rows of a split; see `OpenedDataset.rows`."""
        return self.dataset.rows(split, check_ids=self.check_ids)

    def count(self) -> int:
        """Counts the rows that a model trains on in an epoch."""
        return self.data.rows_of_epoch(self.reader("train").num_rows)

    def count_validation(self) -> int:
        """Counts validation rows that may choose settings: none where they are tested."""
        if self.data.eval_split == "validation":
            return 0
        try:
            reader = self.reader("validation")
        except DatasetError:
            return 0
        classes = set[bool]()
        for rows in spread(0, reader.num_rows, MOST_LOOKED_AT):
            classes.update(reader.read(rows.start, rows.stop).label.tolist())
            if len(classes) == 2:
                return int(reader.num_rows)
        return 0

    def read(self, validation: int, most: int, most_choosing: int) -> tuple[SplitRows, SplitRows]:
        """Reads training rows and those that choose; more than the most are thinned evenly.

        Args:
            validation: rows of the validation split that may choose; 0 takes the last tenth of the
                training rows.
            most: training rows to read, besides those that choose.
            most_choosing: rows that choose.

        Raises:
            DatasetError: a file is damaged.
        """
        rows, train = self.count(), self.reader("train")
        cut = rows if validation else rows - rows // HELD_OUT
        choosing, after = (self.reader("validation"), validation) if validation else (train, rows)
        some = spread(0 if validation else cut, after, most_choosing)
        return SplitRows.read(train, spread(0, cut, most)), SplitRows.read(choosing, some)


def chosen_by(validation: int) -> str:
    """Says which rows chose settings, by `FitRows.count_validation`."""
    if validation:
        return "the validation split"
    return "the last tenth of the training rows, then fitted to these too"
