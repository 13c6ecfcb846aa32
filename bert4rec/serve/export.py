# SPDX-License-Identifier: Apache-2.0
"""A BERT4Rec checkpoint, opened to be deployed. Letters: B histories, K items of an answer."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bert4rec.model.network import Bert4Rec
from bert4rec.model.scoring import ask, pairs
from bert4rec.model.weights import describe_model, weights_of
from bert4rec.rules import room_for_items
from bert4rec.serve import triton_model
from bert4rec.serve.item_names import ItemNames
from bert4rec.serve.network import NextItemNetwork
from bert4rec.serve.served import KIND, ServedBert4Rec
from recsys.data.manifest import Manifest
from recsys.data.sequences import read_item_map
from recsys.errors import UserError
from recsys.serve.checkpoint_export import CheckpointExport
from recsys.serve.client.requests import Arrays
from recsys.serve.deployment import OutOfRange, Quantize
from recsys.serve.served import ServedModel
from recsys.serve.signature import (
    EXCLUDE_SEEN,
    HISTORY,
    ITEMS,
    SCORES,
    Signature,
    bert4rec_signature,
)

_ROWS_PER_REQUEST = 16


class Bert4RecExport(CheckpointExport):
    """A trained BERT4Rec.

    Args:
        path: a checkpoint, or the folder of a run.
        top_k: items that each history is answered with.
        dataset: folder of the dataset it was trained on, to take and give raw ids; None keeps item
            numbers.

    Raises:
        CheckpointError: it is missing, damaged, or of another model or dataset.
        UserError: the catalogue has fewer items than are asked for, or the dataset is damaged.
    """

    kind: ClassVar[str] = KIND
    served_class: ClassVar[type[ServedModel]] = ServedBert4Rec
    model_file: ClassVar[Path] = Path(triton_model.__file__)

    def __init__(self, path: Path, top_k: int, dataset: Path | None = None) -> None:
        self._stored = describe_model(path)
        self.path = self._stored.path
        self.step = self._stored.step
        if not 1 <= top_k <= self._stored.num_items:
            raise UserError(
                f"`top_k` {top_k} must lie in [1, {self._stored.num_items}], the items of the "
                "catalogue"
            )
        self._top_k = top_k
        self._names = None if dataset is None else self._read_names(dataset)

    def _read_names(self, dataset: Path) -> ItemNames:
        names = ItemNames(read_item_map(dataset).raw.to_pylist())
        fingerprint = Manifest.load(dataset).fingerprint
        self._stored.check_dataset(len(names), fingerprint, str(dataset), "`raw_ids`")
        return names

    @functools.cached_property
    def _model(self) -> Bert4Rec:
        return self._stored.load()

    @property
    def _history_length(self) -> int:
        room = room_for_items(self._stored.config.max_len, self._stored.causal)
        if room < 1:
            raise UserError(f"{self.path}: `max_len` 1 leaves no place for a history")
        return room

    def signature(self, *, fixed_shapes: bool) -> Signature:
        """Returns what the network takes and gives."""
        if fixed_shapes and self._names is not None:
            raise UserError(
                "`raw_ids` needs `backend` python `format` eager: no exported network reads strings"
            )
        length = self._history_length if fixed_shapes else -1
        return bert4rec_signature(self._top_k, length, raw_ids=self._names is not None)

    def model_values(self) -> dict[str, Any]:
        """Returns the settings, the size of the catalogue and how the model is asked."""
        return {
            "config": dataclasses.asdict(self._stored.config),
            "num_items": self._stored.num_items,
            "causal": self._stored.causal,
            "top_k": self._top_k,
            "raw_ids": self._names is not None,
            "history_length": self._history_length,
        }

    def weights(self, quantize: Quantize) -> dict[str, Tensor]:
        """Returns every parameter.

        Raises:
            UserError: 8 bits were asked for.
        """
        if quantize != "none":
            raise UserError(
                f"`quantize` {quantize} is for DLRM: BERT4Rec multiplies with its whole item table "
                "in every answer, so 8 bits would have to be turned back each time"
            )
        return {name: value.contiguous() for name, value in weights_of(self._model).items()}

    def write_files(self, folder: Path) -> None:
        """Writes the raw ids, where requests hold those."""
        if self._names is not None:
            self._names.save(folder)

    def portable_network(
        self,
        weights: dict[str, Tensor],  # noqa: ARG002  (those of the model itself)
        out_of_range: OutOfRange,  # noqa: ARG002  (numbers that are no items count as nothing)
    ) -> nn.Module:
        """Returns the network for histories of a fixed number of places."""
        model = self._model.requires_grad_(False)
        return NextItemNetwork(model, self._top_k, self._stored.causal).eval()

    def example_requests(self, count: int, *, fixed_shapes: bool) -> list[Arrays]:
        """Draws histories of every length, longer than the model has room for among them."""
        generator = np.random.default_rng(0)
        room = self._history_length
        longest = room if fixed_shapes else room + 8
        found: list[Arrays] = []
        for start in range(0, count, _ROWS_PER_REQUEST):
            rows = min(_ROWS_PER_REQUEST, count - start)
            history = generator.integers(1, self._stored.num_items + 1, (rows, longest), np.int64)
            lengths = generator.integers(1, longest + 1, rows)
            history[np.arange(longest) >= lengths[:, None]] = 0
            named = history if self._names is None else self._names.names(history)
            found.append({HISTORY: named, EXCLUDE_SEEN: generator.random((rows, 1)) < 0.5})
        return found

    def _numbers(self, items: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        return items if self._names is None else self._names.numbers(items)

    @torch.inference_mode()
    def largest_difference(self, requests: Sequence[Arrays], answers: Sequence[Arrays]) -> float:
        """Compares scores, place by place and item by item; see `Queries.largest_difference`."""
        found = []
        for request, answer in zip(requests, answers, strict=True):
            histories = [row[row > 0] for row in self._numbers(request[HISTORY])]
            queries = ask(self._model, histories, causal=self._stored.causal)
            nothing: npt.NDArray[np.int64] = np.empty(0, np.int64)
            seen = [
                history if excluded else nothing
                for history, excluded in zip(histories, request[EXCLUDE_SEEN][:, 0], strict=True)
            ]
            found.append(
                queries.largest_difference(
                    torch.tensor(self._numbers(answer[ITEMS])),
                    torch.tensor(answer[SCORES]),
                    *pairs(seen, queries.vectors.device),
                )
            )
        return float(np.max(found))  # NaN, where one of them is
