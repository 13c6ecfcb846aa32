# SPDX-License-Identifier: Apache-2.0
"""Models that score items by sums over the rows of an item-to-item matrix, one per history item.

torch is imported only where it is needed, so that flags are defined without it.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from scipy import sparse

from recsys.data.sequences.histories import numbered
from recsys.errors import UserError
from recsys.ratings.data.interactions import Matrix
from recsys.ratings.fitted.model import FittedModel
from recsys.settings import Not, declared, require_not_negative, setting
from recsys.train.config import OF_TRAINING

if TYPE_CHECKING:
    from torch import Tensor

    from recsys.ratings.fitted.scores import MatrixScores
    from recsys.ratings.scorer import Histories

_DENSE, _SPARSE = ("weights",), ("offsets", "columns", "values")
"""Names of the tensors of a matrix."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HistorySettings:
    """How much each item of a history weighs."""

    last_items: int = setting(
        20,
        "How many of the newest items of a history count; 0 counts all, each item once",
        used_with=OF_TRAINING,
    )
    decay: float = setting(
        0.7,
        "Weight of an item as a fraction of the weight of the item after it",
        used_with={**OF_TRAINING, "last_items": Not(0)},
    )

    def __post_init__(self) -> None:
        """Refuses negative lengths, and a decay out of range."""
        if not 0 < self.decay <= 1:
            raise UserError(
                f"`decay` must be above 0 and at most 1, got {self.decay:g}", setting="decay"
            )
        require_not_negative(self, "last_items")

    def weights_of(self, histories: "Histories", num_items: int) -> Matrix:
        """Returns [B, I] weights of the items of histories."""
        ends = [items[-self.last_items :] for items in histories]  # all items if it is 0
        lengths = np.array([len(items) for items in ends], np.int64)
        row = np.repeat(np.arange(len(ends)), lengths)
        item = np.concatenate([*ends, np.empty(0, np.int64)]) - 1
        shape = (len(ends), num_items)
        if not self.last_items:
            weights = sparse.csr_array((np.ones(len(row)), (row, item)), shape=shape)
            weights.data[:] = 1
            return weights
        age = np.repeat(lengths, lengths) - 1 - numbered(lengths)
        order = np.argsort(age, kind="stable")  # the sum of an item's weights depends on the order
        values = self.decay ** age[order]
        return sparse.csr_array((values, (row[order], item[order])), shape=shape)


SettingsT = TypeVar("SettingsT", bound=HistorySettings)


@dataclasses.dataclass(frozen=True, slots=True)
class ItemToItem(FittedModel[SettingsT], abc.ABC):
    """A model of ratings with an item-to-item matrix.

    Attributes:
        settings: settings of the model, including values that `fit` chose.
        matrix: [I, I] float64, dense or sparse; the entries of a sparse one are at least 0.
    """

    settings: SettingsT
    matrix: Matrix

    @property
    def num_items(self) -> int:
        """I, the items of the catalogue."""
        count: int = self.matrix.shape[0]
        return count

    def scorer(self, histories: "Histories") -> "MatrixScores":
        """Scores all items after each history."""
        from recsys.ratings.fitted.scores import MatrixScores

        return MatrixScores(self.settings.weights_of(histories, self.num_items) @ self.matrix)

    def __str__(self) -> str:
        """Returns the settings as text, those of histories last."""
        fields = [*declared(self.settings_class)]
        shared = {field.name for field in declared(HistorySettings)}
        fields.sort(key=lambda field: field.name in shared)
        values = {field.name: getattr(self.settings, field.name) for field in fields}
        if not values["last_items"]:
            values = {n: v for n, v in values.items() if n not in shared}
            return ", ".join([*(f"{n} {v}" for n, v in values.items()), "all items alike"])
        return ", ".join(f"{name} {value}" for name, value in values.items())

    def tensors(self) -> "dict[str, Tensor]":
        """Returns the matrix as tensors by name."""
        import torch

        if isinstance(self.matrix, np.ndarray):
            return {"weights": torch.from_numpy(np.ascontiguousarray(self.matrix))}
        arrays = (self.matrix.indptr, self.matrix.indices, self.matrix.data)
        kinds = (np.int64, np.int32, np.float64)
        return {
            name: torch.from_numpy(array.astype(kind, copy=False))
            for name, array, kind in zip(_SPARSE, arrays, kinds, strict=True)
        }

    @classmethod
    def history_length(cls, settings: SettingsT) -> int:
        """Returns how many items of a history count at most; 0 means all."""
        return settings.last_items

    @classmethod
    def of_tensors(cls, tensors: "Mapping[str, Tensor]", settings: Any, num_items: int) -> Self:
        """Builds the model around the result of `tensors`, without a copy."""
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        if tuple(arrays) == _DENSE:
            return cls(settings, arrays["weights"])
        offsets, columns, values = (arrays[name] for name in _SPARSE)
        shape = (num_items, num_items)
        return cls(settings, sparse.csr_array((values, columns, offsets), shape=shape))
