# SPDX-License-Identifier: Apache-2.0
"""Settings of the dataset of a run, and of how to read it."""

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
        "Path to a dataset folder made by `recsys-recipes prepare criteo`",
        resumable=True,
    )
    dataset_type: DatasetType = setting("split", "Type of the dataset")
    loader: LoaderType = setting(
        "default",
        "Reader for --dataset_type parquet: default, or merlin (needs merlin-dataloader)",
        resumable=True,
    )
    num_embeddings_per_feature: tuple[int, ...] = setting(
        (),
        "Rows of each embedding table, instead of the cardinalities in the dataset's feature "
        "specification or the checkpoint; needed for a folder without that file (TorchRec's)",
        used_with={"dataset_type": ("binary", "memmap", "split", "parquet", "npy")},
    )
    dataset_subset: float | None = setting(
        None,
        "Fraction of the training rows to use, in (0, 1]; by default all of them",
        used_with={"dataset_type": Not("synthetic_gpu")},
    )
    batch_size: int = setting(32768, "Batch size for training")
    test_batch_size: int = setting(32768, "Batch size for testing and validation", resumable=True)
    drop_last: bool = setting(
        False,
        "Leave out the last rows of a training epoch if they do not fill a batch",
    )
    shuffle_batch_order: bool = setting(
        False,
        "Read the training batches in random order",
        used_with={"dataset_type": Not("synthetic_gpu")},
    )
    eval_split: Literal["test", "validation"] = setting(
        "test",
        "Split to evaluate on: choose settings on `validation`, report results on `test`",
    )
    synthetic_dataset_num_entries: int = setting(
        33554432,
        "Samples per epoch of the synthetic dataset",
        used_with={"dataset_type": _SYNTHETIC},
    )
    synthetic_dataset_table_sizes: tuple[int, ...] = setting(
        (100000,) * 26,
        "Rows of each embedding table for the synthetic dataset",
        default_text="26 times 100000",
        used_with={"dataset_type": _SYNTHETIC},
    )
    synthetic_dataset_dir: str = setting(
        "/tmp/dlrm_sythetic_dataset",
        "Folder of the synthetic dataset on disk",
        resumable=True,
        used_with={"dataset_type": ("synthetic_disk",)},
    )
    synthetic_distribution: Literal["uniform", "zipf"] = setting(
        "uniform",
        "Distribution of synthetic ids; real ids are close to zipf, which trains faster",
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
                f"`loader` merlin reads only `dataset_type` parquet, not {self.dataset_type}",
                settings=("loader", "dataset_type"),
            )
        if self.loader == "merlin" and self.shuffle_batch_order:
            raise UserError(
                "`loader` merlin reads in order, without `shuffle_batch_order`; shuffle the rows "
                "when you prepare the dataset, or use `loader` default",
                settings=("loader", "shuffle_batch_order"),
            )
        if not self.is_synthetic and self.dataset is None:
            raise UserError(
                f"`dataset_type` {self.dataset_type} needs `dataset`, the folder of the data "
                "(`dataset_type` synthetic_gpu runs without one)",
                settings=("dataset_type", "dataset"),
            )

    def rows_of_epoch(self, num_rows: int) -> int:
        """Returns how many of the split's rows an epoch trains on."""
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
        """Refuses a `dataset` that is not a folder.

        Raises:
            DatasetError: with the command that makes one.
        """
        if not self.is_synthetic and self.folder.is_file():
            raise DatasetError(
                f"`dataset` {self.folder}: is a file, but a prepared dataset is a folder. "
                f"`recsys-recipes prepare clicks --input {self.folder} --output NEW` makes one to "
                "train on. To predict rows without labels with a trained model, make one with "
                f"`recsys-recipes prepare clicks --input {self.folder} --output NEW --dictionaries "
                "TRAINED --unlabelled`, where TRAINED is the dataset that the model was trained on",
                setting="dataset",
                path=self.folder,
            )
        if not self.is_synthetic and not self.folder.is_dir():
            raise DatasetError(
                f"`dataset`: {self.folder} is not a folder; `recsys-recipes prepare clicks` makes "
                "one from raw logs",
                setting="dataset",
            )

    @property
    def has_columns(self) -> bool:
        """Whether the dataset stores each column in its own file (split binary)."""
        return self.dataset_type in ("split", "memmap", "synthetic_disk")
