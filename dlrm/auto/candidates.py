# SPDX-License-Identifier: Apache-2.0
"""Settings that may suit a dataset, from its sizes alone; no torch.

The rules were fitted on some of the public logs of `benchmark.own_logs`, and name none.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from dlrm.config import DataConfig
from dlrm.data.opened import OpenedDataset
from recsys.data.errors import DatasetError
from recsys.errors import UserError

_MOST_RACED = 1_000_000
"""Training rows up to which candidates are raced; above, the rule chooses."""
_RARE, _FREQUENT = 10, 100
"""Training rows per category of the largest table: below the first most ids are rare, above the
second hardly any is."""
_SMALL, _LARGE = 50_000, 1_000_000
"""Training rows from which the batches are larger."""
_EPOCHS_UNSEEN = 8
"""Epochs of a training that no validation rows can end."""


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """Settings that may suit a dataset.

    Attributes:
        name: what they are made for.
        settings: setting -> value.
    """

    name: str
    settings: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Traits:
    """Sizes of a dataset that the choice depends on.

    Attributes:
        rows: training rows of an epoch.
        validation_rows: 0 without a validation split.
        largest_table: categories of the feature that has most, lists included; 0 without any.
        tables: features with a table.
        numbers: numerical features.
    """

    rows: int
    validation_rows: int
    largest_table: int
    tables: int
    numbers: int

    @classmethod
    def of(cls, config: DataConfig, num_numerical: int) -> "Traits":
        """Reads the sizes of a dataset on disk.

        Args:
            config: the dataset.
            num_numerical: see `OpenedDataset.open`.

        Raises:
            UserError: the data is generated while the model trains, or the dataset is malformed.
        """
        if config.is_synthetic:
            raise UserError(
                f"`preset` auto looks at a dataset on disk, and `dataset_type` "
                f"{config.dataset_type} has none; name another preset"
            )
        dataset = OpenedDataset.open(config, num_numerical)
        rows = dataset.rows("train", check_ids=False).num_rows
        sizes = dataset.spec.table_sizes
        return cls(
            rows=max(int(rows * (config.dataset_subset or 1)), 1),
            validation_rows=_validation_rows(dataset),
            largest_table=max(sizes, default=0),
            tables=len(sizes),
            numbers=len(dataset.spec.numerical),
        )

    @property
    def rows_per_id(self) -> float:
        """Training rows per category of the largest table."""
        return self.rows / max(self.largest_table, 1)

    def __str__(self) -> str:
        """Returns the sizes in words."""
        ids = f"{self.tables} categorical features, {self.rows_per_id:,.3g} rows per category of "
        ids += "the largest" if self.tables > 1 else "it"
        return (
            f"{self.rows:,} training rows, {self.numbers} numbers, "
            f"{ids if self.tables else 'no categorical features'}"
        )


def _validation_rows(dataset: OpenedDataset) -> int:
    try:
        return int(dataset.rows("validation", check_ids=False).num_rows)
    except DatasetError:
        return 0


def candidates(traits: Traits, world_size: int) -> list[Candidate]:
    """Returns the settings to race, those first that the rule prefers; one alone is taken.

    Args:
        traits: sizes of the dataset.
        world_size: processes of the run; several cannot race, nor normalise over a batch.
    """
    dense, rare = list(_dense(traits, world_size)), list(_rare(traits))
    found = [*rare, *dense] if traits.rows_per_id < _RARE or world_size > 1 else [*dense, *rare]
    if world_size > 1 or traits.rows > _MOST_RACED or not traits.validation_rows:
        found = found[:1]
    return [dataclasses.replace(each, settings=_measured(each, traits)) for each in found]


def _dense(traits: Traits, world_size: int) -> Iterator[Candidate]:
    """Yields settings for ids with many rows each, and numbers."""
    batch_size = 8192 if traits.rows >= _LARGE else 1024 if traits.rows >= _SMALL else 256
    settings = {
        "interaction_op": "cat",
        "embedding_dim": 16,
        "bottom_mlp_sizes": (16,),
        "top_mlp_sizes": (200, 200, 1),
        "embedding_init": 0.01,
        "batch_norm": world_size == 1,
        "dropout": 0.2,
        "optimizer": "adam",
        "lr": 1e-3,
        "warmup_steps": 0,
        "decay_steps": 0,
        "plateau_factor": 0.1,
        "patience": 2,
        "epochs": 30 if traits.rows < _LARGE else 3,
        "batch_size": batch_size,
        "drop_last": True,
        "shuffle_batch_order": True,
    }
    # The encodings of numbers go here: one candidate each.
    yield Candidate("ids with many rows each, and numbers", settings)


def _rare(traits: Traits) -> Iterator[Candidate]:
    """Yields settings for ids with few rows each, which a second epoch would memorise."""
    if not traits.tables or traits.rows_per_id >= _FREQUENT:
        return
    common = {"interaction_op": "dot", "warmup_steps": 0, "decay_steps": 0, "drop_last": True}
    if traits.rows < _LARGE:
        settings = common | {
            "embedding_dim": 32,
            "bottom_mlp_sizes": (64, 32),
            "top_mlp_sizes": (64, 1),
            "batch_size": 128,
            "optimizer": "rowwise_adagrad",
            "lr": 0.018,
            "embedding_weight_decay": 0.0005,
            "epochs": 3,
            "reset_embeddings": True,
        }
    else:
        settings = common | {
            "embedding_dim": 16,
            "bottom_mlp_sizes": (64, 16),
            "top_mlp_sizes": (128, 64, 1),
            "batch_size": 1024,
            "optimizer": "adam",
            "lr": 0.003,
            "epochs": 1,
            **_falling(traits, 1024, 1),
        }
    yield Candidate("rare ids", settings)


def _falling(traits: Traits, batch_size: int, epochs: int) -> dict[str, int]:
    """Returns a rate that falls to zero from a third of the run on."""
    steps = max(traits.rows // batch_size * epochs, 3)
    return {"decay_start_step": steps // 3, "decay_steps": steps - steps // 3}


def _measured(candidate: Candidate, traits: Traits) -> dict[str, Any]:
    """Returns the settings of a candidate with those of the evaluation, and of the networks."""
    settings = {"seeds": 4 if traits.rows < 300_000 else 2 if traits.rows < _LARGE else 1}
    settings |= candidate.settings
    if traits.validation_rows:
        return settings | {"eval_split": "validation"}
    # Test rows would choose the epoch: the length is fixed, and they are evaluated at its end.
    if settings.pop("patience", None) is not None:
        del settings["plateau_factor"]
        settings["epochs"] = min(settings["epochs"], _EPOCHS_UNSEEN)
        settings |= _falling(traits, settings["batch_size"], settings["epochs"])
    return settings | {"test_after": settings["epochs"]}
