# SPDX-License-Identifier: Apache-2.0
"""The batches of a dataset on disk, and their comparison."""

import torch

from dlrm.config import DataConfig
from dlrm.data.loader import BatchLoader
from dlrm.data.opened import OpenedDataset
from tests.dlrm.conftest import SPEC

CPU = torch.device("cpu")
FILE_TYPES = ("split", "memmap", "binary", "parquet")


def open_batches(dataset, dataset_type="split", split="train", spec=SPEC, **settings):
    """Opens a split, all rows of it in order unless settings of BatchLoader say otherwise."""
    config = DataConfig(dataset=str(dataset), dataset_type=dataset_type)
    values = {"batch_size": 512, "device": CPU, "drop_last": False} | settings
    return BatchLoader(source=OpenedDataset(config, spec).rows(split), **values)


def assert_same_batches(found, expected) -> int:
    """Compares batches, types included; returns how many there were."""
    count = 0
    for one, other in zip(found, expected, strict=True):
        for name in ("label", "ids", "numerical"):
            mine, theirs = getattr(one, name), getattr(other, name)
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
        count += 1
    return count
