# SPDX-License-Identifier: Apache-2.0
"""Reads the rows that a baseline is fitted to, and those that choose its settings."""

import dataclasses

from dlrm.config import DataConfig
from dlrm.data.opened import OpenedDataset
from recsys.data.errors import DatasetError
from recsys.data.row_reader import RowReader
from recsys.models.logistic.rows import SplitRows, spread

HELD_OUT = 10
"""One in this many training rows chooses settings, if no validation rows can."""
MOST_LOOKED_AT = 1 << 20
"""Most validation rows searched for both classes."""


@dataclasses.dataclass(frozen=True, slots=True)
class FitRows:
    """Rows to train on, and rows that choose settings.

    Attributes:
        data: settings of the dataset.
        check_ids: whether to refuse ids outside their tables.
    """

    data: DataConfig
    dataset: OpenedDataset
    check_ids: bool

    def reader(self, split: str) -> RowReader:
        """Opens the rows of a split; see `OpenedDataset.rows`."""
        return self.dataset.rows(split, check_ids=self.check_ids)

    def count(self) -> int:
        """Returns the number of rows of a training epoch."""
        return self.data.rows_of_epoch(self.reader("train").num_rows)

    def count_validation(self) -> int:
        """Returns the number of validation rows that may choose settings.

        It is 0 if the model is tested on them, if there are none, or if they are of one class.
        """
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
        """Reads training rows and rows that choose settings; surplus rows are skipped evenly.

        Args:
            validation: number of validation rows that may choose; 0 uses the last tenth of the
                training rows instead.
            most: most training rows to read, without those that choose.
            most_choosing: most rows that choose.

        Raises:
            DatasetError: a file is damaged.
        """
        rows, train = self.count(), self.reader("train")
        cut = rows if validation else rows - rows // HELD_OUT
        choosing, after = (self.reader("validation"), validation) if validation else (train, rows)
        some = spread(0 if validation else cut, after, most_choosing)
        return SplitRows.read(train, spread(0, cut, most)), SplitRows.read(choosing, some)


def chosen_by(validation: int) -> str:
    """Describes the rows that chose settings, given `FitRows.count_validation`."""
    if validation:
        return "the validation split"
    return "the last tenth of the training rows, then refitted with these"
