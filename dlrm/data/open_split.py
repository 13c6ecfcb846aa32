# SPDX-License-Identifier: Apache-2.0
"""Opens a split of any dataset type as batches for one device."""

import dataclasses

import torch
from torch import Tensor

from dlrm.config import DlrmConfig
from dlrm.data.batch import SplitBatches
from dlrm.data.loader import BatchLoader
from dlrm.data.merlin import MerlinLoader
from dlrm.data.opened import OpenedDataset
from dlrm.data.synthetic import SyntheticBatches
from recsys.data.parquet import ParquetReader
from recsys.data.row_reader import RowReader


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SplitPass:
    """Describes a pass over the batches of a split.

    Attributes:
        split: `train`, `validation` or `test`.
        batch_size: samples per batch, over all ranks.
        train: whether to apply the settings of training: subset and order of batches.
        drop_last: whether to leave out the last, shorter batch.
    """

    split: str
    batch_size: int
    train: bool = False
    drop_last: bool = False


def open_split(
    config: DlrmConfig, dataset: OpenedDataset, wanted: SplitPass, device: torch.device
) -> SplitBatches[Tensor]:
    """Opens the batches of a split for one device.

    Args:
        config: settings of the run.
        dataset: dataset of the run, reduced to the features to read.
        wanted: split, batch size and order.
        device: device of the batches.

    Raises:
        DatasetError: the split is missing or damaged.
    """
    data = config.data
    if data.dataset_type == "synthetic_gpu":
        rows = data.synthetic_dataset_num_entries
        return SyntheticBatches(
            spec=dataset.spec,
            num_rows=rows if wanted.train else max(rows // 16, wanted.batch_size),
            batch_size=wanted.batch_size,
            device=device,
            distribution=data.synthetic_distribution,
            drop_last=wanted.drop_last,
            seed=config.run.seed + int(not wanted.train),
        )
    check_ids = not config.model.hash_indices
    if data.loader == "merlin":
        return MerlinLoader(
            reader=ParquetReader(dataset.root, wanted.split, dataset.spec),
            batch_size=wanted.batch_size,
            device=device,
            drop_last=wanted.drop_last,
            subset=data.dataset_subset if wanted.train else None,
            check_ids=check_ids,
        )
    source = dataset.rows(wanted.split, check_ids=check_ids)
    return load_rows(config, source, wanted, device)


def load_rows(
    config: DlrmConfig, rows: RowReader, wanted: SplitPass, device: torch.device
) -> BatchLoader:
    """Builds the loader for an opened split; see `open_split`."""
    data = config.data
    return BatchLoader(
        source=rows,
        batch_size=wanted.batch_size,
        device=device,
        drop_last=wanted.drop_last,
        shuffle=wanted.train and data.shuffle_batch_order,
        seed=config.run.seed,
        subset=data.dataset_subset if wanted.train else None,
    )
