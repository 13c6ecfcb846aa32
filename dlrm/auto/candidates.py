# SPDX-License-Identifier: Apache-2.0
"""Finds settings that may suit a dataset, given only its sizes; does not import torch.

The rules were fitted on some of the public logs of `benchmark.own_logs`, but treat none of them
specially.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from dlrm.config import DataConfig
from dlrm.config.model import combinations_of
from dlrm.data.opened import OpenedDataset
from recsys.data.errors import DatasetError
from recsys.errors import UserError

_RARE, _FREQUENT = 10, 30
"""Training rows per category of the largest table: below the first, most ids are rare; above the
second, hardly any are."""
_SMALL, _LARGE = 50_000, 1_000_000
"""Training rows from which batches are larger; from the second on, the rule chooses without a
race."""
_STEPS, _EVALUATIONS = 50, 30
"""Fewest steps between evaluations, and most evaluations. With fewer steps, the learning rate would
fall by chance."""
_PENALISED = 100_000
"""Most rows of all tables that a step may update."""
_ENCODINGS = (
    ("32 piecewise linear codes", "piecewise_linear", 32),
    ("128 piecewise linear codes", "piecewise_linear", 128),
    ("128 bins", "bins", 128),
)
"""Vectors of numbers: fewer codes suit fewer rows, bins suit values with individual meanings."""
_SLOTS = 1 << 22
"""Most slots of `id_statistics`: 64 MiB."""
_SPARSE = 4
"""Slots per id and pair, so that nearly all are kept."""
_FEWEST = 8
"""Fewest batches of an epoch."""
_EPOCHS_UNSEEN = 8
"""Epochs of a training without validation rows that could end it."""

CHOSEN = frozenset(
    {
        *("interaction_op", "embedding_dim", "bottom_mlp_sizes", "top_mlp_sizes", "embedding_init"),
        *("numerical_embedding", "numerical_bins", "id_statistics", "batch_norm", "dropout"),
        *("optimizer", "lr", "warmup_steps", "decay_start_step", "decay_steps", "plateau_factor"),
        *("embedding_l2", "embedding_weight_decay", "reset_embeddings", "seeds"),
        *("batch_size", "drop_last", "shuffle_batch_order", "eval_split"),
        *("epochs", "patience", "test_after", "test_freq", "best_by"),
    }
)
"""All settings that a candidate may set."""


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """Settings that may suit a dataset.

    Attributes:
        name: describes the datasets that the settings suit.
        settings: setting -> value.
        refined: the same settings with one addition, to try if these are the best; None if there is
            none.
    """

    name: str
    settings: dict[str, Any]
    refined: "Candidate | None" = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Traits:
    """Sizes of a dataset on which the choice depends.

    Attributes:
        rows: training rows of an epoch.
        validation_rows: 0 without a validation split.
        largest_table: most categories of a feature, including lists; 0 without such features.
        table_rows: categories of all features.
        tables: number of features with a table.
        numbers: number of numerical features.
        combinations: upper bound of the ids and pairs of ids in the rows; 0 if `id_statistics` is
            not supported.
    """

    rows: int
    validation_rows: int
    largest_table: int
    table_rows: int
    tables: int
    numbers: int
    combinations: int = 0

    @classmethod
    def of(cls, config: DataConfig, num_numerical: int) -> "Traits":
        """Reads the sizes of a dataset on disk.

        Args:
            config: settings of the dataset.
            num_numerical: see `OpenedDataset.open`.

        Raises:
            UserError: the data is generated while the model trains, or the dataset is malformed.
        """
        if config.is_synthetic:
            raise UserError(
                f"`preset` auto needs a dataset on disk, which `dataset_type` "
                f"{config.dataset_type} does not have; use another preset",
                settings=("preset", "dataset_type"),
            )
        dataset = OpenedDataset.open(config, num_numerical)
        rows = dataset.rows("train", check_ids=False).num_rows
        sizes, lists = dataset.spec.table_sizes, dataset.spec.lists
        return cls(
            rows=max(config.rows_of_epoch(rows), 1),
            validation_rows=_validation_rows(dataset),
            largest_table=max(sizes, default=0),
            table_rows=sum(sizes),
            tables=len(sizes),
            numbers=len(dataset.spec.numerical),
            combinations=0 if lists else sum(min(most, rows) for most in combinations_of(sizes)),
        )

    @property
    def is_large(self) -> bool:
        """Whether an epoch takes so long that there is one candidate, with few epochs."""
        return self.rows >= _LARGE

    @property
    def rows_per_id(self) -> float:
        """Training rows per category of the largest table."""
        return self.rows / max(self.largest_table, 1)

    def __str__(self) -> str:
        """Describes the sizes."""
        decimals = int(self.rows_per_id < 10)
        per_id = f"; {self.rows_per_id:,.{decimals}f} rows per category of the largest table"
        return (
            f"{self.rows:,} training rows; {self.numbers} numerical and {self.tables} categorical "
            f"features{per_id if self.tables else ''}"
        )


def _validation_rows(dataset: OpenedDataset) -> int:
    try:
        return int(dataset.rows("validation", check_ids=False).num_rows)
    except DatasetError:
        return 0


def candidates(traits: Traits, given: Mapping[str, Any], world_size: int) -> list[Candidate]:
    """Returns the settings to race, in the order of the rule's preference.

    A single candidate is used without a race.

    Args:
        traits: sizes of the dataset.
        given: settings that the user gave; the length of the schedule depends on some of them.
        world_size: number of processes; several processes cannot race or use batch norm.
    """
    dense, rare = list(_dense(traits, given, world_size)), list(_rare(traits, given))
    found = [*rare, *dense] if traits.rows_per_id < _RARE or world_size > 1 else [*dense, *rare]
    found = [Candidate(each.name, _measured(each.settings, traits)) for each in found]
    if world_size > 1 or traits.is_large or not traits.validation_rows:
        return found[:1]
    if "id_statistics" in given or not 0 < traits.combinations <= _SLOTS:
        return found
    return [dataclasses.replace(each, refined=_refined(each, traits)) for each in found]


def _refined(candidate: Candidate, traits: Traits) -> Candidate:
    """Returns the candidate with statistics of ids added."""
    slots = min(1 << (_SPARSE * traits.combinations).bit_length(), _SLOTS)
    settings = candidate.settings | {"id_statistics": slots}
    return Candidate(f"{candidate.name}, statistics of ids", settings)


def _dense(traits: Traits, given: Mapping[str, Any], world_size: int) -> Iterator[Candidate]:
    """Yields settings for ids with many rows each, and numbers.

    A large log gets two epochs, or only one if it has numbers, because their vectors double the
    cost.
    """
    batch_size = 4096 if traits.is_large else 1024 if traits.rows >= _SMALL else 256
    epochs = 1 if traits.numbers else 2
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
        "embedding_l2": _penalty(traits),
        "shuffle_batch_order": True,
        **_course(traits, given, batch_size, epochs if traits.is_large else None),
    }
    if not traits.numbers:
        yield Candidate("ids with many rows each", settings)
        return
    for name, encoding, bins in _ENCODINGS:
        encoded = settings | {"numerical_embedding": encoding, "numerical_bins": bins}
        yield Candidate(f"ids with many rows each, and {name} of numbers", encoded)


def _penalty(traits: Traits) -> float:
    """Returns `embedding_l2`; 0 for large tables, because its step takes time for every row."""
    if not 0 < traits.table_rows <= _PENALISED:
        return 0.0
    return 0.02 if traits.numbers or traits.rows < _SMALL else 0.1


def _rare(traits: Traits, given: Mapping[str, Any]) -> Iterator[Candidate]:
    """Yields settings for ids with few rows each, which would be memorised in a second epoch."""
    if not traits.tables or traits.rows_per_id >= _FREQUENT:
        return
    if traits.is_large:
        settings = {
            "embedding_dim": 16,
            "bottom_mlp_sizes": (64, 16),
            "top_mlp_sizes": (128, 64, 1),
            "optimizer": "adam",
            "lr": 0.003,
            **_course(traits, given, 1024, 1),
        }
    else:
        settings = {
            "embedding_dim": 32,
            "bottom_mlp_sizes": (64, 32),
            "top_mlp_sizes": (64, 1),
            "optimizer": "rowwise_adagrad",
            "lr": 0.018,
            "embedding_weight_decay": 0.0005,
            "reset_embeddings": True,
            **_course(traits, given, 128, 3),
            "decay_steps": 0,
        }
    yield Candidate("rare ids", {"interaction_op": "dot"} | settings)


def _course(
    traits: Traits, given: Mapping[str, Any], batch_size: int, epochs: int | None
) -> dict[str, Any]:
    """Returns the settings of batches, of the length of the run and of the learning rate.

    Args:
        traits: sizes of the dataset.
        given: settings that the user gave.
        batch_size: batch size if the dataset has enough rows for many batches.
        epochs: number of epochs after which the learning rate has fallen to zero. With None and
            validation rows, evaluations that do not improve lower the rate and end the run.
    """
    batch_size = given.get("batch_size", min(batch_size, max(traits.rows // _FEWEST, 2)))
    batches = max(traits.rows // batch_size, 1)
    common = {"batch_size": batch_size, "drop_last": True, "warmup_steps": 0}
    if epochs is None and traits.validation_rows:
        settings = {"decay_steps": 0, "plateau_factor": 0.5, "patience": 4, "epochs": _EVALUATIONS}
        if batches < _STEPS:
            length = math.ceil(_EVALUATIONS * _STEPS / batches)
            settings |= {"test_freq": _STEPS, "epochs": length}
        return common | settings
    if epochs is None:
        epochs = math.ceil(_EPOCHS_UNSEEN * max(_STEPS / batches, 1))
    steps = max(batches * given.get("epochs", epochs), 2)
    falls = {"decay_start_step": steps // 3, "decay_steps": steps - steps // 3}
    return common | falls | {"epochs": epochs}


def _measured(settings: dict[str, Any], traits: Traits) -> dict[str, Any]:
    """Adds the settings of the evaluation and the number of networks."""
    seeds = 4 if traits.rows < 300_000 else 2 if traits.rows < _LARGE else 1
    settings = settings | {"seeds": seeds, "best_by": "log_loss"}
    if traits.validation_rows:
        return settings | {"eval_split": "validation"}
    # Test rows must not choose the epoch, so they are evaluated only at the end.
    return settings | {"test_after": settings["epochs"]}
