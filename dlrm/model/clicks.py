# SPDX-License-Identifier: Apache-2.0
"""What programs need of any model of clicks: its network, and its checkpoint."""

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
        """Ids of each categorical feature that the model has rows for; None if it hashes ids."""

    @abc.abstractmethod
    def forward(self, numerical: Tensor, ids: LookupsT) -> Tensor:
        """Predicts clicks.

        Args:
            numerical: [B, M] floating point, transformed as in the dataset.
            ids: categorical features: [B, F] integers, `Bags` where features are lists, or what
                the tables of several devices take.

        Returns:
            [B] logits of a click.
        """

    @abc.abstractmethod
    def raise_bad_ids(self) -> None:
        """Refuses ids outside their tables in earlier batches; waits for the device.

        Raises:
            UserError: an id was outside its table; names the feature.
        """


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StoredClicks(abc.ABC):
    """A checkpoint of a model of clicks; weights are read later.

    Attributes:
        path: folder of the checkpoint itself.
        step: number of training steps; None without any.
        table_sizes: rows of the table of each categorical feature.
        values: plain values beside the weights.
        checkpoint: the checkpoint itself.
    """

    path: Path
    step: int | None
    table_sizes: tuple[int, ...]
    values: Mapping[str, Any]
    checkpoint: Checkpoint

    @property
    @abc.abstractmethod
    def num_numerical(self) -> int:
        """M, numerical features of a row."""

    @property
    @abc.abstractmethod
    def hash_indices(self) -> bool:
        """Whether ids are taken modulo the rows of their table."""

    @abc.abstractmethod
    def load(self, *, has_lists: bool = False) -> ClickModel[Any]:
        """Loads the model with its weights, in evaluation mode on the CPU.

        Args:
            has_lists: it takes bags of ids.

        Raises:
            CheckpointError: a file is missing or damaged, or a shape differs.
            OutOfMemoryError: it does not fit in memory.
        """

    @property
    def origin(self) -> Origin:
        """The training dataset."""
        return Origin.of_checkpoint({}, self.values)

    @property
    def given_sizes(self) -> Sequence[int]:
        """Rows of the tables, where the run was given them."""
        stored = {_SIZES: self.checkpoint.config.get(_SIZES, [])}
        sizes: list[int] = stored_settings(self.path, stored, DataConfig)[_SIZES]
        return sizes

    def check_dataset(self, now: Origin, dataset: str, *, ignore_fingerprint: bool) -> None:
        """Refuses another dataset than that of the training; see `check_same_dataset`.

        Args:
            now: dataset to use the checkpoint with, see `OpenedDataset.origin`.
            dataset: name of the dataset, for the error message.
            ignore_fingerprint: compare the sizes of the tables alone.

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
            "name the dataset of the training with `dataset`, and repeat its `max_table_size`",
            ignore_fingerprint=ignore_fingerprint,
        )
