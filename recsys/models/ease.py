# SPDX-License-Identifier: Apache-2.0
"""EASE: a linear autoencoder with zero diagonal, solved in closed form."""

import dataclasses
from typing import TYPE_CHECKING, Self

from recsys.data.sequences.histories import Sequences
from recsys.errors import UserError
from recsys.ratings.data.interactions import Matrix, met_items
from recsys.ratings.fitted.item_to_item import HistorySettings, ItemToItem
from recsys.resources import memory_limits
from recsys.settings import setting
from recsys.sizes import format_bytes
from recsys.train.config import OF_TRAINING

if TYPE_CHECKING:
    import torch

RIDGES = (50.0, 250.0, 1000.0)
"""Candidates from which the validation targets choose one."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EaseSettings(HistorySettings):
    """Settings of the regression."""

    last_items: int = setting(
        0,
        "How many of the newest items of a history count; 0 counts all, each item once",
        used_with=OF_TRAINING,
    )
    ridge: float | None = setting(
        None,
        "Lambda of the ridge regression, added to the number of users of each item; by default the "
        f"best of {', '.join(f'{ridge:g}' for ridge in RIDGES)} by NDCG@10 of the validation "
        "targets",
        used_with=OF_TRAINING,
    )

    def __post_init__(self) -> None:
        """Refuses a ridge that is not positive."""
        HistorySettings.__post_init__(self)
        if self.ridge is not None and not self.ridge > 0:
            raise UserError(f"`ridge` must be above 0, got {self.ridge:g}", setting="ridge")


class Ease(ItemToItem[EaseSettings]):
    """The weights of the linear autoencoder, in float64.

    Source: Steck, "Embarrassingly shallow autoencoders for sparse data", 2019.
    """

    __slots__ = ()
    name = "ease"
    title = "EASE"
    settings_class = EaseSettings

    @classmethod
    def fit(cls, sequences: Sequences, settings: EaseSettings) -> Self:
        """Solves for the weights; without a given ridge, tries each candidate.

        Raises:
            UserError: the dense matrices do not fit in free memory.
        """
        needed = 4 * 8 * sequences.num_items**2
        limit = memory_limits()[0]
        if needed > limit.available:
            raise UserError(
                f"its matrices of {sequences.num_items} items need {format_bytes(needed)} of "
                f"memory, but {format_bytes(max(limit.available, 0))} are {limit.name}"
            )
        import torch

        met = met_items(sequences)
        gram = torch.from_numpy((met.T @ met).toarray())
        if settings.ridge is not None:
            return cls(settings, _weights(gram, settings.ridge))
        found, best = None, 0.0
        for ridge in RIDGES:
            weights = _weights(gram, ridge)
            alike = dataclasses.replace(settings, ridge=ridge, last_items=0)
            value = cls(alike, weights).validated(sequences)
            if found is None or value > best:
                found, best = cls(dataclasses.replace(settings, ridge=ridge), weights), value
        assert found is not None
        return found


def _weights(gram: "torch.Tensor", ridge: float) -> Matrix:
    import torch

    diagonal = torch.arange(len(gram))
    weights = gram.clone()
    weights[diagonal, diagonal] += ridge
    # Positive definite, so Cholesky takes half the time of a general inverse. It works in place,
    # because a matrix may be large.
    torch.linalg.cholesky(weights, out=weights)
    weights = torch.cholesky_inverse(weights)
    weights /= -weights.diagonal().clone()
    weights[diagonal, diagonal] = 0
    found: Matrix = weights.numpy()
    return found
