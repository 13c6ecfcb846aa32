# SPDX-License-Identifier: Apache-2.0
"""Loads a parquet split with merlin-dataloader, the loader of NVTabular.

merlin-dataloader is imported only with `loader` merlin. With cuDF, it decodes on the GPU, and its
batches stay there. Without cuDF, it reads with pandas.
"""

import contextlib
import dataclasses
import itertools
import warnings
from collections.abc import Generator, Iterator
from typing import Any

import torch
from torch import Tensor

from dlrm.data.batch import Batch, NarrowBatch
from dlrm.data.loader import check_any_batch, count_batches, to_device
from recsys.ahead import iterate_ahead
from recsys.data.click_columns import ClickColumns, check_label
from recsys.data.errors import DatasetError
from recsys.data.parquet import ParquetReader
from recsys.data.parquet.schema import column_names
from recsys.errors import UserError
from recsys.installation import command_for


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MerlinLoader:
    """The batches of one split, equal to those of an unshuffled `BatchLoader`.

    Attributes:
        reader: reader of the split; it has checked the schemas of the files.
        batch_size: samples per batch.
        device: device of the batches.
        drop_last: whether to leave out the last, shorter batch (training) or yield it (evaluation).
        subset: fraction of the batches to use, from the front, in (0, 1]; None uses all.
        read_ahead: number of batches to read ahead of the model; 0 reads on demand.
        check_ids: whether to refuse ids outside their tables.
    """

    reader: ParquetReader
    batch_size: int
    device: torch.device
    drop_last: bool
    subset: float | None = None
    read_ahead: int = 4
    check_ids: bool = True

    def __post_init__(self) -> None:
        """Refuses a split that is too small for a batch."""
        check_any_batch(self.num_batches, self.batch_size, self.reader.num_rows, self.subset)

    @property
    def num_batches(self) -> int:
        """Batches of an epoch."""
        return count_batches(self.reader.num_rows, self.batch_size, self.drop_last, self.subset)

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Batch[Tensor]]:
        """Yields an epoch's batches from number `start` on, in a fixed order."""
        return to_device(self.narrow_batches(epoch, start), self.device)

    def narrow_batches(self, epoch: int = 0, start: int = 0) -> Iterator[NarrowBatch]:
        """Yields the same batches in the dtypes of merlin-dataloader; all epochs are equal.

        Raises:
            UserError: merlin-dataloader is not installed.
            DatasetError: a file is damaged, a value is missing, a label is neither 0 nor 1, or an
                id is outside its table.
        """
        del epoch
        return iterate_ahead(self._read(start), self.read_ahead)

    def _read(self, start: int) -> Generator[NarrowBatch, None, None]:
        loader = _open(self.reader, self.batch_size, self.device)
        with contextlib.closing(_stopping(loader, self.reader)) as batches:
            # The loader starts at the first batch: a resumed run reads and drops earlier batches.
            for index, columns in enumerate(itertools.islice(batches, self.num_batches)):
                if index >= start:
                    yield self._narrow(columns, index * self.batch_size)

    def _narrow(self, columns: dict[str, Tensor], first_row: int) -> NarrowBatch:
        spec, source = self.reader.spec, self.reader.folder
        ids = [columns[feature.name] for feature in spec.categorical]
        missing = [
            f.name for f, c in zip(spec.categorical, ids, strict=True) if c.is_floating_point()
        ]
        label = columns[spec.label]
        numerical = (
            torch.stack([columns[name] for name in spec.numerical], dim=1).to(torch.float32)
            if spec.numerical
            else torch.empty(len(label), 0, device=label.device)
        )
        if missing or torch.isnan(numerical).any():
            raise DatasetError(
                f"{source}: rows {first_row} to {first_row + len(label) - 1} have missing values "
                f"in {missing or 'numerical features'}, which prepared data does not have: fill "
                "them in, or prepare the dataset again"
            )
        labels = check_label(label.cpu().numpy(), spec.label, source, first_row)
        if self.check_ids:
            on_host = tuple(column.cpu().numpy() for column in ids)
            ClickColumns(labels, numerical[:, :0].cpu().numpy(), on_host).check_ids(
                spec, source, first_row
            )
        columns_of_ids = tuple(((i,), column[None]) for i, column in enumerate(ids))
        return NarrowBatch(numerical, columns_of_ids, label != 0)


def _open(reader: ParquetReader, batch_size: int, device: torch.device) -> Any:
    """Opens a split with merlin-dataloader.

    Raises:
        UserError: merlin-dataloader is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from every package of its stack, about a missing GPU
            from merlin.dataloader.torch import Loader
            from merlin.io import Dataset
            from merlin.schema import Schema
    except ImportError as error:
        raise UserError(
            f"`loader` merlin needs merlin-dataloader and merlin-core 23.8 ({error}); "
            f"{command_for('merlin')} makes an environment with them, .venv-nvtabular. `loader` "
            "default reads the same batches without these packages",
            setting="loader",
        ) from error
    names = column_names(reader.spec)
    paths = [str(path) for path in reader.files]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = Dataset(
            paths,
            engine="parquet",
            cpu=True if device.type == "cpu" else None,
            row_groups_per_part=1,  # otherwise a part takes an eighth of the machine's memory
            schema=Schema(names),
        )
        return Loader(dataset, batch_size=batch_size, shuffle=False)


def _stopping(loader: Any, reader: ParquetReader) -> Generator[dict[str, Tensor], None, None]:
    """Yields {name: [B] tensor} of every batch, then stops the loader.

    Raises:
        DatasetError: a file is damaged.
    """
    try:
        for columns, _ in loader:
            yield {name: column.reshape(-1) for name, column in columns.items()}
    except (OSError, ValueError) as error:
        raise DatasetError(
            f"{reader.folder}: merlin-dataloader cannot read a part: {error}; it is damaged or cut "
            "short: prepare the dataset again (`loader` default names the part and the row group)",
            setting="loader",
        ) from error
    finally:
        loader.stop()
