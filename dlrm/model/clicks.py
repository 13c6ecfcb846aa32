# SPDX-License-Identifier: Apache-2.0
"""Interface of every click model: its network and its checkpoint."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic

from torch import Tensor, nn

from dlrm.config import DataConfig
from dlrm.nn.embedding import LookupsT
from recsys.train.checkpoint import Checkpoint, stored_settings
from recsys.train.origin import Origin, check_same_dataset

_SIZES = "num_embeddings_per_feature"


class ClickModel(nn.Module, abc.ABC, Generic[LookupsT]):
    """A network that predicts clicks."""

    @property
    @abc.abstractmethod
    def id_limits(self) -> Sequence[int] | None:
        """Number of ids that each categorical feature may have; None if the model hashes ids."""

    @abc.abstractmethod
    def forward(self, numerical: Tensor, ids: LookupsT) -> Tensor:
        """Predicts clicks.

        Args:
            numerical: [B, M] floating point, transformed as in the dataset.
            ids: categorical features: [B, F] integers, `Bags` if there are lists, or the input of
                tables on several devices.

        Returns:
            [B] logits of a click.
        """

    @abc.abstractmethod
    def raise_bad_ids(self) -> None:
        """Refuses ids outside their tables in earlier batches; waits for the device.

        Raises:
            UserError: an id was outside its table; the message names the feature.
        """


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StoredClicks(abc.ABC):
    """A checkpoint of a click model; `load` reads the weights.

    Attributes:
        path: folder of the checkpoint itself.
        step: number of training steps; None if the model is not trained in steps.
        table_sizes: rows of the table of each categorical feature.
        values: plain values saved with the weights.
    """

    path: Path
    step: int | None
    table_sizes: tuple[int, ...]
    values: Mapping[str, Any]
    checkpoint: Checkpoint

    @property
    @abc.abstractmethod
    def num_numerical(self) -> int:
        """M, number of numerical features in a row."""

    @property
    @abc.abstractmethod
    def hash_indices(self) -> bool:
        """Whether ids are reduced modulo the number of rows in their table."""

    @abc.abstractmethod
    def load(self, *, has_lists: bool = False) -> ClickModel[Any]:
        """Loads the model with its weights, in evaluation mode on the CPU.

        Args:
            has_lists: whether the model takes `Bags` of ids.

        Raises:
            CheckpointError: a file is missing or damaged, or a shape differs.
            OutOfMemoryError: the model does not fit in memory.
        """

    @property
    def origin(self) -> Origin:
        """The training dataset."""
        return Origin.of_checkpoint({}, self.values)

    @property
    def given_sizes(self) -> Sequence[int]:
        """Rows of each table that the user of the run gave; empty if none were given."""
        stored = {_SIZES: self.checkpoint.config.get(_SIZES, [])}
        sizes: list[int] = stored_settings(self.path, stored, DataConfig)[_SIZES]
        return sizes

    def check_dataset(self, now: Origin, dataset: str, *, ignore_fingerprint: bool) -> None:
        """Refuses a dataset other than that of the training; see `check_same_dataset`.

        Args:
            now: dataset to use with the checkpoint, see `OpenedDataset.origin`.
            dataset: name of that dataset, for the error message.
            ignore_fingerprint: compare only the sizes of the tables.

        Raises:
            CheckpointError: the datasets differ.
        """
        stored = self.table_sizes
        if len(stored) == len(now.sizes):
            sizes = dict(zip(now.sizes, stored, strict=True))
        else:
            sizes = {"categorical features": len(stored)}
            now = Origin({"categorical features": len(now.sizes)})
        check_same_dataset(
            self.path,
            Origin.of_checkpoint(sizes, self.values),
            now,
            dataset,
            "set `dataset` and `max_table_size` to those of the training",
            ignore_fingerprint=ignore_fingerprint,
        )
