# SPDX-License-Identifier: Apache-2.0
"""The dataset of a run, and how it is read."""

import dataclasses
from pathlib import Path
from typing import Literal

from recsys.data.errors import DatasetError
from recsys.errors import UserError
from recsys.settings import Not, joined, require_below, require_positive, setting

DatasetType = Literal[
    "binary", "memmap", "split", "parquet", "npy", "synthetic_gpu", "synthetic_disk"
]
_SYNTHETIC: tuple[DatasetType, ...] = ("synthetic_gpu", "synthetic_disk")
LoaderType = Literal["default", "merlin"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Dataset, batches and synthetic data."""

    dataset: str | None = setting(
        None,
        "Full path to the dataset folder, as `recsys-recipes prepare criteo` makes it",
        resumable=True,
    )
    dataset_type: DatasetType = setting("split", "The type of the dataset to use")
    loader: LoaderType = setting(
        "default",
        "Reader of --dataset_type parquet: default, or merlin, which needs merlin-dataloader",
        resumable=True,
    )
    num_embeddings_per_feature: tuple[int, ...] = setting(
        (),
        "Rows of each embedding table, for a dataset folder without feature specification "
        "(TorchRec's), or instead of the cardinalities in it; by default those, or those of the "
        "checkpoint",
        used_with={"dataset_type": ("binary", "memmap", "split", "parquet", "npy")},
    )
    dataset_subset: float | None = setting(
        None,
        "Use only a subset of the training data. If None (default) will use all of it. Must be "
        "either None, or a float in range (0,1]",
        used_with={"dataset_type": Not("synthetic_gpu")},
    )
    batch_size: int = setting(32768, "Batch size used for training")
    test_batch_size: int = setting(32768, "Batch size used for testing/validation", resumable=True)
    drop_last: bool = setting(
        False,
        "Leave out the last rows of an epoch of training, if they make no whole batch",
    )
    shuffle_batch_order: bool = setting(
        False,
        "Read batch in train dataset by random order",
        used_with={"dataset_type": Not("synthetic_gpu")},
    )
    eval_split: Literal["test", "validation"] = setting(
        "test",
        "Split that evaluations run on. Choose settings on `validation`, report `test`",
    )
    synthetic_dataset_num_entries: int = setting(
        33554432,
        "Number of samples per epoch for the synthetic dataset",
        used_with={"dataset_type": _SYNTHETIC},
    )
    synthetic_dataset_table_sizes: tuple[int, ...] = setting(
        (100000,) * 26,
        "Embedding table sizes to use with the synthetic dataset",
        default_text="26 times 100000",
        used_with={"dataset_type": _SYNTHETIC},
    )
    synthetic_dataset_dir: str = setting(
        "/tmp/dlrm_sythetic_dataset",
        "Default synthetic disk dataset directory",
        resumable=True,
        used_with={"dataset_type": ("synthetic_disk",)},
    )
    synthetic_distribution: Literal["uniform", "zipf"] = setting(
        "uniform",
        "How synthetic ids are drawn; real ids are close to zipf, which is faster to train",
        used_with={"dataset_type": _SYNTHETIC},
    )

    def __post_init__(self) -> None:
        """Refuses sizes out of range and loaders that cannot read the dataset."""
        require_positive(self, "batch_size", "test_batch_size", "synthetic_dataset_num_entries")
        require_below(self, "synthetic_dataset_num_entries", 10**12)
        if self.dataset_subset is not None and not 0 < self.dataset_subset <= 1:
            raise UserError(
                f"`dataset_subset` must lie in (0, 1], got {self.dataset_subset}",
                setting="dataset_subset",
            )
        for name in ("synthetic_dataset_table_sizes", "num_embeddings_per_feature"):
            sizes = getattr(self, name)
            if any(s < 1 for s in sizes):
                raise UserError(f"`{name}` must be positive, got {joined(sizes)}", setting=name)
        if self.loader == "merlin" and self.dataset_type != "parquet":
            raise UserError(
                f"`loader` merlin reads `dataset_type` parquet alone, not {self.dataset_type}",
                settings=("loader", "dataset_type"),
            )
        if self.loader == "merlin" and self.shuffle_batch_order:
            raise UserError(
                "`loader` merlin reads in order, without `shuffle_batch_order`; shuffle the rows "
                "while preparing the dataset, or use `loader` default",
                settings=("loader", "shuffle_batch_order"),
            )
        if not self.is_synthetic and self.dataset is None:
            raise UserError(
                f"`dataset_type` {self.dataset_type} needs `dataset`, the folder of the data "
                "(or use `dataset_type` synthetic_gpu, which needs none)",
                settings=("dataset_type", "dataset"),
            )

    def rows_of_epoch(self, num_rows: int) -> int:
        """Returns the rows that an epoch trains on, of those of the split."""
        subset = self.dataset_subset
        return num_rows if subset is None else max(int(num_rows * subset), 1)

    @property
    def is_synthetic(self) -> bool:
        """Whether the data is generated, with random labels (AUC near 0.5)."""
        return self.dataset_type in _SYNTHETIC

    @property
    def folder(self) -> Path:
        """Folder of the dataset."""
        is_made = self.dataset_type == "synthetic_disk"
        return Path(self.synthetic_dataset_dir if is_made else self.dataset or "")

    def require_folder(self) -> None:
        """Refuses a dataset that is no folder.

        Raises:
            DatasetError: says how to make one.
        """
        if not self.is_synthetic and self.folder.is_file():
            raise DatasetError(
                f"`dataset` {self.folder}: is a file, and a prepared dataset is a folder. "
                f"`recsys-recipes prepare clicks --input {self.folder} --output NEW` makes one to "
                "train on. For predictions of a trained model, `recsys-recipes prepare clicks "
                f"--input {self.folder} --output NEW --dictionaries TRAINED --unlabelled` makes "
                "one of rows without labels, where TRAINED is the dataset of its training",
                setting="dataset",
                path=self.folder,
            )
        if not self.is_synthetic and not self.folder.is_dir():
            raise DatasetError(
                f"`dataset`: {self.folder} is not a folder; recsys-recipes prepare clicks makes "
                "one from raw logs",
                setting="dataset",
            )

    @property
    def has_columns(self) -> bool:
        """Whether each column of the dataset is a file (split binary)."""
        return self.dataset_type in ("split", "memmap", "synthetic_disk")
