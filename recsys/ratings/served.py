# SPDX-License-Identifier: Apache-2.0
"""A deployed model of ratings that serves requests."""

import abc
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recsys.ratings.item_names import ItemNames
from recsys.ratings.model import RatingsModel
from recsys.ratings.scorer import LOWEST_SCORE, Histories, history_item_pairs
from recsys.serve.client.requests import Arrays, BadRequestError, check_ids
from recsys.serve.formats import Runner, autocast_of, open_artifact, read_weights
from recsys.serve.manifest import Deployment
from recsys.serve.served import ServedModel
from recsys.serve.signature import EXCLUDE_SEEN, HISTORY, ITEMS, SCORES, TITLES

_MOST_SHOWN = 80
"""How many bytes of an unknown id a message shows."""


class ServedRatings(ServedModel):
    """A loaded version of a model of ratings.

    Args:
        model: the model, or an exported network.
        names: raw ids of the items; None if requests hold item numbers.

    Attributes:
        kind: name of the model in `deployment.json`.
    """

    kind: ClassVar[str]

    def __init__(
        self,
        deployment: Deployment,
        model: RatingsModel | Runner,
        device: torch.device,
        names: ItemNames | None,
    ) -> None:
        super().__init__(deployment)
        self._model = model
        self._device = device
        self._names = names
        self._num_items: int = deployment.model["num_items"]
        self._top_k: int = deployment.model["top_k"]

    @classmethod
    @abc.abstractmethod
    def build(
        cls, deployment: Deployment, weights: dict[str, Tensor], device: torch.device
    ) -> RatingsModel:
        """Builds the model around deployed weights, without copying them."""

    @classmethod
    def open(cls, folder: Path, device: torch.device) -> Self:
        """Loads a version folder."""
        return cls.of(Deployment.open(folder, cls.kind), folder, device)

    @classmethod
    def of(cls, deployment: Deployment, folder: Path, device: torch.device) -> Self:
        """Loads a version whose `deployment.json` has been read."""
        if deployment.format != "eager":
            return cls(deployment, open_artifact(folder, deployment, device), device, None)
        model = cls.build(deployment, read_weights(folder), device)
        names = None
        if deployment.model["raw_ids"]:
            outputs = [tensor.name for tensor in deployment.signature.outputs]
            names = ItemNames.load(folder, with_titles=TITLES in outputs)
        return cls(deployment, model, device, names)

    def check_values(self, request: Arrays) -> None:
        """Refuses empty histories and, if the deployment asks for it, unknown items."""
        history = self._numbers(request)
        if self.deployment.out_of_range == "error":
            if self._names is not None:
                _check_names(request[HISTORY], history)
            check_ids(HISTORY, history, np.array(self._num_items + 1))
        empty = np.flatnonzero(~self._is_item(history).any(axis=1))
        if len(empty):
            raise BadRequestError(
                f"input {HISTORY!r}, row {empty[0]}: holds no item of the catalogue (0 and the "
                "empty string mean no item)"
            )

    def _numbers(self, request: Arrays) -> npt.NDArray[np.int64]:
        history = request[HISTORY]
        return history if self._names is None else self._names.numbers(history)

    def _is_item(self, history: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        is_item: npt.NDArray[np.bool_] = (history > 0) & (history <= self._num_items)
        return is_item

    def warmup_request(self, rows: int) -> Arrays:
        """Returns histories of the largest length."""
        length = self.deployment.model["history_length"]
        ones = np.ones((rows, length), np.int64)
        return {
            HISTORY: ones if self._names is None else self._names.names(ones),
            EXCLUDE_SEEN: np.ones((rows, 1), np.bool_),
        }

    @torch.inference_mode()
    def predict(self, requests: Sequence[Arrays]) -> list[Arrays]:
        """Recommends for the histories of all requests together."""
        excludes = np.concatenate([_excludes(request) for request in requests])
        if callable(self._model):
            whole = np.concatenate([request[HISTORY] for request in requests])
            inputs = [torch.from_numpy(array).to(self._device) for array in (whole, excludes)]
            items, scores = self._model(inputs)
        else:
            histories = [
                row[self._is_item(row)] for request in requests for row in self._numbers(request)
            ]
            items, scores = self._best_items(self._model, histories, excludes)
        ends = np.cumsum([len(request[HISTORY]) for request in requests])[:-1]
        scores = scores.clamp(min=LOWEST_SCORE)
        best = items.cpu().numpy()
        named = best if self._names is None else self._names.names(best)
        outputs = {ITEMS: named, SCORES: scores.cpu().numpy()}
        if self._names is not None and self._names.has_titles:
            outputs[TITLES] = self._names.titles(best)
        rows = zip(*(np.split(output, ends) for output in outputs.values()), strict=True)
        return [dict(zip(outputs, arrays, strict=True)) for arrays in rows]

    def _best_items(
        self, model: RatingsModel, histories: Histories, excludes: npt.NDArray[np.bool_]
    ) -> tuple[Tensor, Tensor]:
        with autocast_of(self.deployment, self._device):
            scorer = model.scorer(histories)
        seen = history_item_pairs(histories, self._device, excludes[:, 0])
        items, scores = scorer.top(self._top_k, *seen)
        return items.masked_fill(scores.isneginf(), 0), scores


def _check_names(names: npt.NDArray[np.object_], numbers: npt.NDArray[np.int64]) -> None:
    unknown = np.argwhere(numbers < 0)
    if len(unknown):
        row, position = unknown[0].tolist()
        shown = bytes(names[row, position][:_MOST_SHOWN]).decode(errors="replace")
        raise BadRequestError(
            f"input {HISTORY!r}, row {row}, position {position}: {shown!r} is not an item of "
            "the catalogue"
        )


def _excludes(request: Arrays) -> npt.NDArray[np.bool_]:
    rows = len(request[HISTORY])
    excludes: npt.NDArray[np.bool_] = request.get(EXCLUDE_SEEN, np.ones((rows, 1), np.bool_))
    return excludes
