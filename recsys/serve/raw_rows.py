# SPDX-License-Identifier: Apache-2.0
"""Serves a model on raw rows, given as lines or fields."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch

from recsys.errors import BadRowError
from recsys.serve.client.requests import Arrays, BadRequestError, check_arrays
from recsys.serve.manifest import FEATURE_FILE
from recsys.serve.served import ServedModel
from recsys.serve.signature import (
    FEATURES,
    FIELDS,
    LINE,
    Signature,
)

Features = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64], npt.NDArray[np.float32]]
"""([B, M] numerical features, [B, S] ids, factors of list ids), the inputs `FEATURES`."""


class RowTransform(Protocol):
    """Transforms rows of a log into features."""

    def transform(self, lines: Sequence[bytes]) -> Features:
        """Returns the features of lines.

        Raises:
            BadRowError: a line is not a valid row.
        """

    def transform_fields(self, rows: Sequence[Sequence[bytes]]) -> Features:
        """Returns the features of rows, each given as the texts of its features.

        Raises:
            BadRowError: a row is not valid.
        """


class ServedRawRows(ServedModel):
    """A deployed model that takes raw rows in addition to its own inputs.

    Attributes:
        model_class: class of the model; the subclass sets it.
        open_transform: opens a feature file; the subclass sets it.
    """

    model_class: ClassVar[type[ServedModel]]
    open_transform: ClassVar[Callable[[Path], RowTransform]]

    def __init__(self, model: ServedModel, transform: RowTransform) -> None:
        super().__init__(model.deployment)
        self._model, self._transform = model, transform
        by_name = {tensor.name: tensor for tensor in model.deployment.signature.inputs}
        self._forms = {
            name: Signature(
                inputs=(dataclasses.replace(by_name[name], optional=False),), outputs=()
            )
            for name in (LINE, FIELDS)
        }
        self._others = [name for name in FEATURES if name in by_name]

    @classmethod
    def open(cls, folder: Path, device: torch.device) -> Self:
        """Loads a version folder."""
        model = cls.model_class.open(folder, device)  # checks all files of the version
        return cls(model, cls.open_transform(folder / FEATURE_FILE))

    def prepare(self, request: Arrays) -> Arrays:
        """Checks a request, and transforms its raw rows if it has any."""
        raw = request.keys() - set(FEATURES)
        if not raw:
            return self._model.prepare(request)
        if request.keys() != raw or (LINE in raw and len(raw) > 1):
            raise BadRequestError(
                f"got {', '.join(sorted(request))}: a request has {LINE!r}, or {FIELDS!r}, or "
                f"{' and '.join(map(repr, self._others))}"
            )
        name = LINE if LINE in raw else FIELDS
        check_arrays(self._forms[name], request)
        rows = [_bytes(row) for row in request[name]]
        try:
            if name == LINE:
                transformed = self._transform.transform([line for (line,) in rows])
            else:
                transformed = self._transform.transform_fields(rows)
        except BadRowError as error:
            raise BadRequestError(f"row {error.row}: {error}") from error
        by_name = dict[str, npt.NDArray[Any]](zip(FEATURES, transformed, strict=True))
        features: Arrays = {name: by_name[name] for name in self._others}
        self._model.check_values(features)
        return features

    def check_values(self, request: Arrays) -> None:
        """Refuses ids outside their tables."""
        self._model.check_values(request)

    def predict(self, requests: Sequence[Arrays]) -> list[Arrays]:
        """Runs the network once for all requests."""
        return self._model.predict(requests)


def served_from_raw_rows(
    model: type[ServedModel], transform: Callable[[Path], RowTransform]
) -> type[ServedRawRows]:
    """Returns the class that serves a model on raw rows."""
    members = {"model_class": model, "open_transform": staticmethod(transform)}
    return type("ServedRaw" + model.__name__.removeprefix("Served"), (ServedRawRows,), members)


def _bytes(strings: npt.NDArray[np.object_]) -> list[bytes]:
    return [text if isinstance(text, bytes) else str(text).encode() for text in strings]
