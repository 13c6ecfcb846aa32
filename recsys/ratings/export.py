# SPDX-License-Identifier: Apache-2.0
"""Exports a checkpoint of a model of ratings for deployment."""

import abc
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from recsys.data.sequences.files import read_item_map
from recsys.data.sequences.titles import read_titles
from recsys.errors import UserError
from recsys.ratings.config import RatingsExportOptions
from recsys.ratings.data.opened import OpenedHistories
from recsys.ratings.item_names import ItemNames
from recsys.ratings.model import RatingsModel, StoredModel
from recsys.ratings.scorer import history_item_pairs, largest_difference
from recsys.serve.checkpoint_export import CheckpointExport, PlainExport, recorded_training
from recsys.serve.client.requests import Arrays
from recsys.serve.signature import (
    EXCLUDE_SEEN,
    HISTORY,
    ITEMS,
    SCORES,
    Signature,
    ratings_signature,
)
from recsys.train.origin import Origin

_ROWS_PER_REQUEST = 16


class RatingsExport(CheckpointExport):
    """A trained model of ratings.

    Args:
        stored: checkpoint of the model.
        options: contents of requests and answers.

    Attributes:
        num_items: I, the items of the catalogue.

    Raises:
        CheckpointError: the checkpoint is missing, damaged, or of another dataset.
        UserError: the catalogue has fewer than K items, or the dataset is damaged.
    """

    def __init__(self, stored: StoredModel, options: RatingsExportOptions) -> None:
        self._base = stored
        self.path = stored.path
        self.step = stored.step
        self.num_items = stored.num_items
        self.has_raw_ids = options.raw_ids is not None
        if not 1 <= options.top_k <= self.num_items:
            raise UserError(
                f"`top_k` {options.top_k} must be between 1 and {self.num_items}, the number of "
                "items of the catalogue",
                setting="top_k",
            )
        self._top_k = options.top_k
        if options.titles and options.raw_ids is None:
            raise UserError(
                "`titles` needs `raw_ids`, the dataset that holds the titles",
                settings=("titles", "raw_ids"),
            )
        self._names = None
        if options.raw_ids is not None:
            self._names = self._read_names(
                options.raw_ids, options.titles, options.ignore_fingerprint
            )

    @property
    def origin(self) -> Origin:
        """The training dataset."""
        return self._base.origin

    @property
    def training(self) -> dict[str, Any]:
        """Dataset and best evaluation."""
        return recorded_training(self._base.checkpoint)

    def _read_names(self, dataset: Path, titles: bool, ignore_fingerprint: bool) -> ItemNames:
        opened = OpenedHistories.of_folder(dataset, "raw_ids")
        raw_ids = read_item_map(dataset).raw.to_pylist()
        names = ItemNames(raw_ids, read_titles(dataset, len(raw_ids)) if titles else None)
        if titles and not names.has_titles:
            raise UserError(
                f"`titles`: {dataset} has no titles; prepare it again with the file of titles next "
                "to the ratings, or leave `titles` out",
                setting="titles",
            )
        opened.check_model(
            self.path, self.origin, len(names), ignore_fingerprint=ignore_fingerprint
        )
        return names

    @functools.cached_property
    def model(self) -> RatingsModel:
        """The model of the checkpoint, with which answers are compared."""
        return self._base.open_model()

    @property
    @abc.abstractmethod
    def history_length(self) -> int:
        """Largest number of items of a history that the model reads."""

    def signature(self, *, fixed_shapes: bool) -> Signature:
        """Returns names, types and shapes of the network's inputs and outputs."""
        if fixed_shapes and self._names is not None:
            raise UserError(
                "`raw_ids` needs `backend` python `format` eager: an exported network cannot read "
                "strings",
                settings=("raw_ids", "backend", "format"),
            )
        return ratings_signature(
            self._top_k,
            self.history_length if fixed_shapes else -1,
            raw_ids=self._names is not None,
            titles=self._names is not None and self._names.has_titles,
        )

    @abc.abstractmethod
    def network_values(self) -> dict[str, Any]:
        """Returns the settings that rebuild the network."""

    def model_values(self) -> dict[str, Any]:
        """Returns the settings that rebuild and serve the network."""
        return self.network_values() | {
            "top_k": self._top_k,
            "raw_ids": self._names is not None,
            "history_length": self.history_length,
        }

    def write_files(self, folder: Path) -> None:
        """Writes the raw ids and titles, if requests or answers hold them."""
        if self._names is not None:
            self._names.save(folder)

    def example_requests(self, count: int, *, fixed_shapes: bool) -> list[Arrays]:
        """Draws histories of various lengths, some too long for the model."""
        generator = np.random.default_rng(0)
        longest = self.history_length if fixed_shapes else self.history_length + 8
        requests: list[Arrays] = []
        for start in range(0, count, _ROWS_PER_REQUEST):
            rows = min(_ROWS_PER_REQUEST, count - start)
            history = generator.integers(1, self.num_items + 1, (rows, longest), np.int64)
            lengths = generator.integers(1, longest + 1, rows)
            history[np.arange(longest) >= lengths[:, None]] = 0
            named = history if self._names is None else self._names.names(history)
            requests.append({HISTORY: named, EXCLUDE_SEEN: generator.random((rows, 1)) < 0.5})
        return requests

    def _numbers(self, items: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        return items if self._names is None else self._names.numbers(items)

    @torch.inference_mode()
    def largest_difference(self, requests: Sequence[Arrays], responses: Sequence[Arrays]) -> float:
        """Compares scores by rank and by item; see `recsys.ratings.scorer.largest_difference`."""
        differences = []
        for request, response in zip(requests, responses, strict=True):
            histories = [row[row > 0] for row in self._numbers(request[HISTORY])]
            excluded = request[EXCLUDE_SEEN][:, 0]
            seen = history_item_pairs(histories, self.model.device, excluded)
            items = torch.tensor(self._numbers(response[ITEMS]))
            scores = torch.tensor(response[SCORES])
            scorer = self.model.scorer(histories)
            differences.append(largest_difference(scorer, items, scores, *seen))
        return float(np.max(differences))  # NaN if any difference is NaN


class PlainRatingsExport(PlainExport, RatingsExport):
    """A model of ratings that cannot be exported."""

    def signature(self, *, fixed_shapes: bool) -> Signature:
        """Returns names, types and shapes of inputs and outputs.

        Raises:
            UserError: the settings ask for an exported network.
        """
        if fixed_shapes:
            raise self.cannot_export()
        return super().signature(fixed_shapes=False)
