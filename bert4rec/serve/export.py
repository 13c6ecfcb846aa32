# SPDX-License-Identifier: Apache-2.0
"""Export of a BERT4Rec checkpoint for deployment."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bert4rec.config import AdapterConfig
from bert4rec.model.network import NO_ADAPTER, Bert4Rec
from bert4rec.model.next_item import NextItemNetwork
from bert4rec.model.scoring import scorer_for
from bert4rec.model.weights import OpenedCheckpoint, merged, weights_of
from bert4rec.rules import max_history_length
from bert4rec.serve import triton_model
from bert4rec.serve.served import KIND, ServedBert4Rec
from recsys.data.sequences.files import read_item_map
from recsys.data.sequences.titles import read_titles
from recsys.errors import UserError
from recsys.ratings.data.opened import OpenedDataset
from recsys.ratings.item_names import ItemNames
from recsys.ratings.scorer import history_item_pairs, largest_difference
from recsys.serve.checkpoint_export import CheckpointExport, recorded_training
from recsys.serve.client.requests import Arrays
from recsys.serve.manifest import OutOfRange, Quantize
from recsys.serve.served import ServedModel
from recsys.serve.signature import (
    EXCLUDE_SEEN,
    HISTORY,
    ITEMS,
    SCORES,
    Signature,
    bert4rec_signature,
)
from recsys.train.origin import Origin

_ROWS_PER_REQUEST = 16


class Bert4RecExport(CheckpointExport):
    """A trained BERT4Rec.

    Args:
        path: a checkpoint, or the folder of a run.
        top_k: K.
        dataset: folder of the training dataset, to serve raw ids; None serves item numbers.
        titles: answer with the titles of the items too, which the dataset must have.

    Attributes:
        num_items: I, the items of the catalogue.

    Raises:
        CheckpointError: it is missing, damaged, or of another model or dataset.
        UserError: the catalogue has fewer than K items, or the dataset is damaged.
    """

    kind: ClassVar[str] = KIND
    served_class: ClassVar[type[ServedModel]] = ServedBert4Rec
    model_file: ClassVar[Path] = Path(triton_model.__file__)

    def __init__(
        self,
        path: Path,
        top_k: int,
        dataset: Path | None = None,
        *,
        titles: bool = False,
        ignore_fingerprint: bool = False,
    ) -> None:
        self._stored = OpenedCheckpoint.open(path)
        self.path = self._stored.path
        self.step = self._stored.step
        self.num_items = self._stored.num_items
        if not 1 <= top_k <= self.num_items:
            raise UserError(
                f"`top_k` {top_k} must lie in [1, {self.num_items}], the items of the catalogue",
                setting="top_k",
            )
        self._top_k = top_k
        if titles and dataset is None:
            raise UserError(
                "`titles` needs `raw_ids`, the dataset that has them",
                settings=("titles", "raw_ids"),
            )
        self._names = None
        if dataset is not None:
            self._names = self._read_names(dataset, titles, ignore_fingerprint)

    @property
    def origin(self) -> Origin:
        """The training dataset."""
        return self._stored.origin

    @property
    def training(self) -> dict[str, Any]:
        """Dataset and best evaluation."""
        return recorded_training(self._stored.checkpoint)

    def _read_names(self, dataset: Path, titles: bool, ignore_fingerprint: bool) -> ItemNames:
        raw_ids = read_item_map(dataset).raw.to_pylist()
        names = ItemNames(raw_ids, read_titles(dataset, len(raw_ids)) if titles else None)
        if titles and not names.has_titles:
            raise UserError(
                f"`titles`: {dataset} has none; prepare it again with the file of titles beside "
                "the ratings, or leave `titles` out",
                setting="titles",
            )
        OpenedDataset.of_folder(dataset, "raw_ids").check_model(
            self.path, self.origin, len(names), ignore_fingerprint=ignore_fingerprint
        )
        return names

    @functools.cached_property
    def _model(self) -> Bert4Rec:
        return self._stored.load()

    @property
    def _served_adapter(self) -> AdapterConfig:
        """Adapters of the served network: constant ones are merged."""
        return NO_ADAPTER if self._stored.adapter.is_constant else self._stored.adapter

    @functools.cached_property
    def _served_model(self) -> Bert4Rec:
        stored = self._stored
        if stored.adapter == self._served_adapter:
            return self._model
        return merged(self._model, stored.config, stored.adapter)

    @property
    def _history_length(self) -> int:
        length = max_history_length(self._stored.config.max_len, self._stored.causal)
        if length < 1:
            raise UserError(
                f"{self.path}: `max_len` 1 leaves no place for a history",
                setting="max_len",
                path=self.path,
            )
        return length

    def signature(self, *, fixed_shapes: bool) -> Signature:
        """Returns names, types and shapes of the network's inputs and outputs."""
        if fixed_shapes and self._names is not None:
            raise UserError(
                "`raw_ids` needs `backend` python `format` eager: no exported network reads "
                "strings",
                settings=("raw_ids", "backend", "format"),
            )
        length = self._history_length if fixed_shapes else -1
        return bert4rec_signature(
            self._top_k,
            length,
            raw_ids=self._names is not None,
            titles=self._names is not None and self._names.has_titles,
        )

    def model_values(self) -> dict[str, Any]:
        """Returns the settings that rebuild and serve the network."""
        return {
            "config": dataclasses.asdict(self._stored.config),
            "adapter": dataclasses.asdict(self._served_adapter),
            "num_items": self.num_items,
            "causal": self._stored.causal,
            "top_k": self._top_k,
            "raw_ids": self._names is not None,
            "history_length": self._history_length,
        }

    def weights(self, quantize: Quantize) -> dict[str, Tensor]:
        """Returns every parameter.

        Raises:
            UserError: `quantize` is not `none`.
        """
        if quantize != "none":
            raise UserError(
                f"`quantize` {quantize} is for DLRM: BERT4Rec multiplies with its whole item table "
                "in every answer, so 8 bits would have to be turned back each time",
                setting="quantize",
            )
        return {name: value.contiguous() for name, value in weights_of(self._served_model).items()}

    def write_files(self, folder: Path) -> None:
        """Writes the raw ids and titles, if requests and answers have those."""
        if self._names is not None:
            self._names.save(folder)

    def portable_network(
        self,
        weights: dict[str, Tensor],  # noqa: ARG002  (those of the model itself)
        out_of_range: OutOfRange,  # noqa: ARG002  (numbers that are no items are left out)
    ) -> nn.Module:
        """Returns the network for histories of a fixed length."""
        model = self._served_model.requires_grad_(False)
        return NextItemNetwork(model, self._top_k, self._stored.causal).eval()

    def example_requests(self, count: int, *, fixed_shapes: bool) -> list[Arrays]:
        """Draws histories of various lengths, some too long for the model."""
        generator = np.random.default_rng(0)
        longest = self._history_length if fixed_shapes else self._history_length + 8
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
            scorer = scorer_for(self._model, histories, causal=self._stored.causal)
            excluded = request[EXCLUDE_SEEN][:, 0]
            seen = history_item_pairs(histories, scorer.vectors.device, excluded)
            items = torch.tensor(self._numbers(response[ITEMS]))
            scores = torch.tensor(response[SCORES])
            differences.append(largest_difference(scorer, items, scores, *seen))
        return float(np.max(differences))  # NaN if one of them is
